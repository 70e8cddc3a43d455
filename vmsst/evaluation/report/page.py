"""Formats a report as a self-contained HTML page: no scripts, other files or network access."""

import html
from collections.abc import Iterable

from vmsst.evaluation.report import markdown
from vmsst.evaluation.report.content import Report, Section
from vmsst.evaluation.report.tables import Label, Table

_LONG_TABLE = 80  # Rows; longer ones are folded.
_NARROW_TABLE = 2  # Columns of numbers; wider ones scroll within the page.

_STYLE = """
:root { color-scheme: light dark; --text: #1d2127; --soft: #59626e; --ground: #ffffff;
  --raised: #f4f6f8; --line: #d5dae0; --accent: #0b5cad; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e9ed; --soft: #a3adb8; --ground: #14171b;
  --raised: #1f242a; --line: #3a424b; --accent: #7db7f0; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 75rem; padding: 1.5rem 1.25rem 4rem; color: var(--text);
  background: var(--ground); font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.8rem; line-height: 1.2; margin: 0 0 .75rem; }
h2 { font-size: 1.3rem; margin: 2.5rem 0 .5rem; padding-top: .75rem;
  border-top: 1px solid var(--line); }
h3, caption { font-size: 1rem; font-weight: 600; text-align: left; padding: .75rem 0 .4rem; }
a { color: var(--accent); }
nav ul { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; list-style: none; padding: 0; }
.notes { color: var(--soft); font-size: .9rem; padding-left: 1.2rem; max-width: 60rem; }
.scroll { overflow: auto; max-height: 85vh; max-width: 100%; width: fit-content;
  margin: 0 0 1rem; }
.narrow { max-height: none; }
.scroll:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
table { border-collapse: separate; border-spacing: 0; font-size: .875rem; overflow-wrap: normal;
  font-variant-numeric: tabular-nums; }
caption { white-space: nowrap; position: sticky; left: 0; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap; }
thead th { position: sticky; top: 0; background: var(--raised); vertical-align: bottom;
  z-index: 2; }
tbody th, thead th:first-child { text-align: left; font-weight: 500; position: sticky; left: 0;
  background: var(--raised); }
thead th { max-width: 14rem; white-space: normal; overflow-wrap: break-word; min-width: 5rem;
  font-weight: 600; }
thead th:first-child { z-index: 3; min-width: 9rem; }
.detail { display: block; color: var(--soft); font-size: .8rem; font-weight: 400; }
tbody .detail { display: inline; margin-left: .6rem; }
.published { color: var(--soft); }
tr.ours th, tr.ours td { font-weight: 600; }
summary { cursor: pointer; padding: .4rem 0; color: var(--accent); }
figure { margin: 1rem 0; padding: .75rem; overflow-x: auto; width: fit-content; max-width: 100%;
  background: #ffffff; border: 1px solid var(--line); border-radius: 6px; }
figure svg { display: block; overflow: visible; }
@media (max-width: 45rem) { tbody th, thead th:first-child { position: static; } }
@media print { .scroll, figure { max-height: none; overflow: visible; } }
"""


def text(report: Report) -> str:
  """Returns the page."""
  body = ["<header>", "<h1>Evaluation report</h1>", *_introduction(report), "</header>", "<main>"]
  for section in markdown.sections(report):
    body += _section(section, opening=section is report.overview)
  if report.training:
    body += ['<section id="training">', "<h2>Training</h2>", *_figures(report.training)]
    body.append("</section>")
  papers = [f"{key}: {title}" for key, title in report.papers.items()]
  body += ['<section id="papers">', "<h2>Papers</h2>", *_list(papers), "</section>"]
  if report.missing:
    body += ['<section id="missing">', f"<h2>{markdown.MISSING}</h2>"]
    for title, lines in report.missing.items():
      body += [f"<h3>{title}</h3>", *_list(lines)]
    body.append("</section>")
  body.append("</main>")
  policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
  head = [
    '<meta charset="utf-8">',
    f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
    '<meta name="viewport" content="width=device-width, initial-scale=1">',
    "<title>Evaluation report</title>",
    f"<style>{_STYLE}</style>",
  ]
  lines = ["<!doctype html>", '<html lang="en">', "<head>", *head, "</head>", "<body>", *body]
  return "\n".join([*lines, "</body>", "</html>", ""])


def _introduction(report: Report) -> list[str]:
  lines = [f"<p>{html.escape(line)}</p>" for line in markdown.introduction(report)]
  links = [(_id(section), section.title) for section in markdown.sections(report)]
  links += [("training", "Training")] * bool(report.training)
  links.append(("papers", "Papers"))
  links += [("missing", markdown.MISSING)] * bool(report.missing)
  items = [f'<li><a href="#{anchor}">{html.escape(name)}</a></li>' for anchor, name in links]
  return [*lines, '<nav aria-label="Sections">', "<ul>", *items, "</ul>", "</nav>"]


def _section(section: Section, *, opening: bool) -> list[str]:
  """Returns a section; the first on the page opens with its figures."""
  head = [f'<section id="{_id(section)}">', f"<h2>{html.escape(section.title)}</h2>"]
  drawn = _figures(section.figures)
  lines = _list(section.notes) if section.notes else []
  for table in section.tables:
    lines += _table(table)
  return [*head, *(drawn + lines if opening else lines + drawn), "</section>"]


def _id(section: Section) -> str:
  return html.escape("at-" + "".join(x if x.isalnum() else "-" for x in section.name))


def _table(table: Table) -> list[str]:
  title = html.escape(table.title)
  columns = [_header(column, "col") for column in table.columns]
  kind = "scroll narrow" if len(columns) <= _NARROW_TABLE else "scroll"
  lines = [
    f'<div class="{kind}" role="region" aria-label="{title}" tabindex="0">',
    "<table>",
    f"<caption>{title}</caption>",
    "<thead>",
    f'<tr><th scope="col">{html.escape(table.corner)}</th>{"".join(columns)}</tr>',
    "</thead>",
    "<tbody>",
  ]
  ours = any(row.published for row in table.rows)  # In bold, if there are published ones too.
  for row, cells in zip(table.rows, table.cells, strict=True):
    shown = []
    for column, cell in zip(table.columns, cells, strict=True):
      published = row.published or column.published
      kind = ' class="published"' if published else ""
      number = html.escape(markdown.number(cell, published=published))
      shown.append(f"<td{kind}>{number}</td>")
    kind = ' class="ours"' if ours and not row.published else ""
    lines.append(f"<tr{kind}>{_header(row, 'row')}{''.join(shown)}</tr>")
  lines += ["</tbody>", "</table>", "</div>"]
  if len(table.rows) > _LONG_TABLE:
    summary = f"<summary>{title}: {len(table.rows)} rows</summary>"
    return ["<details>", summary, *lines, "</details>"]
  return lines


def _header(label: Label, scope: str) -> str:
  detail = f'<span class="detail">{html.escape(label.detail)}</span>' if label.detail else ""
  return f'<th scope="{scope}">{html.escape(label.name)}{detail}</th>'


def _figures(drawn: Iterable[str]) -> list[str]:
  return [f'<figure tabindex="0">\n{svg}\n</figure>' for svg in drawn]


def _list(lines: Iterable[str]) -> list[str]:
  return ['<ul class="notes">', *(f"<li>{html.escape(line)}</li>" for line in lines), "</ul>"]
