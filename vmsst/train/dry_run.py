"""`t5x train --dry_run`: sizes and FLOPs of a run, without data and without creating parameters."""

import functools
import inspect
import json
import math
import os
import re
from collections.abc import Callable
from typing import Any

import gin
import jax
import jax.numpy as jnp
from flax import traverse_util
from jax._src import xla_bridge
from jax.experimental import topologies
from jax.extend import core

from vmsst.data import vocabularies
from vmsst.errors import InputError
from vmsst.train import checkpoints, gin_utils, partitioning, progress, train_state
from vmsst.train import train as train_lib

_LARGE_BYTES = 1 << 20
_NUMBER = re.compile(r"_\d+")  # layers are listed together


def forget_data() -> None:
  """Rebinds data and folders in the parsed gin configuration, so that none need exist."""
  bindings = gin_utils.bindings()
  with gin.unlock_config():
    for name in ("infer_eval_dataset_cfg", "train_eval_dataset_cfg", "actions"):
      gin.bind_parameter(f"__main__.train.{name}", None)
    gin.bind_parameter("__main__.train.model_dir", os.devnull)
    # Steps may be counted in the data.
    for scope, selector, name in (
      ("", "__main__.train", "eval_period"),
      ("TRAIN_STEPS", "gin.macro", "value"),
    ):
      try:
        gin_utils.literal(bindings.get((scope, selector), {}).get(name, gin.REQUIRED))
      except gin_utils.UnknownValueError:
        gin.bind_parameter((scope, selector, name), 1)
    for scope, selector in list(bindings):
      if selector == "t5x.utils.CheckpointConfig":
        gin.bind_parameter((scope, selector, "save"), None)
    gin.bind_parameter("train/t5x.utils.DatasetConfig.mixture_or_task_name", None)
    # A teacher is a folder too; without it, its vectors are part of the batch.
    for name in (*gin_utils.unset_macros(), "TEACHER"):
      gin.bind_parameter(f"{name}/gin.macro.value", None)
    # A loss may look up a token id; the sizes do not depend on it.
    gin.bind_parameter("VOCABULARY/gin.macro.value", vocabularies.ByteVocabulary())


def train_function(with_memory: bool) -> Callable[..., None]:
  """Returns a replacement of the training function, which prints sizes, shardings and FLOPs.

  The last line it prints is JSON: `parameters`, `parameters_by_module`, `flops_per_step` (of
  matmuls, forward and backward) and `bytes_per_device` (parameters, optimizer state, gradients and
  batch, without activations).

  Args:
    with_memory: Also compile the step and report the memory that XLA allocates on each device. The
      JSON then has `peak_bytes_per_device`, the total memory of a step. Compiling takes minutes for
      deep models. A program that does not fit raises InputError.
  """

  @functools.wraps(train_lib.train)  # Gin checks names and types of its parameters.
  def train(**given: Any) -> None:
    try:
      inspect.signature(train_lib.train).bind(**given)
    except TypeError as error:
      raise InputError(f"train: {error}; add a gin file or binding that sets it") from None
    model, cfg = given["model"], given["train_dataset_cfg"]
    step = Step(model, cfg, given["partitioner"], given["trainer_cls"], given["total_steps"])
    report = describe(step, given["checkpoint_cfg"].restore)
    print(report.pop("text"), flush=True)
    if with_memory:
      report |= memory(step)
      print(report.pop("text"))
    print(json.dumps(report))

  return train


class Step:
  """A training step of abstract arrays.

  Args:
    model: The model.
    cfg: The training data.
    partitioner: The mesh.
    trainer_cls: Creates the trainer.
    total_steps: Last step of the run.

  Attributes:
    partitioner: The mesh.
    batch_size: Examples in a global batch.
    batch: Shapes of a global batch, from the feature lengths alone.
    state: Shapes of the train state.
    axes: PartitionSpecs of the train state.
    function: (train_state, batch) -> (train_state, metrics) on the mesh.

  Raises:
    InputError: The batch cannot be divided over the mesh, or the trainer refuses the run.
  """

  def __init__(
    self,
    model: Any,
    cfg: Any,
    partitioner: partitioning.PjitPartitioner,
    trainer_cls: Any,
    total_steps: int,
  ):
    self.partitioner = partitioner
    self.batch_size = partitioner.get_data_layout(cfg.batch_size).batch_size
    converter = model.FEATURE_CONVERTER_CLS(pack=cfg.pack)
    lengths = converter.get_model_feature_lengths(cfg.task_feature_lengths)
    self.batch = {  # of several texts per row, the length is (texts, tokens)
      name: jax.ShapeDtypeStruct(
        (cfg.batch_size, *(length if isinstance(length, tuple) else (length,))), jnp.int32
      )
      for name, length in lengths.items()
    }
    initializer = train_state.TrainStateInitializer(
      optimizer_def=model.optimizer_def,
      init_fn=model.get_initial_variables,
      input_shapes={name: value.shape for name, value in self.batch.items()},
      input_types={name: value.dtype for name, value in self.batch.items()},
      partitioner=partitioner,
    )
    self.state = initializer.global_train_state_shape
    self.axes = initializer.train_state_axes
    trainer = trainer_cls(
      model=model,
      train_state=self.state,
      partitioner=partitioner,
      eval_names=[],
      summary_dir=None,
      train_state_axes=self.axes,
      rng=jax.random.PRNGKey(0),
    )
    trainer.close()
    trainer.check(self.batch_size, total_steps)
    self.function = trainer._partitioned_train_step


def describe(
  step: Step, initial: checkpoints.RestoreCheckpointConfig | None = None
) -> dict[str, Any]:
  """Returns the numbers of the JSON line, and the report as `text`.

  Raises:
    InputError: The run would refuse the checkpoint to start from.
  """
  partitioner = step.partitioner
  if initial is not None and initial.path:
    path = checkpoints.find_checkpoint(initial)
    checkpoints.find_arrays(
      path,
      checkpoints.stored_arrays(path),
      step.state.state_dict(),
      initial.assignment_map,
      may_lack=initial.fallback_to_scratch,
    )
  arrays = traverse_util.flatten_dict(step.state.state_dict(), sep="/")
  shardings = traverse_util.flatten_dict(partitioner.shardings(step.axes).state_dict(), sep="/")

  def local_bytes(array: Any, sharding: Any) -> int:
    return math.prod(sharding.shard_shape(array.shape)) * array.dtype.itemsize

  array_bytes = {name: local_bytes(array, shardings[name]) for name, array in arrays.items()}
  parameters = {
    name.removeprefix("target/"): math.prod(array.shape)
    for name, array in arrays.items()
    if name.startswith("target/")
  }
  modules: dict[str, int] = {}
  for name, count in parameters.items():
    modules[_module(name)] = modules.get(_module(name), 0) + count
  parameter_bytes = sum(array_bytes[f"target/{name}"] for name in parameters)
  state_bytes = sum(array_bytes.values()) - parameter_bytes
  batch_bytes = sum(local_bytes(x, partitioner.data_sharding) for x in step.batch.values())
  with partitioner.context():
    jaxpr = jax.make_jaxpr(step.function.function)(step.state, step.batch)
  flops = matmul_flops(jaxpr.jaxpr)
  large: dict[tuple[str, ...], list[int]] = {}
  for name, array in sorted(arrays.items()):
    if math.prod(array.shape) * array.dtype.itemsize >= _LARGE_BYTES:
      group = (_NUMBER.sub("_*", name), str(list(array.shape)), str(shardings[name].spec))
      large.setdefault(group, []).append(array_bytes[name])
  lines = [
    f"mesh: data={partitioner.mesh.shape['data']} model={partitioner.mesh.shape['model']} "
    f"({partitioner.mesh.size} {partitioner.mesh.devices.flat[0].device_kind} devices)",
    f"batch: {step.batch_size} examples, "
    + ", ".join(f"{n} {list(v.shape)}" for n, v in step.batch.items()),
    "",
    progress.table("parameters", ["count"], {n: [c] for n, c in sorted(modules.items())}),
    f"total {sum(modules.values()):,}",
    "",
    f"arrays of at least {_LARGE_BYTES >> 20} MiB: shape, sharding, MiB per device",
    *(
      f"  {name}  {shape}  {spec}  {sizes[0] / 2**20:.1f}"
      + (f" (x {len(sizes)})" if len(sizes) > 1 else "")
      for (name, shape, spec), sizes in large.items()
    ),
    "",
    f"per device: parameters {_mib(parameter_bytes)}, optimizer {_mib(state_bytes)}, "
    f"gradients {_mib(parameter_bytes)}, batch {_mib(batch_bytes)}",
    f"matmuls per step: {flops:.3e} FLOPs",
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
  """Returns the first two parts of a parameter's path: a module, and a layer or part of it."""
  parts = name.split("/")
  return "/".join(parts[: min(2, len(parts) - 1)])


def memory(step: Step) -> dict[str, Any]:
  """Returns the memory of the compiled step on each device, by XLA's analysis; also as `text`.

  Raises:
    InputError: The devices' memory is too small.
  """
  mesh = step.partitioner.mesh
  devices = f"{mesh.size} {mesh.devices.flat[0].device_kind}"
  lowered = step.function.lower(step.state, step.batch)
  try:
    compiled = _compile(lowered)
  except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" not in str(error):
      raise
    raise InputError(
      f"a step does not fit {devices}: {str(error).splitlines()[0]}. Raise NUM_MICROBATCHES, "
      "recompute more (T5Config.remat), use more devices or shard over them (meshes/*.gin)"
    ) from None
  analysis: Any = compiled.memory_analysis()
  parts = {
    "arguments": analysis.argument_size_in_bytes,
    "results": analysis.output_size_in_bytes - analysis.alias_size_in_bytes,
    "temporary": analysis.temp_size_in_bytes,
  }
  # Backends that do not report the peak return less than the arguments.
  peak = analysis.peak_memory_in_bytes
  peak = peak if peak > parts["arguments"] else sum(parts.values())
  shown = ", ".join(f"{name} {_mib(size)}" for name, size in parts.items())
  return {
    "text": f"compiled for {devices}, per device: {shown}; peak {_mib(peak)}",
    "peak_bytes_per_device": peak,
  }


def _compile(lowered: Any) -> Any:
  try:
    return lowered.compile()
  except jax.errors.JaxRuntimeError as error:
    if "output tile sizes" not in str(error):
      raise
  # Without the GPU, XLA's Triton matmuls need multiples of 16 rows.
  return lowered.compile({"xla_gpu_enable_triton_gemm": False})


def matmul_flops(jaxpr: Any) -> float:
  """Returns the FLOPs of all matmuls in a jaxpr, with loops unrolled.

  A matmul of [M, K] and [K, N] has 2 M N K. A `while` loop of unknown length counts once; a `cond`
  counts its most expensive branch.
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
    parameters = jax.tree.leaves(list(equation.params.values()))
    closed = [x.jaxpr for x in parameters if isinstance(x, core.ClosedJaxpr)]
    inner = [matmul_flops(x) for x in (*closed, *parameters) if isinstance(x, core.Jaxpr)]
    if equation.primitive.name == "cond":
      total += max(inner, default=0.0)
    elif equation.primitive.name == "scan":
      total += equation.params["length"] * sum(inner)
    else:
      total += sum(inner)
  return total


# --------------------------------------------------------------------------------------------
# Devices that need not be there

# By name: compute capability, cores, floating-point units of a core, GHz, bytes of shared memory of
# a core, of L2 cache and of memory, and bytes per second; as in XLA's descriptions of these GPUs.
_GPUS = {
  "a100": (8, 108, 64, 1.41, 167_936, 41_943_040, 85_100_068_864, 2_039_040_000_000),
  "h100": (9, 132, 128, 1.98, 233_472, 52_428_800, 84_942_979_072, 3_352_320_000_000),
  "h200": (9, 132, 128, 1.98, 233_472, 52_428_800, 151_397_597_184, 4_800_000_000_000),
  "b200": (10, 148, 128, 1.965, 233_472, 132_644_864, 191_514_411_008, 7_672_320_000_000),
}
_DESCRIPTION = """
gpu_device_info {{
  cuda_compute_capability {{ major: {0} minor: 0 }}
  core_count: {1} fpus_per_core: {2} clock_rate_ghz: {3}
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_core: {4} shared_memory_per_block_optin: {8}
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  l2_cache_size: {5} device_memory_size: {6} memory_bandwidth: {7}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
runtime_version {{ major: 12 minor: 8 patch: 0 }}
device_description_str: "NVIDIA {9}"
"""


def devices(name: str) -> list[Any]:
  """Returns devices for a mesh whose functions are compiled, but cannot be called.

  Args:
    name: GPUs of one machine, such as `h100:8` (or a100, h200, b200), or a topology of TPUs as JAX
      names them, such as `v5e:2x4`.

  Raises:
    InputError: the name is unknown, or JAX's package for these devices is not installed.
  """
  kind, _, count = name.partition(":")
  jax.config.update("jax_platforms", "cpu")  # arrays are on this machine
  try:
    if kind not in _GPUS:
      return list(topologies.get_topology_desc(name, platform="tpu").devices)
    sizes = _GPUS[kind]
    description = _DESCRIPTION.format(*sizes, sizes[4] - 1024, kind.upper())
    # JAX looks for the platform "gpu" among the backends of this machine, which has none. There is
    # no public way to name another one.
    canonical = xla_bridge.canonicalize_platform
    xla_bridge.canonicalize_platform = lambda platform: (
      "cuda" if platform in ("gpu", "cuda") else canonical(platform)
    )
    topology = topologies.get_topology_desc(
      platform="cuda", target_config=description, topology=f"1x1x{int(count)}"
    )
    return list(topology.devices)
  except Exception as error:  # The classes of libtpu's errors differ between versions.
    raise InputError(
      f"--topology={name}: {str(error).splitlines()[0]}; give {', '.join(_GPUS)} and a number, as "
      "in h100:8 (pip install 'vmsst[cuda12]'), or TPUs, as in v5e:2x4 (pip install libtpu)"
    ) from None
