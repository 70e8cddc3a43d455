"""A unit of work: a description that any process can carry out, with one file as its output.

    @dataclasses.dataclass(frozen=True)
    class Count(base.Unit):
      text: str
      path: str

      @functools.cached_property
      def key(self):
        return base.digest("count", checksums.of_file(self.text))

      def make(self):
        lines = len(pathlib.Path(self.text).read_text().splitlines())
        atomic_files.write_text(self.path, str(lines))
        return {"lines": lines}

`engines.run("count", [Count(...), ...], engines.Local(workers=4))` makes the files that are
missing. What `make` returns is stored next to the file, with the key and the file's checksum;
`result` reads it. A `LineWriter` writes a file of lines in parts, and resumes after interruption.
"""

import abc
import concurrent.futures
import contextlib
import functools
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from vmsst import errors, storage
from vmsst.io import checksums
from vmsst.jobs import atomic_files, work_folders

RESUME = "finished files are kept; fix this and rerun the same command to resume"


class Unit(abc.ABC):
  """The base of frozen dataclasses that describe work; they must be picklable.

  A unit makes the same bytes wherever and however often it is made, even twice at the same time.

  Attributes:
    path: Output file, perhaps in an object store; a unit writes it atomically, with a temporary
      name of its own (`atomic_files.atomic_file(path)`).
  """

  path: str

  @property
  def size(self) -> int:
    """What progress bars count: 1, or the number of texts that an encoder counts."""
    return 1

  @property
  @abc.abstractmethod
  def key(self) -> str:
    """Hash of everything that the output depends on; see `digest`."""

  @abc.abstractmethod
  def make(self) -> dict[str, Any]:
    """Writes the file; returns facts about it that are kept, as for JSON."""

  def __str__(self) -> str:
    """Names the unit in messages."""
    return self.path


class StagedUnit(Unit):
  """A unit in three stages, which overlap with those of the units before and after it.

  Other threads call `read` of the next unit and `write` of the one before during `compute`.
  """

  @abc.abstractmethod
  def read(self) -> Any:
    """Reads and prepares the input."""

  @abc.abstractmethod
  def compute(self, prepared: Any) -> Any:
    """Computes the output from what `read` has returned, in the calling thread."""

  @abc.abstractmethod
  def write(self, computed: Any) -> dict[str, Any]:
    """Writes the file from what `compute` has returned; returns facts, as `make` does."""

  def make(self) -> dict[str, Any]:
    """Does all three stages."""
    return self.write(self.compute(self.read()))


def digest(*parts: object) -> str:
  """Returns a hash of JSON values, for keys."""
  content = json.dumps(parts, ensure_ascii=False, sort_keys=True)
  return hashlib.sha256(content.encode(errors="backslashreplace")).hexdigest()[:32]


def result(unit: Unit, *, verify: bool = False) -> dict[str, Any] | None:
  """Returns what a unit has stored; None if it is not done, or was done with other input.

  Args:
    unit: The unit.
    verify: Whether to read the whole file; None is returned if it has changed.
  """
  saved = _read_object(result_path(unit.path))
  if saved.get("key") == unit.key:
    with contextlib.suppress(FileNotFoundError, KeyError):
      same = saved["bytes"] == storage.size(unit.path)
      if same and (not verify or saved["sha256"] == checksums.of_file(unit.path)):
        return saved["made"]
  return None


def result_path(path: str) -> str:
  """Returns the file of the result of a unit with the output `path`."""
  return f"{path}.json"


def do(title: str, units: Sequence[Unit]) -> Iterator[Unit]:
  """Does units in this process, in order, unless they are done; yields each that is done.

  Raises:
    InputError: a unit failed for a reason outside the program; the message names the unit.
  """
  todo = []
  for unit in units:
    if result(unit, verify=True) is None:
      todo.append(unit)
    else:
      yield unit
  staged = [unit for unit in todo if isinstance(unit, StagedUnit)]
  yield from _do_staged(title, staged)
  for unit in todo:
    if not isinstance(unit, StagedUnit):
      with naming(title, unit):
        _store(unit, unit.make)
      yield unit


def _do_staged(title: str, units: Sequence[StagedUnit]) -> Iterator[Unit]:
  """Does units; reads one ahead and writes one behind, so that at most three are in memory."""
  if not units:
    return
  behind: tuple[StagedUnit, concurrent.futures.Future[None]] | None = None
  with (
    concurrent.futures.ThreadPoolExecutor(1, "read") as reader,
    concurrent.futures.ThreadPoolExecutor(1, "write") as writer,
  ):
    reading = reader.submit(units[0].read)
    for unit, after in zip(units, [*units[1:], None], strict=True):
      with naming(title, unit):
        prepared = reading.result()
        if after is not None:
          reading = reader.submit(after.read)
        computed = unit.compute(prepared)
      del prepared
      if behind is not None:
        yield _written(title, *behind)
      write = functools.partial(unit.write, computed)
      behind = unit, writer.submit(functools.partial(_store, unit, write))
      del computed, write
    if behind is not None:
      yield _written(title, *behind)


def _written(title: str, unit: Unit, writing: "concurrent.futures.Future[None]") -> Unit:
  with naming(title, unit):
    writing.result()
  return unit


def _store(unit: Unit, make: Callable[[], dict[str, Any]]) -> None:
  """Makes a unit's file and writes its result next to it."""
  path = result_path(unit.path)
  if _read_object(path).get("key") != unit.key:
    # It is not valid for the new file. One with this key may come from the same unit elsewhere.
    storage.remove(path)
  made = make()
  sha256 = made.get("sha256") or checksums.of_file(unit.path)
  saved = {"key": unit.key, "bytes": storage.size(unit.path), "sha256": sha256, "made": made}
  with atomic_files.atomic_file(path) as stream:
    stream.write(json.dumps(saved, ensure_ascii=False).encode(errors="backslashreplace"))


def _read_object(path: str) -> dict[str, Any]:
  """Returns the JSON object in a file; an empty one if it is missing or damaged."""
  try:
    with storage.open_binary(path) as stream:
      saved = json.load(stream)
  except (FileNotFoundError, ValueError):
    return {}
  return saved if isinstance(saved, dict) else {}


@contextlib.contextmanager
def naming(title: str, unit: Unit) -> Iterator[None]:
  """Turns errors with an outside cause into one that names the unit."""
  try:
    yield
  except (errors.InputError, OSError) as error:
    raise errors.InputError(f"{title} of {unit}: {error}; {RESUME}") from None
  except MemoryError:
    raise errors.InputError(
      f"{title} of {unit}: out of memory (use fewer workers); {RESUME}"
    ) from None


class LineWriter:
  """Writes lines that become FILE when it is complete.

  Until then, parts of it, with checksums, are in the work folder of FILE, which the caller owns
  (`work_folders.owned`). An equal writer resumes after them.

  Attributes:
    parts: Number of parts written so far.
  """

  def __init__(self, path: str | os.PathLike[str], settings: Any):
    """Opens an output.

    Args:
      path: Output file.
      settings: All that the lines depend on, as JSON. Parts of other settings are not used.
    """
    self._path = path
    self._work = work_folders.work_path(path)
    self._stem = f"lines-{digest(settings)}-"
    # Up to the first gap: the parts may have been removed in another order.
    self.parts = next(n for n in itertools.count() if self.lines(n) is None)

  def lines(self, number: int) -> list[str] | None:
    """Returns the lines of a part; None if it is missing or has changed since it was written."""
    part = _read_object(self._part(number))
    lines = part.get("lines")
    return lines if part.get("digest") == digest(self._stem, number, lines) else None

  def append(self, lines: Iterable[str]) -> None:
    """Writes a part, atomically."""
    lines = list(lines)
    part = {"digest": digest(self._stem, self.parts, lines), "lines": lines}
    atomic_files.write_bytes(self._part(self.parts), json.dumps(part).encode())
    self.parts += 1

  def finish(self) -> None:
    """Makes the file of all parts; raises InputError if one has changed since it was written."""
    with atomic_files.atomic_text(self._path) as stream:
      for number in range(self.parts):
        lines = self.lines(number)
        if lines is None:
          raise errors.InputError(f"{self._part(number)} has changed; rerun the same command")
        stream.writelines(f"{line}\n" for line in lines)
    work_folders.clear(self._work)

  def _part(self, number: int) -> str:
    return f"{self._work}/{self._stem}{number:06d}"
