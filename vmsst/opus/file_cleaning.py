"""Removes low-quality pairs, evaluation sentences and duplicates from bitext files.

    bitexts = readers.find_bitext("/data/*.de-en.tsv")
    counts = clean(held_out_sentences(["/data/test.en"]), pathlib.Path("clean.tsv"), bitexts)

`clean` takes the same steps as `vmsst.opus.builder`, and also drops pairs if py3langid identifies
another language. `drop_low_scores` removes pairs with low similarity.
"""

import collections
import functools
import pathlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from vmsst import errors, storage
from vmsst.data import formats, readers
from vmsst.evaluation import benchmarks
from vmsst.io import text_files
from vmsst.opus import cleaning
from vmsst.search import exact_search, margins

SURE = 0.8  # drop a text if an unexpected language has at least this probability


def held_out_sentences(paths: Sequence[str]) -> cleaning.EvaluationSentences:
  """Reads the evaluation sentences that must not occur in bitext.

  Args:
    paths: `vmsst eval` data folders, and text files. Each line of a text file is one sentence. In a
      TSV file, each column of a line is one sentence.
  """

  def sentences() -> Iterator[tuple[str, str]]:
    for path in paths:
      if storage.path(path).is_dir():
        yield from benchmarks.held_out_texts(benchmarks.BENCHMARKS.values(), path)
      else:
        for line in text_files.read_lines(path):
          yield from (("files", text) for text in line.split("\t"))

  return cleaning.EvaluationSentences.from_texts(sentences())


def clean(
  held_out: cleaning.EvaluationSentences,
  path: pathlib.Path,
  bitexts: Sequence[readers.BitextFile],
  rules: cleaning.Cleaning = cleaning.Cleaning(),  # noqa: B008  # it is frozen
) -> collections.Counter[str]:
  """Writes the pairs that pass all steps to a TSV file, normalized and in their original order.

  Pairs are duplicates if they differ only in case, punctuation and spaces. Only the first of
  several duplicates is kept. Detecting duplicates takes about 100 bytes of memory per pair. If a
  text's language is undetermined or unsupported by the identifier, the text always passes language
  identification.

  Args:
    held_out: Sentences to remove, from `held_out_sentences`.
    path: Output file.
    bitexts: Files for one language pair.
    rules: Rules for normalizing and filtering.

  Returns:
    The number of pairs `read`, the number of pairs `kept`, and the number of pairs dropped for each
    reason: one of `cleaning.REASONS`, `held_out`, `duplicate` or `language`.

  Raises:
    InputError: If a file cannot be read or contains further columns, or py3langid is not installed.
  """
  counts = collections.Counter(read=0, kept=0)
  pair = bitexts[0].source, bitexts[0].target
  cleaner = cleaning.Cleaner(rules, *pair)
  identify, supported = _identifier()
  checked = [(i, pair[i].iso639_3) for i in (0, 1) if pair[i].iso639_3 in supported]
  seen: set[int] = set()
  with path.open("wb") as stream:
    for bitext, row in ((x, row) for x in bitexts for row in readers.read_rows(x)):
      if len(row.texts) > 2:
        raise errors.InputError(f"{bitext}:{row.number}: extra columns after the pair; remove them")
      counts["read"] += 1
      texts = cleaner(*row.texts)
      if isinstance(texts, str):
        counts[texts] += 1
        continue
      *text_keys, key = cleaning.keys(*texts)
      if any(map(held_out.sets, text_keys)):
        counts["held_out"] += 1
      elif key in seen:
        counts["duplicate"] += 1
      elif any(identify(texts[i]) not in (code, None) for i, code in checked):
        counts["language"] += 1
      else:
        seen.add(key)
        counts["kept"] += 1
        stream.write("{}\t{}\n".format(*texts).encode())
  return counts


@functools.cache
def _identifier() -> tuple[Callable[[str], str | None], frozenset[str]]:
  """Returns a function that identifies a text's language (or None), and the supported languages."""
  with errors.requires("clean", "language identification"):
    from py3langid.langid import MODEL_FILE, LanguageIdentifier
  model = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True, min_confidence=SURE)
  languages = {label: formats.language_or_none(label) for label in model.labels}
  codes = {label: language.iso639_3 if language else label for label, language in languages.items()}
  return lambda text: codes.get(model.classify(text)[0]), frozenset(codes.values())


def drop_low_scores(
  path: pathlib.Path,
  cleaned: str,
  vectors: Sequence[exact_search.Rows],
  min_cosine: float | None = None,
  min_margin: float | None = None,
  search: exact_search.Search = exact_search.search,
) -> dict[str, int]:
  """Copies the lines with high-scoring pairs from one TSV file to another.

  The margin is the ratio margin with 4 neighbors among all sentences in the file (see
  `margins.margin_pairs`). Copies of a sentence count as a single neighbor.

  Args:
    path: Output file.
    cleaned: Input file. Each line contains source TAB target.
    vectors: Source vectors and target vectors. Row i of each array belongs to line i of `cleaned`.
    min_cosine: Minimum cosine similarity of a pair.
    min_margin: Minimum margin of a pair.
    search: Function that finds neighbors. `vmsst.search.device_search.search` uses accelerators.

  Returns:
    The number of pairs `kept`, and the numbers of pairs dropped as `low_cosine` and `low_margin`.
  """
  low_N = margins.cosines(*vectors) < (-np.inf if min_cosine is None else min_cosine)
  low_cosine = int(low_N.sum())
  if min_margin is not None:
    pairs = (line.split("\t") for line in text_files.read_lines(cleaned))
    key_2N = np.array([cleaning.keys(*pair)[:2] for pair in pairs], np.uint64).T
    low_N |= margins.margin_scores(*vectors, sentences=[*key_2N], search=search) < min_margin
  with path.open("wb") as stream:
    for line, low in zip(text_files.read_lines(cleaned), low_N.tolist(), strict=True):
      if not low:
        stream.write(f"{line}\n".encode())
  low = int(low_N.sum())
  return {"kept": len(low_N) - low, "low_cosine": low_cosine, "low_margin": low - low_cosine}
