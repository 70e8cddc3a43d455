"""A job writes one output, task by task, and resumes after an interruption.

    with job.Job("vectors", inputs={"text": {"name": path, "digest": sha256}}) as embed_job:
      if not embed_job.finished:
        tasks = [job.Task(f"vectors-{n:05d}.npy", (span,)) for n, span in enumerate(spans)]
        embed_job.run("embed", functools.partial(embed_span, encoder), tasks)
        embed_job.finish(lines=count)

`embed_span(encoder, path, span)` writes a file to `path`, and can return facts about the file. The
function must write the same bytes wherever and however often it runs. A later run of the same job
repeats a task only if the task's file is missing or has changed, or if the inputs or options have
changed.
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

# Network file systems cache directory listings: a new file can stay invisible for a minute.
_VISIBLE_SECONDS = 90


class Task(msgspec.Struct, frozen=True):
  """One function call, which writes one file of a job.

  Attributes:
    name: Path of the file, relative to the job's folder. Files in `.vmsst/` are intermediate files,
      which are removed when the job is finished.
    arguments: Arguments of the function; must be picklable.
    key: JSON value that identifies inputs that only this task reads. A rerun repeats the task if
      its key or name, or the job's inputs or options, have changed.
    size: Amount of work for the progress bar, such as a number of lines.
    title: Name of the task in messages (default: the name of the file).
  """

  name: str
  arguments: tuple[Any, ...] = ()
  key: Any = None
  size: int = 1
  title: str = ""

  def __str__(self) -> str:
    return self.title or self.name


class Job:
  """Writes one output and resumes after an interruption. A lock keeps other writers out.

  A finished output folder contains the record of its job, `job.json`. Until the job is finished,
  the record and the intermediate files are in the work folder; see `outputs.work_path`. If the
  output is a file, the record is only in the work folder, which the job removes when the file is
  finished.

  Attributes:
    folder: Absolute path or URL of the folder for the tasks' files. This is the output folder or,
      if the output is a file, the work folder.
    finished: Whether the output is a complete folder and all its files are unchanged.
    facts: Facts that `finish` stored, if the job is finished.
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
      inputs: Inputs that determine the output; see `vmsst.io.manifest`.
      options: Options that determine the output.
      is_folder: True if the output is a folder, False if it is a file.
      replace: Whether to start over if the folder belongs to a job with different inputs or
        options. Each old file stays until a task replaces it.
    """
    self._output, self._is_folder, self._replace = os.fspath(output), is_folder, replace
    # A rerun compares its record with the record that it reads from the JSON file. JSON turns
    # tuples into lists, so convert the record to JSON and back.
    self._record = msgspec.json.decode(
      msgspec.json.encode(manifest.Record(dict(inputs), dict(options)), enc_hook=str),
      type=manifest.Record,
    )
    self._key = manifest.digest(manifest.identity(self._record.inputs), self._record.options)
    self._work_folder = outputs.work_path(output, is_folder=is_folder)
    self.folder = storage.absolute(output).rstrip("/") if is_folder else self._work_folder
    self._files: dict[str, manifest.Part] = {}
    self._verified: dict[str, str] = {}  # SHA-256 of files that this process has read, by name
    self.facts: dict[str, Any] = {}

  def __enter__(self) -> "Job":
    """Locks the output and reads its record.

    Raises:
      InputError: If another process is writing the output, the folder contains files that no job
        wrote, or the folder belongs to a job with different inputs or options.
    """
    with contextlib.ExitStack() as stack:
      stack.enter_context(outputs.ownership(self._output, is_folder=self._is_folder))
      paths = [os.path.join(folder, manifest.NAME) for folder in (self.folder, self._work_folder)]
      path = next(filter(storage.is_file, paths), None)
      must_match = self._is_folder and not self._replace
      if path is None and must_match and self._has_visible_files():
        raise errors.InputError(
          f"{self._output} has files that this command did not write; give another folder"
        )
      record = path and manifest.parse(path, "delete the folder and start over")
      if path and record:
        changes = manifest.differences(record.settings, self._record.settings)
        if changes and must_match:
          raise errors.InputError(
            f"{self._output} belongs to another job: {changes}; give another folder, or delete it"
          )
        if changes:
          outputs.clear(self._work_folder)
          storage.remove(path)
          record = None
      self._is_new = not record
      if record:
        self._files, self.facts = dict(record.parts), record.facts
        self.finished = record.finished and all(
          self._is_unchanged(name, file) for name, file in record.parts.items()
        )
      else:
        self._write(f"{self._work_folder}/{manifest.NAME}", msgspec.json.encode(self._record))
      self._stack = stack.pop_all()
    return self

  def __exit__(self, kind: object, error: object, trace: object) -> None:
    """Unlocks the output. Removes the work folder if the job is finished or has written nothing."""
    # The work folder of a finished job is still there if a kill interrupted the end of `finish`.
    is_empty = not self._files and not (self._is_folder and self._has_visible_files())
    if self.finished if error is None else self._is_new and is_empty:
      outputs.clear(self._work_folder)
    self._stack.close()

  def __getstate__(self) -> dict[str, Any]:
    # Worker processes need only these attributes to write files.
    shared = ("folder", "_work_folder", "_key")
    return {name: self.__dict__[name] for name in shared} | {"_files": {}}

  def _has_visible_files(self) -> bool:
    """Returns whether the folder has files with names that do not start with a dot."""
    return any(not name.startswith(".") for name in storage.names(self.folder))

  def path(self, name: str) -> str:
    """Returns the path of a file of this job."""
    return os.path.join(self.folder, name)

  def done(self, name: str, key: Any = None) -> dict[str, Any] | None:
    """Returns the facts about a finished file, or None if the file is missing or has changed."""
    records = [self._files[name]] if name in self._files else []
    with (
      contextlib.suppress(FileNotFoundError, msgspec.DecodeError),
      storage.open_binary(self._record_path(name)) as stream,
    ):
      records.append(msgspec.json.decode(stream.read(), type=manifest.Part))
    expected = manifest.digest(self._key, name, key)
    for record in records:
      if record.key == expected and self._is_unchanged(name, record):
        self._files[name] = record
        return record.facts
    return None

  def _record_path(self, name: str) -> str:
    return f"{self._work_folder}/parts/{name.replace('/', '%2F')}.json"

  def _is_unchanged(self, name: str, record: manifest.Part) -> bool:
    """Returns whether a file matches the size and checksum in its record. Reads each file once."""
    try:
      if storage.size(self.path(name)) != record.bytes:
        return False
      if self._verified.get(name) != record.sha256:
        self._verified[name] = input_files.sha256(self.path(name))
    except FileNotFoundError:
      return False
    return self._verified[name] == record.sha256

  @contextlib.contextmanager
  def part(self, name: str, key: Any = None) -> Iterator[tuple[pathlib.Path, dict[str, Any]]]:
    """Yields a local path to write a file to, and a dictionary for JSON facts about the file.

    Args:
      name: Path of the file, relative to the job's folder.
      key: As in `Task`.
    """
    facts: dict[str, Any] = {}
    with outputs.atomic_path(self.path(name), self._work_folder) as path:
      yield path, facts
      size, sha256 = path.stat().st_size, input_files.sha256(path)
    record = manifest.Part(size, sha256, manifest.digest(self._key, name, key), facts)
    self._write(self._record_path(name), msgspec.json.encode(record))
    self._files[name] = record

  def run(
    self,
    title: str,
    function: Callable[..., Mapping[str, Any] | None],
    tasks: Sequence[Task],
    engine: engines.Engine | None = None,
  ) -> list[dict[str, Any]]:
    """Runs the unfinished tasks.

    Args:
      title: Name of the step in messages and in the progress bar.
      function: Function that writes the file of a task, and can return facts about the file. It is
        called as `function(path, *task.arguments)`, and must be picklable for engines with several
        processes.
      tasks: All tasks of the step.
      engine: Where to run the tasks (default: in this process).

    Returns:
      The facts about each task's file.

    Raises:
      InputError: If a task fails. The files from finished tasks are kept.
    """
    engine = engine or engines.Local()
    unfinished = [task for task in tasks if self.done(task.name, task.key) is None]
    total = sum(task.size for task in tasks)
    done = total - sum(task.size for task in unfinished)
    do = functools.partial(self._run_here, title, function)
    with progress_bar.Bar(total=total, initial=done, desc=title, outer=total > len(tasks)) as bar:
      for task, record in engine.run(title, do, unfinished):
        self._files[task.name] = record
        done += task.size
        bar.update(max(0, done - bar.n))  # A bar inside a task may have advanced this bar.
    # Later steps read the files, so wait until files from other machines are visible here.
    end = time.monotonic() + _VISIBLE_SECONDS
    for task in unfinished if not engine.this_machine else ():
      while not storage.exists(path := self.path(task.name)):
        if time.monotonic() > end:
          raise errors.InputError(
            f"{title} of {task}: the output file {path} is missing; use a file system that all "
            "workers share with this process"
          )
        time.sleep(0.1)
    return [self._files[task.name].facts for task in tasks]

  def _run_here(
    self, title: str, function: Callable[..., Mapping[str, Any] | None], tasks: Sequence[Task]
  ) -> Iterator[tuple[Task, manifest.Part]]:
    """Runs tasks in this process, in order. Yields each task with the record of its file."""
    for task in tasks:
      try:
        with self.part(task.name, task.key) as (path, facts):
          facts.update(function(path, *task.arguments) or {})
      except (errors.InputError, OSError, MemoryError) as error:
        reason = "out of memory (use fewer workers)" if isinstance(error, MemoryError) else error
        raise errors.InputError(f"{title} of {task}: {reason}; {engines.RESUME}") from None
      yield task, self._files[task.name]

  def finish(self, **facts: Any) -> None:
    """Marks the output folder as complete, stores facts about it and removes intermediate files."""
    files = {
      name: file
      for name, file in sorted(self._files.items())
      if not name.startswith(f"{storage.UNFINISHED}/")
    }
    record = msgspec.structs.replace(self._record, parts=files, facts=facts, finished=True)
    content = msgspec.json.format(msgspec.json.encode(record), indent=1)
    self._write(self.path(manifest.NAME), content + b"\n")
    outputs.clear(self._work_folder)
    self.finished, self.facts = True, facts

  @contextlib.contextmanager
  def output(self) -> Iterator[pathlib.Path]:
    """Yields a local path to write the output file to, and removes the work folder at the end."""
    with outputs.atomic_path(self._output, self._work_folder) as path:
      yield path
    outputs.clear(self._work_folder)

  def _write(self, path: str, content: bytes) -> None:
    # After a kill, the temporary file is in the work folder, and the next run deletes it.
    with outputs.atomic_path(path, self._work_folder) as partial:
      partial.write_bytes(content)
