"""Mines hard negatives: documents near a query that do not answer it, or wrong translations.

Candidates are the documents that an already trained encoder finds nearest to a query (Guo et al.,
2018; mUSE, Yang et al., 2019). A candidate that scores nearly as high as the positive often answers
the query, too; a margin excludes it (NV-Retriever, Moreira et al., 2024). Mine again with the new
model for harder negatives.
"""

import functools
import itertools
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from vmsst import errors
from vmsst.data.vocabularies import Role
from vmsst.encoder import encoding
from vmsst.io import array_files, text_files
from vmsst.search import device_search, exact_search
from vmsst.search.exact_search import unit_rows

# Texts whose vectors, and pairs whose candidates, are in memory at once.
_WINDOW = 1 << 14


def hard_negatives(
  encoder: Any,
  pairs: Iterable[tuple[str, str]],
  corpus: Iterable[str] | None = None,
  *,
  count: int = 3,
  range_min: int = 0,
  range_max: int | None = None,
  relative_margin: float | None = None,
  teacher: Any = None,
  roles: tuple[Role | None, Role | None] = ("query", "document"),
  languages: tuple[str | None, str | None] = (None, None),
  batch_size: int = 128,
  encode: Callable[..., np.ndarray] = encoding.encode,
) -> Iterator[dict[str, Any]]:
  """Yields a training example for each pair: the query, its positive, and its hard negatives.

  Neither a positive of the query, in whatever pair it occurs, nor the query itself is a negative.
  Texts that differ only in case, width or spaces are one text, represented by the first. Pairs with
  a blank text are left out. All texts are in memory; vectors are stored on disk and compared block
  by block.

  Args:
    encoder: An encoder, as from `vmsst.load`; see `encoding.encode`.
    pairs: Queries and their positives.
    corpus: Documents to search (default: the positives of all pairs).
    count: Hard negatives per pair; a pair has fewer if too few documents qualify.
    range_min: Number of nearest documents to skip, apart from the positives.
    range_max: Number of nearest documents to consider, apart from the positives (default:
      `range_min` + `count`, or with a margin `range_min` + 10 * `count`).
    relative_margin: A negative scores at most p - relative_margin * |p|, where p is the score of
      the positive (default: no limit). Scores are the teacher's, or else the encoder's cosines.
    teacher: Another encoder, which scores texts by cosine; or a function from a list of (query,
      document) to their scores, such as `CrossEncoder.predict` of sentence-transformers.
    roles: What the two texts of a pair are, to choose their prompts; None is the prompt of
      `encode`.
    languages: Codes of the languages of the two texts.
    batch_size: Texts per batch.
    encode: Computes vectors; see `encoding.encode`.

  Yields:
    Dictionaries with the keys "query", "pos" and "neg" of FlagEmbedding, with lists of one positive
    and of negatives, nearest first; or, for other roles, "anchor", "positive" and "negative". With
    a teacher, "pos_scores" and "neg_scores" are its scores.

  Raises:
    InputError: a value is not valid, or the corpus has no text.
  """
  least = errors.as_integer("range_min", range_min, minimum=0) + errors.as_integer("count", count)
  if range_max is None:
    range_max = least if relative_margin is None else range_min + 10 * count
  errors.check(range_max >= least, "range_max", range_max, f"at least {least}, RANGE_MIN + COUNT")
  pairs = [pair for pair in pairs if not any(map(text_files.is_blank, pair))]
  corpus_texts = [*itertools.filterfalse(text_files.is_blank, corpus or ())]
  if not pairs or (corpus is not None and not corpus_texts):
    raise errors.InputError("there is no pair of two texts, or no text in the corpus; add one")
  queries, query_N = _distinct([query for query, _ in pairs])
  texts, row_T = _distinct([*corpus_texts, *(positive for _, positive in pairs), *queries])
  row_C, positive_N, itself_Q = np.split(row_T, np.cumsum([len(corpus_texts), len(pairs)]))
  documents = texts[: max(row_C.max(initial=0), positive_N.max()) + 1]
  candidates = len(documents) if corpus is None else row_C.max() + 1
  # No query has itself or one of its positives as a negative.
  excluded_P = np.unique(
    len(texts) * np.append(query_N, np.arange(len(queries))) + np.append(positive_N, itself_Q)
  )

  def vectors(model: Any) -> Iterator[np.ndarray]:
    for side, name, role, language in zip(
      (queries, documents), ("queries", "documents"), roles, languages, strict=True
    ):
      how = {"language": language, "batch_size": batch_size, "on_cut": None}
      embed = functools.partial(encode, model, method=f"encode_{role}" if role else "encode", **how)
      windows = encoding.encode_windows(embed, side, _WINDOW, total=len(side), title=name)
      flat = array_files.concatenate(map(np.ravel, windows), np.float32)
      yield flat.reshape(len(side), -1)

  query_ND, document_MD = vectors(encoder)
  is_encoder = hasattr(teacher, "encode")
  teacher_ND, teacher_MD = vectors(teacher) if is_encoder else (query_ND, document_MD)
  names = ["query", "pos", "neg", "pos_scores", "neg_scores"]
  if tuple(roles) != ("query", "document"):
    names[:3] = ["anchor", "positive", "negative"]
  for block in exact_search.blocks(len(pairs), _WINDOW):
    query_B = query_N[block]
    row_Q, place_B = np.unique(query_B, return_inverse=True)
    query = exact_search.Selection(query_ND, row_Q)
    document = exact_search.Selection(document_MD, range(candidates))
    near_QK = _nearest(query, document, excluded_P, len(texts), range_max)
    # The positive of each pair, then its candidates; -1 if there are too few.
    row_BK = np.column_stack([positive_N[block], near_QK[place_B, range_min:]])
    score_BK, pair_B = np.zeros(row_BK.shape), list(zip(query_B, row_BK, strict=True))
    if teacher is None or is_encoder:
      for score_K, (row, row_K) in zip(score_BK, pair_B, strict=True):
        score_K[:] = unit_rows(teacher_MD[row_K]) @ unit_rows(teacher_ND[[row]])[0]
    else:
      scored = [(queries[q], documents[row]) for q, row_K in pair_B for row in row_K[row_K >= 0]]
      score_BK[row_BK >= 0] = teacher(scored)
    is_negative = row_BK >= 0
    if relative_margin is not None:
      positive_B1 = score_BK[:, :1]
      is_negative &= score_BK <= positive_B1 - relative_margin * abs(positive_B1)
    for pair, row_K, score_K, is_K in zip(pairs[block], row_BK, score_BK, is_negative, strict=True):
      places = 1 + np.flatnonzero(is_K[1:])[:count]
      values: list[Any] = [pair[0], [pair[1]], [documents[row] for row in row_K[places]]]
      if teacher is not None:
        values += [[round(float(score), 6) for score in score_K[x]] for x in ([0], places)]
      yield dict(zip(names, values, strict=False))


def _nearest(
  query: exact_search.Selection,
  document: exact_search.Selection,
  excluded_P: np.ndarray,
  height: int,
  k: int,
) -> np.ndarray:
  """Returns the rows of the k documents nearest to each query, without excluded ones, [N, K].

  Among equally near ones the lower row is first. If there are too few, -1 follows.

  Args:
    query: N queries.
    document: The documents.
    excluded_P: The pairs to exclude, at least one per query, sorted: height * query + document.
    height: Limit of the numbers of documents.
    k: K.
  """
  row_N = np.asarray(query.row_N)
  first_N, end_N = np.searchsorted(excluded_P, [row_N * height, (row_N + 1) * height])
  # A query with p excluded documents has its k among the k + p nearest. Queries with few and with
  # many are searched separately, because a search has one number of neighbors.
  size_N = 1 << np.ceil(np.log2(end_N - first_N)).astype(int)
  near_NK = np.full((len(row_N), k), -1, np.int64)
  for size in np.unique(size_N).tolist():
    place_S = np.flatnonzero(size_N == size)
    row_S = row_N[place_S]
    part = query._replace(row_N=row_S)
    near = exact_search.top_k(part, document, k + size, search=device_search.search).index_NK
    is_excluded = np.isin(row_S[:, None] * height + near, excluded_P)
    order = np.argsort(is_excluded, axis=1, kind="stable")[:, :k]
    near = np.take_along_axis(np.where(is_excluded, -1, near), order, axis=1)
    near_NK[place_S, : near.shape[1]] = near
  return near_NK


def _distinct(texts: Sequence[str]) -> tuple[list[str], np.ndarray]:
  """Returns the distinct texts, apart from case, width and spaces, and the row of each text."""
  rows: dict[str, int] = {}
  keys = (" ".join(unicodedata.normalize("NFKC", text).casefold().split()) for text in texts)
  row_N = np.array([rows.setdefault(key, len(rows)) for key in keys], np.int64)
  _, first = np.unique(row_N, return_index=True)
  return [texts[number] for number in first], row_N
