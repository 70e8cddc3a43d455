"""Averages of one benchmark's results, whose names mark those that lack sets."""

from collections.abc import Iterable, Mapping
from typing import Any

from vmsst.evaluation.benchmarks.averages import INCOMPLETE


def keys(found: Iterable[Mapping[str, Any]]) -> list[str]:
  """Returns the names of the averages of several encoders, without marks."""
  return list(dict.fromkeys(key.removesuffix(INCOMPLETE) for x in found for key in x["summary"]))


def value(found: Mapping[str, Any], key: str) -> float | None:
  """Returns an average by its name without a mark; None if it is missing."""
  return found["summary"].get(key, found["summary"].get(key + INCOMPLETE))


def incomplete(found: Mapping[str, Any], key: str) -> bool:
  """Returns whether an average lacks sets; if none is marked, this holds for all or none."""
  if any(each.endswith(INCOMPLETE) for each in found["summary"]):
    return key + INCOMPLETE in found["summary"]
  return bool(found["missing"])
