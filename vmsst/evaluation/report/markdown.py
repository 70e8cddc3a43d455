"""Formats a report as Markdown (GitHub's dialect)."""

import html
import re
from collections.abc import Iterable, Sequence

from vmsst.evaluation.report import missing
from vmsst.evaluation.report.content import Report, Section
from vmsst.evaluation.report.tables import Cell, Label, Table

MISSING = "What is missing"
"""Title of the last section."""


def text(report: Report) -> str:
  """Returns the report; only the HTML page has figures."""
  parts = ["# Evaluation report", *map(_escaped, introduction(report))]
  for section in sections(report):
    parts += _section(section)
  parts += ["## Papers", _bullets(f"{key}: {title}" for key, title in report.papers.items())]
  if report.missing:
    parts.append(f"## {MISSING}")
    for title, lines in report.missing.items():
      parts += [f"### {title}", _bullets(lines)]
  return "\n\n".join(parts) + "\n"


def sections(report: Report) -> list[Section]:
  """Returns the sections of the evaluations, in order; none without an encoder."""
  opening = [report.overview] if report.overview.tables else []
  return [*opening, report.score, *report.sections] if report.encoders else []


def number(cell: Cell, *, published: bool) -> str:
  """Formats a number and its note; two decimals, but for published ones as many as in the paper."""
  if cell.value is None:
    return "–"
  decimals = 1 if published and round(cell.value, 1) == cell.value else 2
  shown = f"{cell.value:.{decimals}f}{'†' * cell.incomplete}"
  difference = "" if cell.difference is None else f" ({cell.difference:+.2f})"
  return shown + difference + (f" {cell.note}" if cell.note else "")


def introduction(report: Report) -> list[str]:
  """Returns what readers need to know before the tables."""
  hint = [report.hint] if report.hint else []
  if not report.encoders:
    return ["No encoder was evaluated here.", *hint]
  lines = [f"Encoders: {', '.join(report.encoders)}. Shares and correlations are times 100."]
  lengths = [
    f"{name} {'unknown' if length is None else f'{length:,} tokens'}"
    for name, length in report.max_length.items()
  ]
  lines.append(f"Longer texts are cut at: {', '.join(lengths)}.")
  if len(set(report.max_length.values()) - {None}) > 1:
    lines.append("Numbers of encoders that cut texts at different lengths are not comparable.")
  if len(report.encoders) > 1:
    lines.append(f"In parentheses: the difference from {report.encoders[0]}.")
  if missing.SETS in report.missing:
    lines.append(
      "† marks averages that lack sets, so that they are not comparable with published ones. The "
      "last section lists the sets."
    )
  return [*lines, *hint]


def _section(section: Section) -> list[str]:
  parts = [f"## {_escaped(section.title)}"]
  if section.notes:
    parts.append(_bullets(section.notes))
  for table in section.tables:
    parts += [f"### {_escaped(table.title)}", _table(table)]
  return parts


def _table(table: Table) -> str:
  header = [table.corner, *(_label(column) for column in table.columns)]
  lines = [_row(header), _row(["---", *(["---:"] * len(table.columns))])]
  for row, cells in zip(table.rows, table.cells, strict=True):
    shown = [
      _escaped(number(cell, published=row.published or column.published))
      for column, cell in zip(table.columns, cells, strict=True)
    ]
    lines.append(_row([_label(row), *shown]))
  return "\n".join(lines)


def _label(label: Label) -> str:
  return _escaped(f"{label.name} ({label.detail})" if label.detail else label.name)


def _row(cells: Sequence[str]) -> str:
  return f"| {' | '.join(cells)} |"


def _bullets(lines: Iterable[str]) -> str:
  return "\n".join(f"- {_escaped(line)}" for line in lines)


def _escaped(line: str) -> str:
  """Escapes Markdown and HTML, on one line."""
  return re.sub(r"([\\`*_\[\]|#~$!])", r"\\\1", html.escape(" ".join(line.split()), quote=False))
