"""Question retrieval in a knowledge base of questions, by cosine.

`QUESTIONS` is the task of the VMSST paper (section 6.2, Tables 1, 11 and 12): a question of NQ-open
or MKQA counts if the nearest of PAQ's 65 million questions has the right answer. `MKQA_SMALL` is a
small task of our own: finds MKQA's questions in English, among those and the questions of NQ.
`sampled` is the task of the paper with a small part of PAQ, for evaluation during training.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from vmsst import storage
from vmsst.evaluation import embedder, suite
from vmsst.evaluation.benchmarks import files, knowledge_search
from vmsst.evaluation.metrics import retrieval
from vmsst.search import exact_search

# fmt: off
MKQA_LANGUAGES = (
  "ar", "da", "de", "en", "es", "fi", "fr", "he", "hu", "it", "ja", "km", "ko", "ms",
  "nl", "no", "pl", "pt", "ru", "sv", "th", "tr", "vi", "zh_cn",
)
# fmt: on
"""Languages of Table 12. MKQA's zh_hk and zh_tw are measured, but are not part of the mean."""

_MKQA_SETS = tuple(f"mkqa {code}" for code in MKQA_LANGUAGES)

MkqaQuestions = Literal["answered", "all"]
"""Which of MKQA's questions count: those with an answer, or all of them."""

_SMALL_LANGUAGES = ("ar", "es", "fi", "ja", "km", "ko", "ms", "ru", "sv", "tr", "zh_cn")


@dataclasses.dataclass(frozen=True)
class Questions:
  """Questions of one language.

  Attributes:
    name: Unique name of the set.
    language: Language code.
    texts: The questions.
    gold: The right answers of each, as `retrieval.normalized_set` returns them.
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


def nq_open(path: storage.Path) -> Questions:
  """Reads NQ-open: one JSON object per line, with `question` and `answer` (a list).

  Raises:
    InputError: the file is broken.
  """
  records = list(files.records(path, knowledge_search.Question))
  gold = [retrieval.normalized_set(record.answers) for record in records]
  return Questions("nq", "en", [record.question for record in records], gold)


def mkqa(path: storage.Path, counted: MkqaQuestions = "answered") -> list[Questions]:
  """Reads MKQA's questions, by language, from mkqa.jsonl.gz.

  In every language the gold answers are the English ones with their aliases, because the knowledge
  base is English.

  Args:
    path: The file.
    counted: "answered" drops questions without any answer (MKQA's unanswerable ones and those with
      long answers, a third), because they cannot be found; "all" keeps them, so that they are
      wrong.

  Raises:
    InputError: the file is broken, or a language is unknown.
  """
  by_language: dict[str, Questions] = {}
  for record in files.records(path, _MkqaRecord):
    texts = [text for answer in record.answers.en for text in (answer.text, *answer.aliases)]
    gold = retrieval.normalized_set(text for text in texts if text)
    for code, query in record.queries.items() if gold or counted == "all" else ():
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
    paths: Files of the knowledge base, with a `knowledge_search.Question` per line.
  """

  gold: Sequence[frozenset[str]] = ()
  paths: Sequence[storage.Path] = ()

  def results(
    self, vectors: embedder.Embedder, sizes: Sequence[int | None]
  ) -> dict[int | None, list[suite.Result]]:
    """See `suite.Task`."""
    queries = knowledge_search.Queries(
      tuple((side.language, tuple(side.texts)) for side in self.sides),
      tuple(tuple(sorted(answers)) for answers in self.gold),
      tuple(sizes),
    )
    right_WQ = knowledge_search.search(vectors, queries, self.paths)
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


def question_sets(root: storage.Path, counted: MkqaQuestions = "answered") -> list[Questions]:
  """Reads the questions to search for, if their files exist, even without a knowledge base."""
  sets = []
  if (root / "nq").is_dir():
    # Google calls the test set dev, others test.
    names = "[Nn][Qq]-open.test.jsonl", "[Nn][Qq]-open.dev.jsonl"
    sets.append(nq_open(files.files_in(root / "nq", *names)[-1]))
  if storage.find(root / "mkqa", "mkqa.jsonl*"):
    sets += mkqa(files.plain_or_gzipped(root / "mkqa" / "mkqa.jsonl"), counted)
  return [questions for questions in sets if questions.texts]


def _read(
  counted: MkqaQuestions, root: storage.Path, *, sample: int | None = None
) -> list[suite.Task]:
  sets = question_sets(root, counted)
  if not sets:
    return []
  paths = files.files_in(root / "paq", "*.jsonl")
  sides = tuple(suite.Side(each.language, each.texts) for each in sets)
  if sample is None:
    gold = [answers for each in sets for answers in each.gold]
    score = functools.partial(_accuracies, sets)
    return [KnowledgeSearch("knowledge base", sides, score, large=True, gold=gold, paths=paths)]
  english = [each for each in sets if each.language == knowledge_search.LANGUAGE]
  queries = (pair for each in english or sets for pair in zip(each.texts, each.gold, strict=True))
  base = knowledge_search.sample(queries, paths, sample)

  def score_sample(knowledge_MD: np.ndarray, *queries: np.ndarray) -> list[suite.Result]:
    right = [
      knowledge_search.are_right(
        exact_search.top_k(query_ND, knowledge_MD).index_NK[:, 0], base, each.gold
      )
      for each, query_ND in zip(sets, queries, strict=True)
    ]
    return _accuracies(sets, *right)

  knowledge = suite.Side(knowledge_search.LANGUAGE, [each.question for each in base])
  return [suite.Task("all", (knowledge, *sides), score_sample)]


def benchmark(counted: MkqaQuestions = "answered") -> suite.Benchmark:
  """Returns the benchmark, given which of MKQA's questions count."""
  return suite.Benchmark(
    name="questions",
    title="Question retrieval in PAQ (NQ, MKQA)",
    files=suite.Files(
      ("paq",),
      "paq/PAQ.filtered.jsonl, or other *.jsonl, all of them together; "
      "nq/NQ-open.dev.jsonl; mkqa/mkqa.jsonl; plain or .gz",
      more=("nq/*.jsonl*", "mkqa/mkqa.jsonl*"),
    ),
    read=functools.partial(_read, counted),
    options={"mkqa_questions": counted},
    averages=_averages,
    sets=("nq", *_MKQA_SETS),
  )


QUESTIONS = benchmark()


def sampled(size: int) -> suite.Benchmark:
  """Returns the benchmark with a part of the knowledge base whose vectors fit in memory.

  Expect higher numbers than with the whole knowledge base; their names say that it is a sample.

  Args:
    size: Questions in the random sample; see `knowledge_search.sample`.
  """
  return dataclasses.replace(
    QUESTIONS,
    name="questions_sample",
    title="Question retrieval in a sample of PAQ (NQ, MKQA)",
    read=functools.partial(_read, "answered", sample=size),
    averages=functools.partial(_averages, note=" (sample of PAQ)"),
    options={"paq_distractors": str(size)},
  )


def _read_small(root: storage.Path) -> list[suite.Task]:
  path = files.plain_or_gzipped(root / "mkqa" / "mkqa.wide.tsv")
  header, *rows = files.table(path)
  columns = [[*column] for column in zip(*rows, strict=True)]
  questions = dict(zip(header, columns, strict=True))
  del questions["id"], questions["split"]
  knowledge = questions.pop("en")
  for other in files.files_in(root / "nq", "*.jsonl"):
    knowledge += [record.question for record in files.records(other, knowledge_search.Question)]
  sides = [suite.Side(files.known_code(code, path), texts) for code, texts in questions.items()]

  def score(knowledge_MD: np.ndarray, *queries: np.ndarray) -> list[suite.Result]:
    """Scores how often the nearest question, or one of ten, is the query's translation."""
    results = []
    for code, query_ND in zip(questions, queries, strict=True):
      near = exact_search.top_k(query_ND, knowledge_MD, 10)
      shares = retrieval.rank_metrics(near, [[row] for row in range(len(near))], 10)
      metrics = {name: 100 * shares[name] for name in ("accuracy", "R@10")}
      results.append(suite.Result(code, (code, "en"), metrics))
    return results

  return [suite.Task("all", (suite.Side("en", knowledge), *sides), score)]


MKQA_SMALL = suite.Benchmark(
  name="mkqa_small",
  title="MKQA's questions among their English originals and NQ's",
  files=suite.Files(
    ("mkqa/mkqa.wide.tsv", "nq"),
    "mkqa/mkqa.wide.tsv (header: id, split, codes) and nq/*.jsonl, plain or .gz",
  ),
  read=_read_small,
  averages=suite.metric_means("accuracy", "R@10"),
  sets=_SMALL_LANGUAGES,
)
