"""Recipes: the OPUS corpora, languages and amounts of a dataset, and the sampling of its pairs.

A recipe is a YAML file; those of the papers are in `recipe_files/`. An example for your own:

    name: mine
    description: German and Turkish with English.
    languages: [de, en, tr]         # any code of vmsst.languages; default: all
    pivots: [en]                    # every pair has one of these; or `pairs: [de-en, en-tr]`
    corpora:
      - {name: Europarl, version: v8}
      - {name: OpenSubtitles, cap: 2000000, caps: {en-tr: 500000}}
      - {name: Tatoeba, only_where_nothing_else: true}
    unlisted: false                 # true: all other corpora too, after those above
    targets: {de: 8000000}          # training pairs of a language with all pivots together
    validation: {share: 0.01, at_most: 500}
    cleaning: {max_ratio: 4.0}      # fields of cleaning.Cleaning
    seed: 0

The order of the corpora matters: if two have the same pair, the first keeps it.
"""

import collections
import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import yaml

from vmsst import errors, languages
from vmsst.bitext import readers
from vmsst.files import input_files, storage
from vmsst.languages import Language
from vmsst.tasks.opus import cleaning as cleaning_lib
from vmsst.tasks.opus import releases

_FOLDER = pathlib.Path(__file__).with_name("recipe_files")
_TOP = 1 << 64  # Above every rank.
_MOST = 1 << 63
_LARGEST = 1 << 18  # Bytes.

Cell = tuple[str, str]
"""Name of a language pair, and name of a corpus."""
Ranks = Mapping[Cell, Sequence[np.ndarray]]
"""By cell, the ranks of its rows: ascending uint64 arrays, one per bucket."""


@dataclasses.dataclass(frozen=True)
class Corpus:
  """The part of a corpus in a recipe.

  Attributes:
    name: Name in OPUS, in upper or lower case.
    version: The version to use; None: every available version.
    cap: Maximum number of pairs of a language pair, including validation; None: no limit.
    caps: Other limits, by name of the language pair ("deu_eng").
    only_where_nothing_else: Whether to use only language pairs that no other corpus has.
  """

  name: str
  version: str | None = None
  cap: int | None = None
  caps: Mapping[str, int] = dataclasses.field(default_factory=dict)
  only_where_nothing_else: bool = False

  def limit(self, pair: str) -> int | None:
    """Returns the maximum number of pairs of a language pair; None: no limit."""
    return self.caps.get(pair, self.cap)


@dataclasses.dataclass(frozen=True)
class Validation:
  """The part of each corpus and language pair for validation.

  Attributes:
    share: Share of the pairs within the caps, rounded down.
    at_most: Maximum number of pairs; None: no limit.
  """

  share: float = 0.0
  at_most: int | None = None

  def count(self, size: int) -> int:
    """Returns how many of `size` pairs are for validation."""
    count = int(size * self.share)
    return count if self.at_most is None else min(count, self.at_most)


@dataclasses.dataclass(frozen=True)
class Recipe:
  """The content of a dataset.

  Attributes:
    name: Name of its TFDS configuration: letters, digits and "_".
    description: A sentence or two for the data card.
    corpora: The corpora in the order of precedence.
    unlisted: Whether to use all other corpora too, in the order of their names.
    languages: Codes (`readers.compact_code`) of the languages; empty: all.
    pivots: Codes of languages; every pair has one of them; empty: any pair.
    pairs: Names of the language pairs; empty: all.
    targets: Maximum number of training pairs of a language, by code, with all pivots together.
    expected: Training pairs that a paper reports, by code or name of a pair; only for comparison.
    validation: The part for validation.
    cleaning: Rules for cleaning texts.
    seed: Seed of the pseudo-random sampling.
  """

  name: str
  description: str = ""
  corpora: tuple[Corpus, ...] = ()
  unlisted: bool = False
  languages: tuple[str, ...] = ()
  pivots: tuple[str, ...] = ()
  pairs: tuple[str, ...] = ()
  targets: Mapping[str, int] = dataclasses.field(default_factory=dict)
  expected: Mapping[str, int] = dataclasses.field(default_factory=dict)
  validation: Validation = Validation()
  cleaning: cleaning_lib.Cleaning = dataclasses.field(default_factory=cleaning_lib.Cleaning)
  seed: int = 0

  def corpus(self, name: str) -> Corpus | None:
    """Returns the part of a corpus in the recipe; None: nothing."""
    for corpus in self.corpora:
      if corpus.name.casefold() == name.casefold():
        return corpus
    return Corpus(name) if self.unlisted else None

  def wants(self, release: releases.Release) -> bool:
    """Returns whether a release is in the dataset."""
    corpus = self.corpus(release.corpus)
    return (
      corpus is not None
      and corpus.version in (None, release.version)
      and self.wants_pair(*release.pair)
    )

  def wants_pair(self, source: Language, target: Language) -> bool:
    """Returns whether a language pair is in the dataset."""
    codes = {readers.compact_code(source), readers.compact_code(target)}
    return (
      len(codes) == 2
      and (not self.languages or codes <= set(self.languages))
      and (not self.pivots or bool(codes & set(self.pivots)))
      and (not self.pairs or readers.pair_name(source, target) in self.pairs)
    )

  def order(self, corpus: str) -> tuple[int, str]:
    """Returns a key that sorts corpora by precedence."""
    names = [listed.name.casefold() for listed in self.corpora]
    name = corpus.casefold()
    return (names.index(name) if name in names else len(names)), corpus

  @property
  def digest(self) -> str:
    """Hash, in 16 hexadecimal digits; the same for recipes that make the same data."""
    content = dataclasses.asdict(self)
    for name in ("description", "expected"):
      del content[name]
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Cut(NamedTuple):
  """Bounds of the ranks of a cell's rows in the dataset.

  Attributes:
    train: Rows with ranks from `validation` to below this are for training.
    validation: Rows with ranks below this are for validation.
  """

  train: int
  validation: int

  def split(self, rank_N: np.ndarray) -> tuple[slice, slice]:
    """Returns the slices of ascending ranks for training and for validation."""
    validation, train = _below(rank_N, self.validation), _below(rank_N, self.train)
    return slice(validation, max(train, validation)), slice(0, validation)


class Goal(NamedTuple):
  """A target number of training pairs, and the result.

  Attributes:
    name: Code of a language, or name of a language pair.
    wanted: Number in the recipe, as a target or as reported by a paper.
    obtained: Training pairs in the dataset.
    available: Pairs before caps and targets.
  """

  name: str
  wanted: int
  obtained: int
  available: int


def names() -> list[str]:
  """Returns the names of the recipes in the package."""
  return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def load(name_or_path: str | os.PathLike) -> Recipe:
  """Returns a recipe of the package by name, or your own by the path of its YAML file.

  Raises:
    InputError: it does not exist, or a key or value is wrong; the message names file and key.
  """
  text = os.fspath(name_or_path)
  try:
    path = _FOLDER / f"{text}.yaml" if text in names() else storage.path(text)
    read = input_files.read_bytes(path, _LARGEST + 1)
    if len(read) > _LARGEST:
      raise errors.InputError(f"{path} is larger than {_LARGEST >> 10} kB")
    content = read.decode("utf-8")
  except (errors.InputError, UnicodeDecodeError) as error:
    raise errors.InputError(
      f"recipe {text}: {error}; give the path of a YAML file, or one of {', '.join(names())}"
    ) from None
  try:
    record = yaml.load(content, _Loader)
  except yaml.YAMLError as error:
    mark = getattr(error, "problem_mark", None)
    place = f"{path}:{mark.line + 1}" if mark else f"{path}"
    raise errors.InputError(f"{place}: {getattr(error, 'problem', None) or error}") from None
  except (ValueError, RecursionError) as error:  # Dates, numbers, nesting.
    raise errors.InputError(f"{path} cannot be read as YAML: {error}") from None
  return _Reader(str(path)).recipe(record)


def language_codes(name_or_path: str | os.PathLike) -> tuple[str, ...]:
  """Returns the codes of a recipe's languages, empty if it has all; errors as of `load`."""
  return load(name_or_path).languages


def plan(recipe: Recipe, ranks: Ranks) -> dict[Cell, Cut]:
  """Returns the sample of each corpus and language pair, as bounds of its ranks.

  A sample is the rows with the lowest ranks, of which the lowest are for validation. Ranks are
  pseudo-random, so this is a random sample, and a smaller cap gives a subset of a larger one. If
  the target of a language is below its caps, its largest cells are cut to one size, and small
  corpora stay whole.

  Args:
    recipe: Caps, targets, and the part for validation.
    ranks: The ranks of all rows; distinct within a cell.
  """
  sizes = {cell: sum(map(len, parts)) for cell, parts in ranks.items()}
  allowed = _allowed(recipe, sizes)
  validation = {cell: recipe.validation.count(size) for cell, size in allowed.items()}
  train = {cell: size - validation[cell] for cell, size in allowed.items()}
  for target, cells in _groups(recipe, sorted(sizes)):
    train |= _level({cell: train[cell] for cell in cells}, target)
  return {
    cell: Cut(
      train=_bound(parts, validation[cell] + train[cell]),
      validation=_bound(parts, validation[cell]),
    )
    for cell, parts in ranks.items()
  }


def goals(recipe: Recipe, ranks: Ranks, cuts: Mapping[Cell, Cut]) -> list[Goal]:
  """Returns `targets` and `expected` of a recipe with the results of `cuts`, by name."""
  counts: collections.Counter[str] = collections.Counter()
  available: collections.Counter[str] = collections.Counter()
  for cell, parts in ranks.items():
    taken = 0
    for part in parts:
      train, _ = cuts[cell].split(part)
      taken += train.stop - train.start
    for name in (cell[0], *_counted_for(recipe, cell[0])):
      counts[name] += taken
      available[name] += sum(map(len, parts))
  wanted = {**recipe.expected, **recipe.targets}
  return [Goal(name, wanted[name], counts[name], available[name]) for name in sorted(wanted)]


def _counted_for(recipe: Recipe, pair: str) -> list[str]:
  """Returns the languages whose targets count a pair: its pivot only if both are pivots."""
  codes = pair.split("_")
  own = [code for code in codes if code not in recipe.pivots]
  return own or codes


def _allowed(recipe: Recipe, sizes: Mapping[Cell, int]) -> dict[Cell, int]:
  """Returns how many rows of each cell are within the caps."""
  listed = {corpus: recipe.corpus(corpus) or Corpus(corpus) for _, corpus in sizes}
  served = {
    pair
    for (pair, corpus), size in sizes.items()
    if size and not listed[corpus].only_where_nothing_else
  }
  allowed = {}
  for (pair, corpus), size in sizes.items():
    limit = listed[corpus].limit(pair)
    if listed[corpus].only_where_nothing_else and pair in served:
      limit = 0
    allowed[pair, corpus] = size if limit is None else min(size, limit)
  return allowed


def _groups(recipe: Recipe, cells: Iterable[Cell]) -> list[tuple[int, list[Cell]]]:
  """Returns the targets, each with the cells that share it."""
  groups: dict[tuple[str, ...], list[Cell]] = {}
  for cell in cells:
    groups.setdefault(tuple(_counted_for(recipe, cell[0])), []).append(cell)
  found = []
  for codes, members in groups.items():
    targets = [recipe.targets[code] for code in codes if code in recipe.targets]
    if targets:
      found.append((min(targets), members))
  return found


def _level(sizes: Mapping[Cell, int], target: int) -> dict[Cell, int]:
  """Returns `sizes` with the largest cut to one size (or one more), for a sum up to `target`."""
  left, level = target, {}
  for place, cell in enumerate(sorted(sizes, key=lambda cell: (sizes[cell], cell))):
    share = left // (len(sizes) - place)
    level[cell] = min(sizes[cell], share)
    left -= level[cell]
  return level


def _below(rank_N: np.ndarray, bound: int) -> int:
  """Returns how many of ascending ranks are below a bound."""
  return len(rank_N) if bound >= _TOP else int(np.searchsorted(rank_N, np.uint64(bound)))


def _bound(parts: Sequence[np.ndarray], count: int) -> int:
  """Returns the lowest bound with `count` ranks of all parts together below it."""
  if count >= sum(map(len, parts)):
    return _TOP if count else 0
  low, high = 0, _TOP  # Bisection, because the parts may be files larger than memory.
  while low < high:
    middle = (low + high) // 2
    if sum(_below(part, middle) for part in parts) < count:
      low = middle + 1
    else:
      high = middle
  return low


class _Loader(yaml.SafeLoader):
  """Refuses repeated keys, and aliases, which can expand without limit."""

  def compose_node(self, parent: Any, index: Any) -> Any:
    if self.check_event(yaml.events.AliasEvent):
      mark = self.peek_event().start_mark
      raise yaml.composer.ComposerError(None, None, "aliases (*) are not allowed", mark)
    return super().compose_node(parent, index)

  def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
    seen = set()
    for key, _ in node.value:
      if not isinstance(key, yaml.ScalarNode) or key.value in seen:
        problem = f"{key.value!r} is repeated, or is not a plain key"
        raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
      seen.add(key.value)
    return super().construct_mapping(node, deep=deep)


@dataclasses.dataclass(frozen=True)
class _Reader:
  """Converts parsed YAML to a recipe; errors name file and key."""

  path: str

  def fail(self, key: str, what: str) -> errors.InputError:
    return errors.InputError(f"{self.path}: {key} {what}")

  def recipe(self, record: Any) -> Recipe:
    known = {field.name: field for field in dataclasses.fields(Recipe)}
    self.check_keys("", record, known)
    if "name" not in record:
      raise self.fail("name", "is missing")
    found: dict[str, Any] = {}
    for key, value in record.items():
      found[key] = getattr(self, f"read_{key}")(key, value)
    name = found["name"]
    if not name.isascii() or not name.replace("_", "").isalnum():
      raise self.fail("name", f"is {name!r}; use letters, digits and _")
    recipe = Recipe(**found)
    if not recipe.corpora and not recipe.unlisted:
      raise self.fail("corpora", "is empty; list some, or set unlisted: true for all of them")
    if recipe.targets and not recipe.pivots:
      raise self.fail("targets", "are for pairs with pivots; set pivots, such as [en]")
    for corpus in recipe.corpora:
      if not corpus.name:
        raise self.fail("corpora", "has one without a name")
    counted = collections.Counter(corpus.name.casefold() for corpus in recipe.corpora)
    for corpus in recipe.corpora:
      if counted[corpus.name.casefold()] > 1:
        raise self.fail("corpora", f"has {corpus.name} twice")
    for key in ("pivots", "targets"):
      for code in getattr(recipe, key):
        if recipe.languages and code not in recipe.languages:
          raise self.fail(key, f"has {code}; add it to languages")
    return recipe

  def check_keys(self, key: str, record: Any, known: Iterable[str]) -> None:
    if not isinstance(record, dict):
      raise self.fail(key or "it", f"is not a mapping of {', '.join(known)}")
    for name in record:
      if name not in known:
        place = f"{key}.{name}" if key else f"{name}"
        raise self.fail(place, f"is not known; use {', '.join(known)}")

  def text(self, key: str, value: Any) -> str:
    if not isinstance(value, str):
      shown = input_files.shown(value)
      raise self.fail(key, f"is {shown}, not text; put it in quotes")
    return value

  def number(self, key: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _MOST:
      raise self.fail(key, f"is {input_files.shown(value)}, not a number from 0 to below 2^63")
    return value

  def flag(self, key: str, value: Any) -> bool:
    if not isinstance(value, bool):
      raise self.fail(key, f"is {input_files.shown(value)}; set it to true or false")
    return value

  def items(self, key: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
      raise self.fail(key, f"is {input_files.shown(value)}, not a list")
    return value

  def code(self, key: str, value: Any) -> str:
    text = self.text(f"{key}: {input_files.shown(value)}", value)
    try:
      return readers.compact_code(languages.language(text))
    except errors.InputError as error:
      raise self.fail(key, f"has an unknown language: {error}") from None

  def pair(self, key: str, value: Any) -> str:
    codes = self.text(key, value).split("-")
    if len(codes) != 2:
      raise self.fail(key, f"has {input_files.shown(value)}; write two codes, such as de-en")
    first, second = (languages.language(self.code(key, code)) for code in codes)
    if first == second:
      raise self.fail(key, f"has {input_files.shown(value)}; write two different languages")
    return readers.pair_name(*releases.ordered(first, second))

  def numbers(self, key: str, value: Any, name_of: Callable[[str, Any], str]) -> dict[str, int]:
    if not isinstance(value, dict):
      raise self.fail(key, f"is {input_files.shown(value)}, not a mapping to numbers")
    found: dict[str, int] = {}
    for name, number in value.items():
      own = name_of(key, name)
      if own in found:
        raise self.fail(key, f"has {own} twice, once as {name}")
      found[own] = self.number(f"{key}.{name}", number)
    return found

  def unique(self, key: str, values: Sequence[str]) -> tuple[str, ...]:
    if len(set(values)) < len(values):
      twice = next(value for value in values if list(values).count(value) > 1)
      raise self.fail(key, f"has {twice} twice")
    return tuple(values)

  def read_corpora(self, key: str, value: Any) -> tuple[Corpus, ...]:
    known: dict[str, Callable[[str, Any], Any]] = {
      "name": self.text,
      "version": self.text,
      "cap": self.number,
      "caps": lambda key, value: self.numbers(key, value, self.pair),
      "only_where_nothing_else": self.flag,
    }
    found = []
    for place, record in enumerate(self.items(key, value), 1):
      own = f"{key}[{place}]"
      self.check_keys(own, record, known)
      if "name" not in record:
        raise self.fail(f"{own}.name", "is missing")
      found.append(Corpus(**{name: known[name](f"{own}.{name}", record[name]) for name in record}))
    return tuple(found)

  def read_validation(self, key: str, value: Any) -> Validation:
    self.check_keys(key, value, ("share", "at_most"))
    share = value.get("share", 0.0)
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share < 1:
      shown = input_files.shown(share)
      raise self.fail(f"{key}.share", f"is {shown}, not a number from 0 to below 1")
    at_most = value.get("at_most")
    if at_most is not None:
      self.number(f"{key}.at_most", at_most)
    return Validation(float(share), at_most)

  def read_cleaning(self, key: str, value: Any) -> cleaning_lib.Cleaning:
    self.check_keys(key, value, [field.name for field in dataclasses.fields(cleaning_lib.Cleaning)])
    try:
      return cleaning_lib.Cleaning(**value)
    except (errors.InputError, TypeError, ValueError) as error:
      raise self.fail(key, f"cannot be used: {error}") from None

  def read_languages(self, key: str, value: Any) -> tuple[str, ...]:
    return self.unique(key, [self.code(key, code) for code in self.items(key, value)])

  def read_pairs(self, key: str, value: Any) -> tuple[str, ...]:
    return self.unique(key, [self.pair(key, pair) for pair in self.items(key, value)])

  def read_expected(self, key: str, value: Any) -> dict[str, int]:
    return self.numbers(
      key, value, lambda key, name: (self.pair if "-" in str(name) else self.code)(key, name)
    )

  def read_targets(self, key: str, value: Any) -> dict[str, int]:
    return self.numbers(key, value, self.code)

  read_name = read_description = text
  read_seed = number
  read_unlisted = flag
  read_pivots = read_languages
