"""Finds translations between the lines in two texts, and scores texts that are already aligned.

`mine` compares vectors. `pair_scores` scores aligned lines by cosine or by likelihood.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vmsst import errors
from vmsst.encoder import encoding
from vmsst.io import array_files, manifest, progress_bar, text_files
from vmsst.search import exact_search, margins, vector_store
from vmsst.search.vector_store import EmbeddedText

if TYPE_CHECKING:
  from vmsst.encoder.translation import Translator

# Pairs per window. An interruption loses at most one window of work.
_WINDOW = 1 << 13


class Mined(NamedTuple):
  """Result of `mine`.

  Attributes:
    pairs: Row numbers of the source and target lines, best pair first, with scores rounded as in
      the output.
    source: Number of distinct source sentences.
    target: Number of distinct target sentences.
    candidates: Number of pairs before the threshold is applied.
    best: Threshold chosen with gold pairs, and its F1; None if there are no gold pairs.
  """

  pairs: margins.Pairs
  source: int
  target: int
  candidates: int
  best: margins.F1 | None


def mine(
  source: EmbeddedText,
  target: EmbeddedText,
  *,
  neighbors: int = 4,
  margin: margins.Margin = "ratio",
  retrieval: margins.Retrieval = "max",
  threshold: float | None = None,
  gold: str | None = None,
  search: exact_search.Search = exact_search.search,
) -> Mined:
  """Returns pairs of lines that are likely to be translations of each other.

  Blank lines are skipped. If several lines differ only in white space, only the first is used.

  Args:
    source: The source text.
    target: The target text.
    neighbors: As in `margins.margin_pairs`.
    margin: As in `margins.margin_pairs`.
    retrieval: As in `margins.margin_pairs`.
    threshold: Minimum score.
    gold: File with known translations. Each line contains a source line number, a TAB and a target
      line number, counted from 1. The threshold with the best F1 on these pairs is used. Cannot be
      combined with `threshold`.
    search: Nearest-neighbor search, such as `vmsst.search.device_search.search`, or the approximate
      search that `vmsst.search.faiss_index.index_search` creates from an index of each text.

  Raises:
    InputError: If the vectors of the two texts have different widths or come from different
      encoders, a text contains no sentence, the gold file is malformed, or no gold pair is among
      the candidates.
    ValueError: If `neighbors` is below 1, or if the margin or the retrieval rule is unknown.
  """
  if threshold is not None:
    errors.check_number("threshold", threshold)
    errors.check(gold is None, "threshold", threshold, "None, because the gold pairs determine it")
  texts = source, target
  have_encoders = source.encoder and target.encoder
  settings = [
    {"width": text.vectors.shape[1], "encoder": text.encoder if have_encoders else None}
    for text in texts
  ]
  if differences := manifest.differences(*settings):
    raise errors.InputError(
      f"the vectors of {source.vectors.folder} and {target.vectors.folder} differ: {differences}; "
      "compute both with the same encoder"
    )
  first = [first_lines(text) for text in texts]
  rows = [
    array_files.concatenate(
      (
        block.start + np.flatnonzero(first_N[block] == np.arange(block.start, block.stop))
        for block in exact_search.blocks(len(first_N))
      ),
      np.int64,
    )
    for first_N in first
  ]
  gold_G2 = None
  if gold is not None:
    columns = zip(read_gold(gold), first, texts, strict=True)
    gold_G2 = np.unique(np.array([_gold_rows(gold, *x) for x in columns], np.int64).T, axis=0)
  pairs = margins.margin_pairs(
    exact_search.Selection(source.vectors, rows[0]),
    exact_search.Selection(target.vectors, rows[1]),
    neighbors=neighbors,
    margin=margin,
    retrieval=retrieval,
    search=search,
  )
  for block in exact_search.blocks(len(pairs)):  # Replace rows of the selections by text rows.
    pairs.source_P[block] = rows[0][pairs.source_P[block]]
    pairs.target_P[block] = rows[1][pairs.target_P[block]]
    # Round as in the output, so that a printed score works as a threshold.
    pairs.score_P[block] = np.round(pairs.score_P[block], 6)
  candidates, best = len(pairs), None
  if gold_G2 is not None:
    best = margins.best_f1(pairs, gold_G2) if len(pairs) else None
    if best is None or not best.f1:
      raise errors.InputError(
        f"none of the {len(gold_G2):,} pairs in {gold} is among the {len(pairs):,} candidates; "
        "use a different gold file, or give --threshold instead of --gold"
      )
    threshold = best.threshold
  if threshold is not None:
    pairs = pairs[: np.count_nonzero(pairs.score_P >= threshold)].view(np.recarray)
  return Mined(pairs, len(rows[0]), len(rows[1]), candidates, best)


def lines(pairs: margins.Pairs, source: EmbeddedText, target: EmbeddedText) -> Iterator[str]:
  """Yields one output line per pair: score TAB source TAB target. TABs in a text become spaces."""
  readers = source.reader(), target.reader()
  for block in exact_search.blocks(len(pairs)):
    columns = (x[block].tolist() for x in (pairs.score_P, pairs.source_P, pairs.target_P))
    for score, *rows in zip(*columns, strict=True):
      fields = (text(row) for text, row in zip(readers, rows, strict=True))
      fields = (field.translate(text_files.SEPARATORS) for field in fields)
      yield "\t".join((f"{score:.6f}", *fields))


def read_gold(path: str) -> tuple[list[int], list[int]]:
  """Reads known translations; returns the line numbers of the sources and of the targets."""
  sources, targets = [], []
  for number, line in enumerate(text_files.read_lines(path), 1):
    fields = line.split("\t")
    if len(fields) != 2 or not all(x.isdecimal() and len(x) < 19 for x in fields):
      raise errors.InputError(f"{path}:{number}: {line!r} is not two line numbers joined by a TAB")
    sources.append(int(fields[0]))
    targets.append(int(fields[1]))
  return sources, targets


def _gold_rows(
  gold: str, line_numbers: Sequence[int], first_N: np.ndarray, text: EmbeddedText
) -> list[int]:
  """Maps each line number in a gold file to the first row that contains the line's sentence."""
  for number, line in enumerate(line_numbers, 1):
    if not 1 <= line <= len(first_N) or first_N[line - 1] < 0:
      raise errors.InputError(
        f"{gold}:{number}: there is no sentence in line {line} of {text.path}, which has "
        f"{len(first_N):,} lines, counted from 1"
      )
  return [int(first_N[line - 1]) for line in line_numbers]


def first_lines(text: EmbeddedText) -> np.ndarray:
  """Returns, for each row, the first row with the same text, int64 [N]. Ignores white space.

  Blank lines get -1. The text is read once. For long texts, hashes are stored in a temporary file.

  Raises:
    InputError: If all lines are blank.
  """
  # Hash and row of each line. The numbers are big-endian, so that sorting the bytes sorts them.
  key_N2 = array_files.full((len(text.vectors), 2), 0, ">u8")
  count = 0
  for row, line in enumerate(text.texts()):
    if not text_files.is_blank(line):
      key_N2[count, 0], key_N2[count, 1] = hash(" ".join(line.split())) % (1 << 63), row
      count += 1
  if not count:
    raise errors.InputError(f"{text.path} contains no sentence")
  key_N2[:count].view("S16")[:, 0].sort()
  first_N = array_files.full(len(key_N2), -1, np.int64)
  # A run of equal hashes can span two blocks, so carry over the last hash and its first row.
  before_12 = key_N2[:0]
  for block in exact_search.blocks(count):
    key_B, row_B = np.concatenate([before_12, key_N2[block]]).T.astype(np.int64)
    first_B = row_B[np.searchsorted(key_B, key_B)]
    first_N[row_B] = first_B
    before_12 = np.array([[key_B[-1], first_B[-1]]])
  return first_N


class TextColumn(NamedTuple):
  """Source or target texts: the lines of a text file, or one column or JSON key of each line.

  Attributes:
    path: UTF-8 text, plain or gzipped.
    field: Column or key that contains the text, as in `text_files.read_texts` (default: the whole
      line).
    language: Language code of the texts, for scorers that require one.
  """

  path: str
  field: str | None = None
  language: str | None = None


Languages = tuple[str | None, str | None]
OnCut = Callable[[int, int, int], None]


class Scorer(NamedTuple):
  """Scores pairs of texts.

  Attributes:
    settings: JSON object with all settings that determine the scores, except texts and languages.
    score: Function that takes sources, targets, their languages, and a callback that receives the
      counts of truncated texts. It returns one or more scores for each pair, [N, C]. The first
      column is the score to filter by.
  """

  settings: dict[str, Any]
  score: Callable[[Sequence[str], Sequence[str], Languages, OnCut], np.ndarray]


def by_cosine(encoder: Any, name: str, batch_size: int) -> Scorer:
  """Returns a scorer that computes the cosine between the two vectors of each pair, [N, 1].

  Args:
    encoder: An object with `encode(texts)`; see `encoding.encode`.
    name: Name or path of the encoder. If the encoder has no digest, the name identifies the
      encoder.
    batch_size: Texts per batch.
  """

  def score(
    sources: Sequence[str], targets: Sequence[str], languages: Languages, on_cut: OnCut
  ) -> np.ndarray:
    source_ND, target_ND = (
      exact_search.unit_rows(
        encoding.encode(encoder, texts, language=language, batch_size=batch_size, on_cut=on_cut)
      )
      for texts, language in zip((sources, targets), languages, strict=True)
    )
    return np.clip(np.einsum("nd,nd->n", source_ND, target_ND), -1, 1)[:, None]

  return Scorer({"by": "cosine", "encoder": encoding.identity(encoder, name)}, score)


def by_likelihood(translator: "Translator", per_token: bool, batch_size: int) -> Scorer:
  """Returns a scorer that computes the log-likelihoods of each pair in both directions, [N, 3].

  The second and third columns are log p(target | source's vector) and log p(source | target's
  vector). The first column is their mean. Scoring raises InputError if a language is missing or if
  the run was not trained on it.

  Args:
    translator: The encoder and decoder from a training run.
    per_token: Whether to divide log-likelihoods by the number of tokens.
    batch_size: Texts per batch.
  """

  def score(
    sources: Sequence[str], targets: Sequence[str], languages: Languages, on_cut: OnCut
  ) -> np.ndarray:
    source, target = languages
    if source is None or target is None:
      raise errors.InputError(
        "the likelihood of a text depends on its language; specify the languages of both texts "
        "(--languages)"
      )
    both_N2 = translator.pair_log_likelihoods(
      sources,
      targets,
      languages=(source, target),
      per_token=per_token,
      batch_size=batch_size,
      on_cut=on_cut,
    )
    return np.concatenate([both_N2.mean(axis=1, keepdims=True), both_N2], axis=1)

  encoder = encoding.identity(translator, str(translator.encoder.path))
  return Scorer({"by": "likelihood", "encoder": encoder, "per_token": per_token}, score)


def pair_scores(
  scorer: Scorer,
  source: TextColumn,
  target: TextColumn,
  *,
  texts: Sequence[Mapping[str, Any]] | None = None,
  run_windows: Callable[..., Iterable[np.ndarray]] = map,
) -> Iterator[np.ndarray]:
  """Scores source line i with target line i; yields the scores for one window at a time, [B, C].

  Args:
    scorer: Scores the pairs in each window.
    source: The sources.
    target: The targets; sources and targets can be columns of one file.
    texts: Fingerprints of both texts, from `vector_store.fingerprint` (default: computed from the
      files).
    run_windows: Function that applies a scoring function to each window of sources and targets, as
      `map` does.

  Raises:
    InputError: If a file cannot be read or changes while it is read, the files differ in length, a
      score is not finite, or the scorer rejects its settings or languages.
  """
  texts = texts or [vector_store.fingerprint(column.path) for column in (source, target)]
  count, targets = (text["lines"] for text in texts)
  if count != targets:
    raise errors.InputError(
      f"{source.path} has {count:,} lines but {target.path} has {targets:,}; use files of "
      "equal length, aligned line by line"
    )
  windows = (
    encoding.windows(text_files.read_texts(column.path, column.field, text["digest"]), _WINDOW)
    for column, text in zip((source, target), texts, strict=True)
  )
  cut: list[tuple[int, int, int]] = []

  def score(sources: Sequence[str], targets: Sequence[str]) -> np.ndarray:
    languages = source.language, target.language
    return scorer.score(sources, targets, languages, lambda *counts: cut.append(counts))

  start = 0
  with progress_bar.Bar(total=2 * count, unit=" texts", outer=True) as bar:
    for score_BC in run_windows(score, *windows):
      finite_B = np.isfinite(score_BC).all(axis=1)
      if not finite_B.all():
        raise errors.InputError(
          f"{source.path}:{start + int(np.argmin(finite_B)) + 1}: the score of this pair is "
          "not finite; check the encoder's parameters"
        )
      yield score_BC
      start += len(score_BC)
      bar.update(max(0, 2 * start - bar.n))
  encoding.log_all_cut(cut, 2 * count)
