"""Scores the pairs in text files of any length, by cosine or by likelihood."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from vmsst import errors
from vmsst.encoder import batching, encoding, translation
from vmsst.io import progress_bar, text_files
from vmsst.search import embedded_text, exact_search

# Pairs in memory at once; an interruption costs at most these.
_WINDOW = 1 << 13


@dataclasses.dataclass(frozen=True)
class TextColumn:
  """Sources or targets: a text file, or a column or key of its lines.

  Attributes:
    path: UTF-8 text, plain or gzipped.
    field: Column or key of the text in a line, as in `text_files.read_texts`; None: the line.
    language: Code of the texts' language, for scorers that need it.
  """

  path: str
  field: str | None = None
  language: str | None = None


Languages = tuple[str | None, str | None]
OnCut = Callable[[int, int, int], None]


@dataclasses.dataclass(frozen=True)
class Scorer:
  """A way to score pairs of texts.

  Attributes:
    settings: What the scores depend on except texts and languages, as JSON.
    score: Maps sources, targets, the languages of both, and what is called if texts were cut, to
      the columns of each pair's line, [N, C], the score to filter by first.
  """

  settings: dict[str, Any]
  score: Callable[[Sequence[str], Sequence[str], Languages, OnCut], np.ndarray]


def by_cosine(encoder: Any, name: str, batch_size: int) -> Scorer:
  """Returns what scores a pair by the cosine of its vectors, [N, 1].

  Args:
    encoder: An object with `encode(texts)`; see `encoding.encode`.
    name: Name or path of the encoder. Its digest identifies it, or this name if it has none.
    batch_size: Texts per batch.
  """

  def score(
    sources: Sequence[str], targets: Sequence[str], languages: Languages, on_cut: OnCut
  ) -> np.ndarray:
    embed = encoding.embedder(encoder, batch_size=batch_size, on_cut=on_cut)
    vectors = [
      embed(list(texts), language=language)
      for texts, language in zip((sources, targets), languages, strict=True)
    ]
    source_ND, target_ND = map(exact_search.unit_rows, vectors)
    return np.clip(np.einsum("nd,nd->n", source_ND, target_ND), -1, 1)[:, None]

  return Scorer({"by": "cosine", "encoder": encoding.identity(encoder, name)}, score)


def by_likelihood(translator: translation.Translator, per_token: bool, batch_size: int) -> Scorer:
  """Returns what scores a pair by the likelihood of each text given the other's vector, [N, 3].

  The columns are the mean of log p(target | source's vector) and log p(source | target's vector),
  and both of them. Scoring raises InputError if a language is missing, or not one of training.

  Args:
    translator: A run's encoder and decoder.
    per_token: Whether to divide log-likelihoods by the number of tokens.
    batch_size: Texts per batch.
  """

  def score(
    sources: Sequence[str], targets: Sequence[str], languages: Languages, on_cut: OnCut
  ) -> np.ndarray:
    source, target = languages
    if source is None or target is None:
      raise errors.InputError(
        "the likelihood of a text depends on its language: give the languages of both texts "
        "(--languages)"
      )
    options: dict[str, Any] = {"per_token": per_token, "batch_size": batch_size, "on_cut": on_cut}
    both_N2 = translator.pair_log_likelihoods(
      sources, targets, languages=(source, target), **options
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
  """Yields the scores of line i of one side with line i of the other, [B, C], in windows.

  Args:
    scorer: Scores the pairs of a window.
    source: The sources.
    target: The targets; both sides can be in one file.
    texts: `embedded_text.fingerprint` of both texts, if it is known.
    run_windows: Applies a function to the sources and targets of windows, as `map` does.

  Raises:
    InputError: a file cannot be read or changes, the files differ in length, a score is not finite,
      or the scorer refuses its settings or languages.
  """
  texts = texts or [embedded_text.fingerprint(side.path) for side in (source, target)]
  count, other = (text["lines"] for text in texts)
  if count != other:
    raise errors.InputError(
      f"{source.path} has {count:,} lines and {target.path} {other:,}: give files of equal length, "
      "aligned line by line"
    )
  sides = (
    encoding.windows(text_files.read_texts(side.path, side.field, text["digest"]), _WINDOW)
    for side, text in zip((source, target), texts, strict=True)
  )
  cut: list[tuple[int, int, int]] = []

  def score(sources: Sequence[str], targets: Sequence[str]) -> np.ndarray:
    languages = source.language, target.language
    return scorer.score(sources, targets, languages, lambda *counts: cut.append(counts))

  start = 0
  with progress_bar.Bar(total=2 * count, unit=" texts", outer=True) as bar:
    for score_BC in run_windows(score, *sides):
      finite_B = np.isfinite(score_BC).all(axis=1)
      if not finite_B.all():
        raise errors.InputError(
          f"{source.path}:{start + int(np.argmin(finite_B)) + 1}: the score of this pair contains "
          "a value that is not finite; check the encoder's parameters"
        )
      yield score_BC
      start += len(score_BC)
      bar.update(max(0, 2 * start - bar.n))
  batching.log_all_cut(cut, 2 * count)


def as_line(scores: Sequence[float]) -> str:
  """Formats the scores of a pair, separated by tabs."""
  return "\t".join(f"{score:.6f}" for score in scores)
