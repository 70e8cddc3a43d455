import numpy as np
import pytest

from vmsst import errors
from vmsst.evaluation.metrics import classification

CONFIG = classification.MlpConfig(hidden=(8,), learning_rate=1e-2, epochs=20)


def _clusters(rng, count, *, classes=4, dim=6, noise=0.2):
  label_N = rng.integers(classes, size=count)
  vectors_ND = 2 * np.eye(dim)[label_N] + noise * rng.normal(size=(count, dim))
  return classification.LabeledVectors(vectors_ND.astype(np.float32), label_N)


def noise_of(data):
  """Replaces three in four labels at random."""
  rng = np.random.default_rng(5)
  sampled = rng.integers(4, size=len(data.label_N))
  label_N = np.where(rng.random(len(sampled)) < 0.75, sampled, data.label_N)
  return classification.LabeledVectors(data.vectors_ND, label_N)


def test_what_can_be_learned_is_learned_and_carries_over():
  rng = np.random.default_rng(0)
  train, dev, test = (_clusters(rng, count) for count in (200, 50, 5000))
  # The other language is the same space with two axes swapped: half of the classes are swapped.
  other = classification.LabeledVectors(test.vectors_ND[:, [1, 0, 2, 3, 4, 5]], test.label_N)
  noise = classification.LabeledVectors(
    rng.normal(size=(5000, 6)).astype(np.float32), rng.integers(4, size=5000)
  )
  tests = {"same": test, "other": other, "noise": noise}
  splits = {"a": classification.Split(train, dev), "b": classification.Split(noise_of(train), dev)}
  both = classification.transfer_accuracies(
    splits, tests, num_classes=4, seeds=(0, 1, 2), config=CONFIG
  )
  found = both["a"]
  assert both["b"]["same"].max() < found["same"].min()  # trained on wrong labels
  assert found["same"].shape == (3,)
  assert found["same"].min() > 0.98
  share_kept = np.mean(test.label_N >= 2)
  np.testing.assert_allclose(found["other"], share_kept, atol=0.02)
  np.testing.assert_allclose(found["noise"], 0.25, atol=0.03)
  assert len(set(found["noise"])) == 3  # seeds differ
  alone = classification.transfer_accuracies(
    {"a": splits["a"]}, tests, num_classes=4, seeds=(1,), config=CONFIG
  )["a"]
  assert all(alone[name] == pytest.approx(found[name][1], abs=2e-3) for name in tests)


def test_the_best_epoch_on_the_dev_set_counts():
  # Training teaches the reverse of the dev set: its first epochs are its best.
  rng = np.random.default_rng(1)
  train = _clusters(rng, 240, classes=2)
  turned = classification.LabeledVectors(train.vectors_ND, 1 - train.label_N)
  config = classification.MlpConfig(hidden=(8,), learning_rate=3e-4, epochs=60, dropout_rate=0.0)
  by_dev = {
    name: classification.transfer_accuracies(
      {"": classification.Split(train, dev)},
      {"test": train},
      num_classes=2,
      seeds=range(6),
      config=config,
    )[""]["test"]
    for name, dev in {"same": train, "turned": turned}.items()
  }
  assert by_dev["same"].min() > 0.95
  assert by_dev["turned"].mean() < 0.6


def test_input_that_cannot_be_used_is_named():
  rng = np.random.default_rng(2)
  few, data = _clusters(rng, 5), _clusters(rng, 40)
  with pytest.raises(errors.InputError, match="en: 5 training vectors do not fill a batch of 12"):
    classification.transfer_accuracies({"en": classification.Split(few, data)}, {}, num_classes=4)
  with pytest.raises(errors.InputError, match="en: a label is not one of the 2 classes"):
    classification.transfer_accuracies({"en": classification.Split(data, data)}, {}, num_classes=2)
  with pytest.raises(ValueError, match=r"\(40, 6\) and \(39,\)"):
    classification.LabeledVectors(data.vectors_ND, data.label_N[1:])
