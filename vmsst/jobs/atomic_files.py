"""Former name of `outputs`, until every user has moved."""

from vmsst.jobs.outputs import *  # noqa: F403
from vmsst.jobs.outputs import os


def link_target(path):  # type: ignore[no-untyped-def]
  """See `os.path.realpath`."""
  return os.path.realpath(path)


def remove_stale(folder):  # type: ignore[no-untyped-def]
  """Does nothing."""
