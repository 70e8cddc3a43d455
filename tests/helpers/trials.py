"""Runs readers on damaged files, made of valid ones by a random generator with a fixed seed.

Whatever a file contains, a reader reads it or raises an exception, within its time and memory. It
runs no code of the file, changes no other file, and leaves nothing in its output folder `out`
unless it succeeds.
"""

import contextlib
import gzip
import pathlib
import resource
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any, NamedTuple

import killed_commands

SECONDS = 20  # The machine may be busy: a reader takes milliseconds.
BYTES = 1 << 30


class Reader(NamedTuple):
  """A reader: its name, the content of valid files that it reads, by path, and what reads them.

  `read` gets the folder of the files, and may write to `out` in it.
  """

  name: str
  files: Mapping[str, bytes]
  read: Callable[[pathlib.Path], Any]


def lay_out(files: Mapping[str, bytes], folder: pathlib.Path) -> pathlib.Path:
  """Writes files below a folder; returns it."""
  for name, content in files.items():
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
  return folder


_INSERTED = (b"", b"-1", b"\0", b"\n", b"\t", b'"', b"\xff", b"{", b"nan", b"1e999", b"9" * 400)


def _noise(valid: bytes, random: Random) -> bytes:
  """Flips, repeats, removes or inserts some bytes."""
  start = random.randrange(len(valid) + 1)
  end = start + random.choice((1, 3, 20, 200))
  kind = random.randrange(3)
  if kind == 0:
    changed = bytearray(valid or b"\0")
    for _ in range(random.choice((1, 2, 8, 64))):
      changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)
  if kind == 1:
    return valid[:start] + valid[start:end] * random.choice((0, 2, 100)) + valid[end:]
  return valid[:start] + random.choice(_INSERTED) + valid[start:]


_CHANGES: dict[str, Callable[[bytes, Random], bytes]] = {
  "noise": _noise,
  "emptied": lambda valid, _: b"",
  "cut": lambda valid, random: valid[: random.randrange(len(valid) + 1)],
  "gzipped": lambda valid, _: gzip.compress(valid, mtime=0),
  "deep lists": lambda valid, _: b"[" * 50_000,
  "a pickle": lambda valid, _: b"\x80\x04\x8c\x08builtins\x8c\x05print\x93)R.",
  "without text": lambda valid, _: b"\n" * (valid.count(b"\n") + 1),
}


def check(reader: Reader, count: int, folder: pathlib.Path, seed: int = 0) -> None:
  """Raises AssertionError with the damaged files, of `count`, that a reader does not endure."""
  reader.read(lay_out(reader.files, folder / "valid"))
  random, names, faults = Random(f"{reader.name} {seed}"), list(reader.files), []
  for number in range(count):
    name = names[number % len(names)]
    change = random.choice(list(_CHANGES) if number % 2 else ["noise"])
    damaged = {**reader.files, name: _CHANGES[change](reader.files[name], random)}
    path = lay_out(damaged, folder / str(number))
    if fault := attempt(reader.read, path)[1]:
      faults.append(f"{reader.name}, case {number}: {name} with {change}: {fault}")
    shutil.rmtree(path)
  assert not faults, f"{len(faults)} of {count}\n" + "\n".join(faults)


def attempt(
  read: Callable[[pathlib.Path], Any], folder: pathlib.Path
) -> tuple[Exception | None, str]:
  """Returns the exception that a reader raised, if any, and what is wrong; "" if nothing is."""
  before, raised = _outside(folder), None
  try:
    with _limited():
      read(folder)
  except MemoryError:
    return None, f"took more than {BYTES} bytes"
  except _TookTooLongError:
    return None, f"took more than {SECONDS} seconds"
  except Exception as error:
    raised = error
  if changed := before ^ _outside(folder):
    return raised, f"changed {sorted(changed)}"
  if raised and (left := [path.name for path in (folder / "out").glob("*")]):
    return raised, f"{raised}, but left {left}"
  return raised, ""


def _outside(folder: pathlib.Path) -> set[tuple[str, bytes]]:
  return {
    item for item in killed_commands.contents(folder).items() if not item[0].startswith("out/")
  }


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
