"""Zero-shot cross-lingual classification: documents of MLDoc and CLS, and sentences of SIB-200.

The protocol is from the EMS paper (sections V-E and V-F, Tables XI and XII): a multilayer
perceptron as in LASER is trained on frozen vectors of texts in one language; the development texts
choose the epoch; and it is tested in another language. In a result `en->xx`, trained in English,
`accuracy` is the mean of five seeds and `deviation` their standard deviation.

The vector of a document is the mean over its sentences. In any language, a sentence ends

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
  """Texts of one language, with a class label each."""

  labels: Sequence[str]
  texts: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Splits:
  """Data of one language: for training, choice of the epoch, and testing."""

  train: LabeledTexts
  dev: LabeledTexts
  test: LabeledTexts


SplitsByCode = Mapping[str, Splits]
"""Data by language code, with English."""


def _labeled_texts(rows: Iterable[tuple[str, str]]) -> LabeledTexts:
  return LabeledTexts(*zip(*rows, strict=True))


_MLDOC_NAMES = {
  **{"en": "english", "de": "german", "es": "spanish", "fr": "french"},
  **{"it": "italian", "ja": "japanese", "ru": "russian", "zh": "chinese"},
}
_CLS_NAMES = {"en": "en", "de": "de", "fr": "fr", "ja": "jp"}
_CLS_DOMAINS = ("books", "dvd", "music")


def mldoc_rows(path: storage.Path) -> Iterator[tuple[str, str]]:
  """Yields label and text of each line `label TAB text` of a file of MLDoc.

  Decodes texts that MLDoc's script wrote as Python bytes literals (b'...').
  """
  for line in text_files.read_lines(str(path)):
    label, text = line.split("\t", 1)
    if re.fullmatch(r"b'.+'|b\".+\"", text):
      text = ast.literal_eval(text).decode("utf-8")
    yield label, text


def cls_rows(path: storage.Path) -> Iterator[tuple[str, str]]:
  """Yields label and text of each `item` with `rating`, `summary` and `text` of a file of CLS.

  More than three stars are positive, fewer negative. A document is the summary and the text, as in
  the processed form of CLS.
  """
  root = ElementTree.fromstring(b"".join(text_files.read_chunks(str(path))))
  for item in root.iter("item"):
    rating, summary, text = (
      item.findtext(name, "").strip() for name in ("rating", "summary", "text")
    )
    yield "positive" if float(rating) > 3 else "negative", f"{summary}\n{text}".strip()


def sib200(folder: storage.Path) -> dict[str, Splits]:
  """Reads SIB-200's topics from CODE.tsv: split, index_id, category, text, with a header.

  Raises:
    InputError: a file is broken.
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
  def part(name: str, end: str) -> LabeledTexts:
    path = files.plain_or_gzipped(root / "mldoc" / name / f"{name}.{end}")
    return _labeled_texts(mldoc_rows(path))

  splits = {
    code: Splits(part(name, "train.1000"), part(name, "dev"), part(name, "test"))
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
        paths = [files.plain_or_gzipped(folder / f"{part}.review") for part in ("train", "test")]
        train, test = (_labeled_texts(cls_rows(path)) for path in paths)
        # The test set also chooses the epoch of its own language's classifier.
        splits[code] = Splits(train, test, test)
    if splits:
      prefix = f"{domain} "
      tasks.append(transfer_task(domain, splits, prefix=prefix, documents=True, into_english=True))
  return tasks


def transfer_task(
  name: str,
  splits: SplitsByCode,
  *,
  prefix: str = "",
  documents: bool = False,
  into_english: bool = False,
) -> suite.Task:
  """Returns the task of classifying texts after training in English, `en->xx`.

  Args:
    name: Name of the task.
    splits: The texts.
    prefix: Prefix of the results' names.
    documents: Whether the vector of a text is the mean over its sentences, which are not in memory
      together. There is no result within English: the test set of CLS also chooses the epoch.
    into_english: Whether to add `xx->en` for every language, at the cost of a training for each.

  Raises:
    InputError: English or another language is missing.
  """
  english = next((code for code in splits if _is_english(code)), "")
  if not english or (documents and len(splits) < 2):
    raise errors.InputError(f"{name}: English or another language is missing; add its files")
  classes = sorted({label for split in splits.values() for label in split.train.labels})
  sides = {}
  for code, split in splits.items():
    for part in (split.train, split.dev, split.test):
      sides[part] = suite.Side(code, part.texts, split=sentences if documents else None)
  training = {split.train for split in splits.values()}
  held_out = tuple(side for part, side in sides.items() if part not in training)
  pairs = [(english, code) for code in splits if not (documents and code == english)]
  pairs += [(code, english) for code in splits if into_english and code != english]

  def score(*vectors: np.ndarray) -> list[suite.Result]:
    from vmsst.evaluation.metrics import classification  # Lazily: it needs JAX.

    labeled = {}
    for part, vectors_ND in zip(sides, vectors, strict=True):
      label_N = np.array([classes.index(label) for label in part.labels])
      labeled[part] = classification.LabeledVectors(vectors_ND, label_N)
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

  return suite.Task(name, tuple(sides.values()), score, held_out, large=documents)


def _is_english(code: str) -> bool:
  return languages.language(code) == languages.language("en")


def summarize(results: Sequence[suite.Result], seen: suite.Seen, complete: bool) -> suite.Numbers:
  """Returns means of `accuracy` over the results between two languages.

  Over all results; over results `from English` and `into English`, if both exist; and over results
  with languages seen in training and the others, if known. Also the accuracy within `English`.
  """
  between = [x for x in results if x.languages[0] != x.languages[1]]
  parts = {"accuracy": between}
  outward = [x for x in between if _is_english(x.languages[0])]
  inward = [x for x in between if _is_english(x.languages[1])]
  if outward and inward:
    parts |= {"accuracy from English": outward, "accuracy into English": inward}
  numbers: suite.Numbers = {}
  for name, part in parts.items():
    numbers |= suite.mean(name, (x.metrics["accuracy"] for x in part), complete=complete)
  numbers |= suite.seen_means("accuracy", between, "accuracy", seen, complete=complete)
  within = [x.metrics["accuracy"] for x in results if x.languages[0] == x.languages[1]]
  return numbers | suite.mean("English", within, complete=True)


def _sets(codes: Iterable[str], prefix: str = "") -> list[str]:
  """Returns the names of results between English and each other language."""
  others = [code for code in codes if code != "en"]
  return [f"{prefix}{pair}" for x in others for pair in (f"en->{x}", f"{x}->en")]


MLDOC = suite.Benchmark(
  name="mldoc",
  title="MLDoc, topics of news",
  files=suite.Files(
    ("mldoc",), "LANGUAGE/LANGUAGE.train.1000, .dev and .test, as in english/english.train.1000"
  ),
  read=_read_mldoc,
  averages=summarize,
  sets=_sets(_MLDOC_NAMES),
)
CLS = suite.Benchmark(
  name="cls",
  title="CLS, sentiments of Amazon reviews",
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
  sets=[each for each in languages.LANGUAGES if each.flores],
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
    before = text[max(0, match.start() - 2) : match.start()]
    initial = before[-1:].isupper() and not before[:-1].isalnum()
    goes_on = match["stop"] and (match["next"].islower() or (match["stop"] == "." and initial))
    if not goes_on:
      pieces.append(text[start : match.end()])
      start = match.end()
  pieces.append(text[start:])
  kept = [
    piece for piece in (" ".join(part.split()) for part in pieces) if not text_files.is_blank(piece)
  ]
  return kept or [""]
