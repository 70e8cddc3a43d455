"""Writes a data card in Markdown: a dataset's content and sources, and what was excluded."""

import dataclasses
import json
import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from vmsst import storage
from vmsst.data import formats
from vmsst.opus import recipes, stages
from vmsst.opus import releases as releases_lib


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
  """Results from a dataset build.

  Attributes:
    recipe: The recipe.
    root: Folder with the releases.
    releases: The releases in the dataset.
    left_out: Files in the folder that could not be used.
    cleaned: Results of `stages.clean`, by release name.
    merged: Numbers of rows, duplicates and kept rows, by language pair and corpus.
    selected: Numbers of training pairs and validation pairs, by language pair and corpus.
    goals: The recipe's targets and the numbers of pairs obtained.
    held_out: Number of sentences to exclude, by evaluation set.
    splits: Number of rows and bytes in each shard, by split.
  """

  recipe: recipes.Recipe
  root: str
  releases: Sequence[releases_lib.Release]
  left_out: Sequence[formats.Fault]
  cleaned: Mapping[str, Mapping[str, Any]]
  merged: Mapping[recipes.Cell, Mapping[str, int]]
  selected: Mapping[recipes.Cell, Sequence[int]]
  goals: Sequence[recipes.Goal]
  held_out: Mapping[str, int]
  splits: Mapping[str, Sequence[Mapping[str, int]]]


def text(report: Report) -> str:
  """Returns the data card's Markdown text."""
  recipe = report.recipe
  splits: list[list[Any]] = [
    [split, len(shards), *(sum(shard[key] for shard in shards) for key in ("rows", "bytes"))]
    for split, shards in report.splits.items()
  ]
  splits.append(["all", *(sum(row[column] for row in splits) for column in (1, 2, 3))])

  def below(path: str) -> str:
    """Returns a path relative to the releases folder, because the card omits that folder."""
    return storage.absolute(path).removeprefix(os.path.join(storage.absolute(report.root), ""))

  sources = [
    [x.corpus, x.version, recipe.pair_name(*x.pair), below(x.path), x.size] for x in report.releases
  ]
  removed = dict.fromkeys(report.held_out, 0)
  for facts in report.cleaned.values():
    for name, count in facts["held_out"].items():
      removed[name] += count
  held_out = [[name, size, removed[name]] for name, size in sorted(report.held_out.items())]
  goals = [
    [name, target, available, obtained, f"{obtained / target:.1%}" if target else ""]
    for name, target, obtained, available in report.goals
  ]
  faults = [f"- {_plain(f'{below(path)}: {what}')}" for path, what in report.left_out]
  for release in report.releases:
    facts = report.cleaned[release.name]
    if kinds := ", ".join(f"{count:,} × {what}" for what, count in facts["fault_kinds"].items()):
      faults.append(f"- {release.name}: {_plain(kinds)}")
      faults += [f"  - {_plain(f'{below(path)}: {what}')}" for path, what in facts["faults"]]
  options = json.dumps(msgspec.to_builtins(recipe, enc_hook=str), indent=2, ensure_ascii=False)
  sections = [
    f"# opus_bitext/{recipe.name}",
    recipe.description.strip(),
    "Each example has the features `source`, `target`, `source_language`, `target_language` and "
    "`corpus`. Each language pair has its own splits, such as `train_deu_eng`.",
    "## Text pairs",
    _table(["split", "shards", "pairs", "bytes"], splits),
    "## Sources",
    "The licenses are in the archives (LICENSE, README) and at opus.nlpl.eu.",
    _table(["corpus", "version", "languages", "file", "bytes"], sources),
    "## Excluded pairs",
    "The columns count the pairs read, the pairs excluded (by the first reason that applied), the "
    "pairs kept, and the pairs selected for training and validation within the recipe's caps.",
    _counts(report),
    "## Held out for evaluation",
    "A pair is excluded if either text is in an evaluation set, ignoring case, punctuation and "
    "spaces. A sentence in several evaluation sets counts for each set.",
    _table(["evaluation set", "sentences", "pairs excluded"], held_out),
    "## Targets and results",
    _table(["languages", "target", "available", "obtained", "share"], goals)
    if goals
    else "The recipe has no targets.",
    "## Faults in the sources",
    "\n".join(faults) or "None.",
    "## Recipe",
    textwrap.indent(options, "    "),
  ]
  return "\n\n".join(filter(None, sections)) + "\n"


def _counts(report: Report) -> str:
  """Returns a table of how many pairs each filter dropped, by language pair and corpus."""
  columns = [stages.READ, *stages.REASONS, stages.KEPT]
  counted: dict[recipes.Cell, dict[str, int]] = {}
  for release in report.releases:
    cell = (report.recipe.pair_name(*release.pair), release.corpus)
    counts = counted.setdefault(cell, dict.fromkeys(columns, 0))
    for name, count in report.cleaned[release.name]["counts"].items():
      counts[name] += count
  for cell, merged in report.merged.items():
    # The merge stage also drops duplicates, so its count of kept pairs replaces the earlier count.
    counted[cell] |= {name: merged[name] for name in merged if name != stages.READ}
  used = [name for name in columns if any(counts[name] for counts in counted.values())]
  rows: list[list[Any]] = [
    [*cell, *(counts[name] for name in used), *report.selected[cell]]
    for cell, counts in sorted(counted.items())
  ]
  rows.append(["all", "", *(sum(row[i] for row in rows) for i in range(2, len(used) + 4))])
  header = ["languages", "corpus", *(name.replace("_", " ") for name in used)]
  return _table([*header, "training", "validation"], rows)


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
  lines = (
    [f"{x:,}" if isinstance(x, int) else _plain(str(x)).replace("|", "\\|") for x in line]
    for line in (header, ["---"] * len(header), *rows)
  )
  return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _plain(content: str) -> str:
  """Collapses untrusted text to one line and escapes characters that could open an HTML tag."""
  return " ".join(content.split()).replace("<", "&lt;")
