"""Compares implementations of LASER's encoder, a stack of bidirectional LSTM layers.

  python benchmarks/lstm.py
  python benchmarks/lstm.py --batch=512 --length=64

Every variant computes a weighted sum of the top layer's states and its gradients for the inputs and
all weights, in float32, from the same weights and inputs:

* ours: `vmsst.networks.lstm.LstmEncoder`;
* flax: layers of `flax.linen.Bidirectional` with two `RNN(LSTMCell)`;
* flax_optimized: the same with `OptimizedLSTMCell`;
* torch: `torch.nn.LSTM`, if torch is installed (on the GPU if it has one).

Each measurement runs in its own process, and the variants take turns. The benchmark fails if the
sums or gradients of two variants differ.

Prints one JSON line per variant and a last one: `ratio` is the median time of flax over that of
ours, `ratio_to_torch` that of torch; both are above 1 if ours is faster. `gflops` is the
rate of NumPy's float32 matmuls after the benchmark. On a shared machine, `ratio_of_cpu_seconds` (of
all cores) is more reliable.
"""

import argparse
import importlib.util
import json
import math
import sys
from collections.abc import Callable
from typing import Any

import measure
import numpy as np

BASELINE, OURS, TORCH = "flax", "ours", "torch"
VARIANTS = (OURS, BASELINE, "flax_optimized", TORCH)
GATES = 4
# The order of summation differs between variants.
TOLERANCE = 1e-3


# --------------------------------------------------------------------------------------------
# The variants: each maps weights and inputs to the name of the device and a function that runs once
# and returns the sum and its gradients for weights and inputs.


def make_arrays(options: argparse.Namespace) -> tuple[list[dict[str, np.ndarray]], Any, Any]:
  """Returns the weights of each layer in the layout of `ours`, the inputs, and state weights."""
  rng = np.random.default_rng(0)
  width, limit = options.width, options.width**-0.5
  layers = []
  for i in range(options.layers):
    inputs = 2 * width if i else options.inputs
    shapes = {
      "input_kernel": (inputs, 2 * GATES * width),
      "recurrent_kernel": (2, width, GATES * width),
      "bias": (2 * GATES * width,),
    }
    layers.append(
      {
        name: rng.uniform(-limit, limit, size=shape).astype(np.float32)
        for name, shape in shapes.items()
      }
    )
  inputs_BTE = rng.normal(size=(options.batch, options.length, options.inputs))
  weight_BTD = rng.normal(size=(options.batch, options.length, 2 * width))
  return layers, inputs_BTE.astype(np.float32), weight_BTD.astype(np.float32)


def jax_runner(
  apply: Callable[..., Any], params: Any, inputs_BTE: np.ndarray, weight_BTD: np.ndarray
) -> tuple[Callable[[], Any], str]:
  """Returns a function for value and gradient of `apply`, compiled, and the device."""
  import jax
  import jax.numpy as jnp

  def value(params, x_BTE, weight_BTD):
    return jnp.sum(apply(params, x_BTE) * weight_BTD)

  arrays = jax.device_put((params, inputs_BTE, weight_BTD))
  compiled = jax.jit(jax.value_and_grad(value, argnums=(0, 1))).lower(*arrays).compile()

  def run():
    total, (weights, by_inputs) = jax.block_until_ready(compiled(*arrays))
    return total, jax.tree.leaves(weights), by_inputs

  return run, measure.jax_device()


def ours(layers, inputs_BTE, weight_BTD, options):
  from vmsst.networks import lstm

  config = lstm.LstmConfig(
    vocab_size=1, emb_dim=options.inputs, hidden_dim=options.width, num_layers=options.layers
  )
  params = {f"layers_{i}": layer for i, layer in enumerate(layers)}
  mask_BT = np.ones(inputs_BTE.shape[:2], bool)

  def apply(params, x_BTE):
    return lstm.LstmEncoder(config).apply({"params": params}, x_BTE, mask_BT)

  return jax_runner(apply, params, inputs_BTE, weight_BTD)


def flax(layers, inputs_BTE, weight_BTD, options, cell="LSTMCell"):
  from flax import linen as nn

  cells = getattr(nn, cell)
  module = nn.Sequential(
    [
      nn.Bidirectional(nn.RNN(cells(options.width)), nn.RNN(cells(options.width)))
      for _ in range(options.layers)
    ]
  )

  def cell_params(layer, direction):
    part = slice(GATES * options.width * direction, GATES * options.width * (direction + 1))
    names = "ifgo"
    inputs = np.split(layer["input_kernel"][:, part], GATES, axis=1)
    hidden = np.split(layer["recurrent_kernel"][direction], GATES, axis=1)
    biases = np.split(layer["bias"][part], GATES)
    found = {f"i{name}": {"kernel": kernel} for name, kernel in zip(names, inputs, strict=True)}
    for name, kernel, bias in zip(names, hidden, biases, strict=True):
      found[f"h{name}"] = {"kernel": kernel, "bias": bias}
    return found

  params = {
    f"layers_{i}": {
      f"{name}_rnn": {"cell": cell_params(layer, direction)}
      for direction, name in enumerate(("forward", "backward"))
    }
    for i, layer in enumerate(layers)
  }

  def apply(params, x_BTE):
    return module.apply({"params": params}, x_BTE)

  return jax_runner(apply, params, inputs_BTE, weight_BTD)


def flax_optimized(layers, inputs_BTE, weight_BTD, options):
  return flax(layers, inputs_BTE, weight_BTD, options, cell="OptimizedLSTMCell")


def torch(layers, inputs_BTE, weight_BTD, options):
  import torch as library

  on_gpu = library.cuda.is_available()
  device = library.device("cuda" if on_gpu else "cpu")
  module = library.nn.LSTM(
    options.inputs,
    options.width,
    num_layers=options.layers,
    bidirectional=True,
    batch_first=True,
  )
  with library.no_grad():
    for i, layer in enumerate(layers):
      for direction, suffix in enumerate(("", "_reverse")):
        part = slice(GATES * options.width * direction, GATES * options.width * (direction + 1))
        for name, array in {
          f"weight_ih_l{i}{suffix}": layer["input_kernel"][:, part].T,
          f"weight_hh_l{i}{suffix}": layer["recurrent_kernel"][direction].T,
          f"bias_ih_l{i}{suffix}": layer["bias"][part],
        }.items():
          getattr(module, name).copy_(library.tensor(array))
        getattr(module, f"bias_hh_l{i}{suffix}").zero_()
  module = module.to(device)
  inputs = library.tensor(inputs_BTE, device=device, requires_grad=True)
  weight = library.tensor(weight_BTD, device=device)
  # The second bias is redundant; its gradient equals that of the first.
  weights = [value for name, value in module.named_parameters() if "bias_hh" not in name]

  def run():
    total = (module(inputs)[0] * weight).sum()
    by_inputs, *by_weights = library.autograd.grad(total, [inputs, *weights])
    if on_gpu:
      library.cuda.synchronize()
    return total.item(), by_weights, by_inputs

  name = library.cuda.get_device_name() if on_gpu else "cpu"
  return run, f"torch {name}"


RUNNERS: dict[str, Callable[..., Any]] = {
  OURS: ours,
  BASELINE: flax,
  "flax_optimized": flax_optimized,
  TORCH: torch,
}


# --------------------------------------------------------------------------------------------
# One measurement


def fingerprint(total: Any, by_weights: list[Any], by_inputs: Any) -> dict[str, float]:
  """Returns the sum, and the norms of the gradients for weights and inputs."""
  squares = [float((x * x).sum()) for x in by_weights]
  return {
    "sum": float(total),
    "weights": math.sqrt(sum(squares)),
    "inputs": math.sqrt(float((by_inputs * by_inputs).sum())),
  }


def measure_variant(variant: str, options: argparse.Namespace) -> dict[str, Any]:
  """Returns the times of a variant after a first run, whose results it returns too."""
  run, device = RUNNERS[variant](*make_arrays(options), options)
  found = fingerprint(*run())
  return {**measure.timed(run, options.repeats, warm_up=0), "found": found, "device": device}


# --------------------------------------------------------------------------------------------
# All of them


def flops(options: argparse.Namespace) -> int:
  """Returns the FLOPs of the matmuls, gradients included."""
  width = options.width
  inputs = options.inputs + 2 * width * (options.layers - 1)
  weights = 2 * GATES * width * (inputs + options.layers * width)
  return 3 * 2 * weights * options.batch * options.length


def report(variant: str, runs: list[dict], options: argparse.Namespace) -> dict[str, Any]:
  """Returns the line of a variant."""
  seconds, cpu_seconds = (measure.all_of(runs, name) for name in ("seconds", "cpu_seconds"))
  packages = ("torch",) if variant == TORCH else ("jax", "jaxlib", "flax")
  return {
    "benchmark": "lstm",
    "variant": variant,
    "device": runs[0]["device"],
    **measure.machine(*packages),
    **{name: getattr(options, name) for name in ("batch", "length", "inputs", "width", "layers")},
    "runs": len(seconds),
    "seconds": measure.summary(seconds),
    "cpu_seconds": measure.summary(cpu_seconds),
    "tflop": round(flops(options) / 1e12, 3),
    "gflop_per_cpu_second": round(flops(options) / min(cpu_seconds) / 1e9, 1),
  }


def check(runs: dict[str, list[dict]]) -> None:
  """Exits with an error if two variants have computed different results."""
  expected = runs[OURS][0]["found"]
  for variant, theirs in runs.items():
    for name, value in theirs[0]["found"].items():
      if not math.isclose(value, expected[name], rel_tol=TOLERANCE):
        raise SystemExit(f"{name} differs: {variant} {value}, {OURS} {expected[name]}")


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--batch", type=int, default=32, help="sentences")
  parser.add_argument("--length", type=int, default=32, help="tokens per sentence")
  parser.add_argument("--inputs", type=int, default=320, help="width of token embeddings")
  parser.add_argument("--width", type=int, default=512, help="state width of one direction")
  parser.add_argument("--layers", type=int, default=5, help="number of layers")
  parser.add_argument("--variants", nargs="+", choices=VARIANTS, help="default: all installed")
  parser.add_argument("--repeats", type=int, default=2, help="timed runs per process")
  parser.add_argument("--rounds", type=int, default=2, help="processes per variant")
  parser.add_argument("--measure", choices=VARIANTS, help=argparse.SUPPRESS)
  options = parser.parse_args()
  if min(options.repeats, options.rounds) < 1:
    parser.error("--repeats and --rounds must be at least 1")
  if options.measure:
    print(json.dumps(measure_variant(options.measure, options)))
    return
  has_torch = importlib.util.find_spec(TORCH) is not None
  variants = options.variants or [name for name in VARIANTS if has_torch or name != TORCH]
  if missing := {BASELINE, OURS} - set(variants):
    parser.error(f"add {', '.join(sorted(missing))} to --variants; the report needs them")

  runs = measure.in_turns(
    variants,
    options.rounds,
    lambda variant: measure.in_own_process(
      __file__, [*sys.argv[1:], f"--measure={variant}"], variant
    ),
  )
  check(runs)

  lines = {variant: report(variant, runs[variant], options) for variant in runs}
  for line in lines.values():
    print(json.dumps(line))

  def ratio(variant: str, name: str) -> float:
    return round(lines[variant][name]["median"] / lines[OURS][name]["median"], 3)

  ratios = {
    "ratio": ratio(BASELINE, "seconds"),
    "ratio_of_cpu_seconds": ratio(BASELINE, "cpu_seconds"),
  }
  for variant in lines:
    if variant not in (OURS, BASELINE):
      ratios[f"ratio_to_{variant}"] = ratio(variant, "seconds")
      ratios[f"ratio_of_cpu_seconds_to_{variant}"] = ratio(variant, "cpu_seconds")
  print(json.dumps({"benchmark": "lstm", **ratios, "gflops": measure.numpy_gflops()}))


if __name__ == "__main__":
  main()
