"""Recipes: the OPUS corpora, languages and amounts of a dataset, and the sampling of its pairs.

A recipe is a YAML file. `recipe_files/` has the recipes of the papers. An example:

    name: mine
    description: German and Turkish with English.
    languages: [de, en, tr]         # any code of vmsst.languages; default: all
    scripts_as_one: [zh]            # simplified and traditional Chinese count as zh; default: none
    pivots: [en]                    # every pair has one of these; or `pairs: [de-en, en-tr]`
    corpora:
      - {name: Europarl, version: v8}
      - {name: OpenSubtitles, cap: 2000000, caps: {en-tr: 500000}}
      - {name: Tatoeba, only_where_nothing_else: true}
    targets: {de: 8000000}          # training pairs of a language with all pivots together
    validation: {share: 0.01, at_most: 500}
    cleaning: {max_ratio: 4.0}      # fields of cleaning.Cleaning
    seed: 0

The order of the corpora matters: if two have the same pair, the first keeps it.
"""

import collections
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from vmsst import errors, languages
from vmsst.data import readers
from vmsst.io import input_files, manifest
from vmsst.languages import Language
from vmsst.opus import cleaning as cleaning_lib
from vmsst.opus import releases

_FOLDER = pathlib.Path(__file__).with_name("recipe_files")
_TOP = 1 << 64  # Above every rank.

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Cell = tuple[str, str]
"""Name of a language pair, and name of a corpus."""
Ranks = Mapping[Cell, Sequence[np.ndarray]]
"""The ranks of the rows of each cell: ascending uint64 arrays, one per bucket."""


class Code(str):
  """A language by its `readers.compact_code`; in YAML any of its codes."""


class Pair(str):
  """A language pair by its `readers.pair_name`; in YAML two codes, such as de-en."""


class CodeCounts(dict[str, int]):
  """Numbers by `Code`."""


class PairCounts(dict[str, int]):
  """Numbers by `Pair`."""


class Counts(dict[str, int]):
  """Numbers by `Code` or `Pair`."""


class Corpus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
  """A corpus of a recipe, and how much of it to use.

  Attributes:
    name: Name in OPUS, in upper or lower case.
    version: The version to use (default: every available version).
    cap: Maximum number of pairs of a language pair, including validation (default: no limit).
    caps: Other limits, by language pair.
    only_where_nothing_else: Whether to use only language pairs that no other corpus has.
  """

  name: Annotated[str, msgspec.Meta(min_length=1)]
  version: str | None = None
  cap: Count | None = None
  caps: PairCounts = PairCounts()
  only_where_nothing_else: bool = False

  def limit(self, pair: str) -> int | None:
    """Returns the maximum number of pairs of a language pair, or None for no limit."""
    return self.caps.get(pair, self.cap)


class Validation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
  """How many pairs of each corpus and language pair are for validation.

  Attributes:
    share: Share of the pairs within the caps, rounded down.
    at_most: Maximum number of pairs (default: no limit).
  """

  share: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
  at_most: Count | None = None

  def count(self, size: int) -> int:
    """Returns how many of `size` pairs are for validation."""
    count = int(size * self.share)
    return count if self.at_most is None else min(count, self.at_most)


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
  """The content of a dataset.

  Attributes:
    name: Name of its TFDS configuration: letters, digits and "_".
    description: A sentence or two for the data card.
    corpora: The corpora in the order of precedence.
    languages: The languages; if empty, all languages.
    scripts_as_one: Languages for which scripts do not matter: texts in any script count as the
      language in its first script.
    pivots: Every pair has one of these languages; if empty, any pair is used.
    pairs: The language pairs; if empty, all pairs.
    targets: Maximum number of training pairs of a language, with all pivots together.
    expected: Training pairs that a paper reports; only for comparison.
    validation: How many pairs are for validation.
    cleaning: Rules for cleaning texts.
    seed: Seed of the pseudo-random sampling.
  """

  name: Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_]+\Z")]
  description: str = ""
  corpora: tuple[Corpus, ...] = ()
  languages: tuple[Code, ...] = ()
  scripts_as_one: tuple[Code, ...] = ()
  pivots: tuple[Code, ...] = ()
  pairs: tuple[Pair, ...] = ()
  targets: CodeCounts = CodeCounts()
  expected: Counts = Counts()
  validation: Validation = Validation()
  cleaning: cleaning_lib.Cleaning = cleaning_lib.Cleaning()
  seed: Count = 0

  def __post_init__(self) -> None:
    """Raises ValueError if the values contradict each other."""
    if self.targets and not self.pivots:
      raise ValueError("targets are for pairs with pivots; set pivots, such as [en]")
    names = collections.Counter(corpus.name.casefold() for corpus in self.corpora)
    if repeated := [name for name, count in names.items() if count > 1]:
      raise ValueError(f"corpora has {repeated[0]} twice; remove one")

  def corpus(self, name: str) -> Corpus | None:
    """Returns the settings of a corpus, or None if the recipe does not use it."""
    return next((x for x in self.corpora if x.name.casefold() == name.casefold()), None)

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
    name = self.pair_name(source, target)
    codes = set(name.split("_"))
    return (
      len(codes) == 2
      and (not self.languages or codes <= set(self.languages))
      and (not self.pivots or bool(codes & set(self.pivots)))
      and (not self.pairs or name in self.pairs)
    )

  def pair_name(self, source: Language, target: Language) -> str:
    """Returns the name of a language pair in the dataset, such as "deu_eng"."""
    codes = (readers.compact_code(language) for language in (source, target))
    merged = {code[:3] for code in self.scripts_as_one}
    return "_".join(code[:3] if code[:3] in merged else code for code in codes)

  def order(self, corpus: str) -> int:
    """Returns a key that sorts corpora of the recipe by precedence."""
    return [entry.name.casefold() for entry in self.corpora].index(corpus.casefold())

  @property
  def digest(self) -> str:
    """Hash of all settings that change the data."""
    content = msgspec.to_builtins(self, enc_hook=str)
    return manifest.digest(
      {name: x for name, x in content.items() if name not in ("description", "expected")}
    )


class Cut(NamedTuple):
  """Bounds of the ranks of a cell's rows in the dataset.

  Attributes:
    train: Rows with ranks from `validation` to below this are for training.
    validation: Rows with ranks below this are for validation.
  """

  train: int
  validation: int

  def counts(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the numbers of ranks for training and for validation in each array, [arrays, 2]."""
    below = [(_below(rank_N, self.train), _below(rank_N, self.validation)) for rank_N in arrays]
    train_B, validation_B = np.array(below, np.int64).reshape(-1, 2).T
    return np.stack([np.maximum(train_B - validation_B, 0), validation_B], axis=1)


class Goal(NamedTuple):
  """A target number of training pairs, and the result.

  Attributes:
    name: Code of a language, or name of a language pair.
    target: Number in the recipe, as a target or as reported by a paper.
    obtained: Training pairs in the dataset.
    available: Pairs before caps and targets.
  """

  name: str
  target: int
  obtained: int
  available: int


def names() -> list[str]:
  """Returns the names of the recipes in the package."""
  return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def load(name_or_path: str | os.PathLike) -> Recipe:
  """Returns a recipe of the package, by name, or a recipe in a YAML file, by path.

  Raises:
    InputError: it does not exist, or a key or value is wrong; the message names file and key.
  """
  path = os.fspath(name_or_path)
  try:
    content = input_files.read_bytes(_FOLDER / f"{path}.yaml" if path in names() else path)
  except errors.InputError as error:
    raise errors.InputError(
      f"recipe {error}; give the path of a YAML file, or one of {', '.join(names())}"
    ) from None
  try:
    return msgspec.yaml.decode(content, type=Recipe, dec_hook=_normalize)
  except (msgspec.DecodeError, UnicodeDecodeError) as error:
    reason = " ".join(str(error).replace("$.", "").split())
    raise errors.InputError(f"{path}: {reason}") from None


def language_codes(name_or_path: str | os.PathLike) -> list[str] | None:
  """Returns the codes of a recipe's languages, or None for all; raises the errors of `load`."""
  used = load(name_or_path).languages
  recipe_languages = (x for x in languages.LANGUAGES if readers.compact_code(x) in used)
  return readers.language_codes(recipe_languages) or None


def plan(recipe: Recipe, ranks: Ranks) -> dict[Cell, Cut]:
  """Returns the sample of each corpus and language pair, as bounds of its ranks.

  A sample is the rows with the lowest ranks; the lowest of all are for validation. Ranks are
  pseudo-random, so this is a random sample, and a smaller cap gives a subset of a larger one. If
  the target of a language is below its caps, its largest cells are cut to one size, and small
  corpora stay whole.

  Args:
    recipe: Caps, targets, and how many pairs are for validation.
    ranks: The ranks of all rows; distinct within a cell.
  """
  sizes = {cell: sum(map(len, arrays)) for cell, arrays in ranks.items()}
  corpora = {name: corpus for _, name in sizes if (corpus := recipe.corpus(name))}
  served = {
    pair
    for (pair, name), size in sizes.items()
    if size and not corpora[name].only_where_nothing_else
  }
  allowed = {}
  for (pair, name), size in sizes.items():
    excluded = corpora[name].only_where_nothing_else and pair in served
    limit = 0 if excluded else corpora[name].limit(pair)
    allowed[pair, name] = size if limit is None else min(size, limit)
  validation = {cell: recipe.validation.count(size) for cell, size in allowed.items()}
  train = {cell: size - validation[cell] for cell, size in allowed.items()}
  groups: dict[tuple[str, ...], list[Cell]] = {}  # cells that share a target
  for cell in sorted(sizes):
    groups.setdefault(tuple(_counted_for(recipe, cell[0])), []).append(cell)
  for codes, cells in groups.items():
    if targets := [recipe.targets[code] for code in codes if code in recipe.targets]:
      # Cut the largest cells to one size (or one more), so that all cells together reach the
      # target. In ascending order, a small cell leaves its share to the larger cells.
      remaining = min(targets)
      for index, cell in enumerate(sorted(cells, key=lambda cell: (train[cell], cell))):
        train[cell] = min(train[cell], remaining // (len(cells) - index))
        remaining -= train[cell]
  return {
    cell: Cut(
      train=_bound(arrays, validation[cell] + train[cell]),
      validation=_bound(arrays, validation[cell]),
    )
    for cell, arrays in ranks.items()
  }


def goals(recipe: Recipe, ranks: Ranks, cuts: Mapping[Cell, Cut]) -> list[Goal]:
  """Returns `targets` and `expected` of a recipe with the results of `cuts`, by name."""
  counts: collections.Counter[str] = collections.Counter()
  available: collections.Counter[str] = collections.Counter()
  for cell, arrays in ranks.items():
    train_count = int(cuts[cell].counts(arrays)[:, 0].sum())
    for name in (cell[0], *_counted_for(recipe, cell[0])):
      counts[name] += train_count
      available[name] += sum(map(len, arrays))
  targets = {**recipe.expected, **recipe.targets}
  return [Goal(name, targets[name], counts[name], available[name]) for name in sorted(targets)]


def _counted_for(recipe: Recipe, pair: str) -> list[str]:
  """Returns the languages that a pair counts for: its non-pivot, or both if both are pivots."""
  codes = pair.split("_")
  non_pivots = [code for code in codes if code not in recipe.pivots]
  return non_pivots or codes


def _below(rank_N: np.ndarray, bound: int) -> int:
  """Returns how many of ascending ranks are below a bound."""
  return len(rank_N) if bound >= _TOP else int(np.searchsorted(rank_N, np.uint64(bound)))


def _bound(arrays: Sequence[np.ndarray], count: int) -> int:
  """Returns the lowest bound with `count` ranks of all arrays together below it."""
  if count >= sum(map(len, arrays)):
    return _TOP if count else 0
  low, high = 0, _TOP  # Bisection, because the arrays may be files larger than memory.
  while low < high:
    middle = (low + high) // 2
    if sum(_below(rank_N, middle) for rank_N in arrays) < count:
      low = middle + 1
    else:
      high = middle
  return low


def _normalize(kind: type, value: Any) -> Any:
  """Converts codes, pairs and counts from YAML; the `dec_hook` of msgspec."""
  if issubclass(kind, dict):
    counts = {}
    for key, count in msgspec.convert(value, dict[str, Count]).items():
      is_pair = kind is PairCounts or (kind is Counts and "-" in key)
      counts[_normalize(Pair if is_pair else Code, key)] = count
    return kind(counts)
  if not isinstance(value, str):  # YAML reads "no", the code of Norwegian, as False.
    raise ValueError(f"{value!r} is not text; put it in quotes")
  if kind is Code:
    return Code(readers.compact_code(languages.language(value)))
  if value.count("-") != 1:
    raise ValueError(f"{value!r} is not two codes, such as de-en")
  first, second = map(languages.language, value.split("-"))
  return Pair(readers.pair_name(*releases.order(first, second)))
