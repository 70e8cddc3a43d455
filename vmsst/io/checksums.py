"""SHA-256 checksums of files, and of a checkpoint's in `SHA256SUMS`, the format of `sha256sum`.

Orbax stores checksums of array metadata only: it does not notice a changed byte of an array.
"""

import hashlib
import os
import re
from collections.abc import Mapping

from etils import epath

from vmsst import errors, storage
from vmsst.io import input_files

NAME = "SHA256SUMS"


def of_file(path: str | os.PathLike[str]) -> str:
  """Returns the SHA-256 of a file, which may be larger than memory, in hexadecimal.

  Args:
    path: A file, local or in an object store.

  Raises:
    InputError: a local path is missing, or not a file but a folder, pipe or device; or a store
      cannot be read.
  """
  input_files.check(path)
  with storage.explained(path, "read"), storage.open_binary(path) as file:
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def check(path: str | os.PathLike[str], sha256: str, fix: str) -> None:
  """Raises InputError unless a file can be read and, with the fix, unless it has this SHA-256."""
  if of_file(path) != sha256:
    raise errors.InputError(f"{path}: damaged: it has changed since it was written: {fix}")


def write(checkpoint: epath.Path, folders: Mapping[str, epath.Path]) -> None:
  """Writes the checksums of all files in `folders` to `checkpoint`.

  Args:
    checkpoint: The folder of the checkpoint, while it is being written.
    folders: The future subfolders of the checkpoint, by name.
  """
  lines = [
    f"{of_file(folder / inside)}  {name}/{inside}\n"
    for name, folder in sorted(folders.items())
    for inside in sorted(storage.files_below(folder))
  ]
  (checkpoint / NAME).write_text("".join(lines))


def damage(checkpoint: epath.Path, only: str | None = None) -> str | None:
  """Returns the damage to a checkpoint's files, or None if they are intact or have no checksums.

  Args:
    checkpoint: The folder of the checkpoint.
    only: The subfolder to check; None: all with checksums.
  """
  sums = checkpoint / NAME
  if not sums.exists():
    return None
  try:
    input_files.check(sums)
    lines = [
      re.fullmatch(r"([0-9a-f]{64})  ([^/]+)/(.+)", line) for line in sums.read_text().splitlines()
    ]
    if not lines or None in lines:
      return f"{NAME} has changed since it was written"
    wanted: dict[str, dict[str, str]] = {}
    for digest, folder, name in (line.groups() for line in lines if line):
      wanted.setdefault(folder, {})[name] = digest
    for folder in sorted(wanted) if only is None else [only]:
      if folder == "dataset" and not (checkpoint / folder).is_dir():
        continue  # The run reads and skips the batches instead.
      files = set(storage.files_below(checkpoint / folder))
      for name, digest in wanted.get(folder, {}).items():
        if name not in files:
          return f"{folder}/{name} is missing"
        if of_file(checkpoint / folder / name) != digest:
          return f"{folder}/{name} has changed since it was written"
  except (OSError, ValueError) as error:
    return f"it cannot be read ({error})"
  return None
