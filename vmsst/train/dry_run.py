"""`t5x train --dry_run` reports sizes and FLOPs without reading data or creating parameters.

With `--topology=h100:8`, for example, the report is for eight H100 GPUs, even if this machine has
no GPUs.
"""

import functools
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

from vmsst.data import tables, vocabularies
from vmsst.errors import InputError
from vmsst.train import checkpoints, gin_utils, input_pipeline, partitioning, train_state
from vmsst.train import train as train_lib
from vmsst.train import trainer as trainer_lib

_LARGE_BYTES = 1 << 20  # The report lists arrays of at least this size.


def forget_data() -> None:
  """Removes data and folders from the parsed gin configuration, so that a dry run needs neither."""
  with gin.unlock_config():
    for name in ("infer_eval_dataset_cfg", "train_eval_dataset_cfg", "evaluator", "actions"):
      gin.bind_parameter(f"__main__.train.{name}", None)
    gin.bind_parameter("__main__.train.model_dir", os.devnull)
    for scope, selector in list(gin_utils.bindings()):
      if selector == "t5x.utils.CheckpointConfig":
        gin.bind_parameter((scope, selector, "save"), None)
    gin.bind_parameter("train/t5x.utils.DatasetConfig.mixture_or_task_name", None)
    for name in gin_utils.unset_macros():
      gin.bind_parameter(f"{name}/gin.macro.value", None)
    # A loss may look up a token id. Any vocabulary will do, since sizes do not depend on the id.
    gin.bind_parameter("VOCABULARY/gin.macro.value", vocabularies.ByteVocabulary())
    # A run file may compute TRAIN_STEPS from the data, so set a constant.
    gin.bind_parameter("TRAIN_STEPS/gin.macro.value", 1000)
    gin.bind_parameter("__main__.train.eval_period", 0)


def train_function(with_memory: bool) -> Callable[..., None]:
  """Returns a function that replaces the training function and prints a report and a JSON summary.

  Args:
    with_memory: See `report`.
  """

  @functools.wraps(train_lib.train)  # Gin checks bindings against the wrapped signature.
  def train(*, model, train_dataset_cfg, partitioner, trainer_cls, checkpoint_cfg, **_):
    arguments = (model, train_dataset_cfg, partitioner, trainer_cls, checkpoint_cfg.restore)
    print(json.dumps(report(*arguments, with_memory=with_memory)))

  return train


def report(
  model: Any,
  cfg: input_pipeline.DatasetConfig,
  partitioner: partitioning.PjitPartitioner,
  trainer_cls: Callable[..., trainer_lib.Trainer],
  initial: checkpoints.RestoreCheckpointConfig | None = None,
  *,
  with_memory: bool = False,
) -> dict[str, Any]:
  """Prints sizes, shardings and FLOPs for a training step, computed with abstract arrays.

  Args:
    model: The model.
    cfg: The training data. Only batch size and feature lengths matter.
    partitioner: Provides the device mesh.
    trainer_cls: Creates the trainer.
    initial: Checkpoint that the run starts from. Its arrays are compared with the model.
    with_memory: Whether to compile the step and report the memory that XLA allocates on each
      device. Compiling takes minutes for deep models.

  Returns:
    A dict with `parameters`, `flops_per_step` (matmuls, forward and backward) and
    `bytes_per_device` (parameters, optimizer state, gradients and batch, without activations). If
    `with_memory` is true, the dict also contains `peak_bytes_per_device`, the total memory for a
    step.

  Raises:
    InputError: If the batch size does not fit the mesh, the checkpoint does not match the model, or
      the devices have too little memory.
  """
  mesh = partitioner.mesh
  hardware = f"{mesh.size} {mesh.devices.flat[0].device_kind}"
  batch_size = cfg.batch_size
  partitioner.data_shard(batch_size)  # Check that the batch size fits the mesh.
  converter = model.FEATURE_CONVERTER_CLS(pack=cfg.pack)
  lengths = converter.get_model_feature_lengths(cfg.task_feature_lengths)
  floats = {*tables.TEACHER_SIDES, "scores"}
  batch = {  # For several texts per row, the length is a pair: number of texts, number of tokens.
    name: jax.ShapeDtypeStruct(
      (batch_size, *(length if isinstance(length, tuple) else (length,))),
      jnp.float32 if name in floats else jnp.int32,
    )
    for name, length in lengths.items()
  }
  initializer = train_state.TrainStateInitializer(
    optimizer_def=model.optimizer_def,
    init_fn=model.get_initial_variables,
    input_shapes={name: value.shape for name, value in batch.items()},
    input_types={name: value.dtype for name, value in batch.items()},
    partitioner=partitioner,
  )
  state, axes = initializer.global_train_state_shape, initializer.train_state_axes
  trainer = trainer_cls(
    model=model,
    train_state=state,
    partitioner=partitioner,
    eval_names=[],
    summary_dir=None,
    train_state_axes=axes,
    rng=jax.random.PRNGKey(0),
  )
  trainer.check(batch_size)
  step = trainer._partitioned_train_step
  if initial is not None and initial.path:
    path = checkpoints.find_checkpoint(initial)
    checkpoints.find_arrays(
      path,
      checkpoints.saved_arrays(path),
      state.state_dict(),
      initial.assignment_map,
      may_lack=initial.fallback_to_scratch,
    )

  def local_bytes(array: Any, sharding: Any) -> int:
    return math.prod(sharding.shard_shape(array.shape)) * array.dtype.itemsize

  arrays = traverse_util.flatten_dict(state.state_dict(), sep="/")
  shardings = traverse_util.flatten_dict(partitioner.shardings(axes).state_dict(), sep="/")
  array_bytes = {name: local_bytes(array, shardings[name]) for name, array in arrays.items()}
  model_arrays = [name for name in arrays if name.startswith("target/")]
  parameters = sum(math.prod(arrays[name].shape) for name in model_arrays)
  parameter_bytes = sum(array_bytes[name] for name in model_arrays)
  state_bytes = sum(array_bytes.values()) - parameter_bytes
  batch_bytes = sum(local_bytes(x, partitioner.data_sharding) for x in batch.values())
  with partitioner.context():
    flops = matmul_flops(jax.make_jaxpr(step.function)(state, batch).jaxpr)
  # Parameters of different layers with the same shape and sharding are printed on one line.
  large: dict[str, list[str]] = {}
  for name, array in sorted(arrays.items()):
    if math.prod(array.shape) * array.dtype.itemsize >= _LARGE_BYTES:
      line = f"{re.sub('_[0-9]+', '_*', name)}  {list(array.shape)}  {shardings[name].spec}"
      large.setdefault(line, []).append(_mib(array_bytes[name]))
  print(f"mesh: data={mesh.shape['data']} model={mesh.shape['model']} ({hardware} devices)")
  print(f"batch: {batch_size} examples,", ", ".join(f"{n} {[*x.shape]}" for n, x in batch.items()))
  print(f"parameters: {parameters:,}")
  print(f"arrays of at least {_mib(_LARGE_BYTES)}: shape, sharding, size per device")
  for line, sizes in large.items():
    print(f"  {len(sizes)} x {line}  {sizes[0]}")
  print(
    f"per device: parameters {_mib(parameter_bytes)}, optimizer {_mib(state_bytes)}, "
    f"gradients {_mib(parameter_bytes)}, batch {_mib(batch_bytes)}"
  )
  print(f"matmuls per step: {flops:.3e} FLOPs", flush=True)
  numbers = {
    "parameters": parameters,
    "flops_per_step": flops,
    "bytes_per_device": 2 * parameter_bytes + state_bytes + batch_bytes,
  }
  if with_memory:
    memory = _compile(step.lower(state, batch), hardware).memory_analysis()
    sizes_by_use = {
      "arguments": memory.argument_size_in_bytes,
      "results": memory.output_size_in_bytes - memory.alias_size_in_bytes,
      "temporary": memory.temp_size_in_bytes,
    }
    # The peak that the CPU backend reports excludes temporary arrays.
    is_cpu = mesh.devices.flat[0].platform == "cpu"
    peak = sum(sizes_by_use.values()) if is_cpu else memory.peak_memory_in_bytes
    summary = ", ".join(f"{use} {_mib(size)}" for use, size in sizes_by_use.items())
    print(f"compiled for {hardware}, per device: {summary}; peak {_mib(peak)}")
    numbers["peak_bytes_per_device"] = peak
  return numbers


def _mib(size: int) -> str:
  return f"{size / 2**20:.1f} MiB"


def _compile(lowered: Any, hardware: str) -> Any:
  """Compiles a step. Raises InputError if the devices have too little memory."""
  try:
    try:
      return lowered.compile()
    except jax.errors.JaxRuntimeError as error:
      if "output tile sizes" not in str(error):
        raise
      # Without a GPU, XLA compiles Triton matmuls only if the number of rows is a multiple of 16.
      return lowered.compile({"xla_gpu_enable_triton_gemm": False})
  except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" not in str(error):
      raise
    raise InputError(
      f"a step does not fit on {hardware}: {str(error).splitlines()[0]}. Raise NUM_MICROBATCHES, "
      "set T5Config.remat to recompute activations, use more devices, or shard the model over the "
      "devices (meshes/*.gin)"
    ) from None


def matmul_flops(jaxpr: Any) -> float:
  """Returns the FLOPs of all matmuls in a jaxpr.

  A matmul of [M, K] and [K, N] takes 2 M N K FLOPs. The body of a `scan` is counted once per
  iteration, but the body of a `while` loop is counted only once, because its number of iterations
  is unknown. For a `cond`, only the most expensive branch is counted.
  """
  total = 0.0
  for equation in jaxpr.eqns:
    if equation.primitive.name == "dot_general":
      (contracted, _), _ = equation.params["dimension_numbers"]
      lhs_shape = equation.invars[0].aval.shape
      terms = math.prod(lhs_shape[axis] for axis in contracted)
      total += 2.0 * math.prod(equation.outvars[0].aval.shape) * terms
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
# Compile-only devices

# Compute capability, cores, floating-point units per core, GHz, bytes of shared memory per core,
# bytes of L2 cache, bytes of memory, and bytes/s. The figures come from XLA's GPU descriptions.
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
  """Returns compile-only devices. JAX can compile functions for these devices, but not run them.

  Args:
    name: GPUs in one machine, such as `h100:8` (or a100, h200, b200), or JAX's name for a TPU
      topology, such as `v5e:2x4`.

  Raises:
    InputError: If the name is unknown, or if JAX's package for these devices is not installed.
  """
  kind, _, count = name.partition(":")
  jax.config.update("jax_platforms", "cpu")  # Real arrays, such as RNG keys, stay on the CPU.
  try:
    if kind not in _GPUS:
      return list(topologies.get_topology_desc(name, platform="tpu").devices)
    sizes = _GPUS[kind]
    description = _DESCRIPTION.format(*sizes, sizes[4] - 1024, kind.upper())
    # JAX would look for the platform "gpu" among this machine's backends and fail. JAX has no
    # public option to skip this lookup.
    canonical = xla_bridge.canonicalize_platform
    xla_bridge.canonicalize_platform = lambda platform: (
      "cuda" if platform in ("gpu", "cuda") else canonical(platform)
    )
    topology = topologies.get_topology_desc(
      platform="cuda", target_config=description, topology=f"1x1x{int(count)}"
    )
    return list(topology.devices)
  except Exception as error:  # The exception classes of libtpu differ between versions.
    raise InputError(
      f"--topology={name}: {str(error).splitlines()[0]}; use GPUs ({', '.join(_GPUS)}), as in "
      "h100:8 (pip install 'vmsst[cuda12]'), or TPUs, as in v5e:2x4 (pip install libtpu)"
    ) from None
