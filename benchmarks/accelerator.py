"""Measures what only an accelerator can show, within ten minutes, and prints a table.

  python benchmarks/accelerator.py --data=../shared/data --output=results
  python benchmarks/accelerator.py --data=../shared/data --output=results --only ceilings encode

Runs, each in its own process and with a limit in seconds:

* ceilings: rates of matmuls of 8,192 x 8,192 and of copies, which the others are shares of;
* numerics: the tests of networks and losses on the device, with products in full float32;
* training steps at the papers' sizes (paper_step.py), with the batch that one device computes at a
  time: throughput, share of the peak in bfloat16 (MFU), peak memory;
* the vocabulary projection (vocab_projection.py) against all logits at once;
* encoding (encode.py) against PyTorch on the same GPU, with released weights (--encoders) and with
  random weights of BERT-large's size.

OUTPUT/<name>.log has the output of each, and OUTPUT/table.md the table.
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

_HERE = pathlib.Path(__file__).parent
_STEPS = {  # name: (model, options, seconds)
  "vmsst": ("vmsst_24l", ("--pairs=128", "--scan_layers"), 100),
  "bitranslation": ("bitranslation_24l", ("--pairs=256", "--scan_layers"), 100),
  "contrastive": ("contrastive_24l", ("--pairs=2048", "--scan_layers"), 100),
  "ems": ("ems", (), 90),
}


def commands(options: argparse.Namespace) -> dict[str, tuple[list[str], int]]:
  """Returns command and limit of each measurement."""
  encode = ["encode.py", f"--data={options.data}", "--device=cuda", "--rounds=1", "--repeats=1"]
  found = {"ceilings": (["accelerator.py", "--ceilings"], 60)}
  for name, (model, arguments, limit) in _STEPS.items():
    found[name] = (["paper_step.py", f"--model={model}", *arguments], limit)
  projection = ["--batch=256", "--width=1024", "--dtype=bfloat16", "--rounds=1", "--repeats=5"]
  projection += ["--variants", "dense", "tokens", "matmuls"]
  found["projection"] = (["vocab_projection.py", *projection], 120)
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

  size, rates = 8192, {}
  for name, dtype, precision in (
    ("bfloat16", "bfloat16", None),
    ("float32", "float32", None),
    ("float32_highest", "float32", "highest"),
  ):
    x = jax.random.normal(jax.random.key(0), (size, size), dtype)
    product = jax.jit(lambda x, precision=precision: jnp.matmul(x, x, precision=precision))
    times = measure.timed(lambda: jax.block_until_ready(product(x)), 10, warm_up=3)  # noqa: B023
    rates[name] = round(2 * size**3 / min(times["seconds"]) / 1e12, 1)
  x = jnp.ones(2**30, jnp.float32)
  copy = jax.jit(lambda x: x + 1)
  times = measure.timed(lambda: jax.block_until_ready(copy(x)), 10)
  rates["copy_gb_per_second"] = round(2 * x.nbytes / min(times["seconds"]) / 1e9)
  return {"device": measure.jax_device(), **measure.machine("jax", "jaxlib", "flax"), **rates}


def row(name: str, lines: list[dict[str, Any]]) -> list[str]:
  """Returns the rows of the table for the JSON lines of a measurement."""
  skipped = {"benchmark", "device", "versions", "cpus", "losses"}
  return [
    f"| {name} | " + ", ".join(f"{k}={v}" for k, v in line.items() if k not in skipped) + " |"
    for line in lines
  ]


def main() -> None:
  """Runs the measurements."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--data", type=pathlib.Path, help="folder with tatoeba/")
  parser.add_argument("--encoders", nargs="*", default=[], help="folders of sentence-transformers")
  parser.add_argument("--output", type=pathlib.Path, help="folder of logs and table")
  parser.add_argument("--only", nargs="*", help="names of measurements; default: all")
  parser.add_argument("--ceilings", action="store_true", help=argparse.SUPPRESS)
  options = parser.parse_args()
  if options.ceilings:
    print(json.dumps(ceilings()))
    return
  options.output.mkdir(parents=True, exist_ok=True)
  table = ["| measurement | result |", "|---|---|"]
  for name, (command, limit) in commands(options).items():
    if options.only and name not in options.only:
      continue
    start, log = time.monotonic(), options.output / f"{name}.log"
    path = os.pathsep.join([str(_HERE.parent), os.environ.get("PYTHONPATH", "")])
    settings = {"PYTHONPATH": path}
    if command[0] != "-m":
      command[0] = str(_HERE / command[0])
    else:
      settings["JAX_DEFAULT_MATMUL_PRECISION"] = "highest"
      settings |= {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "JAX_DISABLE_MOST_OPTIMIZATIONS": "0"}
    with log.open("w") as stream:
      done = subprocess.run(
        ["timeout", str(limit), sys.executable, *command],
        stdout=stream, stderr=subprocess.STDOUT, check=False, env={**os.environ, **settings},
        cwd=_HERE.parent,
      )  # fmt: skip
    output = log.read_text().splitlines()
    rows = row(name, [json.loads(line) for line in output if line.startswith("{")])
    if done.returncode or not rows:
      rows.append(f"| {name} | exit status {done.returncode}: {' / '.join(output[-2:])[:400]} |")
    print("\n".join(rows), f"\n({name}: {time.monotonic() - start:.0f} s)", flush=True)
    table += rows
    (options.output / "table.md").write_text("\n".join(table) + "\n")


if __name__ == "__main__":
  main()
