"""Large pages for a process that computes on a CPU."""

import os
import sys

_SETTING = "glibc.malloc.hugetlb=1"


def restart_with_large_pages() -> None:
  """Starts this process anew, under its own number, with glibc told to ask for large pages.

  Only on Linux, and only where GLIBC_TUNABLES is not set: what a user set stays, an empty value
  too. XLA's CPU client asks for a step's temporary memory anew each time; in pages of 4 KiB that is
  up to a third of a step's CPU time (docs/performance.md).
  """
  if sys.platform == "linux" and "GLIBC_TUNABLES" not in os.environ:
    sys.stdout.flush()
    os.execve(
      sys.executable,
      [sys.executable, *sys.orig_argv[1:]],
      {**os.environ, "GLIBC_TUNABLES": _SETTING},
    )
