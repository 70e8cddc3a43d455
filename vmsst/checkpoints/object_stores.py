"""Lets Orbax write and read checkpoints in Amazon's S3 as it does in Google's object store.

TensorStore supports `s3://`, and Orbax leaves all other files to etils.epath, but Orbax writes
arrays only to local paths and `gs://`. Three functions of Orbax that describe the place of arrays
to TensorStore are replaced here, for `s3://` alone; a test with an S3 server fails if Orbax changes
them.
"""

import functools
import os
from collections.abc import Collection, Iterable
from typing import Any

from etils import epath
from orbax.checkpoint._src.path import atomicity, gcs_utils
from orbax.checkpoint._src.serialization import tensorstore_utils

from vmsst.files import checksums, input_files, storage

COMMIT_FILE = atomicity.COMMIT_SUCCESS_FILE
"""Orbax writes this file last: the marker of complete checkpoints in object stores."""

TEMPORARY_PATH = atomicity.CommitFileTemporaryPath
"""Orbax's class for folders that COMMIT_FILE completes."""

_ORBAX_FILE = "_CHECKPOINT_METADATA"  # written first; has a time once everything is
_S3 = "s3://"


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


@functools.cache
def support_s3() -> None:
  """Replaces the functions of Orbax; does nothing the second time."""
  store_of, is_remote = gcs_utils.get_kvstore_for_gcs, tensorstore_utils._use_gcs_driver
  normalized = tensorstore_utils._normalize_path

  def place(path: str) -> dict[str, Any]:
    if not path.startswith(_S3):
      return store_of(path)
    bucket, _, inside = path.removeprefix(_S3).partition("/")
    spec = {"driver": "s3", "bucket": bucket, "path": inside}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
      spec["endpoint"] = endpoint
      spec["aws_region"] = os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    return spec

  gcs_utils.get_kvstore_for_gcs = place
  tensorstore_utils._use_gcs_driver = lambda path: path.startswith(_S3) or is_remote(path)
  tensorstore_utils._normalize_path = lambda path: normalized(path).replace("s3:/", _S3)
