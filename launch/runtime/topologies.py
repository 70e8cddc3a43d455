"""Programs compiled for devices that need not exist, and the memory that XLA allocates for them."""

import copy
import os
from typing import Any

import jax
from jax.experimental import mesh_utils, topologies
from jax.sharding import Mesh

from vmsst.errors import InputError
from vmsst.launch.runtime import partitioning


def on_topology(
  partitioner: partitioning.PjitPartitioner, topology: str
) -> partitioning.PjitPartitioner:
  """Returns the same mesh on TPUs that need not exist.

  Args:
    partitioner: A mesh of stand-in devices.
    topology: Name of a TPU topology, such as "v5e:2x4"; requires the package libtpu.

  Raises:
    InputError: There is no such topology, or it has fewer devices than the mesh.
  """
  # Without these, libtpu looks for a TPU, and for other processes that use it.
  os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
  os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
  try:
    devices = topologies.get_topology_desc(topology, platform="tpu").devices
  except Exception as error:  # from libtpu, or from finding it
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    raise InputError(
      f"no TPU topology {topology!r} in the package libtpu; install libtpu or name a topology such "
      f"as v5e:2x4: {reason}"
    ) from error
  mesh = partitioner.mesh
  if len(devices) < mesh.size:
    raise InputError(
      f"{topology} has {len(devices)} devices but the mesh has {mesh.size}; choose a larger one"
    )
  moved = copy.copy(partitioner)
  on_tpus = mesh_utils.create_device_mesh(mesh.devices.shape, list(devices)[: mesh.size])
  moved.mesh = Mesh(on_tpus, mesh.axis_names)
  return moved


def compile_step(lowered: jax.stages.Lowered, mesh: Mesh) -> jax.stages.Compiled:
  """Returns a compiled training step.

  Raises:
    InputError: It does not fit the memory of the mesh's devices.
  """
  try:
    return lowered.compile()
  except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" not in str(error):
      raise
    reason = str(error).splitlines()[0]
    raise InputError(
      f"a step does not fit {mesh.size} {mesh.devices.flat[0].device_kind}: {reason}. Raise "
      "NUM_MICROBATCHES, recompute more (T5Config.remat), use more devices or shard over them "
      "(meshes/*.gin)"
    ) from None


def memory_parts(compiled: jax.stages.Compiled) -> dict[str, int]:
  """Returns bytes per device by XLA's analysis: arguments, results, temporary and peak."""
  analysis: Any = compiled.memory_analysis()
  parts = {
    "arguments": analysis.argument_size_in_bytes,
    "results": analysis.output_size_in_bytes - analysis.alias_size_in_bytes,
    "temporary": analysis.temp_size_in_bytes,
  }
  # Backends that do not report the peak return less than the arguments.
  peak = analysis.peak_memory_in_bytes
  return {**parts, "peak": peak if peak > parts["arguments"] else sum(parts.values())}
