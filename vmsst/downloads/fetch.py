"""Downloads over HTTPS: resumable, checked, and renamed into place when complete."""

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import pathlib
import re
import shutil
import stat
import urllib.parse
from collections.abc import Callable, Iterator
from typing import IO, TypeVar

import requests
import urllib3

import vmsst
from vmsst import errors
from vmsst.files import input_files

Progress = Callable[[str, int, int | None], None]
"""Gets the name of a file, its bytes so far, and its total bytes, if known."""

_T = TypeVar("_T")
_CHUNK_BYTES = 1 << 18
_LOCAL = ("localhost", "127.0.0.1", "::1")
_MAX_REDIRECTS = 10
_MAX_PAUSE = 60.0
_LONGEST_VALIDATOR = 1000
_LONGEST_ADDRESS = 8000
_NUMBER = "[0-9]{1,18}"  # of bytes
_MOST_BYTES = 10**18 - 1
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
  def most(self) -> int | None:
    """The largest number of bytes that agrees with the published size, or None."""
    if self.size is None and self.kib is not None:
      return (self.kib << 10) + 1023
    return self.size

  @property
  def published(self) -> str:
    """The published size, for messages."""
    return f"{self.size:,} bytes" if self.size is not None else f"{self.kib:,} KiB"


class _Broken(Exception):
  """A failure that another attempt may fix; `reached` is the number of bytes stored so far."""

  def __init__(self, message: str, reached: int = 0):
    super().__init__(message)
    self.reached = reached


class _Retry(urllib3.Retry):
  """Retries a request, and waits at most `_MAX_PAUSE` seconds if the server asks for more."""

  def get_retry_after(self, response: urllib3.BaseHTTPResponse) -> float | None:
    """Returns the seconds to wait by the server's Retry-After header; None if it is invalid."""
    try:
      seconds = super().get_retry_after(response)
    except (urllib3.exceptions.InvalidHeader, ValueError, OverflowError):
      return None
    return None if seconds is None else min(seconds, _MAX_PAUSE)


class _Session(requests.Session):
  """Leaves redirects to the caller: requests would read their bodies, of any size."""

  def get_redirect_target(self, resp: requests.Response) -> None:
    """Returns None: no redirect is followed."""


class Fetcher:
  """Downloads files one at a time over persistent connections; a context manager.

  Args:
    attempts: Attempts in a row without new bytes before an error is raised.
    timeout: Seconds to wait for a connection or for more bytes.
    pause: Backoff factor in seconds, as in `urllib3.Retry`.
    progress: Is called as bytes arrive.
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
    self._progress = progress or (lambda name, done, total: None)
    self._retries = _Retry(
      attempts - 1,
      other=0,  # such as a wrong certificate
      status_forcelist=_RETRIED,
      backoff_factor=pause,
      backoff_max=_MAX_PAUSE,
      raise_on_status=False,
    )
    self._session = _Session()
    for scheme in ("https://", "http://"):
      self._session.mount(scheme, requests.adapters.HTTPAdapter(max_retries=self._retries))
    self._session.headers.update(
      {"User-Agent": f"vmsst/{vmsst.__version__}", "Accept-Encoding": "identity"}
    )

  def __enter__(self) -> "Fetcher":
    return self

  def __exit__(self, *error: object) -> None:
    self._session.close()

  def fetch(self, file: File, path: pathlib.Path) -> bool:
    """Downloads a file to `path`, unless it is there.

    An incomplete file is `.NAME.vmsst-part`, next to a small `.NAME.vmsst-part.json` that
    identifies its source. After an interruption, the next call resumes it, or starts over if the
    file at that address has changed.

    Returns:
      Whether anything was downloaded: False if `path` has the published size and checksum.

    Raises:
      InputError: the file cannot be downloaded, differs from what was published, something else is
        at `path`, or the disk is full.
    """
    part = _Part(path, file)
    if _exists(path):
      if problem := difference(file, path):
        raise errors.InputError(f"{path} {problem}; remove it to download it again")
      part.drop()  # what a process killed in `finish` has left
      return False
    path.parent.mkdir(parents=True, exist_ok=True)
    self._persist(file.url, lambda: self._resume(file.url, part))
    part.finish()
    return True

  def read(self, url: str, most: int) -> bytes:
    """Returns the content of a file of at most `most` bytes; raises InputError as `fetch` does."""

    def attempt() -> bytes:
      content = bytearray()
      with self._open(url, {}) as response:
        for chunk in _chunks(response, lambda: 0):
          content += chunk
          if len(content) > most:
            raise errors.InputError(f"{url}: more than {most:,} bytes: not the expected file")
      return bytes(content)

    return self._persist(url, attempt)

  def _persist(self, url: str, attempt: Callable[[], _T]) -> _T:
    """Returns the result of an attempt, after retries; new bytes reset their count.

    The adapter retries requests; this retries what breaks off within a response.
    """
    furthest, retries = 0, self._retries
    while True:
      try:
        return attempt()
      except _Broken as error:
        if error.reached > furthest:
          furthest, retries = error.reached, self._retries
        try:
          broken = urllib3.exceptions.ProtocolError(str(error))
          retries = retries.increment("GET", url, error=broken)
        except urllib3.exceptions.MaxRetryError:
          raise self._give_up(url, str(error)) from None
        retries.sleep()

  def _resume(self, url: str, part: "_Part") -> None:
    """Downloads the missing bytes in one attempt; the file is complete if this returns."""
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
    """Yields the response to a request, after redirects, of status 200, 206 or 416."""
    first = url
    check_address(url)
    for _ in range(_MAX_REDIRECTS + 1):
      try:
        response = self._session.get(
          url, headers=headers, stream=True, timeout=self._timeout, allow_redirects=False
        )
      except requests.exceptions.SSLError as error:
        raise errors.InputError(f"{url}: no secure connection: {_reason(error)}") from None
      except requests.RequestException as error:
        raise self._give_up(url, _reason(error)) from None
      except (urllib3.exceptions.HTTPError, ValueError) as error:
        raise errors.InputError(f"{url}: not a valid address: {error}") from None
      with response:
        if response.is_redirect:
          url = _joined(url, response.headers["Location"])
          check_address(url, first)
          continue
        status = f"the server answers {response.status_code} {response.reason}"
        if response.status_code in _RETRIED:
          raise self._give_up(url, status)
        if response.status_code not in (200, 206, 416):
          raise errors.InputError(f"{url}: {status}")
        if response.headers.get("Content-Encoding", "identity") != "identity":
          raise errors.InputError(f"{url}: the server sends an encoding that was not requested")
        yield response
        return
    raise errors.InputError(f"{first}: more than {_MAX_REDIRECTS} redirects in a row")

  def _give_up(self, url: str, reason: str) -> errors.InputError:
    return errors.InputError(
      f"{url}: {reason}; gave up after {self._attempts} attempts: rerun the same command later to "
      "resume"
    )


class _Part:
  """An incomplete file on disk."""

  def __init__(self, path: pathlib.Path, file: File):
    self.name = path.name
    self._whole = path
    self._file = file
    self._path = path.with_name(f".{path.name}.vmsst-part")
    self._about = path.with_name(f".{path.name}.vmsst-part.json")
    self._stream: IO[bytes] | None = None
    self.length = 0
    self.total: int | None = None
    self._validator = ""
    self._pieces = 0

  def start(self) -> int:
    """Returns how many bytes can be resumed: 0 if there are none or their source is unknown."""
    self.length, self.total, self._validator, self._pieces = 0, None, "", 0
    for path in (self._path, self._about):
      remove_special(path)
    try:
      about = input_files.read_json(self._about)
      size = self._path.stat().st_size
      url, validator, total, pieces = (about[x] for x in ("url", "validator", "total", "pieces"))
    except (OSError, ValueError, TypeError, KeyError):
      return 0
    if not isinstance(validator, str) or not (validator or self._file.checksum):
      return 0
    if url != self._file.url or validator != _sendable(validator) or not isinstance(pieces, int):
      return 0
    if total is not None and (not isinstance(total, int) or not size <= total <= _MOST_BYTES):
      return 0
    self.length, self.total, self._validator, self._pieces = size, total, validator, pieces
    return size

  def conditions(self, start: int) -> dict[str, str]:
    """Returns headers that ask for the missing bytes, or for all bytes if the file has changed."""
    if not start:
      return {}
    headers = {"Range": f"bytes={start}-"}
    if self._validator:
      headers["If-Range"] = self._validator
    return headers

  @contextlib.contextmanager
  def writing(self, response: requests.Response, start: int) -> Iterator[None]:
    """Opens the file, so that `append` takes the response to a request for bytes from `start`."""
    total = self._total(response, start)
    if total is not None and not self._file.fits(total):
      raise errors.InputError(
        f"{self._file.url}: {total:,} bytes on the server, {self._file.published} as published: "
        f"the file has changed; check it and put it at {self._whole} by hand"
      )
    chunked = response.headers.get("Transfer-Encoding", "").lower() == "chunked"
    if total is None and not chunked and not (self._file.size or self._file.checksum):
      raise errors.InputError(
        f"{self._file.url}: its length is unknown; put it at {self._whole} by hand"
      )
    if response.status_code == 200:
      self.drop()
    free = shutil.disk_usage(self._path.parent).free
    if total is not None and total - self.length > free:
      raise errors.InputError(
        f"{self._path}: {total - self.length:,} bytes are missing and the disk has room for "
        f"{free:,}; make room and rerun the same command"
      )
    self.total, self._validator = total, _validator(response)
    self._pieces += 1
    with self._room(), open(self._path, "ab") as self._stream:
      self._write_about()
      yield
    if self.total is not None and self.length < self.total:
      raise _Broken(f"it ended after {self.length:,} of {self.total:,} bytes", self.length)

  def _total(self, response: requests.Response, start: int) -> int | None:
    """Returns the number of bytes of the complete file, if the response states it."""
    if response.status_code == 200:
      length = response.headers.get("Content-Length", "")
      return int(length) if re.fullmatch(_NUMBER, length) else None
    parts = re.fullmatch(
      rf"bytes ({_NUMBER})-{_NUMBER}/({_NUMBER})", response.headers.get("Content-Range", "")
    )
    if response.status_code == 206 and parts and int(parts[1]) == start:
      total = int(parts[2])
      if self.total in (None, total):
        return total
    self.drop()
    raise _Broken("the server does not send the requested range")

  def append(self, chunk: bytes) -> None:
    """Writes received bytes."""
    most = self.total if self.total is not None else self._file.most
    if most is not None and self.length + len(chunk) > most:
      raise errors.InputError(f"{self._file.url}: the server sends more than {most:,} bytes")
    with self._room():
      self._stream.write(chunk)  # type: ignore[union-attr]
    self.length += len(chunk)

  def check(self) -> None:
    """Compares the file with what was sent and published, and removes it if it differs.

    Raises:
      _Broken: it came in several responses; another attempt starts over.
      InputError: it came in one response.
    """
    size = self._path.stat().st_size
    if size != self.length:
      self.drop()
      raise errors.InputError(
        f"{self._path} has {size:,} bytes, but {self.length:,} were written: another process writes"
        " to it; wait for that process and rerun the same command"
      )
    problem = difference(self._file, self._path)
    if not problem:
      return
    pieces = self._pieces
    self.drop()
    if pieces > 1:
      raise _Broken(f"the file joined from {pieces} parts {problem}")
    raise errors.InputError(
      f"{self._file.url}: the file on the server {problem}: it has changed, or was altered on the "
      "way, and was not kept"
    )

  def finish(self) -> None:
    """Renames the complete file into place."""
    with open(self._path, "rb") as stream:
      os.fsync(stream.fileno())
    os.replace(self._path, self._whole)
    self._about.unlink(missing_ok=True)

  def drop(self) -> None:
    """Removes the incomplete file."""
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
        f"{self._path}: no room on the disk after {self.length:,} bytes ({error.strerror}); make "
        "room and rerun the same command to resume"
      ) from None


def check_address(url: str, first: str = "") -> None:
  """Raises InputError if an address is neither HTTPS nor on this machine.

  Args:
    url: The address.
    first: The address that redirects to it, if any; only an address on this machine may redirect to
      this machine.
  """
  scheme, host = _parts(url)
  local = scheme == "http" and host in _LOCAL
  if local and first:
    local = _parts(first)[1] in _LOCAL
  if (scheme != "https" and not local) or not host:
    shown = url if url.isprintable() else repr(url)
    way = f"{first} redirects to {shown}, which" if first else shown
    raise errors.InputError(f"{way} is not an HTTPS address; nothing was downloaded from there")


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
    found = hashlib.file_digest(stream, lambda: digest).hexdigest()
  return "" if found == wanted else f"has the {kind} checksum {found}, not {wanted}"


def _chunks(response: requests.Response, reached: Callable[[], int]) -> Iterator[bytes]:
  """Yields the bytes of a response as they arrive; raises _Broken if the connection breaks."""
  try:
    # Unlike iter_content, this also yields the bytes just before the connection breaks.
    yield from response.raw.stream(_CHUNK_BYTES, decode_content=False)
  except urllib3.exceptions.HTTPError as error:
    raise _Broken(str(error), reached()) from None


def _reason(error: requests.RequestException) -> str:
  """Returns the reason why a request failed, without the retries around it."""
  cause = error.args[0] if error.args else error
  return str(getattr(cause, "reason", None) or error)


def _validator(response: requests.Response) -> str:
  """Returns a value that identifies the file's version, or ""; a weak ETag does not count."""
  tag = response.headers.get("ETag", "")
  return _sendable(tag if tag.startswith('"') else response.headers.get("Last-Modified", ""))


def _sendable(validator: str) -> str:
  """Returns a validator that a header may contain, or ""."""
  plain = len(validator) <= _LONGEST_VALIDATOR and validator.isascii() and validator.isprintable()
  return validator if plain and validator == validator.strip() else ""


def _parts(url: str) -> tuple[str, str]:
  """Returns the scheme and the host of an address; "" for what is missing or invalid."""
  if not (url.isascii() and url.isprintable()) or len(url) > _LONGEST_ADDRESS:
    return "", ""
  try:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.hostname or "" if parts.port != 0 else ""
  except ValueError:  # such as an incomplete IPv6 address, or a port that is too large
    return "", ""


def _joined(url: str, location: str) -> str:
  """Returns the target of a redirect; an invalid one is returned as it is."""
  try:
    return urllib.parse.urljoin(url, location)
  except ValueError:
    return location


def _exists(path: pathlib.Path) -> bool:
  try:
    return path.exists()
  except (OSError, ValueError) as error:  # such as a link to itself, or a name that is too long
    raise errors.InputError(f"{path}: cannot be read: {input_files.reason(error)}") from None
