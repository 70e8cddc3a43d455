"""Cleans bitext files: rules, evaluation sentences, duplicates, wrong languages, low scores.

    counts = collections.Counter()
    bitexts = readers.find_bitext("/data/*.de-en.tsv")
    pairs = list(clean(bitexts, held_out_sentences(["/data/test.en"]), counts))
    print(counts)  # how many pairs were read, and how many each step has dropped

The steps are those of the builder of OPUS datasets, and language identification by py3langid.
"""

import collections
import functools
import pathlib
from collections.abc import Callable, Iterator, MutableMapping, Sequence

import numpy as np

from vmsst import errors, storage
from vmsst.data import formats, readers
from vmsst.evaluation import benchmarks
from vmsst.io import text_files
from vmsst.opus import cleaning
from vmsst.search import exact_search, margins

READ, KEPT = "read", "kept"
HELD_OUT, DUPLICATE, LANGUAGE = "held_out", "duplicate", "language"
LOW_COSINE, LOW_MARGIN = "low_cosine", "low_margin"
REASONS = (*cleaning.REASONS, HELD_OUT, DUPLICATE, LANGUAGE, LOW_COSINE, LOW_MARGIN)
"""Why a pair is dropped, in the order of the steps."""
SURE = 0.8
"""Probability of another language from which a text counts as being in that language."""


def held_out_sentences(paths: Sequence[str]) -> cleaning.EvaluationSentences:
  """Returns the sentences to remove from bitext.

  Args:
    paths: Data folders of `vmsst eval`, and text files. Every line of a file is a sentence, or, in
      a TSV file, every column of a line.
  """

  def sentences() -> Iterator[tuple[str, str]]:
    for path in paths:
      if storage.path(path).is_dir():
        yield from benchmarks.held_out_texts(benchmarks.BENCHMARKS.values(), path)
      else:
        for line in text_files.read_lines(path):
          yield from (("files", text) for text in line.split("\t"))

  return cleaning.EvaluationSentences.of(sentences())


def clean(
  bitexts: Sequence[readers.BitextFile],
  held_out: cleaning.EvaluationSentences,
  counts: collections.Counter[str],
  *,
  rules: cleaning.Cleaning = cleaning.Cleaning(),  # noqa: B008  # it is frozen
) -> Iterator[tuple[str, str]]:
  """Yields the normalized pairs of files of one language pair that pass all steps, in order.

  Pairs are duplicates if they differ only in case, punctuation and spaces; the first one stays.
  Their keys take about 100 bytes of memory per pair. Texts in undetermined languages, and in
  languages that the identifier does not support, pass language identification.

  Args:
    bitexts: The files.
    held_out: Sentences to remove.
    counts: Counts the pairs that were read, the pairs that were dropped, by reason, and the
      pairs that were kept.
    rules: Rules for normalizing and filtering.

  Raises:
    InputError: a file cannot be read or has columns after the pair, or py3langid is not installed.
  """
  pair = bitexts[0].source, bitexts[0].target
  cleaner = cleaning.Cleaner(rules, *pair)
  identify, supported = _identifier()
  checked = [(side, pair[side].iso639_3) for side in (0, 1) if pair[side].iso639_3 in supported]
  seen: set[int] = set()
  for bitext in bitexts:
    for row in readers.read_rows(bitext):
      if row.further:
        raise errors.InputError(
          f"{bitext}:{row.number}: {row.further} columns after the pair; remove hard negatives and "
          "labels, or add them after cleaning"
        )
      counts[READ] += 1
      texts = cleaner(*row.texts)
      if isinstance(texts, str):
        counts[texts] += 1
        continue
      *sides, key = cleaning.keys(*texts)
      if any(map(held_out.sets, sides)):
        counts[HELD_OUT] += 1
      elif key in seen:
        counts[DUPLICATE] += 1
      elif any(identify(texts[side]) not in (code, None) for side, code in checked):
        counts[LANGUAGE] += 1
      else:
        counts[KEPT] += 1
        yield texts
      seen.add(key)


@functools.cache
def _identifier() -> tuple[Callable[[str], str | None], frozenset[str]]:
  """Returns what identifies languages by ISO 639-3 codes, if it is sure, and what it supports."""
  with errors.requires("clean", "language identification"):
    from py3langid import langid
  model = langid.LanguageIdentifier.from_model_file(
    langid.MODEL_FILE, norm_probs=True, min_confidence=SURE
  )
  known = {label: formats.language_or_none(label) for label in model.labels}
  codes = {label: language.iso639_3 if language else label for label, language in known.items()}
  return lambda text: codes.get(model.classify(text)[0]), frozenset(codes.values())


def write(
  held_out: cleaning.EvaluationSentences,
  path: pathlib.Path,
  bitexts: Sequence[readers.BitextFile],
) -> dict[str, int]:
  """Writes the pairs of `clean` to a TSV file; returns the counts."""
  counts: collections.Counter[str] = collections.Counter()
  with path.open("w", encoding="utf-8", newline="\n") as stream:
    for source, target in clean(bitexts, held_out, counts):
      stream.write(f"{source}\t{target}\n")
  return counts


def well_scored_lines(
  path: str,
  vectors: Sequence[exact_search.Rows],
  counts: MutableMapping[str, int],
  *,
  min_cosine: float | None = None,
  min_margin: float | None = None,
  search: exact_search.Search = exact_search.search,
) -> Iterator[str]:
  """Yields the lines of a TSV file whose pairs have high scores.

  The margin is the ratio with 4 neighbors among all sentences of the file; see
  `margins.margin_pairs`. Copies of a sentence count as one neighbor.

  Args:
    path: The file: source TAB target.
    vectors: Vectors of the sources and of the targets.
    counts: Counts of `clean`, which are updated.
    min_cosine: Minimum cosine of a pair.
    min_margin: Minimum margin of a pair.
    search: Finds neighbors; `vmsst.search.device_search.search` uses accelerators.
  """
  low_N = np.zeros(vectors[0].shape[0], bool)
  if min_cosine is not None:
    low_N = margins.cosines(*vectors) < min_cosine
    counts[LOW_COSINE] = int(low_N.sum())
  if min_margin is not None:
    pairs = (line.split("\t") for line in text_files.read_lines(path))
    key_2N = np.array([cleaning.keys(*pair)[:2] for pair in pairs], np.uint64).T
    margin_N = margins.margin_scores(*vectors, sentences=list(key_2N), search=search)
    counts[LOW_MARGIN] = int(np.sum(~low_N & (margin_N < min_margin)))
    low_N |= margin_N < min_margin
  counts[KEPT] = int(np.sum(~low_N))
  for line, low in zip(text_files.read_lines(path), low_N, strict=True):
    if not low:
      yield line
