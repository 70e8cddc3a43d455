"""Tables of reports, and published numbers in them."""

import dataclasses
from collections.abc import Iterable, Mapping

from vmsst.evaluation.report import published

_MOST_ROWS = 400  # Of the longest readable table.

Cells = dict[tuple[str, str], str]
"""Texts by row and column."""


@dataclasses.dataclass(frozen=True)
class Table:
  """A table.

  Attributes:
    title: Its title.
    header: What the rows are, then the columns.
    rows: The texts of each row, by its name.
  """

  title: str
  header: list[str]
  rows: dict[str, list[str]]


def table(title: str, corner: str, cells: Cells) -> Table:
  """Returns a table of the rows and columns of `cells`, in the order of their first cell."""
  columns = list(dict.fromkeys(column for _, column in cells))
  rows = list(dict.fromkeys(row for row, _ in cells))
  if len(rows) > _MOST_ROWS:
    title += f" (the first {_MOST_ROWS} of {len(rows):,}; results.json has all)"
  texts = {row: [cells.get((row, x), "–") for x in columns] for row in rows[:_MOST_ROWS]}
  return Table(title, [corner, *columns], texts)


def published_cells(numbers: Mapping[str, Iterable[published.Published]]) -> Cells:
  """Returns published numbers, given by key, by system and key; systems are named with table."""
  return {
    (f"{number.system} ({number.source})", key): (
      # As many decimals as in the paper.
      f"{number.value:.{1 if round(number.value, 1) == number.value else 2}f}"
    )
    for key, each in numbers.items()
    for number in each
  }
