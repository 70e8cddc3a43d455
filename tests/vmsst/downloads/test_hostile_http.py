"""Malformed responses of servers: a file arrives, or one clear error is raised."""

import itertools
import random

import mutations
import pytest

from vmsst import errors
from vmsst.downloads import fetch

CONTENT = b"".join(b"%d\n" % i for i in range(300))
SIZE = len(CONTENT)
_END = b'\r\nETag: "1"\r\n\r\n'
_LENGTH = b"Content-Length: %d" % SIZE
_RANGE = b"Content-Range: bytes 900-%d/%d\r\nContent-Length: %d" % (SIZE - 1, SIZE, SIZE - 900)
_CHUNKS = b"".join(b"%x\r\n%s\r\n" % (len(x), x) for x in (CONTENT[:700], CONTENT[700:]))
ANSWERS = {
  "whole": b"HTTP/1.1 200 OK\r\n" + _LENGTH + _END + CONTENT,
  "range": b"HTTP/1.1 206 Partial Content\r\n" + _RANGE + _END + CONTENT[900:],
  "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked" + _END + _CHUNKS + b"0\r\n\r\n",
  "redirect": b"HTTP/1.1 302 Found\r\nLocation: /b\r\nContent-Length: 0" + _END,
  "busy": b"HTTP/1.1 503 Busy\r\nRetry-After: 0\r\nContent-Length: 3" + _END + b"not",
  "past": b"HTTP/1.1 416 Range Not Satisfiable\r\nContent-Range: bytes */9\r\n\r\n",
}
_TEXTS = (
  "", " ", "-1", "0", "7", "9" * 18, "9" * 19, "9" * 5000, "1e9", "\u0663", "0x10", "nan", "x",
  "\x7f\x00", "\xe9\xff", "a\r\n b", '"', '"' + "x" * 60_000 + '"', '"\xe9"', '"a\r\n b"', "W/1",
  "bytes", "bytes */*", "bytes 0-1/*", "bytes -5-9/9", f"bytes 900-{SIZE - 1}/{'9' * 5000}",
  "bytes \u0669-9/9", "bytes 900-1/0", "gzip", "Thu, 99 Foo 99999 99:99:99 GMT",
  "Thu, 01 Jan 9999999999 00:00:00 GMT", "Fri, 31 Dec 1999 23:59:59 GMT", "http://[", "https://",
  "//", "http://[::1]:99999999/", "http://127.0.0.1:x/", "file:///etc/passwd", "https://\u2028/",
  "https://" + "a" * 300 + "/", "http://example.org/a", "\\\\x\\y",
)  # fmt: skip
NAMES = (
  "Content-Length", "Content-Range", "ETag", "Last-Modified", "Retry-After", "Location",
  "Transfer-Encoding", "Content-Encoding", "Connection", "Content-Length:1\r\nContent-Length",
)  # fmt: skip


def answers_with_headers():
  """Responses with a malformed header, which replaces a valid one if there is one."""
  for header in NAMES:
    for text in _TEXTS:
      for kind, valid in ANSWERS.items():
        head, _, body = valid.partition(b"\r\n\r\n")
        kept = [x for x in head.split(b"\r\n") if not x.startswith(f"{header}:".encode())]
        line = f"{header}: {text}".encode()
        yield f"{kind} with {header}: {text[:40]!r}", b"\r\n".join([*kept, line, b"", body])


def answers_with_noise(generator, scratch):
  """Responses with random changes, without end."""
  fixed = list(mutations.contents())
  noise = mutations.noise(generator)
  while True:
    kind = generator.choice(list(ANSWERS))
    case = generator.choice(fixed) if generator.random() < 0.1 else next(noise)
    scratch.write_bytes(ANSWERS[kind])
    case.apply(str(scratch))
    yield f"{kind} is {case.name}", scratch.read_bytes()


def check(answers, server, folder):
  """Downloads each; raises AssertionError unless a file arrives, or one clear error is raised."""
  faults = []
  for number, (name, raw) in enumerate(answers):
    for size in (SIZE, None):
      path = folder / f"{number}-{size}" / "a"
      path.parent.mkdir()
      file = fetch.File(server.put("/a", raw=raw), size)
      if "range" in name:
        fetch.part_path(path, file, '"1"', SIZE).write_bytes(CONTENT[:901])
      outcomes = [attempt(file, path)]
      if not path.exists():
        # What is left neither prevents nor spoils a later download.
        server.put("/a", CONTENT)
        outcomes += [attempt(file, path), path.stat().st_size == SIZE]
      if outcomes not in (["read"], ["refused", "read", True]):
        faults.append(f"{name}, size {size}: {outcomes}")
  assert not faults, f"{len(faults)}\n" + "\n".join(faults[:40])


def attempt(file, path):
  """How a download ends: "read" or "refused", or what is wrong."""
  done = "read"
  try:
    with fetch.Fetcher(attempts=2, timeout=60.0, pause=0) as fetcher:
      fetcher.fetch(file, path)
  except errors.InputError as error:
    done = "refused"
    if not 0 < len(str(error)) < 3100:
      return f"a message of {len(str(error))} letters"
  except Exception as error:
    return f"{type(error).__name__}: {str(error)[:200]}"
  left = {each.name for each in path.parent.iterdir() if not each.name.endswith(".vmsst-part")}
  return done if left == ({"a"} if done == "read" else set()) else f"{done}, but left {left}"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
  monkeypatch.setattr(fetch, "_MAX_PAUSE", 0.0)


@pytest.mark.parametrize("count", [60, pytest.param(2000, marks=pytest.mark.slow)])
def test_malformed_responses(server, tmp_path, count):
  answers = list(answers_with_headers())
  random.Random(0).shuffle(answers)
  noise = answers_with_noise(random.Random(1), tmp_path / "scratch")
  check([*answers[:count], *itertools.islice(noise, count)], server, tmp_path)


def test_the_body_of_a_redirect_is_not_read(server, tmp_path):
  # It is shorter than stated: reading it would raise an error or wait.
  answer = b"HTTP/1.1 302 Found\r\nLocation: /b\r\nContent-Length: 9000000000\r\n\r\nshort"
  server.put("/b", CONTENT)
  assert attempt(fetch.File(server.put("/a", raw=answer), SIZE), tmp_path / "a") == "read"
