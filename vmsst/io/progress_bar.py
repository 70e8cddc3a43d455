"""The progress bar of all long work."""

from typing import Any

import tqdm

from vmsst.io import watchdog


class Bar(tqdm.tqdm):
  """A progress bar whose updates tell the watchdog that work goes on, even if it is not shown."""

  def update(self, n: Any = 1) -> bool | None:
    """Adds `n` to what is done."""
    watchdog.alive()
    return super().update(n)
