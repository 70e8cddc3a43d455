"""Creates the HTML page for `vmsst report`: tables and figures, with published numbers."""

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
"""Results of one benchmark, by encoder."""

_MAX_ROWS = 400  # Tables with more rows would be hard to read.

Cells = dict[tuple[str, str], str]  # cell texts by row name and column name


@dataclasses.dataclass(frozen=True)
class Table:
  """A table with text cells.

  Attributes:
    title: Title of the table.
    header: Heading of the column with the row names, followed by the other column names.
    rows: The cells of each row, by row name.
  """

  title: str
  header: list[str]
  rows: dict[str, list[str]]


@dataclasses.dataclass(frozen=True)
class Section:
  """A section of the report; `notes` explain which numbers are not comparable."""

  title: str
  notes: list[str] = dataclasses.field(default_factory=list)
  tables: list[Table] = dataclasses.field(default_factory=list)
  figures: list[plots.Image] = dataclasses.field(default_factory=list)


def html(folders: Iterable[str | os.PathLike[str]]) -> str:
  """Returns a report as a self-contained HTML page.

  The report shows published numbers next to numbers measured with the same metric and data.

  Args:
    folders: Output folders from `vmsst eval`, local or in an object store.

  Raises:
    InputError: If a folder contains no valid results, or the extra `report` is not installed.
  """
  with errors.requires("report", "a report"):
    import jinja2

    importlib.import_module("matplotlib")
  results = {
    folder: results_files.read_results(folder / results_files.NAME)
    for folder in dict.fromkeys(map(storage.path, folders))
  }
  names = [x["encoder"]["name"] for x in results.values()]
  by_encoder = {
    name if names.count(name) == 1 else f"{name} ({folder})": x
    for name, (folder, x) in zip(names, results.items(), strict=True)
  }
  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent),
    autoescape=True,
    trim_blocks=True,
    undefined=jinja2.StrictUndefined,
  )
  template = environment.get_template("report.html.j2")
  return template.render(encoders=by_encoder, sections=sections(by_encoder))


def sections(by_encoder: Mapping[str, results_files.Results]) -> list[Section]:
  """Returns all sections of the report.

  Args:
    by_encoder: Results by encoder name.
  """
  by_benchmark: dict[str, dict[str, results_files.BenchmarkResults]] = {}
  score = {"title": "Overall Score of the VMSST paper", "missing": [], "results": []}
  for encoder, results in by_encoder.items():
    if summary := papers.overall_score(results):
      by_benchmark.setdefault("score", {})[encoder] = {**score, "summary": summary}  # type: ignore
  for encoder, results in by_encoder.items():
    for name, scored in results["benchmarks"].items():
      by_benchmark.setdefault(name, {})[encoder] = scored
  user_files = [by_benchmark.pop(name) for name in [*by_benchmark] if own_files.is_own(name)]
  user_tables = [
    _table(next(iter(x.values()))["title"], "System", _averages(x)) for x in user_files
  ]
  # The overview shows the main averages of each benchmark, as listed in papers.json. If papers.json
  # lists no main averages for a benchmark, the overview shows the benchmark's first average.
  overview: Cells = {}
  for name, benchmark_results in by_benchmark.items():
    main = [average for benchmark, average in papers.content()["main"] if benchmark == name]
    for encoder, scored in benchmark_results.items():
      summary = scored["summary"]
      averages = [x for x in summary if x.removesuffix(suite.INCOMPLETE) in main]
      for average in averages or [*summary][:1]:
        overview[f"{scored['title']}: {average}", encoder] = f"{summary[average]:.2f}"
  report = [
    Section("Your files", tables=user_tables),
    Section("Overview", tables=[_table("Main averages", "Benchmark", overview)]),
    *(_benchmark(name, x) for name, x in by_benchmark.items()),
  ]
  titles, text = papers.content()["papers"], str([section.tables for section in report])
  cited = [f"{key}: {title}" for key, title in titles.items() if f"({key}, Table" in text]
  report += [Section("Papers", cited), Section("What is missing", [*_gaps(by_encoder)])]
  return [
    section
    for section in report
    if section.notes or section.figures or any(x.rows for x in section.tables)
  ]


def _averages(by_encoder: ResultsByEncoder) -> Cells:
  """Returns the averages of a benchmark, with one row per encoder and vector size."""
  cells: Cells = {}
  for encoder, scored in by_encoder.items():
    summaries = {encoder: scored["summary"]}
    for cut in scored.get("dimensions", [])[:-1]:  # The last entry is for the full vectors.
      summaries[f"{encoder}, first {cut['dimension']} dimensions"] = cut["summary"]
    for row, summary in summaries.items():
      cells |= {(row, key): f"{value:.2f}" for key, value in summary.items()}
  return cells


def _benchmark(name: str, by_encoder: ResultsByEncoder) -> Section:
  section = Section(next(iter(by_encoder.values()))["title"])
  remarks = papers.content()["remarks"]
  section.notes.extend([remarks[name]] if name in remarks else [])
  results: dict[str, list[suite.Result]] = {}
  for encoder, scored in by_encoder.items():
    results[encoder] = suite.collect_results(scored)
    for text in results[encoder]:
      if text.arrays:
        title = section.title if text.name == agnosticism.ALL else text.name
        section.figures.extend(plots.error_figures(f"{encoder}, {title}", text))
    results[encoder] = [*_error_rows(results[encoder])]
  if len({frozenset(x.name for x in rows) for rows in results.values()}) > 1:
    note = "The encoders were evaluated on different sets, so their averages are not comparable."
    section.notes.append(note)
  cells = _averages(by_encoder)
  published = {average: papers.for_average(name, average) for _, average in cells}
  compared = {(row, average): x for (row, average), x in cells.items() if published[average]}
  section.notes.extend(
    dict.fromkeys(f"{x.source}: {x.note}" for y in published.values() for x in y if x.note)
  )
  title = "Averages, next to published averages"
  section.tables.append(_table("Averages", "System", cells))
  section.tables.append(_table(title, "System", compared | _paper_cells(published)))
  # Columns with measured numbers come first, then published numbers for the same languages.
  measured_columns: Cells = {}
  published_columns: Cells = {}
  for metric in dict.fromkeys(x for rows in results.values() for y in rows for x in y.metrics):
    published = {}
    for encoder, rows in results.items():
      for x in rows:
        if metric in x.metrics:
          measured_columns[x.name, f"{encoder}: {metric}"] = f"{x.metrics[metric]:.2f}"
          published[x.name] = papers.for_result(name, x.name, x.languages, metric)
    for (system, row), number in _paper_cells(published).items():
      published_columns[row, f"{system}: {metric}"] = number
  section.tables.append(_table("Results", "Set", measured_columns | published_columns))
  return section


def _error_rows(results: Sequence[suite.Result]) -> Iterator[suite.Result]:
  """Yields the rows of the results table; each cell of an error matrix becomes one row.

  For each error matrix, additional rows show means. The row "de->*" shows the mean error over
  German queries, and the row "*->de" shows the mean error over German candidates. If there are
  several texts, the row "de" shows, for each text, the mean error over all cells with German
  queries or German candidates, as in Table 5 of Chen and Avgustinova (2021). All German versions of
  a text have equal weight.
  """
  texts = [result for result in results if result.arrays]
  errors_by_code: dict[str, dict[str, list[float]]] = {}
  codes: dict[languages.Language, str] = {}  # Each language's first code in the results.
  for text in texts:
    error_LL = np.array(text.arrays["error"])
    source_L, target_L = map(agnosticism.mean_errors, (error_LL, error_LL.T))
    for row, (label, code) in enumerate(zip(text.arrays["labels"], text.languages, strict=True)):
      for pair_label, pair, error_L in (
        (f"{label}->*", (code, "*"), source_L),
        (f"*->{label}", ("*", code), target_L),
      ):
        name = agnosticism.result_name(text.name, pair_label)
        yield suite.Result(name, pair, {"error": float(error_L[row])})
      first = codes.setdefault(languages.language(code), code)
      by_text = errors_by_code.setdefault(first, {})
      by_text.setdefault(text.name, []).append(float(source_L[row] + target_L[row]) / 2)
  for code, by_text in errors_by_code.items() if len(texts) > 1 else ():
    means = {name: statistics.fmean(values) for name, values in by_text.items()}
    yield suite.Result(code, (code,), means | {"mean of texts": statistics.fmean(means.values())})
  for result in results:
    yield from agnosticism.pair_errors(result) if result.arrays else [result]


def _gaps(by_encoder: Mapping[str, results_files.Results]) -> Iterator[str]:
  """Yields notes about missing benchmarks, test sets and lists of training languages."""
  for encoder, results in by_encoder.items():
    for verb, reasons in (("failed", results["failed"]), ("was not run", results["absent"])):
      yield from (f"{encoder}: {name} {verb}: {reason}" for name, reason in reasons.items())
    for scored in results["benchmarks"].values():
      if scored["missing"]:
        yield f"{encoder}: {scored['title']} does not include {errors.some(scored['missing'])}"
    if results["seen"] is None and not all(map(own_files.is_own, results["benchmarks"])):
      yield f"{encoder}: its training languages are unknown; specify them with `vmsst eval --seen`"


def _table(title: str, corner: str, cells: Cells) -> Table:
  """Returns a table with rows and columns in the order in which they first occur in `cells`."""
  columns = list(dict.fromkeys(column for _, column in cells))
  rows = list(dict.fromkeys(row for row, _ in cells))
  if len(rows) > _MAX_ROWS:
    title += f" (the first {_MAX_ROWS} of {len(rows):,} rows; see results.json for all rows)"
  texts = {row: [cells.get((row, x), "–") for x in columns] for row in rows[:_MAX_ROWS]}
  return Table(title, [corner, *columns], texts)


def _paper_cells(numbers: Mapping[str, Iterable[papers.Number]]) -> Cells:
  """Returns the cells for published numbers: a row per system, a column per key of `numbers`."""
  return {
    # The value is not rounded here, because papers print only one or two decimals.
    (f"{number.system} ({number.source})", key): str(float(number.value))
    for key, values in numbers.items()
    for number in values
  }
