"""The benchmarks that `compare.py` runs, restricted to the training languages."""

import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from vmsst import languages
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import (
  bitext_mining,
  bitext_retrieval,
  documents,
  questions,
  sts,
)
from vmsst.search import exact_search

Keep = Callable[[suite.Result, suite.SeenTest], bool]


@dataclasses.dataclass(frozen=True)
class Column:
  """A column of a table: the mean of one metric over selected benchmark results.

  Attributes:
    benchmark: Name of the benchmark.
    metric: Name of the metric.
    keep: Function that selects results (default: results in languages seen in training).
  """

  benchmark: str
  metric: str
  keep: Keep = lambda result, seen: seen(result.languages)


def _files_of_english(result: suite.Result, seen: suite.SeenTest) -> bool:
  return "pearson" in result.metrics  # Averages over a year use a different metric.


def _track(kind: str, result: suite.Result, seen: suite.SeenTest) -> bool:
  """Returns whether an XL STS track is of a kind ("en", "other", "two") and in seen languages."""
  first, second = map(languages.language, result.languages)
  track_kind = "two" if first != second else "en" if first == languages.language("en") else "other"
  return track_kind == kind and seen(result.languages)


def _unseen(result: suite.Result, seen: suite.SeenTest) -> bool:
  return not seen(result.languages)


def _without_english(result: suite.Result, seen: suite.SeenTest) -> bool:
  return languages.language("en") not in map(languages.language, result.languages)


def _english(index: int, result: suite.Result, seen: suite.SeenTest) -> bool:
  """Returns whether only the source (index 0) or only the target (index 1) is English."""
  both = [languages.language(code) == languages.language("en") for code in result.languages]
  return both[index] and not both[1 - index]


# The columns follow Table 1 of the VMSST paper; Table XIV of the EMS paper, with NTREX instead of
# Flores and SIB-200 instead of MLDoc; and Table 2 of the soft contrastive paper. The last suite
# compares random batches with batches of sentences of similar length.
SUITES: dict[str, dict[str, Column]] = {
  "objectives": {
    "Eng.": Column("sts", "pearson", _files_of_english),
    "XL (en)": Column("xlsts", "pearson", functools.partial(_track, "en")),
    "XL (s.)": Column("xlsts", "pearson", functools.partial(_track, "other")),
    "XL (d.)": Column("xlsts", "pearson", functools.partial(_track, "two")),
    "Tatoeba seen": Column("tatoeba_all", "average"),
    "Tatoeba unseen": Column("tatoeba_all", "average", _unseen),
    "Mining (c.)": Column("mining", "cosine_f1"),
    "Mining (m.)": Column("mining", "margin_f1"),
    "MKQA": Column("mkqa_small", "accuracy"),
  },
  "ems": {
    "Tatoeba seen": Column("tatoeba", "average"),
    "NTREX": Column("ntrex", "accuracy", _without_english),
    "Mining (m.)": Column("mining", "margin_f1"),
    "SIB en-xx": Column("sib200", "accuracy", functools.partial(_english, 0)),
    "SIB xx-en": Column("sib200", "accuracy", functools.partial(_english, 1)),
  },
  "soft_contrastive": {
    "Tatoeba seen": Column("tatoeba", "average"),
    "Mining (m.)": Column("mining", "margin_f1"),
    "STS (en)": Column("stsb", "spearman", functools.partial(_track, "en")),
    "STS (xx)": Column("stsb", "spearman", functools.partial(_track, "other")),
  },
  "batches": {
    "Tatoeba seen": Column("tatoeba", "average"),
    "Mining (c.)": Column("mining", "cosine_f1"),
    "Mining (m.)": Column("mining", "margin_f1"),
  },
}
"""Columns by name, for each comparison."""


def benchmarks_of(columns: Mapping[str, Column], seen: suite.SeenTest) -> list[suite.Benchmark]:
  """Returns the benchmarks for the columns; most are limited to languages seen in training."""
  benchmarks = {
    "sts": sts.STS,
    "xlsts": _cut(sts.XLSTS, seen),
    "tatoeba": _cut(bitext_retrieval.TATOEBA, seen),
    "tatoeba_all": dataclasses.replace(bitext_retrieval.TATOEBA, name="tatoeba_all"),
    "mining": _cut(bitext_mining.MINING, seen),
    "mkqa_small": questions.MKQA_SMALL,
    "stsb": _cut(sts.STSB, seen),
    "ntrex": dataclasses.replace(
      bitext_retrieval.NTREX,
      read=functools.partial(bitext_retrieval.read_ntrex, keep=lambda code: seen([code])),
    ),
    "sib200": dataclasses.replace(documents.SIB200, read=functools.partial(_read_topics, seen)),
  }
  return [
    benchmarks[name] for name in dict.fromkeys(column.benchmark for column in columns.values())
  ]


def _cut(benchmark: suite.Benchmark, seen: suite.SeenTest) -> suite.Benchmark:
  """Returns a benchmark with only the tasks in training languages."""

  def read(root: pathlib.Path) -> list[suite.Task]:
    return [x for x in benchmark.read(root) if seen(text_set.language for text_set in x.text_sets)]

  return dataclasses.replace(benchmark, read=read)


def _read_topics(seen: suite.SeenTest, root: pathlib.Path) -> list[suite.Task]:
  """Returns topic classification tasks from and into English, in training languages."""
  data = documents.sib200(root / "sib200")
  topics = {code: data[code] for code in data if code == "eng_Latn" or seen([code])}
  return [documents.transfer_task("sib200", topics, into_english=True)]


def scores(
  columns: Mapping[str, Column], results: Mapping[str, Sequence[suite.Result]], seen: suite.SeenTest
) -> dict[str, float]:
  """Returns the values of all columns for which there are results.

  Args:
    columns: Columns by name.
    results: Results by benchmark.
    seen: Function that tests whether all languages in a list were seen in training.
  """
  values = {}
  for name, column in columns.items():
    selection = [x for x in results.get(column.benchmark, ()) if column.keep(x, seen)]
    if selection:
      values[name] = sum(x.metrics[column.metric] for x in selection) / len(selection)
  return values


Sentences = dict[str, dict[str, list[float]]]
"""Scores of sentences, 0 to 1, by benchmark and task: the share of searches that find the
translation, over both directions (Tatoeba) or over all language pairs without English (NTREX)."""


def recording(
  benchmark: suite.Benchmark, seen: suite.SeenTest, sentences: Sentences
) -> suite.Benchmark:
  """Returns the benchmark; Tatoeba and NTREX then also store sentence scores in `sentences`."""

  def score(task: suite.Task, *vectors: np.ndarray) -> list[suite.Result]:
    if seen(text_set.language for text_set in task.text_sets):
      scores = np.round(_sentence_scores(task, vectors), 4).tolist()
      sentences.setdefault(benchmark.name, {})[task.name] = scores
    return task.score(*vectors)

  def read(root: pathlib.Path) -> list[suite.Task]:
    return [dataclasses.replace(x, score=functools.partial(score, x)) for x in benchmark.read(root)]

  measured = benchmark.name in ("tatoeba", "tatoeba_all", "ntrex")
  return dataclasses.replace(benchmark, read=read) if measured else benchmark


def _sentence_scores(task: suite.Task, vectors: Sequence[np.ndarray]) -> np.ndarray:
  english = languages.language("en")
  codes = [languages.language(text_set.language) for text_set in task.text_sets]
  searches = [
    neighbors.index_NK[:, 0] == np.arange(len(neighbors.index_NK))
    for i, j in itertools.combinations(range(len(codes)), 2)
    if codes[i] != codes[j] and (len(codes) == 2 or english not in (codes[i], codes[j]))
    for neighbors in exact_search.mutual_top_k(vectors[i], vectors[j], 1)
  ]
  return np.mean(searches, axis=0)


def interval(
  scores: Sequence[Mapping[str, Sequence[float]]], baseline: Sequence[Mapping[str, Sequence[float]]]
) -> tuple[float, float, float]:
  """Returns 100 times the score difference of two encoders, with a 95% paired bootstrap interval.

  The bootstrap resamples the sentences of each task separately. Tasks have equal weights.

  Args:
    scores: Sentence scores by task, for each seed of the first encoder.
    baseline: Sentence scores by task, for each seed of the second encoder.
  """
  rng = np.random.default_rng(0)
  means = []
  for task in scores[0]:
    first_N, second_N = (np.mean([x[task] for x in seeds], axis=0) for seeds in (scores, baseline))
    difference_N = first_N - second_N
    rows = rng.integers(len(difference_N), size=(1000, len(difference_N)))
    means.append([difference_N.mean(), *difference_N[rows].mean(axis=1)])
  mean, *resampled = 100 * np.mean(means, axis=0)
  return float(mean), *map(float, np.percentile(resampled, [2.5, 97.5]))
