"""The content of a report: sections with notes, tables and figures, and tables as text."""

import dataclasses
import re
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from vmsst import languages
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import agnosticism as benchmarks
from vmsst.evaluation.benchmarks import agnosticism_results, averages, own_files
from vmsst.evaluation.metrics import agnosticism, clustering
from vmsst.evaluation.report import plots, published
from vmsst.evaluation.report.reading import Run

Found = Mapping[str, Mapping[str, Any]]
"""Results of one benchmark by encoder."""

_MOST_PANELS = 6
# Training metrics to plot, by prefix, as long as there are panels.
_TRAINING = ("loss", "nll/", "kl/", "mutual_information/", "accuracy", "token_accuracy/")


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


@dataclasses.dataclass(frozen=True)
class Section:
  """A section; `notes` say what its numbers are not comparable with."""

  title: str
  notes: list[str] = dataclasses.field(default_factory=list)
  tables: list[Table] = dataclasses.field(default_factory=list)
  figures: list[plots.Figure] = dataclasses.field(default_factory=list)


def sections(runs: Sequence[Run]) -> list[Section]:
  """Returns all sections, with tables of measured numbers before those with published ones.

  A published number is shown next to a measured value of the same metric and the same sets. Numbers
  of ablations are shown if the last part of an encoder's name has the key of their paper as a word,
  as in /runs/vmsst_24l/checkpoint_100000 or "EMS, no XTR".

  Raises:
    InputError: results are not those that `vmsst eval` writes.
  """
  evaluated = {run.name: _with_score(run.results) for run in runs if run.results is not None}
  by_benchmark: dict[str, dict[str, Mapping[str, Any]]] = {}
  for encoder, results in evaluated.items():
    for name, section in results["benchmarks"].items():
      by_benchmark.setdefault(name, {})[encoder] = {"seen": results.get("seen"), **section}
  own = [by_benchmark.pop(name) for name in [*by_benchmark] if own_files.is_own(name)]
  own_tables = [table(next(iter(x.values()))["title"], "System", _averages(x)) for x in own]
  names = (re.sub(r"/checkpoint_\d+/?$", "", x["encoder"]["name"]) for x in evaluated.values())
  families = re.findall("[a-z]+", " ".join(name.split("/")[-1].lower() for name in names))
  made = [
    Section("Your files", tables=own_tables),
    _overview(by_benchmark),
    *(_benchmark(name, found, families) for name, found in by_benchmark.items()),
    Section("Training", figures=_training(runs)),
  ]
  papers, text = published.content()["papers"], str([section.tables for section in made])
  cited = [f"{key}: {title}" for key, title in papers.items() if f"({key}, Table" in text]
  made += [Section("Papers", cited), Section("What is missing", [*_missing(evaluated)])]
  return [
    section
    for section in made
    if section.notes or section.figures or any(x.rows for x in section.tables)
  ]


def _with_score(results: Mapping[str, Any]) -> Mapping[str, Any]:
  """Returns results with the overall Score, if it is complete, as the first benchmark."""
  score = averages.overall_score(results)
  if not score:
    return results
  title = "Overall Score of the VMSST paper"
  scored = {"title": title, "summary": score, "missing": [], "options": {}, "results": []}
  return {**results, "benchmarks": {"score": scored, **results["benchmarks"]}}


def _overview(by_benchmark: Mapping[str, Found]) -> Section:
  """Returns the averages that papers compare, or the first one, of each benchmark."""
  cells: Cells = {}
  for benchmark, of_encoder in by_benchmark.items():
    main = [name for key, name in published.content()["main"] if key == benchmark]
    for encoder, scored in of_encoder.items():
      summary = scored["summary"]
      names = [x for x in summary if x.removesuffix(averages.INCOMPLETE) in main]
      for name in names or [*summary][:1]:
        cells[f"{scored['title']}: {name}", encoder] = f"{summary[name]:.2f}"
  return Section("Overview", tables=[table("Main averages", "Benchmark", cells)])


def _averages(of_encoder: Found) -> Cells:
  """Returns the averages of a benchmark by encoder, also those of cut vectors."""
  cells: Cells = {}
  for encoder, scored in of_encoder.items():
    summaries = {encoder: scored["summary"]}
    for cut in (scored.get("dimensions") or [])[:-1]:  # The last has whole vectors.
      summaries[f"{encoder}, first {cut['dimension']} dimensions"] = cut["summary"]
    for row, summary in summaries.items():
      cells |= {(row, key): f"{value:.2f}" for key, value in summary.items()}
  return cells


def _benchmark(name: str, of_encoder: Found, papers: Collection[str]) -> Section:
  section = Section(next(iter(of_encoder.values()))["title"], [*_notes(name, of_encoder)])
  results = {encoder: suite.collect_results(scored) for encoder, scored in of_encoder.items()}
  if name in benchmarks.NAMES:
    section.figures.extend(_error_figures(section.title, results))
    results = {x: [*_error_averages(scored), *scored] for x, scored in results.items()}
  cells = _averages(of_encoder)
  numbers = {key: published.for_average(name, key, papers) for _, key in cells}
  numbers |= published.seen_and_unseen(name, of_encoder)
  compared = {place: text for place, text in cells.items() if numbers[place[1]]}
  section.notes.extend(
    dict.fromkeys(f"{x.source}: {x.note}" for scored in numbers.values() for x in scored if x.note)
  )
  title = "Averages, next to published ones"
  section.tables.append(table("Averages", "System", cells))
  section.tables.append(table(title, "System", compared | published_cells(numbers)))
  section.tables.append(table("Results", "Set", _results(name, results, papers)))
  return section


def _notes(name: str, of_encoder: Found) -> Iterator[str]:
  """Yields when the numbers of a benchmark and its options are comparable with others."""
  remarks = published.content()["remarks"]
  if name in remarks:
    yield remarks[name]
  for encoder, scored in of_encoder.items():
    for option, choice in scored["options"].items():
      if remark := remarks.get(f"{option} {choice}"):
        yield f"{encoder}: {remark}"
  if len({frozenset(x["name"] for x in scored["results"]) for scored in of_encoder.values()}) > 1:
    yield "The encoders were evaluated on different sets: their averages are not comparable."


def _results(
  name: str, of_encoder: Mapping[str, Sequence[suite.Result]], papers: Collection[str]
) -> Cells:
  """Returns all results, followed by the published numbers of the same languages."""
  cells: Cells = {}
  others: Cells = {}
  for metric in dict.fromkeys(
    x for scored in of_encoder.values() for y in scored for x in y.metrics
  ):
    numbers = {}
    for encoder, scored in of_encoder.items():
      for x in scored:
        if metric in x.metrics:
          cells[x.name, f"{encoder}: {metric}"] = f"{x.metrics[metric]:.2f}"
          numbers[x.name] = published.for_result(name, x.name, x.languages, metric, papers)
    for (system, row), text in published_cells(numbers).items():
      others[row, f"{system}: {metric}"] = text
  return cells | others


def _error_averages(results: Sequence[suite.Result]) -> Iterator[suite.Result]:
  """Yields the averages of rows ("de->*") and columns ("*->de") of error matrices, as results.

  With several texts, also the errors of each language on each text, as in the paper's Table 5.
  """
  matrices = agnosticism_results.matrices(results)
  for matrix in matrices:
    edges = agnosticism.averages(matrix.error_LL)
    for index, (label, code) in enumerate(zip(matrix.labels, matrix.languages, strict=True)):
      for pair, codes, edge_L in (
        (f"{label}->*", (code, "*"), edges.source_L),
        (f"*->{label}", ("*", code), edges.target_L),
      ):
        name = f"{matrix.text} {pair}".strip()
        yield suite.Result(name, codes, {"error": float(edge_L[index])})
  if len(matrices) > 1:
    for code, of_text in agnosticism_results.language_errors(matrices).items():
      mean = {"mean of texts": statistics.fmean(of_text.values())}
      yield suite.Result(code, (code,), of_text | mean)


def _error_figures(
  title: str, of_encoder: Mapping[str, Sequence[suite.Result]]
) -> Iterator[plots.Figure]:
  """Yields a heat map of the errors on each text, a tree of the languages, and one sentence."""
  for encoder, results in of_encoder.items():
    for matrix in agnosticism_results.matrices(results):
      if len(matrix.labels) > 2:  # Two make no tree.
        tree_M4 = clustering.tree(clustering.distances(matrix.error_LL))
        order = clustering.leaf_order(tree_M4)
        labels = [matrix.labels[row] for row in order]
        error_LL = matrix.error_LL[np.ix_(order, order)]
        where = f"{encoder}, {matrix.text or title}"
        yield plots.heat_map(f"Errors: {where}", error_LL, labels)
        families = _branches(matrix.languages)
        yield plots.dendrogram(f"Languages by error: {where}", tree_M4, matrix.labels, families)
    for sentence in agnosticism_results.sentence_figures(results):
      where = f"{encoder}, {sentence.text or title}, line {sentence.line}"
      families = _branches(sentence.languages)
      yield plots.sentence(f"One sentence in all versions: {where}", sentence, families)


def _branches(codes: tuple[str, ...]) -> list[str]:
  return [languages.language(code).branch for code in codes]


def _training(runs: Sequence[Run]) -> list[plots.Figure]:
  """Returns the curves of training and of evaluations during training."""
  names = list(dict.fromkeys(name for run in runs for name in run.training))
  trained = [name for name in names if name.startswith(_TRAINING)]
  evaluated = [name for name in names if ": " in name and "timing/" not in name]
  averages = [name for name in evaluated if name.endswith("average")] or evaluated
  panels = {
    name: {run.name: run.training[name] for run in runs if name in run.training}
    for name in trained[:_MOST_PANELS] + averages[:_MOST_PANELS]
  }
  return [plots.curves("Metrics over training steps", panels)] if panels else []


def _missing(evaluated: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
  """Yields what each evaluation lacks: benchmarks, sets, training languages."""
  for encoder, results in evaluated.items():
    for what, of in (("failed", results["failed"]), ("was not run", results["absent"])):
      yield from (f"{encoder}: {name} {what}: {reason}" for name, reason in of.items())
    for scored in results["benchmarks"].values():
      if scored["missing"]:
        yield f"{encoder}: {scored['title']} lacks {suite.shortened(scored['missing'])}"
    if results.get("seen") is None and not all(map(own_files.is_own, results["benchmarks"])):
      yield f"{encoder}: its training languages are unknown; give them to `vmsst eval --seen`"


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
    for key, values in numbers.items()
    for number in values
  }
