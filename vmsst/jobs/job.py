"""A job: one output, written in parts, that resumes after an interruption.

    with job.Job("vectors", inputs={"text": {"name": path, "digest": sha256}}) as work:
      if not work.finished:
        parts = [job.Part(f"vectors-{n:05d}.npy", (span,)) for n, span in enumerate(spans)]
        work.run("embed", functools.partial(embed_span, encoder), parts)
        work.finish(lines=count)

`embed_span(encoder, path, span)` writes a file to `path`, and may return facts about it. It writes
the same bytes wherever and however often it runs. A part is done again unless its file is the one
that was written with the same inputs and options.
"""

import contextlib
import functools
import os
import pathlib
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from vmsst import errors, storage
from vmsst.io import input_files, manifest, progress_bar
from vmsst.jobs import engines, outputs

# Network file systems may hide a new file for up to a minute from those who looked for it before.
_VISIBLE_SECONDS = 90


class Part(msgspec.Struct, frozen=True):
  """A part of a job: a file that one call of a function writes.

  Attributes:
    name: The file, relative to the job's folder. Files in `.vmsst/` are removed when the job is
      finished.
    arguments: Arguments of the function; must be picklable.
    key: What the file depends on besides the job's inputs and options and its name, as JSON.
    size: What the progress bar counts, such as a number of lines.
    title: What messages call the part; default: its name.
  """

  name: str
  arguments: tuple[Any, ...] = ()
  key: Any = None
  size: int = 1
  title: str = ""

  def __str__(self) -> str:
    return self.title or self.name


class Job:
  """Work on an output, which this process alone writes inside `with`.

  A folder has the record of its job in `job.json` when it is finished. Until then, the record and
  intermediate files are in the work folder; see `outputs.work_path`. A file has a work folder only
  while it is not finished.

  Attributes:
    folder: Absolute path or URL of the parts: the output folder, or the work folder of a file.
    finished: Whether the output is a folder that is complete, with all its parts unchanged.
    facts: What `finish` stored, if the job is finished.
  """

  finished = False

  def __init__(
    self,
    output: str | os.PathLike[str],
    *,
    inputs: Mapping[str, Any],
    options: Mapping[str, Any] = types.MappingProxyType({}),
    is_folder: bool = True,
    replace: bool = False,
  ):
    """Describes a job.

    Args:
      output: The output, local or in an object store.
      inputs: What the output is computed from; see `vmsst.io.manifest`.
      options: Options that it depends on.
      is_folder: Whether the output is a folder or a file.
      replace: Whether to start over if the folder is of other inputs or options; files stay until
        they are replaced.
    """
    self._output, self._is_folder, self._replace = os.fspath(output), is_folder, replace
    # What JSON makes of them is what a rerun reads.
    self._record = msgspec.json.decode(
      msgspec.json.encode(manifest.Record(dict(inputs), dict(options)), enc_hook=str),
      type=manifest.Record,
    )
    self._key = manifest.digest(manifest.identity(self._record.inputs), self._record.options)
    self._work = outputs.work_path(output, is_folder=is_folder)
    self.folder = storage.absolute(output).rstrip("/") if is_folder else self._work
    self._parts: dict[str, manifest.Part] = {}
    self._verified: dict[str, str] = {}  # SHA-256 of files that were read, by part
    self.facts: dict[str, Any] = {}

  def __enter__(self) -> "Job":
    """Locks the output and reads its record.

    Raises:
      InputError: another process writes the output, or a folder has other files or is of a job with
        other inputs or options.
    """
    with contextlib.ExitStack() as stack:
      stack.enter_context(outputs.ownership(self._output, is_folder=self._is_folder))
      paths = [os.path.join(folder, manifest.NAME) for folder in (self.folder, self._work)]
      path = next(filter(storage.is_file, paths), None)
      fixed = self._is_folder and not self._replace
      if path is None and fixed and _visible(self.folder):
        raise errors.InputError(
          f"{self._output} has files that this command did not write; give another folder"
        )
      stored = path and manifest.parse(path, "delete the folder and start over")
      if path and stored:
        changes = manifest.differences(stored.settings, self._record.settings)
        if changes and fixed:
          raise errors.InputError(
            f"{self._output} is of another job: {changes}; give another folder, or delete it"
          )
        if changes:
          outputs.clear(self._work)
          storage.remove(path)
          stored = None
      self._is_new = not stored
      if stored:
        self._parts, self.facts = dict(stored.parts), stored.facts
        self.finished = stored.finished and all(
          self._is_unchanged(name, part) for name, part in stored.parts.items()
        )
      else:
        self._write(f"{self._work}/{manifest.NAME}", msgspec.json.encode(self._record))
      self._stack = stack.pop_all()
    return self

  def __exit__(self, kind: object, error: object, trace: object) -> None:
    """Unlocks the output; removes the work folder if the job is finished or has written nothing."""
    # A kill at the end of `finish` leaves the work folder, too.
    is_empty = not self._parts and not (self._is_folder and _visible(self.folder))
    if self.finished if error is None else self._is_new and is_empty:
      outputs.clear(self._work)
    self._stack.close()

  def __getstate__(self) -> dict[str, Any]:
    # What other processes need to write parts.
    return {name: self.__dict__[name] for name in ("folder", "_work", "_key")} | {"_parts": {}}

  def path(self, name: str) -> str:
    """Returns the path of a part."""
    return os.path.join(self.folder, name)

  def done(self, name: str, key: Any = None) -> dict[str, Any] | None:
    """Returns the facts of a finished part, or None if its file is missing or has changed."""
    parts = [self._parts[name]] if name in self._parts else []
    record = f"{self._work}/parts/{name.replace('/', '%2F')}.json"
    with (
      contextlib.suppress(FileNotFoundError, msgspec.DecodeError),
      storage.open_binary(record) as stream,
    ):
      parts.append(msgspec.json.decode(stream.read(), type=manifest.Part))
    expected = manifest.digest(self._key, name, key)
    for part in parts:
      if part.key == expected and self._is_unchanged(name, part):
        self._parts[name] = part
        return part.facts
    return None

  def _is_unchanged(self, name: str, part: manifest.Part) -> bool:
    """Returns whether the file of a part is the one that was written; reads it once."""
    try:
      if storage.size(self.path(name)) != part.bytes:
        return False
      if self._verified.get(name) != part.sha256:
        self._verified[name] = input_files.sha256(self.path(name))
    except FileNotFoundError:
      return False
    return self._verified[name] == part.sha256

  @contextlib.contextmanager
  def part(self, name: str, key: Any = None) -> Iterator[tuple[pathlib.Path, dict[str, Any]]]:
    """Yields a local path to write a part to, and a dictionary for facts about it, as JSON."""
    facts: dict[str, Any] = {}
    with outputs.atomic_path(self.path(name), self._work) as path:
      yield path, facts
      size, sha256 = path.stat().st_size, input_files.sha256(path)
    part = manifest.Part(size, sha256, manifest.digest(self._key, name, key), facts)
    record = f"{self._work}/parts/{name.replace('/', '%2F')}.json"
    self._write(record, msgspec.json.encode(part))
    self._parts[name] = part

  def run(
    self,
    title: str,
    function: Callable[..., Mapping[str, Any] | None],
    parts: Sequence[Part],
    engine: engines.Engine | None = None,
  ) -> list[dict[str, Any]]:
    """Writes the parts that are not done yet.

    Args:
      title: Name of this kind of work, for messages and the progress bar.
      function: Called as `function(path, *part.arguments)`; writes the file and returns facts about
        it, if any. Must be picklable for engines of several processes.
      parts: The parts.
      engine: Where to do the work; default: in this process.

    Returns:
      The facts of each part.

    Raises:
      InputError: a part failed; finished parts are kept.
    """
    engine = engine or engines.Local()
    todo = [part for part in parts if self.done(part.name, part.key) is None]
    total = sum(part.size for part in parts)
    done = total - sum(part.size for part in todo)
    do = functools.partial(self._write_parts, title, function)
    with progress_bar.Bar(total=total, initial=done, desc=title, outer=total > len(parts)) as bar:
      for part, stored in engine.work(title, do, todo):
        self._parts[part.name] = stored
        done += part.size
        bar.update(max(0, done - bar.n))  # other bars advance it, too
    # The files of other machines become visible on this one.
    end = time.monotonic() + _VISIBLE_SECONDS
    for part in todo if not engine.this_machine else ():
      while not storage.exists(path := self.path(part.name)):
        if time.monotonic() > end:
          raise errors.InputError(
            f"{title} of {part}: its file is missing at {path}; use a file system that all workers "
            "share with this process"
          )
        time.sleep(0.1)
    return [self._parts[part.name].facts for part in parts]

  def _write_parts(
    self,
    title: str,
    function: Callable[..., Mapping[str, Any] | None],
    parts: Sequence[Part],
  ) -> Iterator[tuple[Part, manifest.Part]]:
    """Writes parts in this process, in order; yields each with its record."""
    for part in parts:
      try:
        with self.part(part.name, part.key) as (path, facts):
          facts.update(function(path, *part.arguments) or {})
      except (errors.InputError, OSError, MemoryError) as error:
        reason = "out of memory (use fewer workers)" if isinstance(error, MemoryError) else error
        raise errors.InputError(f"{title} of {part}: {reason}; {engines.RESUME}") from None
      yield part, self._parts[part.name]

  def finish(self, **facts: Any) -> None:
    """Marks a folder as complete, stores facts about it, and removes intermediate files."""
    parts = {
      name: part
      for name, part in sorted(self._parts.items())
      if not name.startswith(f"{storage.UNFINISHED}/")
    }
    record = msgspec.structs.replace(self._record, parts=parts, facts=facts, finished=True)
    content = msgspec.json.format(msgspec.json.encode(record), indent=1)
    self._write(self.path(manifest.NAME), content + b"\n")
    outputs.clear(self._work)
    self.finished, self.facts = True, facts

  @contextlib.contextmanager
  def output(self) -> Iterator[pathlib.Path]:
    """Yields a local path to write an output file to, and removes the work folder at the end."""
    with outputs.atomic_path(self._output, self._work) as path:
      yield path
    outputs.clear(self._work)

  def _write(self, path: str, content: bytes) -> None:
    """Writes a file; what a killed process leaves of it is in the work folder, which is cleared."""
    with outputs.atomic_path(path, self._work) as partial:
      partial.write_bytes(content)


def _visible(folder: str) -> set[str]:
  """Returns the names in a folder that do not start with a dot."""
  return {name for name in storage.names(folder) if not name.startswith(".")}
