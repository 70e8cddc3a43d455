"""Retrieval of translations: Tatoeba, FLORES-200, NTREX-128, and ParaCrawl among many sentences.

* `TATOEBA`, version 1 of LASER: up to 1,000 sentences in each of 112 languages, with English.
  Accuracy is the share of sentences whose nearest one on the other side, by cosine, is the
  translation. The VMSST paper (section 6.2), the EMS paper (section V-A) and the soft contrastive
  paper (section 4.2) report the mean of both directions: `average`.
* `FLORES` and `NTREX`, N-way translations, with results of each ordered pair of languages, with
  queries in the first; texts of one language (its regional variants) are not compared:

  * `accuracy`: share of sentences whose nearest one, by cosine, is the translation, P@1 (EMS paper,
    section V-B); among equally near ones the first counts.
  * `hubness`: skewness over the sentences of the second language of how many queries have them
    among their 4 nearest.
  * `xsim`: error rate by best ratio margin among the k = 4 nearest (soft contrastive paper, section
    4.2); a sentence identical to the translation is not an error.
  * `xsim++`: the same, into English only, among original and changed English sentences.

* `PARACRAWL`, as in the EMS paper (section V-D, Table X): P@1 of 2,000 queries among 200,000
  sentences of the other language, the share of queries whose translation has the best ratio margin
  among the k = 4 nearest sentences. The paper's samples are not published; take the first lines of
  shuffled ParaCrawl 5 files.
"""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from vmsst import errors, languages, storage
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import files
from vmsst.evaluation.metrics import retrieval

_TATOEBA_CODES = (
  "afr amh ang ara arq arz ast awa aze bel ben ber bos bre bul cat cbk ceb ces cha cmn cor csb cym "
  "dan deu dsb dtp ell epo est eus fao fin fra fry gla gle glg gsw heb hin hrv hsb hun hye ido ile "
  "ina ind isl ita jav jpn kab kat kaz khm kor kur kzj lat lfn lit lvs mal mar max mhr mkd mon nds "
  "nld nno nob nov oci orv pam pes pms pol por ron rus slk slv spa sqi srp swe swg swh tam tat tel "
  "tgl tha tuk tur tzl uig ukr urd uzb vie war wuu xho yid yue zsm"
)
TATOEBA_LANGUAGES = tuple(_TATOEBA_CODES.split())
"""Codes of all 112 languages."""


def _codes(text: str) -> tuple[str, ...]:
  return tuple(text.split())


_EMS_SEEN = _codes(
  "afr ara ben bul cat ces cmn dan deu ell epo est eus fin fra glg heb hin hrv hun hye ind ita jav "
  "jpn kat kaz kor kur lit lvs mal mar max mkd mon nld nob pes pol por ron rus slk slv spa sqi srp "
  "swe swh tam tel tgl tha tur ukr urd vie"
)
_FEW = _codes("afr hin hye jav kat kaz kur mar mon nob swh tam tel tgl urd")


def _without(codes: tuple[str, ...]) -> tuple[str, ...]:
  return tuple(code for code in _EMS_SEEN if code not in codes)


TATOEBA_GROUPS: dict[str, tuple[str, ...]] = {
  "EMS seen (58)": _EMS_SEEN,
  "mUSE (15)": _codes("ara cmn deu fra ita jpn kor nld pol por rus spa tha tur"),
  "XTREME (38)": _without(
    _codes("cat ces dan epo glg hrv hye kur lit lvs mkd mon nob pol ron slk slv sqi srp swe ukr")
  ),
  "SBERT (48)": _without(_codes("afr ben epo eus jav kaz kur mal max swh tam tel tgl")),
  "<LASER (43)": _without(_codes("cat epo glg hye jav kaz kor mal mar mon pes spa tam tgl ukr")),
  ">300k (42)": _without((*_FEW, "pes")),
  "<300k (11)": _codes("afr hin hye kat kaz kur mar swh tam tel tgl"),
  ">300k (43)": _without(_FEW),
  "<300k (15)": _FEW,
  "EMS unseen (54)": tuple(code for code in TATOEBA_LANGUAGES if code not in _EMS_SEEN),
  # The pairs of the soft contrastive paper, averaged in its Table 3.
  "en-fr en-ja en-ko en-ru": ("fra", "jpn", "kor", "rus"),
}
"""Languages that papers average over, by name of the group."""


def tatoeba_files(folder: storage.Path) -> dict[str, tuple[storage.Path, storage.Path]]:
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


def tatoeba_task(code: str, foreign: storage.Path, english: storage.Path) -> suite.Task:
  """Returns the task of one language, whose result is named by the code."""
  return retrieval_task(code, (code, "eng"), files.read_aligned(foreign, english))


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


def _summarize_tatoeba(
  results: Sequence[suite.Result], seen: suite.Seen, complete: bool
) -> suite.Numbers:
  """Returns means over all, seen and unseen languages, and over whole `TATOEBA_GROUPS`."""
  # The foreign language alone counts as seen or unseen.
  foreign = [suite.Result(x.name, x.languages[:1], x.metrics) for x in results]
  summary: suite.Numbers = {}
  for name in ("average", "to English", "from English"):
    summary |= suite.mean(name, (x.metrics[name] for x in results), complete=complete)
  summary |= suite.seen_means("average", foreign, "average", seen, complete=complete)
  groups = suite.group_means(results, "average", TATOEBA_GROUPS)
  return summary | {name: groups[name] for name in TATOEBA_GROUPS if name in groups}


TATOEBA = suite.Benchmark(
  name="tatoeba",
  title="Tatoeba (LASER's test sets)",
  files=suite.Files(
    ("tatoeba",), "tatoeba.XXX-eng.XXX and tatoeba.XXX-eng.eng, aligned line by line, plain or .gz"
  ),
  read=lambda root: [tatoeba_task(x, *y) for x, y in tatoeba_files(root / "tatoeba").items()],
  averages=_summarize_tatoeba,
  sets=TATOEBA_LANGUAGES,
)

# --------------------------------------------------------------------------------------------
# N-way translations

PARALLEL_METRICS = ("accuracy", "xsim", "hubness")
NTREX_LANGUAGES = [each for each in languages.LANGUAGES if each.ntrex]
FLORES_LANGUAGES = [each for each in languages.LANGUAGES if each.flores and each.iso639_3 != "nqo"]
"""The languages of FLORES-200; FLORES+ added N'Ko."""
FLORES_GROUPS: dict[str, dict[str, tuple[str, ...]]] = {
  "accuracy": {
    "mUSE (182)": _codes("ar de es fr it ja ko nl pl pt ru th tr zh"),
    "<300k (240)": _codes("af gu hi hy jv ka kk mr my nb sw ta te tl ur yo"),
  },
  "xsim": {"en fr ja ko ru": ("en", "fr", "ja", "ko", "ru")},  # Soft contrastive, Tables 3 and 9.
}
"""Languages that papers average over, by metric and by name of the group: all ordered pairs."""

_ENGLISH = languages.language("en")
_CHANGED = "eng_Latn"  # The language with changed sentences.


def _read_flores(root: storage.Path) -> list[suite.Task]:
  paths = {
    files.known_code(files.plain_name(path).removesuffix(".devtest"), path): path
    for path in files.files_in(root / "flores200" / "devtest", "*.devtest")
  }
  augmented = root / "flores200" / "devtest_augmented"
  if not augmented.is_dir() or _CHANGED not in paths:
    return [_parallel_task(paths)]
  changed = files.plain_or_gzipped(augmented / f"{_CHANGED}_augmented.devtest")
  return [_parallel_task(paths, files.column(changed))]


def ntrex_files(root: storage.Path) -> dict[str, storage.Path]:
  """Returns NTREX's files under the data root, by language code; a second reference is CODE_2."""
  inner = root / "ntrex" / "NTREX-128"
  patterns = ("ntrex.*.txt", "newstest2019-src.*.txt", "newstest2019-ref*.*.txt")
  paths: dict[str, storage.Path] = {}
  folder = inner if inner.is_dir() else inner.parent
  for path in files.files_in(folder, *patterns):
    start, code = files.plain_name(path).removesuffix(".txt").split(".", 1)
    number = start.removeprefix("newstest2019-ref-")
    label = files.known_code(code, path) + (f"_{number}" if number.isdecimal() else "")
    if paths.setdefault(label, path) is not path:
      raise errors.InputError(f"{paths[label]} and {path} both have language {label}: remove one")
  return paths


def read_ntrex(
  root: storage.Path, keep: Callable[[str], bool] = lambda code: True
) -> list[suite.Task]:
  """Returns one task of all languages, or of those whose codes `keep` accepts."""
  paths = {code: path for code, path in ntrex_files(root).items() if "_" not in code}
  return [_parallel_task({code: path for code, path in paths.items() if keep(code)})]


def _parallel_task(paths: Mapping[str, storage.Path], changed: Sequence[str] = ()) -> suite.Task:
  """Returns one task of all languages, with a result per ordered pair of codes (deu-fra)."""
  texts = [*files.by_label(paths).items(), *([(_CHANGED, changed)] if changed else [])]
  sides = [suite.Side(code, [text.strip() for text in lines]) for code, lines in texts]
  return suite.Task("all", tuple(sides), functools.partial(_score_pairs, sides, bool(changed)))


def _score_pairs(
  sides: Sequence[suite.Side], changed: bool, *vectors: np.ndarray
) -> list[suite.Result]:
  """Returns the results; if `changed`, the last side has the changed sentences."""
  codes = [side.language for side in (sides[:-1] if changed else sides)]
  known = [*map(languages.language, codes)]
  metrics: dict[tuple[int, int], suite.Numbers] = {}
  for first, second in itertools.combinations(range(len(codes)), 2):
    if known[first] == known[second]:
      continue
    ways = (first, second), (second, first)
    both = retrieval.nearest(vectors[first], vectors[second])
    for (i, j), nearest in zip(ways, both, strict=True):
      accuracy = np.mean(nearest.cosine_N == np.arange(len(nearest.cosine_N)))
      numbers = {
        "accuracy": 100 * float(accuracy),
        "xsim": 100 * retrieval.error_rate(nearest.margin_N, sides[j].texts),
        "hubness": nearest.hubness,
      }
      if changed and codes[j] == _CHANGED:
        candidates = [*sides[j].texts, *sides[-1].texts]
        changed_ND = np.concatenate([vectors[j], vectors[-1]])
        nearest_N = retrieval.nearest(vectors[i], changed_ND)[0].margin_N
        numbers["xsim++"] = 100 * retrieval.error_rate(nearest_N, candidates)
      metrics[i, j] = numbers
  return [
    suite.Result(f"{codes[i]}-{codes[j]}", (codes[i], codes[j]), metrics[i, j])
    for i, j in sorted(metrics)
  ]


def summarize_pairs(
  groups: Mapping[str, Mapping[str, Sequence[str]]],
  results: Sequence[suite.Result],
  seen: suite.Seen,
  complete: bool,
) -> suite.Numbers:
  """Returns means over ordered pairs of languages.

  `accuracy`, `xsim` and `hubness` over all pairs, those to English, from English and without it,
  of languages seen in training and others, and of whole groups; `xsim` also over the searches in
  each language of a group; `xsim++` over all pairs that have it.

  Args:
    groups: Language codes by metric and by name of the group.
    results: Results of the pairs.
    seen: Tests which languages were seen in training.
    complete: Whether all languages have results.
  """
  pairs = [tuple(languages.language(code) for code in result.languages) for result in results]
  summary: suite.Numbers = {}
  for metric in PARALLEL_METRICS:
    values = [result.metrics[metric] for result in results]
    parts = {
      "": [True] * len(pairs),
      " without English": [_ENGLISH not in pair for pair in pairs],
      " to English": [pair[1] == _ENGLISH for pair in pairs],
      " from English": [pair[0] == _ENGLISH for pair in pairs],
    }
    for name, chosen in parts.items():
      kept = list(itertools.compress(values, chosen))
      summary |= suite.mean(metric + name, kept, complete=complete)
    summary |= suite.seen_means(metric, results, metric, seen, complete=complete)
    for name, group in groups.get(metric, {}).items():
      members = {languages.language(code) for code in group}
      inside = [x for x in zip(pairs, values, strict=True) if members >= {*x[0]}]
      if len(inside) < len(members) * (len(members) - 1):
        continue
      summary |= suite.mean(f"{metric} {name}", (x for _, x in inside), complete=True)
      # The soft contrastive paper does not state the direction of its Table 9; LASER's tool prints
      # the averages of searches in each language.
      for code in group if metric == "xsim" else ():
        target = languages.language(code)
        into = (x for pair, x in inside if pair[1] == target)
        summary |= suite.mean(f"{metric} {name}: {code}", into, complete=True)
  changed = [result.metrics["xsim++"] for result in results if "xsim++" in result.metrics]
  return summary | suite.mean("xsim++", changed, complete=complete)


FLORES = suite.Benchmark(
  name="flores",
  title="FLORES-200 (devtest)",
  files=suite.Files(
    ("flores200/devtest",),
    "xxx_Xxxx.devtest, plain or .gz; for xSIM++ ../devtest_augmented/eng_Latn_augmented.devtest",
    more=("flores200/devtest_augmented/*",),
  ),
  read=_read_flores,
  averages=functools.partial(summarize_pairs, FLORES_GROUPS),
  sets=FLORES_LANGUAGES,
)
NTREX = suite.Benchmark(
  name="ntrex",
  title="NTREX-128",
  files=suite.Files(
    ("ntrex",),
    "newstest2019-{src,ref}.CODE.txt, here or in NTREX-128, or ntrex.CODE.txt; plain or .gz",
  ),
  read=read_ntrex,
  averages=functools.partial(summarize_pairs, {}),
  sets=NTREX_LANGUAGES,
)

# --------------------------------------------------------------------------------------------
# ParaCrawl

# The languages of Table X, each paired with English.
_PARACRAWL_CODES = _codes("bg cs da de el es et fi fr hr hu it lt lv nl pl pt ro sk sl sv")


def _read_paracrawl(root: storage.Path) -> list[suite.Task]:
  """Returns one task per language pair; only one pair is in memory at a time."""
  tasks = []
  for path in files.files_in(root / "paracrawl", "*.queries"):
    name = files.plain_name(path).removesuffix(".queries")
    codes = (files.known_code(code, path) for code in name.split(".")[-1].split("-"))
    others = files.plain_or_gzipped(path.with_name(f"{name}.candidates"))
    texts = files.column(path), files.column(others)
    score = functools.partial(_margin_accuracy, texts[1])
    tasks.append(suite.pair_task(name, codes, texts, score, large=True))
  return tasks


def _margin_accuracy(candidates: list[str], *vectors: np.ndarray) -> suite.Numbers:
  forward, _ = retrieval.nearest(*vectors)
  return {"accuracy": 100 * (1 - retrieval.error_rate(forward.margin_N, candidates))}


PARACRAWL = suite.Benchmark(
  name="paracrawl",
  title="ParaCrawl (P@1 of 2,000 queries among 200,000 sentences)",
  files=suite.Files(
    ("paracrawl",),
    "NAME.xx-yy.queries in xx and NAME.xx-yy.candidates in yy, plain or .gz; a query's translation "
    "is the candidate on the same line",
  ),
  read=_read_paracrawl,
  averages=suite.metric_means("accuracy"),
  sets=[*map(languages.language, _PARACRAWL_CODES)],
)
