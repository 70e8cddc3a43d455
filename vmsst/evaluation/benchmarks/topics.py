"""Zero-shot classification of topics (SIB-200), with English training data."""

import dataclasses
import functools
import itertools
from collections.abc import Sequence

import numpy as np

from vmsst import errors, languages, storage
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import averages, files

_SPLITS = ("train", "dev", "test")
_COLUMNS = ("split", "index_id", "category", "text")


@dataclasses.dataclass(frozen=True)
class LabeledTexts:
  """The same sentences in several languages, with class labels.

  Attributes:
    texts: The N sentences by language code; the first language is English.
    split_N: "train", "dev" or "test".
    label_N: Number of the class, from 0, int64.
    num_classes: Number of classes.
  """

  texts: dict[str, list[str]]
  split_N: np.ndarray
  label_N: np.ndarray
  num_classes: int

  @property
  def english(self) -> str:
    """The code of English in the files."""
    return next(iter(self.texts))


def sib200(folder: storage.Path) -> LabeledTexts:
  """Reads SIB-200's topics from CODE.tsv.gz: split, index_id, category, text, with a header.

  Raises:
    InputError: a file is broken, English is missing, or files differ in more than the text.
  """
  rows = {}
  for path in files.files_in(folder, "*.tsv"):
    rows[files.known_code(files.plain_name(path).removesuffix(".tsv"), path)] = _rows(path)
  codes = sorted(rows, key=lambda code: (not is_english(code), code))
  english = rows[codes[0]]
  if not is_english(codes[0]):
    raise errors.InputError(f"{folder} has no English file, which is needed for training")
  for code in codes:
    if [row[:3] for row in rows[code]] != [row[:3] for row in english]:
      raise errors.InputError(
        f"{folder}: the lines of {code} and {codes[0]} are not the same sentences with the same "
        "classes in the same order: copy both again"
      )
  classes = sorted({row[2] for row in english})
  return LabeledTexts(
    {code: [row[3] for row in rows[code]] for code in codes},
    np.array([row[0] for row in english]),
    np.array([classes.index(row[2]) for row in english]),
    len(classes),
  )


def _rows(path: storage.Path) -> list[list[str]]:
  """Returns the lines after the header, which must include all three splits."""
  lines = files.table(path, len(_COLUMNS))
  if (header := tuple(next(lines, ()))) != _COLUMNS:
    raise errors.InputError(f"{path}:1: columns {header}, not {', '.join(_COLUMNS)}")
  rows = list(lines)
  for number, row in enumerate(rows, 2):
    if row[0] not in _SPLITS:
      raise errors.InputError(f"{path}:{number}: split {row[0]!r}, not {', '.join(_SPLITS)}")
  if lacking := set(_SPLITS) - {row[0] for row in rows}:
    raise errors.InputError(f"{path}: no sentences for {', '.join(sorted(lacking))}")
  return rows


def transfer_task(labeled: LabeledTexts, *, into_english: bool = False) -> suite.Task:
  """Returns the task of classifying sentences after training in another language.

  A multilayer perceptron as in LASER is trained on the vectors of the training sentences; the
  development sentences choose the epoch. `accuracy` on the test sentences is the mean of five
  seeds, `deviation` their standard deviation. `en->xx` is trained in English, as is `en->en`.

  Args:
    labeled: Sentences and classes.
    into_english: Whether to add `xx->en` for every language, at the cost of a training for each.
  """
  sides = tuple(suite.Side(code, texts) for code, texts in labeled.texts.items())
  held_out = tuple(
    suite.Side(code, list(itertools.compress(texts, labeled.split_N != "train")))
    for code, texts in labeled.texts.items()
  )
  score = functools.partial(_score, labeled, into_english)
  return suite.Task("sib200", sides, score, held_out)


def _score(labeled: LabeledTexts, into_english: bool, *vectors: np.ndarray) -> list[suite.Result]:
  from vmsst.evaluation.metrics import classification  # Lazily: it needs JAX.

  def part(vectors_ND: np.ndarray, name: str) -> classification.LabeledVectors:
    rows_N = labeled.split_N == name
    return classification.LabeledVectors(vectors_ND[rows_N], labeled.label_N[rows_N])

  by_code = dict(zip(labeled.texts, vectors, strict=True))
  english = labeled.english
  sources = list(by_code) if into_english else [english]
  accuracies = classification.transfer_accuracies(
    {x: classification.Split(part(by_code[x], "train"), part(by_code[x], "dev")) for x in sources},
    {x: part(vectors_ND, "test") for x, vectors_ND in by_code.items()},
    num_classes=labeled.num_classes,
  )
  pairs = [(english, code) for code in by_code]
  pairs += [(code, english) for code in sources if code != english]
  return [result(pair, accuracies[pair[0]][pair[1]]) for pair in pairs]


def _averages(results: Sequence[suite.Result], seen: suite.Seen, complete: bool) -> suite.Numbers:
  """Returns the means between languages, and the accuracy in English."""
  (english,) = (x for x in results if x.languages[0] == x.languages[1])
  return {**means(results, seen, complete), "English": english.metrics["accuracy"]}


SIB200 = suite.Benchmark(
  name="sib200",
  title="SIB-200, topics learned in English",
  files=suite.Files(
    ("sib200",),
    "CODE.tsv, plain or .gz (header: split, index_id, category, text)",
    "download dadelani/sib-200; its sentences are those of FLORES-200",
  ),
  read=lambda root: [transfer_task(sib200(root / "sib200"))],
  averages=_averages,
  sets=[each for each in languages.LANGUAGES if each.flores],
)


def is_english(code: str) -> bool:
  """Whether a code is one of English."""
  return languages.language(code) == languages.language("en")


def result(pair: tuple[str, str], accuracy_S: np.ndarray, prefix: str = "") -> suite.Result:
  """Returns the result `en->xx`: `accuracy`, the mean over seeds, and `deviation`, their std.

  Args:
    pair: Codes of the training language and the test language.
    accuracy_S: Accuracy of every seed, 0 to 1.
    prefix: Prefix of the result's name.
  """
  metrics = {"accuracy": 100 * float(accuracy_S.mean()), "deviation": 100 * float(accuracy_S.std())}
  return suite.Result(f"{prefix}{pair[0]}->{pair[1]}", pair, metrics)


def means(results: Sequence[suite.Result], seen: suite.Seen, complete: bool) -> suite.Numbers:
  """Returns means of `accuracy` over the results between two languages.

  Over all results; over those `from English` and `into English`, if both exist; and over those with
  languages seen in training and the others, if known.

  Args:
    results: Made by `result`.
    seen: Tests which languages were seen in training.
    complete: Whether all results of the benchmark exist.
  """
  between = [x for x in results if x.languages[0] != x.languages[1]]
  parts = {"accuracy": between}
  outward = [x for x in between if is_english(x.languages[0])]
  inward = [x for x in between if is_english(x.languages[1])]
  if outward and inward:
    parts |= {"accuracy from English": outward, "accuracy into English": inward}
  numbers: suite.Numbers = {}
  for name, part in parts.items():
    numbers |= averages.mean(name, (x.metrics["accuracy"] for x in part), complete=complete)
  return numbers | averages.by_seen("accuracy", between, "accuracy", seen, complete=complete)
