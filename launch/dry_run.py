"""`t5x train --dry_run`: what a run would need, without data and without making parameters."""

import copy
import inspect
import json
import math
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

import gin
import jax
import jax.numpy as jnp
from flax import traverse_util
from jax.experimental import mesh_utils, topologies
from jax.sharding import Mesh

from vmsst.errors import InputError
from vmsst.launch.runtime import gin_utils, partitioning, progress, utils
from vmsst.launch.runtime import train as train_lib
from vmsst.text import vocabularies

_LARGE_BYTES = 1 << 20
_NUMBER = re.compile(r"_\d+")  # layers are listed together


def forget_data() -> None:
  """Rebinds, in the parsed gin configuration, what names data or folders: none need exist."""
  with gin.unlock_config():
    for name in ("model_dir", "infer_eval_dataset_cfg", "train_eval_dataset_cfg", "checkpoint_cfg"):
      gin.bind_parameter(f"__main__.train.{name}", None)
    gin.bind_parameter("train/t5x.utils.DatasetConfig.mixture_or_task_name", None)
    # A teacher is a folder too; without it, its vectors are a part of the batch.
    for name in (*gin_utils.unset_macros(), "TEACHER"):
      gin.bind_parameter(f"{name}/gin.macro.value", None)
    # A loss may ask its vocabulary for an id; no number here depends on which.
    gin.bind_parameter("VOCABULARY/gin.macro.value", vocabularies.ByteVocabulary())


def train_function(with_memory: bool, topology: str | None = None) -> Callable[..., None]:
  """What stands in for the training function: prints sizes, shardings and arithmetic of the run.

  The last line is JSON: `parameters`, `parameters_by_module`, `flops_per_step` (of matrix
  products, forward and backward) and `bytes_per_device` (parameters, optimizer state, gradients
  and the batch; activations are not counted).

  Args:
    with_memory: Compile the step as well, and say what memory XLA gives it on each device. The JSON
      has `peak_bytes_per_device` besides: all that a step has in memory at a time. Compiling takes
      minutes where a model has many layers. A program that does not fit a TPU is an InputError.
    topology: TPUs to compile for, such as "v5e:2x4", by the package libtpu; none need be there, but
      as many other devices (XLA_FLAGS=--xla_force_host_platform_device_count=8). None compiles for
      the devices at hand.
  """

  def train(
    *,
    model: Any,
    train_dataset_cfg: Any,
    partitioner: partitioning.PjitPartitioner,
    trainer_cls: Any,
    **others: Any,
  ) -> None:
    _check_names(others)
    run = (model, train_dataset_cfg, partitioner, trainer_cls)
    report = describe(*run)
    print(report.pop("text"), flush=True)
    if with_memory:
      report |= memory(*run, topology)
      print(report.pop("text"))
    print(json.dumps(report))

  return train


def _check_names(others: Mapping[str, Any]) -> None:
  known = inspect.signature(train_lib.train).parameters
  for name in others:
    if name not in known:
      raise InputError(f"train has no parameter {name!r}")


def describe(
  model: Any, cfg: Any, partitioner: partitioning.PjitPartitioner, trainer_cls: Any
) -> dict[str, Any]:
  """The numbers of the JSON line, and the report as `text`."""
  batch = _batch(model, cfg, partitioner)
  initializer = _initializer(model, batch, partitioner)
  state = initializer.global_train_state_shape
  arrays = traverse_util.flatten_dict(state.state_dict(), sep="/")
  shardings = traverse_util.flatten_dict(
    partitioner.shardings(initializer.train_state_axes).state_dict(), sep="/"
  )

  def local_bytes(name: str) -> int:
    shape = shardings[name].shard_shape(arrays[name].shape)
    return math.prod(shape) * arrays[name].dtype.itemsize

  parameters = {
    name.removeprefix("target/"): math.prod(array.shape)
    for name, array in arrays.items()
    if name.startswith("target/")
  }
  modules: dict[str, int] = {}
  for name, count in parameters.items():
    modules[_module(name)] = modules.get(_module(name), 0) + count
  parameter_bytes = sum(local_bytes(name) for name in arrays if name.startswith("target/"))
  state_bytes = sum(local_bytes(name) for name in arrays if not name.startswith("target/"))
  batch_bytes = sum(
    math.prod(partitioner.data_sharding.shard_shape(value.shape)) * value.dtype.itemsize
    for value in batch.values()
  )
  flops = _step_flops(model, state, batch, partitioner, initializer, trainer_cls)
  large: dict[tuple[str, ...], list[int]] = {}
  for name, array in sorted(arrays.items()):
    if math.prod(array.shape) * array.dtype.itemsize >= _LARGE_BYTES:
      group = (_NUMBER.sub("_*", name), str(list(array.shape)), str(shardings[name].spec))
      large.setdefault(group, []).append(local_bytes(name))
  lines = [
    f"mesh: data={partitioner.mesh.shape['data']} model={partitioner.mesh.shape['model']} "
    f"({partitioner.mesh.size} {partitioner.mesh.devices.flat[0].device_kind} devices)",
    f"batch: {cfg.batch_size} examples, "
    + ", ".join(f"{n} {list(v.shape)}" for n, v in batch.items()),
    "",
    progress.table("parameters", ["count"], {n: [c] for n, c in sorted(modules.items())}),
    f"total {sum(modules.values()):,}",
    "",
    f"arrays of {_LARGE_BYTES >> 20} MiB and more: shape, sharding, MiB per device",
    *(
      f"  {name}  {shape}  {spec}  {sizes[0] / 2**20:.1f}"
      + (f" (x {len(sizes)})" if len(sizes) > 1 else "")
      for (name, shape, spec), sizes in large.items()
    ),
    "",
    f"per device: parameters {_mib(parameter_bytes)}, optimizer {_mib(state_bytes)}, "
    f"gradients {_mib(parameter_bytes)}, batch {_mib(batch_bytes)}",
    f"matrix products per step: {flops:.3e} FLOPs",
  ]
  return {
    "text": "\n".join(lines),
    "parameters": sum(modules.values()),
    "parameters_by_module": modules,
    "flops_per_step": flops,
    "bytes_per_device": 2 * parameter_bytes + state_bytes + batch_bytes,
  }


def _mib(size: int) -> str:
  return f"{size / 2**20:.1f} MiB"


def _module(name: str) -> str:
  """The first two parts of a parameter's path: a module, and a layer or part of it."""
  parts = name.split("/")
  return "/".join(parts[: min(2, len(parts) - 1)])


def _batch(
  model: Any, cfg: Any, partitioner: partitioning.PjitPartitioner
) -> dict[str, jax.ShapeDtypeStruct]:
  """Shapes of a global batch, from the feature lengths alone."""
  if not cfg.task_feature_lengths:
    raise InputError("--dry_run needs TASK_FEATURE_LENGTHS")
  partitioner.get_data_layout(cfg.batch_size)
  converter = model.FEATURE_CONVERTER_CLS(pack=cfg.pack)
  lengths = converter.get_model_feature_lengths(cfg.task_feature_lengths)
  return {
    name: jax.ShapeDtypeStruct((cfg.batch_size, length), jnp.int32)
    for name, length in lengths.items()
  }


def _initializer(
  model: Any,
  batch: Mapping[str, jax.ShapeDtypeStruct],
  partitioner: partitioning.PjitPartitioner,
) -> utils.TrainStateInitializer:
  return utils.TrainStateInitializer(
    optimizer_def=model.optimizer_def,
    init_fn=model.get_initial_variables,
    input_shapes={name: value.shape for name, value in batch.items()},
    input_types={name: value.dtype for name, value in batch.items()},
    partitioner=partitioner,
  )


def _trainer(
  model: Any,
  state: Any,
  partitioner: partitioning.PjitPartitioner,
  initializer: utils.TrainStateInitializer,
  trainer_cls: Any,
) -> Any:
  return trainer_cls(
    model=model,
    train_state=state,
    partitioner=partitioner,
    eval_names=[],
    summary_dir=None,
    train_state_axes=initializer.train_state_axes,
    rng=jax.random.PRNGKey(0),
  )


def _step_flops(
  model: Any,
  state: Any,
  batch: Mapping[str, jax.ShapeDtypeStruct],
  partitioner: partitioning.PjitPartitioner,
  initializer: utils.TrainStateInitializer,
  trainer_cls: Any,
) -> float:
  trainer = _trainer(model, state, partitioner, initializer, trainer_cls)
  with partitioner.context():
    jaxpr = jax.make_jaxpr(trainer._partitioned_train_step.function)(state, dict(batch))
  trainer.close()
  return matmul_flops(jaxpr.jaxpr)


def memory(
  model: Any,
  cfg: Any,
  partitioner: partitioning.PjitPartitioner,
  trainer_cls: Any,
  topology: str | None = None,
) -> dict[str, Any]:
  """What the compiled step takes of each device's memory, by XLA's analysis; also as `text`.

  Args:
    model: as of a run, like the three that follow.
    cfg: see there.
    partitioner: see there.
    trainer_cls: see there.
    topology: see `train_function`.

  Raises:
    InputError: the TPUs' memory is too small, or no such TPUs are known.
  """
  batch = _batch(model, cfg, partitioner)
  initializer = _initializer(model, batch, partitioner)
  state = initializer.global_train_state_shape
  if topology is not None:
    partitioner = _on_topology(partitioner, topology)
  trainer = _trainer(model, state, partitioner, initializer, trainer_cls)
  lowered = trainer._partitioned_train_step.lower(state, batch)
  trainer.close()
  device = partitioner.mesh.devices.flat[0].device_kind
  try:
    analysis = lowered.compile().memory_analysis()
  except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" not in str(error):
      raise
    reason = str(error).splitlines()[0]
    raise InputError(
      f"a step does not fit {partitioner.mesh.size} {device}: {reason}. Raise NUM_MICROBATCHES, "
      "recompute more (T5Config.remat), use more devices or shard over them (meshes/*.gin)"
    ) from None
  parts = {
    "arguments": analysis.argument_size_in_bytes,
    "results": analysis.output_size_in_bytes - analysis.alias_size_in_bytes,
    "temporary": analysis.temp_size_in_bytes,
  }
  # Backends that do not know the peak give less than what is there before the step.
  peak = analysis.peak_memory_in_bytes
  if peak <= parts["arguments"]:
    peak = sum(parts.values())
  return {
    "text": f"compiled for {partitioner.mesh.size} {device}, per device: "
    + ", ".join(f"{name} {_mib(size)}" for name, size in parts.items())
    + f"; at the peak {_mib(peak)}",
    "peak_bytes_per_device": peak,
  }


def _on_topology(
  partitioner: partitioning.PjitPartitioner, topology: str
) -> partitioning.PjitPartitioner:
  """The same mesh of TPUs that are known by name alone."""
  # Without them libtpu looks for a TPU, and for others who use it.
  os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
  os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
  try:
    devices = topologies.get_topology_desc(topology, platform="tpu").devices
  except Exception as error:  # of libtpu, or of finding it
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    raise InputError(
      f"no TPU topology {topology!r} (such as v5e:2x4) by the package libtpu (pip install "
      f"libtpu): {reason}"
    ) from error
  mesh = partitioner.mesh
  if len(devices) < mesh.size:
    raise InputError(f"{topology} has {len(devices)} devices, the mesh {mesh.size}")
  moved = copy.copy(partitioner)
  on_tpus = mesh_utils.create_device_mesh(mesh.devices.shape, list(devices)[: mesh.size])
  moved.mesh = Mesh(on_tpus, mesh.axis_names)
  return moved


def matmul_flops(jaxpr: Any) -> float:
  """Floating-point operations of all matrix products in a jaxpr, loops unrolled.

  2 M N K for a product of [M, K] and [K, N]. A `while` loop without a known length counts once;
  of `cond` the costliest branch.
  """
  total = 0.0
  for equation in jaxpr.eqns:
    if equation.primitive.name == "dot_general":
      (contracted, _), _ = equation.params["dimension_numbers"]
      left = equation.invars[0].aval.shape
      total += (
        2.0 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[i] for i in contracted)
      )
      continue
    inner = [matmul_flops(sub) for sub in _sub_jaxprs(equation)]
    if equation.primitive.name == "cond":
      total += max(inner, default=0.0)
    elif equation.primitive.name == "scan":
      total += equation.params["length"] * sum(inner)
    else:
      total += sum(inner)
  return total


def _sub_jaxprs(equation: Any) -> list[Any]:
  found: list[Any] = []
  for value in equation.params.values():
    for item in value if isinstance(value, tuple | list) else (value,):
      if hasattr(item, "eqns"):
        found.append(item)
      elif hasattr(item, "jaxpr") and hasattr(item.jaxpr, "eqns"):
        found.append(item.jaxpr)
  return found
