"""Small jobs. Their functions are here so that other processes can import them."""

import os
import pathlib
import signal
import threading
import time

import pytest

from vmsst import errors
from vmsst.io import manifest
from vmsst.jobs import job


def square(path, number):
  """Writes the square of a number; returns the square, the process and its GPUs."""
  pathlib.Path(path).write_text(str(number**2))
  gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
  return {"square": number**2, "process": os.getpid(), "gpus": gpus}


def noted_square(done, path, number):
  done.append(number)
  return square(path, number)


def fail(path, number):
  raise OSError(28, "No space left on device")


def fail_at_2(path, number):
  return fail(path, number) if number == 2 else square(path, number)


def kill_at_2(path, number):
  if number == 2:
    os.kill(os.getpid(), signal.SIGKILL)
  return square(path, number)


def slow_at_2(path, number):
  if number == 2:
    time.sleep(600)
  return fail(path, number)


def run(work, count, function=square, engine=None):
  """Runs a function on the numbers below `count`; returns the facts."""
  return work.run("squares", function, [job.Task(f"{n}.txt", (n,)) for n in range(count)], engine)


def interrupted(folder, inputs):
  with (
    pytest.raises(errors.InputError, match=r"2\.txt"),
    job.Job(folder, inputs={"text": inputs}) as work,
  ):
    run(work, 4, fail_at_2)


class Elsewhere:
  """An engine on a file system that shows new files late (after some seconds), or never."""

  in_process = this_machine = False

  def __init__(self, visible_after=None):
    self.visible_after = visible_after

  def run(self, title, do, tasks):
    if self.visible_after is not None:
      threading.Timer(self.visible_after, lambda: list(do(tasks))).start()
    return iter([(task, manifest.Part(1, "")) for task in tasks])
