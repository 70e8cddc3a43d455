"""Units that go wrong, for workers in processes of their own."""

import dataclasses
import os
import signal

from vmsst.tasks.opus import blocks, stages


class KilledClean(stages.Clean):
  """A unit whose process is killed (kill -9) when a part is written."""

  def make(self):
    with blocks.writing(self.path, self.buckets, block_bytes=1) as writer:
      writer.add(0, 1, 0, b"half", b"of it")
      os.kill(os.getpid(), signal.SIGKILL)


def killed(unit):
  """The same unit, killed."""
  return KilledClean(**{f.name: getattr(unit, f.name) for f in dataclasses.fields(unit)})


@dataclasses.dataclass(frozen=True)
class Failing:
  """A unit that fails."""

  path: str
  key: str = "x"

  def make(self):
    raise OSError(28, "No space left on device")
