"""Traces of some training steps, for XProf (TensorBoard's profile plugin) and Perfetto."""

import contextlib
import os
import re
from collections.abc import Callable, Iterator

import jax

from vmsst.errors import InputError
from vmsst.files import log_folders

FOLDER = "profile"
"""Folder of the traces in MODEL_DIR."""
STEP = "train"
"""Name of a step in a trace."""


class Profile:
  """A trace of the steps from `first` to `last`, written by the first process.

  Attributes:
    first: First step, from 1.
    last: Last step.
    written: Whether the trace is complete.
  """

  def __init__(self, first: int, last: int):
    self.first, self.last = first, last
    self.written = False
    self._begun = False
    self._folder: log_folders.LogFolder | None = None

  @classmethod
  def parse(cls, steps: str) -> "Profile":
    """Returns the profile of FIRST:LAST; raises InputError if this is something else."""
    match = re.fullmatch(r"(\d+):(\d+)", steps)
    if not match or not 0 < int(match[1]) <= int(match[2]):
      raise InputError(f"--profile_steps={steps}: give FIRST:LAST, such as 100:110")
    return cls(int(match[1]), int(match[2]))

  @contextlib.contextmanager
  def step(
    self, number: int, model_dir: str | os.PathLike[str], wait: Callable[[], None]
  ) -> Iterator[None]:
    """Does a step as part of the trace, if it is one of these steps.

    Args:
      number: The step.
      model_dir: Folder of the run.
      wait: Waits until all steps so far have finished on the devices.
    """
    if number == self.first:
      self._begun = True
      if jax.process_index() == 0:
        # Without waiting: steps in flight keep the first step of the trace as long as the others.
        self._folder = log_folders.LogFolder(os.path.join(model_dir, FOLDER))
        jax.profiler.start_trace(self._folder.local)
    with jax.profiler.StepTraceAnnotation(STEP, step_num=number):
      yield
    if number == self.last and self._begun:
      wait()
      self.stop()
      self.written = True

  def stop(self) -> None:
    """Ends and writes the trace, if it has begun."""
    if self._folder is not None:
      folder, self._folder = self._folder, None
      jax.profiler.stop_trace()
      folder.upload()


_requested: Profile | None = None


@contextlib.contextmanager
def requested(profile: Profile) -> Iterator[None]:
  """Lets the training of this context write a trace; ends the trace with it."""
  global _requested
  _requested = profile
  try:
    yield
  finally:
    _requested = None
    profile.stop()


def step(
  number: int, model_dir: str | os.PathLike[str] | None, wait: Callable[[], None]
) -> contextlib.AbstractContextManager[None]:
  """Returns the context of a training step; see `Profile.step`."""
  if _requested is None or model_dir is None:
    return contextlib.nullcontext()
  return _requested.step(number, model_dir, wait)
