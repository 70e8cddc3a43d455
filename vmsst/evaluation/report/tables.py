"""Tables of a report, and columns of published numbers for them."""

import dataclasses
from collections.abc import Mapping, Sequence

from vmsst.evaluation.report import published


@dataclasses.dataclass(frozen=True)
class Cell:
  """A number of a table.

  Attributes:
    value: The number; None if missing.
    difference: Difference from the first encoder; None for the first.
    incomplete: Whether some of its sets are missing.
    note: What the number is of, such as the nearest language.
  """

  value: float | None
  difference: float | None = None
  incomplete: bool = False
  note: str = ""


@dataclasses.dataclass(frozen=True)
class Label:
  """Label of a row or column.

  Attributes:
    name: The name.
    detail: Further information, such as the source table.
    published: Whether its numbers are published ones.
  """

  name: str
  detail: str = ""
  published: bool = False


@dataclasses.dataclass(frozen=True)
class Table:
  """A table; `cells` has a list for each row."""

  title: str
  corner: str
  columns: list[Label]
  rows: list[Label]
  cells: list[list[Cell]]


def compared(values: Sequence[float | None]) -> list[Cell]:
  """Returns the cells of one row, one per encoder; the others with differences from the first."""
  first = values[0]
  return [
    Cell(value, None if not place or value is None or first is None else value - first)
    for place, value in enumerate(values)
  ]


@dataclasses.dataclass
class _System:
  """A row of published numbers: values by key, tables by paper."""

  name: str
  values: dict[str, float]
  tables: dict[str, list[str]]

  def takes(self, key: str, number: published.Published) -> bool:
    """Whether a number belongs to this row: of the same paper, or repeated in another one."""
    held = self.values.get(key)
    same = held == number.value or (held is None and number.paper in self.tables)
    return self.name == number.system and same

  def label(self) -> Label:
    sources = [
      f"{paper}, Table{'s' * (len(tables) > 1)} {', '.join(tables)}"
      for paper, tables in self.tables.items()
    ]
    return Label(self.name, "; ".join(sources), published=True)


def systems(
  numbers: Mapping[str, Sequence[published.Published]],
) -> list[tuple[Label, dict[str, float]]]:
  """Groups published numbers, given by key, into rows of systems."""
  rows: list[_System] = []
  for key, each in numbers.items():
    for number in each:
      row = next((row for row in rows if row.takes(key, number)), None)
      if row is None:
        row = _System(number.system, {}, {})
        rows.append(row)
      row.values[key] = number.value
      tables = row.tables.setdefault(number.paper, [])
      if number.table not in tables:
        tables.append(number.table)
  return [(row.label(), row.values) for row in rows]
