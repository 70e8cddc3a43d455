"""Measures models, losses and encoding on one GPU, and prints the results.

  python benchmarks/accelerator.py --data=DATA --output=results --encoders all-MiniLM-L6-v2
  python benchmarks/accelerator.py --data=DATA --output=results --only ceilings vmsst

Each measurement runs in its own process and has a time limit. In this order:

* ceilings: rates of matmuls of 8,192 x 8,192 and of copies, to compare the others with;
* vmsst, bitranslation, contrastive, ems: a training step at the paper's size (paper_step.py):
  throughput, share of the peak in bfloat16 (MFU), peak memory;
* projection: the vocabulary projection against all logits at once (vocab_projection.py);
* encode, encode_large: encoding against PyTorch (encode.py), with --encoders and with random
  weights of BERT-large's size;
* numerics: the tests of networks and losses on the device, with float32 matmuls in full precision.

OUTPUT/<name>.log has the output of each.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time
from typing import Any

import measure

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_STEPS = {  # name: (model, options, seconds)
  "vmsst": ("vmsst_24l", ("--pairs=128", "--scan_layers"), 100),
  "bitranslation": ("bitranslation_24l", ("--pairs=256", "--scan_layers"), 100),
  "contrastive": ("contrastive_24l", ("--pairs=2048", "--scan_layers"), 100),
  "ems": ("ems", (), 90),
}
# The tests run in several processes, which share the device.
_OF_TESTS = {
  "JAX_DEFAULT_MATMUL_PRECISION": "highest",
  "JAX_DISABLE_MOST_OPTIMIZATIONS": "0",
  "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}


def commands(options: argparse.Namespace) -> dict[str, tuple[list[str], int]]:
  """Returns command and limit of each measurement."""
  encode = ["benchmarks/encode.py", f"--data={options.data}", "--device=cuda"]
  encode += ["--rounds=1", "--repeats=1"]
  found = {"ceilings": (["benchmarks/accelerator.py", "--ceilings"], 60)}
  for name, (model, arguments, limit) in _STEPS.items():
    found[name] = (["benchmarks/paper_step.py", f"--model={model}", *arguments], limit)
  projection = ["--batch=256", "--width=1024", "--dtype=bfloat16", "--rounds=1", "--repeats=5"]
  projection += ["--variants", "dense", "tokens", "matmuls"]
  found["projection"] = (["benchmarks/vocab_projection.py", *projection], 120)
  if options.encoders:
    found["encode"] = ([*encode, "--sentences=5000", "--encoders", *options.encoders], 200)
  found["encode_large"] = ([*encode, "--layers=24", "--width=1024", "--sentences=2000"], 200)
  tests = ["-m", "pytest", "-q", "-n", "8", "-W", "ignore", "-p", "no:benchmark"]
  tests += ["--ignore=tests/ems_jax/losses/test_sharded_losses.py"]  # on CPUs
  folders = ["tests/vmsst/networks", "tests/vmsst/losses", "tests/ems_jax/losses"]
  found["numerics"] = ([*tests, *folders], 180)
  return found


def ceilings() -> dict[str, Any]:
  """Returns rates of matmuls, in TFLOP/s, and of copies, in GB/s."""
  import jax
  import jax.numpy as jnp

  highest = {"precision": "highest"}
  kinds = {"bfloat16": {"dtype": "bfloat16"}, "float32": {}, "float32_highest": highest}
  rates: dict[str, Any] = {
    name: round(measure.matmul_gflops(8192, **kind) / 1000, 1) for name, kind in kinds.items()
  }
  x = jnp.ones(2**30, jnp.float32)
  copy = jax.jit(lambda x: x + 1)
  times = measure.timed(lambda: jax.block_until_ready(copy(x)), 10)
  rates["copy_gb_per_second"] = round(2 * x.nbytes / min(times["seconds"]) / 1e9)
  return {"device": measure.jax_device(), **measure.machine("jax", "jaxlib", "flax"), **rates}


def main() -> None:
  """Runs the measurements."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--data", type=pathlib.Path, help="folder with tatoeba/")
  parser.add_argument("--encoders", nargs="*", default=[], help="folders of sentence-transformers")
  parser.add_argument("--output", type=pathlib.Path, help="folder of logs")
  parser.add_argument("--only", nargs="*", help="names of measurements; default: all")
  parser.add_argument("--ceilings", action="store_true", help=argparse.SUPPRESS)
  options = parser.parse_args()
  if options.ceilings:
    print(json.dumps(ceilings()))
    return
  if options.data is None or options.output is None:
    parser.error("--data and --output are required")
  options.data = options.data.resolve()
  options.encoders = [str(pathlib.Path(encoder).resolve()) for encoder in options.encoders]
  options.output.mkdir(parents=True, exist_ok=True)
  for name, (command, limit) in commands(options).items():
    if options.only and name not in options.only:
      continue
    start, log = time.monotonic(), options.output / f"{name}.log"
    path = os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])
    settings = {"PYTHONPATH": path, **(_OF_TESTS if name == "numerics" else {})}
    with log.open("w") as stream:
      done = subprocess.run(
        ["timeout", str(limit), sys.executable, *command],
        stdout=stream, stderr=subprocess.STDOUT, check=False, env={**os.environ, **settings},
        cwd=_ROOT,
      )  # fmt: skip
    output = log.read_text().splitlines()
    lines = [line for line in output if line.startswith("{")]
    if done.returncode or not lines:
      lines.append(f"exit status {done.returncode}: {' / '.join(output[-2:])[:400]}")
    print(f"{name}, {time.monotonic() - start:.0f} s", *lines, sep="\n", flush=True)


if __name__ == "__main__":
  main()
