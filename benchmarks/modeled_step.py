"""Estimates training step times on GPUs and TPUs that are not present, from XLA programs.

  python benchmarks/modeled_step.py --topology=h100:8 vmsst_24l.gin+meshes/24l.gin ems.gin
  python benchmarks/modeled_step.py --topology=v5p:2x2x2 vmsst_24l.gin+meshes/24l.gin

Each argument is a run of `t5x train --dry_run=memory --topology=...`: its gin files and bindings
(such as NUM_MICROBATCHES=4), joined by `+`. A kernel in a loop counts once per iteration. The
estimated time on GPUs is the sum of three times:

* matmuls: their FLOPs, divided by SHARE times the published bfloat16 peak;
* all other kernels: the bytes that they read and write, divided by the published memory bandwidth;
* collectives: the bytes that each device sends, divided by LINK. In reality, some collectives
  overlap with computation.

The estimated time on TPUs is the time of XLA's estimated cycles plus the time of the collectives.
TPU estimates need jax[tpu] with the libtpu version that JAX supports, because `as_text` fails with
newer versions.

`share` is the share of the peak FLOP/s that the complete step reaches. It equals MFU, except that
it also counts the second encoding in gradient caching. SHARE was measured for the matmuls in a
trace of vmsst_24l with 128 pairs on an H100. Prints one JSON line per run.
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
"""Bytes per second that a device sends: half of the published rate for both directions."""
CLOCK = {"v5e": 1.5e9, "v5p": 1.75e9}
"""Cycles per second of TPUs: published peak / FLOPs of the matrix units per cycle."""

# Bytes per element, except for types with names that end with their number of bits.
_WIDTHS = {"pred": 1, "bf16": 2, "f16": 2}
_SHAPE = re.compile(r"\b(pred|bf16|[fsu]\d+)\[([\d,]*)\]")
_NO_KERNELS = {"parameter", "get-tuple-element", "tuple", "bitcast", "constant", "after-all"}
_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


class Instruction(NamedTuple):
  """An HLO instruction with its name, type, operator, operands and attributes."""

  name: str
  type: str
  operator: str
  operands: list[str]
  attributes: str

  def called(self, key: str) -> str:
    """Returns the name of the computation in an attribute, or ""."""
    match = re.search(rf"{key}=%([\w.-]+)", self.attributes)
    return match[1] if match else ""


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
  """Returns the number of elements of the largest array in a type."""
  return max(
    math.prod(map(int, filter(None, shape.split(",")))) for _, shape in _SHAPE.findall(text)
  )


def _balanced(text: str) -> int:
  """Returns the position after the parenthesis that closes the text's opening parenthesis."""
  depth = 0
  for i, character in enumerate(text):
    depth += (character == "(") - (character == ")")
    if not depth:
      return i + 1
  return len(text)


def parse(text: str) -> tuple[Program, str]:
  """Parses an HLO module; returns its computations and the name of the entry computation."""
  program: Program = {}
  entry = name = ""
  for line in text.splitlines():
    if start := re.match(r"(ENTRY )?%?([\w.-]+) \(.*-> .*\{$", line):
      name = start[2]
      entry = name if start[1] else entry
      program[name] = []
    elif name and (match := re.match(r"\s+(?:ROOT )?%([\w.-]+) = (.*)", line)):
      instruction, definition = match.groups()
      end = _balanced(definition) if definition[0] == "(" else definition.index(" ")
      kind, definition = definition[:end], definition[end:].lstrip()
      operator = definition.partition("(")[0]
      definition = definition[len(operator) :]
      end = _balanced(definition)
      pattern = r"\d+" if operator == "constant" else r"%([\w.-]+)"
      operands = re.findall(pattern, definition[:end])
      program[name].append(Instruction(instruction, kind, operator, operands, definition[end:]))
  return program, entry


def trips(program: Program, loop: Instruction) -> int:
  """Returns the number of iterations of a loop."""
  if match := re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.attributes):
    return int(match[1])
  bounds = [x.operands for x in program[loop.called("condition")] if x.operator == "constant"]
  return max((int(x[0]) for x in bounds if x), default=1)


def kernels(program: Program, name: str, times: int = 1) -> Iterator[tuple[int, Instruction, int]]:
  """Yields (number of runs, kernel, bytes of its inputs) for each kernel of a computation."""
  types = {instruction.name: instruction.type for instruction in program[name]}
  for instruction in program[name]:
    if instruction.operator == "while":
      yield from kernels(program, instruction.called("body"), times * trips(program, instruction))
    elif instruction.operator == "call":
      yield from kernels(program, instruction.called("to_apply"), times)
    elif instruction.operator not in _NO_KERNELS and not instruction.operator.endswith("-done"):
      yield (
        times,
        instruction,
        sum(sum(sizes(types[x])) for x in instruction.operands if x in types),
      )


def moved(program: Program, kernel: Instruction, inputs: int) -> int:
  """Returns the bytes that a kernel reads and writes. If it uses a slice, only the slice counts."""
  results = sum(sizes(kernel.type))
  if kernel.operator.endswith("-start"):  # an asynchronous copy reads once and writes once
    return 2 * min((size for size in sizes(kernel.type) if size > 4), default=0)
  inside = program.get(kernel.called("calls"))
  if inside is None:
    return results + inputs
  by_name = {instruction.name: instruction for instruction in inside}
  uses = collections.defaultdict(list)
  for instruction in inside:
    for operand in instruction.operands:
      uses[operand].append(instruction)

  def read(name: str) -> int:
    size = 0
    for use in uses[name]:
      if use.operator == "bitcast":
        size = max(size, read(use.name))
      elif use.operator in ("dynamic-slice", "slice", "gather"):
        size = max(size, *sizes(use.type))
      elif use.operator != "dynamic-update-slice" or use.operands[0] != name:
        return sum(sizes(by_name[name].type))
    return size

  limit = math.inf  # A loop without sums reads at most one element of each input per result.
  if "kind=kLoop" in kernel.attributes and all(x.operator != "reduce" for x in inside):
    limit = elements(kernel.type)
  for instruction in inside:
    if instruction.operator == "dynamic-update-slice" and instruction.operands[1] in by_name:
      results += sum(sizes(by_name[instruction.operands[1]].type)) - sum(sizes(instruction.type))
  for instruction in inside:
    if instruction.operator == "parameter":
      [size] = sizes(instruction.type) or [0]
      results += min(
        read(instruction.name), limit * size / max(1, elements(instruction.type)) if size else 0
      )
  return max(results, 0)


def count(program: Program, entry: str, devices_: int) -> dict[str, float]:
  """Returns the bytes of kernels except matmuls, the bytes sent by collectives, and TPU cycles."""
  bytes_ = sent = cycles = 0.0
  for times, kernel, inputs in kernels(program, entry):
    # An asynchronous call names the collective in its name, not in its operator.
    names = (kernel.operator, kernel.name)
    collective = next((x for x in _COLLECTIVES if any(y.startswith(x) for y in names)), None)
    if collective is not None:
      total = max(inputs, sum(sizes(kernel.type)) - inputs) * (devices_ - 1) / devices_
      sent += times * total * (2 if collective == "all-reduce" else 1)
    elif "gemm" not in kernel.attributes and "cublas" not in kernel.attributes:
      bytes_ += times * moved(program, kernel, inputs)
    if estimate := re.search(r'"estimated_cycles":"(\d+)"', kernel.attributes):
      cycles += times * int(estimate[1])
  return {"bytes": bytes_, "sent": sent, "cycles": cycles}


def compile_step(arguments: list[str]) -> tuple[str, dict[str, Any]]:
  """Runs `t5x train --dry_run=memory`; returns the text of the compiled step, and the report."""
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
  """Returns the result of a run for one JSON line."""
  kind, _, shape = topology.partition(":")
  name = {"v5e": "TPU v5e", "v5p": "TPU v5p"}.get(kind, f"{kind.upper()} SXM")
  device, number = devices.BY_NAME[name], math.prod(map(int, shape.split("x")))
  files = [f"--gin.{x}" if "=" in x else f"--gin_file={x}" for x in run.split("+")]
  start = time.perf_counter()
  try:
    text, report = compile_step([*files, "--dry_run=memory", f"--topology={topology}"])
  except Exception as error:  # XLA exceptions cannot be pickled.
    return {"run": run, "topology": topology, "error": f"{type(error).__name__}: {error}"[:300]}
  seconds = time.perf_counter() - start
  counted = count(*parse(text), number)
  flops = report["flops_per_step"] / number
  if kind in CLOCK:
    seconds_by_kind = {"cycles": counted["cycles"] / CLOCK[kind]}
  else:
    seconds_by_kind = {
      "matmuls": flops / (SHARE * device.flops),
      "others": counted["bytes"] / device.bandwidth,
    }
  seconds_by_kind["collectives"] = counted["sent"] / LINK[kind]
  total = sum(seconds_by_kind.values())
  return {
    "run": run,
    "topology": topology,
    "peak_gb": round(report["peak_bytes_per_device"] / 1e9, 1),
    "process_seconds": round(seconds),
    **{name: round(value, 3) for name, value in seconds_by_kind.items()},
    "seconds": round(total, 3),
    "share": round(flops / total / device.flops, 3),
  }


def main() -> None:
  """Prints one JSON line per run."""
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
