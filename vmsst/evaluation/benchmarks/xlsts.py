"""Semantic textual similarity within and across languages: SemEval-2017 task 1.

The VMSST paper (Tables 1 and 10) averages over ar-ar, ar-en, es-es, es-en and tr-en. Here es-en is
track 4a, which has the same English pairs as the other four; track 4b (es-en, news and bad
translations) and track 5 (en-en) have results but are not part of averages.
"""

import itertools
import re
from collections.abc import Iterator, Sequence

from vmsst import errors, storage
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import averages, files, similarity

SAME_LANGUAGE = ("track1.ar-ar", "track3.es-es")
DIFFERENT_LANGUAGES = ("track2.ar-en", "track4a.es-en", "track6.tr-en")
_ALL = (*SAME_LANGUAGE, *DIFFERENT_LANGUAGES)
_ENGLISH_FIRST = ("track2", "track4b", "track6")  # In the files, unlike in their names.
_SOURCE = (
  "download sts2017.eval.v1.1.zip and sts2017.gs.zip of SemEval-2017 task 1 "
  "(https://alt.qcri.org/semeval2017/task1), also in https://github.com/eduardofv/sts_eval"
)


def read(root: storage.Path) -> list[suite.Task]:
  """Returns one task per track, whose result has its name (track1.ar-ar)."""
  folder = root / "xlsts"
  by_name = similarity.by_name(itertools.chain(_tables(folder), _originals(folder)))
  if not by_name:
    raise errors.InputError(f"{folder} has no {BENCHMARK.layout}; {_SOURCE}")
  return [similarity.task(by_name[name], _languages(by_name[name])) for name in sorted(by_name)]


def _tables(folder: storage.Path) -> Iterator[similarity.ScoredPairs]:
  for path in storage.find(folder, "STS17.track*.tsv*"):
    name = files.plain_name(path).removeprefix("STS17.").removesuffix(".tsv")
    yield similarity.scored_table(path, name)


def _originals(folder: storage.Path) -> Iterator[similarity.ScoredPairs]:
  # They may be in the folder of another archive. Of several the first counts, plain before gzipped.
  ends = ("", ".gz")
  golds = [path for end in ends for path in storage.find(folder, f"**/STS.gs.track*.txt{end}")]
  gold_by_name = {files.plain_name(path): path for path in reversed(golds)}
  for path in storage.find(folder, "**/STS.input.track*.txt*"):
    name = files.plain_name(path).removeprefix("STS.input.").removesuffix(".txt")
    more_pairs = name.split(".")[0] == "track6"  # Of 500 published, the first 250 have a score.
    gold_name = similarity.gold_name(path)
    gold = gold_by_name.get(gold_name) or files.plain_or_gzipped(
      path.with_name(gold_name), source=_SOURCE
    )
    yield similarity.semeval(path, gold, name, more_pairs=more_pairs)


def _languages(pairs: similarity.ScoredPairs) -> list[str]:
  parts = re.fullmatch(r"(track\w+)\.(\w+)-(\w+)", pairs.name)
  if parts is None:
    raise errors.InputError(f"{pairs.path}: {pairs.name} is not a track and two languages")
  track, *codes = parts.groups()
  codes = [files.known_code(code, pairs.path) for code in codes]
  return codes[::-1] if track in _ENGLISH_FIRST else codes


def summarize(results: Sequence[suite.Result], seen: suite.Seen, complete: bool) -> suite.Numbers:
  """Returns means of both metrics: all (XL), same language (XL s.), different ones (XL d.)."""
  parts = {
    "": _ALL,
    " same language": SAME_LANGUAGE,
    " different languages": DIFFERENT_LANGUAGES,
  }
  summary: suite.Numbers = {}
  for metric in similarity.METRICS:
    groups = {metric + part: names for part, names in parts.items()}
    summary |= averages.of_groups(results, metric, groups)
  return summary


BENCHMARK = suite.Benchmark(
  name="xlsts",
  title="STS 2017, within and across languages",
  files=suite.Files(
    ("xlsts",),
    "STS.input.trackN.xx-yy.txt with STS.gs.trackN.xx-yy.txt, at any depth, or "
    "STS17.trackN.xx-yy.tsv (score, sentences)",
    _SOURCE,
  ),
  read=read,
  averages=summarize,
  sets=_ALL,
)
