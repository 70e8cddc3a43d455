"""The projection of [sentence; hidden state] to the vocabulary: value and gradients, several ways.

  python benchmarks/vocab_projection.py
  python benchmarks/vocab_projection.py --batch=256 --width=1024 --dtype=bfloat16 --peak_tflops=989

Every variant computes the sum of the tokens' negative log-likelihoods and its gradients by hidden
states, sentence vectors (of twice their width) and kernels:

* dense: the sentence vector at each token beside its hidden state, one product, all logits (the
  paper's form);
* split: the sentence's part of the logits once a sentence, all logits at a time;
* vocabulary: split, over chunks of the vocabulary that the backward pass computes again;
* tokens: `vmsst.losses.vocabulary.weighted_nll`, over chunks of tokens;
* products: nothing but the matrix products of `split`: the floor that the arithmetic sets.

Each measurement is a process of its own, and the variants take turns. Memory is the most that a
process (CPU, Linux) or the device held at a time beyond the inputs, results included.

Prints a JSON line a variant and a last one: `ratio` is the median time of dense over that of
tokens, `memory_ratio` the same of memory, both above 1 where tokens is better. On a machine that
others use as well, `ratio_of_cpu_seconds` says more. Shares and ratios are missing if --variants
leaves out what they compare with.
"""

import argparse
import importlib.metadata
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from vmsst.losses import vocabulary

BASELINE, OURS, FLOOR = "dense", "tokens", "products"


# --------------------------------------------------------------------------------------------
# The variants: functions of (hidden, sentence, hidden kernel, sentence kernel, targets). The dense
# one has both kernels in one array in place of the third, and None in place of the fourth.


def matmul(a: jax.Array, b: jax.Array, dtype: str) -> jax.Array:
  return jnp.matmul(a.astype(dtype), b.astype(dtype), preferred_element_type=jnp.float32)


def nll(logits_MV: jax.Array, targets_BT: jax.Array) -> jax.Array:
  """Sum of the tokens' negative log-likelihoods."""
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


def over_vocabulary(
  hidden_BTD, sentence_BS, hidden_kernel_DV, sentence_kernel_SV, targets_BT, *, dtype, pieces, **_
):
  size = hidden_kernel_DV.shape[1]
  if size % pieces:
    raise SystemExit(f"--pieces={pieces} does not divide the vocabulary of {size}")
  width = size // pieces

  @jax.checkpoint
  def piece(start):
    kernels = (
      jax.lax.dynamic_slice_in_dim(kernel, start, width, axis=1)
      for kernel in (hidden_kernel_DV, sentence_kernel_SV)
    )
    logits_MV = split_logits(hidden_BTD, sentence_BS, *kernels, dtype)
    place_M = targets_BT.reshape(-1) - start
    here_M = (place_M >= 0) & (place_M < width)
    target_M1 = jnp.take_along_axis(logits_MV, jnp.clip(place_M, 0, width - 1)[:, None], axis=1)
    return jax.nn.logsumexp(logits_MV, axis=1), jnp.where(here_M, target_M1[:, 0], 0.0)

  total_NM, target_NM = jax.lax.map(piece, jnp.arange(pieces) * width)
  return jnp.sum(jax.nn.logsumexp(total_NM, axis=0) - jnp.sum(target_NM, axis=0))


def over_tokens(*arguments, dtype, chunk, **_):
  *arrays, targets_BT = arguments
  weights_BT = jnp.ones(targets_BT.shape)
  return vocabulary.weighted_nll(*arrays, targets_BT, weights_BT, dtype=dtype, chunk=chunk)[0]


def products(hidden_BTD, sentence_BS, hidden_kernel_DV, sentence_kernel_SV, _, *, dtype, **__):
  """The products of `split` and of its gradient, each of the right sizes."""
  results = []
  hidden_MD = hidden_BTD.reshape(-1, hidden_BTD.shape[-1])
  for rows, kernel in ((hidden_MD, hidden_kernel_DV), (sentence_BS, sentence_kernel_SV)):
    logits = matmul(rows, kernel, dtype).astype(dtype)
    results += [matmul(logits, kernel.T, dtype), matmul(rows.T, logits, dtype)]
  return results


VARIANTS: dict[str, Callable[..., Any]] = {
  BASELINE: dense,
  "split": split,
  "vocabulary": over_vocabulary,
  OURS: over_tokens,
  FLOOR: products,
}


# --------------------------------------------------------------------------------------------
# One measurement


def make_inputs(variant: str, options: argparse.Namespace) -> list[Any]:
  """Random inputs of a variant. Jit them: else the peak of a device is that of making them."""
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


def held(peak: bool) -> int:
  """Bytes in use on the device, of this process where that is the CPU; `peak`: the most so far."""
  stats = jax.devices()[0].memory_stats()
  if stats:
    return stats["peak_bytes_in_use" if peak else "bytes_in_use"]
  name = "VmHWM" if peak else "VmRSS"
  with open("/proc/self/status", encoding="ascii") as file:
    return 1024 * int(re.search(rf"{name}:\s+(\d+) kB", file.read()).group(1))


def forget_peak() -> None:
  """Makes the CPU's peak count from now. A device's keeps what making the inputs took."""
  if jax.default_backend() == "cpu":
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
      file.write("5")


def measure(variant: str, options: argparse.Namespace) -> dict[str, Any]:
  """Times of one variant after a first run that does not count, and its memory."""
  settings = {name: getattr(options, name) for name in ("dtype", "chunk", "pieces")}

  def value(*arrays):
    return VARIANTS[variant](*arrays, **settings)

  run = value if variant == FLOOR else jax.value_and_grad(value, argnums=(0, 1, 2, 3))
  inputs = jax.block_until_ready(jax.jit(lambda: make_inputs(variant, options))())
  compiled = jax.jit(run).lower(*inputs).compile()
  forget_peak()
  before = held(peak=False)
  seconds, cpu_seconds = [], []
  for _ in range(options.repeats + 1):
    start, cpu_start = time.perf_counter(), time.process_time()
    jax.block_until_ready(compiled(*inputs))
    seconds.append(time.perf_counter() - start)
    cpu_seconds.append(time.process_time() - cpu_start)
  device = jax.devices()[0]
  return {
    "seconds": seconds[1:],
    "cpu_seconds": cpu_seconds[1:],
    "bytes": held(peak=True) - before,
    "device": f"{device.platform} {device.device_kind}",
  }


# --------------------------------------------------------------------------------------------
# All of them


def flops(variant: str, options: argparse.Namespace) -> int:
  """Multiplications and additions of the matrix products, those computed again included."""
  tokens = options.batch * options.length
  if variant == BASELINE:
    rows, products = 3 * tokens, 3
  else:
    rows, products = tokens + 2 * options.batch, 4 if variant == "vocabulary" else 3
  return 2 * products * rows * options.width * options.vocabulary


def all_of(runs: list[dict], name: str) -> list[float]:
  return [value for run in runs for value in run[name]]


def summary(values: list[float]) -> dict[str, float]:
  return {"min": round(min(values), 4), "median": round(statistics.median(values), 4)}


def report(
  variant: str, runs: list[dict], floor: float | None, options: argparse.Namespace
) -> dict[str, Any]:
  """The line of one variant."""
  seconds = all_of(runs, "seconds")
  line = {
    "benchmark": "vocab_projection",
    "variant": variant,
    "device": runs[0]["device"],
    "cpus": os.cpu_count(),
    "versions": {name: importlib.metadata.version(name) for name in ("jax", "jaxlib")},
    **{
      name: getattr(options, name) for name in ("batch", "length", "width", "vocabulary", "dtype")
    },
    "runs": len(seconds),
    "seconds": summary(seconds),
    "cpu_seconds": summary(all_of(runs, "cpu_seconds")),
    "additional_gb": round(max(run["bytes"] for run in runs) / 1e9, 3),
    "tflop": round(flops(variant, options) / 1e12, 3),
  }
  if variant == OURS:
    line["chunk"] = options.chunk or vocabulary.DEFAULT_CHUNK
  if floor:
    line["share_of_floor"] = round(floor / min(seconds), 3)
  if options.peak_tflops:
    rate = flops(variant, options) / min(seconds)
    line["share_of_peak_flops"] = round(rate / (1e12 * options.peak_tflops), 3)
  return line


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--batch", type=int, default=64, help="sentences")
  parser.add_argument("--length", type=int, default=32, help="tokens of a sentence")
  parser.add_argument("--width", type=int, default=512, help="of hidden states and each latent")
  parser.add_argument("--vocabulary", type=int, default=250112)
  parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
  parser.add_argument("--chunk", type=int, help="tokens of a chunk; default: the function's own")
  parser.add_argument("--pieces", type=int, default=8, help="of the vocabulary, for `vocabulary`")
  parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
  parser.add_argument("--repeats", type=int, default=2, help="timed runs in one process")
  parser.add_argument("--rounds", type=int, default=2, help="processes of each variant")
  parser.add_argument("--peak_tflops", type=float, help="of the device, for its share")
  parser.add_argument("--measure", choices=VARIANTS, help=argparse.SUPPRESS)
  options = parser.parse_args()
  if min(options.repeats, options.rounds) < 1:
    parser.error("--repeats and --rounds must be at least 1")
  if options.measure:
    print(json.dumps(measure(options.measure, options)))
    return

  runs: dict[str, list[dict]] = {variant: [] for variant in options.variants}
  for _ in range(options.rounds):
    for variant in runs:
      command = [sys.executable, __file__, *sys.argv[1:], f"--measure={variant}"]
      done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
      if done.returncode:
        raise SystemExit(f"{variant} failed (exit code {done.returncode})")
      runs[variant].append(json.loads(done.stdout.splitlines()[-1]))

  floor = min(all_of(runs[FLOOR], "seconds")) if FLOOR in runs else None
  lines = {variant: report(variant, runs[variant], floor, options) for variant in runs}
  for line in lines.values():
    print(json.dumps(line))
  if not {BASELINE, OURS} <= set(lines):
    return
  ours, baseline = lines[OURS], lines[BASELINE]
  ratios = {
    "ratio": baseline["seconds"]["median"] / ours["seconds"]["median"],
    "ratio_of_minima": baseline["seconds"]["min"] / ours["seconds"]["min"],
    "ratio_of_cpu_seconds": baseline["cpu_seconds"]["median"] / ours["cpu_seconds"]["median"],
    "memory_ratio": baseline["additional_gb"] / ours["additional_gb"],
  }
  rounded = {name: round(value, 3) for name, value in ratios.items()}
  print(json.dumps({"benchmark": "vocab_projection", **rounded}))


if __name__ == "__main__":
  main()
