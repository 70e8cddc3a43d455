"""Recipes define which OPUS corpora and languages a dataset contains, and how it is sampled.

A recipe is a YAML file. The papers' recipes are in `recipe_files/`. Here is an example:

    name: mine
    description: German and Turkish with English.
    languages: [de, en, tr]         # any code in vmsst.languages; default: all
    scripts_as_one: [zh]            # simplified and traditional Chinese count as zh; default: none
    pivots: [en]                    # every pair contains a pivot; or `pairs: [de-en, en-tr]`
    corpora:
      - {name: Europarl, version: v8}
      - {name: OpenSubtitles, cap: 2000000, caps: {en-tr: 500000}}
      - {name: Tatoeba, only_where_nothing_else: true}
    targets: {de: 8000000}          # training pairs per language, summed over all pivots
    validation: {share: 0.01, at_most: 500}
    cleaning: {max_ratio: 4.0}      # fields of cleaning.Cleaning
    seed: 0

The order of the corpora matters: if several corpora contain the same pair, the pair is kept only in
the corpus that comes first in the recipe.
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
_TOP = 1 << 64  # A number greater than every rank.

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Cell = tuple[str, str]  # names of a language pair and a corpus
Ranks = Mapping[Cell, Sequence[np.ndarray]]
"""Row ranks in each cell, as one ascending uint64 array per bucket."""


class Code(str):
  """The `readers.compact_code` of a language. YAML files may use any code for the language."""


class Pair(str):
  """The `readers.pair_name` of a language pair. YAML files use two codes, such as de-en."""


class CodeCounts(dict[str, int]):
  """Numbers of pairs, by `Code`."""


class PairCounts(dict[str, int]):
  """Numbers of pairs, by `Pair`."""


class Counts(dict[str, int]):
  """Numbers of pairs, by `Code` or `Pair`."""


class Corpus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
  """Which version of a corpus to use, and how many of its pairs.

  Attributes:
    name: Name in OPUS. Case does not matter.
    version: The version to use (default: every available version).
    cap: Maximum number of pairs per language pair, including validation pairs (default: no limit).
    caps: Maximum numbers of pairs for individual language pairs. They override `cap`.
    only_where_nothing_else: Whether to use the corpus only for language pairs that no other corpus
      in the recipe provides.
  """

  name: Annotated[str, msgspec.Meta(min_length=1)]
  version: str | None = None
  cap: Count | None = None
  caps: PairCounts = PairCounts()
  only_where_nothing_else: bool = False

  def limit(self, pair: str) -> int | None:
    """Returns the maximum number of pairs for a language pair, or None for no limit."""
    return self.caps.get(pair, self.cap)


class Validation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
  """How many pairs of each corpus and language pair to use for validation.

  Attributes:
    share: Fraction of the pairs to use, rounded down to whole pairs. Caps are applied first.
    at_most: Maximum number of pairs (default: no limit).
  """

  share: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
  at_most: Count | None = None

  def count(self, size: int) -> int:
    """Returns how many of `size` pairs to use for validation."""
    count = int(size * self.share)
    return count if self.at_most is None else min(count, self.at_most)


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
  """Defines a dataset's content.

  Attributes:
    name: Name of the TFDS configuration. The name may contain letters, digits and "_".
    description: One or two sentences for the data card.
    corpora: The corpora, in order of precedence. A pair in several corpora is kept only in the
      first one.
    languages: Languages to include; if empty, all languages.
    scripts_as_one: Languages whose scripts are not distinguished. Texts in all scripts are treated
      as a single language.
    pivots: Use only language pairs with one of these languages; if empty, use all pairs.
    pairs: Language pairs to include; if empty, all pairs.
    targets: Maximum number of training pairs for each language, summed over all pivots.
    expected: Numbers of training pairs that a paper reports. The numbers are used only for
      comparison in the data card.
    validation: How many pairs to use for validation.
    cleaning: Rules for cleaning texts.
    seed: Seed for pseudo-random sampling.
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
    """Raises ValueError if settings contradict each other."""
    if self.targets and not self.pivots:
      raise ValueError("targets require pivots; set pivots, such as [en]")
    names = collections.Counter(corpus.name.casefold() for corpus in self.corpora)
    if repeated := [name for name, count in names.items() if count > 1]:
      raise ValueError(f"corpora lists {repeated[0]} more than once; keep one entry")

  def corpus(self, name: str) -> Corpus | None:
    """Returns the settings of a corpus, or None if the recipe does not use it."""
    return next((x for x in self.corpora if x.name.casefold() == name.casefold()), None)

  def wants(self, release: releases.Release) -> bool:
    """Returns whether the dataset includes a release."""
    corpus = self.corpus(release.corpus)
    return (
      corpus is not None
      and corpus.version in (None, release.version)
      and self.wants_pair(*release.pair)
    )

  def wants_pair(self, source: Language, target: Language) -> bool:
    """Returns whether the dataset includes a language pair."""
    name = self.pair_name(source, target)
    codes = set(name.split("_"))
    return (
      len(codes) == 2
      and (not self.languages or codes <= set(self.languages))
      and (not self.pivots or bool(codes & set(self.pivots)))
      and (not self.pairs or name in self.pairs)
    )

  def pair_name(self, source: Language, target: Language) -> str:
    """Returns the dataset's name for a language pair, such as "deu_eng"."""
    codes = (readers.compact_code(language) for language in (source, target))
    merged = {code[:3] for code in self.scripts_as_one}
    return "_".join(code[:3] if code[:3] in merged else code for code in codes)

  def order(self, corpus: str) -> int:
    """Returns a corpus's position in the recipe, for sorting by precedence."""
    return [entry.name.casefold() for entry in self.corpora].index(corpus.casefold())

  @property
  def digest(self) -> str:
    """Hash of all settings that affect the data."""
    content = msgspec.to_builtins(self, enc_hook=str)
    return manifest.digest(
      {name: x for name, x in content.items() if name not in ("description", "expected")}
    )


class Cut(NamedTuple):
  """Rank bounds that select rows from a cell (one corpus for one language pair).

  Attributes:
    train: Rows with ranks in [validation, train) are training rows.
    validation: Rows with ranks in [0, validation) are validation rows.
  """

  train: int
  validation: int

  def counts(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the numbers of training rows and validation rows in each array, [arrays, 2]."""
    below = [(_below(rank_N, self.train), _below(rank_N, self.validation)) for rank_N in arrays]
    train_B, validation_B = np.array(below, np.int64).reshape(-1, 2).T
    return np.stack([np.maximum(train_B - validation_B, 0), validation_B], axis=1)


class Goal(NamedTuple):
  """A target number of training pairs, and the number obtained.

  Attributes:
    name: Language code or name of a language pair.
    target: Number of training pairs in the recipe's `targets` or `expected`.
    obtained: Number of training pairs in the dataset.
    available: Number of pairs before caps and targets are applied.
  """

  name: str
  target: int
  obtained: int
  available: int


def names() -> list[str]:
  """Returns the names of the recipes in the package."""
  return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def load(name_or_path: str | os.PathLike) -> Recipe:
  """Loads a recipe by its name in the package, or by the path of a YAML file.

  Raises:
    InputError: If the recipe does not exist, or a key or value is invalid.
  """
  path = os.fspath(name_or_path)
  try:
    content = input_files.read_bytes(_FOLDER / f"{path}.yaml" if path in names() else path)
  except errors.InputError as error:
    raise errors.InputError(
      f"recipe {error}; pass the path of a YAML file, or one of {', '.join(names())}"
    ) from None
  try:
    return msgspec.yaml.decode(content, type=Recipe, dec_hook=_normalize)
  except (msgspec.DecodeError, UnicodeDecodeError) as error:
    reason = " ".join(str(error).replace("$.", "").split())
    raise errors.InputError(f"{path}: {reason}") from None


def language_codes(name_or_path: str | os.PathLike) -> list[str] | None:
  """Returns a recipe's language codes, or None for all languages. Raises errors like `load`."""
  used = load(name_or_path).languages
  recipe_languages = (x for x in languages.LANGUAGES if readers.compact_code(x) in used)
  return readers.language_codes(recipe_languages) or None


def plan(recipe: Recipe, ranks: Ranks) -> dict[Cell, Cut]:
  """Chooses which rows to sample from each corpus and language pair, and returns rank bounds.

  A cell is one corpus for one language pair. The sample from a cell consists of the rows with the
  lowest ranks. Within the sample, the lowest-ranked rows are used for validation. Ranks are
  pseudo-random, so the sample is random. The sample for a smaller cap is a subset of the sample for
  a larger cap. If a language still has more training pairs than its target after the caps are
  applied, the language's largest cells are reduced to the same size, and its smaller cells are used
  in full.

  Args:
    recipe: Specifies the caps, the targets and the numbers of validation pairs.
    ranks: The ranks of all rows. Ranks must be distinct within a cell.
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
  groups: dict[tuple[str, ...], list[Cell]] = {}  # Cells that share a target.
  for cell in sorted(sizes):
    groups.setdefault(tuple(_counted_for(recipe, cell[0])), []).append(cell)
  for codes, cells in groups.items():
    if targets := [recipe.targets[code] for code in codes if code in recipe.targets]:
      # Reduce the largest cells to the same size, give or take one pair, so that all cells add up
      # to the target. Cells are visited from small to large, so that each small cell leaves the
      # unused part of its share to the larger cells.
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
  """Compares a recipe's `targets` and `expected` with the numbers that `cuts` select."""
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
  """Returns how many of the ascending ranks are below a bound."""
  return len(rank_N) if bound >= _TOP else int(np.searchsorted(rank_N, np.uint64(bound)))


def _bound(arrays: Sequence[np.ndarray], count: int) -> int:
  """Returns the lowest bound such that `count` ranks, over all arrays, are below it."""
  if count >= sum(map(len, arrays)):
    return _TOP if count else 0
  low, high = 0, _TOP  # Bisect, because the arrays may be memory-mapped files larger than memory.
  while low < high:
    middle = (low + high) // 2
    if sum(_below(rank_N, middle) for rank_N in arrays) < count:
      low = middle + 1
    else:
      high = middle
  return low


def _normalize(kind: type, value: Any) -> Any:
  """Converts codes, pairs and counts from YAML. This is a `dec_hook` for msgspec."""
  if issubclass(kind, dict):
    counts = {}
    for key, count in msgspec.convert(value, dict[str, Count]).items():
      is_pair = kind is PairCounts or (kind is Counts and "-" in key)
      counts[_normalize(Pair if is_pair else Code, key)] = count
    return kind(counts)
  if not isinstance(value, str):  # YAML parses "no", the code for Norwegian, as False.
    raise ValueError(f"{value!r} is not a string; put it in quotes")
  if kind is Code:
    return Code(readers.compact_code(languages.language(value)))
  if value.count("-") != 1:
    raise ValueError(f"{value!r} is not a language pair; write two codes, such as de-en")
  first, second = map(languages.language, value.split("-"))
  return Pair(readers.pair_name(*releases.order(first, second)))
