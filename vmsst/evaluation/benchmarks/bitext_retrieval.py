"""Translation retrieval on Tatoeba, FLORES-200, NTREX-128, and ParaCrawl with many distractors.

* `TATOEBA` is LASER's test set, version 1: up to 1,000 sentences in each of 112 languages, with
  English translations. The metrics `to English` and `from English` are the accuracies of
  nearest-neighbor search by cosine. The VMSST paper (section 6.2), the EMS paper (section V-A) and
  the soft contrastive paper (section 4.2) report the mean of both, `average`.
* `FLORES` and `NTREX` contain the same sentences in all languages. Each ordered language pair has a
  result, with queries in the first language and candidates in the second language. Regional
  variants of one language are not compared with each other. The metrics are

  * `accuracy`: share of queries whose nearest candidate by cosine is the translation, called P@1 in
    the EMS paper (section V-B). Ties go to the first candidate.
  * `hubness`: skewness, over all candidates, of the number of queries that have the candidate among
    their 4 nearest neighbors.
  * `xsim`: error rate of retrieval by the highest ratio margin among the 4 nearest candidates (soft
    contrastive paper, section 4.2). A candidate with the same text as the translation counts as
    correct.
  * `xsim++`: the same error rate as `xsim`, but only for English candidates, with altered English
    sentences as additional candidates.

* `PARACRAWL` follows the EMS paper (section V-D, Table X): 2,000 queries among 200,000 candidates.
  `accuracy` is the share of queries for which the translation has the highest ratio margin among
  the 4 nearest candidates. The sentences used in the paper are not published, so shuffle the
  ParaCrawl 5 files and use the first lines instead.
"""

import dataclasses
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
TATOEBA_LANGUAGES = tuple(_TATOEBA_CODES.split())  # codes of all 112 languages


def _codes(text: str) -> tuple[str, ...]:
  return tuple(text.split())


# Tatoeba languages covered by the EMS paper's training data.
_EMS_SEEN = _codes(
  "afr ara ben bul cat ces cmn dan deu ell epo est eus fin fra glg heb hin hrv hun hye ind ita jav "
  "jpn kat kaz kor kur lit lvs mal mar max mkd mon nld nob pes pol por ron rus slk slv spa sqi srp "
  "swe swh tam tel tgl tha tur ukr urd vie"
)
# Languages with fewer than 300,000 training pairs in the EMS paper.
_BELOW_300K = _codes("afr hin hye jav kat kaz kur mar mon nob swh tam tel tgl urd")


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
  ">300k (42)": _without((*_BELOW_300K, "pes")),
  "<300k (11)": _codes("afr hin hye kat kaz kur mar swh tam tel tgl"),
  ">300k (43)": _without(_BELOW_300K),
  "<300k (15)": _BELOW_300K,
  "EMS unseen (54)": tuple(code for code in TATOEBA_LANGUAGES if code not in _EMS_SEEN),
  # The languages that Table 3 of the soft contrastive paper pairs with English.
  "en-fr en-ja en-ko en-ru": ("fra", "jpn", "kor", "rus"),
}
"""Language groups over which papers average, by name."""


def tatoeba_files(folder: storage.Path) -> dict[str, tuple[storage.Path, storage.Path]]:
  """Returns the foreign-language file and the English file for each language code.

  Raises:
    InputError: If the folder contains no Tatoeba files, or one file of a pair is missing.
  """
  paths = {}
  for path in files.files_in(folder, "tatoeba.*-eng.*"):
    stem = ".".join(path.name.split(".")[:2])
    code = files.known_code(stem.removeprefix("tatoeba.").removesuffix("-eng"), path)
    if code not in paths:
      pair = (path.with_name(f"{stem}.{suffix}") for suffix in (code, "eng"))
      foreign, english = map(files.plain_or_gzipped, pair)
      paths[code] = foreign, english
  return paths


def tatoeba_task(code: str, foreign: storage.Path, english: storage.Path) -> suite.Task:
  """Returns the task for one language; the name of the result is the language code."""
  return retrieval_task(code, (code, "eng"), files.read_aligned(foreign, english))


def retrieval_task(
  name: str,
  codes: tuple[str, str],
  texts: Sequence[Sequence[str]],
  target: str = "English",
  *,
  several: bool = False,
) -> suite.Task:
  """Returns a task with one result, the accuracy of translation retrieval in both directions.

  Args:
    name: Name for both the task and the result.
    codes: Codes of the two languages.
    texts: Texts in each language, aligned row by row.
    target: Word for the second language in metric names.
    several: Whether a text that occurs in several rows has several correct translations.
  """
  names = {"forward": f"to {target}", "backward": f"from {target}", "average": "average"}

  def score(*vectors: np.ndarray) -> suite.Numbers:
    shares = retrieval.translation_accuracy(*vectors, texts=texts if several else None)
    return {names[key]: 100 * share for key, share in shares.items()}

  return suite.pair_task(name, codes, texts, score)


def _summarize_tatoeba(
  results: Sequence[suite.Result], seen: suite.Seen, complete: bool
) -> suite.Numbers:
  """Returns means over all, seen and unseen languages, and over complete `TATOEBA_GROUPS`."""
  # Only the foreign language counts as seen or unseen, not English.
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
NTREX_LANGUAGES = [x for x in languages.LANGUAGES if x.ntrex]
FLORES_LANGUAGES = [x for x in languages.LANGUAGES if x.flores and x.iso639_3 != "nqo"]
"""The languages in FLORES-200. N'Ko is excluded because only FLORES+ contains it."""
FLORES_GROUPS: dict[str, dict[str, tuple[str, ...]]] = {
  "accuracy": {
    "mUSE (182)": _codes("ar de es fr it ja ko nl pl pt ru th tr zh"),
    "<300k (240)": _codes("af gu hi hy jv ka kk mr my nb sw ta te tl ur yo"),
  },
  # The languages in Tables 3 and 9 of the soft contrastive paper.
  "xsim": {"en fr ja ko ru": ("en", "fr", "ja", "ko", "ru")},
}
"""Language groups by metric and name. Papers average over all ordered pairs in a group."""

_ENGLISH = languages.language("en")
_AUGMENTED = "eng_Latn"  # The language of the altered sentences for xSIM++.


def _read_flores(root: storage.Path) -> list[suite.Task]:
  paths = {
    files.known_code(files.plain_name(path).removesuffix(".devtest"), path): path
    for path in files.files_in(root / "flores200" / "devtest", "*.devtest")
  }
  folder = root / "flores200" / "devtest_augmented"
  if not folder.is_dir() or _AUGMENTED not in paths:
    return [_parallel_task(paths)]
  distractors = files.plain_or_gzipped(folder / f"{_AUGMENTED}_augmented.devtest")
  return [_parallel_task(paths, files.column(distractors))]


def ntrex_files(root: storage.Path) -> dict[str, storage.Path]:
  """Returns the NTREX files by language code; the code of a second reference ends in "_2"."""
  inner = root / "ntrex" / "NTREX-128"
  patterns = ("ntrex.*.txt", "newstest2019-src.*.txt", "newstest2019-ref*.*.txt")
  paths: dict[str, storage.Path] = {}
  folder = inner if inner.is_dir() else inner.parent
  for path in files.files_in(folder, *patterns):
    start, code = files.plain_name(path).removesuffix(".txt").split(".", 1)
    number = start.removeprefix("newstest2019-ref-")
    label = files.known_code(code, path) + (f"_{number}" if number.isdecimal() else "")
    if paths.setdefault(label, path) is not path:
      raise errors.InputError(f"{paths[label]} and {path} both contain language {label}; use one")
  return paths


def read_ntrex(
  root: storage.Path, keep: Callable[[str], bool] = lambda code: True
) -> list[suite.Task]:
  """Returns one task with all languages, or only the languages whose codes `keep` accepts."""
  paths = {code: path for code, path in ntrex_files(root).items() if "_" not in code}
  return [_parallel_task({code: path for code, path in paths.items() if keep(code)})]


def _parallel_task(
  paths: Mapping[str, storage.Path], distractors: Sequence[str] = ()
) -> suite.Task:
  """Returns one task with all languages; each ordered pair of codes (deu-fra) has a result."""
  texts = [*files.by_label(paths).items(), *([(_AUGMENTED, distractors)] if distractors else [])]
  text_sets = tuple(suite.TextSet(code, [text.strip() for text in lines]) for code, lines in texts)
  score = functools.partial(_score_pairs, text_sets, bool(distractors))
  return suite.Task("all", text_sets, score)


def _score_pairs(
  text_sets: Sequence[suite.TextSet], augmented: bool, *vectors: np.ndarray
) -> list[suite.Result]:
  """Returns the results; if `augmented`, the last text set contains the distractors for xSIM++."""
  codes = [text_set.language for text_set in (text_sets[:-1] if augmented else text_sets)]
  metrics: dict[tuple[int, int], suite.Numbers] = {}
  for first, second in itertools.combinations(range(len(codes)), 2):
    if languages.language(codes[first]) == languages.language(codes[second]):
      continue
    directions = (first, second), (second, first)
    both = retrieval.nearest(vectors[first], vectors[second])
    for (i, j), nearest in zip(directions, both, strict=True):
      accuracy = np.mean(nearest.cosine_N == np.arange(len(nearest.cosine_N)))
      numbers = {
        "accuracy": 100 * float(accuracy),
        "xsim": 100 * retrieval.error_rate(nearest.margin_N, text_sets[j].texts),
        "hubness": nearest.hubness,
      }
      if augmented and codes[j] == _AUGMENTED:
        candidates = [*text_sets[j].texts, *text_sets[-1].texts]
        candidate_MD = np.concatenate([vectors[j], vectors[-1]])
        nearest_N = retrieval.nearest(vectors[i], candidate_MD)[0].margin_N
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
  """Returns means over ordered language pairs.

  Each metric is averaged over all pairs, and separately over pairs into English, from English,
  without English, in seen languages and in unseen languages. Each group in `groups` is averaged if
  all its pairs have results. For `xsim`, each group also has one average per candidate language.
  For `xsim++`, only the average over all pairs into English is returned.

  Args:
    groups: Language codes in each group, by metric and group name.
    results: Results for the pairs.
    seen: Test for seen languages, or None if the training languages are unknown.
    complete: Whether all languages have results.
  """
  pairs = [tuple(languages.language(code) for code in result.languages) for result in results]
  summary: suite.Numbers = {}
  for metric in PARALLEL_METRICS:
    values = [result.metrics[metric] for result in results]
    subsets = {
      "": [True] * len(pairs),
      " without English": [_ENGLISH not in pair for pair in pairs],
      " to English": [pair[1] == _ENGLISH for pair in pairs],
      " from English": [pair[0] == _ENGLISH for pair in pairs],
    }
    for suffix, mask in subsets.items():
      subset = itertools.compress(values, mask)
      summary |= suite.mean(metric + suffix, subset, complete=complete)
    summary |= suite.seen_means(metric, results, metric, seen, complete=complete)
    for name, group in groups.get(metric, {}).items():
      members = {languages.language(code) for code in group}
      group_values = [x for x in zip(pairs, values, strict=True) if members >= {*x[0]}]
      if len(group_values) < len(members) * (len(members) - 1):
        continue
      summary |= suite.mean(f"{metric} {name}", (x for _, x in group_values), complete=True)
      # Table 9 of the soft contrastive paper shows xSIM by language, but does not state whether
      # this is the language of the queries or of the candidates. LASER's tool averages by candidate
      # language, so this function does, too.
      for code in group if metric == "xsim" else ():
        target = languages.language(code)
        into_target = (x for pair, x in group_values if pair[1] == target)
        summary |= suite.mean(f"{metric} {name}: {code}", into_target, complete=True)
  augmented = [result.metrics["xsim++"] for result in results if "xsim++" in result.metrics]
  return summary | suite.mean("xsim++", augmented, complete=complete)


FLORES = suite.Benchmark(
  name="flores",
  title="FLORES-200 (devtest)",
  files=suite.Files(
    ("flores200/devtest",),
    "xxx_Xxxx.devtest, plain or .gz; for xSIM++ ../devtest_augmented/eng_Latn_augmented.devtest",
    optional=("flores200/devtest_augmented/*",),
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

# The languages in Table X, which are all paired with English.
_PARACRAWL_CODES = _codes("bg cs da de el es et fi fr hr hu it lt lv nl pl pt ro sk sl sv")


def _read_paracrawl(root: storage.Path) -> list[suite.Task]:
  """Returns one large task per language pair."""
  tasks = []
  for path in files.files_in(root / "paracrawl", "*.queries"):
    name = files.plain_name(path).removesuffix(".queries")
    codes = (files.known_code(code, path) for code in name.split(".")[-1].split("-"))
    candidates = files.plain_or_gzipped(path.with_name(f"{name}.candidates"))
    texts = files.column(path), files.column(candidates)
    task = suite.pair_task(name, codes, texts, functools.partial(_margin_accuracy, texts[1]))
    tasks.append(dataclasses.replace(task, large=True))
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
