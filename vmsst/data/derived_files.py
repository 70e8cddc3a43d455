"""Folders of files derived from bitexts, one per bitext; interrupted work resumes.

Next to the files, `description.json` holds their settings and, for each finished file, its bitext
and counts. Files are written atomically.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vmsst import errors
from vmsst.data.readers import BitextFile
from vmsst.io import atomic_files, checksums, storage, stored_settings

DESCRIPTION = "description.json"
Counts = Mapping[str, int]


def relative_path(bitext: BitextFile, name: str) -> str:
  """Returns the path, in a folder of derived files, of the file `name` of a bitext.

  It is below the name of the bitext's folder, so that files of the same name in several folders do
  not collide.
  """
  return os.path.join(os.path.basename(os.path.dirname(bitext.paths[0])), name)


def make_files(
  bitexts: Sequence[BitextFile],
  folder: str,
  *,
  settings: Mapping[str, Any],
  relative_path: Callable[[BitextFile], str],
  make: Callable[[BitextFile, str], Counts],
  refresh: bool = False,
) -> dict[str, Counts]:
  """Makes a file for every bitext without one, and returns the counts of all files by path.

  Args:
    bitexts: The inputs.
    folder: The output folder, local or in an object store; made if missing.
    settings: Everything that all files depend on; stored in the description.
    relative_path: Returns the path of a bitext's file in the folder.
    make: Writes a bitext's file to a given path and returns its counts for the description.
    refresh: Make all files again; an old file stays until its replacement is complete.

  Raises:
    InputError: files in the folder were made with other settings or from other bitexts, or two
      bitexts would have the same file.
  """
  places: dict[str, BitextFile] = {}
  for bitext in bitexts:
    other = places.setdefault(relative_path(bitext), bitext)
    if other is not bitext:
      raise errors.InputError(
        f"{other} and {bitext} would both be made into {relative_path(bitext)}; use two folders"
      )
  # Files of `started` are of this library too: they were being made when a command was killed.
  again = {**settings, "files": {}, "started": list(places)}
  description = again if refresh else _read(folder, settings)
  files = description["files"]
  for where, bitext in places.items():
    path = os.path.join(folder, where)
    identity = {"bitext": {"name": str(bitext), "digest": _digest(bitext)}}
    if where in files and storage.is_file(path):
      if differences := stored_settings.differences(
        {"bitext": files[where].get("bitext")}, identity
      ):
        raise errors.InputError(
          f"{path}: {differences}; use another folder, or make all files again (--refresh)"
        )
      continue
    if where not in files and where not in description["started"]:
      if storage.exists(path):
        raise errors.InputError(
          f"{path} is not listed in {DESCRIPTION} and would be replaced; move it, or use another "
          "folder"
        )
      description["started"].append(where)
      atomic_files.write_json(os.path.join(folder, DESCRIPTION), description)
    try:
      with atomic_files.atomic_path(path) as partial:
        counts = make(bitext, str(partial))
        if _digest(bitext) != identity["bitext"]["digest"]:
          raise errors.InputError(f"{bitext} has changed while it was read; rerun the same command")
    except BaseException:
      if not files and description["started"] == [where]:
        storage.remove(os.path.join(folder, DESCRIPTION))
      raise
    files[where] = {**identity, **counts}
    description["started"] = [other for other in description["started"] if other != where]
    atomic_files.write_json(os.path.join(folder, DESCRIPTION), description)
  return {os.path.join(folder, where): files[where] for where in places}


def _digest(bitext: BitextFile) -> str:
  """Returns a SHA-256 of the files of a bitext."""
  total = hashlib.sha256()
  for path in bitext.paths:
    total.update(checksums.of_file(path).encode())
  return total.hexdigest()


def _read(folder: str, settings: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the description in a folder, or a new one."""
  path = os.path.join(folder, DESCRIPTION)
  try:
    with storage.open_binary(path) as stream:
      description = json.load(stream)
    stored = {name: description[name] for name in settings}
    files = description["files"]
  except FileNotFoundError:
    return {**settings, "files": {}, "started": []}
  except (ValueError, KeyError, TypeError) as error:
    raise errors.InputError(
      f"{path}: not a description of derived files ({error!r}); use another folder"
    ) from None
  started = description.setdefault("started", [])
  if not isinstance(files, dict) or not isinstance(started, list):
    raise errors.InputError(f"{path}: not a description of derived files; use another folder")
  if differences := stored_settings.differences(stored, settings):
    raise errors.InputError(
      f"{path}: the files next to it differ: {differences}; use another folder, or make all files "
      "again (--refresh)"
    )
  return description
