"""Mines hard negatives: documents near a query that fail to answer it, or wrong translations.

Candidates are the documents nearest to a query according to a trained encoder (Guo et al., 2018;
mUSE, Yang et al., 2019). A candidate that scores nearly as high as the positive often answers the
query, too; a margin excludes such candidates (NV-Retriever, Moreira et al., 2024). For harder
negatives, mine again with the model that was trained on the first negatives.
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

# Number of texts to encode at once, and number of pairs to search at once.
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

  Negatives never include the query itself or its positives, even from other pairs. Texts that
  differ only in case, character width or spaces count as one text, and the first variant is used.
  Pairs with a blank text are left out. All texts are in memory; vectors are stored on disk and
  compared block by block.

  Args:
    encoder: An encoder, as from `vmsst.load`; see `encoding.encode`.
    pairs: Queries and their positives.
    corpus: Documents to search (default: the positives of all pairs).
    count: Hard negatives per pair; a pair has fewer if too few documents qualify.
    range_min: Number of nearest documents to skip, not counting the positives.
    range_max: Number of nearest documents to consider, not counting the positives (default:
      `range_min` + `count`; with `relative_margin`, `range_min` + 10 * `count`).
    relative_margin: Excludes documents that score above p - relative_margin * |p|, where p is the
      score of the positive (default: no limit). The teacher computes the scores; without a
      teacher, the scores are the encoder's cosines.
    teacher: A second encoder, which scores texts by cosine; or a function that maps a list of
      (query, document) pairs to scores, such as `CrossEncoder.predict` in sentence-transformers.
    roles: Roles of the two texts in a pair. Each role selects a prompt; None selects the prompt
      that `encode` uses.
    languages: Language codes of the two texts.
    batch_size: Texts per batch.
    encode: Function that computes vectors, with the arguments of `encoding.encode`.

  Yields:
    Dictionaries in the FlagEmbedding format: "query" is a text, "pos" is a list with one positive,
    and "neg" is a list of negatives, nearest first. If `roles` differs from the default, the keys
    are "anchor", "positive" and "negative". With a teacher, "pos_scores" and "neg_scores" contain
    the teacher's scores.

  Raises:
    InputError: If an argument is invalid, no pair has two nonblank texts, or every text in the
      corpus is blank.
  """
  limit = errors.as_integer("range_min", range_min, minimum=0) + errors.as_integer("count", count)
  if range_max is None:
    range_max = limit if relative_margin is None else range_min + 10 * count
  errors.check(range_max >= limit, "range_max", range_max, f"at least {limit}, RANGE_MIN + COUNT")
  pairs = [pair for pair in pairs if not any(map(text_files.is_blank, pair))]
  corpus_texts = [*itertools.filterfalse(text_files.is_blank, corpus or ())]
  if not pairs or (corpus is not None and not corpus_texts):
    raise errors.InputError(
      "every pair contains a blank text, or the corpus has only blank texts; add texts"
    )
  queries, query_N = _distinct([query for query, _ in pairs])
  texts, row_T = _distinct([*corpus_texts, *(positive for _, positive in pairs), *queries])
  row_C, positive_N, itself_Q = np.split(row_T, np.cumsum([len(corpus_texts), len(pairs)]))
  documents = texts[: max(row_C.max(initial=0), positive_N.max()) + 1]
  candidates = len(documents) if corpus is None else row_C.max() + 1
  # Pairs to exclude from the negatives: each query with its positives and with itself.
  excluded_P = np.unique(
    len(texts) * np.append(query_N, np.arange(len(queries))) + np.append(positive_N, itself_Q)
  )

  def vectors(model: Any) -> Iterator[np.ndarray]:
    for pool, name, role, language in zip(
      (queries, documents), ("queries", "documents"), roles, languages, strict=True
    ):
      kw = {"language": language, "batch_size": batch_size, "on_cut": None}
      embed = functools.partial(encode, model, method=f"encode_{role}" if role else "encode", **kw)
      windows = encoding.encode_windows(embed, pool, _WINDOW, total=len(pool), title=name)
      flat = array_files.concatenate(map(np.ravel, windows), np.float32)
      yield flat.reshape(len(pool), -1)

  query_ND, document_MD = vectors(encoder)
  is_encoder = hasattr(teacher, "encode")
  teacher_ND, teacher_MD = vectors(teacher) if is_encoder else (query_ND, document_MD)
  names = ["query", "pos", "neg", "pos_scores", "neg_scores"]
  if tuple(roles) != ("query", "document"):
    names[:3] = ["anchor", "positive", "negative"]
  for block in exact_search.blocks(len(pairs), _WINDOW):
    query_B = query_N[block]
    row_Q, position_B = np.unique(query_B, return_inverse=True)
    query = exact_search.Selection(query_ND, row_Q)
    document = exact_search.Selection(document_MD, range(candidates))
    near_QK = _nearest(query, document, excluded_P, len(texts), range_max)
    # Each row contains a pair's positive, then its candidates, then -1 if there are too few
    # candidates.
    row_BK = np.column_stack([positive_N[block], near_QK[position_B, range_min:]])
    score_BK, pair_B = np.zeros(row_BK.shape), list(zip(query_B, row_BK, strict=True))
    if teacher is None or is_encoder:
      for score_K, (row, row_K) in zip(score_BK, pair_B, strict=True):
        score_K[:] = unit_rows(teacher_MD[row_K]) @ unit_rows(teacher_ND[[row]])[0]
    else:
      examples = [(queries[q], documents[row]) for q, row_K in pair_B for row in row_K[row_K >= 0]]
      score_BK[row_BK >= 0] = teacher(examples)
    is_negative = row_BK >= 0
    if relative_margin is not None:
      positive_B1 = score_BK[:, :1]
      is_negative &= score_BK <= positive_B1 - relative_margin * abs(positive_B1)
    for pair, row_K, score_K, is_K in zip(pairs[block], row_BK, score_BK, is_negative, strict=True):
      ranks = 1 + np.flatnonzero(is_K[1:])[:count]
      values: list[Any] = [pair[0], [pair[1]], [documents[row] for row in row_K[ranks]]]
      if teacher is not None:
        values += [[round(float(score), 6) for score in score_K[x]] for x in ([0], ranks)]
      yield dict(zip(names, values, strict=False))


def _nearest(
  query: exact_search.Selection,
  document: exact_search.Selection,
  excluded_P: np.ndarray,
  height: int,
  k: int,
) -> np.ndarray:
  """Returns the rows of the k documents nearest to each query, [N, K]. Skips excluded pairs.

  Ties go to the lower row. If a query has fewer than k documents, the remaining columns are -1.

  Args:
    query: N queries.
    document: The documents.
    excluded_P: The pairs to exclude, at least one per query, as sorted integers, `height * query +
      document`.
    height: Any integer greater than all document numbers, used to encode a pair as one integer.
    k: Documents per query.
  """
  row_N = np.asarray(query.row_N)
  first_N, end_N = np.searchsorted(excluded_P, [row_N * height, (row_N + 1) * height])
  # For a query with p excluded documents, search for k + p neighbors. All queries in a search have
  # the same number of neighbors, so queries are grouped by p, rounded up to a power of two.
  size_N = 1 << np.ceil(np.log2(end_N - first_N)).astype(int)
  near_NK = np.full((len(row_N), k), -1, np.int64)
  for size in np.unique(size_N).tolist():
    position_S = np.flatnonzero(size_N == size)
    row_S = row_N[position_S]
    queries = query._replace(row_N=row_S)
    index_SK = exact_search.top_k(queries, document, k + size, search=device_search.search).index_NK
    is_excluded = np.isin(row_S[:, None] * height + index_SK, excluded_P)
    order = np.argsort(is_excluded, axis=1, kind="stable")[:, :k]
    index_SK = np.take_along_axis(np.where(is_excluded, -1, index_SK), order, axis=1)
    near_NK[position_S, : index_SK.shape[1]] = index_SK
  return near_NK


def _distinct(texts: Sequence[str]) -> tuple[list[str], np.ndarray]:
  """Merges texts that differ only in case, width or spaces; also returns each text's new row."""
  rows: dict[str, int] = {}
  keys = (" ".join(unicodedata.normalize("NFKC", text).casefold().split()) for text in texts)
  row_N = np.array([rows.setdefault(key, len(rows)) for key in keys], np.int64)
  _, first = np.unique(row_N, return_index=True)
  return [texts[number] for number in first], row_N
