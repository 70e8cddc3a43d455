"""Runs readers on malformed files and says what is not as it should be.

Whatever a file holds, a reader either reads it or raises InputError; within its time and memory,
without a process, a connection or a changed file, and without running what the file asks for.
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
from collections.abc import Callable, Iterable, Iterator, Mapping
from random import Random
from typing import Any

import mutations

from vmsst import errors

SECONDS = 20  # The machine may be busy: a reader takes milliseconds.
BYTES = 1 << 30
_LONGEST_MESSAGE = 3100
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
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
    name: Of it.
    files: Content of valid files, by path below a folder.
    read: Reads them, all of what they hold, given the folder.
    hostile: The files that are spoilt, one at a time; None: all.
    json: Those of them that hold a JSON document each.
    writes: Whether it may write below the folder `out` next to the files.
  """

  name: str
  files: Mapping[str, bytes]
  read: Callable[[pathlib.Path], Any]
  hostile: tuple[str, ...] | None = None
  json: tuple[str, ...] = ()
  writes: bool = False


class _TookTooLongError(BaseException):
  pass


def cases(reader: Reader, count: int, seed: int = 0) -> Iterator[tuple[str, mutations.Case]]:
  """The first `count` cases of a reader: (file, case), files taking turns, as do kinds of case."""
  random = Random(f"{reader.name} {seed}")
  names = list(reader.files if reader.hostile is None else reader.hostile)
  streams = []
  for name in names:
    fixed = [*mutations.places(), *mutations.contents()]
    random.shuffle(fixed)
    sources = [iter(fixed), mutations.noise(random)]
    if name in reader.json:
      values = mutations.json_values(reader.files[name], random)
      sources += [values, values, values]
    streams.append((name, itertools.cycle(range(len(sources))), sources))
  done = 0
  for name, turns, sources in itertools.cycle(streams):
    if done == count:
      return
    case = next(sources[next(turns)], None)
    if case is not None:
      done += 1
      yield name, case


def run(reader: Reader, chosen: Iterable[tuple[str, mutations.Case]], folder: pathlib.Path) -> str:
  """Runs cases; returns how they ended, in a line, and raises AssertionError for those that failed.

  Args:
    reader: Is checked on its valid files first.
    chosen: File and case.
    folder: To write to.
  """
  counts = {"refused": 0, "read": 0}
  with _laid_out(reader, folder / "valid") as place:
    reader.read(place)
  faults = []
  for number, (name, case) in enumerate(chosen):
    with _laid_out(reader, folder / str(number)) as place:
      case.apply(str(place / name))
      outcome, _ = attempt(reader, place)
    if outcome in counts:
      counts[outcome] += 1
    else:
      faults.append(f"{reader.name}, case {number}: {name} is {case.name}: {outcome}")
  assert not faults, f"{len(faults)} of {sum(counts.values()) + len(faults)}\n" + "\n".join(faults)
  total = sum(counts.values())
  return f"{reader.name}: {total} cases, {counts['refused']} refused, {counts['read']} read"


def attempt(reader: Reader, place: pathlib.Path) -> tuple[str, str]:
  """How it ends, and the message: "refused" or "read", or what is wrong."""
  before = _outside(place)
  done, message = "read", ""
  with _watched() as seen:
    try:
      with _limited():
        reader.read(place)
    except errors.InputError as error:
      done = "refused"
      message = str(error)
      if not message or len(message) > _LONGEST_MESSAGE:
        done = f"a message of {len(message)} letters: {message[:80]}"
    except _TookTooLongError:
      done = f"took more than {SECONDS} seconds"
    except BaseException as error:
      if isinstance(error, KeyboardInterrupt):
        raise
      last = traceback.extract_tb(error.__traceback__)[-1]
      done = f"{type(error).__name__}: {str(error)[:100]!r} ({last.filename}:{last.lineno})"
  allowed = str(place / "out")
  strange = [each for each in seen if not (reader.writes and allowed in each)]
  if strange:
    return f"did {strange[:3]}", message
  after = _outside(place)
  if after != before:
    return f"changed {sorted(after ^ before)}", message
  if done != "read" and (place / "out").exists() and any((place / "out").iterdir()):
    return f"{done}, but left {sorted(_listing(place / 'out'))}", message
  return done, message


@contextlib.contextmanager
def _laid_out(reader: Reader, place: pathlib.Path) -> Iterator[pathlib.Path]:
  for name, content in reader.files.items():
    path = place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
  yield place
  shutil.rmtree(place)


def _outside(place: pathlib.Path) -> set[str]:
  return {path for path in _listing(place) if path.split(os.sep)[0] != "out"}


def _listing(folder: pathlib.Path) -> set[str]:
  return {str(path.relative_to(folder)) for path in folder.rglob("*")}


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
    if (isinstance(flags, int) and flags & _WRITES) or (mode and set(mode) & set("wax+")):
      _seen.append(f"open {path} {mode}")
  elif event in _ACTIONS and not (event == "os.mkdir" and os.path.isdir(args[0])):
    _seen.append(f"{event} {' '.join(map(str, (*_folder(args), *args)))}")


def _folder(args: tuple[Any, ...]) -> list[str]:
  """The folders that the paths of an event are relative to."""
  opened = (each for each in args[1:] if isinstance(each, int) and 0 <= each < 1 << 16)
  links = (f"/proc/self/fd/{each}" for each in opened)
  return [os.readlink(link) for link in links if os.path.islink(link)]


@contextlib.contextmanager
def _watched() -> Iterator[list[str]]:
  """What happens that a reader has no business to do."""
  global _seen
  if not getattr(sys, "_vmsst_audit", False):
    sys.addaudithook(_hook)
    sys._vmsst_audit = True
  _seen = []
  try:
    yield _seen
  finally:
    _seen = None
