"""Examples of SeqIO tasks made from rows that are read in any order, many at a time.

The tasks, which are `StreamedTask`s, remain the definition of an example. Their source must have,
like that of `opus.mixtures`, the methods

    read_rows(split, number_N)   NumPy columns of rows by their numbers
    columns(columns)             the raw examples, as tensors, in the columns

and `num_input_examples`.
"""

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import seqio
import tensorflow as tf

from vmsst import errors
from vmsst.tasks import preprocessors, streamed_tasks

Columns = Mapping[str, np.ndarray]
Convert = Callable[[tf.data.Dataset], tf.data.Dataset]


class Examples:
  """Reads and makes the examples of the tasks of a mixture, in any order.

  Args:
    tasks: The tasks.
    split: Name of the split.
    lengths: Maximum length of each feature.
    convert: From rows of a task to rows of model features.
    trim: Whether to trim features to their lengths before the conversion.

  Raises:
    InputError: a source does not support it, or has another split.
  """

  def __init__(
    self,
    tasks: Sequence[seqio.Task],
    split: str,
    lengths: Mapping[str, Any],
    convert: Convert,
    *,
    trim: bool,
  ):
    for task in tasks:
      if not isinstance(task, streamed_tasks.StreamedTask) or not hasattr(task.source, "read_rows"):
        raise errors.InputError(
          f"task {task.name}: its rows cannot be read in any order, as those of datasets of `vmsst "
          "data build --format array_record` can; bind train_script.train.get_dataset_fn = "
          "@datasets.get_global_batches"
        )
      task.require_splitter()
    self._tasks = cast(Sequence[streamed_tasks.StreamedTask], tasks)
    self._split = split
    recipes: dict[Any, int] = {}
    keys = [(task.recipe, type(task.source)) for task in self._tasks]
    self._kinds = np.array([recipes.setdefault(key, len(recipes)) for key in keys])
    self._options: dict[str, Any] = {"lengths": lengths, "convert": convert, "trim": trim}
    self._makers: dict[int, Any] = {}
    self._lock = threading.Lock()

  @functools.cached_property
  def counts(self) -> list[int]:
    """Number of rows of each task, before any are left out."""
    return [task.source.num_input_examples(self._split) for task in self._tasks]

  @functools.cached_property
  def element_spec(self) -> dict[str, tf.TensorSpec]:
    """Spec of an example of model features."""
    _, found = self._make(0, np.zeros(1, np.int64))
    return {name: tf.TensorSpec(x.shape[1:], x.dtype) for name, x in found.items()}

  def read(self, task_N: np.ndarray, row_N: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Returns which of the rows are examples, int64 [M] ascending, and their model features.

    Args:
      task_N: Numbers of tasks.
      row_N: Numbers of rows of these tasks.

    Raises:
      InputError: a row cannot be read.
    """
    kept, parts = [], []
    for kind in np.unique(self._kinds[task_N]).tolist():
      own_K = np.flatnonzero(self._kinds[task_N] == kind)
      index_M, found = self._make(task_N[own_K], row_N[own_K])
      kept.append(own_K[index_M])
      parts.append(found)
    index_M = np.concatenate(kept)
    order_M = np.argsort(index_M)
    names = parts[0]
    return index_M[order_M], {
      name: np.concatenate([part[name] for part in parts])[order_M] for name in names
    }

  def _make(
    self, task_K: np.ndarray | int, row_K: np.ndarray
  ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Reads rows of tasks of one kind."""
    task_K = np.broadcast_to(task_K, row_K.shape)
    columns: dict[str, np.ndarray] = {}
    for task in np.unique(task_K).tolist():
      own = np.flatnonzero(task_K == task)
      for name, part in self._tasks[task].source.read_rows(self._split, row_K[own]).items():
        if name not in columns:
          columns[name] = np.empty([len(row_K), *part.shape[1:]], part.dtype)
        columns[name][own] = part
    tensors = {
      name: tf.constant(column, tf.string if column.dtype == object else column.dtype)
      for name, column in columns.items()
    }
    index_M, found = self._maker(int(task_K[0]), tensors)(tensors)
    return index_M.numpy(), {name: value.numpy() for name, value in found.items()}

  def _maker(self, number: int, columns: Mapping[str, tf.Tensor]) -> Any:
    """Returns the function that makes the examples of a task's kind of such columns."""
    kind = int(self._kinds[number])
    with self._lock:
      if kind not in self._makers:
        task = self._tasks[number]
        spec = {name: tf.TensorSpec([None, *x.shape[1:]], x.dtype) for name, x in columns.items()}
        self._makers[kind] = tf.function(
          lambda columns: _collected(_examples(task, columns, **self._options)),
          input_signature=[spec],
          autograph=False,
        )
        self._makers[kind].get_concrete_function()
      return self._makers[kind]


def _collected(rows: tf.data.Dataset) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
  """Returns all rows of a dataset as one batch, also if it has none."""
  none = tf.nest.map_structure(
    lambda spec: tf.zeros([0, *spec.shape], spec.dtype), rows.element_spec
  )
  batches = rows.batch(tf.int64.max).concatenate(tf.data.Dataset.from_tensors(none))
  return batches.take(1).get_single_element()


def _examples(
  task: streamed_tasks.StreamedTask,
  columns: Mapping[str, tf.Tensor],
  *,
  lengths: Mapping[str, Any],
  convert: Convert,
  trim: bool,
) -> tf.data.Dataset:
  """Returns the numbers of rows that are examples, and their model features."""
  rows = task.source.columns(columns)
  names = preprocessors.wanted([x for x in task.output_features if x in rows], lengths)
  found, keep_B = task.finished(rows, {x: lengths.get(x) if trim else None for x in names})
  kept = {name: tf.boolean_mask(column, keep_B) for name, column in found.items()}
  examples = convert(tf.data.Dataset.from_tensor_slices(kept))
  return tf.data.Dataset.zip((tf.data.Dataset.from_tensor_slices(tf.where(keep_B)[:, 0]), examples))
