"""Examples of SeqIO tasks made from rows that are read in any order, many at a time.

The tasks remain the definition of an example: a `StreamedTask` makes many rows in one step, and of
any other task the preprocessors are applied to each row. Their source must have, like that of
`opus.mixtures`, the methods

    read_rows(split, number_N)   NumPy columns of rows by their numbers
    columns(columns)             the raw examples, as tensors, in the columns

and `num_input_examples`.
"""

import functools
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from vmsst import errors
from vmsst.tasks import preprocessors, streamed_tasks

Columns = Mapping[str, np.ndarray]
Convert = Callable[[tf.data.Dataset], tf.data.Dataset]
_SEED, _SWAPPED = "seed", "swapped"


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
    self._tasks = tasks
    self._split = split
    recipes: dict[Any, int] = {}
    self._kinds = np.array([recipes.setdefault(_recipe(task), len(recipes)) for task in tasks])
    self._options: dict[str, Any] = {"lengths": lengths, "convert": convert, "trim": trim}
    self._makers: dict[int, Any] = {}
    self._lock = threading.Lock()
    for task in tasks:
      if not hasattr(task.source, "read_rows"):
        raise errors.InputError(
          f"task {task.name}: its rows cannot be read in any order, as those of datasets of `vmsst "
          "data build --format array_record` can; bind train_script.train.get_dataset_fn = "
          "@datasets.get_global_batches"
        )
      if isinstance(task, streamed_tasks.StreamedTask):
        task.require_splitter()

  @functools.cached_property
  def counts(self) -> list[int]:
    """Number of rows of each task, before any are left out."""
    return [
      task.source.num_input_examples(self._split) * (2 if _is_doubled(task) else 1)
      for task in self._tasks
    ]

  @functools.cached_property
  def element_spec(self) -> dict[str, tf.TensorSpec]:
    """Spec of an example of model features."""
    _, found = self._make(0, np.zeros(1, np.int64), np.zeros([1, 2], np.int32))
    return {name: tf.TensorSpec(x.shape[1:], x.dtype) for name, x in found.items()}

  def read(
    self, task_N: np.ndarray, row_N: np.ndarray, seed_N2: np.ndarray
  ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Returns which of the rows are examples, int64 [M] ascending, and their model features.

    Args:
      task_N: Numbers of tasks.
      row_N: Numbers of rows of these tasks.
      seed_N2: Seeds of stochastic preprocessors, int32.

    Raises:
      InputError: a row cannot be read, or a preprocessor makes several examples of it.
    """
    kept, parts = [], []
    for kind in np.unique(self._kinds[task_N]).tolist():
      own_K = np.flatnonzero(self._kinds[task_N] == kind)
      index_M, found = self._make(task_N[own_K], row_N[own_K], seed_N2[own_K])
      if len(set(index_M.tolist())) < len(index_M):
        raise errors.InputError(
          f"task {self._tasks[task_N[own_K[0]]].name} makes several examples of one row; bind "
          "train_script.train.get_dataset_fn = @datasets.get_global_batches"
        )
      kept.append(own_K[index_M])
      parts.append(found)
    index_M = np.concatenate(kept)
    order_M = np.argsort(index_M)
    names = parts[0]
    return index_M[order_M], {
      name: np.concatenate([part[name] for part in parts])[order_M] for name in names
    }

  def _make(
    self, task_K: np.ndarray | int, row_K: np.ndarray, seed_K2: np.ndarray
  ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Reads rows of tasks of one kind."""
    task_K = np.broadcast_to(task_K, row_K.shape)
    doubled = _is_doubled(self._tasks[task_K[0]])
    number_K = row_K // 2 if doubled else row_K
    columns: dict[str, np.ndarray] = {}
    for task in np.unique(task_K).tolist():
      own = np.flatnonzero(task_K == task)
      for name, part in self._tasks[task].source.read_rows(self._split, number_K[own]).items():
        if name not in columns:
          columns[name] = np.empty([len(row_K), *part.shape[1:]], part.dtype)
        columns[name][own] = part
    if doubled:
      columns[_SWAPPED] = row_K % 2 == 1
    columns[_SEED] = seed_K2
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
        make = _streamed if isinstance(task, streamed_tasks.StreamedTask) else _row_by_row
        spec = {name: tf.TensorSpec([None, *x.shape[1:]], x.dtype) for name, x in columns.items()}
        self._makers[kind] = tf.function(
          lambda columns: _collected(make(task, columns, **self._options)),
          input_signature=[spec],
          autograph=False,
        )
        self._makers[kind].get_concrete_function()
      return self._makers[kind]


def _recipe(task: seqio.Task) -> Any:
  """Returns a key that is the same for tasks that make the same examples of the same columns."""
  if isinstance(task, streamed_tasks.StreamedTask):
    return task.recipe, type(task.source)
  return task.name


def _is_doubled(task: seqio.Task) -> bool:
  return isinstance(task, streamed_tasks.StreamedTask) and task.both_directions


def _collected(rows: tf.data.Dataset) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
  """Returns all rows of a dataset as one batch, also if it has none."""
  none = tf.nest.map_structure(
    lambda spec: tf.zeros([0, *spec.shape], spec.dtype), rows.element_spec
  )
  batches = rows.batch(tf.int64.max).concatenate(tf.data.Dataset.from_tensors(none))
  return batches.take(1).get_single_element()


def _streamed(
  task: streamed_tasks.StreamedTask,
  columns: Mapping[str, tf.Tensor],
  *,
  lengths: Mapping[str, Any],
  convert: Convert,
  trim: bool,
) -> tf.data.Dataset:
  """Returns the numbers of rows that are examples, and their model features."""
  raw = {name: column for name, column in columns.items() if name not in (_SEED, _SWAPPED)}
  rows = task.source.columns(raw)
  if _SWAPPED in columns:
    swapped_B = columns[_SWAPPED]
    for name, other in preprocessors.swap(rows).items():
      rank = other.shape.rank
      here_B = tf.reshape(swapped_B, [-1] + [1] * (rank - 1))
      rows[name] = tf.where(here_B, other, rows[name])
  names = preprocessors.wanted([x for x in task.output_features if x in rows], lengths)
  found, keep_B = task.finished(rows, {x: lengths.get(x) if trim else None for x in names})
  kept = {name: tf.boolean_mask(column, keep_B) for name, column in found.items()}
  examples = convert(tf.data.Dataset.from_tensor_slices(kept))
  return tf.data.Dataset.zip((tf.data.Dataset.from_tensor_slices(tf.where(keep_B)[:, 0]), examples))


def _row_by_row(
  task: seqio.Task,
  columns: Mapping[str, tf.Tensor],
  *,
  lengths: Mapping[str, Any],
  convert: Convert,
  trim: bool,
) -> tf.data.Dataset:
  """Returns what `_streamed` returns, by the preprocessors of any task."""
  seed_B2 = columns[_SEED]
  rows = task.source.columns({name: x for name, x in columns.items() if name != _SEED})
  steps = [
    seqio.utils.add_kwargs_to_transform(
      step, sequence_length=lengths, output_features=task.output_features
    )
    for step in task.preprocessors
    if not isinstance(step, seqio.CacheDatasetPlaceholder)
  ]

  def examples(number: tf.Tensor, row: Mapping[str, tf.Tensor], seed: tf.Tensor) -> tf.data.Dataset:
    found = tf.data.Dataset.from_tensors(row)
    for place, step in enumerate(steps):
      seeded = _stochastic(step)
      if seeded is None:
        found = step(found)
      else:
        own = tf.random.experimental.stateless_fold_in(seed, place)
        found = found.map(functools.partial(seeded, seed=own))
    if trim:
      found = seqio.utils.trim_dataset(found, lengths, task.output_features)
    return convert(found).map(lambda example: (number, example))

  numbers_B = tf.range(tf.shape(seed_B2, tf.int64)[0])
  return tf.data.Dataset.from_tensor_slices((numbers_B, rows, seed_B2)).flat_map(examples)


def _stochastic(step: Callable[..., Any]) -> Callable[..., Any] | None:
  """Returns the function of a row and a seed in `seqio.map_over_dataset(num_seeds=1)`, or None."""
  keywords: dict[str, Any] = {}
  while isinstance(step, functools.partial):
    keywords = {**step.keywords, **keywords}
    step = step.func
  inner = getattr(step, "__wrapped__", None)
  names = inspect.signature(inner).parameters if inner else ()
  if "seeds" in names:
    raise errors.InputError(
      f"preprocessor {seqio.utils.function_name(step)} takes several seeds; use one, and split it "
      "(tf.random.experimental.stateless_split)"
    )
  return functools.partial(inner, **keywords) if inner and "seed" in names else None
