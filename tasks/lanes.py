"""The state of an iterator that reads the rows of batches in lanes, and its file.

Row r of every batch is lane r. With B rows in a batch, lane r reads places r, r + B, r + 2B, ... of
the global order and leaves out rows that do not fit. The state is the number of places that each
lane has passed. It does not depend on who reads which lanes.
"""

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Lanes:
  """The state of some lanes of a batch.

  Attributes:
    order: What the order of the rows depends on; a state is only for the same order.
    seed: Seed of the order; None: rows are not shuffled.
    batch_size: Number of lanes of the whole batch.
    first: Number of the first lane of this state.
    passed: Number of places that each lane has passed.
  """

  order: str
  seed: int | None
  batch_size: int
  first: int
  passed: tuple[int, ...]

  def take(self, first: int, count: int) -> "Lanes":
    """Returns the state of `count` of these lanes.

    Raises:
      ValueError: some of them are missing.
    """
    start = first - self.first
    found = self.passed[start : start + count] if start >= 0 else ()
    if len(found) != count:
      raise ValueError(f"lanes {first} to {first + count - 1} are missing")
    return dataclasses.replace(self, first=first, passed=found)

  def to_json(self) -> dict[str, Any]:
    """Returns the state as JSON."""
    return {**dataclasses.asdict(self), "passed": list(self.passed)}

  @classmethod
  def from_json(cls, state: Mapping[str, Any]) -> "Lanes":
    """Returns the state that `to_json` wrote.

    Raises:
      ValueError: it is something else.
    """
    try:
      lanes = cls(**{**state, "passed": tuple(state["passed"])})
    except (TypeError, KeyError) as error:
      raise ValueError(f"not a state of lanes: {error}") from None
    numbers = [lanes.batch_size, lanes.first, *lanes.passed]
    if not all(type(number) is int and number >= 0 for number in numbers):
      raise ValueError("not a state of lanes: numbers are wrong")
    return lanes


def joined(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
  """Returns the state of all lanes, from the states of all parts, as JSON; parts may repeat.

  Raises:
    ValueError: lanes are missing, or the states are of several orders.
  """
  parts = sorted({Lanes.from_json(state) for state in states}, key=lambda part: part.first)

  def join(left: Lanes, right: Lanes) -> Lanes:
    if dataclasses.replace(right, first=left.first, passed=left.passed) != left:
      raise ValueError("states of several orders")
    if right.first != left.first + len(left.passed):
      raise ValueError(f"lane {left.first + len(left.passed)} is missing, or is there twice")
    return dataclasses.replace(left, passed=left.passed + right.passed)

  if not parts:
    raise ValueError("no states")
  return functools.reduce(join, parts).take(0, parts[0].batch_size).to_json()
