"""Meshes and sharding (`t5x.partitioning` in the bundled runtime).

A mesh arranges the devices along two axes, `data` and `model`. Each axis of a parameter or an
activation has a logical name. Rules map each logical name to a mesh axis, or to None if arrays are
replicated along this axis.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import jax
import msgspec
import numpy as np
from flax import traverse_util
from flax.linen import partitioning as flax_partitioning
from jax.experimental import mesh_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from vmsst.errors import InputError

LogicalAxisRules = Sequence[tuple[str, str | tuple[str, ...] | None]]
Size = Annotated[int, msgspec.Meta(ge=1)]
HardwareMesh = tuple[Size, Size, Size, Size]

all_devices: Callable[[], Sequence[Any]] = jax.devices
"""Returns the devices for meshes. The option `--topology` replaces this function."""


def with_sharding_constraint(x: jax.Array, axis_resources: PartitionSpec) -> jax.Array:
  """Constrains how `x` is sharded over the mesh axes, if a mesh is set."""
  if not jax.sharding.get_abstract_mesh().shape:
    return x
  return jax.lax.with_sharding_constraint(x, axis_resources)


def standard_logical_axis_rules(
  activation_partitioning_dims: Literal[1, 2] = 1,
  parameter_partitioning_dims: Literal[1, 2] = 1,
  additional_rules: LogicalAxisRules | None = None,
) -> LogicalAxisRules:
  """Returns upstream T5X's rules for its standard axis names.

  Args:
    activation_partitioning_dims: If 2, the `embed` axis is sharded over `model`.
    parameter_partitioning_dims: If 2, the `embed` axis is sharded over `data` (fully sharded
      parameters).
    additional_rules: Appended to the standard rules; the first matching rule applies.
  """
  rules: list[tuple[str, Any]] = [
    ("batch", "data"),
    ("vocab", "model"),
    ("mlp", "model"),
    ("heads", "model"),
    ("kv", None),
    ("joined_kv", "model"),
  ]
  if activation_partitioning_dims == 2:
    rules.append(("embed", "model"))
  if parameter_partitioning_dims == 2:
    rules.append(("embed", "data"))
  if activation_partitioning_dims == parameter_partitioning_dims == 1:
    rules.append(("embed", None))
  replicated = ("relpos_buckets", "abspos_buckets", "length", "layers", "stack", "mlp_activations")
  return [*rules, *((name, None) for name in replicated), *(additional_rules or ())]


class PartitionedFunction:
  """A jitted function that runs under a partitioner's mesh and logical axis rules."""

  def __init__(self, function: Callable[..., Any], jitted: Any, partitioner: "PjitPartitioner"):
    self.function = function
    self._jitted = jitted
    self._partitioner = partitioner

  def __call__(self, *args: Any) -> Any:
    """Runs the function on the mesh."""
    with self._partitioner.context():
      return self._jitted(*args)

  def lower(self, *args):
    """Returns the function lowered for `args` (arrays or shapes)."""
    with self._partitioner.context():
      return self._jitted.lower(*args)


class PjitPartitioner:
  """Places parameters and batches on a (`data`, `model`) mesh with all devices.

  Args:
    num_partitions: Size of the `model` axis.
    model_parallel_submesh: Alternative to `num_partitions` for TPU pods: the (x, y, z, core) size
      of the tile that holds one model replica. The size of the `model` axis is the product of the
      four numbers.
    logical_axis_rules: See `standard_logical_axis_rules`.
  """

  def __init__(
    self,
    num_partitions: Size | None = None,
    model_parallel_submesh: HardwareMesh | None = None,
    logical_axis_rules: LogicalAxisRules | None = None,
  ):
    if bool(num_partitions) == bool(model_parallel_submesh):
      raise InputError(
        f"PjitPartitioner has num_partitions={num_partitions!r} and "
        f"model_parallel_submesh={model_parallel_submesh!r}; set exactly one of them"
      )
    model_size = num_partitions or math.prod(model_parallel_submesh or (1,))
    devices = all_devices()
    shape = (len(devices) // model_size, model_size)
    try:
      device_array = mesh_utils.create_device_mesh(shape, devices)
    except NotImplementedError:  # No axes of the TPU torus fit `shape`.
      device_array = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    self.mesh = Mesh(device_array, ("data", "model"))
    self.logical_axis_rules = tuple(logical_axis_rules or standard_logical_axis_rules())
    self.data_partition_spec = PartitionSpec("data")

  @contextlib.contextmanager
  def context(self) -> Iterator[None]:
    """Sets the mesh and the axis rules while the context is active."""
    mesh: contextlib.AbstractContextManager = (
      jax.set_mesh(self.mesh)
      if all_devices is jax.devices  # Compile-only devices cannot compute constants.
      else jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh)
    )
    with flax_partitioning.axis_rules(self.logical_axis_rules), mesh:
      yield

  @property
  def data_sharding(self) -> NamedSharding:
    """The sharding for batches, which splits rows over the `data` axis."""
    return NamedSharding(self.mesh, self.data_partition_spec)

  def data_shard(self, batch_size: int) -> tuple[int, int]:
    """Returns the index of the data shard that this process reads, and the number of shards.

    Args:
      batch_size: Examples in the global batch.

    Raises:
      InputError: If the batch size is not divisible by the size of the `data` axis.
    """
    data_size = self.mesh.shape["data"]
    if batch_size % data_size:
      raise InputError(
        f"BATCH_SIZE={batch_size} is not divisible by the data axis of the mesh ({data_size} of "
        f"{self.mesh.size} devices; num_partitions={self.mesh.shape['model']}); choose a multiple "
        f"of {data_size}"
      )
    rows: dict[int, set[int]] = {}  # mesh rows by process index
    for (row, _), device in np.ndenumerate(self.mesh.devices):
      rows.setdefault(device.process_index, set()).add(row)
    shards = sorted({tuple(sorted(process_rows)) for process_rows in rows.values()})
    mine = tuple(sorted(rows[jax.process_index()]))
    return shards.index(mine), len(shards)

  def get_mesh_axes(self, train_state: Any) -> Any:
    """Returns `train_state` with arrays replaced by PartitionSpecs, or by None if replicated.

    If a collection of model variables has no logical axes, its arrays are replicated.

    Raises:
      InputError: If no rule exists for a parameter's axis. (Without this error, Flax would silently
        replicate the parameter.)
    """
    axes = train_state.as_logical_axes()
    ruled = {None, *(name for name, _ in self.logical_axis_rules)}

    def to_mesh(path: str, names: Any) -> Any:
      if names is None or names is traverse_util.empty_node:
        return names
      if unknown := set(names) - ruled:
        raise InputError(
          f"{path} has logical axis {min(unknown)!r}, but no sharding rule for it; add a "
          "rule with standard_logical_axis_rules.additional_rules"
        )
      return flax_partitioning.logical_to_mesh_axes(names, self.logical_axis_rules)

    flat = traverse_util.flatten_dict(axes.state_dict(), keep_empty_nodes=True, sep="/")
    replicated = dict.fromkeys(traverse_util.flatten_dict(train_state.state_dict(), sep="/"))
    mesh_axes = {**replicated, **{path: to_mesh(path, names) for path, names in flat.items()}}
    return axes.restore_state(traverse_util.unflatten_dict(mesh_axes, sep="/"))

  def shardings(self, mesh_axes: Any) -> Any:
    """Returns a NamedSharding for every PartitionSpec or None of `mesh_axes`."""
    return jax.tree.map(
      lambda spec: NamedSharding(self.mesh, PartitionSpec() if spec is None else spec),
      mesh_axes,
      is_leaf=lambda x: x is None or isinstance(x, PartitionSpec),
    )

  def partition(
    self,
    fn: Callable[..., Any],
    in_axis_resources: Any,
    out_axis_resources: Any,
    donate_argnums: int | Sequence[int] = (),
  ) -> PartitionedFunction:
    """Returns `fn` jitted for the mesh. Axis resources are PartitionSpec trees; None replicates."""
    jitted = jax.jit(
      fn,
      in_shardings=self.shardings(in_axis_resources),
      out_shardings=self.shardings(out_axis_resources),
      donate_argnums=donate_argnums,
    )
    return PartitionedFunction(fn, jitted, self)

  def whole_to_devices(self, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
    """Shards a batch over `data`. Every process must pass the complete global batch."""
    return {
      name: jax.make_array_from_callback(rows.shape, self.data_sharding, rows.__getitem__)
      for name, rows in batch.items()
    }

  def to_devices(self, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
    """Builds the global batch, sharded over `data`, from the rows [b, ...] of each process."""
    sharding = self.data_sharding
    if jax.process_count() == 1:
      return jax.device_put(dict(batch), sharding)
    return {
      name: jax.make_array_from_process_local_data(sharding, rows) for name, rows in batch.items()
    }
