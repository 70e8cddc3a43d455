"""Runs readers on malformed files and describes what is not as it should be.

Whatever a file contains, a reader either reads it or raises InputError with a short message, within
its time and memory. It starts no process and no connection, runs no code of the file, changes no
file, and leaves nothing in its output folder `out` unless it succeeds.
"""

import contextlib
import dataclasses
import itertools
import os
import pathlib
import resource
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any

import mutations

from vmsst import errors

SECONDS = 20  # The machine may be busy: a reader takes milliseconds.
BYTES = 1 << 30
_LONGEST_MESSAGE = 3100
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_ACTIONS = (
  "socket.connect", "socket.getaddrinfo", "socket.sendto", "subprocess.Popen", "os.system",
  "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.remove", "os.rename", "os.rmdir",
  "os.mkdir", "os.symlink", "os.link", "os.truncate", "shutil.rmtree", "pty.spawn",
  "pickle.find_class",
)  # fmt: skip
_seen: list[str] | None = None


@dataclasses.dataclass(frozen=True)
class Reader:
  """A reader and files that it reads.

  Attributes:
    name: Its name.
    files: Content of valid files, by path below a folder. They are spoilt one at a time.
    read: Reads all of them, given the folder; may write to `out` in it.
    kept: Names of files in `out` that a refusal may leave.
  """

  name: str
  files: Mapping[str, bytes]
  read: Callable[[pathlib.Path], Any]
  kept: tuple[str, ...] = ()


def lay_out(files: Mapping[str, bytes], folder: pathlib.Path) -> pathlib.Path:
  """Writes files below a folder; returns it."""
  for name, content in files.items():
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
  return folder


def files_below(folder: pathlib.Path) -> dict[str, bytes]:
  """Returns the content of all files below a folder, by path."""
  paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
  return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def _cases(reader: Reader, count: int, seed: int) -> Iterator[tuple[str, mutations.Case]]:
  """Yields files with cases; the files take turns, as do kinds of case."""
  random = Random(f"{reader.name} {seed}")
  streams = []
  for name, content in reader.files.items():
    fixed = mutations.fixed()
    random.shuffle(fixed)
    sources = [iter(fixed), mutations.noise(random)]
    sources += [mutations.json_values(content, random)] * 3
    streams.append((name, itertools.cycle(sources)))
  endless = ((name, next(next(turns), None)) for name, turns in itertools.cycle(streams))
  return itertools.islice(((name, case) for name, case in endless if case), count)


def check(reader: Reader, count: int, folder: pathlib.Path, seed: int = 0) -> None:
  """Raises AssertionError with the malformed files, of `count`, that are not read or refused."""
  reader.read(lay_out(reader.files, folder / "valid"))
  faults = []
  for number, (name, case) in enumerate(_cases(reader, count, seed)):
    place = lay_out(reader.files, folder / str(number))
    case.apply(str(place / name))
    outcome, _ = attempt(reader.read, place, reader.kept)
    if outcome not in ("read", "refused"):
      faults.append(f"{reader.name}, case {number}: {name} is {case.name}: {outcome}")
    shutil.rmtree(place)
  assert not faults, f"{len(faults)} of {count}\n" + "\n".join(faults)


def attempt(
  read: Callable[[pathlib.Path], Any], place: pathlib.Path, kept: tuple[str, ...] = ()
) -> tuple[str, str]:
  """Returns how it ends, "refused", "read" or what is wrong, and the message."""
  before = _outside(place)
  done, message = "read", ""
  with _watched() as seen:
    try:
      with _limited():
        read(place)
    except errors.InputError as error:
      done, message = "refused", str(error)
      if not message or len(message) > _LONGEST_MESSAGE:
        done = f"a message of {len(message)} letters: {message[:80]}"
    except _TookTooLongError:
      done = f"took more than {SECONDS} seconds"
    except KeyboardInterrupt:
      raise
    except BaseException as error:
      last = traceback.extract_tb(error.__traceback__)[-1]
      done = f"{type(error).__name__}: {str(error)[:100]!r} ({last.filename}:{last.lineno})"
  strange = [each for each in seen if str(place / "out") not in each]
  if strange:
    return f"did {strange[:3]}", message
  if changed := before ^ _outside(place):
    return f"changed {sorted(changed)}", message
  left = {path.name for path in (place / "out").glob("*")} - set(kept)
  if done != "read" and left:
    return f"{done}, but left {sorted(left)}", message
  return done, message


def _outside(place: pathlib.Path) -> set[str]:
  paths = (str(path.relative_to(place)) for path in place.rglob("*"))
  return {path for path in paths if path.split(os.sep)[0] != "out"}


class _TookTooLongError(BaseException):
  pass


@contextlib.contextmanager
def _limited() -> Iterator[None]:
  """Limits time and memory."""

  def stop(*_: Any) -> None:
    raise _TookTooLongError

  with open("/proc/self/statm", encoding="ascii") as stream:
    mapped = int(stream.read().split()[0]) * resource.getpagesize()
  limits = resource.getrlimit(resource.RLIMIT_AS)
  former = signal.signal(signal.SIGALRM, stop)
  signal.setitimer(signal.ITIMER_REAL, SECONDS)
  resource.setrlimit(resource.RLIMIT_AS, (mapped + BYTES, limits[1]))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_AS, limits)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, former)


def _hook(event: str, args: tuple[Any, ...]) -> None:
  if _seen is None:
    return
  if event == "open":
    path, mode, flags = args
    if (isinstance(flags, int) and flags & WRITES) or (mode and set(mode) & set("wax+")):
      _seen.append(f"open {path} {mode}")
  elif event in _ACTIONS and not (event == "os.mkdir" and os.path.isdir(args[0])):
    # The folders that the paths of an event are relative to.
    opened = (each for each in args[1:] if isinstance(each, int) and 0 <= each < 1 << 16)
    links = (f"/proc/self/fd/{each}" for each in opened)
    folders = (os.readlink(link) for link in links if os.path.islink(link))
    _seen.append(f"{event} {' '.join(map(str, (*folders, *args)))}")


@contextlib.contextmanager
def _watched() -> Iterator[list[str]]:
  """Yields what happens that a reader has no business to do."""
  global _seen
  if not getattr(sys, "_vmsst_audit", False):
    sys.addaudithook(_hook)
    sys._vmsst_audit = True  # type: ignore[attr-defined]
  _seen = []
  try:
    yield _seen
  finally:
    _seen = None
