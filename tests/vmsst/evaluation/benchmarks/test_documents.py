import functools
import warnings

import benchmark_trees
import fake_encoders
import line_files
import numpy as np
import pytest

from vmsst import languages
from vmsst.evaluation import embedder, suite
from vmsst.evaluation.benchmarks import documents
from vmsst.evaluation.metrics import classification


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    ('J. S. Bach came. "Why?" he asked. So (it is.) At 3.5 km. it ended... Ok… no', 5),
    ("One!!! Two?! Three", 3), ("今天好。明天呢？「好！」她说。", 4), ("هل هذا؟ نعم. لا۔ہاں", 4),
    ("नमस्ते। कैसे", 2), ("first line\n\n second line \n", 2), ("Straße. é una frase", 1),
    ("  spare \t space. Here  ", 2), ("", 1), (" \n ", 1),
    ("!" * 100_000 + " " * 100_000, 1),  # in linear time
  ],
)  # fmt: skip
def test_documents_are_split_into_sentences(text, expected):
  sentences = documents.sentences(text)
  assert len(sentences) == expected, sentences
  assert "".join("".join(sentences).split()) == "".join(text.split())  # nothing is lost
  assert all(x == x.strip() for x in sentences)
  assert expected == 1 or all(sentences)


def train_sizes(sizes, splits, tests, *, num_classes):
  """Replaces the training, which takes seconds to compile: the largest axis is the class."""

  def right(data):
    return np.mean(data.vectors_ND.argmax(axis=1) == data.label_N)

  sizes |= {code: len(split.train.label_N) for code, split in splits.items()}
  assert all(right(split.train) == right(split.dev) == 1 for split in splits.values())
  return {x: {y: np.full(2, right(test)) for y, test in tests.items()} for x in splits}


def encode(text):
  return [2 * (text[0] == x) for x in "CEGM"]


def test_mldoc_goes_from_english_and_into_it(tmp_path, monkeypatch):
  sizes = {}
  monkeypatch.setattr(classification, "transfer_accuracies", functools.partial(train_sizes, sizes))
  for name, classes in (("english", "CEGM"), ("german", "CEMG")):
    for part, texts in (("train.1000", 2 * "CEGM"), ("dev", "CEGM"), ("test", classes)):
      rows = [
        (f"{label}CAT", f"Word. {text}.") for label, text in zip(2 * "CEGM", texts, strict=False)
      ]
      line_files.write_tsv(tmp_path / "mldoc" / name / f"{name}.{part}", rows)
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


def test_mldoc_written_as_python_prints_bytes_is_decoded(tmp_path):
  path = tmp_path / "x.dev"
  text = "Börse: it's\tup"
  line_files.write_text(path, f"CCAT\t{text.encode()!r}\nGCAT\tplain\ttext\nMCAT\tb'\n")
  rows = [("CCAT", text), ("GCAT", "plain\ttext"), ("MCAT", "b'")]
  assert [*documents.mldoc_rows(path)] == rows


def test_cls_takes_each_domain_and_chooses_epochs_by_the_test_set(tmp_path, monkeypatch):
  sizes = {}
  monkeypatch.setattr(classification, "transfer_accuracies", functools.partial(train_sizes, sizes))
  item = "<item><rating>{}</rating><summary>{} &amp; é</summary><text>{}.\nMore</text></item>"
  for code in ("en", "jp"):
    for part, stars in {"train": ("5.0", "1.0", " 4.0\n", "2"), "test": "51"}.items():
      reviews = [item.format(x, "EC"[float(x) < 3], "CE"[float(x) > 3]) for x in stars]
      path = tmp_path / "cls-acl10-unprocessed" / code / "dvd" / f"{part}.review.gz"
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


SIZES = {"train": 60, "dev": 48, "test": 600}
LABELS = ["negative", "neutral", "positive"]
HEADER = "split\tindex_id\tcategory\ttext"


def write_sib200(folder):
  """Returns overlapping classes on two axes of four, which are swapped in Javanese."""
  rng = np.random.default_rng(0)
  center = np.array([[2.0, 0, 0, 0], [0, 2, 0, 0], [0, 0, 0, 0]])
  rows = {"eng_Latn": [HEADER], "jav_Latn": [HEADER]}
  arrays = {}
  for split, size in SIZES.items():
    label_N = rng.integers(3, size=size)
    vectors = {name: center[label_N] + rng.normal(size=(size, 4)) for name in rows}
    vectors["jav_Latn"] = vectors["jav_Latn"][:, [1, 0, 2, 3]]
    for name, vectors_ND in vectors.items():
      arrays[name, split] = vectors_ND, label_N
      for i, (label, vector_D) in enumerate(zip(label_N, vectors_ND, strict=True)):
        text = " ".join(map(repr, vector_D.tolist()))
        rows[name].append(f"{split}\t{split}{i}\t{LABELS[label]}\t{text}")
  for name, lines in rows.items():
    line_files.write_lines(folder / f"{name}.tsv", lines)
  return arrays


def test_accuracies_equal_scikit_learn(tmp_path):
  neural_network = pytest.importorskip("sklearn.neural_network")
  exceptions = pytest.importorskip("sklearn.exceptions")
  arrays = write_sib200(tmp_path)
  task = documents.transfer_task("sib200", documents.sib200(tmp_path), into_english=True)
  embed = embedder.Embedder(fake_encoders.FakeEncoder(lambda text: text.split()))
  results = task.score(*map(embed, task.sides))
  pairs = ["eng_Latn->eng_Latn", "eng_Latn->jav_Latn", "jav_Latn->eng_Latn"]
  assert [result.name for result in results] == pairs
  for result in results:
    source, target = result.languages
    values = []
    for seed in range(2):
      peer = neural_network.MLPClassifier(
        (10, 8), activation="tanh", batch_size=12, random_state=seed
      )
      with warnings.catch_warnings():
        warnings.simplefilter("ignore", exceptions.ConvergenceWarning)
        peer.fit(*arrays[source, "train"])
      values.append(100 * peer.score(*arrays[target, "test"]))
    assert np.mean(values) > 60 if source == target else np.mean(values) < 45
    assert result.metrics["accuracy"] == pytest.approx(np.mean(values), abs=4)
    assert 0 < result.metrics["deviation"] < 4


def test_means_tell_directions_apart():
  pairs = {("en", "en"): 100.0, ("en", "de"): 50.0, ("de", "en"): 25.0, ("en", "fr"): 75.0}
  results = [suite.Result("->".join(pair), pair, {"accuracy": x}) for pair, x in pairs.items()]
  seen = suite.seen_test(map(languages.language, ["eng_Latn", "deu"]))
  assert documents.summarize(results, seen, complete=True) == {
    "accuracy": 50.0,
    "accuracy from English": 62.5,
    "accuracy into English": 25.0,
    "accuracy seen": 37.5,
    "accuracy unseen": 75.0,
    "English": 100.0,
  }
  assert documents.SIB200.summarize([results[0], results[3]], None) == {
    "accuracy (incomplete)": 75.0,
    "English": 100.0,
  }


def test_real_topics_are_read(data_root):
  sib200 = documents.sib200(data_root / "sib200")
  assert len(sib200) == 55
  split = sib200["eng_Latn"]
  assert [len(part.texts) for part in (split.train, split.dev, split.test)] == [701, 99, 204]
  assert len(set(split.train.labels)) == 7
