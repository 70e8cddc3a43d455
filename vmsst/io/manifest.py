"""Reads and compares job records (`job.json`): a job's inputs, options and finished parts.

Inputs and options are JSON values. An input, such as an encoder or a text, is an object with a
`digest` of its content and a readable `name`. The digest identifies the input, so a file may be
moved, but a file with changed content is a different input. If an input has no digest, its name
identifies the input.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

import msgspec

from vmsst import errors, storage
from vmsst.io import input_files

NAME = "job.json"


class Part(msgspec.Struct, frozen=True):
  """A finished part of the output.

  Attributes:
    bytes: Size of the part's file in bytes.
    sha256: SHA-256 of the part's file.
    key: Identifies the part's inputs; see `vmsst.jobs.job.Task`.
    facts: JSON object returned by the function that wrote the part.
  """

  bytes: int
  sha256: str
  key: str = ""
  facts: dict[str, Any] = {}


class Record(msgspec.Struct, frozen=True):
  """The content of `job.json`.

  Attributes:
    inputs: Inputs by name.
    options: Options by name.
    parts: Finished parts, by file name.
    facts: JSON object that describes the whole output.
    finished: Whether the output is complete.
  """

  inputs: dict[str, Any]
  options: dict[str, Any] = {}
  parts: dict[str, Part] = {}
  facts: dict[str, Any] = {}
  finished: bool = False

  @property
  def settings(self) -> dict[str, Any]:
    """All inputs and options by name."""
    return {**self.inputs, **self.options}


def read(folder: str | os.PathLike[str], fix: str = "delete the folder and start over") -> Record:
  """Returns the record of a finished job.

  Args:
    folder: The job's folder, local or in an object store.
    fix: How to fix a missing or damaged record, for the error message.

  Raises:
    InputError: If the record is missing or damaged, or the job is not finished.
  """
  if not storage.is_file(path := os.path.join(folder, NAME)):
    if storage.is_file(os.path.join(folder, storage.UNFINISHED, NAME)):
      raise errors.InputError(f"{folder} is not finished; rerun the same command to resume")
    raise errors.InputError(f"{folder}: no {NAME}; {fix}")
  return parse(path, fix)


def parse(path: str, fix: str) -> Record:
  """Parses a record file. If it is damaged, raises InputError; the message ends with `fix`."""
  try:
    return msgspec.json.decode(input_files.read_bytes(path), type=Record)
  except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
    raise errors.InputError(f"{path} is damaged: {error}; {fix}") from None


def digest(*values: object) -> str:
  """Returns a hash of the JSON values."""
  content = json.dumps(values, ensure_ascii=False, sort_keys=True)
  return hashlib.sha256(content.encode(errors="backslashreplace")).hexdigest()[:32]


def identity(value: Any) -> Any:
  """Drops the names of inputs with a digest, so that inputs with the same content compare equal."""
  if isinstance(value, Mapping):
    ignored = {"name"} if value.get("digest") else set()
    return {name: identity(item) for name, item in value.items() if name not in ignored}
  return [identity(item) for item in value] if isinstance(value, list | tuple) else value


def differences(recorded: Mapping[str, Any], current: Mapping[str, Any]) -> str:
  """Describes how the current settings differ from the recorded settings; "" if they match."""
  return "; ".join(
    f"{name} is {_shown(recorded.get(name))}, not {_shown(current.get(name))}"
    for name in dict.fromkeys((*recorded, *current))
    if identity(recorded.get(name)) != identity(current.get(name))
  )


def _shown(value: Any) -> str:
  if value is None:
    return "unset"
  if isinstance(value, Mapping) and isinstance(value.get("name"), str):
    extras = {key: item for key, item in value.items() if key not in ("name", "digest")}
    digest = f" ({str(value['digest'])[:12]})" if value.get("digest") else ""
    return value["name"] + digest + (json.dumps(extras, ensure_ascii=False) if extras else "")
  return json.dumps(value, ensure_ascii=False)
