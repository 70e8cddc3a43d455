"""Cross-lingual document classification: MLDoc and CLS.

The protocol is that of the EMS paper (sections V-E and V-F, Tables XI and XII): a multilayer
perceptron is trained on frozen vectors of documents in one language and tested in another, from
English into each language and back; mean of five seeds.

The vector of a document is that of its sentences. In any language, a sentence ends

* after `. ! ?` or an ellipsis, including closing quotes and brackets, if white space follows and
  then anything except a small letter; but not after the full stop of a single capital letter
  ("J. S. Bach");
* after a sentence mark of a script that writes no space after it: Chinese and Japanese, Arabic and
  Urdu, Devanagari and Bengali, Ethiopic, Armenian, Khmer, Burmese;
* at the end of a line.

Abbreviations ("Dr. Smith") are split too, which adds a piece to the mean. Thai and Lao, which have
no such marks, are split at line ends only.
"""

import ast
import dataclasses
import functools
import itertools
import re
from collections.abc import Iterable, Mapping
from xml.etree import ElementTree

import numpy as np

from vmsst import errors, storage
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import files, topics
from vmsst.io import text_fields, text_files


@dataclasses.dataclass(frozen=True)
class Documents:
  """Documents of one language, with a class label each."""

  texts: list[str]
  labels: list[str]


@dataclasses.dataclass(frozen=True)
class Splits:
  """Data of one language: for training, choice of the epoch, and testing."""

  train: Documents
  dev: Documents
  test: Documents

  @property
  def parts(self) -> list[Documents]:
    """The distinct parts, training first."""
    return [self.train, self.dev, *([] if self.test is self.dev else [self.test])]


# --------------------------------------------------------------------------------------------
# MLDoc

_MLDOC_LANGUAGES = {
  "en": "english",
  "de": "german",
  "es": "spanish",
  "fr": "french",
  "it": "italian",
  "ja": "japanese",
  "ru": "russian",
  "zh": "chinese",
}
_MLDOC_LABELS = ("CCAT", "ECAT", "GCAT", "MCAT")


def mldoc(path: storage.Path) -> Documents:
  """Reads a file of MLDoc: label, TAB, text.

  Decodes texts that MLDoc's script wrote as Python bytes literals (b'...').

  Raises:
    InputError: the file is broken.
  """
  documents, path = Documents([], []), files.plain_or_gzipped(path)
  for number, line in enumerate(text_files.read_lines(str(path)), 1):
    label, tab, text = line.partition("\t")
    if not tab or label not in _MLDOC_LABELS:
      raise errors.InputError(
        f"{path}:{number}: no label ({', '.join(_MLDOC_LABELS)}) with a TAB before the text"
      )
    documents.labels.append(label)
    documents.texts.append(_decoded(text, f"{path}:{number}"))
  return _not_empty(documents, path)


def _decoded(text: str, location: str) -> str:
  if not (text[:2] in ("b'", 'b"') and text[-1:] == text[1] and len(text) > 2):
    return text
  try:
    return bytes(ast.literal_eval(text)).decode("utf-8")
  except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
    raise errors.InputError(f"{location}: not a valid Python bytes literal: {error}") from None


def _read_mldoc(root: storage.Path) -> list[suite.Task]:
  folder = root / "mldoc"
  parts = ("train.1000", "dev", "test")
  splits = {
    code: Splits(*(mldoc(folder / name / f"{name}.{part}") for part in parts))
    for code, name in _MLDOC_LANGUAGES.items()
    if (folder / name).is_dir()
  }
  return [_task("mldoc", "", splits, folder)]


# --------------------------------------------------------------------------------------------
# CLS

_CLS_LANGUAGES = {"en": "en", "de": "de", "fr": "fr", "ja": "jp"}
_CLS_DOMAINS = ("books", "dvd", "music")
_CLS_LABELS = {"1": "negative", "2": "negative", "4": "positive", "5": "positive"}
"""Labels by number of stars."""


class _WithoutEntities(ElementTree.TreeBuilder):
  """Refuses document type definitions, whose entities can expand without limit."""

  def doctype(self, name: str, public: str | None, system: str | None) -> None:
    raise ValueError("the file has a document type definition: remove it")


def cls(path: storage.Path) -> Documents:
  """Reads a file of CLS: XML with `item` elements that have `rating`, `summary` and `text`.

  More than three stars are positive, fewer negative. A document is the summary and the text, as in
  the processed form of CLS.

  Raises:
    InputError: the file is not well-formed, has a document type definition, or a review has no
      rating or one of three stars.
  """
  path = files.plain_or_gzipped(path)
  parser = ElementTree.XMLParser(target=_WithoutEntities())
  try:
    for chunk in text_files.read_chunks(str(path)):
      parser.feed(chunk)
    items = parser.close().iter("item")
  except errors.InputError:
    raise
  except ElementTree.ParseError as error:
    raise errors.InputError(f"{path}:{error.position[0]}: not well-formed XML: {error}") from None
  except (LookupError, ValueError) as error:  # Also encodings that are not supported.
    raise errors.InputError(f"{path}: {error}") from None
  documents = Documents([], [])
  for number, item in enumerate(items, 1):
    fields = (item.find(name) for name in ("rating", "summary", "text"))
    rating, summary, text = (
      "" if field is None else "".join(field.itertext()).strip() for field in fields
    )
    stars = rating.removesuffix(".0")
    if stars not in _CLS_LABELS:
      raise errors.InputError(
        f"{path}: review {number} has a rating of {rating!r}; remove ratings other than 1, 2, 4, 5"
      )
    documents.labels.append(_CLS_LABELS[stars])
    documents.texts.append(f"{summary}\n{text}".strip())
  return _not_empty(documents, path)


def _read_cls(root: storage.Path) -> list[suite.Task]:
  folder = root / "cls-acl10-unprocessed"
  tasks = []
  for domain in _CLS_DOMAINS:
    splits = {}
    for code, name in _CLS_LANGUAGES.items():
      if storage.find(folder, f"{name}/{domain}"):
        train, test = (cls(folder / name / domain / f"{x}.review") for x in ("train", "test"))
        # The test set also chooses the epoch of its own language's classifier.
        splits[code] = Splits(train, test, test)
    if splits or storage.find(folder, f"*/{domain}"):
      tasks.append(_task("cls", f"{domain} ", splits, folder))
  return tasks


# --------------------------------------------------------------------------------------------
# Common to all


def _score(splits: Mapping[str, Splits], prefix: str, *vectors: np.ndarray) -> list[suite.Result]:
  """Returns accuracies of classifiers from English into each language and back."""
  from vmsst.evaluation.metrics import classification  # Lazily: it needs JAX.

  classes = sorted({label for split in splits.values() for label in split.train.labels})
  parts = [part for split in splits.values() for part in split.parts]
  labels = [np.array([classes.index(x) for x in part.labels]) for part in parts]
  labeled = map(classification.LabeledVectors, vectors, labels)
  learned, tests = {}, {}
  for code, split in splits.items():
    train, dev = next(labeled), next(labeled)
    learned[code] = classification.Split(train, dev)
    tests[code] = dev if split.test is split.dev else next(labeled)
  accuracies = classification.transfer_accuracies(learned, tests, num_classes=len(classes))
  others = [code for code in splits if code != "en"]
  pairs = [pair for code in others for pair in (("en", code), (code, "en"))]
  return [topics.result(pair, accuracies[pair[0]][pair[1]], prefix) for pair in pairs]


def _task(name: str, prefix: str, splits: Mapping[str, Splits], folder: storage.Path) -> suite.Task:
  if "en" not in splits or len(splits) < 2:
    raise errors.InputError(
      f"{folder}: {prefix}{name} needs English and another language, but has "
      f"{', '.join(splits) or 'none'}"
    )
  classes = {label for split in splits.values() for label in split.train.labels}
  for code, split in splits.items():
    if unknown := {label for part in split.parts for label in part.labels} - classes:
      raise errors.InputError(f"{folder}: {prefix}{code}: no training document of class {unknown}")
  sides = {
    code: [suite.Side(code, part.texts, split=sentences) for part in split.parts]
    for code, split in splits.items()
  }
  return suite.Task(
    prefix.strip() or name,
    tuple(itertools.chain(*sides.values())),
    functools.partial(_score, splits, prefix),
    held_out=tuple(side for sides_of_language in sides.values() for side in sides_of_language[1:]),
    large=True,
  )


def _not_empty(documents: Documents, path: storage.Path) -> Documents:
  if not documents.texts:
    raise errors.InputError(f"{path}: contains no document")
  return documents


def _sets(codes: Iterable[str], prefix: str = "") -> list[str]:
  """Returns the names of results between English and each other language."""
  others = [code for code in codes if code != "en"]
  return [f"{prefix}{pair}" for x in others for pair in (f"en->{x}", f"{x}->en")]


MLDOC = suite.Benchmark(
  name="mldoc",
  title="MLDoc, topics of news",
  files=suite.Files(
    ("mldoc",),
    "LANGUAGE/LANGUAGE.train.1000, .dev and .test, as in english/english.train.1000",
    "the news need an agreement with NIST (Reuters RCV1, RCV2); facebookresearch/MLDoc converts "
    "them to these files",
  ),
  read=_read_mldoc,
  averages=topics.means,
  sets=_sets(_MLDOC_LANGUAGES),
)
CLS = suite.Benchmark(
  name="cls",
  title="CLS, sentiments of Amazon reviews",
  files=suite.Files(
    ("cls-acl10-unprocessed",),
    "{en,de,fr,jp}/{books,dvd,music}/{train,test}.review",
    "download cls-acl10-unprocessed.tar.gz from zenodo.org, record 3251672 (Webis-CLS-10)",
  ),
  read=_read_cls,
  averages=topics.means,
  sets=[name for domain in _CLS_DOMAINS for name in _sets(_CLS_LANGUAGES, f"{domain} ")],
)

_CLOSING = r"[\"'”’»›)\]）」』】》〉]*+"
_SPACED = rf"(?<![.!?…])(?P<stop>[.!?…]++){_CLOSING}(?=\s++(?P<next>\S))"
# Chinese and Japanese, Arabic and Urdu, Devanagari, Ethiopic, Armenian, Khmer, Burmese.
_UNSPACED = rf"[。！？｡؟۔।॥።፧։។៕။]++{_CLOSING}"
_BOUNDARY = re.compile(rf"{_SPACED}|{_UNSPACED}|\n")


def sentences(text: str) -> list[str]:
  """Returns the sentences of a document; a blank document has one empty sentence."""
  pieces, start = [], 0
  for match in _BOUNDARY.finditer(text):
    if _ends_sentence(text, match):
      pieces.append(text[start : match.end()])
      start = match.end()
  pieces.append(text[start:])
  kept = [
    piece
    for piece in (" ".join(part.split()) for part in pieces)
    if not text_fields.is_blank(piece)
  ]
  return kept or [""]


def _ends_sentence(text: str, boundary: re.Match[str]) -> bool:
  """Returns whether a mark ends a sentence, given its context."""
  if boundary["stop"] is None:
    return True
  if boundary["next"].islower():
    return False
  before = text[max(0, boundary.start() - 2) : boundary.start()]
  initial = before[-1:].isupper() and not before[:-1].isalnum()
  return boundary["stop"] != "." or not initial
