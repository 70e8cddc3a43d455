"""`vmsst eval` and `vmsst report`."""

import os
from typing import TYPE_CHECKING, Annotated

from vmsst import errors, storage
from vmsst.cli.command import (
  Argument,
  Backend,
  Command,
  Encoder,
  GpuWorkers,
  InputFile,
  InputFolder,
  Language,
  OutputFolder,
  Positive,
)

if TYPE_CHECKING:
  from vmsst.evaluation.results_files import Results

Name = Annotated[str, Argument("NAME")]
"""A name."""


def evaluate(
  encoder: list[Encoder] | None = None,
  *,
  sts: list[InputFile] | None = None,
  bitext: list[InputFile] | None = None,
  retrieval: list[InputFile] | None = None,
  suite: list[Name] | None = None,
  mteb: list[Annotated[str, Argument("NAME")]] | None = None,
  data: InputFolder | None = None,
  out: OutputFolder | None = None,
  name: Name | None = None,
  seen: list[Language] | None = None,
  max_length: Positive | None = None,
  dimensions: list[Positive] | None = None,
  list: bool = False,
  computing: Backend,
  engine: GpuWorkers,
) -> None:
  """Evaluate encoders on your own files or on benchmarks.

  Args:
    sts: Your scored sentence pairs (score TAB first TAB second): correlations.
    bitext: Your bitexts (TSV, JSONL, TMX or Moses files), best with languages in their names, such
      as my.de-en.tsv: accuracy and xSIM in both directions.
    retrieval: Your queries, each with a text to find among all texts (query TAB text, or .jsonl
      with query and text): accuracy, MRR, recall and nDCG.
    suite: Benchmarks (see --list; default: all).
    mteb: Tasks or benchmarks of MTEB instead, such as STS22.v2 or "MTEB(Multilingual, v2)", which
      mteb downloads; results in its format.
    data: Data folder, with one folder per benchmark (see --list).
    out: Output folder; finished benchmarks are skipped. Several encoders get a folder in it each,
      named by the last part of their path.
    name: Name of a single encoder in reports (default: its path).
    seen: Languages of the encoder's training data (default: from its encoder.json).
    max_length: Maximum tokens per text; longer ones are cut (default: the encoder's own).
    dimensions: Also evaluate vectors cut to their first N dimensions, for encoders trained with
      MATRYOSHKA_DIMS; texts are embedded once.
    list: Print the benchmarks and their files, and exit.
  """
  from vmsst import languages
  from vmsst.cli import evaluation_job
  from vmsst.evaluation import benchmarks, mteb_models, results_files
  from vmsst.evaluation.benchmarks import own_files
  from vmsst.io import progress_bar
  from vmsst.jobs import engines
  from vmsst.search import device_search

  if list:
    for each in benchmarks.BENCHMARKS.values():
      places = ", ".join(f"ROOT/{folder}" for folder in each.files.folders)
      print(f"{each.name}: {each.title}\n  {places}: {each.files.layout}\n")
    print("`vmsst data download evaluation --list` shows where the files come from.")
    return
  if not encoder or out is None:
    missing = "--out" if encoder else "ENCODER, before all options,"
    raise errors.InputError(f"{missing} is missing: give it, or --list")
  files = (("sts", sts), ("bitext", bitext), ("retrieval", retrieval))
  own = {kind: paths for kind, paths in files if paths}
  if sum(map(bool, (own, mteb, data))) != 1 or (suite and not data) or (mteb and dimensions):
    raise errors.InputError(
      "give one of --data with --suite, --mteb without --dimensions, or your files with --sts, "
      "--bitext and --retrieval"
    )
  folders = {os.path.join(out, os.path.basename(os.path.abspath(x))): x for x in encoder}
  if len(encoder) == 1:
    folders = {out: encoder[0]}
  elif name or len(folders) < len(encoder):
    raise errors.InputError("the paths of several encoders must end differently; omit --name")
  if mteb:
    storage.check_local(out, "the results of MTEB")
    named_tasks = mteb_models.get_tasks(mteb)
  else:
    root, own_sets = storage.path(data or ""), own_files.benchmarks(**own)
    chosen = own_sets or benchmarks.get_benchmarks(suite or ["all"])
    digests = {x.name: x.files.digest(root) for x in chosen}
    for benchmark in own_sets:  # Errors in files are found before encoders are opened.
      benchmark.read(root)
  workers = engines.Local() if mteb else engine.create()
  for code in seen or ():
    languages.language(code)
  failures = []
  for folder, given_path in folders.items():
    source = computing.open(given_path, max_length=max_length)
    model = source.open()
    label = name or (source.identity["name"] if folder == out else os.path.basename(folder))
    if mteb:
      for title, tasks in named_tasks.items():
        scores = mteb_models.evaluate(model, tasks, folder, name=label)
        mean = {f"mean of {title}": sum(scores.values()) / len(scores)} if len(scores) > 1 else {}
        for shown, score in (scores | mean).items():
          print(f"{shown:48}{score:8.2f}")
      continue
    codes = seen or getattr(model, "languages", None)
    results = evaluation_job.evaluate(
      chosen,
      root,
      digests,
      model,
      label,
      folder,
      seen=None if codes is None else {languages.language(code) for code in codes},
      engine=workers,
      report=progress_bar.note,
      load=source.load,
      dimensions=dimensions or [],
      search=device_search.search,
    )
    print(format_table(results))
    place = storage.path(folder) / results_files.NAME
    print(f"{place}; `vmsst report {folder}` shows all results")
    if failed := results["failed"]:
      count = f"{len(failed)} of {len(chosen)} benchmarks failed"
      failures.append(f"{count}: {', '.join(failed)}; {place} has the reasons")
  if failures:
    raise errors.InputError("; ".join(failures))


def format_table(results: "Results") -> str:
  """Formats results: all averages, and what failed, is absent or missing.

  "first 64" follows the names of averages of vectors cut to 64 dimensions.
  """
  rows = []
  for name, scored in results["benchmarks"].items():
    rows += [f"{name:23} {key:48}{value:8.2f}" for key, value in scored["summary"].items()]
    for cut in scored.get("dimensions", [])[:-1]:  # The last has whole vectors.
      title = f"first {cut['dimension']}"
      rows += [f"{name:23} {f'{key}, {title}':48}{x:8.2f}" for key, x in cut["summary"].items()]
    if lacking := scored["missing"]:
      rows.append(f"{name:23} missing: {errors.some(lacking)}")
  rows += [f"{name:23} failed: {reason}" for name, reason in results["failed"].items()]
  rows += [f"{name:23} absent: {reason}" for name, reason in results["absent"].items()]
  return "\n".join(rows)


def report(
  folders: list[Annotated[str, Argument("DIR", role="input")]], *, out: OutputFolder
) -> None:
  """Write tables and figures of evaluations, next to published numbers.

  Args:
    folders: Output folder of `vmsst eval`.
    out: Output folder for report.html.
  """
  from vmsst.evaluation import report as reports
  from vmsst.jobs import outputs

  path = storage.path(out) / "report.html"
  outputs.write_text(path, reports.html(folders))
  print(path)


COMMANDS: dict[tuple[str, ...], Command] = {
  ("eval",): Command(evaluate, resumable=True),
  ("report",): Command(report),
}
