"""Checks paths before work starts: outputs can be written and destroy no input."""

import glob
import os
import pathlib
import re
from collections.abc import Iterable

from vmsst import errors, storage
from vmsst.jobs import atomic_files, work_folders

STANDARD = "-"
"""Stands for standard input or output."""
_CHECKPOINT = re.compile(r"(^|/)checkpoint_\d+$")


def check(
  inputs: Iterable[str],
  *,
  file: str | None = None,
  folder: str | None = None,
  files: Iterable[str] = (),
) -> None:
  """Raises InputError if work with these paths would destroy an input or cannot be written.

  Args:
    inputs: Files, folders and shell patterns to read; `-` is standard input. Of those in object
      stores, only the path is compared.
    file: File to write; `-` is standard output. None: no file. A store must accept objects next to
      it.
    folder: Folder to write to; None: no folder.
    files: Names of files to write in `folder`.
  """
  inputs = list(inputs)
  if inputs.count(STANDARD) > 1:
    raise errors.InputError(
      "standard input (-) is given twice, but it can be read only once; give a file for one"
    )
  if folder == STANDARD:
    raise errors.InputError(f"{folder} is not a folder; give a folder as output")
  for output in (file, folder):
    if output is not None and storage.is_url(output):
      _check_no_input(output, filter(storage.is_url, inputs), is_file=output == file)
  if file is not None and storage.is_url(file):
    above, _, name = file.partition("://")[2].rpartition("/")
    if not (above and name):
      raise errors.InputError(f"{file} is a folder; give a file as output")
    storage.check_writable(file.rpartition("/")[0])
  local: list[str] = []
  for given in inputs:
    if not _elsewhere(given):
      is_pattern = glob.has_magic(given) and not os.path.lexists(given)
      local += glob.glob(given, recursive=True) if is_pattern else [given]
  if file is not None and not _elsewhere(file):
    _check_file(file, local)
  if folder is not None and not _elsewhere(folder):
    _check_folder(folder)
    _check_no_input(folder, local, is_file=False)
    for name in files:
      if os.path.isdir(path := os.path.join(folder, name)):
        raise errors.InputError(f"{path} is a folder, not a file; delete it")


def _check_file(path: str, inputs: Iterable[str]) -> None:
  if not path:
    raise errors.InputError(
      "the path of the output is empty; give a file, or - for standard output"
    )
  if os.path.isdir(path):
    raise errors.InputError(f"{path} is a folder; give a file as output")
  _check_parents(path)
  if atomic_files.is_stream(path):
    return
  _check_no_input(path, inputs, is_file=True)


def _check_folder(path: str) -> None:
  if not path:
    raise errors.InputError("the path of the output is empty; give a folder")
  if os.path.lexists(path) and not os.path.isdir(path):
    raise errors.InputError(f"{path} is not a folder; give another output folder")
  above = _check_parents(path) if not os.path.isdir(path) else path
  if not os.access(above, os.W_OK | os.X_OK):
    raise errors.InputError(
      f"{path} cannot be written, because {above} is write-protected; give another output folder"
    )


def _check_no_input(output: str, inputs: Iterable[str], *, is_file: bool) -> None:
  """Raises InputError if an output is an input, or a file that exists in an input folder."""
  target = output if storage.is_url(output) else atomic_files.link_target(output)
  for read in inputs:
    folder = read.rstrip("/")
    if _CHECKPOINT.search(folder):  # The files that describe its encoder are next to it.
      folder = os.path.dirname(storage.absolute(folder))
    if _same(target, read) or (is_file and _is_below(target, folder) and storage.exists(target)):
      raise errors.InputError(
        f"the output {output} would overwrite the input {read}; give another output"
      )


def _check_parents(path: str) -> str:
  """Returns the first existing folder above a path."""
  above = os.path.dirname(os.path.abspath(path))
  while not os.path.lexists(above):
    above = os.path.dirname(above)
  if not os.path.isdir(above):
    raise errors.InputError(f"{path} cannot be created, because {above} is not a folder")
  return above


def _same(path: str, other: str) -> bool:
  """Whether two paths are of one file or folder; hard and symbolic links count."""
  if storage.is_url(path):
    return path.rstrip("/") == other.rstrip("/")
  try:
    return os.path.samefile(path, other)
  except (OSError, ValueError):
    return False


def _is_below(path: str, folder: str) -> bool:
  if storage.is_url(path):
    return path.startswith(f"{folder}/")
  if not os.path.isdir(folder):
    return False
  root = os.path.realpath(folder)
  return os.path.commonpath([os.path.realpath(path), root]) == root


def _elsewhere(path: str) -> bool:
  return path == STANDARD or storage.is_url(path)


def new_folder(output: str | os.PathLike[str]) -> storage.Path:
  """Returns the absolute path of a folder that may be written, local or in an object store.

  Raises:
    InputError: it exists and is not an empty folder, is being written, or cannot be read.
  """
  target = storage.path(storage.absolute(os.fspath(output).rstrip("/") or "/"))
  if not storage.is_url(target):
    target = pathlib.Path(atomic_files.link_target(target))
    if os.path.ismount(target):
      raise errors.InputError(f"{target} is the mount point of a disk: give a new folder in it")
    if os.path.isdir(work_folders.work_path(target)):
      # Another command writes it, or was killed just after it was complete.
      with work_folders.owned(target):
        pass
  work_folders.check_new(target)
  return target


def local_only(folder: storage.Path) -> list[str]:
  """Returns what to do before other libraries, which read local files only, open a folder."""
  if storage.is_url(folder):
    return [f"Copy {folder} to this machine first, and give the path of the copy:"]
  return []
