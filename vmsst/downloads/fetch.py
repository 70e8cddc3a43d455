"""Files over HTTPS: resumed, checked, and under their names only when they are whole."""

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import pathlib
import re
import shutil
import time
import types
import urllib.parse
from collections.abc import Callable, Iterator
from typing import IO, TypeVar

import requests
import urllib3

import vmsst
from vmsst import errors

Progress = Callable[[str, int, int | None], None]
"""Gets the name of a file, its bytes that are there, and how many there will be, if known."""

_T = TypeVar("_T")
_CHUNK_BYTES = 1 << 18
_LOCAL = ("localhost", "127.0.0.1", "::1")
_MOST_REDIRECTS = 10
_MOST_PAUSE = 60.0
_RETRIED = (408, 425, 429, 500, 502, 503, 504)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclasses.dataclass(frozen=True)
class File:
  """A file to get.

  Attributes:
    url: HTTPS, or HTTP on this machine.
    size: Its bytes, where they are published.
    kib: Its KiB, rounded down, where only those are published.
    checksum: "sha256:HEX", or "git:HEX", the id of a blob in Git; "" if none is published.
  """

  url: str
  size: int | None = None
  kib: int | None = None
  checksum: str = ""

  def fits(self, size: int) -> bool:
    """Whether a number of bytes agrees with what is published."""
    return self.size in (None, size) and self.kib in (None, size >> 10)

  @property
  def published(self) -> str:
    """The published size, for people."""
    return f"{self.size:,} bytes" if self.size is not None else f"{self.kib:,} KiB"


class _Broken(Exception):
  """What another attempt may put right: the message, bytes that are there, seconds to wait."""

  def __init__(self, message: str, reached: int = 0, wait: float = 0.0):
    super().__init__(message)
    self.reached = reached
    self.wait = wait


class Fetcher:
  """Gets files, one at a time, over connections that it keeps; a context manager.

  Args:
    attempts: How often in a row to try before giving up, as long as nothing new arrives.
    timeout: Seconds to wait for a connection or for more bytes.
    pause: Seconds before the second attempt; twice that before each further one.
    progress: Is told of what arrives.
  """

  def __init__(
    self,
    *,
    attempts: int = 6,
    timeout: float = 60.0,
    pause: float = 1.0,
    progress: Progress | None = None,
  ):
    self._attempts = attempts
    self._timeout = timeout
    self._pause = pause
    self._progress = progress or (lambda name, done, total: None)
    self._session = requests.Session()
    self._session.headers.update(
      {"User-Agent": f"vmsst/{vmsst.__version__}", "Accept-Encoding": "identity"}
    )

  def __enter__(self) -> "Fetcher":
    return self

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: types.TracebackType | None,
  ) -> None:
    self._session.close()

  def fetch(self, file: File, path: pathlib.Path) -> bool:
    """Makes a file be there, whole.

    While it is incomplete it is `path` with `.part`, beside a small `.part.json` that tells what it
    is the beginning of. Interrupted, the next call goes on from there, or begins anew if the file
    at that address has changed.

    Returns:
      Whether anything was fetched: False if the file was there, of the right size and checksum.

    Raises:
      InputError: it cannot be had, it is not what was published, there is another file at `path`,
        or the disk is full.
    """
    if path.exists():
      if problem := difference(file, path):
        raise errors.InputError(f"{path} {problem}: remove it, to fetch it again")
      return False
    path.parent.mkdir(parents=True, exist_ok=True)
    part = _Part(path, file)
    self._persist(file.url, lambda: self._go_on(file.url, part))
    part.finish()
    return True

  def read(self, url: str, most: int) -> bytes:
    """The content of a file of at most `most` bytes; raises InputError as `fetch` does."""

    def attempt() -> bytes:
      content = bytearray()
      with self._open(url, {}) as response:
        for chunk in _chunks(response, lambda: 0):
          content += chunk
          if len(content) > most:
            raise errors.InputError(f"{url}: more than {most:,} bytes, which cannot be right")
      return bytes(content)

    return self._persist(url, attempt)

  def _persist(self, url: str, attempt: Callable[[], _T]) -> _T:
    """What an attempt returns, after as many as it takes; InputError if nothing new arrives."""
    furthest, failures = 0, 0
    while True:
      try:
        return attempt()
      except _Broken as error:
        failures = 1 if error.reached > furthest else failures + 1
        furthest = max(furthest, error.reached)
        if failures >= self._attempts:
          raise errors.InputError(
            f"{url}: {error}; given up after {failures} attempts in a row: call again later, it "
            "goes on from what is there"
          ) from None
        time.sleep(min(max(self._pause * 2 ** (failures - 1), error.wait), _MOST_PAUSE))

  def _go_on(self, url: str, part: "_Part") -> None:
    """One attempt to get what is missing; all is there and right if it returns."""
    start = part.start()
    if not start or start != part.total:
      with self._open(url, part.conditions(start)) as response, part.writing(response, start):
        self._progress(part.name, part.length, part.total)
        for chunk in _chunks(response, lambda: part.length):
          part.append(chunk)
          self._progress(part.name, part.length, part.total)
    part.check()

  @contextlib.contextmanager
  def _open(self, url: str, headers: dict[str, str]) -> Iterator[requests.Response]:
    """The answer to a request, after redirects, of status 200, 206 or 416."""
    first = url
    check_address(url)
    for _ in range(_MOST_REDIRECTS + 1):
      try:
        response = self._session.get(
          url, headers=headers, stream=True, timeout=self._timeout, allow_redirects=False
        )
      except requests.exceptions.SSLError as error:
        raise errors.InputError(f"{url}: no secure connection: {error}") from None
      except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
        raise _Broken(str(error)) from None
      with response:
        if response.is_redirect:
          url = urllib.parse.urljoin(url, response.headers["Location"])
          check_address(url, first)
          continue
        status = f"the server answers {response.status_code} {response.reason}"
        if response.status_code in _RETRIED:
          wait = _number(response.headers.get("Retry-After", "")) or 0
          raise _Broken(status, wait=wait)
        if response.status_code not in (200, 206, 416):
          raise errors.InputError(f"{url}: {status}")
        if response.headers.get("Content-Encoding", "identity") != "identity":
          raise errors.InputError(f"{url}: the server sends an encoding that was not asked for")
        yield response
        return
    raise errors.InputError(f"{first}: more than {_MOST_REDIRECTS} redirects in a row")


class _Part:
  """The beginning of a file, on disk."""

  def __init__(self, path: pathlib.Path, file: File):
    self.name = path.name
    self._whole = path
    self._file = file
    self._path = path.with_name(path.name + ".part")
    self._about = path.with_name(path.name + ".part.json")
    self._stream: IO[bytes] | None = None
    self.length = 0
    self.total: int | None = None
    self._validator = ""
    self._pieces = 0

  def start(self) -> int:
    """How many bytes can be gone on from: 0 if none, or if nothing tells what they are of."""
    self.length, self.total, self._validator, self._pieces = 0, None, "", 0
    try:
      about = json.loads(self._about.read_text(encoding="utf-8"))
      size = self._path.stat().st_size
      url, validator, total, pieces = (about[x] for x in ("url", "validator", "total", "pieces"))
    except (OSError, ValueError, TypeError, KeyError):
      return 0
    known = isinstance(validator, str) and (validator or self._file.checksum)
    if url != self._file.url or not known or not isinstance(pieces, int):
      return 0
    if total is not None and (not isinstance(total, int) or size > total):
      return 0
    self.length, self.total, self._validator, self._pieces = size, total, validator, pieces
    return size

  def conditions(self, start: int) -> dict[str, str]:
    """Headers of a request for what is missing, and for all of it if the file has changed."""
    if not start:
      return {}
    headers = {"Range": f"bytes={start}-"}
    if self._validator:
      headers["If-Range"] = self._validator
    return headers

  @contextlib.contextmanager
  def writing(self, response: requests.Response, start: int) -> Iterator[None]:
    """Within it `append` takes the bytes of an answer to a request for those from `start`."""
    total = self._total(response, start)
    if total is not None and not self._file.fits(total):
      raise errors.InputError(
        f"{self._file.url}: {total:,} bytes on the server, {self._file.published} as published: it "
        f"is another file by now; look at it, and put it at {self._whole} by hand"
      )
    chunked = response.headers.get("Transfer-Encoding", "").lower() == "chunked"
    if total is None and not chunked and not (self._file.size or self._file.checksum):
      raise errors.InputError(
        f"{self._file.url}: nothing tells how long it is: put it at {self._whole} by hand"
      )
    if response.status_code == 200:
      self.drop()
    free = shutil.disk_usage(self._path.parent).free
    if total is not None and total - self.length > free:
      raise errors.InputError(
        f"{self._path}: {total - self.length:,} bytes are to come and the disk has room for "
        f"{free:,}: make room and call again"
      )
    self.total, self._validator = total, _validator(response)
    self._pieces += 1
    with self._room():
      self._stream = open(self._path, "ab")  # noqa: SIM115 (closed below)
      self._write_about()
    try:
      yield
    finally:
      stream, self._stream = self._stream, None
      with self._room():
        stream.close()
    if self.total is not None and self.length < self.total:
      raise _Broken(f"it ended after {self.length:,} of {self.total:,} bytes", self.length)

  def _total(self, response: requests.Response, start: int) -> int | None:
    """How many bytes the whole file has, if the answer says it."""
    if response.status_code == 200:
      return _number(response.headers.get("Content-Length", ""))
    parts = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range", ""))
    if response.status_code == 206 and parts and int(parts[1]) == start:
      total = int(parts[2])
      if self.total in (None, total):
        return total
    self.drop()
    raise _Broken("the server does not send the part that was asked for")

  def append(self, chunk: bytes) -> None:
    """Writes bytes that came."""
    most = self.total if self.total is not None else self._file.size
    if most is not None and self.length + len(chunk) > most:
      raise errors.InputError(f"{self._file.url}: the server sends more than {most:,} bytes")
    with self._room():
      self._stream.write(chunk)  # type: ignore[union-attr]
    self.length += len(chunk)

  def check(self) -> None:
    """Compares what is there with what was sent and published; what is wrong is dropped.

    Raises:
      _Broken: it was put together from several answers; another attempt begins anew.
      InputError: it came in one.
    """
    size = self._path.stat().st_size
    if size != self.length:  # Who else writes there?
      self.drop()
      raise errors.InputError(
        f"{self._path} has {size:,} bytes where {self.length:,} were written: something else "
        "writes there too; call again when that is done"
      )
    problem = difference(self._file, self._path)
    if not problem:
      return
    pieces = self._pieces
    self.drop()
    if pieces > 1:
      raise _Broken(f"what was put together from {pieces} parts {problem}")
    raise errors.InputError(
      f"{self._file.url}: what the server sends {problem}: it is another file by now, or was "
      "changed on the way; it was not kept"
    )

  def finish(self) -> None:
    """Gives the file its name."""
    with open(self._path, "rb") as stream:
      os.fsync(stream.fileno())
    os.replace(self._path, self._whole)
    self._about.unlink(missing_ok=True)

  def drop(self) -> None:
    """Forgets what is there."""
    self._about.unlink(missing_ok=True)
    self._path.unlink(missing_ok=True)
    self.length, self._pieces = 0, 0

  def _write_about(self) -> None:
    about = {
      "url": self._file.url,
      "validator": self._validator,
      "total": self.total,
      "pieces": self._pieces,
    }
    self._about.write_text(json.dumps(about), encoding="utf-8")

  @contextlib.contextmanager
  def _room(self) -> Iterator[None]:
    try:
      yield
    except OSError as error:
      if error.errno not in _FULL:
        raise
      raise errors.InputError(
        f"{self._path}: no room on the disk after {self.length:,} bytes ({error.strerror}): make "
        "room and call again, it goes on from there"
      ) from None


def check_address(url: str, first: str = "") -> None:
  """Raises InputError if an address is neither HTTPS nor on this machine.

  Args:
    url: The address.
    first: Where it was redirected from, if it was: only from this machine it may be on it.
  """
  parts = urllib.parse.urlsplit(url)
  local = parts.scheme == "http" and parts.hostname in _LOCAL
  if local and first:
    local = urllib.parse.urlsplit(first).hostname in _LOCAL
  if (parts.scheme != "https" and not local) or not parts.hostname:
    way = f"{first} redirects to {url}, which" if first else url
    raise errors.InputError(f"{way} is no HTTPS address: nothing is fetched from there")


def difference(file: File, path: pathlib.Path) -> str:
  """What tells a file on disk from what was published ("" if nothing): "has ..., not ..."."""
  size = path.stat().st_size
  if not file.fits(size):
    return f"has {size:,} bytes, not {file.published}"
  if not file.checksum:
    return ""
  kind, _, wanted = file.checksum.partition(":")
  if kind == "git":  # A blob's id is the hash of a header and the content.
    digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
  else:
    digest = hashlib.new(kind)
  with open(path, "rb") as stream:
    while chunk := stream.read(_CHUNK_BYTES):
      digest.update(chunk)
  found = digest.hexdigest()
  return "" if found == wanted else f"has the {kind} checksum {found}, not {wanted}"


def _chunks(response: requests.Response, reached: Callable[[], int]) -> Iterator[bytes]:
  """The bytes of an answer as they are sent; raises _Broken if the connection breaks."""
  try:
    yield from response.raw.stream(_CHUNK_BYTES, decode_content=False)
  except (urllib3.exceptions.HTTPError, requests.RequestException) as error:
    raise _Broken(str(error), reached()) from None


def _validator(response: requests.Response) -> str:
  """What tells this state of a file from later ones, or ""; a weak tag does not."""
  tag = response.headers.get("ETag", "")
  return tag if tag.startswith('"') else response.headers.get("Last-Modified", "")


def _number(text: str) -> int | None:
  return int(text) if text.isascii() and text.isdigit() else None
