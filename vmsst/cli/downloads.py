"""`vmsst data download`."""

import argparse
import contextlib
import pathlib
import sys
from typing import TYPE_CHECKING, Any

from vmsst import errors
from vmsst.cli.command import Command

if TYPE_CHECKING:
  from vmsst.files import storage


def _arguments(parser: argparse.ArgumentParser) -> None:
  parser.add_argument(
    "--list", action="store_true", help="list all data with sizes and licenses, and exit"
  )
  kinds = parser.add_subparsers(dest="kind", metavar="{opus,evaluation}")
  opus = kinds.add_parser("opus", help="OPUS releases", description="Download OPUS releases.")
  add = opus.add_argument
  add("--corpus", nargs="+", metavar="NAME", help="corpora, such as Europarl or Europarl=v8")
  add(
    "--recipe",
    metavar="NAME",
    help="corpora and language pairs of a recipe (a name or a YAML file)",
  )
  add("--languages", nargs="+", metavar="XX-YY", help="language pairs (default: all)")
  evaluation = kinds.add_parser(
    "evaluation", help="evaluation sets", description="Download evaluation sets."
  )
  evaluation.add_argument(
    "sets", nargs="*", metavar="SET", help="names of evaluation sets (see --list), or all"
  )
  for each, what in (
    (opus, "CORPUS/VERSION/moses/de-en.txt.zip"),
    (evaluation, "the evaluation sets"),
  ):
    each.add_argument(
      "--output", metavar="ROOT", help=f"output folder (local, gs:// or s3://) for {what}"
    )
    each.add_argument(
      "--work",
      metavar="FOLDER",
      help="local folder for files until they are uploaded; required if --output is not local",
    )
    each.add_argument(
      "--list",
      action="store_true",
      default=argparse.SUPPRESS,
      help="list the files with sizes and licenses, and exit",
    )


def _run(args: argparse.Namespace) -> None:
  if args.kind == "opus":
    _opus(args)
  elif args.kind == "evaluation":
    _evaluation(args)
  elif args.list:
    _list_all()
  else:
    raise errors.InputError(
      "choose `vmsst data download opus`, `vmsst data download evaluation` or --list"
    )


def _list_all() -> None:
  from vmsst.downloads import evaluation_sets, opus

  print(f"OPUS ({opus.SITE}): `vmsst data download opus --corpus NAME --list` shows sizes.")
  print("Licenses differ by corpus and are in each archive (LICENSE, README).\n")
  print("\n\n".join(map(evaluation_sets.describe, evaluation_sets.catalog().values())))


def _opus(args: argparse.Namespace) -> None:
  from vmsst.downloads import fetch, opus

  if bool(args.corpus) == bool(args.recipe):
    raise errors.InputError("give either --corpus or --recipe")
  if args.recipe:
    corpora, keep = _recipe(args.recipe)
  else:
    named = (name.partition("=") for name in args.corpus)
    corpora = [(name, version or None) for name, _, version in named]
    keep = opus.anything
  if args.languages:
    chosen_pair, all_pairs = opus.one_of(args.languages), keep

    def keep(source: str, target: str) -> bool:
      return chosen_pair(source, target) and all_pairs(source, target)

  root, work = (None, None) if args.list else _places(args)
  with contextlib.ExitStack() as stack:
    progress = stack.enter_context(_Progress())
    fetcher = stack.enter_context(fetch.Fetcher(progress=progress.show))
    chosen = opus.releases(opus.api(fetcher, opus.API), corpora, keep)
    if not chosen:
      raise errors.InputError("OPUS has none of these language pairs in these corpora")
    for line in opus.describe(chosen):
      print(line)
    if root is not None:
      say = progress.say
      opus.download(fetcher, chosen, root, lambda release, _: say(str(release.path)), work=work)


def _recipe(name: str) -> tuple[list[tuple[str, str | None]], Any]:
  """Returns the corpora of a recipe and its filter of language pairs."""
  from vmsst import languages
  from vmsst.tasks.opus import recipes

  recipe = recipes.load(name)

  def keep(source: str, target: str) -> bool:
    first, second = map(languages.opus_language, (source, target))
    return first is not None and second is not None and recipe.wants_pair(first, second)

  return [(corpus.name, corpus.version) for corpus in recipe.corpora], keep


def _evaluation(args: argparse.Namespace) -> None:
  from vmsst.downloads import evaluation_sets, fetch

  if args.list:
    shown = evaluation_sets.named(args.sets or [evaluation_sets.ALL])
    print("\n\n".join(map(evaluation_sets.describe, shown)))
    return
  if not args.sets:
    raise errors.InputError("name the evaluation sets (see --list), or give all")
  chosen, (root, work) = evaluation_sets.choose(args.sets), _places(args)
  with _Progress() as progress, fetch.Fetcher(progress=progress.show) as fetcher:
    for each in chosen:
      progress.say(f"{each.name}: license {each.license}")
      evaluation_sets.download(fetcher, each, root, progress.say, work=work)


def _places(args: argparse.Namespace) -> "tuple[storage.Path, pathlib.Path | None]":
  """Returns the output folder, and the local folder for files until they are uploaded."""
  from vmsst.files import storage

  if args.output is None:
    raise errors.InputError("--output is missing; give the output folder")
  if storage.is_url(args.output) != bool(args.work):
    raise errors.InputError(
      f"{args.output} is not local; give a local folder with --work, for files until they are "
      "uploaded"
      if storage.is_url(args.output)
      else f"--work does not apply to the local folder {args.output}; omit it"
    )
  if args.work:
    storage.check_local(args.work, "--work")
  return storage.path(args.output), pathlib.Path(args.work) if args.work else None


class _Progress:
  """Shows the progress of a file on standard error, if that is a terminal."""

  def __init__(self) -> None:
    from vmsst.files import progress_bar

    self._bar = progress_bar.Bar(
      unit="B", unit_scale=True, disable=None, leave=False, file=sys.stderr
    )
    self._name = ""

  def __enter__(self) -> "_Progress":
    return self

  def __exit__(self, *error: object) -> None:
    self._bar.close()

  def show(self, name: str, done: int, total: int | None) -> None:
    """Shows a file's bytes."""
    if name != self._name:
      self._name = name
      self._bar.set_description(name, refresh=False)
    if done < self._bar.n or total != self._bar.total:
      self._bar.reset(total)
    self._bar.update(done - self._bar.n)

  def say(self, line: str) -> None:
    """Prints a line above the progress bar."""
    self._bar.write(line, file=sys.stdout)


COMMANDS: dict[tuple[str, ...], Command] = {
  ("data", "download"): Command(
    "list and download OPUS releases and evaluation sets",
    _arguments,
    _run,
    resumable=True,
    output_folder="output",
    urls=("output",),
  ),
}
"""Subcommands by the words that call them."""
