"""Zero-shot cross-lingual classification of MLDoc and CLS documents and SIB-200 sentences.

The protocol is from the EMS paper (sections V-E and V-F, Tables XI and XII). A classifier, LASER's
multilayer perceptron, is trained on the vectors of texts in one language and tested on texts in a
second language. The encoder is not trained. The test uses the classifier's parameters from the
epoch with the highest accuracy on the development texts. The result `en->xx` is for a classifier
trained in English and tested in language xx. Five classifiers are trained with different seeds:
`accuracy` is the mean of their accuracies, and `deviation` is the standard deviation.

The vector of a document is the mean of its sentence vectors. In every language, a sentence ends

* after `. ! ?` or an ellipsis and any closing quotes and brackets, if white space follows and the
  next character is not a lowercase letter. The period after a single capital letter ("J. S. Bach")
  does not end a sentence.
* after a sentence-final mark in Chinese, Japanese, Arabic, Urdu, Devanagari, Bengali, Ethiopic,
  Armenian, Khmer or Burmese script, with or without a following space.
* at the end of a line.

These rules also split text after abbreviations ("Dr. Smith"). Thai and Lao have no sentence-final
marks, so texts in these languages are split only at line ends.
"""

import ast
import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from xml.etree import ElementTree

import numpy as np

from vmsst import errors, languages, storage
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import files
from vmsst.io import text_files


@dataclasses.dataclass(frozen=True, eq=False)
class LabeledTexts:
  """Texts in one language with their class labels."""

  labels: Sequence[str]
  texts: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Splits:
  """Training, development and test data in one language."""

  train: LabeledTexts
  dev: LabeledTexts
  test: LabeledTexts


def _labeled_texts(rows: Iterable[tuple[str, str]]) -> LabeledTexts:
  return LabeledTexts(*zip(*rows, strict=True))


_MLDOC_NAMES = {
  **{"en": "english", "de": "german", "es": "spanish", "fr": "french"},
  **{"it": "italian", "ja": "japanese", "ru": "russian", "zh": "chinese"},
}
_CLS_NAMES = {"en": "en", "de": "de", "fr": "fr", "ja": "jp"}
_CLS_DOMAINS = ("books", "dvd", "music")


def mldoc_rows(path: storage.Path) -> Iterator[tuple[str, str]]:
  """Yields the label and the text of each line `label TAB text` in an MLDoc file.

  The script that creates the MLDoc files may write a text as a Python bytes literal (b'...'). Such
  texts are decoded.
  """
  for line in text_files.read_lines(str(path)):
    label, text = line.split("\t", 1)
    if re.fullmatch(r"b'.+'|b\".+\"", text):
      text = ast.literal_eval(text).decode("utf-8")
    yield label, text


def cls_rows(path: storage.Path) -> Iterator[tuple[str, str]]:
  """Yields the label and the text of each review in a CLS file.

  A review is an XML element `item` with the elements `rating`, `summary` and `text`. The label is
  "positive" if the rating is more than three stars. The yielded text consists of the summary and
  the text, as in the processed CLS data.
  """
  root = ElementTree.fromstring(b"".join(text_files.read_chunks(str(path))))
  for item in root.iter("item"):
    rating, summary, text = (
      item.findtext(name, "").strip() for name in ("rating", "summary", "text")
    )
    yield "positive" if float(rating) > 3 else "negative", f"{summary}\n{text}".strip()


def sib200(folder: storage.Path) -> dict[str, Splits]:
  """Reads the SIB-200 files CODE.tsv (header: split, index_id, category, text).

  Raises:
    InputError: If a file is malformed.
  """
  splits = {}
  for path in files.files_in(folder, "*.tsv"):
    rows: dict[str, list[tuple[str, str]]] = {"train": [], "dev": [], "test": []}
    for split, _, label, text in itertools.islice(files.table(path, 4), 1, None):
      rows[split].append((label, text))
    code = files.known_code(files.plain_name(path).removesuffix(".tsv"), path)
    splits[code] = Splits(*map(_labeled_texts, rows.values()))
  return splits


def _read_mldoc(root: storage.Path) -> list[suite.Task]:
  def read(name: str, suffix: str) -> LabeledTexts:
    path = files.plain_or_gzipped(root / "mldoc" / name / f"{name}.{suffix}")
    return _labeled_texts(mldoc_rows(path))

  splits = {
    code: Splits(read(name, "train.1000"), read(name, "dev"), read(name, "test"))
    for code, name in _MLDOC_NAMES.items()
    if (root / "mldoc" / name).is_dir()
  }
  return [transfer_task("mldoc", splits, documents=True, into_english=True)]


def _read_cls(root: storage.Path) -> list[suite.Task]:
  tasks = []
  for domain in _CLS_DOMAINS:
    splits = {}
    for code, name in _CLS_NAMES.items():
      folder = root / "cls-acl10-unprocessed" / name / domain
      if storage.find(folder, "*"):
        paths = [files.plain_or_gzipped(folder / f"{x}.review") for x in ("train", "test")]
        train, test = (_labeled_texts(cls_rows(path)) for path in paths)
        # CLS has no development set, so the epoch with the highest accuracy on the test set in the
        # training language is used.
        splits[code] = Splits(train, test, test)
    if splits:
      prefix = f"{domain} "
      tasks.append(transfer_task(domain, splits, prefix=prefix, documents=True, into_english=True))
  return tasks


def transfer_task(
  name: str,
  splits: Mapping[str, Splits],
  *,
  prefix: str = "",
  documents: bool = False,
  into_english: bool = False,
) -> suite.Task:
  """Returns a task that trains a classifier in English and tests it in each language.

  Args:
    name: Name of the task.
    splits: The texts by language code, including English.
    prefix: Prefix for the names of the results.
    documents: Whether the texts are documents. The vector of a document is the mean of its sentence
      vectors. For documents, the result `en->en` is omitted, because for CLS the English test set
      is already used to choose the epoch.
    into_english: Whether to also train a classifier in each language and test it in English, with
      results named `xx->en`.

  Raises:
    InputError: If English is missing, or if documents are only in English.
  """
  english = next((code for code in splits if _is_english(code)), "")
  if not english or (documents and len(splits) < 2):
    raise errors.InputError(f"{name} needs English and another language; add the missing files")
  classes = sorted({label for split in splits.values() for label in split.train.labels})
  text_sets = {}  # A set that is used for dev and test has one key, so it is embedded once.
  for code, split in splits.items():
    for data in (split.train, split.dev, split.test):
      text_sets[data] = suite.TextSet(code, data.texts, split=sentences if documents else None)
  training = {split.train for split in splits.values()}
  held_out = tuple(text_set for data, text_set in text_sets.items() if data not in training)
  pairs = [(english, code) for code in splits if not (documents and code == english)]
  pairs += [(code, english) for code in splits if into_english and code != english]

  def score(*vectors: np.ndarray) -> list[suite.Result]:
    from vmsst.evaluation.metrics import classification  # JAX is loaded only when needed.

    labeled = {}
    for data, vectors_ND in zip(text_sets, vectors, strict=True):
      label_N = np.array([classes.index(label) for label in data.labels])
      labeled[data] = classification.LabeledVectors(vectors_ND, label_N)
    sources, targets = map(dict.fromkeys, zip(*pairs, strict=True))
    accuracies = classification.transfer_accuracies(
      {x: classification.Split(labeled[splits[x].train], labeled[splits[x].dev]) for x in sources},
      {x: labeled[splits[x].test] for x in targets},
      num_classes=len(classes),
    )
    results = []
    for source, target in pairs:
      accuracy_S = 100 * accuracies[source][target]
      metrics = {"accuracy": float(accuracy_S.mean()), "deviation": float(accuracy_S.std())}
      results.append(suite.Result(f"{prefix}{source}->{target}", (source, target), metrics))
    return results

  return suite.Task(name, tuple(text_sets.values()), score, held_out, large=documents)


def _is_english(code: str) -> bool:
  return languages.language(code) == languages.language("en")


def summarize(results: Sequence[suite.Result], seen: suite.Seen, complete: bool) -> suite.Numbers:
  """Returns mean accuracies.

  * `accuracy`: over results between two different languages
  * `accuracy seen` and `accuracy unseen`: the same for seen and unseen languages
  * `accuracy from English` and `accuracy into English`: only if both directions have results
  * `English`: over results of classifiers trained and tested in English
  """
  between = [x for x in results if x.languages[0] != x.languages[1]]
  groups = {"accuracy": between}
  from_english = [x for x in between if _is_english(x.languages[0])]
  into_english = [x for x in between if _is_english(x.languages[1])]
  if from_english and into_english:
    groups |= {"accuracy from English": from_english, "accuracy into English": into_english}
  numbers: suite.Numbers = {}
  for name, group in groups.items():
    numbers |= suite.mean(name, (x.metrics["accuracy"] for x in group), complete=complete)
  numbers |= suite.seen_means("accuracy", between, "accuracy", seen, complete=complete)
  within = [x.metrics["accuracy"] for x in results if x.languages[0] == x.languages[1]]
  return numbers | suite.mean("English", within, complete=True)


def _sets(codes: Iterable[str], prefix: str = "") -> list[str]:
  """Returns the names of the results between English and each other language."""
  foreign = [code for code in codes if code != "en"]
  return [f"{prefix}{pair}" for code in foreign for pair in (f"en->{code}", f"{code}->en")]


MLDOC = suite.Benchmark(
  name="mldoc",
  title="MLDoc, news topics",
  files=suite.Files(
    ("mldoc",), "LANGUAGE/LANGUAGE.train.1000, .dev and .test, as in english/english.train.1000"
  ),
  read=_read_mldoc,
  averages=summarize,
  sets=_sets(_MLDOC_NAMES),
)
CLS = suite.Benchmark(
  name="cls",
  title="CLS, sentiment of Amazon reviews",
  files=suite.Files(
    ("cls-acl10-unprocessed",), "{en,de,fr,jp}/{books,dvd,music}/{train,test}.review"
  ),
  read=_read_cls,
  averages=summarize,
  sets=[name for domain in _CLS_DOMAINS for name in _sets(_CLS_NAMES, f"{domain} ")],
)
SIB200 = suite.Benchmark(
  name="sib200",
  title="SIB-200, topics learned in English",
  files=suite.Files(
    ("sib200",), "CODE.tsv, plain or .gz (header: split, index_id, category, text)"
  ),
  read=lambda root: [transfer_task("sib200", sib200(root / "sib200"))],
  averages=summarize,
  sets=[x for x in languages.LANGUAGES if x.flores],
)

_CLOSING = r"[\"'”’»›)\]）」』】》〉]*+"
_SPACED = rf"(?<![.!?…])(?P<stop>[.!?…]++){_CLOSING}(?=\s++(?P<next>\S))"
# Sentence-final marks in Chinese and Japanese, Arabic and Urdu, Devanagari, Ethiopic, Armenian,
# Khmer, Burmese.
_UNSPACED = rf"[。！？｡؟۔।॥።፧։។៕။]++{_CLOSING}"
_BOUNDARY = re.compile(rf"{_SPACED}|{_UNSPACED}|\n")


def sentences(text: str) -> list[str]:
  """Returns the sentences of a document, or one empty sentence for a blank document."""
  pieces, start = [], 0
  for match in _BOUNDARY.finditer(text):
    before = text[max(0, match.start() - 2) : match.start()]
    is_initial = before[-1:].isupper() and not before[:-1].isalnum()
    continues = match["stop"] and (match["next"].islower() or (match["stop"] == "." and is_initial))
    if not continues:
      pieces.append(text[start : match.end()])
      start = match.end()
  pieces.append(text[start:])
  return [" ".join(x.split()) for x in pieces if not text_files.is_blank(x)] or [""]
