import gzip
import json

import line_files
import numpy as np
import pytest

from vmsst import errors
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import document_vectors
from vmsst.evaluation.benchmarks import documents as benchmarks
from vmsst.evaluation.metrics import classification


def test_the_vector_of_a_document_is_the_mean_of_its_sentences(monkeypatch):
  monkeypatch.setattr(document_vectors, "BLOCK_DOCUMENTS", 2)
  calls = []

  def embed(side):
    calls.append((side.language, len(side.texts)))
    return np.array([[len(x), x.count("e")] for x in side.texts], np.float32)

  texts = ["One. Three, Four!", "Zero", "", "Ten. Eleven. Sixteen."]
  expected = [[(4 + 12) / 2, 1.5], [4, 1], [0, 0], [(4 + 7 + 8) / 3, 5 / 3]]
  np.testing.assert_allclose(document_vectors.mean_vectors(embed, "en", texts), expected, rtol=1e-6)
  assert calls == [("en", 3), ("en", 4)]


def write_mldoc(folder, language, sizes):
  for end, size in sizes.items():
    rows = [f"{'CEGM'[i % 4]}CAT\tWord {'CEGM'[i % 4]}. Word.\n" for i in range(size)]
    line_files.write_text(folder / language / f"{language}.{end}", "".join(rows))


class Words:
  """Returns vectors with an axis per class in English; in German two of the four are swapped."""

  def encode(self, texts, language):
    axes = {"en": "CEGM", "de": "ECGM"}
    vectors = np.zeros((len(texts), 4))
    for i, (text, code) in enumerate(zip(texts, language, strict=True)):
      for axis, letter in enumerate(axes[code]):
        vectors[i, axis] = 4 * text.count(f" {letter}.")
    return vectors


def by_nearest_centroid(splits, tests, *, num_classes):
  """Replaces the training, which takes seconds to compile."""
  found = {}
  for source, split in splits.items():
    assert len(split.dev.label_N) == 16
    train = split.train
    centroids = np.stack(
      [train.vectors_ND[train.label_N == each].mean(axis=0) for each in range(num_classes)]
    )
    found[source] = {}
    for target, test in tests.items():
      distance = np.linalg.norm(test.vectors_ND[:, None] - centroids, axis=2)
      right = np.mean(distance.argmin(axis=1) == test.label_N)
      found[source][target] = np.array([right, right])
  return found


def test_mldoc_goes_from_english_and_into_it(tmp_path, monkeypatch):
  monkeypatch.setattr(classification, "transfer_accuracies", by_nearest_centroid)
  sizes = {"train.1000": 48, "dev": 16, "test": 20}
  write_mldoc(tmp_path / "mldoc", "english", sizes)
  write_mldoc(tmp_path / "mldoc", "german", sizes | {"test": 8})
  (task,) = benchmarks.MLDOC.read(tmp_path)
  results = task.measure(suite.Tools(suite.Embedder(Words()), tmp_path / "work"))
  assert [(x.name, x.languages) for x in results] == [
    ("en->de", ("en", "de")),
    ("de->en", ("de", "en")),
  ]
  for result in results:
    assert result.metrics == pytest.approx({"accuracy": 50.0, "deviation": 0.0})
  assert benchmarks.MLDOC.summarize(results, None) == pytest.approx(
    {
      "accuracy (incomplete)": 50.0,
      "accuracy from English (incomplete)": 50.0,
      "accuracy into English (incomplete)": 50.0,
    }
  )
  assert len(benchmarks.MLDOC.missing(results)) == 12


def test_mldoc_written_as_python_prints_bytes_is_decoded(tmp_path):
  path = tmp_path / "x.dev"
  text = "Börse: it's\tup"
  line_files.write_text(path, f"CCAT\t{text.encode()!r}\nGCAT\tplain\ttext\nMCAT\tb'\n")
  found = benchmarks.mldoc(path)
  assert found.texts == [text, "plain\ttext", "b'"]
  assert found.labels == ["CCAT", "GCAT", "MCAT"]
  line_files.write_text(path, "CCAT\tb'\\xff'\n")
  with pytest.raises(errors.InputError, match=r"x\.dev:1: not a valid Python bytes literal"):
    benchmarks.mldoc(path)


ITEM = "<item><rating>{}</rating><summary>Sum &amp; é</summary><text>Text.\nMore</text></item>"


def test_cls_reviews_are_read(tmp_path):
  path = tmp_path / "train.review.gz"
  body = "<items>" + "".join(ITEM.format(x) for x in ("5.0", "1.0", " 4.0\n", "2")) + "</items>"
  path.write_bytes(gzip.compress(f'<?xml version="1.0" encoding="UTF-8"?>\n{body}'.encode()))
  found = benchmarks.cls(path)
  assert found.labels == ["positive", "negative", "positive", "negative"]
  assert found.texts == ["Sum & é\nText.\nMore"] * 4


def test_cls_takes_each_domain_and_chooses_epochs_by_the_test_set(tmp_path):
  folder = tmp_path / "cls-acl10-unprocessed"
  for code in ("en", "jp"):
    for part, count in {"train": 2, "test": 1}.items():
      reviews = (ITEM.format(5) + ITEM.format(1)) * count
      line_files.write_text(folder / code / "dvd" / f"{part}.review", f"<items>{reviews}</items>")
  (task,) = benchmarks.CLS.read(tmp_path)
  assert (task.name, task.measure.keywords["prefix"]) == ("dvd", "dvd ")
  splits = task.measure.keywords["splits"]
  assert list(splits) == ["en", "ja"]
  assert [len(x.texts) for x in (splits["ja"].train, splits["ja"].dev)] == [4, 2]
  assert splits["ja"].test is splits["ja"].dev
  results = [suite.Result(x, (), {}) for x in ("dvd en->ja", "dvd ja->en")]
  assert len(benchmarks.CLS.missing(results)) == 16
  (folder / "jp" / "dvd" / "test.review").unlink()
  with pytest.raises(errors.InputError, match=r"neither .*test\.review nor test\.review\.gz"):
    benchmarks.CLS.read(tmp_path)


def amazon_lines(*stars, code="en"):
  records = [
    {"language": code, "stars": x, "review_body": f"Body {i}", "product_category": "book"}
    for i, x in enumerate(stars)
  ]
  return [json.dumps(record) for record in records]


def test_amazon_reviews_are_balanced_and_without_three_stars(tmp_path):
  path = tmp_path / "dataset_en_train.json"
  line_files.write_lines(path, amazon_lines("1", "1", "1", "2", "2", "3", "4", 4, 5, "5"))
  found = benchmarks.amazon(path, "en", limit=2)
  assert found.texts == [f"Body {i}" for i in (0, 1, 3, 4, 6, 7, 8, 9)]
  assert found.labels == ["negative"] * 4 + ["positive"] * 4
  assert len(benchmarks.amazon(path, "en").texts) == 9
  with pytest.raises(errors.InputError, match="3 of each are needed"):
    benchmarks.amazon(path, "en", limit=3)
  with pytest.raises(errors.InputError, match=r"train\.json:1: language 'en', not 'de'"):
    benchmarks.amazon(path, "de")
  line_files.write_lines(path, amazon_lines("6"))
  with pytest.raises(errors.InputError, match=r"train\.json:1: a rating of '6'"):
    benchmarks.amazon(path, "en")
