"""Retrieval among N-way translations: FLORES-200 and NTREX-128.

Results of each ordered pair of languages, with queries in the first:

* `accuracy`: share of sentences whose nearest one, by cosine, is the translation, P@1 (EMS paper,
  section V-B); among equally near ones the first counts.
* `hubness`: skewness over the sentences of the second language of how many queries have them among
  their 4 nearest.
* `xsim`: error rate by best ratio margin among the k = 4 nearest (soft contrastive paper, section
  4.2); a sentence identical to the translation is not an error.
* `xsim++`: the same, into English only, among original and changed English sentences; and
  `xsim++ TYPE`, the share of sentences for which the nearest was changed in this way, or is
  another sentence ("Misaligned").

Texts of one language (its regional variants) are not compared.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from vmsst import errors, languages, storage
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import averages, files
from vmsst.evaluation.metrics import xsim
from vmsst.io import input_files, text_files

METRICS = ("accuracy", "xsim", "hubness")
NTREX_LANGUAGES = [each for each in languages.LANGUAGES if each.ntrex]
FLORES_LANGUAGES = [each for each in languages.LANGUAGES if each.flores and each.iso639_3 != "nqo"]
"""The languages of FLORES-200; FLORES+ added N'Ko."""
GROUPS: dict[str, dict[str, tuple[str, ...]]] = {
  "accuracy": averages.FLORES,
  "xsim": {"en fr ja ko ru": ("en", "fr", "ja", "ko", "ru")},  # Soft contrastive, Tables 3 and 9.
}
"""Languages that papers average over on FLORES, by metric and by name of the group."""

_ENGLISH = languages.language("en")
_CHANGED = "eng_Latn"  # The language with changed sentences.
FLORES_SOURCE = (
  "download https://tinyurl.com/flores200dataset; the two English files of xSIM++ are in "
  "https://dl.fbaipublicfiles.com/nllb/laser/xsimplusplus"
)
NTREX_SOURCE = "download NTREX-128 from https://github.com/MicrosoftTranslator/NTREX"


@dataclasses.dataclass(frozen=True)
class Changed:
  """Sentences made from others, with another meaning.

  Attributes:
    texts: The changed sentences.
    changes: For each, the original sentence and the type of the change.
  """

  texts: list[str]
  changes: Mapping[str, tuple[str, str]]


def read_changed(texts: storage.Path, types: storage.Path) -> Changed:
  """Reads one sentence per line, and a JSON object that maps them to objects `src`, `errtype`."""
  content = input_files.parse_json("\n".join(text_files.read_lines(str(types))), str(types))
  try:
    changes = {
      text: (str(change["src"]), str(change["errtype"])) for text, change in content.items()
    }
  except (AttributeError, KeyError, TypeError) as error:
    raise errors.InputError(
      f"{types}: not a JSON object of objects with src and errtype ({error}); copy it again"
    ) from None
  return Changed([text.strip() for text in files.column(texts)], changes)


def flores_files(root: storage.Path, split: str) -> dict[str, storage.Path]:
  """Returns the files of a split of FLORES-200 under the data root, by language code."""
  paths = files.files_in(root / "flores200" / split, f"*.{split}", source=FLORES_SOURCE)
  codes = (files.plain_name(path).removesuffix(f".{split}") for path in paths)
  return {files.known_code(code, path): path for code, path in zip(codes, paths, strict=True)}


def _read_flores(split: str, root: storage.Path) -> list[suite.Task]:
  folder, paths = root / "flores200", flores_files(root, split)
  augmented = folder / f"{split}_augmented"
  changed = None
  if augmented.is_dir() and _CHANGED in paths:
    names = f"{_CHANGED}_augmented.{split}", f"{_CHANGED}_errtype.{split}.json"
    changed = read_changed(
      *(files.plain_or_gzipped(augmented / name, source=FLORES_SOURCE) for name in names)
    )
  return [_task(paths, changed)]


def ntrex_files(root: storage.Path) -> dict[str, storage.Path]:
  """Returns NTREX's files under the data root, by language code; a second reference is CODE_2."""
  inner = root / "ntrex" / "NTREX-128"
  patterns = ("ntrex.*.txt", "newstest2019-src.*.txt", "newstest2019-ref*.*.txt")
  paths: dict[str, storage.Path] = {}
  folder = inner if inner.is_dir() else inner.parent
  for path in files.files_in(folder, *patterns, source=NTREX_SOURCE):
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
  return [_task({code: path for code, path in paths.items() if keep(code)}, None)]


def _task(paths: Mapping[str, storage.Path], changed: Changed | None) -> suite.Task:
  """Returns one task of all languages, with a result per ordered pair of codes (deu-fra)."""
  texts = [[text.strip() for text in lines] for lines in files.aligned(*paths.values())]
  sides = [suite.Side(*code_and_texts) for code_and_texts in zip(paths, texts, strict=True)]
  if changed is not None:
    sides.append(suite.Side(_CHANGED, changed.texts))
  return suite.Task("all", tuple(sides), functools.partial(_score, sides, changed))


def _score(
  sides: Sequence[suite.Side], changed: Changed | None, *vectors: np.ndarray
) -> list[suite.Result]:
  named = [side.language for side in sides[: len(sides) - (changed is not None)]]
  metrics: dict[tuple[int, int], suite.Numbers] = {}
  for i, j in itertools.combinations(range(len(named)), 2):
    if languages.language(named[i]) != languages.language(named[j]):
      forward, backward = xsim.nearest(vectors[i], vectors[j])
      metrics[i, j] = _rates(forward, sides[j].texts)
      metrics[j, i] = _rates(backward, sides[i].texts)
  for (i, j), numbers in metrics.items():
    if changed is not None and named[j] == _CHANGED:
      more_ND = np.concatenate([vectors[j], vectors[-1]])
      numbers |= _changed_rates(vectors[i], more_ND, sides[j].texts, changed)
  return [
    suite.Result(f"{named[i]}-{named[j]}", (named[i], named[j]), metrics[i, j])
    for i, j in sorted(metrics)
  ]


def _rates(nearest: xsim.Nearest, texts: Sequence[str]) -> suite.Numbers:
  accuracy = np.mean(nearest.cosine_N == np.arange(len(nearest.cosine_N)))
  return {
    "accuracy": 100 * float(accuracy),
    "xsim": 100 * xsim.error_rate(nearest.margin_N, texts),
    "hubness": nearest.hubness,
  }


def _changed_rates(
  source_ND: np.ndarray, english_MD: np.ndarray, texts: Sequence[str], changed: Changed
) -> suite.Numbers:
  nearest_N = xsim.nearest(source_ND, english_MD)[0].margin_N
  candidates = [*texts, *changed.texts]
  counts = xsim.error_types(nearest_N, candidates, changed.changes)
  kinds = {xsim.MISALIGNED, *(kind for _, kind in changed.changes.values())}
  return {
    "xsim++": 100 * xsim.error_rate(nearest_N, candidates),
    **{f"xsim++ {kind}": 100 * counts.get(kind, 0) / len(source_ND) for kind in sorted(kinds)},
  }


def summarize(
  groups: Mapping[str, Mapping[str, Sequence[str]]],
  results: Sequence[suite.Result],
  seen: suite.Seen,
  complete: bool,
) -> suite.Numbers:
  """Returns means over ordered pairs of languages.

  `accuracy`, `xsim` and `hubness` over all pairs, those to English, from English and without it,
  of languages seen in training and others, and of whole groups; `xsim` also over the searches in
  each language of a group; `xsim++` and its types over all pairs that have them.

  Args:
    groups: Language codes by metric and by name of the group.
    results: Results of the pairs.
    seen: Tests which languages were seen in training.
    complete: Whether all languages have results.
  """
  pairs = [tuple(languages.language(code) for code in result.languages) for result in results]
  summary: suite.Numbers = {}
  for metric in METRICS:
    values = [result.metrics[metric] for result in results]
    parts = {
      "": [True] * len(pairs),
      " without English": [_ENGLISH not in pair for pair in pairs],
      " to English": [pair[1] == _ENGLISH for pair in pairs],
      " from English": [pair[0] == _ENGLISH for pair in pairs],
    }
    for name, chosen in parts.items():
      kept = list(itertools.compress(values, chosen))
      summary |= averages.mean(metric + name, kept, complete=complete)
    summary |= averages.by_seen(metric, results, metric, seen, complete=complete)
    for name, group in groups.get(metric, {}).items():
      members = {languages.language(code) for code in group}
      inside = [x for x in zip(pairs, values, strict=True) if members >= {*x[0]}]
      if len(inside) < len(members) * (len(members) - 1):
        continue
      summary |= averages.mean(f"{metric} {name}", (x for _, x in inside), complete=True)
      # The soft contrastive paper does not state the direction of its Table 9; LASER's tool prints
      # the averages of searches in each language.
      for code in group if metric == "xsim" else ():
        target = languages.language(code)
        into = (x for pair, x in inside if pair[1] == target)
        summary |= averages.mean(f"{metric} {name}: {code}", into, complete=True)
  changed = [result.metrics for result in results if "xsim++" in result.metrics]
  for name in sorted({name for metrics in changed for name in metrics} - {*METRICS}):
    summary |= averages.mean(name, (x[name] for x in changed), complete=complete)
  return summary


def _flores(name: str, split: str) -> suite.Benchmark:
  return suite.Benchmark(
    name=name,
    title=f"FLORES-200 ({split})",
    files=suite.Files(
      (f"flores200/{split}",),
      f"xxx_Xxxx.{split}, plain or .gz; for xSIM++ ../{split}_augmented with "
      f"eng_Latn_augmented.{split} and eng_Latn_errtype.{split}.json",
      FLORES_SOURCE,
      more=(f"flores200/{split}_augmented/*",),
    ),
    read=functools.partial(_read_flores, split),
    averages=functools.partial(summarize, GROUPS),
    sets=FLORES_LANGUAGES,
  )


FLORES = _flores("flores", "devtest")
FLORES_DEV = _flores("flores_dev", "dev")
NTREX = suite.Benchmark(
  name="ntrex",
  title="NTREX-128",
  files=suite.Files(
    ("ntrex",),
    "newstest2019-{src,ref}.CODE.txt, here or in NTREX-128, or ntrex.CODE.txt; plain or .gz",
    NTREX_SOURCE,
  ),
  read=read_ntrex,
  averages=functools.partial(summarize, {}),
  sets=NTREX_LANGUAGES,
)
