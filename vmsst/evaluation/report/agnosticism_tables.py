"""Tables of `agnosticism`: averages by language, nearest languages, texts and versions."""

import contextlib
import dataclasses
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from vmsst import errors, languages
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import agnosticism as benchmarks
from vmsst.evaluation.benchmarks import agnosticism_results
from vmsst.evaluation.metrics import agnosticism
from vmsst.evaluation.report import published
from vmsst.evaluation.report.tables import Cell, Label, Table, compared, systems

_WAYS = {"error of its queries": "{}->*", "error of searches in it": "*->{}"}
_NAMED = 3  # Nearest languages named in a cell.

Matrices = dict[str, dict[str, agnosticism_results.Matrix]]
"""Error matrices by text and encoder."""


def tables(name: str, found: Mapping[str, Mapping[str, Any]]) -> list[Table]:
  """Returns the tables of a benchmark's results by encoder; none if it is not of `agnosticism`.

  For each text, the row and column averages of the paper's tables, the nearest languages, and the
  spread over versions in one language; for several texts, also its Table 5.

  Raises:
    InputError: the results are not those of every pair.
  """
  if name not in benchmarks.NAMES:
    return []
  of_text: Matrices = {}
  for encoder, each in found.items():
    with every_pair(name, encoder):
      for matrix in agnosticism_results.matrices(suite.results_of(each)):
        of_text.setdefault(matrix.text, {})[encoder] = matrix
  made = _over_texts(of_text, list(found)) if len(of_text) > 1 else []
  for text, of_encoder in of_text.items():
    own = [_averages(name, of_encoder), *_spreads(of_encoder)]
    made += [
      Table(f"{text}: {x.title}" if text else x.title, x.corner, x.columns, x.rows, x.cells)
      for x in own
    ]
  return made


@contextlib.contextmanager
def every_pair(name: str, encoder: str) -> Iterator[None]:
  """Turns errors due to incomplete results of a benchmark of `agnosticism` into InputErrors."""
  try:
    yield
  except (KeyError, IndexError, ValueError) as error:
    raise errors.InputError(
      f"{encoder}: the results of {name} are not those of every pair ({error}): run `vmsst eval` "
      "again in another folder"
    ) from None


def _averages(name: str, of_encoder: Mapping[str, agnosticism_results.Matrix]) -> Table:
  """Returns the averages of rows and columns of error matrices, and the nearest languages."""
  codes = {
    label: code
    for matrix in of_encoder.values()
    for label, code in zip(matrix.labels, matrix.languages, strict=True)
  }
  columns: list[Label] = []
  cells: list[list[Cell]] = [[] for _ in codes]
  for title, way in _WAYS.items():
    columns += [_label(title, encoder, of_encoder) for encoder in of_encoder]
    own = [_edge(matrix, way) for matrix in of_encoder.values()]
    for label, line in zip(codes, cells, strict=True):
      line += compared([each.get(label) for each in own])
    numbers = {
      label: published.for_result(name, way.format(label), way.format(code).split("->"), "error")
      for label, code in codes.items()
    }
    for system, values in systems(numbers):
      columns.append(dataclasses.replace(system, name=f"{title}: {system.name}"))
      for label, line in zip(codes, cells, strict=True):
        line.append(Cell(values.get(label)))
  for encoder, matrix in of_encoder.items():
    columns.append(_label("nearest language of its queries", encoder, of_encoder))
    near = dict(zip(matrix.labels, _nearest(matrix), strict=True))
    for label, line in zip(codes, cells, strict=True):
      line.append(near.get(label, Cell(None)))
  return Table("Averages by language", "Language", columns, [Label(x) for x in codes], cells)


def _edge(matrix: agnosticism_results.Matrix, way: str) -> dict[str, float]:
  """Returns the mean error by label, of rows ("{}->*") or columns ("*->{}")."""
  found = agnosticism.averages(matrix.error_LL)
  mean_L = found.source_L if way.endswith("*") else found.target_L
  return dict(zip(matrix.labels, mean_L.tolist(), strict=True))


def _nearest(matrix: agnosticism_results.Matrix) -> list[Cell]:
  """Returns, for each language, the nearest language of its queries and where it occurs."""
  cells = []
  for row, near in enumerate(agnosticism.nearest(matrix.error_LL)):
    names = ", ".join(matrix.labels[each] for each in near[:_NAMED])
    more = f" and {len(near) - _NAMED} more" if len(near) > _NAMED else ""
    cells.append(Cell(float(matrix.error_LL[row, near[0]]), note=names + more))
  return cells


def _spreads(of_encoder: Mapping[str, agnosticism_results.Matrix]) -> list[Table]:
  """Returns a table of the spread over versions in one language; none if there are no versions."""
  columns: list[Label] = []
  lines: dict[str, dict[int, Cell]] = {}
  for encoder, matrix in of_encoder.items():
    known = [languages.language(code) for code in matrix.languages]
    grouped: dict[str, list[agnosticism.Spread]] = {}
    first = [matrix.languages[known.index(language)] for language in known]
    for spread in agnosticism.version_spreads(matrix.error_LL, first):
      row = f"{spread.group}->*" if spread.queries else f"*->{spread.group}"
      grouped.setdefault(row, []).append(spread)
    place = len(columns)
    columns += [
      _label(x, encoder, of_encoder)
      for x in ("mean spread", "largest spread", "lowest error there", "highest error there")
    ]
    for row, spreads in grouped.items():
      widest = max(spreads, key=lambda each: each.difference)
      error_LL = matrix.error_LL if widest.queries else matrix.error_LL.T
      lines.setdefault(row, {}).update(
        enumerate(
          (
            Cell(statistics.fmean(each.difference for each in spreads)),
            Cell(widest.difference, note=matrix.labels[widest.other]),
            *(
              Cell(float(error_LL[version, widest.other]), note=matrix.labels[version])
              for version in (widest.lowest, widest.highest)
            ),
          ),
          place,
        )
      )
  if not lines:
    return []
  cells = [[line.get(x, Cell(None)) for x in range(len(columns))] for line in lines.values()]
  return [Table("Spread over versions", "Versions", columns, [Label(x) for x in lines], cells)]


def _over_texts(of_text: Matrices, encoders: list[str]) -> list[Table]:
  """Returns a table per encoder: errors by language and text, and their means over texts."""
  made = []
  for encoder in encoders:
    own = [each[encoder] for each in of_text.values() if encoder in each]
    error_of = agnosticism_results.language_errors(own)
    columns = [Label(matrix.text) for matrix in own] + [Label("mean of texts")]
    cells = [
      [*(Cell(line.get(x.text)) for x in own), Cell(statistics.fmean(line.values()))]
      for line in error_of.values()
    ]
    title = "Errors by language and text" + f": {encoder}" * (len(encoders) > 1)
    made.append(Table(title, "Language", columns, [Label(x) for x in error_of], cells))
  return made


def _label(title: str, encoder: str, of_encoder: Mapping[str, Any]) -> Label:
  return Label(title, encoder if len(of_encoder) > 1 else "")
