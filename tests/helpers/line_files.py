"""Input files of tests: text with its folders, compressed if the name ends in `.gz`."""

import gzip


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
