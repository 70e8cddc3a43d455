"""Averages of vectors that were cut to their first dimensions (`vmsst eval --dimensions`)."""

from collections.abc import Mapping
from typing import Any

from vmsst.evaluation.report import summaries
from vmsst.evaluation.report.tables import Cell, Label, Table

Found = Mapping[str, Mapping[str, Any]]
"""Results of a benchmark by encoder."""


def tables(found: Found) -> list[Table]:
  """Returns the averages by encoder and number of dimensions; none if only whole vectors count."""
  sizes = [(encoder, cut) for encoder, each in found.items() for cut in each.get("dimensions", [])]
  if not sizes:
    return []
  keys = summaries.keys(cut for _, cut in sizes)
  columns = [
    Label(f"{cut['dimension']:,}", encoder if len(found) > 1 else "") for encoder, cut in sizes
  ]
  cells = [
    [
      Cell(summaries.value(cut, key), incomplete=summaries.incomplete(found[encoder], key))
      for encoder, cut in sizes
    ]
    for key in keys
  ]
  return [Table("Averages by number of dimensions", "Average", columns, [*map(Label, keys)], cells)]


def curves(found: Found) -> tuple[str, dict[str, dict[int, float]]]:
  """Returns the name of the first average, and its values by encoder and number of dimensions."""
  key = summaries.keys(found.values())[0]
  values = {
    encoder: {
      cut["dimension"]: value
      for cut in each.get("dimensions", [])
      if (value := summaries.value(cut, key)) is not None
    }
    for encoder, each in found.items()
  }
  return key, {encoder: each for encoder, each in values.items() if each}
