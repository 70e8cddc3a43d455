"""Question retrieval in a knowledge base of questions, by cosine.

`QUESTIONS` is the task of the VMSST paper (section 6.2, Tables 1, 11 and 12): a question of NQ-open
or MKQA counts if the nearest of PAQ's 65 million questions has the right answer. `MKQA_SMALL` is a
small task of our own: finds MKQA's questions in English, among those and the questions of NQ.
`sample_benchmark` is the task of the paper with a small part of PAQ, for evaluation in training.

The knowledge base is searched by parts, each a span of its lines. For each part, the questions are
embedded, the nearest one to each query is found, and its answer is right or not: by whole vectors
and by each number of their first dimensions that is evaluated (W of them in array names). Memory
does not grow with the knowledge base.
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

import msgspec
import numpy as np

from vmsst import storage
from vmsst.encoder import encoding
from vmsst.evaluation import embedder, suite
from vmsst.evaluation.benchmarks import files
from vmsst.evaluation.metrics import retrieval
from vmsst.io import progress_bar, text_files
from vmsst.search import exact_search

SHARD = 1 << 16
"""Lines of a part, whose vectors are in memory at once."""

RIGHT_PER_QUERY = 10
"""Maximum number of questions with a right answer that `knowledge_sample` adds for each query."""

_KNOWLEDGE_LANGUAGE = "en"

# fmt: off
MKQA_LANGUAGES = (
  "ar", "da", "de", "en", "es", "fi", "fr", "he", "hu", "it", "ja", "km", "ko", "ms",
  "nl", "no", "pl", "pt", "ru", "sv", "th", "tr", "vi", "zh_cn",
)
# fmt: on
"""Languages of Table 12. MKQA's zh_hk and zh_tw are measured, but are not part of the mean."""

_MKQA_SETS = tuple(f"mkqa {code}" for code in MKQA_LANGUAGES)

_SMALL_LANGUAGES = ("ar", "es", "fi", "ja", "km", "ko", "ms", "ru", "sv", "tr", "zh_cn")


@dataclasses.dataclass(frozen=True)
class Questions:
  """Questions of one language.

  Attributes:
    name: Unique name of the set.
    language: Language code.
    texts: The questions.
    gold: The right answers of each, as `retrieval.normalize_answers` returns them.
  """

  name: str
  language: str
  texts: list[str]
  gold: list[frozenset[str]]


class _Answer(msgspec.Struct):
  text: str | None = None
  aliases: list[str] = []


class _Answers(msgspec.Struct):
  en: list[_Answer]


class _MkqaRecord(msgspec.Struct):
  queries: dict[str, str]
  answers: _Answers


def mkqa(path: storage.Path) -> list[Questions]:
  """Reads MKQA's questions, by language, from mkqa.jsonl.gz.

  In every language the gold answers are the English ones with their aliases, because the knowledge
  base is English. Questions without any answer (MKQA's unanswerable ones and those with long
  answers, a third) are dropped, because they cannot be found.

  Raises:
    InputError: the file is broken, or a language is unknown.
  """
  by_language: dict[str, Questions] = {}
  for record in text_files.read_records(path, _MkqaRecord):
    texts = [text for answer in record.answers.en for text in (answer.text, *answer.aliases)]
    gold = retrieval.normalize_answers(text for text in texts if text)
    for code, query in record.queries.items() if gold else ():
      if code not in by_language:
        by_language[code] = Questions(f"mkqa {files.known_code(code, path)}", code, [], [])
      by_language[code].texts.append(query)
      by_language[code].gold.append(gold)
  return [*by_language.values()]


@dataclasses.dataclass(frozen=True)
class KnowledgeSearch(suite.Task):
  """Finds the nearest questions of a knowledge base, which is read and searched once for all sets.

  `score` maps whether the answer to each text of each side is right, bool [N] each, to results.

  Attributes:
    gold: The right answers of each text of all sides.
    paths: Files of the knowledge base, with a `Question` per line.
  """

  gold: Sequence[frozenset[str]] = ()
  paths: Sequence[storage.Path] = ()

  def results(
    self, vectors: embedder.Embedder, sizes: Sequence[int | None]
  ) -> dict[int | None, list[suite.Result]]:
    """See `suite.Task`."""
    queries = Queries(
      tuple((side.language, tuple(side.texts)) for side in self.sides),
      tuple(tuple(sorted(answers)) for answers in self.gold),
      tuple(sizes),
    )
    right_WQ = search_knowledge(vectors, queries, self.paths)
    ends = np.cumsum([len(side.texts) for side in self.sides])[:-1]
    return {
      size: self.score(*np.split(right_Q, ends))
      for size, right_Q in zip(sizes, right_WQ, strict=True)
    }


def _accuracies(sets: Sequence[Questions], *right: np.ndarray) -> list[suite.Result]:
  """Returns `accuracy`, R@1: how often the nearest question has a right answer."""
  return [
    suite.Result(each.name, (each.language,), {"accuracy": 100 * float(right_N.mean())})
    for each, right_N in zip(sets, right, strict=True)
  ]


def _averages(
  results: Sequence[suite.Result], seen: suite.Seen, complete: bool, *, note: str = ""
) -> suite.Numbers:
  """Returns NQ's accuracy, and the means of MKQA's over the languages of Table 12.

  Args:
    results: The results.
    seen: Test of seen languages.
    complete: Whether all sets have results.
    note: End of the names.
  """
  groups = {f"nq{note}": ["nq"], f"mkqa{note}": _MKQA_SETS}
  means = suite.group_means(results, "accuracy", groups)
  mkqa_results = [result for result in results if result.name in _MKQA_SETS]
  whole = len(mkqa_results) == len(_MKQA_SETS)
  return means | suite.seen_means(f"mkqa{note}", mkqa_results, "accuracy", seen, complete=whole)


def question_sets(root: storage.Path) -> list[Questions]:
  """Reads the questions to search for, if their files exist, even without a knowledge base."""
  sets = []
  if (root / "nq").is_dir():
    # Google calls the test set dev, others test.
    names = "[Nn][Qq]-open.test.jsonl", "[Nn][Qq]-open.dev.jsonl"
    nq = list(text_files.read_records(files.files_in(root / "nq", *names)[-1], Question))
    gold = [retrieval.normalize_answers(record.answers) for record in nq]
    sets.append(Questions("nq", "en", [record.question for record in nq], gold))
  if storage.find(root / "mkqa", "mkqa.jsonl*"):
    sets += mkqa(files.plain_or_gzipped(root / "mkqa" / "mkqa.jsonl"))
  return [questions for questions in sets if questions.texts]


def _read(root: storage.Path, *, sample: int | None = None) -> list[suite.Task]:
  sets = question_sets(root)
  if not sets:
    return []
  paths = files.files_in(root / "paq", "*.jsonl")
  sides = tuple(suite.Side(each.language, each.texts) for each in sets)
  if sample is None:
    gold = [answers for each in sets for answers in each.gold]
    score = functools.partial(_accuracies, sets)
    return [KnowledgeSearch("knowledge base", sides, score, large=True, gold=gold, paths=paths)]
  english = [each for each in sets if each.language == _KNOWLEDGE_LANGUAGE]
  queries = (pair for each in english or sets for pair in zip(each.texts, each.gold, strict=True))
  base = knowledge_sample(queries, paths, sample)

  def score_sample(knowledge_MD: np.ndarray, *queries: np.ndarray) -> list[suite.Result]:
    right = [
      are_right(exact_search.top_k(query_ND, knowledge_MD).index_NK[:, 0], base, each.gold)
      for each, query_ND in zip(sets, queries, strict=True)
    ]
    return _accuracies(sets, *right)

  knowledge = suite.Side(_KNOWLEDGE_LANGUAGE, [each.question for each in base])
  return [suite.Task("all", (knowledge, *sides), score_sample)]


QUESTIONS = suite.Benchmark(
  name="questions",
  title="Question retrieval in PAQ (NQ, MKQA)",
  files=suite.Files(
    ("paq",),
    "paq/PAQ.filtered.jsonl, or other *.jsonl, all of them together; "
    "nq/NQ-open.dev.jsonl; mkqa/mkqa.jsonl; plain or .gz",
    more=("nq/*.jsonl*", "mkqa/mkqa.jsonl*"),
  ),
  read=_read,
  averages=_averages,
  sets=("nq", *_MKQA_SETS),
)


def sample_benchmark(size: int) -> suite.Benchmark:
  """Returns the benchmark with a part of the knowledge base whose vectors fit in memory.

  Expect higher numbers than with the whole knowledge base; their names say that it is a sample.

  Args:
    size: Questions in the random sample; see `knowledge_sample`.
  """
  return dataclasses.replace(
    QUESTIONS,
    name="questions_sample",
    title="Question retrieval in a sample of PAQ (NQ, MKQA)",
    read=functools.partial(_read, sample=size),
    averages=functools.partial(_averages, note=" (sample of PAQ)"),
  )


def _read_small(root: storage.Path) -> list[suite.Task]:
  path = next(iter(storage.find(root / "mkqa", "mkqa.wide.tsv*")), None)
  if path is None:
    return []
  header, *rows = files.table(path)
  columns = [[*column] for column in zip(*rows, strict=True)]
  questions = dict(zip(header, columns, strict=True))
  del questions["id"], questions["split"]
  knowledge = questions.pop("en")
  for other in files.files_in(root / "nq", "*.jsonl"):
    knowledge += [record.question for record in text_files.read_records(other, Question)]
  sides = [suite.Side(files.known_code(code, path), texts) for code, texts in questions.items()]

  def score(knowledge_MD: np.ndarray, *queries: np.ndarray) -> list[suite.Result]:
    """Scores how often the nearest question, or one of ten, is the query's translation."""
    results = []
    for code, query_ND in zip(questions, queries, strict=True):
      near = exact_search.top_k(query_ND, knowledge_MD, 10)
      shares = retrieval.rank_metrics(near, [{row: 1} for row in range(len(near.index_NK))], 10)
      metrics = {name: 100 * shares[name] for name in ("accuracy", "R@10")}
      results.append(suite.Result(code, (code, "en"), metrics))
    return results

  return [suite.Task("all", (suite.Side("en", knowledge), *sides), score)]


MKQA_SMALL = suite.Benchmark(
  name="mkqa_small",
  title="MKQA's questions among their English originals and NQ's",
  files=suite.Files(
    ("mkqa", "nq"),
    "mkqa/mkqa.wide.tsv (header: id, split, codes) and nq/*.jsonl, plain or .gz",
  ),
  read=_read_small,
  averages=suite.metric_means("accuracy", "R@10"),
  sets=_SMALL_LANGUAGES,
)

# --------------------------------------------------------------------------------------------
# The knowledge base


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


def search_knowledge(
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
    compute = functools.partial(_nearest, vectors.source, queries, vectors.search)
    parts = [embedder.Part(x, [digest, x.digest], x.lines, str(x)) for x in spans]
    for nearest in vectors.map("search", compute, parts, keep=True):
      vectors.check_width(int(nearest["width"]))
      nearer_WQ = nearest["score"] > best_WQ
      best_WQ = np.where(nearer_WQ, nearest["score"], best_WQ)
      right_WQ = np.where(nearer_WQ, nearest["right"], right_WQ)
  return right_WQ


def _nearest(
  source: encoding.EncoderSource,
  queries: Queries,
  search: exact_search.Search,
  span: text_files.Span,
) -> embedder.Arrays:
  """Returns the cosine of the nearest question to each query, and whether it is right, [W, Q]."""
  base = list(text_files.records(span.read(), Question, span.name, span.first))
  texts = [each.question for each in base]
  query_QD = _query_vectors(source, queries)
  codes = [_KNOWLEDGE_LANGUAGE] * len(base)
  vectors_MD = encoding.encode(source.open(), texts, language=codes, progress=False)
  encoding.check_finite(vectors_MD, texts)
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
  normalized = {i: retrieval.normalize_answers(base[i].answers) for i in set(index_Q.tolist())}
  pairs = zip(index_Q.tolist(), gold, strict=True)
  return np.array([not normalized[i].isdisjoint(right) for i, right in pairs], bool)


def knowledge_sample(
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
  files_of_base = (text_files.read_records(path, Question) for path in paths)
  with progress_bar.Bar(desc="reading the knowledge base", unit=" questions") as bar:
    for row, each in enumerate(itertools.chain.from_iterable(files_of_base)):
      bar.update(1)
      ranks = [(chosen, size, rng.random())]
      if right := retrieval.normalize_answers(each.answers) & numbers_by_answer.keys():
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
  return set(retrieval.normalize_answer(text).split())
