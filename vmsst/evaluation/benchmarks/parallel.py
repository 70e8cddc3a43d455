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

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from vmsst import errors, languages, storage
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import averages, files
from vmsst.evaluation.metrics import retrieval
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


Changes = Mapping[str, tuple[str, str]]
"""The original of each changed English sentence, and the type of the change."""


def flores_files(root: storage.Path, split: str) -> dict[str, storage.Path]:
  """Returns the files of a split of FLORES-200 under the data root, by language code."""
  paths = files.files_in(root / "flores200" / split, f"*.{split}")
  codes = (files.plain_name(path).removesuffix(f".{split}") for path in paths)
  return {files.known_code(code, path): path for code, path in zip(codes, paths, strict=True)}


def _read_flores(split: str, root: storage.Path) -> list[suite.Task]:
  folder, paths = root / "flores200", flores_files(root, split)
  augmented = folder / f"{split}_augmented"
  if not augmented.is_dir() or _CHANGED not in paths:
    return [_task(paths)]
  texts = files.plain_or_gzipped(augmented / f"{_CHANGED}_augmented.{split}")
  types = files.plain_or_gzipped(augmented / f"{_CHANGED}_errtype.{split}.json")
  content = input_files.parse_json("\n".join(text_files.read_lines(str(types))), str(types))
  changes = {text: (change["src"], change["errtype"]) for text, change in content.items()}
  return [_task(paths, files.column(texts), changes)]


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
  return [_task({code: path for code, path in paths.items() if keep(code)})]


def _task(
  paths: Mapping[str, storage.Path], changed: Sequence[str] = (), changes: Changes | None = None
) -> suite.Task:
  """Returns one task of all languages, with a result per ordered pair of codes (deu-fra)."""
  texts = [*files.by_label(paths).items(), *([(_CHANGED, changed)] if changed else [])]
  sides = [suite.Side(code, [text.strip() for text in lines]) for code, lines in texts]
  return suite.Task("all", tuple(sides), functools.partial(_score, sides, changes))


def _score(
  sides: Sequence[suite.Side], changes: Changes | None, *vectors: np.ndarray
) -> list[suite.Result]:
  """Returns the results; if there are `changes`, the last side has the changed sentences."""
  codes = [side.language for side in (sides if changes is None else sides[:-1])]
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
      if changes is not None and codes[j] == _CHANGED:
        candidates = [*sides[j].texts, *sides[-1].texts]
        changed_ND = np.concatenate([vectors[j], vectors[-1]])
        nearest_N = retrieval.nearest(vectors[i], changed_ND)[0].margin_N
        numbers["xsim++"] = 100 * retrieval.error_rate(nearest_N, candidates)
        counts = retrieval.error_types(nearest_N, candidates, changes)
        for kind in sorted({retrieval.MISALIGNED, *(kind for _, kind in changes.values())}):
          numbers[f"xsim++ {kind}"] = 100 * counts.get(kind, 0) / len(nearest_N)
      metrics[i, j] = numbers
  return [
    suite.Result(f"{codes[i]}-{codes[j]}", (codes[i], codes[j]), metrics[i, j])
    for i, j in sorted(metrics)
  ]


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
  ),
  read=read_ntrex,
  averages=functools.partial(summarize, {}),
  sets=NTREX_LANGUAGES,
)
