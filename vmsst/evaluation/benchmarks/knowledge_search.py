"""Searches a knowledge base of questions by units of work, each a span of its lines.

Every unit embeds its questions, finds the nearest one to each query, and says whether its answer is
right: by whole vectors and by each number of their first dimensions that is evaluated (W of them in
array names). Memory does not grow with the knowledge base. `sample` returns a small part of it.
"""

import ast
import dataclasses
import functools
import heapq
import itertools
import json
import os
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from vmsst import errors, storage
from vmsst.encoder import encoding
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import files
from vmsst.evaluation.metrics import retrieval
from vmsst.io import line_spans, progress_bar, text_files
from vmsst.jobs import atomic_files, base, engines
from vmsst.search import exact_search

SHARD = 1 << 16
"""Lines of a unit, whose vectors are in memory at once."""

LANGUAGE = "en"
"""Language of the knowledge base."""
RIGHT_PER_QUERY = 10
"""Maximum number of questions with a right answer that `sample` adds for each query."""

_FORMAT = 2
"""Version of the results; increase it if the same lines get others."""


@dataclasses.dataclass(frozen=True)
class Queries:
  """Queries in a file that all processes see.

  Attributes:
    path: File of their vectors and right answers.
    digest: Hash of the queries and answers.
    sizes: Numbers of dimensions to search by; None: all.
  """

  path: str
  digest: str
  sizes: tuple[int | None, ...]


@functools.lru_cache(1)
def _opened(queries: Queries) -> tuple[list[np.ndarray], list[frozenset[str]]]:
  """Returns the vectors of each size, and each query's right answers; a process keeps them."""
  with storage.open_binary(queries.path) as stream:
    arrays = np.load(stream, allow_pickle=False)
    vectors_QD, gold = arrays["vectors"], json.loads(arrays["gold"].tobytes())
  cut = [vectors_QD[:, :size] for size in queries.sizes]
  return cut, [frozenset(answers) for answers in gold]


@dataclasses.dataclass(frozen=True)
class SearchSpan(base.StagedUnit):
  """Writes the best question of a span for each query: its cosine, and whether it is right.

  Attributes:
    encoder: The encoder.
    queries: The queries.
    span: The lines, in one of the formats of `parse`.
    search: Finds the nearest vectors.
    path: Output file.
  """

  encoder: encoding.EncoderSource
  queries: Queries
  span: line_spans.Span
  search: exact_search.Search
  path: str

  @functools.cached_property
  def key(self) -> str:
    """Hash of everything that the output depends on."""
    queries = self.queries.digest, self.queries.sizes
    return base.digest("knowledge", _FORMAT, self.encoder.identity, *queries, self.span.digest)

  def __str__(self) -> str:
    return str(self.span)

  def read(self) -> tuple[list[str], Any, list[list[str]]]:
    """Returns the questions, also tokenized if the encoder supports it, and their answers."""
    pairs = list(parse(self.span.read(), self.span.name, self.span.first))
    texts = [question for question, _ in pairs]
    prepared = encoding.prepare(self.encoder.open(), texts, [LANGUAGE] * len(texts))
    return texts, prepared, [answer for _, answer in pairs]

  def compute(self, prepared: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns float32 [W, Q] and bool [W, Q]. Among equally near questions the first counts."""
    texts, tokens, found_answers = prepared
    queries, gold = _opened(self.queries)
    codes = [LANGUAGE] * len(texts)
    vectors_MD = encoding.encode(self.encoder.open(), tokens, language=codes, progress=False)
    encoding.check_finite(vectors_MD, texts)
    score_WQ = np.empty((len(queries), len(gold)), np.float32)
    right_WQ = np.empty(score_WQ.shape, bool)
    for number, (query, size) in enumerate(zip(queries, self.queries.sizes, strict=True)):
      unit_MD = exact_search.unit_rows(vectors_MD[:, :size])
      near = exact_search.top_k(query, unit_MD, search=self.search)
      index_Q = near.index_NK[:, 0]
      right_WQ[number] = are_right(index_Q, found_answers, gold)
      # Not the scores of the search: their rounding differs slightly from span to span.
      score_WQ[number] = _cosines(query, unit_MD, index_Q)
    return score_WQ, right_WQ

  def write(self, computed: Any) -> dict[str, Any]:
    """Writes the file."""
    score_WQ, right_WQ = computed
    with atomic_files.atomic_file(self.path) as stream:
      np.savez(stream, score=score_WQ, right=right_WQ)
    return {}


def search(
  tools: suite.Tools,
  queries: Sequence[suite.Side],
  gold: Sequence[frozenset[str]],
  paths: Sequence[storage.Path],
) -> tuple[int, np.ndarray]:
  """Returns the size of a knowledge base, and whether each query's nearest question is right.

  Resumes after interruption from the folder of the tools. The first call searches by all numbers of
  dimensions that are evaluated; the others read its results.

  Args:
    tools: Embed texts and search vectors.
    queries: The queries, Q in all.
    gold: The right answers of each query.
    paths: Files of the knowledge base.

  Returns:
    Number of its questions, and bool [Q].

  Raises:
    InputError: a file is broken.
    NotFiniteError: a vector is not finite.
  """
  folder = os.fspath(tools.folder)
  cut = line_spans.cut([*map(str, paths)], SHARD)
  copies = {}
  for number, path in enumerate(map(str, paths)):
    if path.endswith(".gz"):
      copies[path] = os.path.join(folder, f"lines-{number:05d}.txt")
      with atomic_files.atomic_file(copies[path]) as stream:
        stream.writelines(text_files.read_chunks(path))
  spans = [dataclasses.replace(x, path=copies.get(x.name, x.path)) for x in cut.spans]
  stored = _store(tools, queries, gold, os.path.join(folder, "queries.npz"))
  units = [
    SearchSpan(
      tools.embedder.source,
      stored,
      span,
      tools.search,
      os.path.join(folder, f"best-{number:05d}.npz"),
    )
    for number, span in enumerate(spans)
  ]
  try:
    with tools.embedder.opened():
      engines.run("search", units, tools.embedder.engine)
  finally:
    _opened.cache_clear()
  column = stored.sizes.index(tools.dimensions)
  best_Q, right_Q = np.full(len(gold), -np.inf, np.float32), np.zeros(len(gold), bool)
  for unit in units:
    with storage.open_binary(unit.path) as stream:
      arrays = np.load(stream, allow_pickle=False)
      score_Q, own_Q = arrays["score"][column], arrays["right"][column]
    nearer_Q = score_Q > best_Q
    best_Q = np.where(nearer_Q, score_Q, best_Q)
    right_Q = np.where(nearer_Q, own_Q, right_Q)
  return cut.lines, right_Q


def are_right(
  index_Q: np.ndarray, answers: Sequence[Iterable[str]], gold: Sequence[frozenset[str]]
) -> np.ndarray:
  """Returns whether a question of the knowledge base has a right answer of each query, bool [Q].

  Args:
    index_Q: Row of a question for each query.
    answers: The answers of each row.
    gold: The right answers of each query, normalized.
  """
  normalized = {i: retrieval.normalized_set(answers[i]) for i in set(index_Q.tolist())}
  pairs = zip(index_Q.tolist(), gold, strict=True)
  return np.array([not normalized[i].isdisjoint(right) for i, right in pairs], bool)


def sample(
  queries: Iterable[tuple[str, frozenset[str]]], paths: Sequence[storage.Path], size: int
) -> list[tuple[str, list[str]]]:
  """Returns a part of a knowledge base: questions with their answers, in the order of the files.

  The part is a random sample, and for each query up to `RIGHT_PER_QUERY` questions with a right
  answer: those that share the largest part of their words with the query. It depends only on the
  arguments and the content of the files, which are read once. Memory does not grow with them.

  Args:
    queries: The text and the right answers of each query; texts in the language of the knowledge
      base.
    paths: Files of the knowledge base; see `parse`.
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
  # Heaps of (score, -row, question, answers): the best rows, among equals the first ones.
  similar: list[list[tuple[float, int, str, list[str]]]] = [[] for _ in words]
  chosen: list[tuple[float, int, str, list[str]]] = []
  rng = random.Random(0)  # Python guarantees that random() keeps its numbers.
  pairs = (parse(text_files.read_lines(str(path)), str(path)) for path in paths)
  with progress_bar.Bar(desc="reading the knowledge base", unit=" questions") as bar:
    for row, (question, answers) in enumerate(itertools.chain.from_iterable(pairs)):
      bar.update(1)
      ranks = [(chosen, size, rng.random())]
      if right := retrieval.normalized_set(answers) & numbers_by_answer.keys():
        own = _words(question)
        for number in {number for answer in right for number in numbers_by_answer[answer]}:
          share = len(words[number] & own) / max(1, len(words[number] | own))
          ranks.append((similar[number], RIGHT_PER_QUERY, share))
      for heap, most, score in ranks:
        push = heapq.heappush if len(heap) < most else heapq.heappushpop
        push(heap, (score, -row, question, answers))
  pair_by_row = {-entry[1]: entry[2:] for heap in (chosen, *similar) for entry in heap}
  return [pair_by_row[row] for row in sorted(pair_by_row)]


def parse(lines: Iterable[str], name: str, first: int = 1) -> Iterator[tuple[str, list[str]]]:
  """Yields the questions of a knowledge base with their answers.

  Args:
    lines: Lines of a file: `.jsonl` as in PAQ, with an object of `question` and `answer` (a text or
      a list) per line; or `.tsv` as in DPR, with question, TAB and answer (a text, or a list in
      brackets).
    name: Name of the file, plain or gzipped.
    first: Number of the first line.

  Raises:
    InputError: the file is broken.
  """
  is_table = name.removesuffix(".gz").endswith(".tsv")
  for number, line in enumerate(lines, first):
    location = f"{name}:{number}"
    if is_table:
      yield _tsv_pair(line, location)
    else:
      record = files.parse(line, location)
      question = files.text(record, "question", location)
      yield question, files.text_list(record, "answer", location)


def _store(
  tools: suite.Tools, queries: Sequence[suite.Side], gold: Sequence[frozenset[str]], path: str
) -> Queries:
  """Writes the vectors of queries and their right answers; returns the file."""
  answers_by_question = [sorted(item) for item in gold]
  texts = [[item.language, list(item.texts)] for item in queries]
  stored = Queries(
    path, base.digest(texts, answers_by_question), (None, *tools.embedder.dimensions)
  )
  vectors_QD = np.concatenate([tools.embedder(item) for item in queries])
  with atomic_files.atomic_file(path) as stream:
    np.savez(
      stream, vectors=vectors_QD, gold=np.frombuffer(json.dumps(answers_by_question).encode(), "u1")
    )
  return stored


def _cosines(query_QD: np.ndarray, vectors_MD: np.ndarray, index_Q: np.ndarray) -> np.ndarray:
  """Returns the cosine of every query with the vector found for it, float32 [Q]."""
  parts = []
  for start in range(0, len(index_Q), SHARD):
    rows = slice(start, start + SHARD)
    parts.append(
      np.einsum("bd,bd->b", exact_search.unit_rows(query_QD[rows]), vectors_MD[index_Q[rows]])
    )
  return np.concatenate(parts)


def _words(text: str) -> set[str]:
  return set(retrieval.normalized(text).split())


def _tsv_pair(line: str, location: str) -> tuple[str, list[str]]:
  fields = line.split("\t")
  if len(fields) != 2:
    raise errors.InputError(f"{location}: {len(fields)} fields, not a question and its answer")
  question, answer = fields
  if not (answer.startswith("[") and answer.endswith("]")):
    return question, [answer]
  try:
    return question, files.text_list({"answer": ast.literal_eval(answer)}, "answer", location)
  except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
    return question, [answer]
