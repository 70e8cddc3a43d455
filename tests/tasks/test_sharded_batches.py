"""Batches of which each share reads its own rows: the same for any number of shares."""

import dataclasses
import functools
import json
import types

import numpy as np
import opus_dataset
import pytest
import seqio

from vmsst import errors
from vmsst.tasks import bitext, feature_converter, lanes, sharded_batches
from vmsst.tasks.opus import mixtures
from vmsst.text import vocabularies

LENGTHS = {"inputs": 24, "targets": 24, "input_language": 1, "target_language": 1}
COUNTS = {("de", "en"): 300, ("en", "tr"): 100}
VOCABULARY = vocabularies.ByteVocabulary()
BATCH = 8


def _text(number):
  """A text that shows its number; every seventh is too long for the tasks below."""
  return f"{number} " + "x" * (number % 7 * 4)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
  folder = tmp_path_factory.mktemp("tfds")
  pairs = {
    codes: [(_text(i), f"{codes[1]} {i}") for i in range(count + 1)]
    for codes, count in COUNTS.items()
  }
  opus_dataset.write(folder, "mine", pairs, shards=3, file_format="array_record")
  return folder


@pytest.fixture(scope="module")
def mixture(data_dir):
  return mixtures.opus("mine", VOCABULARY, str(data_dir), max_length=20)


@pytest.fixture(autouse=True)
def _little_read_ahead(monkeypatch):
  monkeypatch.setattr(sharded_batches, "READ_AHEAD", 64)
  monkeypatch.setattr(sharded_batches, "_CHUNK", 16)


def _config(mixture, **changes):
  fields = {
    "mixture_or_task_name": mixture, "task_feature_lengths": LENGTHS, "split": "train",
    "batch_size": BATCH, "shuffle": True, "seed": 5, "use_cached": False, "pack": False,
    "use_custom_packing_ops": False, "module": None, "trim_output_features": True,
  }  # fmt: skip
  return types.SimpleNamespace(**{**fields, **changes})


def _dataset(mixture, shard=0, shards=1, *, changes=None, **options):
  return sharded_batches.get_sharded_batches(
    _config(mixture, **(changes or {})),
    shard,
    shards,
    feature_converter.BitextFeatureConverter,
    **options,
  )


@functools.cache
def _whole(mixture, changes=()):
  return _dataset(mixture, changes=dict(changes))


def _share(mixture, shard, shards, changes=()):
  """What `_dataset` returns, without tracing the functions of its examples again."""
  whole = _whole(mixture, tuple(changes))
  return dataclasses.replace(
    whole, start=whole.start.take(BATCH // shards * shard, BATCH // shards)
  )


def _global(mixture, shares, count, state=None, *, make=_share, **options):
  """Returns batches joined from their shares, the state after them, and the rows read."""
  iterators = [iter(make(mixture, i, shares, **options)) for i in range(shares)]
  if state is not None:
    for iterator in iterators:
      iterator.set_state(state)
  batches = []
  for _ in range(count):
    parts = [next(iterator) for iterator in iterators]
    batches.append({name: np.concatenate([x[name] for x in parts]) for name in parts[0]})
  states = [json.loads(json.dumps(iterator.get_state())) for iterator in iterators]
  read = [iterator.rows_read for iterator in iterators]
  for iterator in iterators:
    iterator.close()
  return batches, lanes.joined(states), read


def _assert_equal(batches, others):
  for batch, other in zip(batches, others, strict=True):
    assert batch.keys() == other.keys()
    for name in batch:
      np.testing.assert_array_equal(batch[name], other[name])


def _numbers(batches, side="inputs"):
  """The pair and the number of each row, from its text."""
  texts = [VOCABULARY.decode(row) for batch in batches for row in batch[side].tolist()]
  codes = [row for batch in batches for row in batch["input_language"][:, 0].tolist()]
  return [(code, int(text.split()[0])) for code, text in zip(codes, texts, strict=True)]


def test_one_two_and_four_shares_make_the_same_batches_and_read_their_part(mixture):
  whole, state, (read,) = _global(mixture, 1, 40)
  assert whole[0]["inputs"].shape == (BATCH, 24)
  needed = sum(state["passed"])
  assert 40 * BATCH < needed < 40 * BATCH * 1.5  # some rows are too long
  assert needed <= read <= needed + 64 + 16
  for shares in (2, 4):
    make = _dataset if shares == 2 else _share
    batches, other, parts = _global(mixture, shares, 40, make=make)
    _assert_equal(batches, whole)
    assert other == state
    for first, part in zip(range(0, BATCH, BATCH // shares), parts, strict=True):
      own = sum(state["passed"][first : first + BATCH // shares])
      assert own == pytest.approx(needed / shares, rel=0.1)
      assert own <= part <= own + 64 + 16  # nothing of the other shares


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 4), (4, 2)])
def test_a_state_of_some_shares_resumes_with_others_and_reads_nothing_again(mixture, before, after):
  whole, end, _ = _global(mixture, 1, 30)
  first, state, _ = _global(mixture, before, 12)
  rest, last, read = _global(mixture, after, 18, state)
  _assert_equal(first + rest, whole)
  assert last == end
  assert sum(read) <= sum(end["passed"]) - sum(state["passed"]) + after * (64 + 16)


def test_rows_are_those_that_the_task_makes(mixture):
  batches, state, _ = _global(mixture, 1, 60)
  task = seqio.get_mixture_or_task(mixture).tasks[0]
  expected = {
    tuple(np.concatenate([np.ravel(row[name]) for name in LENGTHS]).tolist())
    for task in seqio.get_mixture_or_task(mixture).tasks
    for row in task.get_dataset(LENGTHS, "train", shuffle=False).as_numpy_iterator()
  }
  rows = [
    tuple(np.concatenate([batch[name][i] for name in LENGTHS]).tolist())
    for batch in batches
    for i in range(BATCH)
  ]
  assert set(rows) <= expected
  assert len(expected) < task.num_input_examples("train") + 100  # those that fit
  # An epoch: lanes pass all places of 400 rows at about the same time.
  places = sum(state["passed"])
  assert len(set(rows)) > 0.85 * min(len(rows), len(expected)), places


def test_an_epoch_has_every_row_that_fits_once(data_dir):
  name = mixtures.opus("mine", VOCABULARY, str(data_dir), max_length=None)
  # Nothing is left out, so that 50 batches of 8 are one epoch of 400 rows.
  batches, state, _ = _global(name, 2, 100)
  numbers = _numbers(batches)
  assert state["passed"] == [100] * BATCH
  for epoch in (numbers[:400], numbers[400:]):
    assert len(set(epoch)) == 400
  assert numbers[:400] != numbers[400:]
  # Proportions hold in every part of it too.
  german = [code for code, _ in numbers[:200]].count(numbers[0][0])
  assert min(german, 200 - german) == pytest.approx(50, abs=15)


def test_a_state_is_for_the_same_batches_alone(mixture):
  _, state, _ = _global(mixture, 1, 3)
  for changes, message in (
    ({"batch_size": 16}, "another batch size"),
    ({"seed": 6}, "another seed"),
    ({"shuffle": False}, "another data"),
  ):
    with pytest.raises(ValueError, match=message):
      iter(_dataset(mixture, changes=changes)).set_state(state)
  # Without a seed, the seed is that of the state.
  rest, _, _ = _global(mixture, 1, 3, state, changes=[("seed", None)])
  _assert_equal(rest, _global(mixture, 1, 3, state)[0])


def test_what_needs_all_hosts_or_is_wrong_is_refused(mixture, tmp_path):
  for name in ("group_by_length", "one_language_pair"):
    with pytest.raises(errors.InputError, match=rf"{name} needs the rows of all hosts; .*global"):
      _dataset(mixture, **{name: True})
  with pytest.raises(errors.InputError, match="batch_size 8 is not a multiple"):
    _dataset(mixture, 0, 3)
  with pytest.raises(errors.InputError, match="use_cached is not supported"):
    _dataset(mixture, changes={"use_cached": True})
  with pytest.raises(errors.InputError, match="task_feature_lengths; set it"):
    _dataset(mixture, changes={"task_feature_lengths": None})
  (tmp_path / "x.de-en.tsv").write_text("a\tb\n")
  files = bitext.files(str(tmp_path / "*.tsv"), VOCABULARY)
  with pytest.raises(errors.InputError, match=r"cannot be read in any order.*array_record"):
    _dataset(files)


def test_rows_none_of_which_fit_end_the_wait(data_dir, monkeypatch):
  monkeypatch.setattr(sharded_batches, "_DROPPED", 100)
  name = mixtures.opus("mine", VOCABULARY, str(data_dir), max_length=1)
  with pytest.raises(errors.InputError, match=r"last 100 rows .* do not fit; check the length"):
    next(iter(_dataset(name)))


def _written(folder, **options):
  pairs = {("de", "en"): [(_text(i), str(i)) for i in range(100)]}
  return opus_dataset.write(folder, "other", pairs, **{"file_format": "array_record", **options})


def test_a_missing_or_damaged_shard_is_named(tmp_path):
  folder = _written(tmp_path, shards=2)
  name = mixtures.opus("other", VOCABULARY, str(tmp_path))
  (path,) = folder.glob("*train*-00001-of-00002")
  (other,) = folder.glob("*validation*")
  path.write_bytes(other.read_bytes())
  with pytest.raises(errors.InputError, match=f"{path} has 1 records, but its dataset lists 49"):
    _global(name, 1, 20)
  path.unlink()
  with pytest.raises(errors.InputError, match=f"{path}: no such file; copy it or build"):
    _global(name, 1, 20)


def test_other_formats_are_named(tmp_path):
  _written(tmp_path, file_format="tfrecord")
  name = mixtures.opus("other", VOCABULARY, str(tmp_path))
  with pytest.raises(errors.InputError, match=r"tfrecord-00000-of-00001: .* --format array_record"):
    _ = _dataset(name).element_spec
