import warnings

import numpy as np
import pytest

from vmsst import errors
from vmsst.evaluation.metrics import classification


def clusters(rng, count, *, classes=4, dim=6, noise=0.2):
  label_N = rng.integers(classes, size=count)
  vectors_ND = 2 * np.eye(dim)[label_N] + noise * rng.normal(size=(count, dim))
  return classification.LabeledVectors(vectors_ND.astype(np.float32), label_N)


def test_accuracies_equal_scikit_learn():
  neural_network = pytest.importorskip("sklearn.neural_network")
  exceptions = pytest.importorskip("sklearn.exceptions")
  rng = np.random.default_rng(0)
  # The classes overlap. They differ in two of four axes, and these are swapped in language b.
  center = np.array([[2.0, 0, 0, 0], [0, 2, 0, 0], [0, 0, 0, 0]])
  data = {}
  for count in (60, 48, 600):
    label_N = rng.integers(3, size=count)
    for language, axes in (("a", [0, 1, 2, 3]), ("b", [1, 0, 2, 3])):
      vectors_ND = (center[label_N] + rng.normal(size=(count, 4)))[:, axes]
      labeled = classification.LabeledVectors(vectors_ND.astype(np.float32), label_N)
      data.setdefault(language, []).append(labeled)
  accuracies = classification.transfer_accuracies(
    {x: classification.Split(train, dev) for x, (train, dev, _) in data.items()},
    {x: test for x, (_, _, test) in data.items()},
    num_classes=3,
  )
  for source, (train, _, _) in data.items():
    for target, (_, _, test) in data.items():
      values = []
      for seed in range(2):
        peer = neural_network.MLPClassifier(
          (10, 8), activation="tanh", batch_size=12, random_state=seed
        )
        with warnings.catch_warnings():
          warnings.simplefilter("ignore", exceptions.ConvergenceWarning)
          peer.fit(train.vectors_ND, train.label_N)
        values.append(peer.score(test.vectors_ND, test.label_N))
      assert np.mean(values) > 0.6 if source == target else np.mean(values) < 0.45
      assert accuracies[source][target].mean() == pytest.approx(np.mean(values), abs=0.04)
      assert 0 < accuracies[source][target].std() < 0.04


def test_the_best_epoch_on_the_dev_set_counts():
  # With reversed labels in the dev set, the first epochs have the best dev accuracy.
  rng = np.random.default_rng(1)
  train = clusters(rng, 240, classes=2)
  reversed_dev = classification.LabeledVectors(train.vectors_ND, 1 - train.label_N)
  config = classification.MlpConfig(hidden=(8,), learning_rate=3e-4, epochs=60, dropout_rate=0.0)
  by_dev = {
    name: classification.transfer_accuracies(
      {"": classification.Split(train, dev)},
      {"test": train},
      num_classes=2,
      seeds=range(6),
      config=config,
    )[""]["test"]
    for name, dev in {"same": train, "reversed": reversed_dev}.items()
  }
  assert by_dev["same"].min() > 0.95
  assert by_dev["reversed"].mean() < 0.6


def test_too_few_vectors_for_a_batch_are_an_error():
  rng = np.random.default_rng(2)
  train, dev = clusters(rng, 5), clusters(rng, 40)
  with pytest.raises(errors.InputError, match="en: 5 training vectors do not fill a batch of 12"):
    classification.transfer_accuracies({"en": classification.Split(train, dev)}, {}, num_classes=4)
