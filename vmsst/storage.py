"""Reads and writes users' files, on this machine or in an object store (`gs://`, `s3://`).

This module accesses object stores through fsspec. Each kind of store requires an extra
(`vmsst[gcs]`, `vmsst[s3]`). A store has no folders and cannot rename objects, so a group of objects
cannot be written under a temporary name and renamed when it is complete. However, a single object
becomes visible only when it is complete. Therefore, the last object to be written marks the whole
group as complete.

Import this module before etils.epath opens a URL. The import makes epath use fsspec instead of
TensorFlow. Orbax accesses files through epath, so Orbax and this library then see the same files.
"""

import atexit
import bisect
import contextlib
import errno
import functools
import glob
import io
import logging
import os
import pathlib
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from vmsst import errors

if TYPE_CHECKING:
  from etils import epath

  Path: TypeAlias = pathlib.Path | epath.Path
else:
  Path = Any

_SCHEMES = ("gs", "gcs", "s3", "s3a")
STORES = {"gs": "gcs", "s3": "s3"}
"""The vmsst extra that installs the package for each supported scheme."""

UNFINISHED = ".vmsst"
"""Name of the subfolder for unfinished files. Only the job that writes these files may use them."""

_BUFFER = 1 << 18
_GAP = 1 << 18

os.environ.setdefault("EPATH_USE_TF", "false")


def is_url(path: str | os.PathLike[str]) -> bool:
  """Returns whether a path is the URL of an object store, such as `gs://bucket/name`."""
  return re.match(r"[A-Za-z][\w+.-]*://", os.fspath(path)) is not None


def path(location: str | os.PathLike[str]) -> "Path":
  """Returns a pathlib path, or an etils.epath path for a URL.

  Raises:
    InputError: If the scheme is unknown, or if the package for it is not installed.
  """
  if not is_url(location):
    return pathlib.Path(location)
  scheme = os.fspath(location).split("://")[0]
  if scheme not in STORES:
    raise errors.InputError(
      f"{os.fspath(location)}: {scheme}:// is not supported; use a local path, "
      + " or ".join(f"{name}://" for name in STORES)
    )
  filesystem(os.fspath(location))
  from etils import epath

  return epath.Path(location)


def filesystem(url: str) -> Any:
  """Returns the fsspec file system for a URL. Its methods raise InputError if the store fails.

  The methods may also raise FileNotFoundError and FileExistsError. The file system does not cache
  folder listings, because listings change when other processes, or TensorStore in this process,
  write to the store.

  Raises:
    InputError: If the scheme is unknown, or if the package for it is not installed.
  """
  import fsspec

  scheme = url.split("://")[0]
  for name in _SCHEMES:  # Set globally, because epath creates its own file systems.
    fsspec.config.conf.setdefault(name, {}).setdefault("use_listings_cache", False)
  logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # gcsfs logs every error that it raises.
  try:
    fsspec.get_filesystem_class(scheme)
  except ImportError as error:
    extra = STORES.get(scheme)
    advice = f"pip install 'vmsst[{extra}]'" if extra else str(error)
    raise errors.InputError(f"{url}: no package for {scheme}:// is installed; {advice}") from None
  except ValueError as error:  # The scheme is unknown.
    raise errors.InputError(f"{url}: {error}") from None
  return _Store(url, fsspec.filesystem(scheme))


class _Store:
  """Converts errors from an fsspec file system, or from an open fsspec file, to InputError."""

  def __init__(self, url: str, system: Any):
    self._url = url
    self._system = system

  def __getattr__(self, name: str) -> Any:
    method = getattr(self._system, name)
    if not callable(method):
      return method
    verb = {"put": "written", "pip": "written", "cp_": "written", "rm": "removed", "rm_": "removed"}

    def call(*args: Any, **options: Any) -> Any:
      try:
        return method(*args, **options)
      except FileExistsError:
        raise
      except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._url) from None
      except Exception as error:
        message = " ".join(str(getattr(error, "message", None) or error).split())[:500]
        raise errors.InputError(
          f"{self._url} cannot be {verb.get(name[:3], 'read')}: {type(error).__name__}: {message}"
        ) from error

    return call


def check_local(path: str | os.PathLike[str], what: str) -> None:
  """Raises InputError if a path is a URL. `what` names the path in the message."""
  if is_url(path):
    raise errors.InputError(
      f"{os.fspath(path)}: {what} cannot be in an object store; use a local path"
    )


def names(folder: str | os.PathLike[str]) -> set[str]:
  """Returns the names of the entries in a folder, or an empty set if the folder does not exist."""
  if not is_url(folder):
    return set(os.listdir(folder)) if os.path.isdir(folder) else set()
  url = os.fspath(folder).rstrip("/")
  system = filesystem(url)
  try:
    entries = system.ls(system._strip_protocol(url), detail=False)
  except FileNotFoundError:
    return set()
  return {entry.rstrip("/").rsplit("/", 1)[-1] for entry in entries} - {""}


def matches(pattern: str) -> list[str]:
  """Returns the absolute paths of the files that match a shell pattern, sorted.

  In a pattern, `**` matches any number of folders, and `~` is the home folder. If a file has
  exactly the name given as the pattern, only this file matches. Therefore, a file name with
  brackets, such as `a[1].tsv`, is a valid pattern for the file itself.
  """
  if glob.has_magic(pattern) and is_file(os.path.expanduser(pattern)):
    return [absolute(os.path.expanduser(pattern))]
  if not is_url(pattern):
    full = os.path.abspath(os.path.expanduser(pattern))
    return sorted(path for path in glob.glob(full, recursive=True) if os.path.isfile(path))
  scheme = pattern.split("://")[0]
  entries = filesystem(pattern).glob(pattern, detail=True)
  return sorted(
    f"{scheme}://{path.lstrip('/')}" for path, info in entries.items() if info["type"] == "file"
  )


def find(folder: "Path", pattern: str) -> list["Path"]:
  """Returns the files and folders in a folder that match a shell pattern, sorted.

  In a pattern, `**` matches any number of folders. Patterns match hidden files, too.
  """
  if not is_url(folder):
    return sorted(folder.glob(pattern))
  url = os.fspath(folder)
  scheme = url.split("://")[0]
  entries = filesystem(url).glob(f"{glob.escape(url)}/{pattern}")
  return sorted(path(f"{scheme}://{entry.strip('/')}") for entry in entries)


def refuse(error: OSError) -> None:
  """Error handler for `os.walk`: raises InputError if an existing folder cannot be listed."""
  if not isinstance(error, FileNotFoundError):
    raise errors.InputError(f"{error.filename}: cannot be read: {error.strerror}") from None


def files_below(folder: str | os.PathLike[str], *, through_links: bool = False) -> list[str]:
  """Returns the relative paths of all files below a folder; none if the folder does not exist.

  Args:
    folder: The folder.
    through_links: Whether to follow links to folders. Each folder is read once, even if several
      links point to the same folder or links form a loop.

  Raises:
    InputError: If a folder cannot be listed.
  """
  if not is_url(folder):
    files: list[str] = []
    visited: set[str] = set()
    for inside, folders, names in os.walk(folder, onerror=refuse, followlinks=through_links):
      real_path = os.path.realpath(inside)
      if real_path in visited:
        folders.clear()
        continue
      visited.add(real_path)
      folders.sort()
      files += (os.path.relpath(os.path.join(inside, name), folder) for name in names)
    return files
  system = filesystem(os.fspath(folder))
  root = system._strip_protocol(os.fspath(folder)).rstrip("/")
  # S3 consoles represent a folder as an object whose name ends with a slash.
  return [name[len(root) + 1 :] for name in system.find(root) if not name.endswith("/")]


def exists(path: str | os.PathLike[str]) -> bool:
  """Returns whether a path exists, as a file or a folder."""
  if is_url(path):
    return bool(filesystem(os.fspath(path)).exists(os.fspath(path)))
  return os.path.exists(path)


def is_file(path: str | os.PathLike[str]) -> bool:
  """Returns whether a path is an existing file."""
  if is_url(path):
    return bool(filesystem(os.fspath(path)).isfile(os.fspath(path)))
  return pathlib.Path(path).is_file()


def absolute(path: str | os.PathLike[str]) -> str:
  """Returns an absolute path with `~` expanded. URLs are returned unchanged."""
  return os.fspath(path) if is_url(path) else os.path.abspath(os.path.expanduser(path))


def size(path: str | os.PathLike[str]) -> int:
  """Returns the size of a file in bytes."""
  if is_url(path):
    return int(filesystem(os.fspath(path)).size(os.fspath(path)))
  return os.path.getsize(path)


def version(path: str | os.PathLike[str]) -> object:
  """Returns a value that changes when a file is written.

  For a local file, the value consists of the size, the modification time and the status change
  time. Programs such as `rsync -t` and `cp -p` set the modification time to an earlier time, but
  they cannot set the status change time.
  """
  if is_url(path):
    return str(filesystem(os.fspath(path)).ukey(os.fspath(path)))
  status = os.stat(path)
  return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def remove(path: str | os.PathLike[str]) -> None:
  """Removes a file, or a folder and its contents. Does nothing if the path does not exist."""
  with contextlib.suppress(FileNotFoundError):
    if is_url(path):
      system, url = filesystem(os.fspath(path)), os.fspath(path)
      if glob.has_magic(url):  # `system.rm` would interpret the URL as a pattern.
        for name in system.find(url):
          system.rm_file(name)
      else:
        system.rm(url, recursive=True)
    elif os.path.isdir(path) and not os.path.islink(path):
      shutil.rmtree(path)
    else:
      os.remove(path)


def rename(folder: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
  """Renames a folder. In an object store, copies the objects and then removes the originals."""
  if not is_url(folder):
    os.rename(folder, target)
    return
  source, system = os.fspath(folder).rstrip("/"), filesystem(os.fspath(folder))
  for name in files_below(source):
    system.cp_file(f"{source}/{name}", f"{os.fspath(target).rstrip('/')}/{name}")
  remove(folder)


def write(url: str, content: bytes) -> None:
  """Writes bytes to an object."""
  filesystem(url).pipe_file(url, content)


def check_writable(url: str) -> None:
  """Writes and removes a test object below a URL. Raises InputError if this fails."""
  probe = f"{url.rstrip('/')}/.write_test_{socket.gethostname()}_{os.getpid()}"
  write(probe, b"")
  remove(probe)


def download(url: str, target: pathlib.Path) -> None:
  """Copies a file, or a folder and its contents, from a store to this machine."""
  system = filesystem(url)
  if not system.isdir(url):
    if not system.exists(url):
      raise errors.InputError(f"{url} cannot be read: no such file")
    system.get_file(url, os.fspath(target))
    return
  for name in files_below(url):
    local = _below(target, name)
    local.parent.mkdir(parents=True, exist_ok=True)
    system.get_file(f"{url.rstrip('/')}/{name}", os.fspath(local))


def _below(folder: pathlib.Path, name: str) -> pathlib.Path:
  """Returns the local path below `folder` for an object's name."""
  if ".." in name.split("/"):
    raise errors.InputError(f"{name} cannot be copied; rename the folder named ..")
  return folder / name.lstrip("/")


@contextlib.contextmanager
def local_copy(location: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
  """Yields a local path for a file or folder. For a URL, this is the path of a temporary copy.

  The temporary path ends with the path in the URL. Error messages show the URL instead.

  Raises:
    InputError: If the file or folder cannot be read.
  """
  if not is_url(location):
    yield pathlib.Path(location)
    return
  url = os.fspath(location).rstrip("/")
  scheme, _, inside = url.partition("://")
  with (
    tempfile.TemporaryDirectory(prefix="vmsst-") as folder,
    rename_in_errors(f"{folder}/", f"{scheme}://"),
  ):
    copy = _below(pathlib.Path(folder), inside)
    copy.parent.mkdir(parents=True, exist_ok=True)
    download(url, copy)
    yield copy


@functools.cache
def cached_copy(path: str) -> str:
  """Returns a local path for a file. A file in a store is copied once per process.

  Raises:
    InputError: If the file cannot be read.
  """
  if not is_url(path):
    return path
  local = os.path.join(tempfile.mkdtemp(dir=process_folder()), os.path.basename(path))
  download(path, pathlib.Path(local))
  return local


@functools.cache
def process_folder() -> str:
  """Returns a temporary local folder that is removed when the process ends."""
  folder = tempfile.mkdtemp(prefix="vmsst-")
  atexit.register(shutil.rmtree, folder, ignore_errors=True)
  return folder


@contextlib.contextmanager
def rename_in_errors(local: str, original: str) -> Iterator[None]:
  """Replaces a temporary path with the user's path in InputError messages."""
  try:
    yield
  except errors.InputError as error:
    raise errors.InputError(str(error).replace(local, original)) from None


def upload(local: pathlib.Path, url: str) -> None:
  """Uploads a local file. The object becomes visible only when it is complete."""
  filesystem(url).put_file(os.fspath(local), url)


def read_ranges(url: str, starts: Sequence[int], size: int) -> list[bytes]:
  """Reads ranges from an object: `size` bytes from each start.

  Ranges that are close together are read in one request, because a second request takes longer than
  reading the bytes between them.
  """
  from fsspec import utils

  urls, firsts, ends = utils.merge_offset_ranges(
    [url] * len(starts), list(starts), [start + size for start in starts], max_gap=_GAP
  )
  blocks = filesystem(url).cat_ranges(urls, firsts, ends, on_error="raise")
  numbers = [bisect.bisect_right(firsts, start) - 1 for start in starts]
  offsets = [start - firsts[n] for n, start in zip(numbers, starts, strict=True)]
  return [blocks[n][x : x + size] for n, x in zip(numbers, offsets, strict=True)]


def open_binary(path: str | os.PathLike[str]) -> IO[bytes]:
  """Opens a file for reading. A file in an object store is streamed, without a local copy.

  If the connection to a store is lost, reading raises InputError. Otherwise, the file would seem to
  end where the connection was lost.
  """
  if is_url(path):
    # fsspec's files do not support `readline` with a maximum length, but BufferedReader does.
    url = os.fspath(path)
    return io.BufferedReader(_Store(url, filesystem(url).open(url, "rb")), _BUFFER)
  return open(path, "rb")
