"""Output folders of imports and exports, which never overwrite anything."""

import os

from vmsst import errors
from vmsst.files import storage


def new_folder(output: str | os.PathLike[str]) -> storage.Path:
  """Returns the absolute path of a folder that may be written, local or in an object store.

  Raises:
    InputError: it exists and is not an empty folder, or it cannot be read.
  """
  if storage.is_url(output):
    target = storage.path(os.fspath(output).rstrip("/"))
    is_new = storage.is_new_folder(os.fspath(target))
  else:
    target = storage.path(os.path.abspath(output))
    is_new = not target.exists() or (target.is_dir() and not any(target.iterdir()))
  if not is_new:
    raise errors.InputError(f"{target} exists already: choose another folder or delete it")
  return target


def local_only(folder: storage.Path) -> list[str]:
  """Returns what to do before other libraries, which read local files only, open a folder."""
  if storage.is_url(folder):
    return [f"Copy {folder} to this machine first, and give the path of the copy:"]
  return []
