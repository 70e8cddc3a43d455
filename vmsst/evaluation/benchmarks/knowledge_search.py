"""Searches a knowledge base of questions by parts, each a span of its lines.

For each part, the questions are embedded, the nearest one to each query is found, and its answer is
right or not: by whole vectors and by each number of their first dimensions that is evaluated (W of
them in array names). Memory does not grow with the knowledge base. `sample` returns a small part of
it.
"""

import contextlib
import dataclasses
import functools
import hashlib
import heapq
import itertools
import json
import random
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from vmsst import storage
from vmsst.encoder import encoding
from vmsst.evaluation import embedder
from vmsst.evaluation.benchmarks import files
from vmsst.evaluation.metrics import retrieval
from vmsst.io import progress_bar, text_files
from vmsst.search import exact_search

SHARD = 1 << 16
"""Lines of a part, whose vectors are in memory at once."""

LANGUAGE = "en"
"""Language of the knowledge base."""
RIGHT_PER_QUERY = 10
"""Maximum number of questions with a right answer that `sample` adds for each query."""


class Question(msgspec.Struct):
  """A question of a knowledge base.

  Attributes:
    question: The question.
    answer: The answer, or several.
  """

  question: str
  answer: str | list[str]

  @property
  def answers(self) -> list[str]:
    """The answers."""
    return [self.answer] if isinstance(self.answer, str) else self.answer


@dataclasses.dataclass(frozen=True)
class Queries:
  """What is searched for.

  Attributes:
    texts: The queries, by language; Q in all.
    gold: The right answers of each query, sorted.
    sizes: The numbers of first dimensions to search by; None: all.
  """

  texts: tuple[tuple[str, tuple[str, ...]], ...]
  gold: tuple[tuple[str, ...], ...]
  sizes: tuple[int | None, ...]


def search(
  vectors: embedder.Embedder, queries: Queries, paths: Sequence[storage.Path]
) -> np.ndarray:
  """Returns whether each query's nearest question in a knowledge base is right, bool [W, Q].

  Among equally near questions the first counts.

  Args:
    vectors: Embeds the texts, in parts that it may keep.
    queries: The queries.
    paths: Files of the knowledge base, with a `Question` per line, as in PAQ.

  Raises:
    InputError: a file is broken, or a vector is not finite.
  """
  digest = hashlib.sha256(json.dumps(dataclasses.astuple(queries)).encode()).hexdigest()
  best_WQ = np.full((len(queries.sizes), len(queries.gold)), -np.inf, np.float32)
  right_WQ = np.zeros(best_WQ.shape, bool)
  with contextlib.ExitStack() as stack:
    stack.callback(_query_vectors.cache_clear)
    folder = vectors.scratch or stack.enter_context(tempfile.TemporaryDirectory(prefix="vmsst-"))
    spans = text_files.unpack(text_files.cut([*map(str, paths)], SHARD).spans, folder)
    prepare = functools.partial(_read, vectors.source)
    compute = functools.partial(_nearest, vectors.source, queries, vectors.search)
    parts = [embedder.Part(x, [digest, x.digest], x.lines, str(x)) for x in spans]
    for nearest in vectors.map("search", prepare, compute, parts, keep=True):
      vectors.check_width(int(nearest["width"]))
      nearer_WQ = nearest["score"] > best_WQ
      best_WQ = np.where(nearer_WQ, nearest["score"], best_WQ)
      right_WQ = np.where(nearer_WQ, nearest["right"], right_WQ)
  return right_WQ


def _read(source: encoding.EncoderSource, span: text_files.Span) -> tuple[list[Question], Any]:
  """Returns questions, also tokenized if the encoder supports it."""
  base = list(files.parsed(span.read(), Question, span.name, span.first))
  texts = [each.question for each in base]
  return base, encoding.prepare(source.open(), texts, [LANGUAGE] * len(texts))


def _nearest(
  source: encoding.EncoderSource,
  queries: Queries,
  search: exact_search.Search,
  prepared: tuple[list[Question], Any],
) -> embedder.Arrays:
  """Returns the cosine of the nearest question to each query, and whether it is right, [W, Q]."""
  base, tokens = prepared
  query_QD = _query_vectors(source, queries)
  codes = [LANGUAGE] * len(base)
  vectors_MD = encoding.encode(source.open(), tokens, language=codes, progress=False)
  encoding.check_finite(vectors_MD, [each.question for each in base])
  scores, right = [], []
  for size in queries.sizes:
    unit_MD = exact_search.unit_rows(vectors_MD[:, :size])
    index_Q = exact_search.top_k(query_QD[:, :size], unit_MD, search=search).index_NK[:, 0]
    right.append(are_right(index_Q, base, queries.gold))
    # Not the scores of the search: their rounding differs slightly from part to part.
    unit_QD = exact_search.unit_rows(query_QD[:, :size])
    rows = exact_search.blocks(len(index_Q))
    cosines = [np.einsum("bd,bd->b", unit_QD[x], unit_MD[index_Q[x]]) for x in rows]
    scores.append(np.concatenate(cosines))
  width = np.array(vectors_MD.shape[1])
  return {"score": np.array(scores), "right": np.array(right), "width": width}


@functools.lru_cache(1)  # A process searches for the same queries in many parts.
def _query_vectors(source: encoding.EncoderSource, queries: Queries) -> np.ndarray:
  """Returns the vectors of the queries, float32 [Q, D]."""
  vectors = []
  for code, texts in queries.texts:
    codes = [code] * len(texts)
    vectors.append(encoding.encode(source.open(), texts, language=codes, progress=False))
    encoding.check_finite(vectors[-1], texts)
  return np.concatenate(vectors)


def are_right(
  index_Q: np.ndarray, base: Sequence[Question], gold: Sequence[Iterable[str]]
) -> np.ndarray:
  """Returns whether a question of the knowledge base has a right answer of each query, bool [Q].

  Args:
    index_Q: Number of a question for each query.
    base: The questions.
    gold: The right answers of each query, normalized.
  """
  normalized = {i: retrieval.normalized_set(base[i].answers) for i in set(index_Q.tolist())}
  pairs = zip(index_Q.tolist(), gold, strict=True)
  return np.array([not normalized[i].isdisjoint(right) for i, right in pairs], bool)


def sample(
  queries: Iterable[tuple[str, frozenset[str]]], paths: Sequence[storage.Path], size: int
) -> list[Question]:
  """Returns a part of a knowledge base, in the order of the files.

  The part is a random sample, and for each query up to `RIGHT_PER_QUERY` questions with a right
  answer: those that share the largest part of their words with the query. It depends only on the
  arguments and the content of the files, which are read once. Memory does not grow with them.

  Args:
    queries: The text and the right answers of each query; texts in the language of the knowledge
      base.
    paths: Files of the knowledge base, with a `Question` per line.
    size: Questions in the random sample; all of them if the corpus has fewer.

  Raises:
    InputError: a file is broken.
  """
  words: list[set[str]] = []
  numbers_by_answer: dict[str, list[int]] = {}
  for number, (text, gold) in enumerate(queries):
    words.append(_words(text))
    for answer in gold:
      numbers_by_answer.setdefault(answer, []).append(number)
  # Heaps of (score, -row, question): the best rows, among equals the first ones.
  similar: list[list[tuple[float, int, Question]]] = [[] for _ in words]
  chosen: list[tuple[float, int, Question]] = []
  rng = random.Random(0)  # Python guarantees that random() keeps its numbers.
  files_of_base = (files.records(path, Question) for path in paths)
  with progress_bar.Bar(desc="reading the knowledge base", unit=" questions") as bar:
    for row, each in enumerate(itertools.chain.from_iterable(files_of_base)):
      bar.update(1)
      ranks = [(chosen, size, rng.random())]
      if right := retrieval.normalized_set(each.answers) & numbers_by_answer.keys():
        own = _words(each.question)
        for number in {number for answer in right for number in numbers_by_answer[answer]}:
          share = len(words[number] & own) / max(1, len(words[number] | own))
          ranks.append((similar[number], RIGHT_PER_QUERY, share))
      for heap, most, score in ranks:
        push = heapq.heappush if len(heap) < most else heapq.heappushpop
        push(heap, (score, -row, each))
  by_row = {-entry[1]: entry[2] for heap in (chosen, *similar) for entry in heap}
  return [by_row[row] for row in sorted(by_row)]


def _words(text: str) -> set[str]:
  return set(retrieval.normalized(text).split())
