"""Measures `mine`: time in one and in two processes, and memory at millions of lines.

  python benchmarks/sharded_mining.py                       # time, 100,000 lines on each side
  git worktree add ../former 124d805
  python benchmarks/sharded_mining.py --memory --former=../former --size=2000000
  python benchmarks/sharded_mining.py --memory --size=400000 --width=32

Time: texts of whose vectors half have a near one on the other side are mined exactly. Variants:

* one: one process with one BLAS thread, pinned to one core;
* two: two processes with one BLAS thread each;
* both: one process with all cores.

They take turns, each in its own process, start of the worker processes included. `ratio` is the
median time of one over that of two; `ratio_to_both` is that of both over that of two.

Memory: neighbors are random instead of compared, which takes hours at this size; all else is that
of `mine`. `now_gb` is the peak of resident memory, with pages of mapped files, which the system can
drop; `now_anonymous_gb` is without them. Both include the interpreter and its packages
(`start_gb`). `ratio` is the anonymous memory of a checkout of a former version, if given, over that
of this one.
"""

import argparse
import hashlib
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time
from typing import Any

import measure
import numpy as np

_BLOCK = 1 << 14
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_WORKERS = {"one": 1, "two": 2, "both": 1}


def write_sides(folder: str, count: int, width: int) -> None:
  from vmsst.vectors import vector_store

  rng = np.random.default_rng(0)
  for side in ("source", "target"):
    writer = vector_store.Writer(os.path.join(folder, side), width)
    with open(os.path.join(folder, f"{side}.txt"), "w", encoding="utf-8") as stream:
      for start in range(0, count, _BLOCK):
        rows = range(start, min(start + _BLOCK, count))
        same_BD = np.random.default_rng((1, start)).standard_normal((len(rows), width))
        same_BD[::2] = 0
        writer.append(same_BD + rng.standard_normal((len(rows), width)))
        stream.writelines(f"{side} sentence number {row} of this text\n" for row in rows)
    writer.finish()


def random_neighbors(source, target, forward, backward, /) -> None:
  """Sets random neighbors, as an engine of `vmsst.search.exact_search` would set the nearest."""
  rng = np.random.default_rng((len(source), len(target)))
  for near, count in ((forward, len(target)), (backward, len(source))):
    for start in range(0, len(near.index_NK), _BLOCK):
      rows = slice(start, start + _BLOCK)
      shape = near.index_NK[rows].shape
      near.index_NK[rows] = rng.integers(0, count, shape)
      near.score_NK[rows] = -np.sort(-rng.random(shape), axis=1)


def run_mine(options: argparse.Namespace) -> dict[str, Any]:
  from vmsst.mining import bitext_mining
  from vmsst.vectors import embedded_text

  folder = options.folder
  given: dict[str, Any] = {"progress": False}
  if options.measure in _WORKERS:
    from vmsst.search import exact_search
    from vmsst.units import local

    given["engine"] = local.Local(_WORKERS[options.measure])
    given["compare"] = exact_search.compare
    if options.measure == "one":
      os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
  else:
    given["compare"] = random_neighbors
  start_bytes = measure.resident_bytes()
  texts = [
    embedded_text.open_text(os.path.join(folder, f"{side}.txt"), os.path.join(folder, side))
    for side in ("source", "target")
  ]
  output = pathlib.Path(folder, f"{options.measure}.tsv")
  start = time.perf_counter()
  with measure.anonymous_peak() as anonymous:
    found = bitext_mining.mine(*texts, output, **given)
  return {
    "seconds": time.perf_counter() - start,
    "anonymous_bytes": anonymous[0],
    "peak_bytes": measure.resident_bytes(peak=True),
    "start_bytes": start_bytes,
    "pairs": found.kept,
    "sha256": hashlib.sha256(output.read_bytes()).hexdigest(),
  }


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--size", type=int, default=100_000, help="lines on each side")
  parser.add_argument("--width", type=int, help="vector width (default: 1024; for memory 8)")
  parser.add_argument("--rounds", type=int, default=3, help="processes per variant")
  parser.add_argument("--memory", action="store_true", help="measure memory instead of time")
  parser.add_argument("--former", metavar="FOLDER", help="checkout of a former version, for memory")
  parser.add_argument("--variants", nargs="+", default=list(_WORKERS), choices=list(_WORKERS))
  parser.add_argument("--measure", help=argparse.SUPPRESS)
  parser.add_argument("--folder", help=argparse.SUPPRESS)
  options = parser.parse_args()
  if options.measure:
    print(json.dumps(run_mine(options)))
    return
  width = options.width or (8 if options.memory else 1024)
  variants = options.variants
  if options.memory:
    variants = ["former", "now"] if options.former else ["now"]
  with tempfile.TemporaryDirectory() as folder:
    write_sides(folder, options.size, width)

    def run(variant: str) -> dict[str, Any]:
      environment = dict(_ONE_THREAD) if variant in ("one", "two") else {}
      if variant == "former":
        environment["PYTHONPATH"] = os.path.abspath(options.former)
      given = [f"--measure={variant}", f"--folder={folder}"]
      return measure.in_own_process(os.path.abspath(sys.argv[0]), given, variant, environment)

    runs = measure.in_turns(variants, options.rounds, run)
  line = {
    "benchmark": "sharded_mining",
    "size": options.size,
    "width": width,
    **measure.machine("numpy"),
    "runs": options.rounds,
  }
  for name, own in runs.items():
    line[f"{name}_seconds"] = [round(each["seconds"], 1) for each in own]
    for key, measured in (("gb", "peak_bytes"), ("anonymous_gb", "anonymous_bytes")):
      line[f"{name}_{key}"] = round(max(each[measured] for each in own) / 1e9, 3)
    line["start_gb"] = round(own[0]["start_bytes"] / 1e9, 3)
  line["same_output"] = len({each["sha256"] for own in runs.values() for each in own}) == 1
  if options.former and options.memory:
    line["ratio"] = round(line["former_anonymous_gb"] / line["now_anonymous_gb"], 3)
  if not options.memory:
    seconds = {
      name: statistics.median(each["seconds"] for each in own) for name, own in runs.items()
    }
    if "both" in seconds:
      line["ratio_to_both"] = round(seconds["both"] / seconds["two"], 3)
    line["ratio"] = round(seconds["one"] / seconds["two"], 3)
  print(json.dumps(line))


if __name__ == "__main__":
  main()
