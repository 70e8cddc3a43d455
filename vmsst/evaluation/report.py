"""`vmsst report`: tables and figures of evaluations, next to published numbers."""

import dataclasses
import importlib
import os
import pathlib
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from vmsst import errors, languages, storage
from vmsst.evaluation import papers, plots, results_files, suite
from vmsst.evaluation.benchmarks import agnosticism, own_files

ResultsByEncoder = Mapping[str, results_files.BenchmarkResults]
"""Results of one benchmark by encoder."""

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
  figures: list[plots.Image] = dataclasses.field(default_factory=list)


def html(folders: Iterable[str | os.PathLike[str]]) -> str:
  """Returns a report as an HTML page that needs no other file.

  Published numbers are shown next to measured values of the same metric and the same sets.

  Args:
    folders: Output folders of `vmsst eval`, local or in object stores; each is read once.

  Raises:
    InputError: a folder has no valid results, or the extra `report` is not installed.
  """
  with errors.requires("report", "a report"):
    import jinja2

    importlib.import_module("matplotlib")
  results = {
    folder: results_files.read_results(folder / results_files.NAME)
    for folder in dict.fromkeys(map(storage.path, folders))
  }
  names = [each["encoder"]["name"] for each in results.values()]
  evaluated = {
    name if names.count(name) == 1 else f"{name} ({folder})": each
    for name, (folder, each) in zip(names, results.items(), strict=True)
  }
  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent),
    autoescape=True,
    trim_blocks=True,
    undefined=jinja2.StrictUndefined,
  )
  template = environment.get_template("report.html.j2")
  return template.render(encoders=evaluated, sections=sections(evaluated))


def sections(evaluated: Mapping[str, results_files.Results]) -> list[Section]:
  """Returns all sections, with tables of measured numbers before published ones."""
  by_benchmark: dict[str, dict[str, results_files.BenchmarkResults]] = {}
  score = {"title": "Overall Score of the VMSST paper", "missing": [], "results": []}
  for encoder, results in evaluated.items():
    if summary := papers.overall_score(results):
      by_benchmark.setdefault("score", {})[encoder] = {**score, "summary": summary}  # type: ignore
  for encoder, results in evaluated.items():
    for name, scored in results["benchmarks"].items():
      by_benchmark.setdefault(name, {})[encoder] = scored
  own = [by_benchmark.pop(name) for name in [*by_benchmark] if own_files.is_own(name)]
  own_tables = [_table(next(iter(x.values()))["title"], "System", _averages(x)) for x in own]
  main: Cells = {}  # The averages that papers compare, or the first one, of each benchmark.
  for name, of_encoder in by_benchmark.items():
    compared = [average for benchmark, average in papers.content()["main"] if benchmark == name]
    for encoder, scored in of_encoder.items():
      summary = scored["summary"]
      chosen = [x for x in summary if x.removesuffix(suite.INCOMPLETE) in compared]
      for average in chosen or [*summary][:1]:
        main[f"{scored['title']}: {average}", encoder] = f"{summary[average]:.2f}"
  listed = [
    Section("Your files", tables=own_tables),
    Section("Overview", tables=[_table("Main averages", "Benchmark", main)]),
    *(_benchmark(name, x) for name, x in by_benchmark.items()),
  ]
  titles, text = papers.content()["papers"], str([section.tables for section in listed])
  cited = [f"{key}: {title}" for key, title in titles.items() if f"({key}, Table" in text]
  listed += [Section("Papers", cited), Section("What is missing", [*_gaps(evaluated)])]
  return [
    section
    for section in listed
    if section.notes or section.figures or any(x.rows for x in section.tables)
  ]


def _averages(of_encoder: ResultsByEncoder) -> Cells:
  """Returns the averages of a benchmark by encoder, also those of cut vectors."""
  cells: Cells = {}
  for encoder, scored in of_encoder.items():
    summaries = {encoder: scored["summary"]}
    for cut in scored.get("dimensions", [])[:-1]:  # The last has whole vectors.
      summaries[f"{encoder}, first {cut['dimension']} dimensions"] = cut["summary"]
    for row, summary in summaries.items():
      cells |= {(row, key): f"{value:.2f}" for key, value in summary.items()}
  return cells


def _benchmark(name: str, of_encoder: ResultsByEncoder) -> Section:
  section = Section(next(iter(of_encoder.values()))["title"])
  remarks = papers.content()["remarks"]
  section.notes.extend([remarks[name]] if name in remarks else [])
  results: dict[str, list[suite.Result]] = {}
  for encoder, scored in of_encoder.items():
    results[encoder] = suite.collect_results(scored)
    for text in results[encoder]:
      if text.arrays:
        where = f"{encoder}, {section.title if text.name == agnosticism.ALL else text.name}"
        section.figures.extend(plots.error_figures(where, text))
    results[encoder] = [*_error_rows(results[encoder])]
  if len({frozenset(x.name for x in of_one) for of_one in results.values()}) > 1:
    note = "The encoders were evaluated on different sets: their averages are not comparable."
    section.notes.append(note)
  cells = _averages(of_encoder)
  numbers = {key: papers.for_average(name, key) for _, key in cells}
  compared = {place: text for place, text in cells.items() if numbers[place[1]]}
  section.notes.extend(
    dict.fromkeys(f"{x.source}: {x.note}" for of_key in numbers.values() for x in of_key if x.note)
  )
  title = "Averages, next to published ones"
  section.tables.append(_table("Averages", "System", cells))
  section.tables.append(_table(title, "System", compared | _paper_cells(numbers)))
  # All results, followed by the published numbers of the same languages.
  cells, others = {}, {}
  for metric in dict.fromkeys(x for of_one in results.values() for y in of_one for x in y.metrics):
    numbers = {}
    for encoder, of_one in results.items():
      for x in of_one:
        if metric in x.metrics:
          cells[x.name, f"{encoder}: {metric}"] = f"{x.metrics[metric]:.2f}"
          numbers[x.name] = papers.for_result(name, x.name, x.languages, metric)
    for (system, row), number in _paper_cells(numbers).items():
      others[row, f"{system}: {metric}"] = number
  section.tables.append(_table("Results", "Set", cells | others))
  return section


def _error_rows(results: Sequence[suite.Result]) -> Iterator[suite.Result]:
  """Yields the cells of error matrices, and the averages of rows ("de->*") and columns ("*->de").

  With several texts, also the errors of each language on each text, as in the paper's Table 5: the
  mean error over all ordered pairs with a text in this language, on either side; each of several
  versions in this language has the same weight.
  """
  texts = [result for result in results if result.arrays]
  errors_by_code: dict[str, dict[str, list[float]]] = {}
  codes: dict[languages.Language, str] = {}  # The first code of each language.
  for text in texts:
    error_LL = np.array(text.arrays["error"])
    source_L, target_L = map(agnosticism.mean_errors, (error_LL, error_LL.T))
    for row, (label, code) in enumerate(zip(text.arrays["labels"], text.languages, strict=True)):
      for pair, both, error_L in (
        (f"{label}->*", (code, "*"), source_L),
        (f"*->{label}", ("*", code), target_L),
      ):
        name = agnosticism.result_name(text.name, pair)
        yield suite.Result(name, both, {"error": float(error_L[row])})
      first = codes.setdefault(languages.language(code), code)
      of_text = errors_by_code.setdefault(first, {})
      of_text.setdefault(text.name, []).append(float(source_L[row] + target_L[row]) / 2)
  for code, of_text in errors_by_code.items() if len(texts) > 1 else ():
    means = {name: statistics.fmean(values) for name, values in of_text.items()}
    yield suite.Result(code, (code,), means | {"mean of texts": statistics.fmean(means.values())})
  for result in results:
    yield from agnosticism.pair_errors(result) if result.arrays else [result]


def _gaps(evaluated: Mapping[str, results_files.Results]) -> Iterator[str]:
  """Yields what each evaluation lacks: benchmarks, sets, training languages."""
  for encoder, results in evaluated.items():
    for what, of in (("failed", results["failed"]), ("was not run", results["absent"])):
      yield from (f"{encoder}: {name} {what}: {reason}" for name, reason in of.items())
    for scored in results["benchmarks"].values():
      if scored["missing"]:
        yield f"{encoder}: {scored['title']} lacks {errors.some(scored['missing'])}"
    if results["seen"] is None and not all(map(own_files.is_own, results["benchmarks"])):
      yield f"{encoder}: its training languages are unknown; give them to `vmsst eval --seen`"


def _table(title: str, corner: str, cells: Cells) -> Table:
  """Returns a table of the rows and columns of `cells`, in the order of their first cell."""
  columns = list(dict.fromkeys(column for _, column in cells))
  rows = list(dict.fromkeys(row for row, _ in cells))
  if len(rows) > _MOST_ROWS:
    title += f" (the first {_MOST_ROWS} of {len(rows):,}; results.json has all)"
  texts = {row: [cells.get((row, x), "–") for x in columns] for row in rows[:_MOST_ROWS]}
  return Table(title, [corner, *columns], texts)


def _paper_cells(numbers: Mapping[str, Iterable[papers.Number]]) -> Cells:
  """Returns published numbers, given by key, by system and key; systems are named with table."""
  return {
    (f"{number.system} ({number.source})", key): (
      # As many decimals as in the paper.
      f"{number.value:.{1 if round(number.value, 1) == number.value else 2}f}"
    )
    for key, values in numbers.items()
    for number in values
  }
