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
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
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


def _read_mldoc(root: storage.Path) -> list[suite.LargeTask]:
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


def _read_cls(root: storage.Path) -> list[suite.LargeTask]:
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


def transfer_results(
  tools: suite.Tools, *, splits: Mapping[str, Splits], prefix: str = ""
) -> list[suite.Result]:
  """Returns accuracies of classifiers from English into each language and back.

  Only the mean sentence vectors of each document are kept.

  Args:
    tools: Embed the sentences of documents.
    splits: Documents by language code, including `en`.
    prefix: Prefix of the results' names.
  """
  from vmsst.evaluation.metrics import classification  # Lazily: it needs JAX.

  classes = sorted({label for split in splits.values() for label in split.train.labels})

  def embedded(code: str, part: Documents) -> classification.LabeledVectors:
    unknown = set(part.labels) - set(classes)
    if unknown:
      raise errors.InputError(f"{prefix}{code}: no training document of class {unknown}")
    vectors_ND = mean_vectors(tools.embed, code, part.texts)
    return classification.LabeledVectors(
      vectors_ND, np.array([classes.index(x) for x in part.labels])
    )

  learned, tests = {}, {}
  for code, of_code in splits.items():
    dev = embedded(code, of_code.dev)
    learned[code] = classification.Split(embedded(code, of_code.train), dev)
    tests[code] = dev if of_code.test is of_code.dev else embedded(code, of_code.test)
  accuracies = classification.transfer_accuracies(learned, tests, num_classes=len(classes))
  others = [code for code in splits if code != "en"]
  pairs = [pair for code in others for pair in (("en", code), (code, "en"))]
  return [topics.result(pair, accuracies[pair[0]][pair[1]], prefix) for pair in pairs]


def _task(
  name: str, prefix: str, splits: Mapping[str, Splits], folder: storage.Path
) -> suite.LargeTask:
  if "en" not in splits or len(splits) < 2:
    raise errors.InputError(
      f"{folder}: {prefix}{name} needs English and another language, but has "
      f"{', '.join(splits) or 'none'}"
    )
  measure = functools.partial(transfer_results, splits=splits, prefix=prefix)
  return suite.LargeTask(f"{prefix.strip() or name}", measure, functools.partial(_held_out, splits))


def _held_out(splits: Mapping[str, Splits]) -> Iterator[str]:
  """Yields the sentences of all documents except training documents."""
  for split in splits.values():
    for part in (split.test,) if split.test is split.dev else (split.dev, split.test):
      for document in part.texts:
        yield from sentences(document)


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
  folders=("mldoc",),
  layout="LANGUAGE/LANGUAGE.train.1000, .dev and .test, as in english/english.train.1000",
  source=(
    "the news need an agreement with NIST (Reuters RCV1, RCV2); facebookresearch/MLDoc converts "
    "them to these files"
  ),
  read=_read_mldoc,
  averages=topics.means,
  sets=_sets(_MLDOC_LANGUAGES),
)
CLS = suite.Benchmark(
  name="cls",
  title="CLS, sentiments of Amazon reviews",
  folders=("cls-acl10-unprocessed",),
  layout="{en,de,fr,jp}/{books,dvd,music}/{train,test}.review",
  source="download cls-acl10-unprocessed.tar.gz from zenodo.org, record 3251672 (Webis-CLS-10)",
  read=_read_cls,
  averages=topics.means,
  sets=[name for domain in _CLS_DOMAINS for name in _sets(_CLS_LANGUAGES, f"{domain} ")],
)

BLOCK_DOCUMENTS = 4096  # Documents whose sentence vectors are in memory at once.


def mean_vectors(embed: suite.Embed, language: str, texts: Sequence[str]) -> np.ndarray:
  """Returns the vector of every document, float32 [N, D]: the mean of its sentence vectors.

  Sentence vectors are averaged without normalization. Those of `BLOCK_DOCUMENTS` documents are in
  memory at once.

  Args:
    embed: Embeds sentences.
    language: Language code of the documents.
    texts: The documents, at least one.
  """
  means = []
  for start in range(0, len(texts), BLOCK_DOCUMENTS):
    block = texts[start : start + BLOCK_DOCUMENTS]
    split = [sentences(text) for text in block]
    count_N = np.array([len(pieces) for pieces in split])
    vectors_SD = embed(suite.Side(language, [piece for pieces in split for piece in pieces]))
    sum_ND = np.add.reduceat(vectors_SD, np.cumsum(count_N) - count_N, axis=0, dtype=np.float32)
    means.append(sum_ND / count_N[:, None].astype(np.float32))
  return np.concatenate(means)


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
