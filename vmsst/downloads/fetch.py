"""Downloads over HTTPS: resumable, checked, and renamed into place when complete.

pooch does not resume; `http_get` of huggingface_hub is for its own files of at most 50 GB. Neither
checks where redirects lead, nor a published size before the download.
"""

import contextlib
import dataclasses
import errno
import hashlib
import http.client
import os
import pathlib
import re
import shutil
import ssl
import stat
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import vmsst
from vmsst import errors
from vmsst.io import input_files, progress_bar
from vmsst.jobs import atomic_files

_T = TypeVar("_T")
_CHUNK_BYTES = 1 << 18
_LOCAL = ("localhost", "127.0.0.1", "::1")
_MAX_PAUSE = 60.0
_LONGEST_ADDRESS = 8000
_NUMBER = "[0-9]{1,18}"  # of bytes
_RETRIED = (408, 425, 429, 500, 502, 503, 504)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclasses.dataclass(frozen=True)
class File:
  """A file to download.

  Attributes:
    url: HTTPS, or HTTP on this machine.
    size: Published size in bytes, if known.
    kib: Published size in KiB, rounded down, if only that is known.
    checksum: "sha256:HEX", or "git:HEX", the id of a Git blob; "" if none is published.
  """

  url: str
  size: int | None = None
  kib: int | None = None
  checksum: str = ""

  def fits(self, size: int) -> bool:
    """Returns whether a number of bytes agrees with the published size."""
    return self.size in (None, size) and self.kib in (None, size >> 10)

  @property
  def published(self) -> str:
    """The published size, for messages."""
    return f"{self.size:,} bytes" if self.size is not None else f"{self.kib:,} KiB"


class _BrokenError(Exception):
  """A failure that another attempt may fix.

  Attributes:
    reached: Number of bytes stored so far.
    pause: Seconds to wait, if the server says so.
  """

  def __init__(self, message: str, reached: int = 0, pause: float | None = None):
    super().__init__(message)
    self.reached = reached
    self.pause = pause


class _ChangedError(_BrokenError):
  """The server's file is not the one that was begun."""


class _Redirects(urllib.request.HTTPRedirectHandler):
  """Follows redirects to allowed addresses, without reading what comes with them."""

  def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str):
    """Returns the request to the new address."""
    fp.close()
    check_address(newurl, req.full_url)
    return super().redirect_request(req, fp, code, msg, headers, newurl)


class Fetcher:
  """Downloads files, with a progress bar each.

  Args:
    attempts: Attempts in a row without new bytes before an error is raised.
    timeout: Seconds to wait for a connection or for more bytes.
    pause: Seconds before the second attempt; doubles with every further one.
  """

  def __init__(self, *, attempts: int = 6, timeout: float = 60.0, pause: float = 1.0):
    self._attempts = attempts
    self._timeout = timeout
    self._pause = pause
    self._opener = urllib.request.build_opener(_Redirects)
    self._opener.addheaders = [("User-Agent", f"vmsst/{vmsst.__version__}")]

  def fetch(self, file: File, path: pathlib.Path) -> bool:
    """Downloads a file to `path`, unless it is there.

    An incomplete file is `part_path`, whose name identifies its source. After an interruption, the
    next call resumes it, or starts over if the file at that address has changed.

    Returns:
      Whether anything was downloaded: False if `path` has the published size and checksum.

    Raises:
      InputError: the file cannot be downloaded, differs from what was published, something else is
        at `path`, or the disk is full.
    """
    try:
      exists = path.exists()
    except (OSError, ValueError) as error:  # such as a link to itself, or a name that is too long
      raise errors.InputError(f"{path}: cannot be read: {input_files.reason(error)}") from None
    if exists:
      if problem := difference(file, path):
        raise errors.InputError(f"{path} {problem}; remove it to download it again")
      return False
    path.parent.mkdir(parents=True, exist_ok=True)
    part = self._persist(file.url, lambda: self._resume(file, path))
    if problem := difference(file, part):
      part.unlink()
      raise errors.InputError(
        f"{file.url}: the file {problem}: it has changed, or was altered on the way, and was not "
        "kept; rerun the same command"
      )
    atomic_files.sync_to_disk(part)
    os.replace(part, path)
    return True

  def read(self, url: str, most: int) -> bytes:
    """Returns the content of a file of at most `most` bytes; raises InputError as `fetch` does."""

    def attempt() -> bytes:
      content = bytearray()
      with self._opened(url) as response:
        for chunk in _chunks(response, lambda: 0):
          content += chunk
          if len(content) > most:
            raise errors.InputError(f"{url}: more than {most:,} bytes: not the expected file")
      return bytes(content)

    return self._persist(url, attempt)

  def _persist(self, url: str, attempt: Callable[[], _T]) -> _T:
    """Returns the result of an attempt, after retries; new bytes reset their count."""
    furthest = failures = 0
    while True:
      try:
        return attempt()
      except _BrokenError as error:
        if error.reached > furthest:
          furthest, failures = error.reached, 0
        failures += 1
        if failures >= self._attempts:
          raise errors.InputError(
            f"{url}: {error}; gave up after {failures} attempts: rerun the same command later to "
            "resume"
          ) from None
        backoff = self._pause * 2 ** (failures - 1)
        time.sleep(min(backoff if error.pause is None else error.pause, _MAX_PAUSE))

  def _resume(self, file: File, path: pathlib.Path) -> pathlib.Path:
    """Downloads the missing bytes in one attempt; returns the complete part."""
    name = re.compile(re.escape(f".{path.name}.") + r"[0-9a-f]{16}\.vmsst-part")
    parts = [part for part in path.parent.iterdir() if name.fullmatch(part.name)]
    for part in parts:
      remove_special(part)
    parts = [part for part in parts if part.exists()]
    # The last byte again, because a server has no range after the end of a complete part.
    start = max(parts[0].stat().st_size - 1, 0) if len(parts) == 1 else 0
    try:
      return self._receive(file, path, parts, start)
    except _ChangedError:
      for part in parts:
        part.unlink(missing_ok=True)
      raise

  def _receive(
    self, file: File, path: pathlib.Path, parts: list[pathlib.Path], start: int
  ) -> pathlib.Path:
    """Requests the bytes from `start` and writes them; returns the complete part."""
    with self._opened(file.url, start) as response:
      total = _total(response, start)
      if response.status == 200:
        start = 0
      if total is None and not response.chunked and not (file.size or file.checksum):
        raise errors.InputError(f"{file.url}: its length is unknown; put it at {path} by hand")
      if total is not None and not file.fits(total):
        raise errors.InputError(
          f"{file.url}: {total:,} bytes on the server, {file.published} as published: the file has "
          f"changed; check it and put it at {path} by hand"
        )
      version = response.headers.get("ETag", "")
      if not version.startswith('"'):  # A weak ETag does not identify the file's version.
        version = response.headers.get("Last-Modified", "")
      part = part_path(path, file, version, total)
      if start and part not in parts:
        raise _ChangedError("the file has changed")
      for former in () if start else parts:
        former.unlink()
      free = shutil.disk_usage(path.parent).free
      if total is not None and total - start > free:
        raise errors.InputError(
          f"{part}: {total - start:,} bytes are missing and the disk has room for {free:,}; make "
          "room and rerun the same command"
        )
      most = file.size if total is None else total
      if most is None and file.kib is not None:
        most = (file.kib << 10) + 1023
      with (
        _room(part),
        open(part, "r+b" if start else "xb") as stream,
        progress_bar.Bar(
          desc=path.name, initial=start, total=total, unit="B", unit_scale=True, leave=False
        ) as bar,
      ):
        stream.seek(start)
        for chunk in _chunks(response, stream.tell):
          if most is not None and stream.tell() + len(chunk) > most:
            raise errors.InputError(f"{file.url}: the server sends more than {most:,} bytes")
          stream.write(chunk)
          bar.update(len(chunk))
        stream.truncate()
        if total is not None and stream.tell() < total:
          reached = stream.tell()
          raise _BrokenError(f"it ended after {reached:,} of {total:,} bytes", reached)
    return part

  @contextlib.contextmanager
  def _opened(self, url: str, start: int = 0) -> Iterator[http.client.HTTPResponse]:
    """Yields the response to a request for the bytes from `start`, after redirects."""
    check_address(url)
    headers = {"Range": f"bytes={start}-"} if start else {}
    try:
      response = self._opener.open(
        urllib.request.Request(url, headers=headers), timeout=self._timeout
      )
    except urllib.error.HTTPError as error:
      error.close()
      status = f"the server answers {error.code} {' '.join(str(error.msg).split())[:200]}"
      if error.code == 416:
        raise _ChangedError(status) from None
      if error.code in _RETRIED:
        wait = error.headers.get("Retry-After", "")
        raise _BrokenError(status, pause=float(wait) if wait.isdecimal() else None) from None
      raise errors.InputError(f"{url}: {status}") from None
    except errors.InputError:
      raise
    except (ValueError, http.client.InvalidURL) as error:
      raise errors.InputError(f"{url}: not a valid address: {error}") from None
    except (OSError, http.client.HTTPException) as error:
      cause = getattr(error, "reason", error)
      if isinstance(cause, ssl.SSLError):
        raise errors.InputError(f"{url}: no secure connection: {cause}") from None
      raise _BrokenError(str(cause)[:200] or type(cause).__name__) from None
    with response:
      if response.headers.get("Content-Encoding", "identity") != "identity":
        raise errors.InputError(f"{url}: the server sends an encoding that was not requested")
      yield response


def part_path(path: pathlib.Path, file: File, validator: str, total: int | None) -> pathlib.Path:
  """Returns the path of an incomplete file, which only the same version of a file resumes.

  Args:
    path: The path of the complete file.
    file: The file.
    validator: Identifies the version of the file; "": unknown.
    total: Bytes of the complete file, if known.
  """
  if not validator and not file.checksum:
    validator = str(time.time_ns())  # Nothing would show that two parts are of one version.
  source = f"{file.url}\n{validator}\n{total}".encode(errors="backslashreplace")
  return path.with_name(f".{path.name}.{hashlib.sha256(source).hexdigest()[:16]}.vmsst-part")


def _total(response: http.client.HTTPResponse, start: int) -> int | None:
  """Returns the number of bytes of the complete file, if the response states it."""
  if response.status == 200:
    length = response.headers.get("Content-Length", "")
    return int(length) if re.fullmatch(_NUMBER, length) else None
  parts = re.fullmatch(
    rf"bytes ({_NUMBER})-{_NUMBER}/({_NUMBER})", response.headers.get("Content-Range", "")
  )
  if response.status == 206 and start and parts and int(parts[1]) == start:
    return int(parts[2])
  raise _ChangedError("the server does not send the requested range")


def _chunks(response: http.client.HTTPResponse, reached: Callable[[], int]) -> Iterator[bytes]:
  """Yields the bytes of a response as they arrive."""
  while True:
    try:
      chunk = response.read1(_CHUNK_BYTES)
    except (OSError, ValueError, http.client.HTTPException) as error:
      raise _BrokenError(str(error) or type(error).__name__, reached()) from None
    if not chunk:
      return
    yield chunk


@contextlib.contextmanager
def _room(part: pathlib.Path) -> Iterator[None]:
  """Turns the error of a full disk into InputError."""
  try:
    yield
  except OSError as error:
    if error.errno not in _FULL:
      raise
    raise errors.InputError(
      f"{part}: no room on the disk ({error.strerror}); make room and rerun the same command to "
      "resume"
    ) from None


def check_address(url: str, first: str = "") -> None:
  """Raises InputError if an address is neither HTTPS nor on this machine.

  Args:
    url: The address.
    first: The address that redirects to it, if any; only an address on this machine may redirect to
      this machine.
  """
  scheme, host = _scheme_and_host(url)
  local = scheme == "http" and host in _LOCAL
  if local and first:
    local = _scheme_and_host(first)[1] in _LOCAL
  if (scheme != "https" and not local) or not host:
    shown = url if url.isprintable() else repr(url)
    way = f"{first} redirects to {shown}, which" if first else shown
    raise errors.InputError(f"{way} is not an HTTPS address; nothing was downloaded from there")


def _scheme_and_host(url: str) -> tuple[str, str]:
  """Returns the scheme and the host of an address; "" for what is missing or invalid."""
  if not (url.isascii() and url.isprintable()) or len(url) > _LONGEST_ADDRESS:
    return "", ""
  try:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.hostname or "" if parts.port != 0 else ""
  except ValueError:  # such as an incomplete IPv6 address, or a port that is too large
    return "", ""


def remove_special(path: pathlib.Path) -> None:
  """Removes a link, pipe or device; raises InputError for a folder.

  Writing to them could hang or change other files.
  """
  try:
    mode = path.lstat().st_mode
  except OSError:
    return
  if stat.S_ISDIR(mode):
    raise errors.InputError(
      f"{path}: not a file but a folder; remove it and rerun the same command"
    )
  if not stat.S_ISREG(mode):
    path.unlink()


def difference(file: File, path: pathlib.Path) -> str:
  """Returns how a file on disk differs from the published one, as "has ..., not ...", or "".

  Raises:
    InputError: it is not a file.
  """
  input_files.check(path)
  size = path.stat().st_size
  if not file.fits(size):
    return f"has {size:,} bytes, not {file.published}"
  if not file.checksum:
    return ""
  kind, _, wanted = file.checksum.partition(":")
  # The id of a Git blob is the SHA-1 of a header and the content.
  digest = (
    hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False) if kind == "git" else hashlib.new(kind)
  )
  with open(path, "rb") as stream:
    actual = hashlib.file_digest(stream, lambda: digest).hexdigest()
  return "" if actual == wanted else f"has the {kind} checksum {actual}, not {wanted}"
