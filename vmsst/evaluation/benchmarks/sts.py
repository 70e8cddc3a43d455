"""Semantic textual similarity: correlation of cosines with human scores for sentence pairs.

* `STS`: the English test sets from SemEval 2012 to 2016. As in the VMSST paper (section 6.2 and
  appendix B.1), Pearson's correlation is averaged over the sets in a year, then over years.
  Spearman's correlation is computed over all pairs in a year, except the pairs in the 2013 set SMT.
* `XLSTS`: SemEval-2017 task 1, with monolingual and cross-lingual pairs. As in the VMSST paper
  (Tables 1 and 10), averages are over ar-ar, ar-en, es-es, es-en and tr-en. The es-en pairs are
  from track 4a, which uses the same English sentences as the tracks of the other four language
  pairs. Track 4b (es-en, news and bad translations) and track 5 (en-en) have results, but are
  excluded from the averages.
* `STSB`: the STS Benchmark in English and its translations. Every test and dev split has a result,
  such as `de.test`. If a split lacks pairs, the name of its result shows how many pairs are
  present, as in "de.test (595 of 1379 pairs)".

If sets or pairs are missing, the names of the affected averages end in " (incomplete)".
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
"""The official test sets for each year."""

_NAMES = {year: [f"STS{year[2:]}.{name}" for name in names] for year, names in SETS.items()}
_NOT_IN_SPEARMAN = "STS13.SMT"

SAME_LANGUAGE = ("track1.ar-ar", "track3.es-es")
DIFFERENT_LANGUAGES = ("track2.ar-en", "track4a.es-en", "track6.tr-en")
# Languages of the first and the second sentences. The track names do not show the order.
_TRACKS = {
  "track1.ar-ar": ("ar", "ar"),
  "track2.ar-en": ("en", "ar"),
  "track3.es-es": ("es", "es"),
  "track4a.es-en": ("es", "en"),
  "track4b.es-en": ("en", "es"),
  "track5.en-en": ("en", "en"),
  "track6.tr-en": ("en", "tr"),
}

LANGUAGES = ("eng", "de", "es", "fr", "it", "ja", "ko", "nl", "pl", "pt", "ru", "zh")
SPLITS = {"test": 1379, "dev": 1500}  # number of pairs in each published split of the STS Benchmark


@dataclasses.dataclass(frozen=True)
class ScoredPairs:
  """A set of sentence pairs with human scores.

  Attributes:
    name: Name of the set.
    languages: Language codes of the first and the second sentences.
    rows: Score, first sentence and second sentence of each pair.
  """

  name: str
  languages: tuple[str, str]
  rows: Sequence[tuple[float, str, str]]

  @property
  def text_sets(self) -> tuple[suite.TextSet, suite.TextSet]:
    """Text sets with the first and the second sentences."""
    first, second = self.languages
    return (
      suite.TextSet(first, [row[1] for row in self.rows]),
      suite.TextSet(second, [row[2] for row in self.rows]),
    )

  def result(self, first_ND: np.ndarray, second_ND: np.ndarray) -> suite.Result:
    """Returns a result with both correlations, given the sentence vectors."""
    score_N = np.array([row[0] for row in self.rows])
    metrics = correlations(cosines(first_ND, second_ND), score_N)
    return suite.Result(self.name, self.languages, metrics)

  def task(self) -> suite.Task:
    """Returns a task for this set, with one result."""
    return suite.Task(self.name, self.text_sets, lambda *vectors: [self.result(*vectors)])


def cosines(first_ND: np.ndarray, second_ND: np.ndarray) -> np.ndarray:
  """Returns the cosines between corresponding rows, float64 [N]; 0 if a row is all zeros."""
  first_ND, second_ND = exact_search.unit_rows(first_ND), exact_search.unit_rows(second_ND)
  return np.einsum("nd,nd->n", first_ND, second_ND, dtype=np.float64)


def correlations(cosine_N: np.ndarray, score_N: np.ndarray) -> suite.Numbers:
  """Returns `pearson` and `spearman`, times 100.

  For `spearman`, cosines are rounded to 6 decimals before ranking, so that equal cosines get the
  same rank despite rounding errors.

  Raises:
    ValueError: If all cosines or all scores are equal.
  """
  from scipy import stats  # SciPy is slow to import, so it is imported here.

  rounded_N = np.round(cosine_N, 6)
  # Without this check, the correlation of constant cosines would be noise from rounding errors.
  if np.ptp(rounded_N) == 0 or np.ptp(score_N) == 0:
    raise ValueError(f"all {len(score_N)} cosines or scores are equal; no correlation is defined")
  pearson = stats.pearsonr(cosine_N, score_N).statistic
  spearman = stats.pearsonr(stats.rankdata(rounded_N), stats.rankdata(score_N)).statistic
  return {"pearson": 100 * float(pearson), "spearman": 100 * float(spearman)}


def scored_table(path: storage.Path, name: str, codes: tuple[str, str]) -> ScoredPairs:
  """Reads pairs from lines `score TAB first TAB second`."""
  rows = [
    (files.number(score, path, line), first, second)
    for line, (score, first, second) in enumerate(files.table(path, 3), 1)
  ]
  return ScoredPairs(name, codes, rows)


def _semeval_sets(
  folder: storage.Path, archive: storage.Path, year: str, official: Mapping[str, tuple[str, str]]
) -> list[ScoredPairs]:
  """Reads the official sets for a year, in official order; sets without files are skipped.

  Args:
    folder: Folder with tables such as `STS12.MSRpar.tsv`.
    archive: Folder with the files from SemEval's archives.
    year: Last two digits of the year.
    official: Language codes of the official sets, by name (such as MSRpar).

  Raises:
    InputError: If a file is malformed.
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
    # Track 6 was published with 500 pairs; only the first 250 have scores.
    if len(pairs) != len(scores) and not name.startswith("track6."):
      raise errors.InputError(
        f"{path} has {len(pairs)} lines and {gold} has {len(scores)}, but each pair needs a score "
        "line; copy both files again"
      )
    rows = [
      (files.number(score, gold, line), pair[0], pair[1])
      for line, (pair, score) in enumerate(zip(pairs, scores, strict=False), 1)
      if score  # Some pairs from 2015 and 2016 have no score.
    ]
    sets[name] = ScoredPairs(name, official[name], rows)
  return [sets[name] for name in official if name in sets]


def _read_sts(root: storage.Path) -> list[suite.Task]:
  """Returns one task per year.

  Each set has a result such as STS12.MSRpar, with the metrics `pearson` and `spearman`. Each year
  has a result such as STS12, with `spearman` over all pairs except those in the 2013 set SMT.
  """
  tasks = []
  for year, names in SETS.items():
    official = dict.fromkeys(names, ("en", "en"))
    sets = _semeval_sets(root / "sts", root / "sts" / year, year[2:], official)
    if sets:
      sets = [dataclasses.replace(x, name=f"STS{year[2:]}.{x.name}") for x in sets]
      text_sets = tuple(x for pairs in sets for x in pairs.text_sets)
      score = functools.partial(_score_year, f"STS{year[2:]}", sets)
      tasks.append(suite.Task(f"STS{year[2:]}", text_sets, score))
  return tasks


def _score_year(name: str, sets: Sequence[ScoredPairs], *vectors: np.ndarray) -> list[suite.Result]:
  scored = list(zip(sets, vectors[::2], vectors[1::2], strict=True))
  results = [pairs.result(*arrays) for pairs, *arrays in scored]
  scored = [x for x in scored if x[0].name != _NOT_IN_SPEARMAN]
  if scored:
    cosine_N = np.concatenate([cosines(*arrays) for _, *arrays in scored])
    score_N = np.array([row[0] for pairs, *_ in scored for row in pairs.rows])
    metrics = {"spearman": correlations(cosine_N, score_N)["spearman"]}
    results.append(suite.Result(name, ("en",), metrics))
  return results


def _summarize_sts(
  results: Sequence[suite.Result], seen: suite.Seen, complete: bool
) -> suite.Numbers:
  """Returns both metrics per year, and their means over years (VMSST paper, Tables 1 and 9)."""
  by_name = {x.name: x.metrics for x in results}
  groups = {f"pearson {year}": names for year, names in _NAMES.items()}
  years = suite.group_means(results, "pearson", groups)
  for year, names in _NAMES.items():
    if metrics := by_name.get(f"STS{year[2:]}"):
      complete = by_name.keys() >= {*names} - {_NOT_IN_SPEARMAN}
      years |= suite.mean(f"spearman {year}", [metrics["spearman"]], complete=complete)
  summary: suite.Numbers = {}
  for metric in METRICS:
    values = [value for key, value in years.items() if key.startswith(metric)]
    complete = years.keys() >= {f"{metric} {year}" for year in SETS}
    summary |= suite.mean(metric, values, complete=complete)
  return summary | years


def _summarize_xlsts(
  results: Sequence[suite.Result], seen: suite.Seen, complete: bool
) -> suite.Numbers:
  """Returns means of both metrics over all, monolingual and cross-lingual tracks.

  The VMSST paper calls the means over all tracks XL, over monolingual tracks XL s., and over
  cross-lingual tracks XL d.
  """
  summary: suite.Numbers = {}
  for metric in METRICS:
    groups = {
      metric: (*SAME_LANGUAGE, *DIFFERENT_LANGUAGES),
      f"{metric} same language": SAME_LANGUAGE,
      f"{metric} different languages": DIFFERENT_LANGUAGES,
    }
    summary |= suite.group_means(results, metric, groups)
  return summary


def _read_stsb(root: storage.Path) -> list[suite.Task]:
  """Returns one task per language and split."""
  tasks: list[suite.Task] = []
  for path in files.files_in(root / "stsb", "stsb.*.tsv", "sts-dev.csv", "sts-test.csv"):
    start, code, *_ = files.plain_name(path).split(".")
    # The published English files have the split in their name and a genre in the split column.
    english = re.fullmatch("sts-(dev|test)", start)
    code = "eng" if english else files.known_code(code, path)
    rows: dict[str, list[tuple[float, str, str]]] = {}
    for line, text in enumerate(text_files.read_lines(str(path)), 1):
      split, _, _, _, score, first, second, *_ = text.split("\t")
      pairs = rows.setdefault(english[1] if english else split, [])
      pairs.append((files.number(score, path, line), first, second))
    for split, count in SPLITS.items():
      if pairs := rows.get(split, []):
        note = "" if len(pairs) == count else f" ({len(pairs)} of {count} pairs)"
        name = f"{code}.{split}{note}"
        if any(task.name == name for task in tasks):
          raise errors.InputError(f"{path}: another file also contains {name}; remove one file")
        tasks.append(ScoredPairs(name, (code, code), pairs).task())
  return tasks


def _summarize_stsb(
  results: Sequence[suite.Result], seen: suite.Seen, complete: bool
) -> suite.Numbers:
  """Returns means for each split: over all languages, seen languages, and unseen languages."""
  summary: suite.Numbers = {}
  for split, metric in itertools.product(SPLITS, reversed(METRICS)):
    names = {f"{code}.{split}" for code in LANGUAGES}
    split_results = [x for x in results if x.name.split(" ")[0] in names]
    # If a split lacks pairs, the name of its result ends in a note and is therefore not in `names`.
    complete = names == {x.name for x in split_results}
    values = (x.metrics[metric] for x in split_results)
    summary |= suite.mean(f"{metric} {split}", values, complete=complete)
    summary |= suite.seen_means(f"{metric} {split}", split_results, metric, seen, complete=complete)
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
  title="STS 2017, monolingual and cross-lingual",
  files=suite.Files(
    ("xlsts",),
    "STS.input.trackN.xx-yy.txt with STS.gs.trackN.xx-yy.txt, or STS17.trackN.xx-yy.tsv (score, "
    "sentences)",
  ),
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
