"""Tatoeba, version 1 of LASER: up to 1,000 sentences in each of 112 languages, with English.

Accuracy is the share of sentences whose nearest one on the other side, by cosine, is the
translation. The VMSST paper (section 6.2), the EMS paper (section V-A) and the soft contrastive
paper (section 4.2) report the mean of both directions: `average`.
"""

from collections.abc import Sequence

import numpy as np

from vmsst import storage
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import averages, files
from vmsst.evaluation.metrics import retrieval

_CODES = (
  "afr amh ang ara arq arz ast awa aze bel ben ber bos bre bul cat cbk ceb ces cha cmn cor csb cym "
  "dan deu dsb dtp ell epo est eus fao fin fra fry gla gle glg gsw heb hin hrv hsb hun hye ido ile "
  "ina ind isl ita jav jpn kab kat kaz khm kor kur kzj lat lfn lit lvs mal mar max mhr mkd mon nds "
  "nld nno nob nov oci orv pam pes pms pol por ron rus slk slv spa sqi srp swe swg swh tam tat tel "
  "tgl tha tuk tur tzl uig ukr urd uzb vie war wuu xho yid yue zsm"
)
LANGUAGES = tuple(_CODES.split())
"""Codes of all 112 languages."""

GROUPS = {
  **averages.TATOEBA,
  "EMS unseen (54)": tuple(
    code for code in LANGUAGES if code not in averages.TATOEBA["EMS seen (58)"]
  ),
  # The pairs of the soft contrastive paper, averaged in its Table 3.
  "en-fr en-ja en-ko en-ru": ("fra", "jpn", "kor", "rus"),
}
"""Languages that papers average over, by name of the group."""


def read(root: storage.Path) -> list[suite.Task]:
  """Returns one task per language."""
  return [task(code, *paths) for code, paths in paths_in(root / "tatoeba").items()]


def paths_in(folder: storage.Path) -> dict[str, tuple[storage.Path, storage.Path]]:
  """Returns the files of foreign and English sentences, by the language code in their names.

  Raises:
    InputError: there are no files, or one side is missing.
  """
  paths = {}
  for path in files.files_in(folder, "tatoeba.*-eng.*"):
    stem = ".".join(path.name.split(".")[:2])
    code = files.known_code(stem.removeprefix("tatoeba.").removesuffix("-eng"), path)
    if code not in paths:
      sides = (path.with_name(f"{stem}.{side}") for side in (code, "eng"))
      foreign, english = (files.plain_or_gzipped(name_of_side) for name_of_side in sides)
      paths[code] = foreign, english
  return paths


def task(code: str, foreign: storage.Path, english: storage.Path) -> suite.Task:
  """Returns the task of one language, whose result is named by the code."""
  return retrieval_task(code, (code, "eng"), files.aligned(foreign, english))


def retrieval_task(
  name: str,
  codes: tuple[str, str],
  texts: Sequence[Sequence[str]],
  target: str = "English",
  *,
  several: bool = False,
) -> suite.Task:
  """Returns the task of retrieving translations in both directions, with one result.

  Args:
    name: Name of the task and of its result.
    codes: Codes of both languages.
    texts: The texts of both languages; rows are translations.
    target: What the second language is called in the names of metrics.
    several: Whether all translations of a text that occurs in several rows are right.
  """
  ways = {"forward": f"to {target}", "backward": f"from {target}", "average": "average"}

  def score(*vectors: np.ndarray) -> suite.Numbers:
    shares = retrieval.translation_accuracy(*vectors, texts=texts if several else None)
    return {ways[key]: 100 * share for key, share in shares.items()}

  return suite.pair_task(name, codes, texts, score)


def summarize(results: Sequence[suite.Result], seen: suite.Seen, complete: bool) -> suite.Numbers:
  """Returns means over all, seen and unseen languages, and `average` over whole `GROUPS`."""
  foreign = without_english(results)
  summary: suite.Numbers = {}
  for name in ("average", "to English", "from English"):
    summary |= averages.mean(name, (x.metrics[name] for x in results), complete=complete)
  summary |= averages.by_seen("average", foreign, "average", seen, complete=complete)
  groups = averages.of_groups(results, "average", GROUPS)
  return summary | {name: groups[name] for name in GROUPS if name in groups}


def without_english(results: Sequence[suite.Result]) -> list[suite.Result]:
  """Returns the results with their foreign language alone, which counts as seen or unseen."""
  return [suite.Result(x.name, x.languages[:1], x.metrics) for x in results]


BENCHMARK = suite.Benchmark(
  name="tatoeba",
  title="Tatoeba (LASER's test sets)",
  files=suite.Files(
    ("tatoeba",), "tatoeba.XXX-eng.XXX and tatoeba.XXX-eng.eng, aligned line by line, plain or .gz"
  ),
  read=read,
  averages=summarize,
  sets=LANGUAGES,
)
