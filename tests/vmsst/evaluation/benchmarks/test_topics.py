import warnings

import fake_encoders
import line_files
import numpy as np
import pytest

from vmsst import errors, languages
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import topics, transfer

SIZES = {"train": 60, "valid": 48, "test": 600}
LABELS = ["negative", "neutral", "positive"]
HEADER = "split\tid\tlabel\ttext"


def write_nusax(folder):
  """Returns overlapping classes on two axes of four, which are swapped in Javanese."""
  rng = np.random.default_rng(0)
  center = np.array([[2.0, 0, 0, 0], [0, 2, 0, 0], [0, 0, 0, 0]])
  rows = {"english": [HEADER], "javanese": [HEADER]}
  arrays = {}
  for split, size in SIZES.items():
    label_N = rng.integers(3, size=size)
    vectors = {name: center[label_N] + rng.normal(size=(size, 4)) for name in rows}
    vectors["javanese"] = vectors["javanese"][:, [1, 0, 2, 3]]
    for name, vectors_ND in vectors.items():
      arrays[name, split] = vectors_ND, label_N
      for i, (label, vector_D) in enumerate(zip(label_N, vectors_ND, strict=True)):
        text = " ".join(map(repr, vector_D.tolist()))
        rows[name].append(f"{split}\t{split}{i}\t{LABELS[label]}\t{text}")
  for name, lines in rows.items():
    line_files.write_lines(folder / f"{name}.tsv", lines)
  return arrays


def score(task):
  embed = suite.Embedder(fake_encoders.FakeEncoder(lambda text: text.split()))
  return {x.name: x for x in task.score(*map(embed, task.sides))}


def test_accuracies_are_those_of_scikit_learn(tmp_path):
  neural_network = pytest.importorskip("sklearn.neural_network")
  exceptions = pytest.importorskip("sklearn.exceptions")
  arrays = write_nusax(tmp_path / "nusax")
  found = score(topics.transfer_task(topics.nusax(tmp_path / "nusax"), into_english=True))
  assert list(found) == ["eng->eng", "eng->jav", "jav->eng"]
  names = {"eng": "english", "jav": "javanese"}
  for result in found.values():
    source, target = (names[code] for code in result.languages)
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
  results = [transfer.result(pair, np.array([x, x])) for pair, x in pairs.items()]
  seen = suite.seen_test(map(languages.language, ["eng_Latn", "deu"]))
  assert transfer.means(results, seen, complete=True) == {
    "accuracy": 50.0,
    "accuracy from English": 62.5,
    "accuracy into English": 25.0,
    "accuracy seen": 37.5,
    "accuracy unseen": 75.0,
  }
  assert topics.NUSAX.summarize([results[0], results[3]], None) == {
    "accuracy (incomplete)": 75.0,
    "English": 100.0,
  }


def test_languages_can_be_chosen_by_any_code(data_root):
  sib200 = topics.sib200(data_root / "sib200")
  assert (len(sib200.texts), sib200.num_classes, len(sib200.label_N)) == (55, 7, 1004)
  few = sib200.only(["de", "zh-TW"])
  assert list(few.texts) == ["eng_Latn", "deu_Latn", "zho_Hant"]
  assert [side.language for side in topics.transfer_task(few).sides] == list(few.texts)
  with pytest.raises(errors.InputError, match="sib200 has no Latin"):
    sib200.only(["lat"])
  assert list(topics.nusax(data_root / "nusax").texts)[:2] == ["eng", "ban"]
