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

import concurrent.futures
import contextlib
import dataclasses
import functools
import os
import pathlib
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from vmsst import errors, storage
from vmsst.io import checksums, manifest, progress_bar
from vmsst.jobs import engines, outputs

# Network file systems may hide a new file for up to a minute from those who looked for it before.
_VISIBLE_SECONDS = 90


@dataclasses.dataclass(frozen=True)
class Part:
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
    work = outputs.work_path(output, is_folder=is_folder)
    self.folder = storage.absolute(output).rstrip("/") if is_folder else work
    key = manifest.digest(manifest.identity(self._record.inputs), self._record.options)
    self._files = _Files(self.folder, work, key)
    self._parts: dict[str, manifest.Part] = {}
    self.facts: dict[str, Any] = {}

  def __enter__(self) -> "Job":
    """Locks the output and reads its record.

    Raises:
      InputError: another process writes the output, or a folder has other files or is of a job with
        other inputs or options.
    """
    with contextlib.ExitStack() as stack:
      if self._is_folder:
        stack.callback(outputs.remove_if_empty, self.folder)
      stack.enter_context(outputs.owned(self._output, is_folder=self._is_folder))
      stored = self._stored()
      self._is_new = stored is None
      if stored is None:
        self._write(os.path.join(self._files.work, manifest.NAME), self._record)
      else:
        self._parts, self.facts = dict(stored.parts), stored.facts
        self.finished = stored.finished and all(map(self._files.is_unchanged, *_items(stored)))
      self._stack = stack.pop_all()
    return self

  def _stored(self) -> manifest.Record | None:
    """Returns the record of an earlier call with the same inputs and options, if any."""
    paths = [os.path.join(folder, manifest.NAME) for folder in (self.folder, self._files.work)]
    path = next(filter(storage.is_file, paths), None)
    if path is None:
      names = {x for x in storage.names(self.folder) if not x.startswith(".")}
      if names and self._is_folder and not self._replace:
        raise errors.InputError(
          f"{self._output} has files that this command did not write; give another folder"
        )
      return None
    stored = manifest.parse(path, "delete the folder and start over")
    changes = manifest.differences(stored.settings, self._record.settings)
    if not changes:
      return stored
    if self._is_folder and not self._replace:
      raise errors.InputError(
        f"{self._output} is of another job: {changes}; give another folder, or delete it"
      )
    outputs.clear(self._files.work)
    storage.remove(path)
    return None

  def __exit__(self, kind: object, error: object, trace: object) -> None:
    """Unlocks the output; leaves nothing of a job that failed before its first part."""
    if error is not None and self._is_new and not self._parts:
      outputs.clear(self._files.work)
    self._stack.close()

  def done(self, name: str, key: Any = None) -> dict[str, Any] | None:
    """Returns the facts of a finished part, or None if its file is missing or has changed."""
    stored = self._files.stored(name, key, self._parts.get(name))
    if stored is None:
      return None
    self._parts[name] = stored
    return stored.facts

  @contextlib.contextmanager
  def part(self, name: str, key: Any = None) -> Iterator[tuple[pathlib.Path, dict[str, Any]]]:
    """Yields a local path to write a part to, and a dictionary for facts about it, as JSON."""
    with self._files.written(name, key, self._parts) as path_and_facts:
      yield path_and_facts

  def run(
    self,
    title: str,
    function: Callable[..., Mapping[str, Any] | None],
    parts: Sequence[Part],
    engine: engines.Engine | None = None,
    prepare: Callable[..., Any] | None = None,
  ) -> list[dict[str, Any]]:
    """Writes the parts that are not done yet.

    Args:
      title: Name of this kind of work, for messages and the progress bar.
      function: Called as `function(path, *part.arguments)`; writes the file and returns facts about
        it, if any. Must be picklable for engines of several processes.
      parts: The parts.
      engine: Where to do the work; default: in this process.
      prepare: If given, the function is called as `function(path, prepare(*part.arguments))`, and
        `prepare` runs one part ahead, in another thread.

    Returns:
      The facts of each part.

    Raises:
      InputError: a part failed; finished parts are kept.
    """
    engine = engine or engines.Local()
    todo = [part for part in parts if self.done(part.name, part.key) is None]
    total = sum(part.size for part in parts)
    done = total - sum(part.size for part in todo)
    do = functools.partial(_do, title, self._files, function, prepare)
    with progress_bar.Bar(total=total, initial=done, desc=title, outer=total > len(parts)) as bar:
      for part, stored in engine.work(title, do, todo):
        self._parts[part.name] = stored
        done += part.size
        bar.reach(done)
    if todo and not engine.this_machine:
      self._await(title, todo)
    return [self._parts[part.name].facts for part in parts]

  def _await(self, title: str, parts: Sequence[Part]) -> None:
    """Waits until the files of other machines are visible on this one."""
    end = time.monotonic() + _VISIBLE_SECONDS
    for part in parts:
      while not storage.exists(path := self._files.path(part.name)):
        if time.monotonic() > end:
          raise errors.InputError(
            f"{title} of {part}: its file is missing at {path}; use a file system that all workers "
            "share with this process"
          )
        time.sleep(0.1)

  def path(self, name: str) -> str:
    """Returns the path of a part."""
    return self._files.path(name)

  def finish(self, **facts: Any) -> None:
    """Marks a folder as complete, stores facts about it, and removes intermediate files."""
    parts = {
      name: part
      for name, part in sorted(self._parts.items())
      if not name.startswith(f"{storage.UNFINISHED}/")
    }
    record = msgspec.structs.replace(self._record, parts=parts, facts=facts, finished=True)
    self._write(os.path.join(self.folder, manifest.NAME), record)
    outputs.clear(self._files.work)
    self.finished, self.facts = True, facts

  @contextlib.contextmanager
  def output(self) -> Iterator[pathlib.Path]:
    """Yields a local path to write an output file to, and removes the work folder at the end."""
    with outputs.atomic_path(self._output, self._files.work) as path:
      yield path
    outputs.clear(self._files.work)

  def _write(self, path: str, record: manifest.Record) -> None:
    outputs.write_bytes(path, msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")


@dataclasses.dataclass(frozen=True)
class _Files:
  """The files of a job, for any process.

  Attributes:
    folder: Folder of the parts.
    work: The work folder.
    key: Hash of the inputs and options.
  """

  folder: str
  work: str
  key: str

  def path(self, name: str) -> str:
    return os.path.join(self.folder, name)

  def _part_key(self, name: str, key: Any) -> str:
    return manifest.digest(self.key, name, key)

  def _record_path(self, name: str) -> str:
    return os.path.join(self.work, "parts", f"{name.replace('/', '%2F')}.json")

  def is_unchanged(self, name: str, part: manifest.Part) -> bool:
    """Returns whether the file of a part is the one that was written."""
    try:
      same = storage.size(self.path(name)) == part.bytes
      return same and checksums.of_file(self.path(name)) == part.sha256
    except FileNotFoundError:
      return False

  def stored(self, name: str, key: Any, known: manifest.Part | None) -> manifest.Part | None:
    """Returns the record of a part, unless it has another key or its file has changed."""
    if known is None:
      try:
        with storage.open_binary(self._record_path(name)) as stream:
          known = msgspec.json.decode(stream.read(), type=manifest.Part)
      except (FileNotFoundError, msgspec.DecodeError):
        return None
    same = known.key == self._part_key(name, key) and self.is_unchanged(name, known)
    return known if same else None

  @contextlib.contextmanager
  def written(
    self, name: str, key: Any, parts: dict[str, manifest.Part]
  ) -> Iterator[tuple[pathlib.Path, dict[str, Any]]]:
    """Yields a path to write a part to, and its facts; then records the part in `parts` too."""
    facts: dict[str, Any] = {}
    work = None if storage.is_url(self.work) else self.work
    with outputs.atomic_path(self.path(name), work) as path:
      yield path, facts
      size, sha256 = path.stat().st_size, checksums.of_file(path)
    part = manifest.Part(size, sha256, self._part_key(name, key), facts)
    outputs.write_bytes(self._record_path(name), msgspec.json.encode(part))
    parts[name] = part


def _items(record: manifest.Record) -> tuple[list[str], list[manifest.Part]]:
  return list(record.parts), list(record.parts.values())


def _do(
  title: str,
  files: _Files,
  function: Callable[..., Mapping[str, Any] | None],
  prepare: Callable[..., Any] | None,
  parts: Sequence[Part],
) -> Iterator[tuple[Part, manifest.Part]]:
  """Writes parts in this process, in order; yields each with its record."""
  written: dict[str, manifest.Part] = {}
  with concurrent.futures.ThreadPoolExecutor(1, "prepare") as pool:
    ahead = [pool.submit(prepare, *part.arguments) for part in parts[:1] if prepare]
    for number, part in enumerate(parts):
      with _naming(title, part):
        arguments = part.arguments
        if prepare:
          arguments = (ahead.pop().result(),)
          ahead = [pool.submit(prepare, *x.arguments) for x in parts[number + 1 : number + 2]]
        with files.written(part.name, part.key, written) as (path, facts):
          facts.update(function(path, *arguments) or {})
        del arguments
      yield part, written[part.name]


@contextlib.contextmanager
def _naming(title: str, part: Part) -> Iterator[None]:
  """Turns errors with an outside cause into one that names the part."""
  try:
    yield
  except (errors.InputError, OSError) as error:
    raise errors.InputError(f"{title} of {part}: {error}; {engines.RESUME}") from None
  except MemoryError:
    raise errors.InputError(
      f"{title} of {part}: out of memory (use fewer workers); {engines.RESUME}"
    ) from None
