"""Malformed files and lists of downloads: each is read or refused, and nothing else is changed."""

import gzip
import io
import lzma
import re
import tarfile

import download_readers
import pytest
import trials

from vmsst.downloads import archives, tables

_READERS = {reader.name: reader for reader in download_readers.readers()}


@pytest.mark.slow
@pytest.mark.parametrize("name", _READERS)
def test_malformed_files_are_read_or_refused(name, tmp_path):
  reader = _READERS[name]
  print(trials.run(reader, trials.cases(reader, 25), tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("name", _READERS)
def test_many_more_malformed_files_are_read_or_refused(name, tmp_path):
  reader = _READERS[name]
  print(trials.run(reader, trials.cases(reader, 1500, seed=1), tmp_path))


def refused(read, folder, match):
  outcome, message = trials.attempt(trials.Reader("x", {}, read, writes=True), folder)
  assert outcome == "refused", outcome
  assert re.search(match, message)


def tar_of(*members):
  stream = io.BytesIO()
  with tarfile.open(fileobj=stream, mode="w") as archive:
    for kind, size in members:
      info = tarfile.TarInfo("a.txt")
      info.type, info.size = kind, size
      archive.addfile(info, io.BytesIO(bytes(size)) if size < 1 << 20 else None)
  return stream.getvalue()


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XGLTYPE])
def test_a_tar_whose_header_fills_the_memory(kind, tmp_path):
  zeros = gzip.compress(bytes(1 << 24), mtime=0)  # 3.4 GB in 3.4 MB
  header = tar_of((kind, 3 << 30))[:512]
  (tmp_path / "a.tgz").write_bytes(gzip.compress(header, mtime=0) + 200 * zeros)
  read = lambda place: archives.unpack(place / "a.tgz", place / "out", str, 12 * 10**9)  # noqa: E731
  refused(read, tmp_path, "header")


@pytest.mark.slow
def test_a_tar_of_very_many_members(tmp_path):
  empty = gzip.compress(tar_of((tarfile.REGTYPE, 0))[:512] * 10_000, mtime=0)
  (tmp_path / "a.tgz").write_bytes(empty * 20)
  read = lambda place: archives.unpack(place / "a.tgz", place / "out", lambda name: None, 10**9)  # noqa: E731
  refused(read, tmp_path, "none of the expected files")


def test_a_tar_with_a_chain_of_headers(tmp_path):
  (tmp_path / "a.tar").write_bytes(tar_of((tarfile.XHDTYPE, 0))[:512] * 5000)
  refused(lambda p: archives.unpack(p / "a.tar", p / "out", str, 10**9), tmp_path, "broken")


def test_an_xz_file_that_asks_for_gigabytes(tmp_path):
  filters = [{"id": lzma.FILTER_LZMA2, "dict_size": (1 << 30) + (1 << 29), "mode": lzma.MODE_FAST,
              "mf": lzma.MF_HC3, "nice_len": 4}]  # fmt: skip
  try:
    content = lzma.compress(b"x", filters=filters)
  except MemoryError:
    pytest.skip("not enough memory to make the file")
  (tmp_path / "a.tar.xz").write_bytes(content)
  refused(lambda p: archives.unpack(p / "a.tar.xz", p / "out", str, 10**9), tmp_path, "broken")


def test_a_table_without_line_ends(tmp_path):
  (tmp_path / "x.csv").write_bytes(b"a,b\n" + b"x," * (1 << 27))

  def read(place):
    columns = {"a": "a"}
    tables.join({"x": place / "x.csv"}, columns, place / "out" / "y", quoted=True, header=True)

  refused(read, tmp_path, "characters")
