"""The STS Benchmark in English and translations, and the Japanese JSTS.

Each split of each language gives a result, `eng.dev` or `de.test`. The name of a split with fewer
pairs than published says so, as in "de.test (595 of 1379 pairs)"; averages over such splits are
" (incomplete)". Training pairs are not read. JSTS is not part of averages.
"""

import itertools
from collections.abc import Iterator, Sequence

from vmsst import errors, storage
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import averages, files, similarity
from vmsst.io import text_files

ENGLISH = "eng"
LANGUAGES = (ENGLISH, "de", "es", "fr", "it", "ja", "ko", "nl", "pl", "pt", "ru", "zh")
SPLITS = {"test": 1379, "dev": 1500}
"""Published numbers of pairs."""

_JSTS = "JSTS.ja.valid"
_SOURCE = (
  "English is http://ixa2.si.ehu.es/stswiki/images/4/48/Stsbenchmark.tar.gz, Korean is KorSTS of "
  "https://github.com/kakaobrain/kor-nlu-datasets, other languages are "
  "https://github.com/PhilipMay/stsb-multi-mt, JSTS is https://github.com/yahoojapan/JGLUE"
)


def read(root: storage.Path) -> list[suite.Task]:
  """Returns one task per language and split."""
  sets = list(_tables(root / "stsb"))
  jsts = root / "sts" / f"{_JSTS}.tsv"
  if storage.is_file(jsts):
    sets.append(("ja", similarity.scored_table(jsts, _JSTS)))
  codes = {pairs.name: code for code, pairs in sets}
  by_name = similarity.by_name(pairs for _, pairs in sets)
  return [similarity.task(pairs, (codes[name], codes[name])) for name, pairs in by_name.items()]


def _tables(folder: storage.Path) -> Iterator[tuple[str, similarity.ScoredPairs]]:
  for path in files.files_in(folder, "stsb.*.tsv", "sts-dev.csv", "sts-test.csv", source=_SOURCE):
    name = files.plain_name(path)
    rows: dict[str, list[tuple[float, str, str]]] = {split: [] for split in SPLITS}
    if name.startswith("sts-"):
      code = ENGLISH
      whole = rows[name.removeprefix("sts-").removesuffix(".csv")]
      for line, text in enumerate(text_files.read_lines(str(path)), 1):
        whole.append(_pair(text.split("\t"), path, line))
    else:
      code = files.known_code(name.split(".")[1], path)
      for line, (split, *row) in enumerate(files.table(path), 1):
        if split in rows:
          rows[split].append(_pair(["", *row], path, line))
        elif split != "train":
          raise errors.InputError(f"{path}:{line}: {split!r} is not train, dev or test")
    if not any(rows.values()):
      raise errors.InputError(f"{path}: no pairs of dev or test")
    for split, pairs in rows.items():
      if pairs:
        complete = SPLITS[split]
        part = "" if len(pairs) == complete else f" ({len(pairs)} of {complete} pairs)"
        yield code, similarity.ScoredPairs(f"{code}.{split}{part}", path, pairs)


def _pair(row: list[str], path: storage.Path, line: int) -> tuple[float, str, str]:
  if len(row) < 7:
    raise errors.InputError(
      f"{path}:{line}: {len(row)} fields; expected a genre or split, a file, a year, a number, a "
      "score and two sentences"
    )
  return files.number(row[4], path, line), row[5], row[6]


def summarize(results: Sequence[suite.Result], seen: suite.Seen, complete: bool) -> suite.Numbers:
  """Returns means of each split over all languages, English, others, and seen and unseen ones."""
  summary: suite.Numbers = {}
  for split, metric in itertools.product(SPLITS, reversed(similarity.METRICS)):
    by_language = {
      code: result
      for result in results
      for code in LANGUAGES
      if result.name.split(" ")[0] == f"{code}.{split}"
    }
    whole = {code for code, result in by_language.items() if result.name == f"{code}.{split}"}
    for part, codes in (
      ("", LANGUAGES),
      (" English", LANGUAGES[:1]),
      (" other languages", LANGUAGES[1:]),
    ):
      values = [by_language[code].metrics[metric] for code in codes if code in by_language]
      summary |= averages.mean(f"{metric} {split}{part}", values, complete=whole >= {*codes})
    there = list(by_language.values())
    summary |= averages.by_seen(
      f"{metric} {split}", there, metric, seen, complete=whole >= {*LANGUAGES}
    )
  return summary


BENCHMARK = suite.Benchmark(
  name="stsb",
  title="STS Benchmark in 12 languages, and JSTS",
  files=suite.Files(
    ("stsb",),
    "stsb.LL.tsv or stsb.LL.ANY.tsv (split, file, year, number, score, sentences), plain or .gz, "
    "or English sts-dev.csv and sts-test.csv as published; ../sts/JSTS.ja.valid.tsv",
    _SOURCE,
    more=(f"sts/{_JSTS}.tsv",),
  ),
  read=read,
  averages=summarize,
  sets=(*(f"{code}.{split}" for code in LANGUAGES for split in SPLITS), _JSTS),
)
