"""Models the time of training steps on absent GPUs and TPUs, from what XLA compiles.

  python benchmarks/modeled_step.py --topology=h100:8 vmsst_24l.gin+meshes/24l.gin ems.gin
  python benchmarks/modeled_step.py --topology=v5p:2x2x2 vmsst_24l.gin+meshes/24l.gin

Each run is `t5x train --dry_run=memory --topology=...` with gin files and bindings, such as
NUM_MICROBATCHES=4, joined by `+`. The kernels of the compiled step are counted as often as their
loops run. The modeled time on GPUs is the sum of

* the FLOPs of matmuls, at SHARE of the published peak in bfloat16;
* the bytes that all other kernels read and write, at the published bandwidth of the memory;
* the bytes that each device sends in collectives, at LINK; some overlap with the rest.

On TPUs it is the sum of XLA's estimated cycles and of the collectives (jax[tpu], whose libtpu JAX
can read; newer ones fail in `as_text`).

`share` is that of the peak in the whole step: MFU, but with the matmuls of gradient caching, which
encodes twice. SHARE is that of the matmuls in a trace of vmsst_24l with 128 pairs on an H100.
Prints a JSON line per run.
"""

import argparse
import collections
import contextlib
import functools
import io
import json
import math
import multiprocessing
import re
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import mock

import jax

from vmsst.arrays import devices
from vmsst.launch import main as launch

SHARE = 0.62
LINK = {"a100": 300e9, "h100": 450e9, "h200": 450e9, "v5e": 100e9, "v5p": 300e9}
"""Bytes per second that a device sends, half of the published rate of both directions."""
CLOCK = {"v5e": 1.5e9, "v5p": 1.75e9}
"""Cycles per second of TPUs: the published peak by the FLOPs of their matrix units per cycle."""

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


def elements(text: str) -> int:
  """Returns the elements of the largest array in a type."""
  return max(
    math.prod(map(int, filter(None, shape.split(",")))) for _, shape in _SHAPE.findall(text)
  )


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
      pattern = r"\d+" if operator == "constant" else r"%([\w.-]+)"
      operands = re.findall(pattern, rest[:end])
      program[name].append(Instruction(own, kind, operator, operands, rest[end:]))
  return program, entry


def trips(program: Program, loop: Instruction) -> int:
  """Returns how often a loop runs."""
  if known := re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.attributes):
    return int(known[1])
  bounds = [x.operands for x in program[loop.called("condition")] if x.operator == "constant"]
  return max((int(x[0]) for x in bounds if x), default=1)


def kernels(program: Program, name: str, times: int = 1) -> Iterator[tuple[int, Instruction, int]]:
  """Yields how often each kernel of a computation runs, the kernel, and the bytes of its inputs."""
  types = {each.name: each.type for each in program[name]}
  for each in program[name]:
    if each.operator == "while":
      yield from kernels(program, each.called("body"), times * trips(program, each))
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

  most = math.inf  # elements of an operand: a loop without a sum reads one for each result
  if "kind=kLoop" in kernel.attributes and all(x.operator != "reduce" for x in inside):
    most = elements(kernel.type)
  for each in inside:
    if each.operator == "dynamic-update-slice" and each.operands[1] in by_name:
      results += sum(sizes(by_name[each.operands[1]].type)) - sum(sizes(each.type))
  for each in inside:
    if each.operator == "parameter":
      [size] = sizes(each.type) or [0]
      results += min(read(each.name), most * size / max(1, elements(each.type)) if size else 0)
  return max(results, 0)


def count(program: Program, entry: str, devices_: int) -> dict[str, float]:
  """Returns bytes of kernels without matmuls, bytes sent in collectives, and a TPU's cycles."""
  bytes_ = sent = cycles = 0.0
  for times, kernel, inputs in kernels(program, entry):
    # Some are asynchronous calls, which have the name of what they call.
    names = (kernel.operator, kernel.name)
    collective = next((x for x in _COLLECTIVES if any(y.startswith(x) for y in names)), None)
    if collective is not None:
      whole = max(inputs, sum(sizes(kernel.type)) - inputs) * (devices_ - 1) / devices_
      sent += times * whole * (2 if collective == "all-reduce" else 1)
    elif "gemm" not in kernel.attributes and "cublas" not in kernel.attributes:
      bytes_ += times * moved(program, kernel, inputs)
    if estimate := re.search(r'"estimated_cycles":"(\d+)"', kernel.attributes):
      cycles += times * int(estimate[1])
  return {"bytes": bytes_, "sent": sent, "cycles": cycles}


def compile_step(arguments: list[str]) -> tuple[str, dict[str, Any]]:
  """Returns the text of the step that a `t5x train --dry_run=memory` compiles, and its report."""
  texts = []
  compile_ = jax.stages.Lowered.compile

  def compile_and_keep(lowered, *args, **kwargs):
    compiled = compile_(lowered, *args, **kwargs)
    texts.append(compiled.as_text())
    return compiled

  with (
    mock.patch.object(jax.stages.Lowered, "compile", compile_and_keep),
    contextlib.redirect_stdout(io.StringIO()) as printed,
  ):
    launch.run(["train", *arguments])
  return max(texts, key=len), json.loads(printed.getvalue().splitlines()[-1])


def model(run: str, topology: str) -> dict[str, Any]:
  """Returns the line of a run."""
  kind, _, shape = topology.partition(":")
  name = {"v5e": "TPU v5e", "v5p": "TPU v5p"}.get(kind, f"{kind.upper()} SXM")
  device, number = devices.BY_NAME[name], math.prod(map(int, shape.split("x")))
  files = [f"--gin.{x}" if "=" in x else f"--gin_file={x}" for x in run.split("+")]
  start = time.perf_counter()
  try:
    text, report = compile_step([*files, "--dry_run=memory", f"--topology={topology}"])
  except Exception as error:  # XLA's cannot be sent to another process
    return {"run": run, "topology": topology, "error": f"{type(error).__name__}: {error}"[:300]}
  seconds = time.perf_counter() - start
  counted = count(*parse(text), number)
  flops = report["flops_per_step"] / number
  if kind in CLOCK:
    parts = {"cycles": counted["cycles"] / CLOCK[kind]}
  else:
    parts = {
      "matmuls": flops / (SHARE * device.flops),
      "others": counted["bytes"] / device.bandwidth,
    }
  parts["collectives"] = counted["sent"] / LINK[kind]
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
  parser.add_argument("runs", nargs="*", help="gin files and bindings, joined by +")
  parser.add_argument("--topology", default="h100:1", help="GPUs, such as h100:8, or TPUs")
  options = parser.parse_args()
  one = functools.partial(model, topology=options.topology)
  with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
    failed = False
    for line in pool.imap(one, options.runs):
      print(json.dumps({"benchmark": "modeled_step", **line}), flush=True)
      failed |= "error" in line
  sys.exit(failed)


if __name__ == "__main__":
  main()
