"""Semantic textual similarity: correlations of cosines with human scores of sentence pairs.

* `STS`, the English test sets of SemEval 2012 to 2016. The VMSST paper (section 6.2 and appendix
  B.1) averages Pearson's correlation over a year's sets and then over years, and gives Spearman's
  of all sets of a year together, without 2013's SMT.
* `XLSTS`, SemEval-2017 task 1, within and across languages. The VMSST paper (Tables 1 and 10)
  averages over ar-ar, ar-en, es-es, es-en and tr-en. Here es-en is track 4a, which has the same
  English pairs as the other four; track 4b (es-en, news and bad translations) and track 5 (en-en)
  have results but are not part of averages.
* `STSB`, the STS Benchmark in English and translations. Each split of each language gives a result,
  `eng.dev` or `de.test`. The name of a split with fewer pairs than published says so, as in
  "de.test (595 of 1379 pairs)". Training pairs are not used.

The name of an average with missing sets, or over incomplete splits, ends in " (incomplete)".
"""

import dataclasses
import functools
import itertools
import re
from collections.abc import Mapping, Sequence

import numpy as np

from vmsst import errors, storage
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import files
from vmsst.io import text_files
from vmsst.search import exact_search

METRICS = ("pearson", "spearman")

SETS: dict[str, tuple[str, ...]] = {
  "2012": ("MSRpar", "MSRvid", "SMTeuroparl", "OnWN", "SMTnews"),
  "2013": ("FNWN", "headlines", "OnWN", "SMT"),
  "2014": ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
  "2015": ("answers-forums", "answers-students", "belief", "headlines", "images"),
  "2016": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}
"""The official test sets of each year."""

_NAMES = {year: [f"STS{year[2:]}.{name}" for name in names] for year, names in SETS.items()}
_NOT_IN_SPEARMAN = "STS13.SMT"

SAME_LANGUAGE = ("track1.ar-ar", "track3.es-es")
DIFFERENT_LANGUAGES = ("track2.ar-en", "track4a.es-en", "track6.tr-en")
_TRACKS = {  # Languages of the first and second sentences; names do not have their order.
  "track1.ar-ar": ("ar", "ar"),
  "track2.ar-en": ("en", "ar"),
  "track3.es-es": ("es", "es"),
  "track4a.es-en": ("es", "en"),
  "track4b.es-en": ("en", "es"),
  "track5.en-en": ("en", "en"),
  "track6.tr-en": ("en", "tr"),
}

LANGUAGES = ("eng", "de", "es", "fr", "it", "ja", "ko", "nl", "pl", "pt", "ru", "zh")
SPLITS = {"test": 1379, "dev": 1500}
"""Published numbers of pairs of the STS Benchmark."""


@dataclasses.dataclass(frozen=True)
class ScoredPairs:
  """A set of sentence pairs with human scores.

  Attributes:
    name: Name of the set.
    languages: Codes of the first and the second sentences.
    rows: Score, first and second sentence of each pair.
  """

  name: str
  languages: tuple[str, str]
  rows: Sequence[tuple[float, str, str]]

  @property
  def sides(self) -> tuple[suite.Side, suite.Side]:
    """The first and the second sentences."""
    first, second = self.languages
    return (
      suite.Side(first, [row[1] for row in self.rows]),
      suite.Side(second, [row[2] for row in self.rows]),
    )

  def result(self, first_ND: np.ndarray, second_ND: np.ndarray) -> suite.Result:
    """Returns both correlations x 100, from the vectors of both sides."""
    score_N = np.array([row[0] for row in self.rows])
    metrics = correlations(cosines(first_ND, second_ND), score_N)
    return suite.Result(self.name, self.languages, metrics)

  def task(self) -> suite.Task:
    """Returns the task of the set, with one result."""
    return suite.Task(self.name, self.sides, lambda *vectors: [self.result(*vectors)])


def cosines(first_ND: np.ndarray, second_ND: np.ndarray) -> np.ndarray:
  """Returns the cosine of row i of one array with row i of the other, float64 [N]; 0 for zeros."""
  first_ND, second_ND = exact_search.unit_rows(first_ND), exact_search.unit_rows(second_ND)
  return np.einsum("nd,nd->n", first_ND, second_ND, dtype=np.float64)


def correlations(cosine_N: np.ndarray, score_N: np.ndarray) -> suite.Numbers:
  """Returns `pearson` and `spearman` x 100.

  Cosines that agree in 6 decimals have the same rank: others differ by rounding errors.

  Raises:
    ValueError: all values of a side are equal.
  """
  from scipy import stats  # Here: it takes a second.

  rounded_N = np.round(cosine_N, 6)
  if np.ptp(rounded_N) == 0 or np.ptp(score_N) == 0:  # Else rounding errors would be correlated.
    raise ValueError(f"all {len(score_N)} cosines or scores are equal: no correlation is defined")
  pearson = stats.pearsonr(cosine_N, score_N).statistic
  spearman = stats.pearsonr(stats.rankdata(rounded_N), stats.rankdata(score_N)).statistic
  return {"pearson": 100 * float(pearson), "spearman": 100 * float(spearman)}


def scored_table(path: storage.Path, name: str, codes: tuple[str, str]) -> ScoredPairs:
  """Reads a file of lines `score TAB first TAB second`."""
  rows = [
    (files.number(score, path, line), first, second)
    for line, (score, first, second) in enumerate(files.table(path, 3), 1)
  ]
  return ScoredPairs(name, codes, rows)


def _semeval_sets(
  folder: storage.Path, archive: storage.Path, year: str, official: Mapping[str, tuple[str, str]]
) -> list[ScoredPairs]:
  """Reads the official sets of a year that exist, in their official order.

  Args:
    folder: Folder with tables `STS12.MSRpar.tsv`.
    archive: Folder with the files of the archives.
    year: Two digits.
    official: Languages of the sets, by name, such as MSRpar.

  Raises:
    InputError: a file is broken.
  """
  sets = {}
  for path in storage.find(folder, f"STS{year}.*.tsv*"):
    name = files.plain_name(path).removesuffix(".tsv").removeprefix(f"STS{year}.")
    if name in official:
      sets[name] = scored_table(path, name, official[name])
  for path in storage.find(archive, "STS*.input.*.txt*"):
    name = files.plain_name(path).split(".input.")[1].removesuffix(".txt").removeprefix("surprise.")
    if name not in official:
      continue
    gold = files.plain_or_gzipped(path.with_name(files.plain_name(path).replace(".input.", ".gs.")))
    pairs = [line.split("\t") for line in text_files.read_lines(str(path))]
    scores = [line.strip() for line in text_files.read_lines(str(gold))]
    # Track 6 was published with 500 pairs; the first 250 have a score.
    if len(pairs) != len(scores) and not name.startswith("track6."):
      raise errors.InputError(
        f"{path} has {len(pairs)} lines and {gold} has {len(scores)}, but each pair must have a "
        "score line: copy both again"
      )
    rows = [
      (files.number(score, gold, line), pair[0], pair[1])
      for line, (pair, score) in enumerate(zip(pairs, scores, strict=False), 1)
      if score  # 2015 and 2016 have pairs without one.
    ]
    sets[name] = ScoredPairs(name, official[name], rows)
  return [sets[name] for name in official if name in sets]


def _read_sts(root: storage.Path) -> list[suite.Task]:
  """Returns one task per year.

  Its results are `pearson` and `spearman` of each set, by its name (STS12.MSRpar), and `spearman`
  of all sets of the year together except 2013's SMT, by the name of the year (STS12).
  """
  tasks = []
  for year, names in SETS.items():
    official = dict.fromkeys(names, ("en", "en"))
    sets = _semeval_sets(root / "sts", root / "sts" / year, year[2:], official)
    if sets:
      sets = [dataclasses.replace(x, name=f"STS{year[2:]}.{x.name}") for x in sets]
      sides = tuple(side for pairs in sets for side in pairs.sides)
      score = functools.partial(_score_year, f"STS{year[2:]}", sets)
      tasks.append(suite.Task(f"STS{year[2:]}", sides, score))
  return tasks


def _score_year(name: str, sets: Sequence[ScoredPairs], *vectors: np.ndarray) -> list[suite.Result]:
  of_set = list(zip(sets, vectors[::2], vectors[1::2], strict=True))
  results = [pairs.result(*both) for pairs, *both in of_set]
  of_set = [x for x in of_set if x[0].name != _NOT_IN_SPEARMAN]
  if of_set:
    cosine_N = np.concatenate([cosines(*both) for _, *both in of_set])
    score_N = np.array([row[0] for pairs, *_ in of_set for row in pairs.rows])
    metrics = {"spearman": correlations(cosine_N, score_N)["spearman"]}
    results.append(suite.Result(name, ("en",), metrics))
  return results


def _summarize_sts(
  results: Sequence[suite.Result], seen: suite.Seen, complete: bool
) -> suite.Numbers:
  """Returns both metrics of each year and their means over years (VMSST, Tables 1 and 9)."""
  by_name = {x.name: x.metrics for x in results}
  groups = {f"pearson {year}": names for year, names in _NAMES.items()}
  years = suite.group_means(results, "pearson", groups)
  for year, names in _NAMES.items():
    if whole := by_name.get(f"STS{year[2:]}"):
      complete = by_name.keys() >= {*names} - {_NOT_IN_SPEARMAN}
      years |= suite.mean(f"spearman {year}", [whole["spearman"]], complete=complete)
  summary: suite.Numbers = {}
  for metric in METRICS:
    values = [value for key, value in years.items() if key.startswith(metric)]
    complete = years.keys() >= {f"{metric} {year}" for year in SETS}
    summary |= suite.mean(metric, values, complete=complete)
  return summary | years


def _summarize_xlsts(
  results: Sequence[suite.Result], seen: suite.Seen, complete: bool
) -> suite.Numbers:
  """Returns means of both metrics: all (XL), same language (XL s.), different ones (XL d.)."""
  parts = {
    "": (*SAME_LANGUAGE, *DIFFERENT_LANGUAGES),
    " same language": SAME_LANGUAGE,
    " different languages": DIFFERENT_LANGUAGES,
  }
  summary: suite.Numbers = {}
  for metric in METRICS:
    groups = {metric + part: names for part, names in parts.items()}
    summary |= suite.group_means(results, metric, groups)
  return summary


def _read_stsb(root: storage.Path) -> list[suite.Task]:
  """Returns one task per language and split."""
  tasks: list[suite.Task] = []
  for path in files.files_in(root / "stsb", "stsb.*.tsv", "sts-dev.csv", "sts-test.csv"):
    start, code, *_ = files.plain_name(path).split(".")
    english = re.fullmatch("sts-(dev|test)", start)  # As published, with a genre for the split.
    code = "eng" if english else files.known_code(code, path)
    rows: dict[str, list[tuple[float, str, str]]] = {}
    for line, text in enumerate(text_files.read_lines(str(path)), 1):
      split, _, _, _, score, first, second, *_ = text.split("\t")
      pairs = rows.setdefault(english[1] if english else split, [])
      pairs.append((files.number(score, path, line), first, second))
    for split, count in SPLITS.items():
      if pairs := rows.get(split, []):
        part = "" if len(pairs) == count else f" ({len(pairs)} of {count} pairs)"
        name = f"{code}.{split}{part}"
        if any(task.name == name for task in tasks):
          raise errors.InputError(f"{path}: another file has {name} too; remove one")
        tasks.append(ScoredPairs(name, (code, code), pairs).task())
  return tasks


def _summarize_stsb(
  results: Sequence[suite.Result], seen: suite.Seen, complete: bool
) -> suite.Numbers:
  """Returns means of each split over all languages, and over seen and unseen ones."""
  summary: suite.Numbers = {}
  for split, metric in itertools.product(SPLITS, reversed(METRICS)):
    names = {f"{code}.{split}" for code in LANGUAGES}
    of_split = [x for x in results if x.name.split(" ")[0] in names]
    whole = names == {x.name for x in of_split}
    values = (x.metrics[metric] for x in of_split)
    summary |= suite.mean(f"{metric} {split}", values, complete=whole)
    summary |= suite.seen_means(f"{metric} {split}", of_split, metric, seen, complete=whole)
  return summary


STS = suite.Benchmark(
  name="sts",
  title="STS 2012-2016 (English)",
  files=suite.Files(
    ("sts",),
    "YEAR/STS.input.NAME.txt with YEAR/STS.gs.NAME.txt, or STSyy.NAME.tsv (score, sentences)",
  ),
  read=_read_sts,
  averages=_summarize_sts,
  sets=tuple(itertools.chain.from_iterable(_NAMES.values())),
)
XLSTS = suite.Benchmark(
  name="xlsts",
  title="STS 2017, within and across languages",
  files=suite.Files(
    ("xlsts",),
    "STS.input.trackN.xx-yy.txt with STS.gs.trackN.xx-yy.txt, or STS17.trackN.xx-yy.tsv (score, "
    "sentences)",
  ),
  # One task per track, whose result has its name (track1.ar-ar).
  read=lambda root: [
    x.task() for x in _semeval_sets(root / "xlsts", root / "xlsts", "17", _TRACKS)
  ],
  averages=_summarize_xlsts,
  sets=(*SAME_LANGUAGE, *DIFFERENT_LANGUAGES),
)
STSB = suite.Benchmark(
  name="stsb",
  title="STS Benchmark in 12 languages",
  files=suite.Files(
    ("stsb",),
    "stsb.LL.tsv or stsb.LL.ANY.tsv (split, file, year, number, score, sentences), plain or .gz, "
    "or English sts-dev.csv and sts-test.csv as published",
  ),
  read=_read_stsb,
  averages=_summarize_stsb,
  sets=tuple(f"{code}.{split}" for code in LANGUAGES for split in SPLITS),
)
