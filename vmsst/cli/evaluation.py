"""`vmsst eval` and `vmsst report`."""

import argparse
import pathlib
import sys

from vmsst import errors
from vmsst.cli.command import ENCODER_HELP, Command


def _eval_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add("--encoder", metavar="PATH", help=ENCODER_HELP)
  add(
    "--suite",
    nargs="+",
    default=["all"],
    metavar="NAME",
    help="benchmarks (see --list), or 'all' (default)",
  )
  add("--data", metavar="ROOT", help="folder of the benchmarks' folders")
  add("--out", metavar="DIR", help="folder to write to; what is done there is not done again")
  add(
    "--seen",
    nargs="+",
    metavar="CODE",
    help="languages that the encoder was trained on (default: as its run's encoder.json says)",
  )
  add("--list", action="store_true", help="print the benchmarks and where their files lie, and end")


def _eval(args: argparse.Namespace) -> None:
  from vmsst import languages
  from vmsst.evaluation import benchmarks, suite
  from vmsst.inference import loading
  from vmsst.search import device_search

  if args.list:
    print("\n\n".join(map(suite.describe, benchmarks.BENCHMARKS.values())))
    return
  for name in ("encoder", "data", "out"):
    if getattr(args, name) is None:
      raise errors.InputError(f"--{name} is missing")
  chosen = benchmarks.choose_benchmarks(args.suite)
  name, encoder = loading.open_encoder(args.encoder)
  codes = args.seen or getattr(encoder, "languages", None)
  seen = None if codes is None else {languages.language(code) for code in codes}

  def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

  found = suite.evaluate(
    encoder,
    chosen,
    args.data,
    args.out,
    name=name,
    seen=seen,
    report=say,
    engine=device_search.engine(),
  )
  print(suite.table(found))
  print(f"{pathlib.Path(args.out) / suite.RESULTS_FILE}; `vmsst report {args.out}` shows all of it")


def _report_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add("folders", nargs="+", metavar="DIR", help="what `vmsst eval --out DIR` has written")
  add("--out", required=True, metavar="FOLDER", help="folder to write report.{md,json,html} to")


def _report(args: argparse.Namespace) -> None:
  from vmsst.evaluation import report

  for path in report.write_report(args.folders, args.out):
    print(path)


COMMANDS: dict[tuple[str, ...], Command] = {
  ("eval",): Command("take an encoder through benchmarks", _eval_arguments, _eval, goes_on=True),
  ("report",): Command(
    "write tables and figures of evaluations, beside the published numbers",
    _report_arguments,
    _report,
  ),
}
