"""Runs the measurements that need a GPU, in sessions of ten minutes each.

  python benchmarks/gpu.py step --output=OUT
  python benchmarks/gpu.py projection --output=OUT
  python benchmarks/gpu.py encode --output=OUT --data=DATA   # requires vmsst[parity]
  python benchmarks/gpu.py search --output=OUT               # requires faiss-gpu-cu12 or faiss-cpu
  python benchmarks/gpu.py memory --output=OUT
  python benchmarks/gpu.py step --output=OUT --size=tiny     # checks a session on a CPU

* step: whole training steps in bfloat16, with profiles (target: MFU 0.5);
* projection: the vocabulary projection at B=256, D=1024, V=250,112 (target: 2.5 times dense);
* encode: encoders in bfloat16, and against sentence-transformers (target: 1.5 times);
* search: mining on the GPU against FAISS;
* memory: the memory of `vmsst_24l.gin` with `meshes/24l_1.gin`, by XLA.

A session runs its commands one after the other, the most important first, and ends those that are
not done after --minutes. It writes the JSON lines of all commands to OUT/SESSION.jsonl, after one
with device, driver and versions, and everything they print to OUT/SESSION.log.

Prints the commands with their exit codes; null: not done in time, or not started.
"""

import argparse
import contextlib
import importlib.metadata
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import TextIO

BENCHMARKS = pathlib.Path(__file__).resolve().parent
PACKAGES = (
  "jax",
  "jaxlib",
  "flax",
  "torch",
  "sentence-transformers",
  "faiss-cpu",
  "faiss-gpu-cu12",
)
SESSIONS = ("step", "projection", "encode", "search", "memory")
TINY_STEP = ["--size=tiny", "--steps=1", "--peak_tflops=0.1"]


def commands_of(session: str, data: str | None) -> list[tuple[list[str], list[str], list[str]]]:
  """Returns a session's commands: a program with its arguments, and those of each size.

  Args:
    session: Its name.
    data: Folder of the data that `encode` reads.
  """
  step = ["paper_step.py", "--profile", "--scan_layers", "--model"]
  projection = ["vocab_projection.py", "--dtype=bfloat16", "--rounds=1", "--repeats=5"]
  full = ["--batch=256", "--width=1024"]
  tiny = ["--batch=8", "--width=16", "--vocabulary=512", "--length=8"]
  tiny_encoders = ["--size=tiny", "--peak_tflops=0.1", "--batch_sizes=16", "--batches=1"]
  return {
    "step": [
      ([*step, "vmsst_24l"], ["--pairs=256"], TINY_STEP),
      ([*step, "contrastive_24l"], ["--pairs=256"], TINY_STEP),
      ([*step, "ems"], [], TINY_STEP),
      ([*step, "vmsst_24l"], ["--pairs=256", "--remat=full"], [*TINY_STEP, "--remat=full"]),
    ],
    "projection": [
      ([*projection, "--variants", "dense", "tokens", "matmuls"], full, tiny),
      *(
        ([*projection, "--variants", "tokens", f"--chunk={chunk}"], full, tiny)
        for chunk in (512, 2048, 8192)
      ),
    ],
    "encode": [
      (
        ["encode_paper.py"],
        ["--batch_sizes", "256", "1024", "4096"],
        [*tiny_encoders, "--sentences=16", "--repeats=1", "--scan_layers"],
      ),
      (
        ["encode.py", f"--data={data}", "--dtype=bfloat16"],
        ["--device=gpu", "--models", "bert_12x768", "mt5_24x1024", "--peer_batch_sizes=256"],
        ["--models=bert", "--sentences=20", "--rounds=1", "--repeats=1", "--peer_batch_sizes=8"],
      ),
    ],
    "search": [
      (
        ["mining.py", "--variants", "faiss", "search", "matmul", "devices", "--rounds=1"],
        ["--sizes", "50000", "100000"],
        ["--sizes=200", "--width=16"],
      )
    ],
    "memory": [
      (
        ["t5x", "train", "--dry_run=memory"],
        ["--gin_file=vmsst_24l.gin", "--gin_file=meshes/24l_1.gin"],
        ["--gin_file=quickstart.gin", "--gin.EMBED_DIM=16", "--gin.BATCH_SIZE=16"],
      )
    ],
  }[session]


def description() -> dict[str, object]:
  """Returns device, driver and versions."""
  driver = None
  if shutil.which("nvidia-smi"):
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.splitlines()
  versions = {}
  for name in PACKAGES:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      versions[name] = importlib.metadata.version(name)
  return {"gpus": driver, "cpus": os.cpu_count(), "versions": versions}


def run(command: list[str], seconds: float, log: TextIO) -> tuple[int | None, list[str]]:
  """Returns the exit code of a command and the JSON lines that it printed.

  Args:
    command: Program and arguments.
    seconds: Time after which it and the processes that it started are killed; the code is None.
    log: File for all that it prints.
  """
  with subprocess.Popen(
    command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
  ) as process:
    timer = threading.Timer(seconds, os.killpg, (process.pid, signal.SIGKILL))
    timer.start()
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
      log.write(line)
      lines += [line] if line.startswith("{") else []
    code = process.wait()
    timer.cancel()
  return (None if code == -signal.SIGKILL else code), lines


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("session", choices=SESSIONS)
  parser.add_argument("--output", type=pathlib.Path, required=True, help="output folder")
  parser.add_argument("--data", help="folder with tatoeba/, for `encode`")
  parser.add_argument("--size", default="full", choices=("full", "tiny"))
  parser.add_argument("--minutes", type=float, default=10.0, help="of the session (default: 10)")
  options = parser.parse_args()
  if options.session == "encode" and not options.data:
    parser.error("encode requires --data")
  options.output.mkdir(parents=True, exist_ok=True)
  end = time.monotonic() + 60 * options.minutes
  name = options.output / options.session
  failed = False
  with open(f"{name}.jsonl", "w", encoding="utf-8") as results, open(f"{name}.log", "w") as log:
    print(json.dumps(description()), file=results, flush=True)
    for program, full, tiny in commands_of(options.session, options.data):
      command = [*program, *(full if options.size == "full" else tiny)]
      print(*command, file=log, flush=True)
      if command[0].endswith(".py"):
        command = [sys.executable, str(BENCHMARKS / command[0]), *command[1:]]
      left = end - time.monotonic()
      code, lines = run(command, left, log) if left > 0 else (None, [])
      results.writelines(lines)
      results.flush()
      print(json.dumps({"command": command, "exit_code": code}), flush=True)
      failed |= code not in (0, None)
  if failed:
    raise SystemExit(f"a command failed; see {name}.log")


if __name__ == "__main__":
  main()
