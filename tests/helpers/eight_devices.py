"""Runs part of a test module in a process with eight devices, and reads compiled programs."""

import pathlib
import re

import commands

_COLLECTIVE = re.compile(
  r" = (.*?) (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
)


def run(test_file, folder):
  """Calls `run_on_eight_devices(folder)` of a test module; returns what it printed."""
  path = pathlib.Path(test_file)
  code = (
    f"import pathlib, sys, {path.stem} as module\n"
    "module.run_on_eight_devices(pathlib.Path(sys.argv[1]))"
  )
  return commands.script(code, folder, cwd=path.parent, devices=8).stdout


def dimensions(program):
  """Returns all shapes in the text of a compiled program."""
  return [tuple(map(int, shape.split(","))) for shape in re.findall(r"\[([\d,]+)\]", program)]


def exchanged(program):
  """Returns (name, shape) of all arrays that the devices of a compiled program exchange."""
  return [(name, size) for what, name in _COLLECTIVE.findall(program) for size in dimensions(what)]
