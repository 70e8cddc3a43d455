"""The state of an unfinished search, in a file."""

import pathlib
import zipfile
import zlib
from typing import Any

import numpy as np

from vmsst import errors
from vmsst.files import atomic_files


def save_state(path: pathlib.Path, identity: str, done: int, **arrays: np.ndarray) -> None:
  """Writes what an unfinished search has found, atomically.

  Args:
    path: The file, .npz.
    identity: What is searched, and how.
    done: Number of vectors searched so far.
    **arrays: What was found.
  """
  content: dict[str, Any] = {"identity": identity, "done": done, **arrays}
  with atomic_files.atomic_file(path) as stream:
    np.savez(stream, **content)


def load_state(path: pathlib.Path, identity: str) -> tuple[int, dict[str, np.ndarray]]:
  """Returns `done` and the arrays of `save_state`; 0 and {} if there is no file.

  Raises:
    InputError: the file is broken, or from another search.
  """
  if not path.exists():
    return 0, {}
  try:
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as content:
      found = dict(content)
  except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
    raise errors.InputError(f"{path}: broken ({error}): delete it to start over") from None
  if str(found.pop("identity", None)) != identity:
    raise errors.InputError(
      f"{path} is from an unfinished search with other vectors or settings: delete it to start over"
    )
  return int(found.pop("done")), found
