"""Builds the content of a report: tables next to published numbers, notes and figures."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from vmsst.evaluation.metrics import scores
from vmsst.evaluation.report import (
  agnosticism_tables,
  dimensions,
  figures,
  missing,
  overview,
  published,
  reading,
  recomputed,
  summaries,
)
from vmsst.evaluation.report.tables import Cell, Label, Table, compared, systems

_AVERAGES, _PUBLISHED = "Averages", "Next to published numbers"
_OF_AVERAGES = (_AVERAGES, _PUBLISHED)
_MOST_RESULTS = 400  # Rows of the longest readable table.


@dataclasses.dataclass(frozen=True)
class Section:
  """Tables and figures; `notes` explain what their numbers are not comparable with."""

  name: str
  title: str
  tables: list[Table]
  notes: list[str]
  figures: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Report:
  """A report.

  Attributes:
    encoders: Names of the encoders; the first is the baseline.
    max_length: Tokens at which each encoder cuts texts, by name; None if unknown.
    overview: The main averages next to published ones; no table if none is published.
    score: The overall Score and its parts.
    sections: One per benchmark that was run.
    training: Figures of training.
    papers: Titles of papers by their keys in tables.
    missing: What the evaluations lack, as lines by title.
    hint: How to get figures, if they cannot be plotted; else "".
  """

  encoders: list[str]
  max_length: dict[str, int | None]
  overview: Section
  score: Section
  sections: list[Section]
  training: list[str]
  papers: dict[str, str]
  missing: dict[str, list[str]]
  hint: str


def build(runs: Sequence[reading.Run], *, draw: bool = True) -> Report:
  """Builds the report; the encoder of the first run is the baseline.

  Args:
    runs: Content of the folders.
    draw: Whether it has figures.
  """
  evaluated = {run.name: run.results for run in runs if run.results is not None}
  hint = figures.hint() if draw else ""
  draw = draw and not hint
  sections = [
    _section(name, evaluated, draw=draw)
    for name in dict.fromkeys(name for each in evaluated.values() for name in each["benchmarks"])
  ]
  papers = {number.paper: number.title for number in published.load()}
  return Report(
    encoders=list(evaluated),
    max_length={name: results.get("max_length") for name, results in evaluated.items()},
    overview=_overview_section(evaluated, draw=draw),
    score=_score_section(evaluated) if evaluated else Section("score", "", [], []),
    sections=sections,
    training=figures.training(runs) if draw else [],
    papers=papers,
    missing=missing.lines(evaluated),
    hint=hint,
  )


def without_single_results(report: Report) -> Report:
  """Returns a report with only the averages of each benchmark, next to published numbers."""
  sections = [
    dataclasses.replace(each, tables=[x for x in each.tables if x.title in _OF_AVERAGES])
    for each in report.sections
  ]
  return dataclasses.replace(report, sections=sections)


def _overview_section(evaluated: Mapping[str, Mapping[str, Any]], *, draw: bool) -> Section:
  measured = overview.measurements(evaluated)
  tables = [overview.table(measured, evaluated)] if measured else []
  notes = []
  for name in dict.fromkeys(each.benchmark for each in measured):
    notes += _remarks(name, _found(name, evaluated))
  drawn = [figures.comparison(measured, list(evaluated))] if measured and draw else []
  return Section("overview", _PUBLISHED, tables, notes, drawn)


def _found(name: str, evaluated: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
  """Returns the results of a benchmark by encoder, of those that were evaluated on it."""
  return {
    encoder: results["benchmarks"][name]
    for encoder, results in evaluated.items()
    if name in results["benchmarks"]
  }


def _score_section(evaluated: Mapping[str, Mapping[str, Any]]) -> Section:
  found = {encoder: scores.overall(results) for encoder, results in evaluated.items()}
  rows = [*scores.PARTS, scores.TOTAL]
  cells = [
    compared(
      [each.value if row == scores.TOTAL else each.parts.get(row) for each in found.values()]
    )
    for row in rows
  ]
  columns = [Label(encoder) for encoder in found]
  tables = [Table("The six parts and their mean", "Part", columns, [Label(x) for x in rows], cells)]
  # Published systems with a Score, and the averages behind it.
  numbers = {scores.TOTAL: published.find("score", "score")}
  systems = {(number.system, number.table) for number in numbers[scores.TOTAL]}
  for benchmark, key in (each for part in scores.PARTS.values() for each in part):
    numbers[f"{benchmark} {key}"] = [
      number
      for number in published.for_average(benchmark, key)
      if number.paper == "vmsst" and (number.system, number.table) in systems
    ]
  own = {
    key: {encoder: _average(results, key) for encoder, results in evaluated.items()}
    for key in numbers
  }
  own[scores.TOTAL] = {encoder: each.value for encoder, each in found.items()}
  tables += _next_to_published(numbers, own, {})
  notes = []
  for benchmark in dict.fromkeys(name for part in scores.PARTS.values() for name, _ in part):
    notes += _option_notes(_found(benchmark, evaluated))
  notes += _table_notes(numbers)
  return Section("score", "Overall Score of the VMSST paper", tables, notes)


def _average(results: Mapping[str, Any], name: str) -> float | None:
  benchmark, _, key = name.partition(" ")
  return results["benchmarks"].get(benchmark, {"summary": {}})["summary"].get(key)


def _section(name: str, evaluated: Mapping[str, Mapping[str, Any]], *, draw: bool) -> Section:
  found = _found(name, evaluated)
  title = next(iter(found.values()))["title"]
  notes = _notes(name, found)
  tables = [_averages(found), *dimensions.tables(found)]
  keys = summaries.keys(found.values())
  numbers = {key: published.for_average(name, key) for key in keys}
  numbers = {key: each for key, each in numbers.items() if each}
  computed, remarks = recomputed.seen_and_unseen(name, evaluated)
  numbers |= computed
  own = {key: {x: summaries.value(each, key) for x, each in found.items()} for key in numbers}
  tables += _next_to_published(numbers, own, found)
  notes += [*remarks, *_table_notes(numbers)]
  tables += agnosticism_tables.tables(name, found)
  count = max(len(each["results"]) for each in found.values())
  if 0 < count <= _MOST_RESULTS:
    tables.append(_results(name, found))
  elif count:
    notes.append(f"The {count:,} single results are in report.json.")
  drawn = []
  if draw:
    drawn = [*figures.by_dimensions(title, found), *figures.languages_and_sentences(name, found)]
  return Section(name, title, tables, notes, drawn)


def _table_notes(numbers: Mapping[str, Sequence[published.Published]]) -> list[str]:
  """Returns the notes on the tables that numbers are from."""
  found = (number for each in numbers.values() for number in each if number.note)
  return list(dict.fromkeys(f"{number.source}: {number.note}" for number in found))


def _notes(name: str, found: Mapping[str, Mapping[str, Any]]) -> list[str]:
  """Returns what the numbers of a benchmark are not comparable with, and why."""
  notes = []
  sets = _sets(found)
  first = next(iter(sets))
  for encoder, names in sets.items():
    if names != sets[first]:
      notes.append(
        f"{encoder} and {first} were evaluated on different sets ({len(names ^ sets[first])} are "
        "not common to both): their averages are not comparable."
      )
  return [*notes, *_remarks(name, found)]


def _remarks(name: str, found: Mapping[str, Mapping[str, Any]]) -> list[str]:
  """Returns when the numbers of a benchmark and its options are comparable with published ones."""
  remark = published.remark(name)
  return [*_option_notes(found), *([remark] if remark else [])]


def _option_notes(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
  """Returns notes on the options of a benchmark's results, naming encoders if they differ."""
  of_remark: dict[str, list[str]] = {}
  for encoder, each in found.items():
    for option, choice in each.get("options", {}).items():
      if remark := published.option_remark(option, choice):
        of_remark.setdefault(remark, []).append(encoder)
  return [
    remark if len(encoders) == len(found) else f"{', '.join(encoders)}: {remark}"
    for remark, encoders in of_remark.items()
  ]


def _averages(found: Mapping[str, Mapping[str, Any]]) -> Table:
  keys = summaries.keys(found.values())
  sets = list(_sets(found).values())
  cells = []
  for key in keys:
    row = compared([summaries.value(each, key) for each in found.values()])
    cells.append(
      [
        Cell(
          cell.value, cell.difference if own == sets[0] else None, summaries.incomplete(each, key)
        )
        for cell, each, own in zip(row, found.values(), sets, strict=True)
      ]
    )
  return Table(_AVERAGES, "Average", [Label(x) for x in found], [Label(x) for x in keys], cells)


def _sets(found: Mapping[str, Mapping[str, Any]]) -> dict[str, set[str]]:
  """Returns the names of the results that averages are over, by encoder."""
  return {encoder: {x["name"] for x in each["results"]} for encoder, each in found.items()}


def _next_to_published(
  numbers: Mapping[str, Sequence[published.Published]],
  own: Mapping[str, Mapping[str, float | None]],
  found: Mapping[str, Mapping[str, Any]],
) -> list[Table]:
  """Returns a table of systems and encoders by averages; none if no numbers are published."""
  if not numbers:
    return []
  rows, cells = [], []
  for encoder in next(iter(own.values())):
    rows.append(Label(encoder, "measured here"))
    cells.append(
      [
        Cell(
          own[key][encoder], incomplete=bool(found) and summaries.incomplete(found[encoder], key)
        )
        for key in numbers
      ]
    )
  for label, values in systems(numbers):
    rows.append(label)
    cells.append([Cell(values.get(key)) for key in numbers])
  return [Table(_PUBLISHED, "System", [Label(key) for key in numbers], rows, cells)]


def _results(name: str, found: Mapping[str, Mapping[str, Any]]) -> Table:
  """Returns all results next to published numbers of the same languages."""
  rows = {x["name"]: x["languages"] for each in found.values() for x in each["results"]}
  by_name = [{x["name"]: x["metrics"] for x in each["results"]} for each in found.values()]
  metrics = list(dict.fromkeys(key for each in by_name for x in each.values() for key in x))
  columns, cells = [], {row: list[Cell]() for row in rows}
  for metric in metrics:
    columns += [Label(metric, encoder if len(found) > 1 else "") for encoder in found]
    for row, line in cells.items():
      line += compared([each.get(row, {}).get(metric) for each in by_name])
    numbers = {row: published.for_result(name, row, rows[row], metric) for row in rows}
    for label, values in systems(numbers):
      columns.append(dataclasses.replace(label, name=f"{metric}: {label.name}"))
      for row, line in cells.items():
        line.append(Cell(values.get(row)))
  return Table("Results", "Set", columns, [Label(x) for x in rows], list(cells.values()))
