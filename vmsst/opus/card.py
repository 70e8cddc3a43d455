"""The data card in Markdown: content of a dataset, its sources, and what was left out."""

import json
import os
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from vmsst import storage
from vmsst.data import formats
from vmsst.opus import pipeline, stages


def text(report: pipeline.Report) -> str:
  """Returns the data card of a dataset."""
  recipe = report.recipe
  sections = [
    f"# opus_bitext/{recipe.name}",
    recipe.description.strip(),
    "Each example: `source`, `target`, `source_language`, `target_language`, `corpus`. Each "
    "language pair has its own splits, such as `train_deu_eng`.",
    f"- configuration: `{report.configuration}`\n- content: `{report.content}`",
    "## Pairs of texts",
    _pairs(report),
    "## Sources",
    _sources(report),
    "## What was left out",
    _counts(report),
    "## Held out for evaluation",
    _held_out(report),
    "## Targets and results",
    _goals(report),
    "## Faults in the sources",
    _faults(report),
    "## Recipe",
    textwrap.indent(
      json.dumps(msgspec.to_builtins(recipe, enc_hook=str), indent=2, ensure_ascii=False), "    "
    ),
  ]
  return "\n\n".join(section for section in sections if section) + "\n"


def _pairs(report: pipeline.Report) -> str:
  rows: list[list[Any]] = [
    [split, len(shards), *(sum(shard[key] for shard in shards) for key in ("rows", "bytes"))]
    for split, shards in report.splits.items()
  ]
  rows.append(["all", *(sum(row[column] for row in rows) for column in (1, 2, 3))])
  return _table(["split", "shards", "pairs", "bytes"], rows)


def _sources(report: pipeline.Report) -> str:
  rows = [
    [
      release.corpus,
      release.version,
      report.recipe.pair_name(*release.pair),
      " ".join(_below(report.root, path) for path in release.paths),
      release.size,
      release.license(),
    ]
    for release in report.releases
  ]
  what = "The licenses are in the archives, and at opus.nlpl.eu; here is the first line of each."
  return f"{what}\n\n{_table(['corpus', 'version', 'languages', 'file', 'bytes', 'license'], rows)}"


def _counts(report: pipeline.Report) -> str:
  """Returns a table of the pairs before and after each filter, by language pair and corpus."""
  columns = [stages.READ, *stages.REASONS, stages.KEPT]
  counted: dict[tuple[str, str], dict[str, int]] = {}
  for release in report.releases:
    key = (report.recipe.pair_name(*release.pair), release.corpus)
    cell = counted.setdefault(key, dict.fromkeys(columns, 0))
    for name, count in report.cleaned[release.name]["counts"].items():
      if name != stages.KEPT:
        cell[name] += count
  for key, counts in report.merged.items():
    for name in (stages.DUPLICATE, stages.NEAR_DUPLICATE, stages.KEPT):
      counted[key][name] += counts[name]
  used = [name for name in columns if any(counts[name] for counts in counted.values())]
  rows: list[list[Any]] = [
    [*cell, *(counts[name] for name in used), *report.taken[cell]]
    for cell, counts in sorted(counted.items())
  ]
  rows.append(["all", "", *(sum(row[i] for row in rows) for i in range(2, len(used) + 4))])
  header = ["languages", "corpus", *(name.replace("_", " ") for name in used)]
  what = (
    "Pairs read; pairs left out, by the first reason that applied; pairs kept; pairs for training "
    "and for validation, within caps and targets."
  )
  return f"{what}\n\n{_table([*header, 'training', 'validation'], rows)}"


def _held_out(report: pipeline.Report) -> str:
  removed = dict.fromkeys(report.held_out, 0)
  for made in report.cleaned.values():
    for name, count in made["held_out"].items():
      removed[name] += count
  what = (
    "Pairs with a side that is a sentence of an evaluation set, apart from case, punctuation and "
    "spaces. A sentence of several sets counts in each."
  )
  rows = [[name, sentences, removed[name]] for name, sentences in sorted(report.held_out.items())]
  return f"{what}\n\n{_table(['evaluation set', 'its sentences', 'pairs left out'], rows)}"


def _goals(report: pipeline.Report) -> str:
  if not report.goals:
    return "The recipe has no targets."
  rows = [
    [goal.name, goal.wanted, goal.available, goal.obtained, _share(goal.obtained, goal.wanted)]
    for goal in report.goals
  ]
  return _table(["languages", "target", "available", "obtained", "share"], rows)


def _faults(report: pipeline.Report) -> str:
  lines = [f"- {_location(report, fault)}" for fault in report.left_out]
  for release in report.releases:
    made = report.cleaned[release.name]
    if made["fault_kinds"]:
      kinds = ", ".join(f"{count:,} × {what}" for what, count in made["fault_kinds"].items())
      lines.append(f"- {release.name}: {_plain(kinds)}")
      lines += [f"  - {_location(report, formats.Fault(*fault))}" for fault in made["faults"]]
  return "\n".join(lines) or "None."


def _location(report: pipeline.Report, fault: formats.Fault) -> str:
  return _plain(f"{_below(report.root, fault.place)}: {fault.what}")


def _below(root: str, path: str) -> str:
  """Returns a path relative to the folder of releases, so that cards do not depend on it."""
  return storage.absolute(path).removeprefix(os.path.join(storage.absolute(root), ""))


def _share(part: int, whole: int) -> str:
  return f"{part / whole:.1%}" if whole else ""


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
  lines = [header, ["---"] * len(header), *rows]
  return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(value: object) -> str:
  return f"{value:,}" if isinstance(value, int) else _plain(str(value)).replace("|", "\\|")


def _plain(content: str) -> str:
  """Returns text from outside on one line, without anything that Markdown takes for HTML."""
  return " ".join(content.split()).replace("<", "&lt;")
