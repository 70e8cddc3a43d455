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
  encoding: Backend,
  workers: GpuWorkers,
) -> None:
  """Evaluate encoders on your own files or on benchmarks.

  Args:
    sts: Your scored sentence pairs (score TAB first sentence TAB second sentence). The metrics are
      correlations.
    bitext: Your bitexts (TSV, JSONL, TMX or Moses files), preferably with language codes in the
      file names, such as my.de-en.tsv. The metrics are accuracy and xSIM in both directions.
    retrieval: Your queries, each with the text to find (query TAB text, or .jsonl files with the
      keys query and text). The metrics are accuracy, MRR, recall and nDCG.
    suite: Benchmarks (see --list; default: all).
    mteb: MTEB tasks or benchmarks, such as STS22.v2 or "MTEB(Multilingual, v2)". The package mteb
      downloads the data, and the results are written in its format.
    data: Data folder with one folder per benchmark (see --list).
    out: Output folder. Finished benchmarks are skipped. If you give several encoders, the results
      for each encoder are in a subfolder named after the last component of the encoder's path.
    name: Name of the encoder in reports, if you give only one encoder (default: its path).
    seen: Languages of the encoder's training data (default: from its encoder.json).
    max_length: Maximum tokens per text; longer texts are cut (default: the encoder's maximum).
    dimensions: Also evaluate vectors truncated to their first N dimensions, for encoders trained
      with MATRYOSHKA_DIMS. Texts are embedded only once.
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
    for benchmark in benchmarks.BENCHMARKS.values():
      paths = ", ".join(f"ROOT/{folder}" for folder in benchmark.files.folders)
      print(f"{benchmark.name}: {benchmark.title}\n  {paths}: {benchmark.files.layout}\n")
    print("`vmsst data download evaluation --list` shows where the files come from.")
    return
  if not encoder or out is None:
    missing = "--out" if encoder else "ENCODER, before all options,"
    raise errors.InputError(f"{missing} is missing; give it, or --list")
  files = (("sts", sts), ("bitext", bitext), ("retrieval", retrieval))
  user_files = {kind: paths for kind, paths in files if paths}
  if sum(map(bool, (user_files, mteb, data))) != 1 or (suite and not data) or (mteb and dimensions):
    raise errors.InputError(
      "choose one: --data (with or without --suite), --mteb (without --dimensions), or your own "
      "files (--sts, --bitext, --retrieval)"
    )
  folders = {os.path.join(out, os.path.basename(os.path.abspath(x))): x for x in encoder}
  if len(encoder) == 1:
    folders = {out: encoder[0]}
  elif name or len(folders) < len(encoder):
    raise errors.InputError(
      "for several encoders, omit --name and give paths with different last components, or "
      "evaluate the encoders one by one"
    )
  if mteb:
    storage.check_local(out, "the results of MTEB")
    mteb_tasks = mteb_models.get_tasks(mteb)
  else:
    root, user_benchmarks = storage.path(data or ""), own_files.benchmarks(**user_files)
    selection = user_benchmarks or benchmarks.get_benchmarks(suite or ["all"])
    digests = {x.name: x.files.digest(root) for x in selection}
    for benchmark in user_benchmarks:  # Report errors in the files before opening encoders.
      benchmark.read(root)
  engine = engines.Local() if mteb else workers.create()
  for code in seen or ():
    languages.language(code)
  failures = []
  for folder, path in folders.items():
    source = encoding.open(path, max_length=max_length)
    model = source.open()
    label = name or (source.identity["name"] if folder == out else os.path.basename(folder))
    if mteb:
      for title, tasks in mteb_tasks.items():
        scores = mteb_models.evaluate(model, tasks, folder, name=label)
        mean = {f"mean of {title}": sum(scores.values()) / len(scores)} if len(scores) > 1 else {}
        for task, score in (scores | mean).items():
          print(f"{task:48}{score:8.2f}")
      continue
    codes = seen or getattr(model, "languages", None)
    results = evaluation_job.evaluate(
      selection,
      root,
      digests,
      model,
      label,
      folder,
      seen=None if codes is None else {languages.language(code) for code in codes},
      engine=engine,
      report=progress_bar.note,
      load=source.load,
      dimensions=dimensions or [],
      search=device_search.search,
    )
    print(format_table(results))
    results_path = storage.path(folder) / results_files.NAME
    print(f"{results_path}; `vmsst report {folder}` shows all results")
    if failed := results["failed"]:
      count = f"{len(failed)} of {len(selection)} benchmarks failed"
      failures.append(f"{count}: {', '.join(failed)}; see {results_path} for the reasons")
  if failures:
    raise errors.InputError("; ".join(failures))


def format_table(results: "Results") -> str:
  """Formats the averages of all benchmarks, and lists failed, absent and missing benchmarks.

  "first 64" marks averages for vectors truncated to 64 dimensions.
  """
  rows = []
  for name, scores in results["benchmarks"].items():
    rows += [f"{name:23} {key:48}{value:8.2f}" for key, value in scores["summary"].items()]
    for cut in scores.get("dimensions", [])[:-1]:  # The last item is for full vectors.
      title = f"first {cut['dimension']}"
      rows += [f"{name:23} {f'{key}, {title}':48}{x:8.2f}" for key, x in cut["summary"].items()]
    if missing := scores["missing"]:
      rows.append(f"{name:23} missing: {errors.some(missing)}")
  rows += [f"{name:23} failed: {reason}" for name, reason in results["failed"].items()]
  rows += [f"{name:23} absent: {reason}" for name, reason in results["absent"].items()]
  return "\n".join(rows)


def report(
  folders: list[Annotated[str, Argument("DIR", role="input")]], *, out: OutputFolder
) -> None:
  """Write a report with tables and figures that compare results with published numbers.

  Args:
    folders: Output folders of `vmsst eval`.
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
