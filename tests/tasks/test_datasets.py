import itertools
import types

import numpy as np
import pytest
import seqio
import tensorflow as tf

from vmsst import errors
from vmsst.tasks import bitext, datasets
from vmsst.tasks.feature_converter import BitextFeatureConverter
from vmsst.text import vocabularies

LENGTHS = {"inputs": 24, "targets": 24, "input_language": 1, "target_language": 1}
BOUNDARIES = (8, 12, 16)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
  folder = tmp_path_factory.mktemp("bitext")
  rng = np.random.default_rng(0)
  for pair, count in {"de-en": 170, "fr-en": 90}.items():
    sizes = rng.integers(1, 20, [count, 2])
    lines = [f"{'s' * a}\t{'t' * b}\n" for a, b in sizes]
    (folder / f"x.{pair}.tsv").write_text("".join(lines), encoding="utf-8")
  return bitext.files(str(folder / "*.tsv"), vocabularies.ByteVocabulary())


def _config(mixture, **changes):
  fields = {
    "mixture_or_task_name": mixture, "task_feature_lengths": LENGTHS, "split": "train",
    "batch_size": 8, "shuffle": True, "seed": 5, "use_cached": False, "pack": False,
    "use_custom_packing_ops": False, "module": None, "trim_output_features": True,
  }  # fmt: skip
  return types.SimpleNamespace(**{**fields, **changes})


def _dataset(mixture, shard=0, shards=1, num_epochs=None, *, changes=None, **options):
  return datasets.get_global_batches(
    _config(mixture, **(changes or {})),
    shard,
    shards,
    BitextFeatureConverter,
    num_epochs,
    boundaries=BOUNDARIES,
    **{"group_by_length": True, **options},
  )


def _batches(dataset, count):
  return list(dataset.take(count).as_numpy_iterator())


def _classes(batch):
  lengths = np.maximum(*((batch[side] != 0).sum(axis=1) for side in ("inputs", "targets")))
  return np.searchsorted(BOUNDARIES, lengths)


def test_batches_are_of_one_length_class_and_of_static_shape(mixture):
  dataset = _dataset(mixture)
  assert {name: tuple(spec.shape) for name, spec in dataset.element_spec.items()} == {
    name: (8, length) for name, length in LENGTHS.items()
  }
  batches = _batches(dataset, 160)
  mixed = sum(len(set(_classes(batch))) > 1 for batch in batches)
  # At most one batch of a group of 16 lies across each of the three boundaries.
  assert mixed <= 3 * 10
  plain = _batches(_dataset(mixture, group_by_length=False), 20)
  assert np.mean([len(set(_classes(b))) > 1 for b in plain]) > 0.9


def _stream(mixture, batch_size):
  """What T5X trains on: rows in the order of SeqIO's shuffled stream."""
  return seqio.get_dataset(
    mixture,
    LENGTHS,
    BitextFeatureConverter(),
    seed=5,
    shuffle=True,
    num_epochs=None,
    batch_size=batch_size,
  )


def test_batches_are_those_of_the_shuffled_stream_by_default(mixture):
  whole = _batches(_dataset(mixture, group_by_length=False), 20)
  halves = [_batches(_dataset(mixture, i, 2, group_by_length=False), 20) for i in range(2)]
  for batch, first, second, expected in zip(
    whole, *halves, _batches(_stream(mixture, 8), 20), strict=True
  ):
    for name in LENGTHS:
      np.testing.assert_array_equal(batch[name], expected[name])
      np.testing.assert_array_equal(np.concatenate([first[name], second[name]]), expected[name])


def test_groups_hold_the_same_rows_as_the_stream(mixture):
  """Within a group of batches nothing is lost and nothing added: it is only sorted."""
  grouped = _batches(_dataset(mixture), 32)
  for number, block in enumerate(_batches(_stream(mixture, 128), 2)):
    ours = grouped[16 * number : 16 * number + 16]
    rows = np.concatenate([np.hstack([b[name] for name in LENGTHS]) for b in ours])
    expected = np.hstack([block[name] for name in LENGTHS])
    assert sorted(map(tuple, rows)) == sorted(map(tuple, expected))


def test_shuffled_batches_come_in_mixed_order_and_unshuffled_ones_sorted(mixture):
  longest = [_classes(batch).max() for batch in _batches(_dataset(mixture), 16)]
  assert longest != sorted(longest)
  ordered = _batches(_dataset(mixture, changes={"shuffle": False}), 16)
  longest = [_classes(batch).max() for batch in ordered]
  assert longest == sorted(longest)


def test_one_seed_gives_one_sequence_for_any_number_of_hosts(mixture):
  whole = _batches(_dataset(mixture), 20)
  halves = [_batches(_dataset(mixture, shard, 2), 20) for shard in range(2)]
  for batch, first, second in zip(whole, *halves, strict=True):
    for name in LENGTHS:
      np.testing.assert_array_equal(batch[name], np.concatenate([first[name], second[name]]))
  other = _batches(_dataset(mixture, changes={"seed": 6}), 20)
  assert any((a["inputs"] != b["inputs"]).any() for a, b in zip(whole, other, strict=True))


def test_an_epoch_ends_with_the_last_full_batch(mixture):
  task = f"{mixture}_deu_eng"
  batches = _batches(_dataset(task, num_epochs=1), 1000)
  assert len(batches) == 170 // 8


def test_a_restored_iterator_resumes_exactly(mixture, tmp_path):
  iterator = iter(_dataset(mixture))
  for _ in range(37):
    next(iterator)
  path = tf.train.Checkpoint(it=iterator).save(str(tmp_path / "state"))
  expected = [next(iterator) for _ in range(60)]
  restored = iter(_dataset(mixture))
  tf.train.Checkpoint(it=restored).restore(path).assert_consumed()
  for batch in expected:
    again = next(restored)
    for name in LENGTHS:
      np.testing.assert_array_equal(again[name], batch[name])


def test_wrong_values_are_refused(mixture):
  with pytest.raises(errors.InputError, match="batch_size 8 is not a multiple"):
    _dataset(mixture, 0, 3)
  with pytest.raises(errors.InputError, match="ascending"):
    datasets.get_global_batches(_config(mixture), 0, 1, BitextFeatureConverter, boundaries=(8, 4))
  with pytest.raises(ValueError, match="no_such_task"):
    _dataset("no_such_task")


@pytest.fixture(scope="module")
def two_pairs(tmp_path_factory):
  """Three times as many rows of German and English, in either direction, as of French."""
  folder = tmp_path_factory.mktemp("pairs")
  rng = np.random.default_rng(1)
  for pair, count in {"de-en": 200, "en-de": 100, "fr-en": 100}.items():
    lines = [f"{'s' * a}\t{'t' * b}\n" for a, b in rng.integers(1, 20, [count, 2])]
    (folder / f"x.{pair}.tsv").write_text("".join(lines), encoding="utf-8")
  return bitext.files(str(folder / "*.tsv"), vocabularies.ByteVocabulary())


def test_batches_of_one_language_pair_come_in_proportion(two_pairs, tmp_path):
  def make(shard=0, shards=1):
    return _dataset(two_pairs, shard, shards, one_language_pair=True)

  assert make().element_spec["inputs"].shape == [8, 24]
  batches = _batches(make(), 200)
  pairs, orders = [], set()
  for batch in batches:
    languages = np.concatenate([batch["input_language"], batch["target_language"]], axis=1)
    (pair,) = {frozenset(row) for row in languages.tolist()}
    pairs.append(pair)
    orders |= {tuple(row) for row in languages.tolist()}
    assert len(set(_classes(batch))) == 1
  assert len(orders) == 3
  shares = [pairs.count(pair) / len(pairs) for pair in set(pairs)]
  assert sorted(shares) == pytest.approx([0.25, 0.75], abs=0.06)
  # They take turns: a run of one pair is what chance makes it.
  assert 40 < sum(a != b for a, b in itertools.pairwise(pairs)) < 120
  halves = [_batches(make(shard, 2), 30) for shard in range(2)]
  for batch, first, second in zip(batches, *halves, strict=False):
    for name in LENGTHS:
      np.testing.assert_array_equal(batch[name], np.concatenate([first[name], second[name]]))
  iterator = iter(make())
  for _ in range(21):
    next(iterator)
  path = tf.train.Checkpoint(it=iterator).save(str(tmp_path / "state"))
  restored = iter(make())
  tf.train.Checkpoint(it=restored).restore(path).assert_consumed()
  for batch in batches[21:60]:
    again = next(restored)
    for name in LENGTHS:
      np.testing.assert_array_equal(again[name], batch[name])


def test_batches_of_one_language_pair_need_the_languages(two_pairs):
  lengths = {"inputs": 24, "targets": 24}
  with pytest.raises(errors.InputError, match="add input_language and target_language to TASK"):
    _dataset(two_pairs, changes={"task_feature_lengths": lengths}, one_language_pair=True)
