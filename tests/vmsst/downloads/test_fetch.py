"""Tests downloads over HTTP: they resume, verify the file, and report malformed responses."""

import hashlib
import random

import pytest

from vmsst import errors
from vmsst.downloads import fetch

CONTENT = random.Random(0).randbytes(700_001)
SHA256 = "sha256:" + hashlib.sha256(CONTENT).hexdigest()

_HEAD = b"HTTP/1.1 200 OK\r\n"


def leftovers(folder):
  """Returns the names of the files in a folder; an incomplete file is "part"."""
  names = (path.name for path in folder.iterdir())
  return sorted("part" if name.endswith(".vmsst-part") else name for name in names)


def test_a_file_arrives_whole_and_is_not_fetched_again(server, fetcher, tmp_path):
  server.put("/b", CONTENT, statuses=[503, 429])
  url = server.put("/a", location="/b")
  path = tmp_path / "new" / "folder" / "a"
  file = fetch.File(url, size=len(CONTENT), checksum=SHA256)
  assert fetcher.fetch(file, path)
  assert path.read_bytes() == CONTENT
  assert leftovers(path.parent) == ["a"]
  requests = len(server.requests)
  assert not fetcher.fetch(file, path)
  path.write_bytes(b"mine")
  with pytest.raises(errors.InputError, match="remove it"):
    fetcher.fetch(file, path)
  assert path.read_bytes() == b"mine"
  assert len(server.requests) == requests


def test_broken_connections_are_resumed(server, fetcher, tmp_path):
  # The connection breaks more often than attempts are allowed, but each attempt yields new bytes.
  url = server.put("/a", CONTENT, stops=[100_000] * 6)
  fetcher.fetch(fetch.File(url), tmp_path / "a")
  assert (tmp_path / "a").read_bytes() == CONTENT
  assert [asked for _, asked in server.requests][1:3] == ["bytes=99999-", "bytes=199998-"]


def test_attempts_without_new_bytes_end_in_an_error(server, fetcher, tmp_path):
  url = server.put("/a", CONTENT, stops=[50_000] * 9, ranges=False)
  with pytest.raises(errors.InputError, match=r"gave up after 3 attempts.*resume"):
    fetcher.fetch(fetch.File(url), tmp_path / "a")
  assert leftovers(tmp_path) == ["part"]
  server.put("/a", CONTENT)  # The server sends ranges later.
  fetcher.fetch(fetch.File(url), tmp_path / "a")
  assert (tmp_path / "a").read_bytes() == CONTENT
  assert server.requests[-1][1] == "bytes=49999-"
  assert leftovers(tmp_path) == ["a"]


@pytest.mark.parametrize(("name", "length"), [("ETag", 200_000), ("Last-Modified", 700_001)])
def test_a_file_that_changed_starts_over(server, fetcher, tmp_path, name, length):
  url = server.put("/a", CONTENT, stops=[300_000] * 3, ranges=False, headers={name: "1"})
  with pytest.raises(errors.InputError):
    fetcher.fetch(fetch.File(url), tmp_path / "a")
  other = CONTENT[:length][::-1]
  server.put("/a", other, headers={name: "2"})
  fetcher.fetch(fetch.File(url), tmp_path / "a")
  assert (tmp_path / "a").read_bytes() == other
  assert [asked for _, asked in server.requests][-2:] == ["bytes=299999-", None]
  assert leftovers(tmp_path) == ["a"]


def test_without_a_tag_only_files_with_a_checksum_are_resumed(server, fetcher, tmp_path):
  url = server.url("/a")
  file = fetch.File(url, checksum=SHA256)
  for each, requests in ((fetch.File(url), [None]), (file, [])):
    server.put("/a", CONTENT, stops=[300_000], headers={})
    server.requests.clear()
    fetcher.fetch(each, tmp_path / f"a{len(requests)}")
    assert [asked for _, asked in server.requests] == [None, "bytes=299999-", *requests]
  # The file changes between the attempts but keeps its length, so only the checksum detects it.
  server.put("/a", b"x" * len(CONTENT), stops=[300_000] * 3, headers={}, ranges=False)
  with pytest.raises(errors.InputError):
    fetcher.fetch(file, tmp_path / "again")
  server.put("/a", CONTENT, headers={})
  with pytest.raises(errors.InputError, match=r"sha256 checksum .*was deleted; rerun"):
    fetcher.fetch(file, tmp_path / "again")


@pytest.mark.parametrize(
  ("file", "options", "message"),
  [
    ({"size": 5}, {}, "has 700,001 bytes, not 5; check whether"),
    ({"checksum": "sha256:" + "0" * 64}, {}, "sha256 checksum .* not 0000.*was deleted"),
    ({}, {"statuses": [404]}, "404: Not Found; gave up after 1 "),
    ({}, {"raw": _HEAD + b"\r\n" + CONTENT}, "unknown length"),
    ({}, {"raw": _HEAD + b"Content-Length: 900000\r\n\r\n" + CONTENT}, "ended after.*gave up"),
    ({}, {"location": "http://example.org/a"}, "'http://example.org/a' is not an HTTPS"),
  ],
)
def test_wrong_files_and_responses_are_named_and_not_kept(
  server, fetcher, tmp_path, file, options, message
):
  url = server.put("/a", CONTENT, **options)
  with pytest.raises(errors.InputError, match=message):
    fetcher.fetch(fetch.File(url, **file), tmp_path / "a")
  assert "a" not in leftovers(tmp_path)


def test_only_https_is_downloaded_except_from_this_machine(fetcher, tmp_path):
  for url in ("http://example.org/a", "file:///etc/passwd", "a"):
    with pytest.raises(errors.InputError, match="not an HTTPS"):
      fetcher.fetch(fetch.File(url), tmp_path / "a")


def test_parts_of_other_versions_and_complete_ones(server, fetcher, tmp_path):
  url = server.put("/a", CONTENT)
  file = fetch.File(url, checksum=SHA256)
  path = tmp_path / "a"
  (tmp_path / ".a.0123456789abcdef.vmsst-part").write_bytes(CONTENT + b"and more")
  fetcher.fetch(file, path)
  assert path.read_bytes() == CONTENT
  assert leftovers(tmp_path) == ["a"]
  path.unlink()
  fetch.part_path(path, file, '"1"', len(CONTENT)).write_bytes(CONTENT)  # killed at the end
  server.requests.clear()
  fetcher.fetch(file, path)
  assert [asked for _, asked in server.requests] == [f"bytes={len(CONTENT) - 1}-"]
  assert path.read_bytes() == CONTENT
