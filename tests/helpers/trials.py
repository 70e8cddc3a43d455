"""Runs readers on malformed files, made of valid ones by a random generator with a fixed seed.

Whatever a file contains, a reader either reads it or raises InputError with a short message, within
its time and memory. It starts no process and no connection, runs no code of the file, changes no
file, and leaves nothing in its output folder `out` unless it succeeds.
"""

import contextlib
import functools
import gzip
import json
import os
import pathlib
import resource
import shutil
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any, NamedTuple

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


class Reader(NamedTuple):
  """A reader: its name, the content of valid files that it reads, by path, and what reads them.

  Files are spoilt one at a time. `read` is given their folder, and may write to `out` in it, where
  a refusal may leave files of the names `kept`.
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


class Case(NamedTuple):
  """What a malformed file is, and what puts it in the place of a valid one at a path."""

  name: str
  apply: Callable[[str], Any]


_NUMBERS = (0, 1, 255, 1 << 31, (1 << 32) - 1, 1 << 62, (1 << 63) - 1, (1 << 64) - 1)

_VALUES: tuple[Any, ...] = (
  None, True, -1, 0, 3, 1 << 31, 1 << 63, 10**18, 10**400, 0.5, -1e308, float("nan"), float("inf"),
  "", "x", "\ud800", "\0", "../../outside", "/etc/passwd", "file:///etc/passwd", "x" * 5000,
  "\udce9", [], {}, [[]], [None], {"x": None}, [0] * 1000, json.loads("[" * 800 + "]" * 800),
)  # fmt: skip

_INSERTED = (
  b"", b"-1", b"\0", b"\n", b"\r", b"\t", b"\t\t\t", b'"', b"\\u0000", b"<", b"&x;", b"\xff", b"{",
  b"-", b"nan", b"inf", b"1e999", b"9" * 400, "\u2028".encode(),
  b"<!DOCTYPE a [<!ENTITY x 'y'>]>",
)  # fmt: skip

_PLACES: dict[str, Callable[[str], Any]] = {
  "a folder": os.mkdir,
  "a pipe": os.mkfifo,
  "a link to itself": lambda path: os.symlink(os.path.basename(path), path),
  "an endless device": lambda path: os.symlink("/dev/zero", path),
  "missing": lambda path: None,
}

_CONTENTS: dict[str, Callable[[bytes], bytes]] = {
  "empty": lambda valid: b"",
  "0xFF": lambda valid: b"\xff" * 5000,
  "a long line": lambda valid: b"a" * 3_000_000,
  "deep lists": lambda valid: b"[" * 50_000,
  "deep objects": lambda valid: b'{"a":' * 50_000,
  "a pickle": lambda valid: b"\x80\x04\x8c\x08builtins\x8c\x05print\x93)R.",
  "without its last byte": lambda valid: valid[:-1],
  "gzipped": lambda valid: gzip.compress(valid, mtime=0),
  "half of its gzip": lambda valid: gzip.compress(valid, mtime=0)[: len(valid) // 4 + 12],
  "with a byte order mark": lambda valid: b"\xef\xbb\xbf" + valid,
  "with a lone surrogate": lambda valid: valid[: len(valid) // 2] + b"\xed\xa0\x80" + valid,
  "all lines empty": lambda valid: b"\n" * (valid.count(b"\n") + 1),
  "with CR line ends": lambda valid: valid.replace(b"\n", b"\r"),
  "Latin-1": lambda valid: b"caf\xe9\n" * (valid.count(b"\n") + 1),
  "in utf-16": lambda valid: valid.decode("utf-8", "replace").encode("utf-16"),
  "in cp500": lambda valid: valid.decode("utf-8", "replace").encode("cp500", "replace"),
  "said to be in utf-16": lambda valid: valid.replace(b"utf-8", b"utf-16"),
}


def _content(name: str, change: Callable[[bytes], bytes]) -> Case:
  def apply(path: str) -> None:
    valid = pathlib.Path(path).read_bytes()
    pathlib.Path(path).write_bytes(change(valid))

  return Case(name, apply)


def contents() -> list[Case]:
  """Returns contents that are wrong for every format."""
  return [_content(name, change) for name, change in _CONTENTS.items()]


def fixed() -> list[Case]:
  """Returns `contents`, and other things in the place of a file."""
  places = (
    Case(name, lambda path, make=make: (os.remove(path), make(path)))
    for name, make in _PLACES.items()
  )
  return [*contents(), *places]


def noise(random: Random) -> Iterator[Case]:
  """Yields random changes of some bytes, without end."""
  while True:
    yield _content("noise", functools.partial(_changed, random=Random(random.random())))


def _changed(valid: bytes, random: Random) -> bytes:
  start = random.randrange(len(valid) + 1)
  end = start + random.choice((1, 3, 20, 200))
  kind = random.randrange(7)
  if kind == 0:
    changed = bytearray(valid or b"\0")
    for _ in range(random.choice((1, 1, 2, 8, 64))):
      changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)
  if kind == 1:  # a count, length or offset of a header
    packed = struct.pack(random.choice(("<Q", ">Q")), random.choice(_NUMBERS))
    number = packed[: random.choice((2, 4, 8))]
    start = random.randrange(min(len(valid), 200) + 1)
    return valid[:start] + number + valid[start + len(number) :]
  if kind in (2, 3):
    return valid[:start] + valid[start:end] * random.choice((0, 0, 2, 4, 100)) + valid[end:]
  if kind == 4:
    return valid[:start] + random.choice((*_INSERTED, random.randbytes(9))) + valid[start:]
  mark = b"\n" if kind == 5 else b"\t"
  parts = valid.split(mark)
  parts[random.randrange(len(parts))] = random.choice((*parts, *_INSERTED))
  return mark.join(parts)


def _changed_json(valid: bytes, random: Random) -> bytes:
  """Changes a value of JSON, or of the first of JSON Lines; of other files some bytes."""
  for text in (valid, valid.partition(b"\n")[0]):
    with contextlib.suppress(ValueError):
      record = json.loads(text)
      break
  else:
    return _changed(valid, random)
  parent: Any = [record]
  key: Any = 0
  while isinstance(inner := parent[key], dict | list) and inner and random.random() < 0.8:
    parent = inner
    key = random.choice([*inner] if isinstance(inner, dict) else range(min(len(inner), 12)))
  what = random.choice(("value", "value", "value", "missing", "unknown"))
  if what == "missing" and parent is not record:
    del parent[key]
  else:
    parent["unknown" if what == "unknown" and isinstance(parent, dict) else key] = random.choice(
      _VALUES
    )
  return json.dumps(record).encode() + valid[len(text) :]


def _cases(reader: Reader, count: int, seed: int) -> Iterator[tuple[str, Case]]:
  """Yields files with cases; the files take turns, as do kinds of case."""
  random = Random(f"{reader.name} {seed}")
  known, spoilt = fixed(), noise(random)
  for number in range(count):
    turn, place = divmod(number, len(reader.files))
    change = functools.partial(_changed_json, random=Random(random.random()))
    kinds = (random.choice(known), next(spoilt), *[_content("of another value", change)] * 3)
    yield list(reader.files)[place], kinds[turn % 5]


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
  strange: list[str] = []
  with listening(lambda event, args: strange.extend(_strange(event, args, place))):
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


def opens_to_write(event: str, args: tuple[Any, ...]) -> bool:
  """Returns whether an audit event is that a file is opened for writing."""
  return event == "open" and isinstance(args[2], int) and bool(args[2] & _WRITES)


def _strange(event: str, args: tuple[Any, ...], place: pathlib.Path) -> Iterator[str]:
  """Yields an event if it is something that a reader has no business to do."""
  is_known = event == "os.mkdir" and os.path.isdir(args[0])
  if opens_to_write(event, args) or (event in _ACTIONS and not is_known):
    # The folders that the paths of an event are relative to.
    opened = (each for each in args[1:] if isinstance(each, int) and 0 <= each < 1 << 16)
    links = (f"/proc/self/fd/{each}" for each in opened)
    folders = (os.readlink(link) for link in links if os.path.islink(link))
    shown = f"{event} {' '.join(map(str, (*folders, *args)))}"
    if str(place / "out") not in shown:
      yield shown


_listeners: list[Callable[[str, tuple[Any, ...]], Any]] = []


def _hook(event: str, args: tuple[Any, ...]) -> None:
  for listener in _listeners:
    listener(event, args)


@contextlib.contextmanager
def listening(listener: Callable[[str, tuple[Any, ...]], Any]) -> Iterator[None]:
  """Calls a function at each of Python's audit events, also of other threads."""
  if not getattr(sys, "_vmsst_audit", False):
    sys.addaudithook(_hook)
    sys._vmsst_audit = True  # type: ignore[attr-defined]
  _listeners.append(listener)
  try:
    yield
  finally:
    _listeners.remove(listener)
