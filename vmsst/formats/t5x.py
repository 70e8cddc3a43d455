"""Reads and writes T5X checkpoints.

Orbax writes a checkpoint into `checkpoint_<step>/state`, with the parameters under `target`. T5X
and this library's trainer both use this layout.
"""

import functools
import logging as standard_logging
import os
import re
import sys
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from etils import epath
from flax import traverse_util
from orbax.checkpoint._src.path import atomicity

from vmsst import errors, storage
from vmsst.formats import tensors
from vmsst.io import input_files

PARAMETERS = "target"
COMMIT_FILE = atomicity.COMMIT_SUCCESS_FILE
"""Marker of complete checkpoints in object stores. Orbax writes this file last."""

TEMPORARY_PATH = atomicity.CommitFileTemporaryPath
"""Orbax's class for folders that are complete once they contain COMMIT_FILE."""

CHECKSUMS = "SHA256SUMS"
"""File with SHA-256 checksums of all files, in the format of `sha256sum`.

Orbax only stores checksums of array metadata, so it does not detect a changed byte in an array.
"""

BEST_FILE = "best.json"
"""File that names a run's best checkpoint. `vmsst.load` opens this checkpoint, not the latest."""

AVERAGE = "average"
"""Subfolder of a run for the average of its checkpoints. If it exists, `vmsst.load` opens it."""

# Orbax writes this file first, and adds a time stamp when the checkpoint is complete.
_ORBAX_FILE = "_CHECKPOINT_METADATA"
_CHECKPOINT = re.compile(r"checkpoint_(\d+)")


def step_of(checkpoint: str | os.PathLike[str]) -> int:
  """Returns the step in a checkpoint's name."""
  return int(epath.Path(checkpoint).name.removeprefix("checkpoint_"))


def folders(run: str | os.PathLike[str]) -> list[epath.Path]:
  """Returns the paths in `run` with checkpoint names, sorted by step."""
  root = epath.Path(storage.path(run))
  return sorted((root / x for x in storage.names(root) if _CHECKPOINT.fullmatch(x)), key=step_of)


def all_checkpoints(run: str | os.PathLike[str]) -> list[epath.Path]:
  """Returns the complete checkpoints in `run`, sorted by step."""
  return [folder for folder in folders(run) if is_complete(folder)]


def is_complete(checkpoint: epath.Path) -> bool:
  """Returns whether a checkpoint is complete.

  A local checkpoint gets its name only when it is complete. In an object store, a complete
  checkpoint contains Orbax's marker file or the file with checksums, because these two files are
  written last. A checkpoint that was copied from a local disk contains only the file with
  checksums.
  """
  names = storage.names(checkpoint)
  is_marked = COMMIT_FILE in names or CHECKSUMS in names
  return "state" in names and (is_marked or not storage.is_url(checkpoint))


def find_checkpoint(path: str | os.PathLike[str]) -> epath.Path:
  """Returns the checkpoint to open: `path` itself, or a checkpoint in the run folder `path`.

  For a run, the result is the averaged checkpoint if it exists, otherwise the best checkpoint,
  otherwise the latest.

  Raises:
    InputError: If no checkpoint exists. The message lists the content of the folder.
  """
  folder = epath.Path(storage.path(path if storage.is_url(path) else os.path.abspath(path)))
  if not folder.is_dir():
    siblings = f"{folder.parent} contains {errors.some(storage.names(folder.parent))}"
    raise errors.InputError(
      f"no folder {folder}; {siblings}; a Hugging Face Hub model is named OWNER/NAME"
    )
  if _CHECKPOINT.fullmatch(folder.name) and (folder / "state").is_dir():
    return folder
  if averages := all_checkpoints(folder / AVERAGE):
    return averages[-1]
  if not (checkpoints := all_checkpoints(folder)):
    content = errors.some(storage.names(folder))
    raise errors.InputError(f"no checkpoint_<step> folder in {folder}; it contains {content}")
  latest = checkpoints[-1]
  if (best := read_best(folder)) is None:
    return latest
  if (target := folder / best["checkpoint"]) in checkpoints:
    return target
  logging.warning("The best checkpoint %s is missing; reading %s", target, latest.name)
  return latest


def read_best(run: str | os.PathLike[str]) -> dict[str, Any] | None:
  """Returns the content of a run's `best.json` (`checkpoint`, `metric`, `value`), if it exists."""
  path = storage.path(run) / BEST_FILE
  return input_files.read_json(path) if path.is_file() else None


def read_metadata(checkpoint: epath.Path) -> dict[str, Any]:
  """Returns the metadata (`shape`, `dtype`) of each array in a checkpoint, by name (`target/...`).

  Raises:
    InputError: If the checkpoint cannot be read.
  """
  state = checkpoint / "state"
  if os.fspath(state).startswith("s3://"):  # TensorStore supports s3://, but Orbax does not.
    raise errors.InputError(
      f"{checkpoint}: Orbax cannot read s3://; copy the checkpoint to a local disk or gs://"
    )
  try:
    with _orbax() as checkpointer:
      tree = checkpointer.metadata(state).item_metadata
    if tree is None:
      raise ValueError("its metadata is missing")
    metadata = traverse_util.flatten_dict(dict(tree), sep="/")
  except Exception as error:  # Orbax raises many exception types for damaged data.
    raise errors.InputError(f"{state} is not a readable T5X checkpoint: {error}") from error
  return metadata


def open_params(checkpoint: epath.Path) -> dict[str, tensors.StoredTensor]:
  """Opens the parameters of a checkpoint, by name without `target/`. Values are read on first use.

  Raises:
    InputError: If the checkpoint cannot be read, or does not match its checksums.
  """
  problem = damage(checkpoint, "state")
  if problem:
    raise errors.InputError(f"{checkpoint} is damaged: {problem}; copy it again")
  params = {}
  for name, metadata in read_metadata(checkpoint).items():
    if name.startswith(f"{PARAMETERS}/"):
      params[name.removeprefix(f"{PARAMETERS}/")] = tensors.StoredTensor(
        tuple(metadata.shape), f"{name} in {checkpoint}", functools.partial(_read, checkpoint, name)
      )
  return params


def read_params(
  checkpoint: epath.Path, params: Mapping[str, tensors.StoredTensor]
) -> dict[str, jax.Array]:
  """Reads parameters in float32 onto the default device, by name.

  Args:
    checkpoint: A `checkpoint_<step>` folder.
    params: The parameters to read: the result of `open_params`, or a subset of it.
  """
  device = jax.sharding.SingleDeviceSharding(jnp.zeros(()).device)
  args = {
    f"{PARAMETERS}/{name}": ocp.ArrayRestoreArgs(
      sharding=device, global_shape=tensor.shape, dtype=jnp.float32
    )
    for name, tensor in params.items()
  }
  restored = restore(checkpoint, args)
  return {name: restored[f"{PARAMETERS}/{name}"] for name in params}


def write_params(checkpoint: epath.Path, params: Mapping[str, np.ndarray]) -> None:
  """Writes a step 0 checkpoint that contains only parameters, as a starting point for training.

  Args:
    checkpoint: The `checkpoint_0` folder to create.
    params: Arrays by name, such as "encoder/layers_0/mlp/wi/kernel".

  Raises:
    OSError: If the checkpoint cannot be written.
  """
  target = traverse_util.unflatten_dict(dict(params), sep="/")
  tree = {PARAMETERS: target, "state": {"step": np.int32(0)}}
  try:
    with _orbax() as checkpointer:
      checkpointer.save(checkpoint / "state", args=ocp.args.PyTreeSave(tree))
  except Exception as error:  # Orbax raises ValueError if the disk is full.
    raise OSError(f"{checkpoint.name}: {error}") from None


@functools.cache
def silence_orbax() -> None:
  """Hides redundant messages from Orbax.

  When reads or writes fail, the first failure raises an exception. Orbax logs the same failure, and
  Python prints a stack trace for each further failure. Orbax also warns that a metadata file is
  missing, but the T5X layout does not include this file.
  """
  former = sys.unraisablehook

  def hook(unraisable: Any) -> None:
    code = getattr(unraisable.object, "cr_code", None)
    of_orbax = code is not None and "orbax" in code.co_filename
    if not of_orbax and "Event loop is closed" not in str(unraisable.exc_value):
      former(unraisable)

  sys.unraisablehook = hook
  asyncio_log, absl_log = map(standard_logging.getLogger, ("asyncio", "absl"))
  asyncio_log.addFilter(lambda record: "orbax" not in record.getMessage())
  absl_log.addFilter(lambda record: "orbax" not in record.pathname)


def _read(checkpoint: epath.Path, name: str) -> np.ndarray:
  return restore(checkpoint, {name: ocp.RestoreArgs(restore_type=np.ndarray)})[name]


def restore(checkpoint: epath.Path, flat: Mapping[str, ocp.RestoreArgs]) -> dict[str, Any]:
  """Reads arrays from a checkpoint.

  Args:
    checkpoint: A `checkpoint_<step>` folder.
    flat: How to restore each array, by name.

  Raises:
    InputError: If the checkpoint is damaged.
  """
  state = checkpoint / "state"
  args = traverse_util.unflatten_dict(dict(flat), sep="/")
  item = jax.tree.map(lambda _: 0, args)
  try:
    with _orbax() as checkpointer:
      restored = checkpointer.restore(
        state, args=ocp.args.PyTreeRestore(item=item, restore_args=args, partial_restore=True)
      )
  except Exception as error:  # Orbax raises many exception types for damaged data.
    reason = str(error).partition("\n")[0]
    raise errors.InputError(f"{state} is damaged: {reason}; copy it again") from None
  return dict(traverse_util.flatten_dict(restored, sep="/"))


def _orbax() -> ocp.Checkpointer:
  silence_orbax()
  return ocp.Checkpointer(ocp.PyTreeCheckpointHandler())


def prepare(run: str) -> None:
  """Prepares the checkpoints of a run in an object store for Orbax.

  Marks complete checkpoints that were copied into the store, because Orbax treats a checkpoint
  without a marker as incomplete. Removes checkpoints that were never completed. Orbax's own
  clean-up function is not used, because it would also remove all other folders in the run.
  """
  for checkpoint in folders(run):
    names = storage.names(checkpoint)
    if is_complete(checkpoint):
      if COMMIT_FILE not in names:
        (checkpoint / COMMIT_FILE).write_text("copied\n")
    elif _ORBAX_FILE in names:
      record = input_files.read_json(checkpoint / _ORBAX_FILE)
      if not (isinstance(record, dict) and record.get("commit_timestamp_nsecs")):
        storage.remove(checkpoint)


def write_checksums(checkpoint: epath.Path, folders: Mapping[str, epath.Path]) -> None:
  """Writes the checksums of all files in `folders` to `checkpoint`.

  Args:
    checkpoint: The temporary folder in which the checkpoint is written.
    folders: The folders that will become subfolders of the checkpoint, by name.
  """
  lines = [
    f"{input_files.sha256(folder / inside)}  {name}/{inside}\n"
    for name, folder in sorted(folders.items())
    for inside in sorted(storage.files_below(folder))
  ]
  (checkpoint / CHECKSUMS).write_text("".join(lines))


def damage(checkpoint: epath.Path, subfolder: str | None = None) -> str | None:
  """Checks a checkpoint's files against its checksums, and describes the first problem.

  Args:
    checkpoint: The checkpoint's folder.
    subfolder: The subfolder to check. If omitted, all subfolders with checksums are checked.

  Returns:
    The problem, or None if the files are intact or the checkpoint has no checksums.
  """
  sums = checkpoint / CHECKSUMS
  if not sums.exists():
    return None
  try:
    input_files.check(sums)
    lines = [
      re.fullmatch(r"([0-9a-f]{64})  ([^/]+)/(.+)", line) for line in sums.read_text().splitlines()
    ]
    if not lines or None in lines:
      return f"{CHECKSUMS} has changed since it was written"
    checksums: dict[str, dict[str, str]] = {}
    for digest, folder, name in (line.groups() for line in lines if line):
      checksums.setdefault(folder, {})[name] = digest
    for folder in sorted(checksums) if subfolder is None else [subfolder]:
      if folder == "dataset" and not (checkpoint / folder).is_dir():
        # This folder contains the position in the data. It may be missing, because a resumed run
        # can skip the batches that it has already used.
        continue
      files = set(storage.files_below(checkpoint / folder))
      for name, digest in checksums.get(folder, {}).items():
        if name not in files:
          return f"{folder}/{name} is missing"
        if input_files.sha256(checkpoint / folder / name) != digest:
          return f"{folder}/{name} has changed since it was written"
  except (OSError, ValueError) as error:
    return f"it cannot be read ({error})"
  return None
