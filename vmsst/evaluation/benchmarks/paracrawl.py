"""Retrieval among many sentences, as on ParaCrawl in the EMS paper (section V-D, Table X).

P@1 of 2,000 queries among 200,000 sentences of the other language: the share of queries whose
translation has the best ratio margin among the k = 4 nearest sentences. The paper's samples are not
published; take the first lines of shuffled ParaCrawl 5 files.
"""

import functools

import numpy as np

from vmsst import languages, storage
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import averages, files
from vmsst.evaluation.metrics import retrieval

_CODES = "bg cs da de el es et fi fr hr hu it lt lv nl pl pt ro sk sl sv"
LANGUAGES = tuple(_CODES.split())
"""Codes of the 21 languages of Table X, each paired with English."""


def read(root: storage.Path) -> list[suite.Task]:
  """Returns one task per language pair; only one pair is in memory at a time."""
  tasks = []
  for path in files.files_in(root / "paracrawl", "*.queries"):
    name = files.plain_name(path).removesuffix(".queries")
    codes = (files.known_code(code, path) for code in name.split(".")[-1].split("-"))
    others = files.plain_or_gzipped(path.with_name(f"{name}.candidates"))
    texts = files.column(path), files.column(others)
    score = functools.partial(_accuracy, texts[1])
    tasks.append(suite.pair_task(name, codes, texts, score, large=True))
  return tasks


def _accuracy(candidates: list[str], *vectors: np.ndarray) -> suite.Numbers:
  forward, _ = retrieval.nearest(*vectors)
  return {"accuracy": 100 * (1 - retrieval.error_rate(forward.margin_N, candidates))}


BENCHMARK = suite.Benchmark(
  name="paracrawl",
  title="ParaCrawl (P@1 of 2,000 queries among 200,000 sentences)",
  files=suite.Files(
    ("paracrawl",),
    "NAME.xx-yy.queries in xx and NAME.xx-yy.candidates in yy, plain or .gz; a query's translation "
    "is the candidate on the same line",
  ),
  read=read,
  averages=averages.of_metrics("accuracy"),
  sets=[*map(languages.language, LANGUAGES)],
)
