"""Small units of work, for workers in processes of their own."""

import dataclasses
import functools
import os
import pathlib
import pickle
import signal
import time

from vmsst import errors
from vmsst.io import atomic_files
from vmsst.units import base, engines


@dataclasses.dataclass(frozen=True)
class Square(base.Unit):
  """Writes the square of a number, and who did it."""

  number: int
  path: str

  @functools.cached_property
  def key(self):
    return base.digest("square", self.number)

  def make(self):
    with atomic_files.atomic_file(self.path) as stream:
      stream.write(str(self.number**2).encode())
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
    return {"square": self.number**2, "process": os.getpid(), "gpus": gpus}


@dataclasses.dataclass(frozen=True)
class Fatal(Square):
  """Kills its process."""

  def make(self):
    os.kill(os.getpid(), signal.SIGKILL)


@dataclasses.dataclass(frozen=True)
class Failing(Square):
  """Raises an error."""

  def make(self):
    raise OSError(28, "No space left on device")


@dataclasses.dataclass(frozen=True)
class Staged(base.StagedUnit):
  """Squares in three stages, each of which takes some time and is noted in a log at its start.

  Before it computes, it waits until stages of its neighbors have started.
  """

  number: int
  path: str
  log: str = ""
  fails_in: str = ""
  seconds: float = 0.0
  neighbors: tuple[str, ...] = ()

  @functools.cached_property
  def key(self):
    return base.digest("staged", self.number)

  def _stage(self, name):
    if self.fails_in == name:
      raise errors.InputError(f"{name} went wrong")
    if self.log:
      with open(self.log, "a", encoding="utf-8") as stream:
        stream.write(f"{name} {self.number}\n")
    time.sleep(self.seconds)

  def read(self):
    self._stage("read")
    return self.number

  def compute(self, prepared):
    self._stage("compute")
    end = time.monotonic() + 60
    while self.neighbors and not {*self.neighbors} <= {*_lines(self.log)}:
      assert time.monotonic() < end, f"{self.neighbors} have not started"
      time.sleep(0.001)
    return prepared**2

  def write(self, computed):
    self._stage("write")
    with atomic_files.atomic_file(self.path) as stream:
      stream.write(str(computed).encode())
    return {"square": computed}


def _lines(path):
  return pathlib.Path(path).read_text(encoding="utf-8").splitlines()


class Pickling(engines.Engine):
  """Makes units as another process would, but in this one.

  Attributes:
    done: Number of units made.
  """

  in_process, this_machine = False, True

  def __init__(self):
    self.done = 0

  def work(self, title, units):
    for unit in base.do(title, pickle.loads(pickle.dumps(units))):
      self.done += 1
      yield unit


def squares(folder, count, kind=Square, **options):
  """Units of the numbers below `count`."""
  return [kind(n, str(pathlib.Path(folder, f"{n}.txt")), **options) for n in range(count)]


def contents(folder):
  """Contents of the output files, by name."""
  return {path.name: path.read_text() for path in pathlib.Path(folder).glob("*.txt")}
