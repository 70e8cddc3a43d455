"""Output folders of imports and exports, which never overwrite anything."""

import os

from vmsst.io import storage, work_folders


def new_folder(output: str | os.PathLike[str]) -> storage.Path:
  """Returns the absolute path of a folder that may be written, local or in an object store.

  Raises:
    InputError: it exists and is not an empty folder, is being written, or cannot be read.
  """
  target = storage.path(storage.absolute(os.fspath(output).rstrip("/") or "/"))
  if not storage.is_url(target) and os.path.isdir(work_folders.work_path(target)):
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
