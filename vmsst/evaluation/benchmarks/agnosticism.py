"""Language-agnosticism of vectors: search errors of every ordered pair of N-way translations.

After Chen and Avgustinova (2021), here "the paper". `BENCHMARK` and `FLORES` search among
translations into many languages (as its Tables 2 and 3), `WMT2012` on the news of its Table 1,
`TED` on TED talks as in its Table 2. `TRANSLATIONS` also searches among several versions in one
language and translations of translations (its Tables 4 to 6). As in the paper, rows with a text of
more than 50 tokens and repeated texts are skipped (`agnosticism.usable_rows`), but not in
`WMT2012`, where it scores all 3,003. `agnosticism_results` documents the results.
"""

import functools
from collections.abc import Sequence

import numpy as np

from vmsst import errors, storage
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import agnosticism_results, files, parallel
from vmsst.evaluation.metrics import agnosticism
from vmsst.io import text_files

WMT2012_CODES = ("cs", "de", "en", "es", "fr")
WMT2012_SOURCE = (
  "`vmsst data download evaluation wmt2012`: part of "
  "https://data.statmt.org/wmt19/translation-task/dev.tgz"
)
TED_CODES = (
  *("bg", "cs", "de", "en", "es", "fr", "hr", "it"),
  *("ko", "pl", "ro", "ru", "sr", "uk", "vi", "zh"),
)
TED_SENTENCES = 10_000
TED_SOURCE = "`vmsst data download evaluation ted`"
TRANSLATIONS_SOURCE = "the paper's texts are not public: use your own translations"


def read_ntrex(root: storage.Path) -> list[suite.Task]:
  """Returns one task, with a side per file."""
  patterns = ("ntrex.*.txt", "newstest2019-src.*.txt", "newstest2019-ref*.*.txt")
  versions = []
  for path in files.files_in(parallel.ntrex_folder(root), *patterns, source=parallel.NTREX_SOURCE):
    start, code = files.plain_name(path).removesuffix(".txt").split(".", 1)
    number = start.removeprefix("newstest2019-ref").removeprefix("-")
    files.known_code(code, path)
    versions.append((f"{code}_{number}" if number.isdecimal() else code, path))
  return [_task("", versions, parallel.NTREX_SOURCE)]


def read_flores(root: storage.Path) -> list[suite.Task]:
  """Returns one task, with a side per file."""
  versions = list(parallel.flores_files(root, "devtest").items())
  return [_task("", versions, parallel.FLORES_SOURCE)]


def read_wmt2012(root: storage.Path) -> list[suite.Task]:
  """Returns one task of the five languages of the paper's Table 1; other files are ignored."""
  paths = [
    files.plain_or_gzipped(root / "wmt2012" / f"newstest2012.{code}", source=WMT2012_SOURCE)
    for code in WMT2012_CODES
  ]
  columns = files.aligned(*paths)
  return [_scored("", WMT2012_CODES, columns, np.arange(len(columns[0])))]


def read_ted(root: storage.Path) -> list[suite.Task]:
  """Returns one task of the 16 languages that the paper's Table 2 lists.

  Its sentences are the first 10,000 of the training file with a usable text in each language. Lines
  that lack a column, and those marked as not translated ("__NULL__"), are skipped.
  """
  path = files.plain_or_gzipped(root / "ted" / "all_talks_train.tsv", source=TED_SOURCE)
  lines = (line.split("\t") for line in text_files.read_lines(str(path)))
  header = next(lines, [])
  names = ["zh-cn" if code == "zh" else code for code in TED_CODES]
  if lacking := [name for name in names if name not in header]:
    raise errors.InputError(f"{path}:1: no column {', '.join(lacking)}; {TED_SOURCE}")
  places = [header.index(name) for name in names]
  rows = ([line[place] for place in places] for line in lines if len(line) == len(header))
  complete = (row for row in rows if not any("NULL" in text for text in row))
  columns = [list(column) for column in zip(*complete, strict=True)]
  row_K = _usable_rows(path, columns)[:TED_SENTENCES]
  return [_scored("", TED_CODES, columns, row_K)]


def read_translations(root: storage.Path) -> list[suite.Task]:
  """Returns one task per text, with a side per version."""
  texts: dict[str, list[tuple[str, storage.Path]]] = {}
  for path in files.files_in(root / "translations", "*.txt", source=TRANSLATIONS_SOURCE):
    name, _, label = files.plain_name(path).removesuffix(".txt").partition(".")
    label = label.replace(".", "_")
    for step in label.split("+"):
      files.known_code(agnosticism_results.language_code(step), path)
    texts.setdefault(name, []).append((label, path))
  for name, versions in texts.items():
    there = {label for label, _ in versions}
    for label, path in versions:
      source = label.rpartition("+")[0]
      if source and source not in there:
        raise errors.InputError(
          f"{path}: its source {source} is missing: add that version of {name}, or leave the steps "
          "before the last out of the name"
        )
  return [_task(name, versions, TRANSLATIONS_SOURCE) for name, versions in texts.items()]


def _task(text: str, versions: Sequence[tuple[str, storage.Path]], source: str) -> suite.Task:
  """Returns the task of a text, given its versions by label and file."""
  paths: dict[str, storage.Path] = {}
  for label, path in versions:
    if label in paths:
      raise errors.InputError(f"{paths[label]} and {path} are the same version: remove one")
    paths[label] = path
  if len(paths) < 2:
    raise errors.InputError(f"{path}: add another file of the same texts to search; {source}")
  columns = files.aligned(*paths.values())
  return _scored(text, tuple(paths), columns, _usable_rows(path.parent, columns))


def _usable_rows(path: storage.Path, columns: Sequence[Sequence[str]]) -> np.ndarray:
  """Returns `agnosticism.usable_rows`; raises InputError if there is none."""
  row_K = agnosticism.usable_rows(columns) if columns else np.array([], np.int64)
  if not len(row_K):
    raise errors.InputError(
      f"{path}: every line has a text that is empty, repeated or longer than 50 words in one of "
      "the languages: check that all texts belong to one set"
    )
  return row_K


def _scored(
  text: str, labels: Sequence[str], columns: Sequence[Sequence[str]], row_K: np.ndarray
) -> suite.Task:
  """Returns the task of some rows of a text, of which `columns` has the lines of each version."""
  steps = [tuple(label.split("+")) for label in labels]
  sides = tuple(
    suite.Side(agnosticism_results.language_code(way[-1]), [texts[row] for row in row_K])
    for way, texts in zip(steps, columns, strict=True)
  )
  score = functools.partial(agnosticism_results.score, text, steps, row_K)
  return suite.Task(text or "all languages", sides, score)


BENCHMARK = suite.Benchmark(
  name="agnosticism",
  title="Language-agnosticism (NTREX, every ordered pair)",
  files=suite.Files(
    ("ntrex",),
    "ntrex.CODE.txt, or newstest2019-src.eng.txt and newstest2019-ref.CODE.txt, one text per line, "
    "plain or .gz",
    parallel.NTREX_SOURCE,
  ),
  read=read_ntrex,
  averages=agnosticism_results.summarize,
  sets=parallel.NTREX_LANGUAGES,
)

FLORES = suite.Benchmark(
  name="agnosticism_flores",
  title="Language-agnosticism (FLORES, every ordered pair)",
  files=suite.Files(
    ("flores200/devtest",), "CODE.devtest, one text per line, plain or .gz", parallel.FLORES_SOURCE
  ),
  read=read_flores,
  averages=agnosticism_results.summarize,
  sets=parallel.FLORES_LANGUAGES,
)

WMT2012 = suite.Benchmark(
  name="wmt2012",
  title="Language-agnosticism (WMT 2012, every ordered pair)",
  files=suite.Files(
    ("wmt2012",),
    f"newstest2012.{{{','.join(WMT2012_CODES)}}}, one text per line, plain or .gz",
    WMT2012_SOURCE,
  ),
  read=read_wmt2012,
  averages=agnosticism_results.summarize,
)

TED = suite.Benchmark(
  name="agnosticism_ted",
  title="Language-agnosticism (TED talks, every ordered pair)",
  files=suite.Files(
    ("ted",), "all_talks_train.tsv with a column per language, plain or .gz", TED_SOURCE
  ),
  read=read_ted,
  averages=agnosticism_results.summarize,
)

TRANSLATIONS = suite.Benchmark(
  name="translations",
  title="Several translations of one text, and translations of translations",
  files=suite.Files(
    ("translations",),
    "TEXT.CODE.txt or, for translations of translations, TEXT.eng+deu+zho.txt; versions in one "
    "language are TEXT.CODE.a.txt, TEXT.CODE.b.txt; one text per line, plain or .gz",
    TRANSLATIONS_SOURCE,
  ),
  read=read_translations,
  averages=agnosticism_results.summarize,
)

NAMES = frozenset(each.name for each in (BENCHMARK, FLORES, WMT2012, TED, TRANSLATIONS))
"""Names of the benchmarks whose results `agnosticism_results` documents."""
