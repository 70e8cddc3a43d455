"""`t5x.utils` of the bundled runtime: configurations, train states, inference, learning rates.

Learning-rate schedules are products of named factors, such as `'constant * linear_warmup'`.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from etils import epath
from flax import traverse_util
from jaxtyping import Float, Int

from vmsst import errors, storage
from vmsst.data.loader import get_batches as get_dataset
from vmsst.errors import InputError
from vmsst.io import watchdog
from vmsst.jobs import atomic_files
from vmsst.train import checkpoints, partitioning, train_state
from vmsst.train import data as data_lib
from vmsst.train.checkpoints import CheckpointConfig, RestoreCheckpointConfig, SaveCheckpointConfig
from vmsst.train.data import DatasetConfig, get_training_eval_datasets

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

Step = Int[jax.Array, ""] | int
Schedule = Callable[[Step], Float[jax.Array, ""]]

_FACTORS_OF_WARMUP = frozenset(
  ["linear_warmup", "linear_decay", "rsqrt_decay", "rsqrt_normalized_decay"]
)


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
    more = {"rng": rng, "flax_mutables": mutables}
    return infer_step(params, batch, **{name: more[name] for name in more if name in accepted})

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
  partitioner.get_data_layout(batch_size)  # raises an error if the mesh does not divide it

  def infer(dataset: Any, train_state: Any, rng: jax.Array | None = None) -> Any:
    blocks = list(dataset.batch(1024).as_numpy_iterator())
    if not blocks:
      return []
    indices, features = jax.tree.map(lambda *parts: np.concatenate(parts), *blocks)
    order = _by_length(features)
    results: Any = None
    for start in range(0, len(order), batch_size):
      rows = order[start : start + batch_size]
      padded = np.concatenate([rows, np.repeat(rows[:1], batch_size - len(rows))])
      batch = data_lib.trim_padding(data_lib.take_rows(features, padded))
      step_rng = None
      if rng is not None:
        step_rng, rng = jax.random.split(rng)
      on_devices = partitioner.whole_to_devices(batch)  # The hosts of a pod interleave.
      result = partitioned(train_state.params, on_devices, step_rng, train_state.flax_mutables)
      result = jax.tree.map(np.asarray, result)  # The devices do not hold the results of all rows.
      if not start:
        results = jax.tree.map(functools.partial(_empty, len(order)), result)
      for array, values in zip(jax.tree.leaves(results), jax.tree.leaves(result), strict=True):
        array[rows] = values[: len(rows)]
      watchdog.alive()
    if isinstance(results, tuple) and len(results) == 2 and isinstance(results[1], Mapping):
      values, aux = results
      return list(zip(indices.tolist(), _rows(values), strict=True)), jax.tree.map(list, dict(aux))
    return list(zip(indices.tolist(), _rows(results), strict=True))

  return infer


def _empty(count: int, batch: np.ndarray) -> np.ndarray:
  """Returns an array for the values of `count` examples; NumPy's users do not know bfloat16."""
  dtype = np.float32 if batch.dtype == jnp.bfloat16 else batch.dtype
  return np.empty((count, *batch.shape[1:]), dtype)


def _rows(tree: Any) -> list[Any]:
  """Returns a tree of arrays [N, ...] as N trees."""
  leaves, structure = jax.tree.flatten(tree)
  return [jax.tree.unflatten(structure, row) for row in zip(*leaves, strict=True)]


def _by_length(features: Mapping[str, np.ndarray]) -> np.ndarray:
  """Returns the positions of the examples, [N], shortest first."""
  length = np.zeros(len(next(iter(features.values()))), np.int64)
  for value in features.values():
    if value.ndim == 2 and value.shape[1] > 1:
      used = (value != 0) * np.arange(1, value.shape[1] + 1)
      length = np.maximum(length, used.max(axis=1))
  return np.argsort(length, kind="stable")


def create_learning_rate_scheduler(
  factors: str = "constant * linear_warmup * rsqrt_decay",
  base_learning_rate: Annotated[float, msgspec.Meta(ge=0)] = 0.5,
  warmup_steps: Annotated[int, msgspec.Meta(ge=0)] = 1000,
  decay_factor: float = 0.5,
  steps_per_decay: Annotated[int, msgspec.Meta(ge=1)] = 20000,
  steps_per_cycle: Annotated[int, msgspec.Meta(ge=1)] = 100000,
  step_offset: Annotated[int, msgspec.Meta(ge=0)] = 0,
  min_learning_rate: Annotated[float, msgspec.Meta(ge=0)] = 1e-8,
) -> Schedule:
  """Returns a function from a step to its learning rate, a float32 scalar.

  With t = max(0, step - step_offset) and w = warmup_steps, the factors are:

  * constant: base_learning_rate,
  * linear_warmup: min(1, t / w),
  * linear_decay: base_learning_rate * min(t / w, 1 + decay_factor * (w - t)); it includes the
    constant and the warm-up, so use it alone,
  * rsqrt_decay: 1 / sqrt(max(t, w)),
  * rsqrt_normalized_decay: sqrt(w / max(t, w)),
  * decay_every: decay_factor ** floor(t / steps_per_decay),
  * cosine_decay: (1 + cos(pi * p)) / 2, where p in [0, 1) is the position in the current cycle,
    (t - w) / steps_per_cycle.

  The paper's lr(t) = 1e-3 * min(t / 4000, sqrt(4000 / t)) is `'constant * linear_warmup *
  rsqrt_normalized_decay'` with a base of 1e-3 and 4000 warm-up steps.

  Args:
    factors: Names of factors, separated by `*`.
    base_learning_rate: The constant.
    warmup_steps: Length of the warm-up, and start of the decays.
    decay_factor: Slope of `linear_decay`, or factor of `decay_every`.
    steps_per_decay: Steps between two decays of `decay_every`.
    steps_per_cycle: Length of one cosine cycle.
    step_offset: The step to count as 0, for fine-tuning.
    min_learning_rate: Lower bound; step 0 of a warm-up is therefore not exactly 0.

  Raises:
    InputError: A factor is unknown or needs at least one warm-up step.
  """

  def decay_by_cosine(rate, t):
    cycles = jnp.maximum(0.0, (t - warmup_steps) / float(steps_per_cycle))
    return rate * jnp.maximum(0.0, 0.5 * (1.0 + jnp.cos(jnp.pi * (cycles % 1.0))))

  def decay_linearly(rate, t):
    up_then_down = jnp.minimum(t / warmup_steps, 1.0 + decay_factor * (warmup_steps - t))
    return rate * (base_learning_rate * up_then_down)

  # Each entry multiplies the rate so far. The order of operations determines the last bit of the
  # result, and thus whether both runtimes train to the same numbers.
  apply_factor = {
    "constant": lambda rate, t: rate * base_learning_rate,
    "linear_warmup": lambda rate, t: rate * jnp.minimum(1.0, t / warmup_steps),
    "linear_decay": decay_linearly,
    "rsqrt_decay": lambda rate, t: rate / jnp.sqrt(jnp.maximum(t, warmup_steps)),
    "rsqrt_normalized_decay": lambda rate, t: (
      rate * jnp.sqrt(warmup_steps) / jnp.sqrt(jnp.maximum(t, warmup_steps))
    ),
    "decay_every": lambda rate, t: rate * decay_factor ** (t // steps_per_decay),
    "cosine_decay": decay_by_cosine,
  }

  names = [name.strip() for name in factors.split("*")]
  for name in names:
    if name not in apply_factor:
      raise InputError(
        f"create_learning_rate_scheduler.factors = {factors!r}: unknown factor {name!r}; "
        f"use {', '.join(sorted(apply_factor))}"
      )
    if name in _FACTORS_OF_WARMUP and warmup_steps < 1:
      raise InputError(
        f"create_learning_rate_scheduler.warmup_steps = {warmup_steps}: the factor {name!r} needs "
        "at least 1; raise it or remove the factor"
      )

  def schedule(step: Step) -> Float[jax.Array, ""]:
    t = jnp.maximum(0, step - step_offset)
    rate = 1.0
    for name in names:
      rate = apply_factor[name](rate, t)
    return jnp.asarray(jnp.maximum(rate, min_learning_rate), jnp.float32)

  return schedule
