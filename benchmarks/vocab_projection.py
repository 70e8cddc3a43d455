"""Compares implementations of the vocabulary projection of [sentence vector; hidden state].

  python benchmarks/vocab_projection.py
  python benchmarks/vocab_projection.py --batch=256 --width=1024 --dtype=bfloat16 --peak_tflops=989

All variants compute the sum of the tokens' negative log-likelihoods, and its gradients with respect
to the hidden states, the sentence vectors (twice as wide) and the kernels:

* dense: concatenates the sentence vector to each hidden state, and computes all logits in one
  matmul (as in the paper);
* split: multiplies the sentence vector once per sentence, and adds the products to all logits;
* tokens: `vmsst.losses.vocabulary.weighted_nll`, in chunks of tokens;
* matmuls: runs only the matmuls of `split`, as a lower bound of the time.

Each measurement runs in its own process, and the variants take turns. Memory is the peak memory of
the process (CPU, Linux) or the device, including the results but not the inputs.

With --topology=h100:1, the variants are compiled for a GPU that need not be present, and their
times are estimated as in `modeled_step.py`.

Prints one JSON line per variant. In the last line, `ratio` is the median time of dense divided by
the median time of tokens, and `memory_ratio` is the same ratio for memory. Both are above 1 if
tokens is better. `gflops` is the rate of NumPy's float32 matmuls, measured after the benchmark. On
a shared machine, `ratio_of_cpu_seconds` is more reliable than `ratio`. Fields that compare with
another variant are omitted if --variants excludes it.
"""

import argparse
import functools
import json
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import measure

from vmsst.arrays import devices
from vmsst.losses import vocabulary

BASELINE, OURS, LOWER_BOUND = "dense", "tokens", "matmuls"


# --------------------------------------------------------------------------------------------
# The variants: functions of (hidden, sentence, hidden kernel, sentence kernel, targets). The
# variant `dense` gets the concatenated kernel as third argument, and None as fourth argument.

matmul = vocabulary.matmul


def nll(logits_MV: jax.Array, targets_BT: jax.Array) -> jax.Array:
  """Returns the sum of the tokens' negative log-likelihoods."""
  targets_M1 = targets_BT.reshape(-1, 1)
  target_M1 = jnp.take_along_axis(logits_MV, targets_M1, axis=1)
  return jnp.sum(jax.nn.logsumexp(logits_MV, axis=1) - target_M1[:, 0])


def dense(hidden_BTD, sentence_BS, kernel_PV, _, targets_BT, *, dtype, **__):
  sentence_BTS = jnp.broadcast_to(
    sentence_BS[:, None], (*hidden_BTD.shape[:2], sentence_BS.shape[1])
  )
  both_BTP = jnp.concatenate([sentence_BTS, hidden_BTD], axis=-1)
  both_MP = both_BTP.reshape(-1, both_BTP.shape[-1])
  return nll(matmul(both_MP, kernel_PV, dtype), targets_BT)


def split_logits(hidden_BTD, sentence_BS, hidden_kernel_DV, sentence_kernel_SV, dtype):
  logits_MV = matmul(hidden_BTD.reshape(-1, hidden_BTD.shape[-1]), hidden_kernel_DV, dtype)
  logits_BTV = logits_MV.reshape(*hidden_BTD.shape[:2], -1)
  logits_BTV += matmul(sentence_BS, sentence_kernel_SV, dtype)[:, None]
  return logits_BTV.reshape(logits_MV.shape)


def split(hidden_BTD, sentence_BS, hidden_kernel_DV, sentence_kernel_SV, targets_BT, *, dtype, **_):
  logits_MV = split_logits(hidden_BTD, sentence_BS, hidden_kernel_DV, sentence_kernel_SV, dtype)
  return nll(logits_MV, targets_BT)


def over_tokens(*arguments, dtype, chunk, **_):
  *arrays, targets_BT = arguments
  weights_BT = jnp.ones(targets_BT.shape)
  return vocabulary.weighted_nll(*arrays, targets_BT, weights_BT, dtype=dtype, chunk=chunk)[0]


def matmuls(hidden_BTD, sentence_BS, hidden_kernel_DV, sentence_kernel_SV, _, *, dtype, **__):
  """Computes matmuls of the same sizes as `split` and its gradient."""
  results = []
  hidden_MD = hidden_BTD.reshape(-1, hidden_BTD.shape[-1])
  for rows, kernel in ((hidden_MD, hidden_kernel_DV), (sentence_BS, sentence_kernel_SV)):
    logits = matmul(rows, kernel, dtype).astype(dtype)
    results += [matmul(logits, kernel.T, dtype), matmul(rows.T, logits, dtype)]
  return results


VARIANTS: dict[str, Callable[..., Any]] = {
  BASELINE: dense,
  "split": split,
  OURS: over_tokens,
  LOWER_BOUND: matmuls,
}


# --------------------------------------------------------------------------------------------
# One measurement


def make_inputs(variant: str, options: argparse.Namespace) -> list[Any]:
  """Returns random inputs; call it under jit, so that temporary arrays do not raise peak memory."""
  batch, length, width, size = options.batch, options.length, options.width, options.vocabulary
  keys = jax.random.split(jax.random.key(0), 5)
  hidden_BTD = jax.random.normal(keys[0], (batch, length, width))
  sentence_BS = jax.random.normal(keys[1], (batch, 2 * width))
  targets_BT = jax.random.randint(keys[2], (batch, length), 1, size)
  if variant == BASELINE:
    kernels = [jax.random.normal(keys[3], (3 * width, size)) * width**-0.5, None]
  else:
    kernels = [
      jax.random.normal(key, (rows, size)) * width**-0.5
      for key, rows in ((keys[3], width), (keys[4], 2 * width))
    ]
  return [hidden_BTD, sentence_BS, *kernels, targets_BT]


def function_of(variant: str, options: argparse.Namespace) -> Callable[..., Any]:
  """Returns the function to time."""
  settings = {name: getattr(options, name) for name in ("dtype", "chunk")}
  value = functools.partial(VARIANTS[variant], **settings)
  return value if variant == LOWER_BOUND else jax.value_and_grad(value, argnums=(0, 1, 2, 3))


def measure_variant(variant: str, options: argparse.Namespace) -> dict[str, Any]:
  """Returns the time and memory of a variant after a warm-up run."""
  run = function_of(variant, options)
  inputs = jax.block_until_ready(jax.jit(lambda: make_inputs(variant, options))())
  compiled = jax.jit(run).lower(*inputs).compile()
  measure.reset_peak()
  before = measure.device_bytes()
  times = measure.timed(lambda: jax.block_until_ready(compiled(*inputs)), options.repeats)
  used = measure.device_bytes(peak=True) - before
  return {**times, "bytes": used, "device": measure.jax_device()}


def model_variant(variant: str, options: argparse.Namespace) -> dict[str, Any]:
  """Returns the estimated time and memory of a variant on a GPU that need not be present."""
  import modeled_step

  from vmsst.train import dry_run

  [gpu] = dry_run.devices(options.topology)
  device = devices.of_kind(gpu.device_kind)
  mesh = jax.sharding.Mesh([gpu], ("data",))
  inputs = jax.eval_shape(lambda: make_inputs(variant, options))
  with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
    layout = jax.sharding.SingleDeviceSharding(gpu)
    step = jax.jit(function_of(variant, options), in_shardings=layout, out_shardings=layout)
    compiled = step.lower(*inputs).compile()
  other_bytes = modeled_step.count(*modeled_step.parse(compiled.as_text()), 1)["bytes"]
  matmuls = flops(variant, options) / (modeled_step.SHARE * device.flops)
  return {
    "benchmark": "vocab_projection",
    "variant": variant,
    "topology": options.topology,
    "tflop": round(flops(variant, options) / 1e12, 1),
    "other_gb": round(other_bytes / 1e9, 1),
    "modeled_seconds": round(matmuls + other_bytes / device.bandwidth, 4),
    "temporary_gb": round(compiled.memory_analysis().temp_size_in_bytes / 1e9, 1),
  }


# --------------------------------------------------------------------------------------------
# All measurements


def flops(variant: str, options: argparse.Namespace) -> int:
  """Returns the FLOPs of the matmuls."""
  tokens = options.batch * options.length
  rows = 3 * tokens if variant == BASELINE else tokens + 2 * options.batch
  return 2 * 3 * rows * options.width * options.vocabulary


def report(
  variant: str, runs: list[dict], lower_bound: float | None, options: argparse.Namespace
) -> dict[str, Any]:
  """Returns the result of a variant for one JSON line."""
  seconds = measure.all_of(runs, "seconds")
  line = {
    "benchmark": "vocab_projection",
    "variant": variant,
    "device": runs[0]["device"],
    **measure.machine("jax", "jaxlib"),
    **{
      name: getattr(options, name) for name in ("batch", "length", "width", "vocabulary", "dtype")
    },
    "runs": len(seconds),
    "seconds": measure.summary(seconds),
    "cpu_seconds": measure.summary(measure.all_of(runs, "cpu_seconds")),
    "additional_gb": round(max(run["bytes"] for run in runs) / 1e9, 3),
    "tflop": round(flops(variant, options) / 1e12, 3),
  }
  if variant == OURS:
    device = devices.of_kind(line["device"])
    default = vocabulary.default_chunk(options.vocabulary, device)
    line["chunk"] = options.chunk or default
  if lower_bound:
    line["share_of_lower_bound"] = round(lower_bound / min(seconds), 3)
  if options.peak_tflops:
    rate = flops(variant, options) / min(seconds)
    line["share_of_peak_flops"] = round(rate / (1e12 * options.peak_tflops), 3)
  return line


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--batch", type=int, default=64, help="sentences")
  parser.add_argument("--length", type=int, default=32, help="tokens per sentence")
  parser.add_argument("--width", type=int, default=512, help="width of states and latents")
  parser.add_argument("--vocabulary", type=int, default=250112, help="vocabulary size")
  parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
  parser.add_argument("--chunk", type=int, help="tokens per chunk (default: as in weighted_nll)")
  parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
  parser.add_argument("--repeats", type=int, default=2, help="timed runs per process")
  parser.add_argument("--rounds", type=int, default=2, help="processes per variant")
  parser.add_argument("--peak_tflops", type=float, help="peak TFLOP/s of the device")
  parser.add_argument("--topology", help="GPU to compile for, such as h100:1; need not be present")
  parser.add_argument("--measure", choices=VARIANTS, help=argparse.SUPPRESS)
  options = parser.parse_args()
  if min(options.repeats, options.rounds) < 1:
    parser.error("--repeats and --rounds must be at least 1")
  if options.topology:
    for variant in options.variants:
      print(json.dumps(model_variant(variant, options)), flush=True)
    return
  if options.measure:
    print(json.dumps(measure_variant(options.measure, options)))
    return
  runs = measure.in_turns(
    options.variants,
    options.rounds,
    lambda variant: measure.in_own_process(
      __file__, [*sys.argv[1:], f"--measure={variant}"], variant
    ),
  )
  bound = min(measure.all_of(runs[LOWER_BOUND], "seconds")) if LOWER_BOUND in runs else None
  lines = {variant: report(variant, runs[variant], bound, options) for variant in runs}
  for line in lines.values():
    print(json.dumps(line))
  if not {BASELINE, OURS} <= set(lines):
    return
  tokens, baseline = lines[OURS], lines[BASELINE]
  ratios = {
    "ratio": baseline["seconds"]["median"] / tokens["seconds"]["median"],
    "ratio_of_minima": baseline["seconds"]["min"] / tokens["seconds"]["min"],
    "ratio_of_cpu_seconds": baseline["cpu_seconds"]["median"] / tokens["cpu_seconds"]["median"],
    "memory_ratio": baseline["additional_gb"] / tokens["additional_gb"],
  }
  rounded = {name: round(value, 3) for name, value in ratios.items()}
  rounded["gflops"] = measure.numpy_gflops()
  print(json.dumps({"benchmark": "vocab_projection", **rounded}))


if __name__ == "__main__":
  main()
