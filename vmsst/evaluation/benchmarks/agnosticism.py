"""Language-agnosticism of vectors: search errors of every ordered pair of N-way translations.

After Chen and Augustinova (2021), here "the paper". `BENCHMARK` and `FLORES` search among
translations into many languages (as its Tables 2 and 3), `WMT2012` on the news of its Table 1.
`TRANSLATIONS` also searches among several versions in one language and translations of translations
(its Tables 4 to 6). As in the paper, rows with a text of more than 50 tokens and repeated texts are
skipped (`agnosticism.usable_rows`), but not in `WMT2012`, where it scores all 3,003.
`agnosticism_results` documents the results.
"""

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from vmsst import errors, languages
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import agnosticism_results, averages, files, parallel
from vmsst.evaluation.metrics import agnosticism
from vmsst.files import storage

WMT2012_CODES = ("cs", "de", "en", "es", "fr")
WMT2012_SOURCE = (
  "`vmsst data download evaluation wmt2012`: part of "
  "https://data.statmt.org/wmt19/translation-task/dev.tgz"
)
TRANSLATIONS_SOURCE = "the paper's texts are not public: use your own translations"

_UPSTREAM = re.compile(r"newstest2019-(?:src|ref(?:-(?P<version>\d+))?)\.(?P<code>[^.]+)\.txt")


@dataclasses.dataclass(frozen=True)
class Version:
  """A file of texts that are translations of the texts of other files.

  Attributes:
    path: The file.
    steps: Codes of languages, with or without "_" and a version, from the original to this version;
      a single one for originals and translations of unknown source.
  """

  path: storage.Path
  steps: tuple[str, ...]

  @property
  def label(self) -> str:
    """The steps, joined by "+"; unique among the versions of a text."""
    return "+".join(self.steps)


def read_ntrex(root: storage.Path) -> list[suite.Task]:
  """Returns one task, with a side per file."""
  patterns = ("ntrex.*.txt", "newstest2019-src.*.txt", "newstest2019-ref*.*.txt")
  versions = []
  for path in files.files_in(parallel.ntrex_folder(root), *patterns, source=parallel.NTREX_SOURCE):
    if match := _UPSTREAM.fullmatch(files.plain_name(path)):
      code, number = match["code"], match["version"]
    else:
      code, number = files.plain_name(path).removeprefix("ntrex.").removesuffix(".txt"), None
    files.known_code(code, path)
    versions.append(Version(path, (f"{code}_{number}" if number else code,)))
  return [_task("", versions, parallel.NTREX_SOURCE)]


def read_flores(root: storage.Path) -> list[suite.Task]:
  """Returns one task, with a side per file."""
  folder = root / "flores200" / "devtest"
  versions = []
  for path in files.files_in(folder, "*.devtest", source=parallel.FLORES_SOURCE):
    code = files.known_code(files.plain_name(path).removesuffix(".devtest"), path)
    versions.append(Version(path, (code,)))
  return [_task("", versions, parallel.FLORES_SOURCE)]


def read_wmt2012(root: storage.Path) -> list[suite.Task]:
  """Returns one task of the five languages of the paper's Table 1; other files are ignored."""
  folder = root / "wmt2012"
  versions = [
    Version(files.plain_or_gzipped(folder / f"newstest2012.{code}", source=WMT2012_SOURCE), (code,))
    for code in WMT2012_CODES
  ]
  columns = files.aligned(*(version.path for version in versions))
  return [_scored("", versions, columns, np.arange(len(columns[0])))]


def read_translations(root: storage.Path) -> list[suite.Task]:
  """Returns one task per text, with a side per version."""
  texts: dict[str, list[Version]] = {}
  for path in files.files_in(root / "translations", "*.txt", source=TRANSLATIONS_SOURCE):
    name, _, way = files.plain_name(path).removesuffix(".txt").partition(".")
    steps = tuple(step.replace(".", "_") for step in way.split("+"))
    for step in steps:
      files.known_code(agnosticism_results.code_of(step), path)
    texts.setdefault(name, []).append(Version(path, steps))
  for name, versions in texts.items():
    there = {version.steps for version in versions}
    for version in versions:
      if len(version.steps) > 1 and version.steps[:-1] not in there:
        raise errors.InputError(
          f"{version.path}: its source {'+'.join(version.steps[:-1])} is missing: add that version "
          f"of {name}, or leave the steps before the last out of the name"
        )
  return [_task(name, versions, TRANSLATIONS_SOURCE) for name, versions in texts.items()]


def _task(text: str, versions: Sequence[Version], source: str) -> suite.Task:
  by_label: dict[str, Version] = {}
  for version in versions:
    other = by_label.setdefault(version.label, version)
    if other is not version:
      raise errors.InputError(f"{other.path} and {version.path} are the same version: remove one")
  if len(versions) < 2:
    raise errors.InputError(
      f"{versions[0].path}: add another file of the same texts to search; {source}"
    )
  columns = files.aligned(*(version.path for version in versions))
  row_K = agnosticism.usable_rows(columns)
  if not len(row_K):
    raise errors.InputError(
      f"{versions[0].path.parent}: every line has a text that is empty, repeated or longer than 50 "
      "words in one of the languages: check that all files belong to one set"
    )
  return _scored(text, versions, columns, row_K)


def _scored(
  text: str, versions: Sequence[Version], columns: Sequence[Sequence[str]], row_K: np.ndarray
) -> suite.Task:
  """Returns the task of some rows of a text, of which `columns` has the lines of each version."""
  sides = tuple(
    suite.Side(agnosticism_results.code_of(version.steps[-1]), [texts[row] for row in row_K])
    for version, texts in zip(versions, columns, strict=True)
  )
  score = functools.partial(agnosticism_results.score, text, [x.steps for x in versions], row_K)
  return suite.Task(text or "all languages", sides, score)


def _benchmark(
  name: str,
  title: str,
  folder: str,
  layout: str,
  source: str,
  read: Callable[[storage.Path], Sequence[suite.Task]],
  codes: Iterable[str],
) -> suite.Benchmark:
  missing = functools.partial(averages.missing_languages, tuple(codes))
  return suite.Benchmark(
    name=name,
    title=title,
    folders=(folder,),
    layout=layout,
    source=source,
    read=read,
    summarize=lambda results, seen: agnosticism_results.summarize(
      results, seen, complete=not missing(results)
    ),
    missing=missing,
  )


BENCHMARK = _benchmark(
  "agnosticism",
  "Language-agnosticism (NTREX, every ordered pair)",
  "ntrex",
  "ntrex.CODE.txt, or newstest2019-src.eng.txt and newstest2019-ref.CODE.txt, one text per line, "
  "plain or .gz",
  parallel.NTREX_SOURCE,
  read_ntrex,
  parallel.NTREX_CODES,
)

FLORES = _benchmark(
  "agnosticism_flores",
  "Language-agnosticism (FLORES, every ordered pair)",
  "flores200/devtest",
  "CODE.devtest, one text per line, plain or .gz",
  parallel.FLORES_SOURCE,
  read_flores,
  itertools.chain.from_iterable(each.flores for each in languages.LANGUAGES),
)

WMT2012 = suite.Benchmark(
  name="wmt2012",
  title="Language-agnosticism (WMT 2012, every ordered pair)",
  folders=("wmt2012",),
  layout=f"newstest2012.{{{','.join(WMT2012_CODES)}}}, one text per line, plain or .gz",
  source=WMT2012_SOURCE,
  read=read_wmt2012,
  summarize=agnosticism_results.summarize,
)

TRANSLATIONS = suite.Benchmark(
  name="translations",
  title="Several translations of one text, and translations of translations",
  folders=("translations",),
  layout=(
    "TEXT.CODE.txt or, for translations of translations, TEXT.eng+deu+zho.txt; versions in one "
    "language are TEXT.CODE.a.txt, TEXT.CODE.b.txt; one text per line, plain or .gz"
  ),
  source=TRANSLATIONS_SOURCE,
  read=read_translations,
  summarize=agnosticism_results.summarize,
)

NAMES = frozenset(each.name for each in (BENCHMARK, FLORES, WMT2012, TRANSLATIONS))
"""Names of the benchmarks whose results `agnosticism_results` documents."""
