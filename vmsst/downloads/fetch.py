"""Downloads files over HTTPS. Interrupted downloads can be resumed.

When a file is complete, it is checked and then renamed into place.

This module does not use an existing package, because pooch cannot resume downloads, and `http_get`
in huggingface_hub downloads only files of at most 50 GB from the Hub. Neither package checks
redirect targets, or compares the size reported by the server with the published size.
"""

import dataclasses
import glob
import hashlib
import http.client
import os
import pathlib
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any, TypeVar

import vmsst
from vmsst import errors
from vmsst.io import progress_bar

_T = TypeVar("_T")
_CHUNK_BYTES = 1 << 18
_LOCAL = ("localhost", "127.0.0.1", "::1")
_MAX_PAUSE = 60.0
_RETRIED = (408, 416, 425, 429, 500, 502, 503, 504)


@dataclasses.dataclass(frozen=True)
class File:
  """A file to download.

  Attributes:
    url: The URL. It must use HTTPS, unless the server is on this machine.
    size: Published size in bytes, if known.
    kib: Published size in KiB, rounded down, if the size in bytes is unknown.
    checksum: "sha256:HEX", or "git:HEX" for a Git blob id; "" if no checksum is published.
  """

  url: str
  size: int | None = None
  kib: int | None = None
  checksum: str = ""

  def difference(self, path: pathlib.Path) -> str:
    """Describes how a file on disk differs from the published file, or returns "" if it matches."""
    if problem := self.size_difference(path.stat().st_size):
      return problem
    if not self.checksum:
      return ""
    kind, _, expected = self.checksum.partition(":")
    digest = hashlib.new("sha256" if kind == "sha256" else "sha1", usedforsecurity=False)
    if kind == "git":  # A blob id is the SHA-1 of a header and the content.
      digest.update(b"blob %d\0" % path.stat().st_size)
    with open(path, "rb") as stream:
      actual = hashlib.file_digest(stream, lambda: digest).hexdigest()
    return "" if actual == expected else f"has the {kind} checksum {actual}, not {expected}"

  def size_difference(self, size: int) -> str:
    """Describes how a size differs from the published size, or returns "" if the sizes match."""
    if self.size in (None, size) and self.kib in (None, size >> 10):
      return ""
    published = f"{self.kib:,} KiB" if self.size is None else f"{self.size:,}"
    return f"has {size:,} bytes, not {published}"


class _Redirects(urllib.request.HTTPRedirectHandler):
  """Follows redirects, but only to URLs that `check_address` accepts."""

  def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str):
    """Checks the target of the redirect and returns a request to it."""
    check_address(newurl)
    return super().redirect_request(req, fp, code, msg, headers, newurl)


class Fetcher:
  """Downloads files, with a progress bar for each file.

  Args:
    attempts: Number of consecutive attempts without new bytes after which an error is raised.
    timeout: Seconds to wait for a connection or for more bytes.
    pause: Seconds before the second attempt. The pause doubles after each attempt.
  """

  def __init__(self, *, attempts: int = 6, timeout: float = 60.0, pause: float = 1.0):
    self._attempts = attempts
    self._timeout = timeout
    self._pause = pause
    self._opener = urllib.request.build_opener(_Redirects)
    self._opener.addheaders = [("User-Agent", f"vmsst/{vmsst.__version__}")]

  def fetch(self, file: File, path: pathlib.Path) -> bool:
    """Downloads a file to `path`, unless `path` already exists.

    An incomplete download is stored in a file next to `path`, and the next call resumes it. If the
    file on the server has changed since then, the download starts over.

    Returns:
      True if the file was downloaded; False if `path` already exists and matches the published
      file.

    Raises:
      InputError: If the file cannot be downloaded, or does not match the published size or
        checksum.
    """
    if path.exists():
      if problem := file.difference(path):
        raise errors.InputError(f"{path} {problem}; remove it to download it again")
      return False
    path.parent.mkdir(parents=True, exist_ok=True)
    part_file = self._persist(
      file.url,
      lambda: self._receive(file, path),
      lambda: sum(x.stat().st_size for x in _parts(path)),
    )
    if problem := file.difference(part_file):
      part_file.unlink()
      raise errors.InputError(
        f"{file.url}: the file {problem}, so it has changed on the server or was damaged in "
        "transit; the download was deleted; rerun the same command"
      )
    os.replace(part_file, path)
    return True

  def read(self, url: str) -> bytes:
    """Returns the content of a small file; raises InputError if the download fails."""

    def attempt() -> bytes:
      with self._open(url) as response:
        return response.read()

    return self._persist(url, attempt, lambda: 0)

  def _persist(self, url: str, attempt: Callable[[], _T], progress: Callable[[], int]) -> _T:
    """Calls `attempt` until a call succeeds, or too many calls in a row make no progress."""
    furthest = failures = 0
    while True:
      try:
        return attempt()
      except (OSError, http.client.HTTPException) as error:
        fatal = isinstance(error, urllib.error.HTTPError) and error.code not in _RETRIED
        if (reached := progress()) > furthest:
          furthest, failures = reached, 0
        failures += 1
        if fatal or failures >= self._attempts:
          raise errors.InputError(
            f"{url}: {error or type(error).__name__}; gave up after {failures} attempts; rerun the "
            "same command later to resume"
          ) from None
        time.sleep(min(self._pause * 2 ** (failures - 1), _MAX_PAUSE))

  def _open(self, url: str, start: int = 0) -> http.client.HTTPResponse:
    """Requests the bytes from `start` on, follows redirects and returns the response."""
    check_address(url)
    headers = {"Range": f"bytes={start}-"} if start else {}
    response: http.client.HTTPResponse = self._opener.open(
      urllib.request.Request(url, headers=headers), timeout=self._timeout
    )
    return response

  def _receive(self, file: File, path: pathlib.Path) -> pathlib.Path:
    """Downloads the missing bytes in one attempt; returns the path of the completed part file."""
    part_files = _parts(path)
    # Request the last downloaded byte again. If all bytes were already downloaded, a server would
    # reject a range that starts after the last byte.
    start = max(part_files[0].stat().st_size - 1, 0) if len(part_files) == 1 else 0
    try:
      response = self._open(file.url, start)
    except urllib.error.HTTPError as error:
      if error.code == 416:  # The file on the server has become shorter.
        _remove(part_files)
      raise
    with response:
      if response.status != 206:
        start = 0
      total = None if response.length is None else start + response.length
      problem = "" if total is None else file.size_difference(total)
      if total is None and not (response.chunked or file.size or file.checksum):
        problem = "has an unknown length"
      if problem:
        raise errors.InputError(
          f"{file.url} {problem}; check whether the file has changed, and copy it to {path} by hand"
        )
      version = response.headers["ETag"] or response.headers["Last-Modified"]
      part_file = part_path(path, file, version or "", total)
      in_range = response.headers.get("Content-Range", "").startswith(f"bytes {start}-")
      if start and not (part_file in part_files and in_range):
        _remove(part_files)
        raise ConnectionError("the file has changed")
      _remove([former for former in part_files if former != part_file])
      with (
        open(part_file, "r+b" if start else "wb") as stream,
        progress_bar.Bar(
          desc=path.name, initial=start, total=total, unit="B", unit_scale=True, leave=False
        ) as bar,
      ):
        stream.seek(start)
        while chunk := response.read(_CHUNK_BYTES):
          stream.write(chunk)
          bar.update(len(chunk))
        if total is not None and stream.tell() < total:
          raise ConnectionError(f"the download ended after {stream.tell():,} of {total:,} bytes")
    return part_file


def part_path(path: pathlib.Path, file: File, version: str, total: int | None) -> pathlib.Path:
  """Returns the path of an incomplete file.

  The file name contains a hash of the version on the server, so that a download resumes only if
  the server still offers the same version.

  Args:
    path: Path of the complete file.
    file: The file.
    version: Version of the file on the server; "" if unknown.
    total: Size of the complete file in bytes, if known.
  """
  if not version and not file.checksum:
    # Without a version or checksum, a resumed download could silently combine two versions of the
    # file. A unique name prevents resuming.
    version = str(time.time_ns())
  digest = hashlib.sha256(f"{file.url}\n{version}\n{total}".encode()).hexdigest()
  return path.with_name(f".{path.name}.{digest[:16]}.vmsst-part")


def _parts(path: pathlib.Path) -> list[pathlib.Path]:
  return list(path.parent.glob(f".{glob.escape(path.name)}.*.vmsst-part"))


def _remove(paths: list[pathlib.Path]) -> None:
  for path in paths:
    path.unlink()


def check_address(url: str) -> None:
  """Raises InputError unless a URL uses HTTPS or points to this machine."""
  address = urllib.parse.urlsplit(url)
  if address.scheme != "https" and not (address.scheme == "http" and address.hostname in _LOCAL):
    raise errors.InputError(f"{url!r} is not an HTTPS address, so nothing was downloaded from it")
