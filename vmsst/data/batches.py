"""Batches of rows of token ids, with sentences of similar length if asked for.

Nothing here imports TensorFlow or seqio.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import grain
import jax
import numpy as np
from clu.data import dataset_iterator
from etils import epath

from vmsst import errors
from vmsst.data.tables import SIDES

Batch = Mapping[str, np.ndarray]


class BatchIterator(dataset_iterator.DatasetIterator):
  """Iterates over the batches of a Grain dataset; upstream T5X takes it too.

  Args:
    dataset: The dataset.
    element_spec: Shape and dtype of the columns of a batch.
    shard: Number of the share of the rows that it reads, and number of shares.
  """

  def __init__(
    self,
    dataset: grain.IterDataset,
    element_spec: Mapping[str, jax.ShapeDtypeStruct],
    shard: tuple[int, int] = (0, 1),
  ):
    self._dataset = dataset
    self._element_spec = element_spec
    self._shard = [*shard]
    self.reset()

  @property
  def element_spec(self) -> Mapping[str, jax.ShapeDtypeStruct]:
    """Shape and dtype of the columns of a batch."""
    return self._element_spec

  def __next__(self) -> Batch:
    batch = next(self._iterator)
    self._count += 1
    return batch

  def reset(self) -> None:
    """Starts over."""
    self._iterator = iter(self._dataset)
    self._count = 0

  def state(self) -> dict[str, Any]:
    """Returns the number of batches so far, and the state of the dataset, for JSON."""
    dataset = {"shard": self._shard, "iterator": self._iterator.get_state()}
    return {"batches": self._count, "dataset": dataset}

  def set_state(self, state: Mapping[str, Any]) -> None:
    """Continues after the batches of a state; only before the first batch.

    Raises:
      ValueError: the state is of another share of the rows.
    """
    if (shard := state["dataset"]["shard"]) != self._shard:
      raise ValueError(f"it is of shard {shard} of the data, not {self._shard}")
    self._count = int(state["batches"])
    self._iterator.set_state(state["dataset"]["iterator"])

  def save(self, filename: Any) -> None:
    """Writes the state, for upstream T5X."""
    epath.Path(filename).write_text(json.dumps(self.state()))

  def restore(self, filename: Any) -> None:
    """Reads the state, for upstream T5X."""
    self.set_state(json.loads(epath.Path(filename).read_text()))


def length_batches(
  rows: grain.IterDataset,
  size: int,
  lengths: Mapping[str, Any],
  *,
  seed: int | None,
  boundaries: Sequence[int] = (8, 12, 16, 24, 32, 48, 64, 96),
  group: int = 16,
) -> grain.IterDataset:
  """Returns batches of rows of similar length; drops an incomplete last batch.

  Args:
    rows: Some rows at a time, as columns [N, ...], with token ids under `inputs` and perhaps
      `targets` and `negatives`; 0 is padding.
    size: Rows per batch.
    lengths: Maximum length of each column.
    seed: Seed of the order of a group's batches; None puts short batches first.
    boundaries: Maximum length of each length class, ascending; the longest length is added.
    group: Number of batches that are sorted together.

  Raises:
    InputError: the boundaries are not ascending.
  """
  ascending = [*boundaries] == sorted({max(1, bound) for bound in boundaries})
  errors.check(ascending, "boundaries", boundaries, "positive numbers in ascending order")
  longest = max(lengths[name] for name in SIDES if name in lengths)
  bounds = [*(bound for bound in boundaries if bound < longest), longest]

  def cut(number: int, rows: Batch) -> list[Batch]:
    texts = [rows[name] for name in (*SIDES, "negatives") if name in rows]
    # Of each row, the longest one: hard negatives are [N, K, T].
    lengths = [np.count_nonzero(x, axis=-1).max(axis=tuple(range(1, x.ndim - 1))) for x in texts]
    class_N = np.searchsorted(bounds, np.max(lengths, axis=0))
    count = len(class_N) // size
    order_KN = np.argsort(class_N[: count * size], kind="stable").reshape(count, size)
    if seed is not None:
      order_KN = np.random.default_rng([seed, number]).permutation(order_KN)
    return [{name: column[row_N] for name, column in rows.items()} for row_N in order_KN]

  groups = grain.experimental.RebatchIterDataset(rows, size * group)
  return grain.experimental.FlatMapIterDataset(groups.map_with_index(cut), _Flatten())


class _Flatten(grain.experimental.FlatMapTransform):
  max_fan_out = 1 << 20

  def flat_map(self, element: list[Batch]) -> list[Batch]:
    return element
