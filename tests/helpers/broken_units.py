"""Units that go wrong, for workers in processes of their own."""

import dataclasses
import os
import signal

from vmsst.tasks.opus import buckets, stages
from vmsst.units import base


class KilledClean(stages.Clean):
  """A unit whose process is killed (kill -9) when a part is written."""

  def make(self):
    with buckets.writing(self.path, self.buckets, memory_bytes=1) as writer:
      writer.add(1, b"half", b"of it")
      os.kill(os.getpid(), signal.SIGKILL)


def killed(unit):
  """The same unit, killed."""
  return KilledClean(**{f.name: getattr(unit, f.name) for f in dataclasses.fields(unit)})


@dataclasses.dataclass(frozen=True)
class Failing(base.Unit):
  """A unit that fails."""

  path: str
  key: str = "x"

  def make(self):
    raise OSError(28, "No space left on device")
