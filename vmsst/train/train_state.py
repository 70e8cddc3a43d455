"""The state of a run: parameters, optimizer state, other model variables, and logical axes.

A checkpoint stores the state in T5X's layout, `{'target': ..., 'state': {'step': ...,
'param_states': ...}}`, with an additional entry `flax_mutables` if the model has variables other
than parameters.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.core
import jax
import jax.numpy as jnp
from etils import epath
from flax import serialization, struct, traverse_util
from flax.linen import partitioning as flax_partitioning

from vmsst import storage
from vmsst.errors import InputError
from vmsst.jobs import outputs
from vmsst.train import checkpoints, partitioning
from vmsst.train.optimizers import OptimizerDef

PyTree = Any
_AXES = "_axes"


def _with_leaves(reference: PyTree, state_dict: PyTree) -> PyTree:
  """Returns `reference` with leaves from `state_dict`, which may omit branches without leaves."""
  expected = traverse_util.flatten_dict(
    {"": serialization.to_state_dict(reference)}, keep_empty_nodes=True
  )
  leaves = traverse_util.flatten_dict({"": state_dict}, keep_empty_nodes=True)
  complete = {path: leaves.get(path, leaf) for path, leaf in expected.items()}
  return serialization.from_state_dict(reference, traverse_util.unflatten_dict(complete)[""])


class TrainState(struct.PyTreeNode):
  """The state of a training run. For evaluation and inference, it has no optimizer.

  Attributes:
    step: Number of training steps so far.
    params: Model parameters.
    param_states: Optimizer state.
    flax_mutables: Model variables other than parameters, by collection.
    optimizer_def: The optimizer, or None.
    axes: Logical axes of the variables by collection (static, not part of the pytree).
  """

  step: Any  # int32 scalar; None in a tree of axes
  params: PyTree
  param_states: PyTree = None
  flax_mutables: dict[str, Any] = struct.field(default_factory=dict)
  optimizer_def: OptimizerDef | None = struct.field(pytree_node=False, default=None)
  axes: Any = struct.field(pytree_node=False, default=None)

  @classmethod
  def create(cls, optimizer_def: OptimizerDef | None, variables: Any) -> TrainState:
    """Returns the state before the first step.

    Args:
      optimizer_def: The optimizer. If it has a method `set_param_axes`, this method is called with
        the logical axes of the parameters.
      variables: Return value of the model's `get_initial_variables`.
    """
    collections = flax.core.unfreeze(variables)
    specs: dict[str, PyTree] = {}  # a PartitionSpec for every variable, by collection
    for name in [name for name in collections if name.endswith(_AXES)]:
      collection = name.removesuffix(_AXES)
      variable_axes = flax.core.freeze(collections.pop(name))
      specs[collection] = flax.core.unfreeze(flax_partitioning.get_axis_names(variable_axes))
    axes = flax.core.freeze(specs)
    params = collections.pop("params")
    set_axes = getattr(optimizer_def, "set_param_axes", None)
    if "params" in axes and set_axes is not None:
      set_axes(flax.core.unfreeze(axes["params"]))
    return cls(
      step=jnp.zeros((), jnp.int32),
      params=params,
      param_states=optimizer_def.init_state(params) if optimizer_def else None,
      flax_mutables=collections,
      optimizer_def=optimizer_def,
      axes=axes,
    )

  def state_dict(self) -> dict[str, Any]:
    """Returns the tree that a checkpoint stores.

    Tuples become dicts with the keys '0', '1', ...; branches without arrays are omitted.
    """
    state = {"step": self.step, "param_states": serialization.to_state_dict(self.param_states)}
    if self.optimizer_def is None:
      del state["param_states"]
    tree = {"target": self.params, "state": state, "flax_mutables": self.flax_mutables}
    return traverse_util.unflatten_dict(traverse_util.flatten_dict(tree))

  def restore_state(self, state_dict: Mapping[str, Any]) -> TrainState:
    """Returns the state with the arrays from `state_dict`; `flax_mutables` may be missing."""
    state = state_dict["state"]
    param_states = None
    if self.optimizer_def is not None:
      param_states = _with_leaves(self.param_states, state.get("param_states", {}))
    return self.replace(
      step=state["step"],
      params=_with_leaves(self.params, state_dict["target"]),
      param_states=param_states,
      flax_mutables=dict(state_dict.get("flax_mutables", {})),
    )

  def apply_gradient(
    self, grads: PyTree, learning_rate: Any, flax_mutables: Any = None
  ) -> TrainState:
    """Returns the state after one more step, with new `flax_mutables`."""
    assert self.optimizer_def is not None
    params, param_states = self.optimizer_def.apply_gradient(
      self.params, self.param_states, grads, step=self.step, learning_rate=learning_rate
    )
    return self.replace(
      step=self.step + 1,
      params=params,
      param_states=param_states,
      flax_mutables=flax.core.unfreeze(flax_mutables or {}),
    )

  def as_logical_axes(self) -> TrainState:
    """Returns the state with arrays replaced by their logical axes, or by None if replicated.

    Collections without axes are omitted.
    """
    axes = flax.core.unfreeze(self.axes["params"])
    mutables = {
      name: names for name, names in flax.core.unfreeze(self.axes).items() if name != "params"
    }
    param_states = None
    if self.optimizer_def is not None:
      param_states = self.optimizer_def.logical_axes(self.params, self.param_states, axes)
    return self.replace(step=None, params=axes, param_states=param_states, flax_mutables=mutables)


class TrainStateInitializer:
  """Creates sharded train states for one model, from scratch or from a checkpoint.

  Args:
    optimizer_def: The optimizer, or None for inference.
    init_fn: `model.get_initial_variables`.
    input_shapes: Shape of each feature in the global batch.
    partitioner: Provides the device mesh.
    input_types: Dtype of each feature.

  Attributes:
    global_train_state_shape: The state with a ShapeDtypeStruct for every array.
    train_state_axes: The state with a PartitionSpec for every array.
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
      return TrainState.create(optimizer_def, variables)

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
    """Returns only the named arrays of a newly initialized state; XLA computes no other arrays."""

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
    """Reads the state from the checkpoint at `path`; see `checkpoints.restore`.

    Args:
      path: A `checkpoint_<step>` folder, or an encoder that `vmsst.load` opens.
      cfg: Options for reading (default: read every model array unchanged).
      fallback_rng: Random key to initialize missing arrays if `cfg.fallback_to_scratch` is true.

    Raises:
      InputError: If the checkpoint does not match the model.
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

  def write_model_info(self, folder: str) -> None:
    """Writes the name, shape and axes of each array in the state to `folder`/model-info.txt."""
    if jax.process_index() != 0:
      return
    shapes = self.global_train_state_shape
    logical, mesh, arrays = (
      traverse_util.flatten_dict(state.state_dict(), sep="/")
      for state in (shapes.as_logical_axes(), self.train_state_axes, shapes)
    )
    lines = [
      f"{name}  {array.dtype}{list(array.shape)}  axes={logical.get(name)}  mesh={mesh.get(name)}"
      for name, array in sorted(arrays.items())
    ]
    parameters = sum(math.prod(x.shape) for name, x in arrays.items() if name[:7] == "target/")
    text = "\n".join([*lines, f"parameters: {parameters:,}", ""])
    outputs.write_text(storage.path(folder) / "model-info.txt", text)
