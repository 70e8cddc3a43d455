"""Costs of a compiled program, by XLA's own figures, from the text of its optimized HLO.

XLA's cost analysis counts the body of a loop once. Here each computation counts as often as it
runs: the trip count of a loop is the constant in its condition.
"""

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Iterable

import jax

COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$")
_OPCODE = re.compile(r"(?:^|\s)([a-z][\w\-]*)\(")
_ARRAY = re.compile(r"\b([a-z]+\d\w*|pred)\[([\d,]*)\]")


@dataclasses.dataclass(frozen=True)
class Instruction:
  """An instruction of a module.

  Attributes:
    name: Its name.
    opcode: Its operation.
    computation: Name of the computation that it is part of.
    text: Its text after the equals sign.
  """

  name: str
  opcode: str
  computation: str
  text: str

  @property
  def scope(self) -> str:
    """The JAX scope that it was made by (`op_name`); empty if unknown."""
    found = re.search(r'op_name="([^"]*)"', self.text)
    return found[1] if found else ""

  @property
  def cycles(self) -> int:
    """XLA's estimate of its clock cycles on a TPU; 0 without one."""
    found = re.search(r'"estimated_cycles":"(\d+)"', self.text)
    return int(found[1]) if found else 0

  def called(self, attribute: str) -> str:
    """Returns the computation in an attribute, such as `calls`; empty without one."""
    found = re.search(rf"\b{attribute}=%?([\w.\-]+)", self.text)
    return found[1] if found else ""

  @property
  def result(self) -> str:
    """The text of the result's shape."""
    return self.text.partition(f" {self.opcode}(")[0]

  @property
  def operands(self) -> list[str]:
    """Names of the operands."""
    listed = self.text.partition(f" {self.opcode}(")[2].partition(")")[0]
    return re.findall(r"%([\w.\-]+)", listed)


class Program:
  """A module in text form.

  Args:
    hlo: Text of the optimized module.

  Attributes:
    instructions: All instructions, in the order of the text.
    entry: Name of the entry computation.
  """

  def __init__(self, hlo: str):
    self._hlo = hlo
    self.instructions: list[Instruction] = []
    self.entry = computation = ""
    for line in hlo.splitlines():
      if opened := _COMPUTATION.match(line):
        computation = opened[2]
        if opened[1]:
          self.entry = computation
      elif named := _INSTRUCTION.match(line):
        opcode = _OPCODE.search(named[2])
        self.instructions.append(
          Instruction(named[1], opcode[1] if opcode else "", computation, named[2])
        )

  @functools.cached_property
  def scopes(self) -> dict[str, tuple[str, str]]:
    """Opcode and scope of every instruction.

    A fusion without a scope gets that of the last instruction inside it that has one.
    """
    found: dict[str, tuple[str, str]] = {}
    last_of: dict[str, str] = {}
    for each in self.instructions:
      scope = each.scope or last_of.get(each.called("calls"), "")
      found[each.name] = (each.opcode, scope)
      if scope:
        last_of[each.computation] = scope
    return found

  @functools.cached_property
  def _calls(self) -> dict[str, list[tuple[str, int, str]]]:
    """Of each computation, the computations that it calls, how often, and by which operation."""
    conditions = collections.defaultdict(list)
    for each in self.instructions:
      conditions[each.computation].append(each.text)
    found: dict[str, list[tuple[str, int, str]]] = collections.defaultdict(list)
    for each in self.instructions:
      if each.opcode == "while":
        trips = trip_count(conditions[each.called("condition")])
        found[each.computation].append((each.called("body"), trips, "while"))
      elif each.opcode == "conditional":
        branches = re.search(r"branch_computations=\{([^}]*)\}", each.text)
        names = branches[1].split(",") if branches else []
        names += [each.called(f"{value}_computation") for value in ("true", "false")]
        found[each.computation] += [
          (name.strip().lstrip("%"), 1, "conditional") for name in names if name
        ]
      elif name := each.called("calls") or (each.opcode == "call" and each.called("to_apply")):
        found[each.computation].append((name, 1, each.opcode))
    return found

  @functools.cached_property
  def runs(self) -> dict[str, tuple[int, bool]]:
    """How often a computation runs, and whether it is fused; without those that never run."""
    times: dict[str, int] = collections.Counter()
    fused: dict[str, bool] = {self.entry: False}
    waiting = [(self.entry, 1, False)]
    while waiting:
      name, count, in_fusion = waiting.pop()
      times[name] += count
      fused[name] = in_fusion
      for inner, trips, opcode in self._calls[name]:
        waiting.append((inner, count * trips, in_fusion or opcode == "fusion"))
    return {name: (count, fused[name]) for name, count in times.items()}

  def cycles_by_scope(self) -> dict[str, int]:
    """Returns XLA's estimated cycles of the instructions of each scope; empty except on TPUs."""
    found: dict[str, int] = collections.Counter()
    for each in self.instructions:
      times, fused = self.runs.get(each.computation, (0, True))
      if not fused and each.cycles:
        found[self.scopes[each.name][1]] += times * each.cycles
    return found

  def collective_bytes(self, devices: int) -> dict[str, float]:
    """Returns the bytes that a device receives by each kind of collective.

    A ring of n devices passes (n - 1) / n of the whole array to each device, twice in an
    all-reduce.

    Args:
      devices: Devices of a collective that names no groups.
    """
    shapes = {each.name: each.result for each in self.instructions}
    found: dict[str, float] = collections.Counter()
    for each in self.instructions:
      kind = each.opcode.removesuffix("-start")
      times, _ = self.runs.get(each.computation, (0, True))
      if kind not in COLLECTIVES or not times:
        continue
      size = sum(array_bytes(shapes.get(name, "")) for name in each.operands)
      n = group_size(each.text, devices)
      factor = {"all-gather": n - 1, "all-reduce": 2 * (n - 1) / n, "collective-permute": 1}
      found[kind] += times * size * factor.get(kind, (n - 1) / n)
    return found

  def costs(self) -> dict[str, float]:
    """Returns `flops` and `bytes accessed` by XLA's cost analysis, with loops unrolled.

    Bytes are those of all operands and results outside fusions, wherever they are stored.
    """
    return self._costs(self.entry)

  def _costs(self, computation: str) -> dict[str, float]:
    total = dict(self._analysis(computation))
    for name, trips, opcode in self._calls[computation]:
      if opcode == "while":
        once, whole = self._analysis(name), self._costs(name)
        total = {key: total[key] + trips * whole[key] - once[key] for key in total}
    return total

  @functools.cache  # noqa: B019 (programs live as long as the process)
  def _analysis(self, computation: str) -> dict[str, float]:
    """Returns XLA's costs of one run of a computation, each loop in it once."""
    # XLA analyzes the entry computation: parse a module in which it is this one. Neither the header
    # nor the entry's layout matters.
    from jaxlib import _hlo, _jax

    lines = ["HloModule program"]
    for line in self._hlo.splitlines()[1:]:
      if opened := _COMPUTATION.match(line):
        line = ("ENTRY " if opened[2] == computation else "") + line.removeprefix("ENTRY ")
      lines.append(line)
    module = _hlo.hlo_module_from_text("\n".join(lines))
    found = _jax.hlo_module_cost_analysis(jax.devices("cpu")[0].client, module)
    return {key: found.get(key, 0.0) for key in ("flops", "bytes accessed")}


def trip_count(condition: Iterable[str]) -> int:
  """Returns the trips of a loop from 0 by the instructions of its condition; 1 if unknown."""
  found = (re.match(r"[su]\d+\[\]\S* constant\((\d+)\)", text) for text in condition)
  return max((int(match[1]) for match in found if match), default=1)


def array_bytes(shape: str) -> int:
  """Returns the bytes of all arrays in the text of a shape, without the padding of their layout."""
  found = 0
  for dtype, dimensions in _ARRAY.findall(shape):
    bits = 8 if dtype == "pred" else int(re.sub(r"\D.*", "", dtype.lstrip("bfsuc")))
    found += math.prod(int(size) for size in dimensions.split(",") if size) * bits // 8
  return found


def group_size(text: str, devices: int) -> int:
  """Returns the devices in each group of a collective."""
  if listed := re.search(r"replica_groups=\{\{([\d,]+)\}", text):
    return listed[1].count(",") + 1
  if iota := re.search(r"replica_groups=\[(\d+),(\d+)\]", text):
    return int(iota[2])
  return devices
