"""T5X checkpoints: `checkpoint_<step>/state` below the model folder, written by Orbax.

Upstream T5X reads what is written here, and the other way round. Every mismatch between a
checkpoint and the model is found from the metadata, before any array is read, and named.
"""

import contextlib
import dataclasses
import pathlib
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import flax
import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from etils import epath
from flax import traverse_util
from jax.experimental import multihost_utils

from vmsst.checkpoints import t5x as t5x_checkpoints
from vmsst.errors import InputError
from vmsst.files import checksums
from vmsst.launch.runtime import data as data_lib
from vmsst.launch.runtime import model_dir as model_dir_lib
from vmsst.launch.runtime.optimizers import some_names

PREFIX = "checkpoint"
_DAMAGED = "damaged_"  # before the name of a checkpoint that is not used

AssignmentMap = Sequence[tuple[str, str | None]]


@dataclasses.dataclass
class SaveCheckpointConfig:
  """When and what to save (`t5x.utils.SaveCheckpointConfig`).

  Attributes:
    dtype: type of the saved parameters, "float32" or "bfloat16".
    period: steps between checkpoints; one is also written before the first step and after the
      last.
    checkpoint_steps: further steps to save after.
    keep: newest checkpoints to keep; None keeps all.
    keep_dataset_checkpoints: must be None or equal to `keep`: the data state lies in the
      checkpoint and goes with it.
    save_dataset: also save where the data stands, so that a restart need not read again what it
      has read.
  """

  dtype: str = "float32"
  period: int | None = None
  checkpoint_steps: Sequence[int] | None = None
  keep: int | None = None
  keep_dataset_checkpoints: int | None = None
  save_dataset: bool = False

  def __post_init__(self):
    if self.dtype not in (None, "float32", "bfloat16"):
      raise InputError(
        f"SaveCheckpointConfig.dtype must be 'float32' or 'bfloat16', got {self.dtype!r}"
      )
    if self.keep_dataset_checkpoints not in (None, self.keep):
      raise InputError(
        f"keep_dataset_checkpoints is {self.keep_dataset_checkpoints} and keep is {self.keep}: the "
        "data state lies in the checkpoint and goes with it; leave keep_dataset_checkpoints out"
      )


@dataclasses.dataclass
class RestoreCheckpointConfig:
  """What to start from (`t5x.utils.RestoreCheckpointConfig`).

  Attributes:
    path: a checkpoint, a folder of checkpoints, or an empty list for none.
    mode: "specific" (`path` is a checkpoint), "latest" (newest in the folder `path`) or "all"
      (evaluation only).
    assignment_map: (regex over the model's array names, replacement naming the checkpoint's
      array, or None to leave the array out) pairs; the first that matches a whole name is used.
      What a replacement names has to be in the checkpoint.
    strict: accepted for upstream's gin files; arrays that the model lacks are never an error.
    fallback_to_scratch: initialize what the checkpoint lacks or the map leaves out.
    dtype: type to restore parameters in; None: the model's.
    restore_dataset: accepted for upstream's gin files; resuming always restores the data.
  """

  path: str | Sequence[str]
  mode: str = "latest"
  assignment_map: AssignmentMap | None = None
  strict: bool = True
  fallback_to_scratch: bool = False
  dtype: str | None = None
  restore_dataset: bool = False

  def __post_init__(self):
    if self.mode not in ("specific", "latest", "all"):
      raise InputError(
        f"RestoreCheckpointConfig.mode must be 'specific', 'latest' or 'all', got {self.mode!r}"
      )
    if self.dtype not in (None, "float32", "float16", "bfloat16"):
      raise InputError(
        "RestoreCheckpointConfig.dtype must be None, 'float32', 'float16' or 'bfloat16', "
        f"got {self.dtype!r}"
      )


@dataclasses.dataclass
class CheckpointConfig:
  """Saving and restoring together (`t5x.utils.CheckpointConfig`)."""

  save: SaveCheckpointConfig | None = None
  restore: RestoreCheckpointConfig | None = None


def checkpoint_step(path: str | pathlib.Path) -> int:
  """The step in a checkpoint's name.

  Raises:
    InputError: the name ends in no step.
  """
  match = re.search(r"(\d+)/?$", str(path))
  if match is None:
    raise InputError(f"{path} is not a checkpoint: its name does not end in _<step>")
  return int(match.group(1))


def all_checkpoints(folder: str | pathlib.Path) -> list[epath.Path]:
  """Complete checkpoints in `folder`, by step."""
  root = epath.Path(folder)
  if not root.is_dir():
    return []
  found = [
    path
    for path in root.iterdir()
    if re.fullmatch(rf"{PREFIX}_\d+", path.name) and (path / "state").is_dir()
  ]
  return sorted(found, key=checkpoint_step)


def newest_intact(model_dir: str) -> epath.Path | None:
  """The checkpoint that a run in `model_dir` goes on from: the newest whose files are as written.

  Newer ones, which are not, are named in a warning and renamed to `damaged_checkpoint_<step>`.

  Raises:
    InputError: there are checkpoints, and all are damaged.
  """
  step = _set_damaged_aside(model_dir) if jax.process_index() == 0 else -1
  if jax.process_count() > 1:
    step = int(multihost_utils.broadcast_one_to_all(np.int32(step)))
  return None if step < 0 else epath.Path(model_dir) / f"{PREFIX}_{step}"


def _set_damaged_aside(model_dir: str) -> int:
  """The step of the newest intact checkpoint, without newer ones beside it; -1: there are none."""
  damaged: dict[epath.Path, str] = {}
  for path in reversed(all_checkpoints(model_dir)):
    problem = checksums.damage(path)
    if problem is None:
      for bad, reason in damaged.items():
        aside = bad.parent / f"{_DAMAGED}{bad.name}"
        if aside.exists():
          aside.rmtree()
        bad.rename(aside)
        logging.warning("%s is damaged: %s. It is now %s.", bad, reason, aside.name)
        logging.warning("Going on from %s.", path)
      return checkpoint_step(path)
    damaged[path] = problem
  if damaged:
    raise InputError(
      f"every checkpoint in {model_dir} is damaged: "
      + "; ".join(f"{path.name}: {problem}" for path, problem in damaged.items())
      + ". Give another MODEL_DIR to begin anew"
    )
  return -1


def find_checkpoints(cfg: RestoreCheckpointConfig) -> list[epath.Path]:
  """The checkpoints that `cfg` points at, by step.

  Raises:
    InputError: there are none, or one is damaged.
  """
  paths = [cfg.path] if isinstance(cfg.path, str | pathlib.Path) else list(cfg.path)
  found: list[epath.Path] = []
  for path in map(epath.Path, paths):
    if cfg.mode == "specific":
      if not (path / "state").is_dir():
        inside = [checkpoint.name for checkpoint in all_checkpoints(path)]
        hint = f"; it holds {', '.join(inside[-3:])}" if inside else ""
        raise InputError(f"{path} is not a T5X checkpoint: it has no folder 'state'{hint}")
      found.append(path)
    else:
      inside = all_checkpoints(path)
      if not inside:
        raise InputError(f"no checkpoint_<step> in {path}")
      found += inside if cfg.mode == "all" else inside[-1:]
  for path in found if jax.process_index() == 0 else ():
    problem = checksums.damage(path)
    if problem:
      raise InputError(f"{path} is damaged: {problem}. Give another checkpoint")
  return found


def find_checkpoint(cfg: RestoreCheckpointConfig) -> epath.Path:
  """The one checkpoint that `cfg` points at.

  Raises:
    InputError: there is none, or more than one may be meant.
  """
  if cfg.mode == "all" or not isinstance(cfg.path, str | pathlib.Path):
    raise InputError(
      "one checkpoint is needed: give RestoreCheckpointConfig one path, and mode 'specific' or "
      "'latest'"
    )
  return find_checkpoints(cfg)[0]


# --------------------------------------------------------------------------------------------
# Reading


def apply_assignment_map(
  names: Sequence[str],
  assignment_map: AssignmentMap,
  stored: Collection[str],
  path: epath.Path,
) -> dict[str, str | None]:
  """Which array of the checkpoint each array of the model is read from; None: from none.

  Args:
    names: the model's arrays, like `target/encoder/layers_0/mlp/wi/kernel`.
    assignment_map: see `RestoreCheckpointConfig`.
    stored: the checkpoint's arrays.
    path: the checkpoint, for messages.

  Raises:
    InputError: a rule matches nothing, or names an array that the checkpoint lacks.
  """
  unused = {pattern for pattern, _ in assignment_map}
  absent: list[str] = []
  sources: dict[str, str | None] = {}
  for name in names:
    sources[name] = name
    for pattern, replacement in assignment_map:
      match = re.fullmatch(pattern, name)
      if match:
        unused.discard(pattern)
        source = match.expand(replacement) if replacement is not None else None
        sources[name] = source
        if source is not None and source not in stored:
          absent.append(source)
        break
  if absent:
    raise InputError(
      f"{path} lacks {some_names(absent)}, which assignment_map reads: the checkpoint is of another "
      "model, number of layers or way of keeping layers (T5Config.scan_layers); it has "
      f"{some_names(list(stored))}"
    )
  if unused:
    raise InputError(
      f"assignment_map: {sorted(unused)[0]!r} matches no array of the model, which has "
      f"{some_names(list(names))}"
    )
  return sources


def _flatten(tree: Mapping[str, Any]) -> dict[str, Any]:
  return traverse_util.flatten_dict(flax.core.unfreeze(dict(tree)), sep="/")


def restore(
  path: epath.Path,
  shapes: Mapping[str, Any],
  shardings: Mapping[str, Any],
  *,
  dtype: str | None = None,
  assignment_map: AssignmentMap | None = None,
  fallback: Callable[[Sequence[str]], Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
  """The model's state dict, read from the checkpoint at `path` onto the devices.

  Args:
    path: a `checkpoint_<step>` folder.
    shapes: the model's state dict, of ShapeDtypeStructs.
    shardings: the same tree, of NamedShardings.
    dtype: type of the parameters (`target/...`); None: the model's.
    assignment_map: see `RestoreCheckpointConfig`.
    fallback: gives arrays from scratch by name, for those that are not read.

  Raises:
    InputError: an array is missing or has another shape; the message names it.
  """
  model = _flatten(shapes)
  placement = _flatten(shardings)
  stored = t5x_checkpoints.read_metadata(path)
  sources = apply_assignment_map(list(model), assignment_map or (), stored, path)
  found = {name: source for name, source in sources.items() if source and source in stored}
  missing = [name for name in sources if name not in found]
  if missing and fallback is None:
    raise InputError(
      f"{path} lacks {some_names([sources[name] or name for name in missing])}. Give "
      "RestoreCheckpointConfig an assignment_map and fallback_to_scratch=True to initialize what "
      f"is missing; the checkpoint has {some_names(list(stored))}"
    )
  read: dict[str, Any] = {}
  args: dict[str, Any] = {}
  for name, source in found.items():
    wanted, saved = tuple(model[name].shape), tuple(stored[source].shape)
    if wanted != saved:
      raise InputError(
        f"{name} has shape {wanted} in the model and {saved} in {path} ({source}): the checkpoint "
        "is of another model or size"
      )
    kept = dtype is None or not name.startswith("target/")
    read[source] = model[name]
    args[source] = ocp.ArrayRestoreArgs(
      sharding=placement[name],
      global_shape=wanted,
      dtype=model[name].dtype if kept else jax.numpy.dtype(dtype),
    )
  with ocp.PyTreeCheckpointer() as checkpointer:
    tree = checkpointer.restore(
      path / "state",
      args=ocp.args.PyTreeRestore(
        item=traverse_util.unflatten_dict(read, sep="/"),
        restore_args=traverse_util.unflatten_dict(args, sep="/"),
        partial_restore=True,
      ),
    )
  arrays = _flatten(tree)
  state: dict[str, Any] = {}
  taken: set[str] = set()
  for name, source in found.items():
    # Training donates the state, so what is read once for two names becomes two arrays.
    state[name] = jax.numpy.copy(arrays[source]) if source in taken else arrays[source]
    taken.add(source)
  if missing and fallback is not None:
    logging.info("Initialized, not read from %s: %s.", path, ", ".join(missing))
    state.update(fallback(missing))
  return traverse_util.unflatten_dict(state, sep="/")


# --------------------------------------------------------------------------------------------
# Writing


class _DataStateHandler(ocp.CheckpointHandler):
  """Writes the `dataset` folder of a checkpoint, and in the end the sums of all its files."""

  def save(self, directory: epath.Path, args: "DataStateSave") -> None:
    args.state.copy_to(
      pathlib.Path(directory), process=jax.process_index(), processes=jax.process_count()
    )

  def finalize(self, directory: epath.Path) -> None:
    if jax.process_index() == 0:
      checkpoint = directory.parent
      state = checkpoint / "state"
      if not state.is_dir():
        raise RuntimeError(f"Orbax has not finished {state} before {directory}")
      checksums.write(checkpoint, {"state": state, "dataset": directory})

  def restore(self, directory: epath.Path, args: Any = None) -> Any:
    raise NotImplementedError("read with DataState.read_from")


@dataclasses.dataclass
class DataStateSave(ocp.args.CheckpointArgs):
  """The data state to write."""

  state: data_lib.DataState


class CheckpointManager:
  """Writes checkpoints below `model_dir`, in the background, and forgets old ones.

  Args:
    model_dir: absolute folder.
    cfg: what to keep and to write.
  """

  def __init__(self, model_dir: str, cfg: SaveCheckpointConfig):
    self._model_dir = epath.Path(model_dir)
    self._cfg = cfg
    self._failed = False
    t5x_checkpoints.ignore_abandoned_io()
    handlers = ocp.handlers.DefaultCheckpointHandlerRegistry()  # finishes items in this order
    handlers.add("state", ocp.args.PyTreeSave, ocp.PyTreeCheckpointHandler())
    handlers.add("dataset", DataStateSave, _DataStateHandler())
    self._manager = ocp.CheckpointManager(
      model_dir,
      handler_registry=handlers,
      options=ocp.CheckpointManagerOptions(
        step_prefix=PREFIX,
        max_to_keep=cfg.keep,
        create=True,
        enable_async_checkpointing=True,
        cleanup_tmp_directories=True,
      ),
    )

  def all_steps(self) -> Sequence[int]:
    """Steps that a checkpoint exists for."""
    return self._manager.all_steps()

  def save(self, train_state: Any, data_state: data_lib.DataState) -> bool:
    """Starts writing `train_state`; returns once the arrays are copied off the devices.

    Returns False where a checkpoint of that step exists already.

    Raises:
      InputError: this checkpoint, or the one before, could not be written.
    """
    step = int(train_state.step)
    if step in self._manager.all_steps():
      return False
    state = train_state.state_dict()
    if self._cfg.dtype == "bfloat16":
      state = {**state, "target": jax.tree.map(_to_bfloat16, state["target"])}
    items = ocp.args.Composite(state=ocp.args.PyTreeSave(state), dataset=DataStateSave(data_state))
    with self._explained():
      self._manager.save(step, args=items, force=True)
    return True

  def check(self) -> None:
    """Raises InputError where a checkpoint could not be written in the background."""
    with self._explained():
      self._manager.check_for_errors()

  def close(self) -> None:
    """Finishes writing; raises InputError where that fails, and leaves nothing half written."""
    try:
      if not self._failed:
        with self._explained():
          self._manager.wait_until_finished()
          self._manager.close()
    finally:
      if self._failed and jax.process_index() == 0:
        for folder in self._model_dir.glob(f"{PREFIX}_*{ocp.utils.TMP_DIR_SUFFIX}*"):
          shutil.rmtree(folder, ignore_errors=True)

  @contextlib.contextmanager
  def _explained(self) -> Iterator[None]:
    try:
      yield
    except Exception as error:
      self._failed = True
      done = all_checkpoints(self._model_dir)
      newest = f"from the newest, {done[-1].name}" if done else "from the start: there is none yet"
      reason = model_dir_lib.disk_fault(error) or str(error).splitlines()[0]
      raise InputError(
        f"a checkpoint in {self._model_dir} could not be written: {reason}. Put that right, and "
        f"the same command goes on {newest}"
      ) from error


def _to_bfloat16(array: Any) -> Any:
  return array.astype("bfloat16") if array.dtype == np.float32 else array
