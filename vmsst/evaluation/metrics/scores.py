"""The overall Score of the VMSST paper."""

import dataclasses
from collections.abc import Mapping
from typing import Any

TOTAL = "Score"
PARTS: dict[str, list[tuple[str, str]]] = {
  "English STS": [("sts", "pearson")],
  "XL STS": [("xlsts", "pearson")],
  "Tatoeba": [("tatoeba", "average")],
  "BUCC": [("bucc", "cosine_f1"), ("bucc", "margin_f1")],
  "NQ": [("questions", "nq")],
  "MKQA": [("questions", "mkqa")],
}
"""The six parts of section 6.2: each is the mean of these averages, by benchmark and name."""


@dataclasses.dataclass(frozen=True)
class Score:
  """The overall Score, or its available parts.

  Attributes:
    value: Mean of the six parts; None if a part is missing.
    parts: Available parts by name.
    missing: Why other parts are missing, by name.
  """

  value: float | None
  parts: dict[str, float]
  missing: dict[str, str]


def overall(results: Mapping[str, Any]) -> Score:
  """Returns the Score of section 6.2 of the VMSST paper for what `suite.evaluate` returns.

  It is the mean of English STS and cross-lingual STS (Pearson's r), Tatoeba (accuracy), BUCC (mean
  of F1 by cosine and by margin), NQ and MKQA (accuracy). A benchmark with missing sets has no part.
  """
  parts, missing = {}, {}
  for name, keys in PARTS.items():
    lacking = {reason for key in keys if (reason := _lacking(results, *key))}
    if lacking:
      missing[name] = "; ".join(sorted(lacking))
    else:
      values = [results["benchmarks"][benchmark]["summary"][key] for benchmark, key in keys]
      parts[name] = sum(values) / len(values)
  value = None if missing else sum(parts.values()) / len(parts)
  return Score(value, parts, missing)


def _lacking(results: Mapping[str, Any], benchmark: str, key: str) -> str | None:
  """Returns why a benchmark's average is missing; None if it exists and lacks no sets."""
  if scored := results["benchmarks"].get(benchmark):
    return None if key in scored["summary"] else f"{benchmark} has no complete {key}"
  for what, reason in (("failed", "failed"), ("absent", "is absent")):
    if benchmark in results.get(what, {}):
      return f"{benchmark} {reason}"
  return f"{benchmark} was not run"
