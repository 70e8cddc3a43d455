"""Downloads over HTTPS: resumable, checked, and renamed into place when complete.

pooch does not resume; `http_get` of huggingface_hub is for its own files of at most 50 GB. Neither
checks where redirects lead, nor a published size before the download.
"""

import contextlib
import dataclasses
import hashlib
import http.client
import os
import pathlib
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import vmsst
from vmsst import errors
from vmsst.io import input_files, progress_bar
from vmsst.jobs import outputs

_T = TypeVar("_T")
_CHUNK_BYTES = 1 << 18
_LOCAL = ("localhost", "127.0.0.1", "::1")
_MAX_PAUSE = 60.0
_RETRIED = (408, 416, 425, 429, 500, 502, 503, 504)
_PART = ".vmsst-part"


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
    changed: Whether the server's file is not the one that was begun.
  """

  def __init__(
    self, message: str, reached: int = 0, pause: float | None = None, changed: bool = False
  ):
    super().__init__(message)
    self.reached, self.pause, self.changed = reached, pause, changed


class _Redirects(urllib.request.HTTPRedirectHandler):
  """Follows redirects to allowed addresses."""

  def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str):
    """Returns the request to the new address."""
    check_address(newurl)
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
      InputError: the file cannot be downloaded, differs from what was published, or something else
        is at `path`.
    """
    if path.exists():
      if problem := difference(file, path):
        raise errors.InputError(f"{path} {problem}; remove it to download it again")
      return False
    path.parent.mkdir(parents=True, exist_ok=True)
    part = self._persist(file.url, lambda: self._receive(file, path))
    if problem := difference(file, part):
      part.unlink()
      raise errors.InputError(
        f"{file.url}: the file {problem}: it has changed, or was altered on the way, and was not "
        "kept; rerun the same command"
      )
    outputs.sync_to_disk(part)
    os.replace(part, path)
    return True

  def read(self, url: str, most: int) -> bytes:
    """Returns the content of a file of at most `most` bytes; raises InputError as `fetch` does."""

    def attempt() -> bytes:
      with self._opened(url) as response:
        return response.read(most + 1)

    content = self._persist(url, attempt)
    if len(content) > most:
      raise errors.InputError(f"{url}: more than {most:,} bytes: not the expected file")
    return content

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

  def _receive(self, file: File, path: pathlib.Path) -> pathlib.Path:
    """Downloads the missing bytes in one attempt; returns the complete part."""
    names = (name for name in os.listdir(path.parent) if name.startswith(f".{path.name}."))
    parts = [path.with_name(name) for name in names if name.endswith(_PART)]
    # The last byte again, because a server has no range after the end of a complete part.
    start = max(parts[0].stat().st_size - 1, 0) if len(parts) == 1 else 0
    try:
      with self._opened(file.url, start) as response:
        if response.status == 200:
          start = 0
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
          raise _BrokenError("the server does not send the requested range", changed=True)
        total = None if response.length is None else start + response.length
        if total is None and not response.chunked and not (file.size or file.checksum):
          raise errors.InputError(f"{file.url}: its length is unknown; put it at {path} by hand")
        if total is not None and not file.fits(total):
          raise errors.InputError(
            f"{file.url}: {total:,} bytes on the server, {file.published} as published: the file "
            f"has changed; check it and put it at {path} by hand"
          )
        version = response.headers.get("ETag", "")
        if not version.startswith('"'):  # A weak ETag does not identify the file's version.
          version = response.headers.get("Last-Modified", "")
        part = part_path(path, file, version, total)
        if start and part not in parts:
          raise _BrokenError("the file has changed", changed=True)
        for former in () if start else parts:
          former.unlink()
        with (
          open(part, "r+b" if start else "xb") as stream,
          progress_bar.Bar(
            desc=path.name, initial=start, total=total, unit="B", unit_scale=True, leave=False
          ) as bar,
        ):
          reached, chunk = stream.seek(start), b"-"
          while chunk:
            try:
              chunk = response.read1(_CHUNK_BYTES)
            except (OSError, http.client.HTTPException) as error:
              raise _BrokenError(str(error) or type(error).__name__, reached) from None
            reached += stream.write(chunk)
            bar.update(len(chunk))
        if total is not None and reached < total:
          raise _BrokenError(f"it ended after {reached:,} of {total:,} bytes", reached)
    except _BrokenError as error:
      for former in parts if error.changed else ():
        former.unlink()
      raise
    return part

  @contextlib.contextmanager
  def _opened(self, url: str, start: int = 0) -> Iterator[http.client.HTTPResponse]:
    """Yields the response to a request for the bytes from `start`, after redirects."""
    check_address(url)
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
      response = self._opener.open(request, timeout=self._timeout)
    except urllib.error.HTTPError as error:
      status = f"the server answers {error.code} {error.msg}"
      if error.code not in _RETRIED:
        raise errors.InputError(f"{url}: {status}") from None
      wait = error.headers.get("Retry-After", "")
      pause = float(wait) if wait.isdecimal() else None
      raise _BrokenError(status, pause=pause, changed=error.code == 416) from None
    except (OSError, http.client.HTTPException) as error:
      raise _BrokenError(str(error) or type(error).__name__) from None
    with response:
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
  return path.with_name(f".{path.name}.{hashlib.sha256(source).hexdigest()[:16]}{_PART}")


def check_address(url: str) -> None:
  """Raises InputError if an address is neither HTTPS nor on this machine."""
  parts = urllib.parse.urlsplit(url)
  if not parts.hostname or not (
    parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOCAL)
  ):
    raise errors.InputError(f"{url} is not an HTTPS address; nothing was downloaded from there")


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
