"""`vmsst eval` and `vmsst report`."""

import argparse
import functools
import sys

from vmsst import errors
from vmsst.cli import engines
from vmsst.cli.command import ENCODER_HELP, Command, at_least_1, backend_argument
from vmsst.files import storage


def _eval_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add("--encoder", metavar="PATH", help=ENCODER_HELP)
  add(
    "--suite",
    nargs="+",
    default=["all"],
    metavar="NAME",
    help="benchmarks (see --list; default: all)",
  )
  add(
    "--mteb",
    nargs="+",
    metavar="TASK",
    help="tasks of MTEB instead, such as STS22.v2, which mteb downloads; results in its format",
  )
  add(
    "--data",
    metavar="ROOT",
    help="data folder, with one folder per benchmark (local, gs:// or s3://; see --list)",
  )
  add(
    "--out",
    metavar="DIR",
    help="output folder (local, gs:// or s3://); finished benchmarks are skipped",
  )
  add("--name", help="name of the encoder in reports (default: its path)")
  add(
    "--seen",
    nargs="+",
    metavar="CODE",
    help="languages of the encoder's training data (default: from its encoder.json)",
  )
  add(
    "--max-length",
    type=at_least_1,
    metavar="N",
    help="maximum tokens per text; longer ones are cut (default: the encoder's own)",
  )
  add(
    "--dimensions",
    type=at_least_1,
    nargs="+",
    default=[],
    metavar="N",
    help="also evaluate vectors cut to their first N dimensions, for encoders trained with "
    "MATRYOSHKA_DIMS; texts are embedded once",
  )
  add(
    "--mkqa-questions",
    choices=("answered", "all"),
    default="answered",
    help="questions of MKQA that count: those with an answer, or all; those without an answer, a "
    "third, are wrong (default: %(default)s)",
  )
  add("--list", action="store_true", help="print the benchmarks and their files, and exit")
  backend_argument(parser)
  engines.add_arguments(parser)


def _eval(args: argparse.Namespace) -> None:
  from vmsst import languages
  from vmsst.evaluation import benchmarks, suite
  from vmsst.inference import loading
  from vmsst.search import device_search

  if args.list:
    print("\n\n".join(map(suite.describe_benchmark, benchmarks.BENCHMARKS.values())))
    return
  for name in ("encoder", "out") if args.mteb else ("encoder", "data", "out"):
    if getattr(args, name) is None:
      raise errors.InputError(f"--{name} is missing: give it, or --list")
  if args.mteb:
    _eval_mteb(args)
    return
  chosen = benchmarks.get_benchmarks(args.suite, mkqa_questions=args.mkqa_questions)
  engine = engines.chosen(args)
  engines.leave_accelerators(engine)
  how = {"max_length": args.max_length, "backend": args.backend}
  name, encoder = loading.open_encoder(args.encoder, **how)
  codes = args.seen or getattr(encoder, "languages", None)
  seen = None if codes is None else {languages.language(code) for code in codes}

  def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

  found = suite.evaluate(
    encoder,
    chosen,
    args.data,
    args.out,
    name=args.name or name,
    seen=seen,
    report=say,
    compare=device_search.compare,
    engine=engine,
    load=functools.partial(loading.open_encoder, name, **how),
    dimensions=args.dimensions,
  )
  path = storage.path(args.out) / suite.RESULTS_FILE
  print(suite.format_table(found))
  print(f"{path}; `vmsst report {args.out}` shows all results")
  if failed := found["failed"]:
    count = f"{len(failed)} of {len(chosen)} benchmarks failed"
    raise errors.InputError(f"{count}: {', '.join(failed)}; {path} has the reasons")


def _eval_mteb(args: argparse.Namespace) -> None:
  from vmsst.evaluation import mteb_models
  from vmsst.inference import loading

  storage.check_local(args.out, "the results of MTEB")
  if args.data or args.suite != ["all"]:
    raise errors.InputError("--data and --suite do not apply to --mteb; omit them")
  if args.dimensions:
    raise errors.InputError("--dimensions does not apply to --mteb; omit it")
  tasks = mteb_models.get_tasks(args.mteb)
  name, encoder = loading.open_encoder(
    args.encoder, max_length=args.max_length, backend=args.backend
  )
  scores = mteb_models.evaluate(encoder, tasks, args.out, name=args.name or name)
  for task, score in scores.items():
    print(f"{task:48}{score:8.2f}")


def _report_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add(
    "folders",
    nargs="+",
    metavar="DIR",
    help="output folder of `vmsst eval`, or a run's MODEL_DIR (local, gs:// or s3://)",
  )
  add(
    "--out",
    required=True,
    metavar="FOLDER",
    help="output folder for report.html (local, gs:// or s3://)",
  )


def _report(args: argparse.Namespace) -> None:
  from vmsst.evaluation import report

  print(report.write_report(args.folders, args.out))


COMMANDS: dict[tuple[str, ...], Command] = {
  ("eval",): Command(
    "evaluate an encoder on benchmarks",
    _eval_arguments,
    _eval,
    resumable=True,
    inputs=("encoder", "data"),
    output_folder="out",
    urls=("encoder", "data", "out"),
    patience=6 * 60,  # some metrics take long
  ),
  ("report",): Command(
    "write tables and figures of evaluations, next to published numbers",
    _report_arguments,
    _report,
    output_folder="out",
    urls=("out",),
  ),
}
