"""Models the time of training steps on GPUs that need not be there, from what XLA compiles.

  python benchmarks/modeled_step.py --topology=h100:8 vmsst_24l.gin+meshes/24l_8.gin ems.gin

Each run is `t5x train --dry_run=memory --topology=...` with gin files joined by `+`. XLA writes the
compiled step; its kernels are counted as often as their loops run. The modeled time is the sum of

* the FLOPs of matmuls, at SHARE of the published peak in bfloat16;
* the bytes that all other kernels read and write, at the published bandwidth of the memory;
* the bytes that each device sends in collectives, at that of NVLink; some overlap with the rest.

`share` is that of the peak in the whole step: MFU, but with the matmuls of gradient caching, which
encodes twice. SHARE is that of the matmuls in a trace of vmsst_24l on an H100, whose steps take
4.25 s with 24l_1.gin; modeled are 4.27 s. Prints a JSON line per run.
"""

import argparse
import collections
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from vmsst.arrays import devices

SHARE = 0.62
NVLINK = {"a100": 300e9, "h100": 450e9, "h200": 450e9}
"""Bytes per second that a GPU sends, half of the published rate of both directions."""

_WIDTHS = {"pred": 1, "bf16": 2, "f16": 2}  # others end with their bits
_SHAPE = re.compile(r"\b(pred|bf16|[fsu]\d+)\[([\d,]*)\]")
_NO_KERNELS = {"parameter", "get-tuple-element", "tuple", "bitcast", "constant", "after-all"}
_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


class Instruction(NamedTuple):
  """An instruction of HLO: its name, type, operator, operands and attributes."""

  name: str
  type: str
  operator: str
  operands: list[str]
  attributes: str

  def called(self, key: str) -> str:
    """Returns the computation in an attribute."""
    found = re.search(rf"{key}=%([\w.-]+)", self.attributes)
    return found[1] if found else ""


Program = dict[str, list[Instruction]]
"""Instructions of each computation."""


def sizes(text: str) -> list[int]:
  """Returns the bytes of all arrays in a type."""
  return [
    math.prod(map(int, filter(None, shape.split(","))))
    * (_WIDTHS.get(kind) or int(kind.lstrip("fsu")) // 8)
    for kind, shape in _SHAPE.findall(text)
  ]


def _balanced(text: str) -> int:
  """Returns the end of the parenthesis with which a text starts."""
  depth = 0
  for i, character in enumerate(text):
    depth += (character == "(") - (character == ")")
    if not depth:
      return i + 1
  return len(text)


def parse(text: str) -> tuple[Program, str]:
  """Returns the computations of an HLO module, and the name of its entry."""
  program: Program = {}
  entry = name = ""
  for line in text.splitlines():
    if start := re.match(r"(ENTRY )?%?([\w.-]+) \(.*-> .*\{$", line):
      name = start[2]
      entry = name if start[1] else entry
      program[name] = []
    elif name and (found := re.match(r"\s+(?:ROOT )?%([\w.-]+) = (.*)", line)):
      own, rest = found.groups()
      end = _balanced(rest) if rest[0] == "(" else rest.index(" ")
      kind, rest = rest[:end], rest[end:].lstrip()
      operator = rest.partition("(")[0]
      rest = rest[len(operator) :]
      end = _balanced(rest)
      operands = re.findall(r"%([\w.-]+)", rest[:end])
      program[name].append(Instruction(own, kind, operator, operands, rest[end:]))
  return program, entry


def kernels(program: Program, name: str, times: int = 1) -> Iterator[tuple[int, Instruction, int]]:
  """Yields how often each kernel of a computation runs, the kernel, and the bytes of its inputs."""
  types = {each.name: each.type for each in program[name]}
  for each in program[name]:
    if each.operator == "while":
      count = re.search(r'"known_trip_count":\{"n":"(\d+)"', each.attributes)
      yield from kernels(program, each.called("body"), times * (int(count[1]) if count else 1))
    elif each.operator == "call":
      yield from kernels(program, each.called("to_apply"), times)
    elif each.operator not in _NO_KERNELS and not each.operator.endswith("-done"):
      yield times, each, sum(sum(sizes(types[x])) for x in each.operands if x in types)


def moved(program: Program, kernel: Instruction, inputs: int) -> int:
  """Returns the bytes that a kernel reads and writes; of slices, only those."""
  results = sum(sizes(kernel.type))
  if kernel.operator.endswith("-start"):  # an asynchronous copy of a slice, at both ends
    return 2 * min((size for size in sizes(kernel.type) if size > 4), default=0)
  inside = program.get(kernel.called("calls"))
  if inside is None:
    return results + inputs
  by_name = {each.name: each for each in inside}
  uses = collections.defaultdict(list)
  for each in inside:
    for operand in each.operands:
      uses[operand].append(each)

  def read(name: str) -> int:
    most = 0
    for use in uses[name]:
      if use.operator == "bitcast":
        most = max(most, read(use.name))
      elif use.operator in ("dynamic-slice", "slice", "gather"):
        most = max(most, *sizes(use.type))
      elif use.operator != "dynamic-update-slice" or use.operands[0] != name:
        return sum(sizes(by_name[name].type))
    return most

  for each in inside:
    if each.operator == "dynamic-update-slice" and each.operands[1] in by_name:
      results += sum(sizes(by_name[each.operands[1]].type)) - sum(sizes(each.type))
  return max(results, 0) + sum(read(each.name) for each in inside if each.operator == "parameter")


def count(program: Program, entry: str, devices_: int) -> dict[str, float]:
  """Returns the bytes of kernels without matmuls, and those sent in collectives, per device."""
  bytes_ = sent = 0.0
  for times, kernel, inputs in kernels(program, entry):
    # Some are asynchronous calls, which have the name of what they call.
    names = (kernel.operator, kernel.name)
    collective = next((x for x in _COLLECTIVES if any(y.startswith(x) for y in names)), None)
    if collective is not None:
      whole = max(inputs, sum(sizes(kernel.type)) - inputs) * (devices_ - 1) / devices_
      sent += times * whole * (2 if collective == "all-reduce" else 1)
    elif "gemm" not in kernel.attributes and "cublas" not in kernel.attributes:
      bytes_ += times * moved(program, kernel, inputs)
  return {"bytes": bytes_, "sent": sent}


def model(run: str, topology: str) -> dict[str, Any]:
  """Returns the line of a run."""
  kind, _, number = topology.partition(":")
  device = devices.BY_NAME[f"{kind.upper()} SXM"]
  files = [f"--gin_file={file}" for file in run.split("+")]
  with tempfile.TemporaryDirectory() as folder:
    flags = f"--xla_dump_to={folder} --xla_dump_hlo_as_text --xla_dump_hlo_module_re=.*step.*"
    start = time.perf_counter()
    done = subprocess.run(
      ["t5x", "train", *files, "--dry_run=memory", f"--topology={topology}"],
      capture_output=True,
      text=True,
      check=False,
      env={**os.environ, "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}"},
    )
    seconds = time.perf_counter() - start
    if done.returncode:
      return {"run": run, "topology": topology, "error": done.stderr.strip().splitlines()[-1][:300]}
    dumps = pathlib.Path(folder).glob("*gpu_after_optimizations.txt")
    text = max((path.read_text() for path in dumps), key=len)
  report = json.loads(done.stdout.splitlines()[-1])
  counted = count(*parse(text), int(number))
  flops = report["flops_per_step"] / int(number)
  parts = {
    "matmuls": flops / (SHARE * device.flops),
    "others": counted["bytes"] / device.bandwidth,
    "collectives": counted["sent"] / NVLINK[kind],
  }
  total = sum(parts.values())
  return {
    "run": run,
    "topology": topology,
    "peak_gb": round(report["peak_bytes_per_device"] / 1e9, 1),
    "process_seconds": round(seconds),
    **{name: round(value, 3) for name, value in parts.items()},
    "seconds": round(total, 3),
    "share": round(flops / total / device.flops, 3),
  }


def main() -> None:
  """Prints the line of each run."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("runs", nargs="*", help="gin files, joined by +")
  parser.add_argument("--topology", default="h100:1", help="GPUs: a100, h100 or h200, and a number")
  options = parser.parse_args()
  failed = False
  for run in options.runs:
    line = model(run, options.topology)
    failed |= "error" in line
    print(json.dumps({"benchmark": "modeled_step", **line}), flush=True)
  sys.exit(failed)


if __name__ == "__main__":
  main()
