"""`vmsst eval` and `vmsst report`."""

import sys
from typing import Annotated, Literal

from vmsst import errors
from vmsst.cli.command import (
  Argument,
  Command,
  Encoder,
  InputFolder,
  Language,
  OutputFolder,
  Positive,
)
from vmsst.cli.shared_options import Backend, GpuWorkers
from vmsst.io import storage

Name = Annotated[str, Argument("NAME")]
"""A name."""


def evaluate(
  *,
  encoder: Encoder | None = None,
  suite: list[Name] | None = None,
  mteb: list[Annotated[str, Argument("TASK")]] | None = None,
  data: InputFolder | None = None,
  out: OutputFolder | None = None,
  name: Name | None = None,
  seen: list[Language] | None = None,
  max_length: Positive | None = None,
  dimensions: list[Positive] | None = None,
  mkqa_questions: Literal["answered", "all"] = "answered",
  list: bool = False,
  computing: Backend,
  engine: GpuWorkers,
) -> None:
  """Evaluate an encoder on benchmarks.

  Args:
    suite: Benchmarks (see --list; default: all).
    mteb: Tasks of MTEB instead, such as STS22.v2, which mteb downloads; results in its format.
    data: Data folder, with one folder per benchmark (see --list).
    out: Output folder; finished benchmarks are skipped.
    name: Name of the encoder in reports (default: its path).
    seen: Languages of the encoder's training data (default: from its encoder.json).
    max_length: Maximum tokens per text; longer ones are cut (default: the encoder's own).
    dimensions: Also evaluate vectors cut to their first N dimensions, for encoders trained with
      MATRYOSHKA_DIMS; texts are embedded once.
    mkqa_questions: Questions of MKQA that count: those with an answer, or all; those without an
      answer, a third, are wrong.
    list: Print the benchmarks and their files, and exit.
  """
  from vmsst import languages
  from vmsst.evaluation import benchmarks
  from vmsst.evaluation import suite as suites
  from vmsst.search import device_search

  if list:
    print("\n\n".join(map(suites.describe_benchmark, benchmarks.BENCHMARKS.values())))
    return
  if encoder is None or out is None:
    missing = "--encoder" if encoder is None else "--out"
    raise errors.InputError(f"{missing} is missing: give it, or --list")
  if mteb:
    if data or suite or dimensions:
      flags = "--dimensions does" if dimensions else "--data and --suite do"
      raise errors.InputError(f"{flags} not apply to --mteb; omit {'it' if dimensions else 'them'}")
    from vmsst.evaluation import mteb_models

    storage.check_local(out, "the results of MTEB")
    tasks = mteb_models.get_tasks(mteb)
    path, model, _ = computing.open(encoder, max_length=max_length)
    for task, score in mteb_models.evaluate(model, tasks, out, name=name or path).items():
      print(f"{task:48}{score:8.2f}")
    return
  if data is None:
    raise errors.InputError("--data is missing: give it, or --list")
  chosen = benchmarks.get_benchmarks(suite or ["all"], mkqa_questions=mkqa_questions)
  workers = engine.chosen()
  path, model, load = computing.open(encoder, max_length=max_length)
  codes = seen or getattr(model, "languages", None)
  evaluated = suites.evaluate(
    model,
    chosen,
    data,
    out,
    name=name or path,
    seen=None if codes is None else {languages.language(code) for code in codes},
    report=lambda line: print(line, file=sys.stderr, flush=True),
    compare=device_search.compare,
    engine=workers,
    load=load,
    dimensions=dimensions or [],
  )
  results = storage.path(out) / suites.RESULTS_FILE
  print(suites.format_table(evaluated))
  print(f"{results}; `vmsst report {out}` shows all results")
  if failed := evaluated["failed"]:
    count = f"{len(failed)} of {len(chosen)} benchmarks failed"
    raise errors.InputError(f"{count}: {', '.join(failed)}; {results} has the reasons")


def report(folders: list[Annotated[str, Argument("DIR")]], *, out: OutputFolder) -> None:
  """Write tables and figures of evaluations, next to published numbers.

  Args:
    folders: Output folder of `vmsst eval`, or a run's MODEL_DIR.
    out: Output folder for report.html.
  """
  from vmsst.evaluation import report

  print(report.write_report(folders, out))


COMMANDS: dict[tuple[str, ...], Command] = {
  # Some metrics take long.
  ("eval",): Command(evaluate, resumable=True, patience=6 * 60),
  ("report",): Command(report),
}
