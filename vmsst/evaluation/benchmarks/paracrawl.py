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
from vmsst.evaluation.metrics import xsim

_CODES = "bg cs da de el es et fi fr hr hu it lt lv nl pl pt ro sk sl sv"
LANGUAGES = tuple(_CODES.split())
"""Codes of the 21 languages of Table X, each paired with English."""

_SOURCE = (
  "create the files from ParaCrawl 5 (https://opus.nlpl.eu/ParaCrawl/corpus/version/ParaCrawl): "
  "shuffle the pairs of a language with English, keep 200,000, the first 2,000 sources as queries"
)


def read(root: storage.Path) -> list[suite.Task]:
  """Returns one task per language pair; only one pair is in memory at a time."""
  tasks = []
  for path in files.files_in(root / "paracrawl", "*.queries", source=_SOURCE):
    name = files.plain_name(path).removesuffix(".queries")
    codes = (files.known_code(code, path) for code in name.split(".")[-1].split("-"))
    others = files.plain_or_gzipped(path.with_name(f"{name}.candidates"), source=_SOURCE)
    sides = tuple(map(suite.Side, codes, map(files.column, (path, others))))
    tasks.append(suite.Task(name, sides, functools.partial(_score, name, sides), large=True))
  return tasks


def _score(
  name: str, sides: tuple[suite.Side, ...], query_ND: np.ndarray, candidate_MD: np.ndarray
) -> list[suite.Result]:
  queries, candidates = sides
  forward, _ = xsim.nearest(query_ND, candidate_MD)
  accuracy = 100 * (1 - xsim.error_rate(forward.margin_N, candidates.texts))
  return [suite.Result(name, (queries.language, candidates.language), {"accuracy": accuracy})]


BENCHMARK = suite.Benchmark(
  name="paracrawl",
  title="ParaCrawl (P@1 of 2,000 queries among 200,000 sentences)",
  files=suite.Files(
    ("paracrawl",),
    "NAME.xx-yy.queries in xx and NAME.xx-yy.candidates in yy, plain or .gz; a query's translation "
    "is the candidate on the same line",
    _SOURCE,
  ),
  read=read,
  averages=averages.of_metrics("accuracy"),
  sets=[*map(languages.language, LANGUAGES)],
)
