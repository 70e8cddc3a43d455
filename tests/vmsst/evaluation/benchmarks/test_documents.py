import functools

import benchmark_trees
import fake_encoders
import line_files
import numpy as np
import pytest

from vmsst.evaluation.benchmarks import documents
from vmsst.evaluation.metrics import classification


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    ('J. S. Bach came. "Why?" he asked. So (it is.) At 3.5 km. it ended... Ok… no', 5),
    ("One!!! Two?! Three", 3), ("今天好。明天呢？「好！」她说。", 4), ("هل هذا؟ نعم. لا۔ہاں", 4),
    ("नमस्ते। कैसे", 2), ("first line\n\n second line \n", 2), ("Straße. é una frase", 1),
    ("  spare \t space. Here  ", 2), ("", 1), (" \n ", 1),
    ("!" * 100_000 + " " * 100_000, 1),  # Must take linear time.
  ],
)  # fmt: skip
def test_documents_are_split_into_sentences(text, expected):
  sentences = documents.sentences(text)
  assert len(sentences) == expected, sentences
  assert "".join("".join(sentences).split()) == "".join(text.split())  # No character is lost.
  assert all(x == x.strip() for x in sentences)
  assert expected == 1 or all(sentences)


def train_sizes(sizes, splits, tests, *, num_classes):
  """Replaces the training, because it takes seconds to compile. The largest axis is the class."""

  def right(data):
    return np.mean(data.vectors_ND.argmax(axis=1) == data.label_N)

  sizes |= {code: len(split.train.label_N) for code, split in splits.items()}
  assert all(right(split.train) == right(split.dev) == 1 for split in splits.values())
  return {x: {y: np.full(2, right(test)) for y, test in tests.items()} for x in splits}


def encode(text):
  return [2 * (text[0] == x) for x in "CEGM"]


def test_mldoc_has_results_from_english_and_into_english(tmp_path, monkeypatch):
  sizes = {}
  monkeypatch.setattr(classification, "transfer_accuracies", functools.partial(train_sizes, sizes))
  for name, classes in (("english", "CEGM"), ("german", "CEMG")):
    for suffix, texts in (("train.1000", 2 * "CEGM"), ("dev", "CEGM"), ("test", classes)):
      rows = [
        (f"{label}CAT", f"Word. {text}.") for label, text in zip(2 * "CEGM", texts, strict=False)
      ]
      line_files.write_tsv(tmp_path / "mldoc" / name / f"{name}.{suffix}", rows)
  scored = benchmark_trees.run_benchmark(
    documents.MLDOC, fake_encoders.FakeEncoder(encode), tmp_path
  )
  assert sizes == {"en": 8, "de": 8}
  assert [(x["name"], x["metrics"]) for x in scored["results"]] == [
    ("en->de", {"accuracy": 50, "deviation": 0}),
    ("de->en", {"accuracy": 100, "deviation": 0}),
  ]
  assert scored["summary"] == {
    "accuracy (incomplete)": 75,
    "accuracy from English (incomplete)": 50,
    "accuracy into English (incomplete)": 100,
  }
  assert len(scored["missing"]) == 12


def test_mldoc_texts_in_python_bytes_literals_are_decoded(tmp_path):
  path = tmp_path / "x.dev"
  text = "Börse: it's\tup"
  line_files.write_text(path, f"CCAT\t{text.encode()!r}\nGCAT\tplain\ttext\nMCAT\tb'\n")
  rows = [("CCAT", text), ("GCAT", "plain\ttext"), ("MCAT", "b'")]
  assert [*documents.mldoc_rows(path)] == rows


def test_cls_selects_epochs_by_the_test_set(tmp_path, monkeypatch):
  sizes = {}
  monkeypatch.setattr(classification, "transfer_accuracies", functools.partial(train_sizes, sizes))
  item = "<item><rating>{}</rating><summary>{} &amp; é</summary><text>{}.\nMore</text></item>"
  for code in ("en", "jp"):
    for split, stars in {"train": ("5.0", "1.0", " 4.0\n", "2"), "test": "51"}.items():
      reviews = [item.format(x, "EC"[float(x) < 3], "CE"[float(x) > 3]) for x in stars]
      path = tmp_path / "cls-acl10-unprocessed" / code / "dvd" / f"{split}.review.gz"
      head = '<?xml version="1.0" encoding="UTF-8"?>\n'
      line_files.write_text(path, f"{head}<items>{''.join(reviews)}</items>")
  rows = [("positive", "E & é\nE.\nMore"), ("negative", "C & é\nC.\nMore")]
  assert [*documents.cls_rows(path)] == rows
  scored = benchmark_trees.run_benchmark(documents.CLS, fake_encoders.FakeEncoder(encode), tmp_path)
  assert sizes == {"en": 4, "ja": 4}
  names = ["dvd en->ja", "dvd ja->en"]
  assert [(x["name"], x["metrics"]["accuracy"]) for x in scored["results"]] == [
    (name, 100) for name in names
  ]
  assert len(scored["missing"]) == 16


def test_sib200_has_results_from_english_into_all_languages(tmp_path, monkeypatch):
  sizes = {}
  monkeypatch.setattr(classification, "transfer_accuracies", functools.partial(train_sizes, sizes))
  for code, classes in {"deu_Latn": "CE", "eng_Latn": "CE", "jav_Latn": "EC"}.items():
    rows = [("split", "index_id", "category", "text")]
    rows += [(split, 1, label, label) for split in ("train", "dev") for label in "CEGM"]
    rows += [("test", 1, *pair) for pair in zip("CE", classes, strict=True)]
    line_files.write_tsv(tmp_path / "sib200" / f"{code}.tsv", rows)
  encoder = fake_encoders.FakeEncoder(encode)
  scored = benchmark_trees.run_benchmark(documents.SIB200, encoder, tmp_path)
  assert sizes == {"eng_Latn": 4}
  expected = {"deu_Latn": 100, "eng_Latn": 100, "jav_Latn": 0}
  assert {x["name"]: x["metrics"]["accuracy"] for x in scored["results"]} == {
    f"eng_Latn->{code}": accuracy for code, accuracy in expected.items()
  }
  assert scored["summary"] == {"accuracy (incomplete)": 50, "English": 100}
  task = documents.transfer_task("sib200", documents.sib200(tmp_path / "sib200"), into_english=True)
  names = [x.name for x in task.score(*(np.array([*map(encode, x.texts)]) for x in task.text_sets))]
  assert names[3:] == ["deu_Latn->eng_Latn", "jav_Latn->eng_Latn"]
  assert sizes == dict.fromkeys(expected, 4)
