import grain
import jax
import numpy as np
import pytest

from vmsst import errors
from vmsst.data import batches

BOUNDARIES = (8, 12, 16)
LENGTHS = {"inputs": 24, "targets": 24}


def _ids(size):
  """Returns ids of texts of these lengths, padded with 0."""
  return (np.arange(24) < size[..., None]).astype(np.int32)


def _rows(count, negatives=0):
  """Returns an endless stream of chunks of `count` rows, of lengths 1 to 19."""
  rng = np.random.default_rng(0)
  chunks = []
  for first in range(0, 50 * count, count):
    chunk = {side: _ids(rng.integers(1, 20, count)) for side in LENGTHS}
    chunk["id"] = np.arange(first, first + count)
    if negatives:
      chunk["negatives"] = _ids(rng.integers(1, 20, (count, negatives)))
    chunks.append(chunk)
  return grain.MapDataset.source(chunks).repeat().to_iter_dataset()


def _batches(count, negatives=0, seed=5, **options):
  dataset = batches.length_batches(
    _rows(50, negatives), 8, LENGTHS, seed=seed, **{"boundaries": BOUNDARIES, **options}
  )
  iterator = iter(dataset)
  return [next(iterator) for _ in range(count)]


def _classes(batch):
  columns = [np.count_nonzero(batch[side], axis=-1) for side in LENGTHS]
  if "negatives" in batch:
    columns.append(np.count_nonzero(batch["negatives"], axis=-1).max(axis=1))
  return np.searchsorted(BOUNDARIES, np.max(columns, axis=0))


@pytest.mark.parametrize("negatives", [0, 2])
def test_batches_have_one_length_class(negatives):
  mixed = sum(len(set(_classes(batch))) > 1 for batch in _batches(160, negatives))
  # At most one batch of a group of 16 crosses each of the three boundaries.
  assert mixed <= 3 * 10


def test_groups_have_the_rows_of_the_stream_in_mixed_or_ascending_order():
  for seed in (5, None):
    groups = _batches(32, seed=seed)
    for start in (0, 16):
      ids = np.concatenate([batch["id"] for batch in groups[start : start + 16]])
      assert sorted(ids.tolist()) == list(range(8 * start, 8 * start + 128))
    longest = [_classes(batch).max() for batch in groups[:16]]
    assert (longest == sorted(longest)) == (seed is None)
  with pytest.raises(errors.InputError, match="ascending"):
    _batches(1, boundaries=(8, 4))


def test_an_iterator_takes_only_a_state_of_its_shard(tmp_path):
  """Resuming is tested with the loader."""
  first, second = (
    batches.BatchIterator(_rows(8), {"id": jax.ShapeDtypeStruct([8], np.int64)}, (shard, 2))
    for shard in (0, 1)
  )
  ids = [next(first)["id"].tolist() for _ in range(3)]
  first.save(tmp_path / "state")
  with pytest.raises(ValueError, match=r"shard \[0, 2\] of the data, not \[1, 2\]"):
    second.restore(tmp_path / "state")
  first.reset()
  assert next(first)["id"].tolist() == ids[0]
