"""Folders of files derived from bitexts, one per bitext; interrupted work resumes.

Next to the files, `description.json` holds their settings and, for each finished file, its
checksum, its bitext and counts. Files are written atomically.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vmsst import errors, storage
from vmsst.data import readers
from vmsst.data.readers import BitextFile
from vmsst.io import checksums, stored_settings
from vmsst.jobs import atomic_files

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
    refresh: Make all these files again; an old file stays until its replacement is complete.

  Raises:
    InputError: files in the folder were made with other settings, from other bitexts or by other
      means, or have changed, two bitexts would have the same file, or a bitext would be replaced.
  """
  places: dict[str, BitextFile] = {}
  inputs = {os.path.realpath(path) for bitext in bitexts for path in bitext.paths}
  for bitext in bitexts:
    where = relative_path(bitext)
    other = places.setdefault(where, bitext)
    if other is not bitext:
      raise errors.InputError(
        f"{other} and {bitext} would both be made into {where}; use two folders"
      )
    if os.path.realpath(path := os.path.join(folder, where)) in inputs:
      raise errors.InputError(f"{path} is an input and would be replaced; use another folder")
  description = _read(folder, settings, refresh)
  files = description["files"]
  # Files of `started` are of this library too: they are to be made again, or a kill left them.
  if refresh:
    description["started"] += [where for where in places if files.pop(where, None)]
  for where, bitext in places.items():
    path = os.path.join(folder, where)
    identity = _identity(bitext)
    if where in files and storage.is_file(path):
      if differences := _differences(files[where], identity, path):
        raise errors.InputError(
          f"{path}: {differences}; delete it, use another folder, or make all files again "
          "(--refresh)"
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
        if _identity(bitext) != identity:
          raise errors.InputError(f"{bitext} has changed while it was read; rerun the same command")
        sha256 = checksums.of_file(partial)
        if refresh:  # The old file is replaced now: nothing may call the new one by its settings.
          atomic_files.write_json(os.path.join(folder, DESCRIPTION), description)
    except BaseException:
      if not files and description["started"] == [where] and not storage.exists(path):
        storage.remove(os.path.join(folder, DESCRIPTION))
      raise
    files[where] = {**identity, **counts, "sha256": sha256}
    description["started"] = [other for other in description["started"] if other != where]
    atomic_files.write_json(os.path.join(folder, DESCRIPTION), description)
  return {os.path.join(folder, where): files[where] for where in places}


def differences(folder: str, where: str, bitext: BitextFile) -> str:
  """Returns how a file or its bitext has changed; "" if neither has, or if it is not described."""
  description = _read(folder)
  if where in description["started"]:
    return "they are to be made again"
  made = description["files"].get(where)
  if made is None:
    return ""
  identity = _identity(bitext)
  if bitext.format not in ("tmx", "jsonl"):  # whose texts are chosen by their languages
    del identity["languages"]
  return _differences(made, identity, storage.cached_copy(os.path.join(folder, where)))


def _differences(made: Mapping[str, Any], identity: Mapping[str, Any], path: str) -> str:
  changes = stored_settings.differences({name: made.get(name) for name in identity}, identity)
  if changes or made.get("sha256") == checksums.of_file(path):
    return changes
  return "it has changed since it was written, or an older version wrote it"


def _identity(bitext: BitextFile) -> dict[str, Any]:
  """Returns what the file of a bitext is made from: its content, and how it is read."""
  total = hashlib.sha256()
  for path in bitext.paths:
    total.update(checksums.of_file(path).encode())
  return {
    "bitext": {"name": str(bitext), "digest": total.hexdigest()},
    "languages": [readers.language_code(side) for side in (bitext.source, bitext.target)],
  }


def _read(
  folder: str, settings: Mapping[str, Any] | None = None, refresh: bool = False
) -> dict[str, Any]:
  """Returns the description in a folder, or a new one.

  Args:
    folder: The folder.
    settings: The settings that the description must have; None: any.
    refresh: Whether files of other settings are to be made again.
  """
  path = os.path.join(folder, DESCRIPTION)
  try:
    with storage.open_binary(path) as stream:
      description = json.load(stream)
    files, started = description["files"], description.setdefault("started", [])
    stored = {name: x for name, x in description.items() if name not in ("files", "started")}
    valid = isinstance(started, list) and all(isinstance(made, dict) for made in files.values())
  except FileNotFoundError:
    return {**(settings or {}), "files": {}, "started": []}
  except (ValueError, KeyError, TypeError, AttributeError):
    valid = False
  if not valid:
    raise errors.InputError(f"{path}: not a description of derived files; use another folder")
  if settings is None:
    return description
  if differences := stored_settings.differences(stored, settings):
    if refresh:
      return {**settings, "files": {}, "started": [*files, *started]}
    raise errors.InputError(
      f"{path}: the files next to it differ: {differences}; use another folder, or make all files "
      "again (--refresh)"
    )
  return description
