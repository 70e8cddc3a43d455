"""Makes writes fail as on a full disk."""

import contextlib
import resource
import signal


@contextlib.contextmanager
def largest_file(size):
  """Lets this process write only files of up to `size` bytes, as if the disk were full."""
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  # Python ignores SIGXFSZ: a write beyond the limit fails with EFBIG.
  assert signal.getsignal(signal.SIGXFSZ) == signal.SIG_IGN
  resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
