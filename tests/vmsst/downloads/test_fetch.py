import hashlib
import json
import random
import resource
import subprocess

import pytest

from vmsst import errors
from vmsst.downloads import fetch

CONTENT = random.Random(0).randbytes(700_001)
SHA256 = "sha256:" + hashlib.sha256(CONTENT).hexdigest()


def leftovers(folder):
  return sorted(path.name for path in folder.iterdir())


def test_a_file_arrives_whole_and_is_not_fetched_again(server, fetcher, tmp_path):
  url = server.put("/a", CONTENT)
  path = tmp_path / "new" / "folder" / "a"
  file = fetch.File(url, size=len(CONTENT), checksum=SHA256)
  assert fetcher.fetch(file, path)
  assert path.read_bytes() == CONTENT
  assert leftovers(path.parent) == ["a"]
  assert not fetcher.fetch(file, path)
  assert len(server.requests) == 1


def test_broken_connections_are_resumed(server, fetcher, tmp_path):
  # More breaks than attempts, but each attempt yields new bytes.
  url = server.put("/a", CONTENT, stops=[100_000] * 6)
  fetcher.fetch(fetch.File(url), tmp_path / "a")
  assert (tmp_path / "a").read_bytes() == CONTENT
  ranges = [(asked, condition) for _, asked, condition in server.requests]
  assert ranges[:3] == [
    (None, None),
    ("bytes=100000-", '"1"'),
    ("bytes=200000-", '"1"'),
  ]


def test_attempts_without_new_bytes_end_in_an_error(server, fetcher, tmp_path):
  url = server.put("/a", CONTENT, stops=[50_000] * 9, ranges=False)
  with pytest.raises(errors.InputError, match=r"gave up after 3 attempts.*resume"):
    fetcher.fetch(fetch.File(url), tmp_path / "a")
  assert leftovers(tmp_path) == [".a.vmsst-part", ".a.vmsst-part.json"]
  # The server sends ranges later.
  server.put("/a", CONTENT)
  fetcher.fetch(fetch.File(url), tmp_path / "a")
  assert (tmp_path / "a").read_bytes() == CONTENT
  assert server.requests[-1][1] == "bytes=50000-"
  assert leftovers(tmp_path) == ["a"]


def test_a_server_without_ranges_sends_all_again(server, fetcher, tmp_path):
  url = server.put("/a", CONTENT, stops=[300_000], ranges=False)
  fetcher.fetch(fetch.File(url), tmp_path / "a")
  assert (tmp_path / "a").read_bytes() == CONTENT


@pytest.mark.parametrize("tags", [{}, {"etag": None, "modified": "Mon, 01 Jan 2024 00:00:00 GMT"}])
def test_a_file_that_changed_starts_over(server, fetcher, tmp_path, tags):
  url = server.put("/a", CONTENT, stops=[300_000] * 3, ranges=False, **tags)
  with pytest.raises(errors.InputError):
    fetcher.fetch(fetch.File(url), tmp_path / "a")
  other = CONTENT[::-1]
  changed = {"modified": "Tue, 02 Jan 2024 00:00:00 GMT", "etag": None} if tags else {"etag": '"2"'}
  server.put("/a", other, **changed)
  fetcher.fetch(fetch.File(url), tmp_path / "a")
  assert (tmp_path / "a").read_bytes() == other
  assert server.requests[-1][1] == "bytes=300000-"


def test_without_a_tag_only_files_with_a_checksum_are_resumed(server, fetcher, tmp_path):
  weak = {"etag": 'W/"1"'}
  url = server.put("/a", CONTENT, stops=[300_000], **weak)
  fetcher.fetch(fetch.File(url), tmp_path / "plain")
  assert [asked for _, asked, _ in server.requests] == [None, None]
  server.requests.clear()
  server.put("/a", CONTENT, stops=[300_000], **weak)
  fetcher.fetch(fetch.File(url, checksum=SHA256), tmp_path / "checked")
  assert [asked for _, asked, _ in server.requests] == [None, "bytes=300000-"]
  # The file changes in between, with the same length: only the checksum detects it.
  server.requests.clear()
  server.put("/a", b"x" * len(CONTENT), stops=[300_000] * 3, etag=None, ranges=False)
  file = fetch.File(url, checksum=SHA256)
  with pytest.raises(errors.InputError):
    fetcher.fetch(file, tmp_path / "again")
  server.put("/a", CONTENT, etag=None)
  fetcher.fetch(file, tmp_path / "again")
  assert (tmp_path / "again").read_bytes() == CONTENT


@pytest.mark.parametrize(
  ("file", "options", "message"),
  [
    ({"size": 5}, {}, "700,001 bytes on the server, 5 bytes as published"),
    ({"kib": 700}, {}, "700 KiB as published"),
    ({"checksum": "sha256:" + "0" * 64}, {}, "sha256 checksum .* not 0000.*not kept"),
    ({}, {"statuses": [404]}, "404"),
    ({}, {"statuses": [500] * 9}, "500 .*gave up"),
    ({}, {"length": -1}, "length is unknown"),
    ({"size": 5}, {"chunked": True}, "sends more than 5 bytes"),
    ({"size": 900_000}, {"chunked": True}, "has 700,001 bytes, not 900,000"),
    ({}, {"headers": {"Content-Encoding": "gzip"}}, "encoding"),
    ({}, {"length": 900_000}, "700,?001 .*gave up after 3"),
    ({}, {"location": "http://example.org/a"}, "redirects to http://example.org/a.*not an HTTPS"),
    ({}, {"location": "file:///etc/passwd"}, "not an HTTPS"),
    ({}, {"location": "/a"}, "10 redirects"),
  ],
)
def test_wrong_files_and_responses_are_named_and_not_kept(
  server, fetcher, tmp_path, file, options, message
):
  url = server.put("/a", CONTENT, **options)
  with pytest.raises(errors.InputError, match=message) as caught:
    fetcher.fetch(fetch.File(url, **file), tmp_path / "a")
  assert "127.0.0.1" in str(caught.value)
  assert "a" not in leftovers(tmp_path)


def test_retry_after_and_redirects_are_followed(server, fetcher, tmp_path):
  server.put("/b", CONTENT, statuses=[503, 429], headers={"Retry-After": "0"})
  url = server.put("/a", location="/b")
  fetcher.fetch(fetch.File(url, checksum=SHA256), tmp_path / "a")
  assert (tmp_path / "a").read_bytes() == CONTENT


@pytest.mark.parametrize(
  "url",
  ["http://example.org/a", "ftp://example.org/a", "file:///etc/passwd", "https:///a", "a"],
)
def test_only_https_is_downloaded(fetcher, tmp_path, url):
  with pytest.raises(errors.InputError, match="not an HTTPS"):
    fetcher.fetch(fetch.File(url), tmp_path / "a")


def test_only_this_machine_may_redirect_to_itself():
  fetch.check_address("http://localhost:1/b", "http://127.0.0.1:2/a")
  with pytest.raises(errors.InputError, match="redirects to"):
    fetch.check_address("http://localhost:1/b", "https://example.org/a")


def test_no_server_at_all(fetcher, tmp_path):
  with pytest.raises(errors.InputError, match="gave up after 3"):
    fetcher.fetch(fetch.File("http://127.0.0.1:9/a"), tmp_path / "a")


def test_another_existing_file_is_kept(server, fetcher, tmp_path):
  url = server.put("/a", CONTENT)
  (tmp_path / "a").write_bytes(b"mine")
  for file in (fetch.File(url, size=700_001), fetch.File(url, checksum=SHA256)):
    with pytest.raises(errors.InputError, match="remove it"):
      fetcher.fetch(file, tmp_path / "a")
  assert (tmp_path / "a").read_bytes() == b"mine"
  assert not server.requests


def test_interrupted_by_the_user(server, tmp_path):
  url = server.put("/a", CONTENT)

  def interrupt(name, done, total):
    assert (name, total) == ("a", len(CONTENT))
    if done > 200_000:
      raise KeyboardInterrupt

  with fetch.Fetcher(progress=interrupt) as impatient, pytest.raises(KeyboardInterrupt):
    impatient.fetch(fetch.File(url), tmp_path / "a")
  there = (tmp_path / ".a.vmsst-part").stat().st_size
  assert 200_000 < there < len(CONTENT)
  with fetch.Fetcher() as patient:
    patient.fetch(fetch.File(url), tmp_path / "a")
  assert server.requests[-1][1] == f"bytes={there}-"
  assert (tmp_path / "a").read_bytes() == CONTENT


@pytest.mark.parametrize("about", [b"", b"{", b"[1]", b'{"url": 1}', b'{"url": "other"}', None])
def test_a_part_of_unknown_origin_is_not_used(server, fetcher, tmp_path, about):
  url = server.put("/a", CONTENT)
  (tmp_path / ".a.vmsst-part").write_bytes(b"something else")
  if about is not None:
    (tmp_path / ".a.vmsst-part.json").write_bytes(about)
  fetcher.fetch(fetch.File(url), tmp_path / "a")
  assert (tmp_path / "a").read_bytes() == CONTENT


@pytest.mark.parametrize("extra", [b"", b"and more"])
def test_a_part_that_is_complete_or_too_long(server, fetcher, tmp_path, extra):
  url = server.put("/a", CONTENT)
  (tmp_path / ".a.vmsst-part").write_bytes(CONTENT + extra)
  about = {"url": url, "validator": '"1"', "total": len(CONTENT), "pieces": 1}
  (tmp_path / ".a.vmsst-part.json").write_text(json.dumps(about))
  fetcher.fetch(fetch.File(url, checksum=SHA256), tmp_path / "a")
  assert (tmp_path / "a").read_bytes() == CONTENT
  assert bool(server.requests) == bool(extra)


def test_a_full_disk_is_one_clear_error(server, fetcher, tmp_path, monkeypatch):
  url = server.put("/a", CONTENT)
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, limits[1]))
  try:
    with pytest.raises(errors.InputError, match=r"\.a\.vmsst-part: no room on the disk.*make room"):
      fetcher.fetch(fetch.File(url), tmp_path / "a")
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
  fetcher.fetch(fetch.File(url), tmp_path / "a")
  assert server.requests[-1][1] is not None  # resumed
  assert (tmp_path / "a").read_bytes() == CONTENT
  # Before the download, free space is checked.
  usage = type("Usage", (), {"free": 1000})
  monkeypatch.setattr(fetch.shutil, "disk_usage", lambda path: usage)
  with pytest.raises(errors.InputError, match="the disk has room for 1,000"):
    fetcher.fetch(fetch.File(url), tmp_path / "b")


def test_another_process_writes_the_same_file(server, tmp_path):
  url = server.put("/a", CONTENT)

  def meddle(name, done, total):
    with open(tmp_path / ".a.vmsst-part", "ab") as other:
      other.write(b"x")

  match = "another process writes to it"
  with fetch.Fetcher(progress=meddle) as one, pytest.raises(errors.InputError, match=match):
    one.fetch(fetch.File(url), tmp_path / "a")
  assert leftovers(tmp_path) == []


def test_git_ids(tmp_path):
  path = tmp_path / "a"
  path.write_bytes(CONTENT)
  try:
    done = subprocess.run(["git", "hash-object", path], capture_output=True, text=True, check=True)
  except FileNotFoundError:
    pytest.skip("needs git")
  assert fetch.difference(fetch.File("", checksum=f"git:{done.stdout.strip()}"), path) == ""
  assert "git checksum" in fetch.difference(fetch.File("", checksum="git:0"), path)


def test_small_files_are_read_into_memory(server, fetcher):
  url = server.put("/a", CONTENT, statuses=[503])
  assert fetcher.read(url, len(CONTENT)) == CONTENT
  with pytest.raises(errors.InputError, match="more than 1,000 bytes"):
    fetcher.read(url, 1000)
