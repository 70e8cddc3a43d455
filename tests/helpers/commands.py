"""Runs the `t5x` command, a script or a function in a separate process, new or forked.

Scripts run in forks of a prepared process. Part of a test module runs in a process with eight
devices, whose compiled programs are read.
"""

import multiprocessing
import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile
import types
from unittest import mock

import jax

from vmsst import cli

HELPERS = str(pathlib.Path(__file__).parent)
T5X = pathlib.Path(sysconfig.get_path("scripts")) / "t5x"

# The quickstart, small enough to train in a test.
TINY = (
  "--gin_file=quickstart.gin",
  "--gin.TRAIN_STEPS=2",
  "--gin.EVAL_PERIOD=2",
  "--gin.CHECKPOINT_PERIOD=2",
  "--gin.BATCH_SIZE=16",
  "--gin.EMBED_DIM=16",
  "--gin.bitext.sample.num_meanings=50",
  "--gin.GROUP_BY_LENGTH=False",  # one length: one compiled step
  "--gin.evaluation.sample_retrieval.num_meanings=40",
)

# Added to the environment of a long training: XLA optimizes, unlike in the other tests.
OPTIMIZED = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0", "XLA_FLAGS": ""}

# Importing TensorFlow takes longer than most scripts: one process imports it and forks for each.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
  ["vmsst.launch.main", "vmsst.train.train", "vmsst.tasks.evaluation", "clu.metric_writers"]
)

_T5X = "import sys; from vmsst.launch.main import main; main(sys.argv[1:])"


def environment(devices=1):
  """Returns the environment of a process with `devices` devices that can import these helpers."""
  outside = dict(os.environ)
  flags = f"{outside.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
  outside.pop("TF_CPP_MIN_LOG_LEVEL", None)  # set by importing jax here
  return {**outside, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "PYTHONPATH": HELPERS}


def run(command, *, cwd, text="", variables=None):
  """Runs a command with `text` as standard input and more variables; fails if it fails."""
  variables = environment() | (variables or {})
  options = {"input": text, "capture_output": True, "text": True, "timeout": 3000}
  done = subprocess.run([*map(str, command)], cwd=cwd, env=variables, check=False, **options)
  assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
  return done


def fresh_script(code, *arguments, cwd, text=""):
  """Runs a Python script in a new interpreter, to see what it imports; fails if it fails."""
  return run([sys.executable, "-c", code, *arguments], cwd=cwd, text=text)


def t5x(*arguments, cwd, devices=1):
  """Runs `t5x arguments` in a process with TensorFlow imported; returns exit code and output."""
  return _run_fork(_T5X, ["t5x", *arguments], cwd, devices)


def script(code, *arguments, cwd, devices=1, text="", timeout=900, variables=None):
  """Runs a Python script with `text` as standard input; fails if the script fails.

  Its process starts with TensorFlow, seqio and JAX imported, and with more environment variables.
  """
  done = _run_fork(code, ["-c", *arguments], cwd, devices, text, timeout, variables)
  assert done.returncode == 0, done.stderr
  return done


def _run_fork(code, arguments, cwd, devices, text="", timeout=900, variables=None):
  with tempfile.TemporaryDirectory() as folder:
    streams = [pathlib.Path(folder, name) for name in ("stdin", "stdout", "stderr")]
    streams[0].write_text(text, encoding="utf-8")
    process = _start(code, arguments, cwd, environment(devices) | (variables or {}), streams)
    process.join(timeout)
    if process.exitcode is None:
      process.kill()
      process.join()
      raise subprocess.TimeoutExpired(arguments, timeout, stderr=streams[2].read_text())
    stdout, stderr = (path.read_text(encoding="utf-8") for path in streams[1:])
    return types.SimpleNamespace(returncode=process.exitcode, stdout=stdout, stderr=stderr)


def _start(code, arguments, cwd, variables, streams):
  arguments = [*map(str, arguments)]
  process = _FORKS.Process(target=_execute, args=(code, arguments, str(cwd), variables, streams))
  # The first call starts the process that imports TensorFlow; `t5x` sets this variable before.
  with mock.patch.dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3"):
    process.start()
  return process


def _execute(code, arguments, cwd, variables, streams):
  """Executes a script in this new process, as `python -c` would."""
  for descriptor, path in enumerate(streams):
    file = os.open(path, os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT)
    os.dup2(file, descriptor)
  sys.stdin = os.fdopen(0, encoding="utf-8")
  jax.config.update("jax_platforms", variables["JAX_PLATFORMS"])  # jax has been imported before
  os.chdir(cwd)
  os.environ.clear()
  os.environ.update(variables)
  sys.argv[:] = arguments
  sys.path.insert(0, "")
  main = sys.modules["__main__"] = types.ModuleType("__main__")
  exec(compile(code, "<script>", "exec"), main.__dict__)


def vmsst(*arguments):
  """Runs `vmsst arguments`, which may be paths or numbers; returns its exit status."""
  return cli.main([str(argument) for argument in arguments])


def download_data(*arguments):
  """Runs `vmsst data download arguments`, without a lock; raises its errors."""
  args = cli.build_parser().parse_args(["data", "download", *map(str, arguments)])
  args.command.function(**args.command.values(args))


_COLLECTIVE = re.compile(
  r" = (.*?) (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
)


def on_eight_devices(test_file, folder):
  """Calls `run_on_eight_devices(folder)` of a test module; returns what it printed."""
  path = pathlib.Path(test_file)
  code = (
    f"import pathlib, sys, {path.stem} as module\n"
    "module.run_on_eight_devices(pathlib.Path(sys.argv[1]))"
  )
  return script(code, folder, cwd=path.parent, devices=8).stdout


def dimensions(program):
  """Returns all shapes in the text of a compiled program."""
  return [tuple(map(int, shape.split(","))) for shape in re.findall(r"\[([\d,]+)\]", program)]


def exchanged(program):
  """Returns (name, shape) of all arrays that the devices of a compiled program exchange."""
  return [(name, size) for what, name in _COLLECTIVE.findall(program) for size in dimensions(what)]
