"""Checkpoints in Google's object store, where Orbax marks the complete ones."""

from collections.abc import Collection, Iterable

from etils import epath
from orbax.checkpoint._src.path import atomicity

from vmsst.io import checksums, input_files, storage

COMMIT_FILE = atomicity.COMMIT_SUCCESS_FILE
"""Orbax writes this file last: the marker of complete checkpoints in object stores."""

TEMPORARY_PATH = atomicity.CommitFileTemporaryPath
"""Orbax's class for folders that COMMIT_FILE completes."""

_ORBAX_FILE = "_CHECKPOINT_METADATA"  # written first; has a time once everything is


def is_complete(checkpoint: epath.Path) -> bool:
  """Returns whether the checkpoint in a folder of a run is complete.

  Local folders get their name when they are. In a store, Orbax's marker or the checksums, which are
  written after all files, say so; a copy of a local checkpoint has only the checksums.
  """
  if not storage.is_url(checkpoint):
    return (checkpoint / "state").is_dir()
  return is_complete_among(storage.names(checkpoint))


def is_complete_among(names: Collection[str]) -> bool:
  """Returns what `is_complete` does, given the names in the folder of a checkpoint in a store."""
  return "state" in names and (COMMIT_FILE in names or checksums.NAME in names)


def prepare(checkpoints: Iterable[epath.Path]) -> None:
  """Prepares the checkpoints of a run in a store for Orbax.

  Marks complete ones that were copied there, which Orbax would take for partial, and removes those
  whose writer was killed. Orbax's own clean-up would remove every other folder of the run too.
  """
  for checkpoint in checkpoints:
    names = storage.names(checkpoint)
    if is_complete_among(names):
      if COMMIT_FILE not in names:
        (checkpoint / COMMIT_FILE).write_text("copied\n")
    elif _ORBAX_FILE in names:
      record = input_files.read_json(checkpoint / _ORBAX_FILE)
      if not (isinstance(record, dict) and record.get("commit_timestamp_nsecs")):
        storage.remove(checkpoint)
