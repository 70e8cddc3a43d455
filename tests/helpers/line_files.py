"""Files of tests: text with its folders, compressed if the name ends in `.gz`; and full disks."""

import contextlib
import gzip
import resource
import signal


def write_text(path, content):
  """Writes text or bytes to `path`, creating its folders; returns `path`."""
  data = content if isinstance(content, bytes) else content.encode()
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
  return path


def write_lines(path, lines):
  """Writes each of `lines`, of any type, with a line feed to `path`; returns `path`."""
  return write_text(path, "".join(f"{line}\n" for line in lines))


def write_tsv(path, rows):
  """Writes `rows` as lines of tab-separated fields to `path`; returns `path`."""
  return write_lines(path, ("\t".join(map(str, row)) for row in rows))


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
