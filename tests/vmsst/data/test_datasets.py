import collections
import itertools
import types

import numpy as np
import opus_tree
import pytest
import seqio
import tensorflow as tf

from vmsst import errors
from vmsst.data import datasets, sources, vocabularies
from vmsst.data.features import BitextFeatureConverter
from vmsst.tasks import bitext, mixtures

BYTES = vocabularies.ByteVocabulary()
LENGTHS = {"inputs": 24, "targets": 24, "input_language": 1, "target_language": 1}
BOUNDARIES = (8, 12, 16)


@pytest.fixture(scope="module")
def patterns(tmp_path_factory):
  """Three times as many rows of German and English, in either direction, as of French."""
  folder = tmp_path_factory.mktemp("bitext")
  rng = np.random.default_rng(0)
  for pair, count in {"de-en": 170, "en-de": 100, "fr-en": 90}.items():
    sizes = rng.integers(1, 20, [count, 2])
    lines = [f"{'s' * a}\t{'t' * b}\n" for a, b in sizes]
    (folder / f"x.{pair}.tsv").write_text("".join(lines), encoding="utf-8")
  return str(folder / "*.tsv")


@pytest.fixture(scope="module")
def mixture(patterns):
  return bitext.files(patterns, BYTES)


def _config(mixture, **changes):
  fields = {
    "mixture_or_task_name": mixture, "task_feature_lengths": LENGTHS, "split": "train",
    "batch_size": 8, "shuffle": True, "seed": 5, "use_cached": False, "pack": False,
    "use_custom_packing_ops": False, "module": None, "trim_output_features": True,
  }  # fmt: skip
  return types.SimpleNamespace(**{**fields, **changes})


def _dataset(mixture, shard=0, shards=1, num_epochs=None, *, changes=None, **options):
  return datasets.get_batches(
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


def _stream(mixture, batch_size, shard=0, shards=1):
  """What T5X trains on: rows in the order of SeqIO's shuffled stream."""
  return seqio.get_dataset(
    mixture,
    LENGTHS,
    BitextFeatureConverter(),
    seed=5,
    shuffle=True,
    num_epochs=None,
    shard_info=seqio.ShardInfo(shard, shards),
    batch_size=batch_size,
  )


def _assert_equal(batches, others):
  for batch, other in zip(batches, others, strict=True):
    assert batch.keys() == other.keys()
    for name in batch:
      np.testing.assert_array_equal(batch[name], other[name])


def test_batches_are_those_of_the_shuffled_stream_by_default(mixture):
  for place in ((0, 1), (1, 2)):
    ours = _batches(_dataset(mixture, *place, group_by_length=False), 20)
    _assert_equal(ours, _batches(_stream(mixture, 8 // place[1], *place), 20))
  other = _batches(_dataset(mixture, 1, 2, group_by_length=False, changes={"seed": 6}), 20)
  assert any((a["inputs"] != b["inputs"]).any() for a, b in zip(ours, other, strict=True))


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


@pytest.mark.parametrize("memory_limit", [1 << 20, 0])
def test_hosts_read_every_row_of_an_epoch_once(patterns, memory_limit):
  name = bitext.files(patterns, BYTES, memory_limit=memory_limit)
  task = seqio.MixtureRegistry.get(name).tasks[0]

  def rows(shard=0, shards=1, epochs=1):
    changes = {"batch_size": shards}
    dataset = _dataset(task, shard, shards, epochs, changes=changes, group_by_length=False)
    return [tuple(np.concatenate([*batch.values()], 1)[0].tolist()) for batch in
            dataset.as_numpy_iterator()]  # fmt: skip

  shares = [rows(shard, 4) for shard in range(4)]
  assert [len(share) for share in shares] == [43, 43, 42, 42]
  assert sum(map(collections.Counter, shares), collections.Counter()) == collections.Counter(rows())


def test_a_task_with_fewer_rows_than_hosts_does_not_end(tmp_path, monkeypatch):
  monkeypatch.setattr(sources.StreamSource, "shuffle_buffer", 10)
  (tmp_path / "x.de-en.tsv").write_text("a\tb\nc\td\n", encoding="utf-8")
  for limit in (1 << 20, 0):
    name = bitext.files(str(tmp_path / "*.tsv"), BYTES, memory_limit=limit)
    last = _dataset(name, 2, 3, changes={"batch_size": 3}, group_by_length=False)
    assert {len(batch["inputs"]) for batch in _batches(last, 9)} == {1}


def test_hosts_batch_similar_lengths_and_one_language_pair_together(mixture):
  def halves(**options):
    return zip(*(_batches(_dataset(mixture, shard, 2, **options), 160) for shard in (0, 1)),
               strict=True)  # fmt: skip

  far = [abs(_classes(first).mean() - _classes(second).mean()) for first, second in halves()]
  assert np.mean(far) < 0.3
  plain = halves(group_by_length=False)
  assert np.mean([abs(_classes(a).mean() - _classes(b).mean()) for a, b in plain]) > 0.4
  pairs = [
    {frozenset(row) for half in both for row in _languages(half)}
    for both in halves(group_by_length=False, one_language_pair=True)
  ]
  assert {len(both) for both in pairs} == {1}
  assert len(set.union(*pairs)) == 2


def _languages(batch):
  return np.hstack([batch["input_language"], batch["target_language"]]).tolist()


def test_an_epoch_ends_with_the_last_full_batch(mixture):
  task = f"{mixture}_deu_eng"
  batches = _batches(_dataset(task, num_epochs=1), 1000)
  assert len(batches) == 170 // 8


@pytest.mark.parametrize(
  ("options", "memory_limit"),
  [
    ({}, 1 << 20),
    ({"one_language_pair": True, "group_by_length": False}, 1 << 20),
    ({"group_by_length": False}, 1 << 20),
    ({"group_by_length": False}, 0),
  ],
)
def test_a_restored_iterator_of_a_host_resumes_exactly(patterns, tmp_path, options, memory_limit):
  mixture = bitext.files(patterns, BYTES, memory_limit=memory_limit)
  iterator = iter(_dataset(mixture, 1, 2, **options))
  for _ in range(37):
    next(iterator)
  path = tf.train.Checkpoint(it=iterator).save(str(tmp_path / "state"))
  expected = [next(iterator) for _ in range(60)]
  restored = iter(_dataset(mixture, 1, 2, **options))
  tf.train.Checkpoint(it=restored).restore(path).assert_consumed()
  _assert_equal([next(restored) for _ in expected], expected)


def test_wrong_values_are_refused(mixture):
  with pytest.raises(errors.InputError, match="BATCH_SIZE=8 is not divisible by 3 data shards"):
    _dataset(mixture, 0, 3)
  with pytest.raises(errors.InputError, match="ascending"):
    datasets.get_batches(
      _config(mixture), 0, 1, BitextFeatureConverter, group_by_length=True, boundaries=(8, 4)
    )
  with pytest.raises(errors.InputError, match="no task or mixture 'no_such_task' is registered"):
    _dataset("no_such_task")
  with pytest.raises(errors.InputError, match="GROUP_BY_LENGTH or ONE_LANGUAGE_PAIR to False"):
    _dataset(mixture, 0, 2, one_language_pair=True)
  lengths = {"inputs": 24, "targets": 24}
  with pytest.raises(errors.InputError, match="add input_language and target_language to TASK"):
    _dataset(mixture, changes={"task_feature_lengths": lengths}, one_language_pair=True)


def test_batches_of_one_language_pair_come_in_proportion(mixture, tmp_path):
  dataset = _dataset(mixture, one_language_pair=True)
  assert dataset.element_spec["inputs"].shape == [8, 24]
  pairs, orders = [], set()
  for batch in _batches(dataset, 200):
    languages = _languages(batch)
    (pair,) = {frozenset(row) for row in languages}
    pairs.append(pair)
    orders |= {tuple(row) for row in languages}
    assert len(set(_classes(batch))) == 1
  assert len(orders) == 3
  shares = [pairs.count(pair) / len(pairs) for pair in set(pairs)]
  assert sorted(shares) == pytest.approx([0.25, 0.75], abs=0.06)
  # They take turns: a run of one pair is what chance makes it.
  assert 40 < sum(a != b for a, b in itertools.pairwise(pairs)) < 120


def test_steps_of_epochs(tmp_path):
  pairs = [(f"s{i}", f"t{i}") for i in range(25)]
  opus_tree.write_dataset(tmp_path, "epochs", {("de", "en"): pairs, ("fr", "en"): pairs[:15]})
  built = mixtures.opus("epochs", BYTES, str(tmp_path))  # one pair of each is for validation
  assert datasets.epoch_steps(built, epochs=30, batch_size=32) == 36  # 30 * (24 + 14) / 32 = 35.6
  assert datasets.epoch_steps(built, epochs=0.5, batch_size=7) == 3
  assert datasets.epoch_steps(built, epochs=1, batch_size=1, split="validation") == 2
  for change, message in (
    ({"epochs": 0}, "epochs is 0"),
    ({"batch_size": 0}, "batch_size is 0"),
    ({"split": "test"}, "unknown.*set TRAIN_STEPS"),
  ):
    with pytest.raises(errors.InputError, match=message):
      datasets.epoch_steps(built, **{"epochs": 1, "batch_size": 1, **change})
