"""Measures host memory, logs and checkpoints of a long training run.

  python benchmarks/long_run.py                      # 20,000 steps
  python benchmarks/long_run.py --steps=2000

`t5x train` runs gin/quickstart.gin with a small width and batch size: VMSST on the sample corpus,
with 20 SeqIO evaluations, metrics every 10 steps, and 40 checkpoints, of which 2 are kept. The
benchmark samples the process's resident memory with the step of its latest metrics.

Prints a JSON line: `memory_mb` has the median of each tenth of the steps except the first, which
compiles; `growth_mb_per_1000_steps` is the slope of a line fitted to all samples since then;
`ratio` is the median of the second tenth over that of the last (1: constant memory);
`checkpoints` and `checkpoint_mb` are the maximum at any time, incomplete checkpoints included;
`log_bytes_per_step` is the size of the metrics.
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import measure
import numpy as np

WIDTH = {"EMBED_DIM": 16, "BATCH_SIZE": 8, "KL_ANNEAL_STEPS": 1000}
KEEP, STATS = 2, 10


def command(folder: pathlib.Path, steps: int) -> list[str]:
  bindings = {
    "MODEL_DIR": str(folder / "run"),
    "TRAIN_STEPS": steps,
    "EVAL_PERIOD": max(steps // 20, 1),
    "CHECKPOINT_PERIOD": max(steps // 40, 1),
    "KEEP_CHECKPOINTS": KEEP,
    "STATS_PERIOD": STATS,
    "bitext.sample.num_meanings": 500,
    "evaluation.sample_retrieval.num_meanings": 50,
    **WIDTH,
  }
  given = [f"--gin.{name}={value!r}" for name, value in bindings.items()]
  return [sys.executable, "-m", "vmsst.launch.main", "train", "--gin_file=quickstart.gin", *given]


def newest_step(metrics: pathlib.Path) -> int:
  """Returns the step of the last complete line of metrics, or 0."""
  try:
    with metrics.open("rb") as stream:
      stream.seek(max(metrics.stat().st_size - 4096, 0))
      lines = stream.read().splitlines()
  except FileNotFoundError:
    return 0
  for line in reversed(lines):
    try:
      return int(json.loads(line)["step"])
    except (ValueError, KeyError):
      continue
  return 0


def size(folders: list[pathlib.Path]) -> int:
  """Returns the bytes of all files in folders; files may be removed meanwhile."""
  total = 0
  for folder in folders:
    for where, _, names in os.walk(folder):
      for name in names:
        with contextlib.suppress(FileNotFoundError):
          total += os.path.getsize(os.path.join(where, name))
  return total


def watch(folder: pathlib.Path, steps: int) -> dict:
  """Trains and returns the observations."""
  run = folder / "run"
  samples, most, most_bytes = [], 0, 0
  start = time.perf_counter()
  with (folder / "out").open("wb") as out:
    process = subprocess.Popen(command(folder, steps), stdout=out, stderr=subprocess.STDOUT)
    try:
      while process.poll() is None:
        memory = measure.resident_bytes(process.pid)
        samples.append((newest_step(run / "train" / "metrics.jsonl"), memory))
        found = list(run.glob("checkpoint_*"))
        most, most_bytes = max(most, len(found)), max(most_bytes, size(found))
        time.sleep(0.1)
    finally:
      process.kill()
      process.wait()
  if process.returncode:
    raise SystemExit(f"{(folder / 'out').read_text()[-3000:]}\nfailed ({process.returncode})")
  logs = [path for path in run.rglob("*") if path.suffix == ".jsonl" or "tfevents" in path.name]
  return {
    "seconds": time.perf_counter() - start,
    "samples": samples,
    "checkpoints": most,
    "checkpoint_mb": most_bytes / 1e6,
    "left": sorted(path.name for path in run.glob("checkpoint_*")),
    "log_bytes_per_step": sum(path.stat().st_size for path in logs) / steps,
  }


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--steps", type=int, default=20_000, help="training steps")
  options = parser.parse_args()
  if options.steps < 400:
    parser.error("--steps must be at least 400")
  with tempfile.TemporaryDirectory(prefix="long_run_") as name:
    found = watch(pathlib.Path(name), options.steps)
  counted = [(step, memory / 1e6) for step, memory in found.pop("samples") if memory]
  tenths = [
    [memory for step, memory in counted if options.steps * i <= 10 * step < options.steps * (i + 1)]
    for i in range(1, 10)
  ]
  if not all(tenths):
    raise SystemExit("the run was too short to sample; increase --steps")
  medians = [round(statistics.median(tenth), 1) for tenth in tenths]
  late = np.array([sample for sample in counted if 10 * sample[0] >= options.steps])
  slope = np.polyfit(late[:, 0], late[:, 1], 1)[0]
  print(
    json.dumps(
      {
        "benchmark": "long_run",
        "steps": options.steps,
        "evaluations": 20,
        "device": "cpu",
        **measure.machine("jax", "tensorflow", "seqio"),
        "seconds": round(found["seconds"], 1),
        "memory_mb": medians,
        "growth_mb_per_1000_steps": round(1000 * slope, 2),
        "keep": KEEP,
        "checkpoints": found["checkpoints"],
        "checkpoint_mb": round(found["checkpoint_mb"], 2),
        "checkpoints_left": found["left"],
        "log_bytes_per_step": round(found["log_bytes_per_step"], 1),
        "ratio": round(medians[0] / medians[-1], 3),
      }
    )
  )


if __name__ == "__main__":
  main()
