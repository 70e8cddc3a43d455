import warnings

import fake_encoders
import line_files
import numpy as np
import pytest

from vmsst import languages
from vmsst.evaluation import embedder, suite
from vmsst.evaluation.benchmarks import documents as benchmarks
from vmsst.evaluation.benchmarks import topics
from vmsst.evaluation.metrics import classification


def share_of_axes(splits, tests, *, num_classes):
  """Replaces the training, which takes seconds to compile: the largest axis is the class."""

  def right(data):
    return np.mean(data.vectors_ND.argmax(axis=1) == data.label_N)

  assert {(right(x.train), len(x.train.label_N), right(x.dev)) for x in splits.values()} == {
    (1, 2 * num_classes, 1)
  }
  return {x: {y: np.array(2 * [right(test)]) for y, test in tests.items()} for x in splits}


def test_mldoc_goes_from_english_and_into_it(tmp_path, monkeypatch):
  monkeypatch.setattr(classification, "transfer_accuracies", share_of_axes)
  for name, classes in (("english", "CEGM"), ("german", "CEMG")):
    for part, texts in (("train.1000", 2 * "CEGM"), ("dev", "CEGM"), ("test", classes)):
      rows = [
        (f"{label}CAT", f"Word. {text}.") for label, text in zip(2 * "CEGM", texts, strict=False)
      ]
      line_files.write_tsv(tmp_path / "mldoc" / name / f"{name}.{part}", rows)
  (task,) = benchmarks.MLDOC.read(tmp_path)
  encoder = fake_encoders.FakeEncoder(lambda text: [2 * (text[0] == x) for x in "CEGM"])
  results = task.results(embedder.Embedder(encoder), [None])[None]
  assert [(x.name, x.languages, x.metrics) for x in results] == [
    ("en->de", ("en", "de"), {"accuracy": 50, "deviation": 0}),
    ("de->en", ("de", "en"), {"accuracy": 100, "deviation": 0}),
  ]
  assert benchmarks.MLDOC.summarize(results, None) == {
    "accuracy (incomplete)": 75,
    "accuracy from English (incomplete)": 50,
    "accuracy into English (incomplete)": 100,
  }
  assert len(benchmarks.MLDOC.missing(results)) == 12


def test_mldoc_written_as_python_prints_bytes_is_decoded(tmp_path):
  path = tmp_path / "x.dev"
  text = "Börse: it's\tup"
  line_files.write_text(path, f"CCAT\t{text.encode()!r}\nGCAT\tplain\ttext\nMCAT\tb'\n")
  found = benchmarks.mldoc(path)
  assert found.texts == [text, "plain\ttext", "b'"]
  assert found.labels == ["CCAT", "GCAT", "MCAT"]


ITEM = "<item><rating>{}</rating><summary>Sum &amp; é</summary><text>Text.\nMore</text></item>"


def test_cls_takes_each_domain_and_chooses_epochs_by_the_test_set(tmp_path):
  folder = tmp_path / "cls-acl10-unprocessed"
  head = '<?xml version="1.0" encoding="UTF-8"?>\n'
  for code in ("en", "jp"):
    for part, stars in {"train": ("5.0", "1.0", " 4.0\n", "2"), "test": "51"}.items():
      reviews = "".join(map(ITEM.format, stars))
      path = folder / code / "dvd" / f"{part}.review.gz"
      line_files.write_text(path, f"{head}<items>{reviews}</items>")
  (task,) = benchmarks.CLS.read(tmp_path)
  splits, prefix = task.score.args
  assert (task.name, prefix) == ("dvd", "dvd ")
  assert list(splits) == ["en", "ja"]
  assert splits["ja"].train.labels == ["positive", "negative", "positive", "negative"]
  assert splits["ja"].train.texts == ["Sum & é\nText.\nMore"] * 4
  assert len(splits["ja"].dev.texts) == 2
  assert splits["ja"].test is splits["ja"].dev
  results = [suite.Result(x, (), {}) for x in ("dvd en->ja", "dvd ja->en")]
  assert len(benchmarks.CLS.missing(results)) == 16


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


def score(task):
  embed = embedder.Embedder(fake_encoders.FakeEncoder(lambda text: text.split()))
  return {x.name: x for x in task.score(*map(embed, task.sides))}


def test_accuracies_are_those_of_scikit_learn(tmp_path):
  neural_network = pytest.importorskip("sklearn.neural_network")
  exceptions = pytest.importorskip("sklearn.exceptions")
  arrays = write_sib200(tmp_path)
  found = score(topics.transfer_task(topics.sib200(tmp_path), into_english=True))
  assert list(found) == ["eng_Latn->eng_Latn", "eng_Latn->jav_Latn", "jav_Latn->eng_Latn"]
  for result in found.values():
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
  pairs = {("en", "en"): 1.0, ("en", "de"): 0.5, ("de", "en"): 0.25, ("en", "fr"): 0.75}
  results = [topics.result(pair, np.array([x, x])) for pair, x in pairs.items()]
  seen = suite.seen_test(map(languages.language, ["eng_Latn", "deu"]))
  assert topics.means(results, seen, complete=True) == {
    "accuracy": 50.0,
    "accuracy from English": 62.5,
    "accuracy into English": 25.0,
    "accuracy seen": 37.5,
    "accuracy unseen": 75.0,
  }
  assert topics.SIB200.summarize([results[0], results[3]], None) == {
    "accuracy (incomplete)": 75.0,
    "English": 100.0,
  }


def test_real_topics_are_read(data_root):
  sib200 = topics.sib200(data_root / "sib200")
  assert (len(sib200.texts), sib200.num_classes, len(sib200.label_N)) == (55, 7, 1004)
