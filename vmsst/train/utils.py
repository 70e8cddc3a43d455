"""`t5x.utils` of the bundled runtime: configurations, initial train states and inference."""

import functools
import inspect
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from flax import traverse_util

from vmsst import errors
from vmsst.errors import InputError
from vmsst.io import atomic_files, storage, watchdog
from vmsst.train import checkpoints, partitioning, train_state
from vmsst.train import data as data_lib
from vmsst.train.checkpoints import CheckpointConfig, RestoreCheckpointConfig, SaveCheckpointConfig
from vmsst.train.data import DatasetConfig, get_dataset, get_training_eval_datasets
from vmsst.train.schedules import create_learning_rate_scheduler

__all__ = [
  "CheckpointConfig",
  "DatasetConfig",
  "RestoreCheckpointConfig",
  "SaveCheckpointConfig",
  "TrainStateInitializer",
  "create_learning_rate_scheduler",
  "get_dataset",
  "get_infer_fn",
  "get_training_eval_datasets",
]


class TrainStateInitializer:
  """Creates sharded train states of one model, from scratch or from a checkpoint.

  Args:
    optimizer_def: The optimizer, or None for a state without one (inference).
    init_fn: `model.get_initial_variables`.
    input_shapes: Shape of every feature of the global batch.
    partitioner: The mesh.
    input_types: Dtype of every feature.

  Attributes:
    global_train_state_shape: The state, of ShapeDtypeStructs.
    train_state_axes: The state, of PartitionSpecs.
  """

  def __init__(
    self,
    optimizer_def: Any,
    init_fn: Callable[..., Any],
    input_shapes: Mapping[str, Sequence[int]],
    partitioner: partitioning.PjitPartitioner,
    input_types: Mapping[str, Any] | None = None,
  ):
    def initialize(rng: jax.Array) -> Any:
      variables = init_fn(rng=rng, input_shapes=input_shapes, input_types=input_types)
      return train_state.TrainState.create(optimizer_def, variables)

    self._initialize = initialize
    self._partitioner = partitioner
    with partitioner.context():
      self.global_train_state_shape = jax.eval_shape(initialize, jax.random.PRNGKey(0))
    self.train_state_axes = partitioner.get_mesh_axes(self.global_train_state_shape)

  def from_scratch(self, init_rng: jax.Array) -> Any:
    """Returns a newly initialized state."""
    return self._partitioner.partition(
      self._initialize, in_axis_resources=None, out_axis_resources=self.train_state_axes
    )(init_rng)

  def _some_from_scratch(self, init_rng: jax.Array, names: Sequence[str]) -> dict[str, jax.Array]:
    """Returns some arrays of the state of `from_scratch`, without creating the others."""

    def initialize(rng: jax.Array) -> dict[str, jax.Array]:
      arrays = traverse_util.flatten_dict(self._initialize(rng).state_dict(), sep="/")
      return {name: arrays[name] for name in names}

    axes = traverse_util.flatten_dict(self.train_state_axes.state_dict(), sep="/")
    return self._partitioner.partition(
      initialize, in_axis_resources=None, out_axis_resources={name: axes[name] for name in names}
    )(init_rng)

  def from_checkpoint(
    self,
    path: epath.Path,
    cfg: checkpoints.RestoreCheckpointConfig | None = None,
    fallback_rng: jax.Array | None = None,
  ) -> Any:
    """Returns the state in the checkpoint at `path`; see `checkpoints.restore`.

    Args:
      path: A `checkpoint_<step>` folder.
      cfg: How to read it; None reads every array of the model as it is.
      fallback_rng: Key to initialize missing arrays in training, if `cfg.fallback_to_scratch`.

    Raises:
      InputError: The checkpoint does not match the model.
    """
    scratch = None
    if cfg is not None and cfg.fallback_to_scratch:
      if fallback_rng is None:
        raise InputError("fallback_to_scratch=True works only in training; set it to False")
      scratch = functools.partial(self._some_from_scratch, fallback_rng)
    shapes = self.global_train_state_shape
    state = checkpoints.restore(
      path,
      shapes.state_dict(),
      self._partitioner.shardings(self.train_state_axes).state_dict(),
      dtype=cfg.dtype if cfg else None,
      assignment_map=cfg.assignment_map if cfg else None,
      fallback=scratch,
    )
    return shapes.restore_state(state)


def check_model(name: str, model: Any) -> None:
  """Raises InputError unless `model` has the methods in docs/model_interface.md."""
  valid = all(hasattr(model, a) for a in ("FEATURE_CONVERTER_CLS", "get_initial_variables"))
  errors.check(valid, name, model, "a model, such as @vmsst.VmsstModel()")


def write_model_info(folder: str, shapes: Any, axes: Any) -> None:
  """Writes the arrays of a train state (names, shapes, axes) to `folder`/model-info.txt."""
  if jax.process_index() != 0:
    return
  logical = traverse_util.flatten_dict(shapes.as_logical_axes().state_dict(), sep="/")
  mesh = traverse_util.flatten_dict(axes.state_dict(), sep="/")
  arrays = traverse_util.flatten_dict(shapes.state_dict(), sep="/")
  lines = [
    f"{name}  {array.dtype}{list(array.shape)}  axes={logical.get(name)}  mesh={mesh.get(name)}"
    for name, array in sorted(arrays.items())
  ]
  parameters = sum(
    int(np.prod(array.shape)) for name, array in arrays.items() if name.startswith("target/")
  )
  text = "\n".join([*lines, f"parameters: {parameters:,}", ""])
  atomic_files.write_text(storage.path(folder) / "model-info.txt", text)


InferFn = Callable[..., Any]


def get_infer_fn(
  infer_step: Callable[..., Any],
  batch_size: int,
  train_state_axes: Any,
  partitioner: partitioning.PjitPartitioner,
) -> InferFn:
  """Returns a function that runs `infer_step` on every example of a dataset.

  It sorts examples by length to reduce padding, and restores the order of the results.

  Args:
    infer_step: `model.predict_batch`, `predict_batch_with_aux` or `score_batch`.
    batch_size: Examples in a global batch.
    train_state_axes: PartitionSpecs of the train state.
    partitioner: The mesh.

  Returns:
    `fn(dataset, train_state, rng=None)` for a dataset of (index, features). It returns a list of
    (index, result), with results as NumPy rows. If `infer_step` returns a pair with a dict, it
    returns that list and a dict of lists of auxiliary values.
  """
  accepted = inspect.signature(infer_step).parameters

  def step(params: Any, batch: Any, rng: Any, mutables: Any) -> Any:
    extra = {}
    if "rng" in accepted:
      extra["rng"] = rng
    if "flax_mutables" in accepted:
      extra["flax_mutables"] = mutables
    return infer_step(params, batch, **extra)

  partitioned = partitioner.partition(
    step,
    in_axis_resources=(
      train_state_axes.params,
      partitioner.data_partition_spec,
      None,
      train_state_axes.flax_mutables,
    ),
    out_axis_resources=None,
  )
  layout = partitioner.get_data_layout(batch_size)
  rows_here = batch_size // layout.num_shards
  mine = slice(layout.shard_id * rows_here, (layout.shard_id + 1) * rows_here)

  def infer(dataset: Any, train_state: Any, rng: jax.Array | None = None) -> Any:
    indices, features = _stack(dataset)
    if not len(indices):
      return []
    order = _by_length(features)
    pieces: list[Any] = []
    for start in range(0, len(order), batch_size):
      rows = order[start : start + batch_size]
      padded = np.concatenate([rows, np.repeat(rows[:1], batch_size - len(rows))])
      batch = data_lib.trim_padding(data_lib.take_rows(features, padded))
      batch = data_lib.take_rows(batch, mine)
      step_rng = None
      if rng is not None:
        step_rng, rng = jax.random.split(rng)
      result = partitioned(
        train_state.params, partitioner.to_devices(batch), step_rng, train_state.flax_mutables
      )
      pieces.append(jax.tree.map(operator.itemgetter(slice(len(rows))), result))
    gathered = []
    for piece in pieces:
      gathered.append(jax.tree.map(np.asarray, piece))  # waits for the devices
      watchdog.alive()
    back = np.argsort(order, kind="stable")
    results = jax.tree.map(lambda *parts: _join(parts, back), *gathered)
    if isinstance(results, tuple) and len(results) == 2 and isinstance(results[1], Mapping):
      values, aux = results
      return list(zip(indices.tolist(), _rows(values), strict=True)), jax.tree.map(list, dict(aux))
    return list(zip(indices.tolist(), _rows(results), strict=True))

  return infer


def _join(parts: Sequence[np.ndarray], order: np.ndarray) -> np.ndarray:
  joined = np.concatenate(parts)
  if joined.dtype == jnp.bfloat16:
    joined = joined.astype(np.float32)
  return joined[order]


def _rows(tree: Any) -> list[Any]:
  """Returns a tree of arrays [N, ...] as N trees."""
  if isinstance(tree, np.ndarray):
    return list(tree)
  leaves, structure = jax.tree.flatten(tree)
  return [jax.tree.unflatten(structure, row) for row in zip(*leaves, strict=True)]


def _stack(dataset: Iterable[Any]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
  """Returns indices [N] and features [N, ...] of a dataset of (index, features)."""
  indices: list[np.ndarray] = []
  columns: dict[str, list[np.ndarray]] = {}
  for index, example in dataset.batch(1024).as_numpy_iterator():  # type: ignore[attr-defined]
    indices.append(index)
    for name, value in example.items():
      columns.setdefault(name, []).append(value)
  if not indices:
    return np.zeros(0, np.int64), {}
  return np.concatenate(indices), {name: np.concatenate(v) for name, v in columns.items()}


def _by_length(features: Mapping[str, np.ndarray]) -> np.ndarray:
  """Returns the positions of the examples, [N], shortest first."""
  length = np.zeros(len(next(iter(features.values()))), np.int64)
  for value in features.values():
    if value.ndim == 2 and value.shape[1] > 1:
      used = (value != 0) * np.arange(1, value.shape[1] + 1)
      length = np.maximum(length, used.max(axis=1))
  return np.argsort(length, kind="stable")
