"""Folders of files that are made from bitexts, one of each, and can be made in several goes.

Beside the files lies `description.json`: with what settings they were made, and of each file that
is finished from what and how much there is. Files are written whole or not at all.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vmsst import errors
from vmsst.bitext.readers import BitextFile
from vmsst.files import atomic_files

DESCRIPTION = "description.json"
Counts = Mapping[str, int]


def place(bitext: BitextFile, name: str) -> str:
  """Where in a folder the file `name` made from a bitext lies: below the name of its own folder.

  So files of several folders that are named alike do not meet.
  """
  return os.path.join(os.path.basename(os.path.dirname(bitext.paths[0])), name)


def make_files(
  bitexts: Sequence[BitextFile],
  folder: str,
  *,
  settings: Mapping[str, Any],
  place_of: Callable[[BitextFile], str],
  make: Callable[[BitextFile, str], Counts],
  refresh: bool = False,
) -> dict[str, Counts]:
  """Makes a file of every bitext that has none yet, and returns the counts of them all by path.

  Args:
    bitexts: What files are made from.
    folder: Where they are put; made if need be.
    settings: What every file depends on; they are kept in the description.
    place_of: The place of a bitext's file in the folder.
    make: Writes a bitext's file to the path that it is given, and returns what to keep of it in
      the description.
    refresh: Make all files again; until its turn comes, a file stays as it was.

  Raises:
    InputError: files in the folder were made with other settings or from other bitexts, or two
      bitexts would have the same file.
  """
  places: dict[str, BitextFile] = {}
  for bitext in bitexts:
    other = places.setdefault(place_of(bitext), bitext)
    if other is not bitext:
      raise errors.InputError(
        f"{other} and {bitext} would both be made into {place_of(bitext)}: use two folders"
      )
  description = {**settings, "files": {}} if refresh else _read(folder, settings)
  files = description["files"]
  for where, bitext in places.items():
    path = os.path.join(folder, where)
    if where in files and os.path.isfile(path):
      if files[where]["bitext"] != str(bitext):
        raise errors.InputError(
          f"{path} was made from {files[where]['bitext']}, not from {bitext}: use another folder, "
          "or make all files again (--refresh)"
        )
      continue
    with atomic_files.atomic_path(path) as partial:
      counts = make(bitext, str(partial))
    files[where] = {"bitext": str(bitext), **counts}
    atomic_files.write_json(os.path.join(folder, DESCRIPTION), description)
  return {os.path.join(folder, where): files[where] for where in places}


def _read(folder: str, settings: Mapping[str, Any]) -> dict[str, Any]:
  """The description in a folder, or a new one."""
  path = os.path.join(folder, DESCRIPTION)
  try:
    with open(path, encoding="utf-8") as stream:
      description = json.load(stream)
    found = {name: description[name] for name in settings}
    files = description["files"]
  except FileNotFoundError:
    return {**settings, "files": {}}
  except (ValueError, KeyError, TypeError) as error:
    raise errors.InputError(f"{path}: not a description of such files ({error!r})") from None
  if found != dict(settings) or not isinstance(files, dict):
    raise errors.InputError(
      f"{path}: the files beside it were made with {found}, not with {dict(settings)}: use another "
      "folder, or make all files again (--refresh)"
    )
  return description
