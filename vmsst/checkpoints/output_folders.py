"""Output folders of imports and exports, which never overwrite anything."""

import os
import pathlib

from vmsst import errors


def new_folder(output: str | os.PathLike[str]) -> pathlib.Path:
  """Returns the absolute path of a folder that may be written.

  Raises:
    InputError: it exists and is not an empty folder.
  """
  target = pathlib.Path(os.path.abspath(output))
  if target.exists() and not (target.is_dir() and not any(target.iterdir())):
    raise errors.InputError(f"{target} exists already: choose another folder or delete it")
  return target
