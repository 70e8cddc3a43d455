"""Semantic textual similarity in English: the test sets of SemEval 2012 to 2016.

The VMSST paper (section 6.2 and appendix B.1) averages Pearson's correlation over a year's sets and
then over years, and gives Spearman's of all sets of a year together, without 2013's SMT. The name
of an average with missing sets ends in " (incomplete)".
"""

import functools
import itertools
import re
from collections.abc import Iterator, Sequence

import numpy as np

from vmsst import errors, storage
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import averages, files, similarity

SETS: dict[str, tuple[str, ...]] = {
  "2012": ("MSRpar", "MSRvid", "SMTeuroparl", "OnWN", "SMTnews"),
  "2013": ("FNWN", "headlines", "OnWN", "SMT"),
  "2014": ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
  "2015": ("answers-forums", "answers-students", "belief", "headlines", "images"),
  "2016": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}
"""The official test sets of each year."""

_NAMES = {year: [f"STS{year[2:]}.{name}" for name in names] for year, names in SETS.items()}
_LEFT_OUT = "STS13.SMT"  # From Spearman's correlation.
_SOURCE = (
  "download the archives linked from http://ixa2.si.ehu.es/stswiki, or copy data/downstream/STS of "
  "https://github.com/facebookresearch/SentEval"
)


def read(root: storage.Path) -> list[suite.Task]:
  """Returns one task per year.

  Its results are `pearson` and `spearman` of each set, by its name (STS12.MSRpar), and `spearman`
  of all sets of the year together except 2013's SMT, by the name of the year (STS12).
  """
  folder = root / "sts"
  by_name = similarity.by_name(itertools.chain(_tables(folder), _originals(folder)))
  if not by_name:
    raise errors.InputError(f"{folder} has no {BENCHMARK.layout}; {_SOURCE}")
  tasks = []
  for year, names in _NAMES.items():
    sets = [by_name[name] for name in names if name in by_name]
    if sets:
      sides = tuple(suite.Side("en", pairs.texts(side)) for pairs in sets for side in (1, 2))
      name = f"STS{year[2:]}"
      tasks.append(suite.Task(name, sides, functools.partial(_score, name, sets)))
  return tasks


def _tables(folder: storage.Path) -> Iterator[similarity.ScoredPairs]:
  for path in storage.find(folder, "STS1[2-6].*.tsv*"):
    name = files.plain_name(path).removesuffix(".tsv")
    if not name.endswith(".train"):
      yield similarity.scored_table(path, _official(name, path))


def _originals(folder: storage.Path) -> Iterator[similarity.ScoredPairs]:
  for path in storage.find(folder, "**/STS*.input.*.txt*"):
    parts = path.relative_to(folder).parts[:-1]
    if any("train" in part for part in parts) or ".ALL." in path.name:
      continue
    year = re.search(r"(?<!\d)(?:20)?(1[2-6])(?!\d)", parts[0] if parts else "")
    if year is None:
      raise errors.InputError(
        f"{path}: unknown year: move the file into a folder of {folder} with the year in its name, "
        "such as 2012 or STS12-en-test"
      )
    name = files.plain_name(path).split(".input.")[1].removesuffix(".txt").removeprefix("surprise.")
    official = _official(f"STS{year[1]}.{name}", path)
    gold = files.plain_or_gzipped(path.with_name(similarity.gold_name(path)), source=_SOURCE)
    unscored = year[1] in ("15", "16")  # Their score files have empty lines.
    yield similarity.semeval(path, gold, official, unscored=unscored)


def _official(name: str, path: storage.Path) -> str:
  year = f"20{name[3:5]}"
  if name not in _NAMES[year]:
    raise errors.InputError(
      f"{path} is not a test set of {year} ({', '.join(SETS[year])}): rename or remove it"
    )
  return name


def _score(
  name: str, sets: Sequence[similarity.ScoredPairs], *vectors: np.ndarray
) -> list[suite.Result]:
  cosines = [similarity.cosines(*sides) for sides in zip(vectors[::2], vectors[1::2], strict=True)]
  results = [
    similarity.correlations(pairs.name, ("en",), cosine_N, pairs.gold_N)
    for pairs, cosine_N in zip(sets, cosines, strict=True)
  ]
  kept = [i for i, pairs in enumerate(sets) if pairs.name != _LEFT_OUT]
  if kept:
    cosine_N = np.concatenate([cosines[i] for i in kept])
    gold_N = np.concatenate([sets[i].gold_N for i in kept])
    together = similarity.correlations(name, ("en",), cosine_N, gold_N).metrics["spearman"]
    complete = {pairs.name for pairs in sets} >= {*_NAMES[f"20{name[3:]}"]} - {_LEFT_OUT}
    metrics = averages.mean("spearman", [together], complete=complete)
    results.append(suite.Result(name, ("en",), metrics))
  return results


def summarize(results: Sequence[suite.Result], seen: suite.Seen, complete: bool) -> suite.Numbers:
  """Returns both metrics of each year and their means over years (VMSST, Tables 1 and 9)."""
  names = {f"pearson {year}": name for year, name in _NAMES.items()}
  years = {
    "pearson": averages.of_groups(results, "pearson", names),
    "spearman": {
      key.replace("spearman", f"spearman 20{result.name[3:]}"): value
      for result in results
      if result.name[3:].isdecimal()  # All sets of a year.
      for key, value in result.metrics.items()
    },
  }
  summary: suite.Numbers = {}
  for metric, by_year in years.items():
    whole = [key for key in by_year if not key.endswith(averages.INCOMPLETE)]
    summary |= averages.mean(metric, by_year.values(), complete=len(whole) == len(SETS))
  return summary | years["pearson"] | years["spearman"]


BENCHMARK = suite.Benchmark(
  name="sts",
  title="STS 2012-2016 (English)",
  files=suite.Files(
    ("sts",),
    "YEAR/STS.input.NAME.txt with YEAR/STS.gs.NAME.txt, or STSyy.NAME.tsv (score, sentences)",
    _SOURCE,
  ),
  read=read,
  averages=summarize,
  sets=tuple(itertools.chain.from_iterable(_NAMES.values())),
)
