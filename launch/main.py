"""The `t5x` command, which runs training, evaluation and inference as configured in gin files.

This module imports nothing slow before the command line is parsed, so that `--help` is fast.
"""

from vmsst.jobs import command_process

with command_process.default_interrupt():
  import argparse
  import contextlib
  import gc
  import importlib
  import logging as standard_logging
  import os
  import re
  import sys
  from collections.abc import Iterator, Sequence
  from typing import Any

  from vmsst.arrays import devices
  from vmsst.errors import InputError, requires
  from vmsst.paths import gin_dir
  from vmsst.train import distributed

# Subcommands: (name of the function in gin files, module in `vmsst.train`, help).
COMMANDS = {
  "train": ("train", "train", "train a model"),
  "eval": ("evaluate", "eval", "evaluate checkpoints"),
  "infer": ("infer", "infer", "write predictions, scores or embeddings of a task"),
}

# Minutes without progress after which a command ends. Compiling a training step shows no progress,
# but takes less time.
_PATIENCE = 60.0

_EPILOG = """\
Gin bindings: --gin.NAME=VALUE sets a macro (--gin.TRAIN_STEPS=1000) or a parameter
(--gin.train.eval_period=500, --gin.train/utils.DatasetConfig.seed=1). A string needs a second pair
of quotes: --gin.MODEL_DIR="'/tmp/run'". Later files and bindings override earlier ones.

Multi-process runs: start the same command in every process. Processes of a SLURM step, Open MPI or
a TPU pod find each other. Otherwise, set --coordinator_address, --process_count, --process_index.
"""


def _parser() -> argparse.ArgumentParser:
  style: dict[str, Any] = {
    "epilog": _EPILOG,
    "formatter_class": argparse.RawDescriptionHelpFormatter,
  }
  parser = argparse.ArgumentParser(prog="t5x", **style)
  commands = parser.add_subparsers(dest="command", required=True, metavar="{train,eval,infer}")
  for name, (_, _, text) in COMMANDS.items():
    add = commands.add_parser(name, help=text, description=text, **style).add_argument
    add("--gin_file", action="append", default=[], metavar="FILE", help="gin file; repeatable")
    add("--gin_bindings", action="append", default=[], metavar="'NAME = VALUE'", help="repeatable")
    add("--gin_search_paths", default=".", help="comma-separated gin folders (default: .)")
    add("--tfds_data_dir", metavar="FOLDER", help="folder of TFDS datasets")
    add("--seqio_additional_cache_dirs", default="", help="comma-separated cache folders")
    add(
      "--dry_run",
      nargs="?",
      const="sizes",
      choices=("sizes", "memory"),
      help="train only: print sizes, shardings and FLOPs, then exit; --dry_run=memory also prints "
      "the memory that XLA allocates",
    )
    add("--topology", help="devices for --dry_run, such as h100:8 or v5e:2x4 (need not be present)")
    add("--multiprocess_gpu", action="store_true", help="let JAX find the processes of the run")
    for option, kind, text, variable in (
      ("--coordinator_address", str, "HOST:PORT of process 0", "JAX_COORDINATOR_ADDRESS"),
      ("--process_count", int, "number of processes", "JAX_NUM_PROCESSES"),
      ("--process_index", int, "index of this process, from 0", "JAX_PROCESS_ID"),
    ):
      value = os.environ.get(variable) or None
      add(option, type=kind, metavar="VALUE", default=value, help=f"{text} (default: {variable})")
    timeout = distributed.INITIALIZATION_SECONDS
    add("--initialization_timeout", type=int, default=timeout, metavar="SECONDS", help="to connect")
    add("--verbose", action="store_true", help="show log messages and stack traces")
    if name == "infer":
      add("--shard_id", type=int, metavar="N", help="shard of the data to process")
  return parser


def main(arguments: Sequence[str] | None = None) -> None:
  """Runs the `t5x` command. An error that the user can fix becomes a message and exit status 1.

  If `arguments` is omitted, this function uses the arguments of this process and re-executes the
  process with huge pages.
  """
  owns_process = arguments is None
  arguments = list(sys.argv[1:] if arguments is None else arguments)
  with command_process.process("t5x", owns_process=owns_process) as process:
    process.verbose = "--verbose" in arguments
    # argparse does not accept options with arbitrary names, so --gin.NAME=VALUE becomes
    # --gin_bindings=NAME = VALUE.
    binding = re.compile(r"(?s)^--gin\.([^=]*)=?(.*)")
    options = _parser().parse_args([binding.sub(r"--gin_bindings=\1 = \2", x) for x in arguments])
    devices.enable_compilation_cache()
    if owns_process:
      command_process.restart_with_huge_pages()
    # Gin files import the user's task modules, so add the current folder to `sys.path`. Add it at
    # the end, so that a user's file never hides a library.
    sys.path.append(os.getcwd())
    from vmsst.io import progress_bar  # a slow import that `--help` does not need

    with progress_bar.watchdog(_PATIENCE):
      _run(options)
  if process.status:
    sys.exit(process.status)


def _run(options: argparse.Namespace) -> None:
  """Parses the gin files, joins a multi-process run and calls the function of the subcommand."""
  if not options.gin_file:
    raise InputError(f"no gin file; set --gin_file (shipped files are in {gin_dir()})")
  if (options.dry_run and options.command != "train") or (options.topology and not options.dry_run):
    raise InputError("use --dry_run only with `t5x train`, and --topology only with --dry_run")
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "0" if options.verbose else "3")
  from absl import flags, logging

  flags.FLAGS.mark_as_parsed()  # Otherwise absl warns that flags are not parsed yet.
  logging.set_verbosity(logging.INFO if options.verbose else logging.WARNING)
  logging.set_stderrthreshold("info" if options.verbose else "warning")
  if not options.verbose:  # hide SeqIO's warnings about feature lengths
    log = standard_logging.getLogger("absl")
    log.addFilter(lambda record: not record.getMessage().startswith("Given sequence lengths"))
  try:
    with contextlib.ExitStack() as stack:
      gc.disable()  # During the imports, garbage collection would take seconds.
      stack.callback(gc.enable)
      notes = contextlib.nullcontext() if options.verbose else _discarded_stderr()
      with requires("train", "t5x"), notes:
        import gin
        import seqio
        import tensorflow as tf

        tf.config.set_visible_devices([], "GPU")  # leaves the GPU memory to JAX
      from vmsst.train import gin_utils

      functions = {
        command: getattr(importlib.import_module(f"vmsst.train.{module}"), name)
        for command, (name, module, _) in COMMANDS.items()
      }
      if options.dry_run:
        from vmsst.train import dry_run, partitioning

        if options.topology:
          devices = dry_run.devices(options.topology)
          partitioning.all_devices = lambda: devices
        functions["train"] = dry_run.train_function(options.dry_run == "memory")
      import jax  # noqa: F401  (sets environment variables if there are TPUs)

      stack.enter_context(
        distributed.join(
          options.coordinator_address,
          options.process_count,
          options.process_index,
          multi_process=options.multiprocess_gpu,
          initialization_timeout=options.initialization_timeout,
        )
      )
      if options.tfds_data_dir:
        seqio.set_tfds_data_dir_override(options.tfds_data_dir)
      if options.seqio_additional_cache_dirs:
        seqio.add_global_cache_dirs(options.seqio_additional_cache_dirs.split(","))
      # Gin files bind `__main__.<function>`. The functions for training, evaluation and inference
      # are all registered, so that `t5x eval` can parse the gin files of a training run.
      for function in functions.values():
        setattr(sys.modules["__main__"], function.__name__, function)
        gin.register(function, "__main__")
      bindings = list(options.gin_bindings)
      if getattr(options, "shard_id", None) is not None:
        bindings.append(f"infer.shard_id = {options.shard_id}")
      search_paths = [*options.gin_search_paths.split(","), str(gin_dir())]
      gin_utils.parse_gin_flags(
        search_paths, options.gin_file, bindings, finalize_config=not options.dry_run
      )
      if options.dry_run:
        dry_run.forget_data()
      gc.freeze()
      gc.enable()
      gin.get_configurable(functions[options.command])()
  except (InputError, TypeError, RuntimeError) as error:
    # Remove the hints that gin appends to error messages. If the message says that an argument is
    # missing, no gin file or binding sets the argument.
    message = str(error).split("\n  In call to configurable", 1)[0].strip()
    unset = re.match(r"\S+\(\) missing \d+ required|Required bindings for", message)
    if options.verbose or not (unset or isinstance(error, InputError)):
      raise
    fix = "; add a gin file or binding that sets it" if unset else ""
    raise InputError(message + fix) from None


@contextlib.contextmanager
def _discarded_stderr() -> Iterator[None]:
  """Discards stderr, because TensorFlow prints notes during its import at every log level."""
  sys.stderr.flush()
  terminal, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
  os.dup2(nowhere, 2)
  try:
    yield
  finally:
    sys.stderr.flush()
    os.dup2(terminal, 2)
    os.close(terminal)
    os.close(nowhere)


if __name__ == "__main__":
  main()
