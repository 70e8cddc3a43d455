"""Question retrieval from a knowledge base of questions and answers, by cosine.

* `QUESTIONS` is the task of the VMSST paper (section 6.2, Tables 1, 11 and 12). The queries are
  from NQ-open and MKQA. Each query receives the answer to the nearest of PAQ's 65 million
  questions. The metric is the share of correct answers.
* `sample_benchmark` returns the same task with a small sample of PAQ, for evaluation during
  training.
* `MKQA_SMALL` is a small task that does not need PAQ. For each MKQA question in a foreign language,
  it retrieves the English original from the English questions in MKQA and NQ.

`QUESTIONS` reads the knowledge base in shards of a fixed number of lines, so its memory use does
not grow with the knowledge base. For each shard, it embeds the questions, finds the nearest
question to each query, and compares this question's answers with the gold answers to the query. The
search is repeated for each vector size. In array names, W is the number of vector sizes.
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

SHARD = 1 << 16  # number of lines in a shard of the knowledge base

RIGHT_PER_QUERY = 10
"""Maximum number of questions with a correct answer that `knowledge_sample` adds per query."""

_KNOWLEDGE_LANGUAGE = "en"

# fmt: off
MKQA_LANGUAGES = (
  "ar", "da", "de", "en", "es", "fi", "fr", "he", "hu", "it", "ja", "km", "ko", "ms",
  "nl", "no", "pl", "pt", "ru", "sv", "th", "tr", "vi", "zh_cn",
)
# fmt: on
"""Languages in Table 12 of the VMSST paper. The mean excludes MKQA's zh_hk and zh_tw."""

_MKQA_SETS = tuple(f"mkqa {code}" for code in MKQA_LANGUAGES)

_SMALL_LANGUAGES = ("ar", "es", "fi", "ja", "km", "ko", "ms", "ru", "sv", "tr", "zh_cn")


@dataclasses.dataclass(frozen=True)
class Questions:
  """Questions in one language.

  Attributes:
    name: Unique name.
    language: Language code.
    texts: The questions.
    gold: Correct answers to each question, normalized with `retrieval.normalize_answers`.
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
  """Reads the questions in each language from mkqa.jsonl.gz.

  The knowledge base is in English, so the English answers and their aliases are the gold answers to
  the questions in all languages. A third of the questions have no short answer or no answer at all.
  These questions are dropped, because no answer in the knowledge base could match.

  Raises:
    InputError: If the file is malformed, or a language is unknown.
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
  """Searches a knowledge base once for the queries of all text sets.

  Other tasks pass the vectors of each text set to the function `score`. Instead, this task passes
  one array per text set, bool [N], that marks the queries that received a correct answer.

  Attributes:
    gold: Correct answers to each query, in the same order as the text sets.
    paths: Knowledge base files, with one `Question` per line.
  """

  gold: Sequence[frozenset[str]] = ()
  paths: Sequence[storage.Path] = ()

  def results(
    self, vectors: embedder.Embedder, sizes: Sequence[int | None]
  ) -> dict[int | None, list[suite.Result]]:
    """See `suite.Task`."""
    queries = Queries(
      tuple((text_set.language, tuple(text_set.texts)) for text_set in self.text_sets),
      tuple(tuple(sorted(answers)) for answers in self.gold),
      tuple(sizes),
    )
    right_WQ = search_knowledge(vectors, queries, self.paths)
    ends = np.cumsum([len(text_set.texts) for text_set in self.text_sets])[:-1]
    return {
      size: self.score(*np.split(right_Q, ends))
      for size, right_Q in zip(sizes, right_WQ, strict=True)
    }


def _accuracies(sets: Sequence[Questions], *right: np.ndarray) -> list[suite.Result]:
  """Returns `accuracy` (R@1), the share of queries with a correct answer, for each set."""
  return [
    suite.Result(x.name, (x.language,), {"accuracy": 100 * float(right_N.mean())})
    for x, right_N in zip(sets, right, strict=True)
  ]


def _averages(
  results: Sequence[suite.Result], seen: suite.Seen, complete: bool, *, note: str = ""
) -> suite.Numbers:
  """Returns the accuracy on NQ, and mean accuracies on MKQA over `MKQA_LANGUAGES`.

  Args:
    results: The results.
    seen: Test for seen languages, or None if the training languages are unknown.
    complete: Ignored, because each average has its own list of expected results.
    note: Suffix for the average names.
  """
  groups = {f"nq{note}": ["nq"], f"mkqa{note}": _MKQA_SETS}
  means = suite.group_means(results, "accuracy", groups)
  mkqa_results = [result for result in results if result.name in _MKQA_SETS]
  complete = len(mkqa_results) == len(_MKQA_SETS)
  return means | suite.seen_means(f"mkqa{note}", mkqa_results, "accuracy", seen, complete=complete)


def question_sets(root: storage.Path) -> list[Questions]:
  """Reads the NQ and MKQA queries; sets without files are skipped."""
  sets = []
  if (root / "nq").is_dir():
    # Papers usually test on the NQ-open file that Google published as "dev". Some copies call this
    # file "test".
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
  text_sets = tuple(suite.TextSet(x.language, x.texts) for x in sets)
  if sample is None:
    gold = [answers for x in sets for answers in x.gold]
    score = functools.partial(_accuracies, sets)
    return [KnowledgeSearch("knowledge base", text_sets, score, large=True, gold=gold, paths=paths)]
  # The sample depends on the words that queries share with questions in PAQ. PAQ is in English, so
  # only English queries are useful.
  english = [x for x in sets if x.language == _KNOWLEDGE_LANGUAGE]
  queries = (pair for x in english or sets for pair in zip(x.texts, x.gold, strict=True))
  base = knowledge_sample(queries, paths, sample)

  def score_sample(knowledge_MD: np.ndarray, *queries: np.ndarray) -> list[suite.Result]:
    right = [
      are_right(exact_search.top_k(query_ND, knowledge_MD).index_NK[:, 0], base, x.gold)
      for x, query_ND in zip(sets, queries, strict=True)
    ]
    return _accuracies(sets, *right)

  knowledge = suite.TextSet(_KNOWLEDGE_LANGUAGE, [x.question for x in base])
  return [suite.Task("all", (knowledge, *text_sets), score_sample)]


QUESTIONS = suite.Benchmark(
  name="questions",
  title="Question retrieval in PAQ (NQ, MKQA)",
  files=suite.Files(
    ("paq",),
    "paq/PAQ.filtered.jsonl, or any number of *.jsonl; "
    "nq/NQ-open.dev.jsonl; mkqa/mkqa.jsonl; plain or .gz",
    optional=("nq/*.jsonl*", "mkqa/mkqa.jsonl*"),
  ),
  read=_read,
  averages=_averages,
  sets=("nq", *_MKQA_SETS),
)


def sample_benchmark(size: int) -> suite.Benchmark:
  """Returns the benchmark with a sample of the knowledge base that fits in memory.

  Retrieval from a sample is easier, so accuracies are higher than with the full knowledge base. The
  names of the accuracies end in "(sample of PAQ)".

  Args:
    size: Number of random questions; see `knowledge_sample`.
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
  for nq_path in files.files_in(root / "nq", "*.jsonl"):
    knowledge += [record.question for record in text_files.read_records(nq_path, Question)]
  query_sets = [suite.TextSet(files.known_code(x, path), texts) for x, texts in questions.items()]

  def score(knowledge_MD: np.ndarray, *queries: np.ndarray) -> list[suite.Result]:
    results = []
    for code, query_ND in zip(questions, queries, strict=True):
      neighbors = exact_search.top_k(query_ND, knowledge_MD, 10)
      # Row i of the knowledge base contains the English original of query i.
      gold = [{row: 1} for row in range(len(query_ND))]
      shares = retrieval.rank_metrics(neighbors, gold, 10)
      metrics = {name: 100 * shares[name] for name in ("accuracy", "R@10")}
      results.append(suite.Result(code, (code, "en"), metrics))
    return results

  return [suite.Task("all", (suite.TextSet("en", knowledge), *query_sets), score)]


MKQA_SMALL = suite.Benchmark(
  name="mkqa_small",
  title="Retrieval of the English originals of MKQA questions",
  files=suite.Files(
    ("mkqa", "nq"), "mkqa/mkqa.wide.tsv (header: id, split, codes) and nq/*.jsonl, plain or .gz"
  ),
  read=_read_small,
  averages=suite.metric_means("accuracy", "R@10"),
  sets=_SMALL_LANGUAGES,
)

# --------------------------------------------------------------------------------------------
# The knowledge base


class Question(msgspec.Struct):
  """A question in a knowledge base.

  Attributes:
    question: The question.
    answer: One answer, or a list of answers.
  """

  question: str
  answer: str | list[str]

  @property
  def answers(self) -> list[str]:
    """The answers, always as a list."""
    return [self.answer] if isinstance(self.answer, str) else self.answer


@dataclasses.dataclass(frozen=True)
class Queries:
  """Queries to a knowledge base.

  Attributes:
    texts: Language code and queries of each text set, Q queries in total.
    gold: Correct answers to each query, sorted.
    sizes: Numbers of leading dimensions to search with. None uses all dimensions.
  """

  texts: tuple[tuple[str, tuple[str, ...]], ...]
  gold: tuple[tuple[str, ...], ...]
  sizes: tuple[int | None, ...]


def search_knowledge(
  vectors: embedder.Embedder, queries: Queries, paths: Sequence[storage.Path]
) -> np.ndarray:
  """Returns whether the nearest question has a correct answer, per size and query, bool [W, Q].

  If several questions are equally near to a query, the first one is used.

  Args:
    vectors: Embedder for the texts; may store the result of each shard.
    queries: The queries.
    paths: Knowledge base files, with one `Question` per line, as in PAQ.

  Raises:
    InputError: If a file is malformed, or a vector is not finite.
  """
  digest = hashlib.sha256(json.dumps(dataclasses.astuple(queries)).encode()).hexdigest()
  best_WQ = np.full((len(queries.sizes), len(queries.gold)), -np.inf, np.float32)
  right_WQ = np.zeros(best_WQ.shape, bool)
  with contextlib.ExitStack() as stack:
    stack.callback(_query_vectors.cache_clear)
    folder = vectors.scratch or stack.enter_context(tempfile.TemporaryDirectory(prefix="vmsst-"))
    spans = text_files.unpack(text_files.cut([*map(str, paths)], SHARD).spans, folder)
    compute = functools.partial(_nearest, vectors.source, queries, vectors.search)
    shards = [embedder.Chunk(x, [digest, x.digest], x.lines, str(x)) for x in spans]
    for nearest in vectors.map("search", compute, shards, keep=True):
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
  """Returns the highest cosine in a shard and whether that question's answer is correct, [W, Q]."""
  base = list(text_files.records(span.read(), Question, span.name, span.first))
  texts = [x.question for x in base]
  query_QD = _query_vectors(source, queries)
  codes = [_KNOWLEDGE_LANGUAGE] * len(base)
  vectors_MD = encoding.encode(source.open(), texts, language=codes, progress=False)
  encoding.check_finite(vectors_MD, texts)
  scores, right = [], []
  for size in queries.sizes:
    unit_MD = exact_search.unit_rows(vectors_MD[:, :size])
    index_Q = exact_search.top_k(query_QD[:, :size], unit_MD, search=search).index_NK[:, 0]
    right.append(are_right(index_Q, base, queries.gold))
    # Do not use the scores from the search, because their rounding errors depend on the position of
    # a row in its shard. Recompute the cosines, so that cosines from different shards can be
    # compared.
    unit_QD = exact_search.unit_rows(query_QD[:, :size])
    rows = exact_search.blocks(len(index_Q))
    cosines = [np.einsum("bd,bd->b", unit_QD[x], unit_MD[index_Q[x]]) for x in rows]
    scores.append(np.concatenate(cosines))
  width = np.array(vectors_MD.shape[1])
  return {"score": np.array(scores), "right": np.array(right), "width": width}


@functools.lru_cache(1)  # Query vectors are reused for all shards.
def _query_vectors(source: encoding.EncoderSource, queries: Queries) -> np.ndarray:
  """Returns the vectors for the queries, float32 [Q, D]."""
  vectors = []
  for code, texts in queries.texts:
    codes = [code] * len(texts)
    vectors.append(encoding.encode(source.open(), texts, language=codes, progress=False))
    encoding.check_finite(vectors[-1], texts)
  return np.concatenate(vectors)


def are_right(
  index_Q: np.ndarray, base: Sequence[Question], gold: Sequence[Iterable[str]]
) -> np.ndarray:
  """Returns whether the retrieved questions have a correct answer, bool [Q].

  Args:
    index_Q: Position in `base` of the question retrieved for each query.
    base: Questions in the knowledge base.
    gold: Correct answers to each query, normalized.
  """
  normalized = {i: retrieval.normalize_answers(base[i].answers) for i in set(index_Q.tolist())}
  pairs = zip(index_Q.tolist(), gold, strict=True)
  return np.array([not normalized[i].isdisjoint(right) for i, right in pairs], bool)


def knowledge_sample(
  queries: Iterable[tuple[str, frozenset[str]]], paths: Sequence[storage.Path], size: int
) -> list[Question]:
  """Returns a sample of a knowledge base, in file order.

  The sample consists of random questions and, for each query, up to `RIGHT_PER_QUERY` questions
  with a correct answer. If more questions have a correct answer, the questions with the highest
  Jaccard similarity to the query's words are selected. The files are read once, and memory use does
  not grow with their size. The same arguments and files always produce the same sample.

  Args:
    queries: Text and correct answers for each query, in the language of the knowledge base.
    paths: Knowledge base files, with one `Question` per line.
    size: Number of random questions. If the knowledge base has fewer questions, all of them are
      used.

  Raises:
    InputError: If a file is malformed.
  """
  words: list[set[str]] = []
  numbers_by_answer: dict[str, list[int]] = {}
  for number, (text, gold) in enumerate(queries):
    words.append(_words(text))
    for answer in gold:
      numbers_by_answer.setdefault(answer, []).append(number)
  # Heaps of (score, -row, question) keep the highest scores; ties go to the first row.
  similar: list[list[tuple[float, int, Question]]] = [[] for _ in words]
  random_sample: list[tuple[float, int, Question]] = []
  rng = random.Random(0)  # Python guarantees the same random() values for a seed.
  records = (text_files.read_records(path, Question) for path in paths)
  with progress_bar.Bar(desc="reading the knowledge base", unit=" questions") as bar:
    for row, question in enumerate(itertools.chain.from_iterable(records)):
      bar.update(1)
      candidates = [(random_sample, size, rng.random())]
      if right := retrieval.normalize_answers(question.answers) & numbers_by_answer.keys():
        question_words = _words(question.question)
        for number in {number for answer in right for number in numbers_by_answer[answer]}:
          union = words[number] | question_words
          similarity = len(words[number] & question_words) / max(1, len(union))
          candidates.append((similar[number], RIGHT_PER_QUERY, similarity))
      for heap, capacity, score in candidates:
        push = heapq.heappush if len(heap) < capacity else heapq.heappushpop
        push(heap, (score, -row, question))
  by_row = {-entry[1]: entry[2] for heap in (random_sample, *similar) for entry in heap}
  return [by_row[row] for row in sorted(by_row)]


def _words(text: str) -> set[str]:
  return set(retrieval.normalize_answer(text).split())
