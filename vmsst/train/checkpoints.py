"""T5X checkpoints, which Orbax writes to `checkpoint_<step>/state` in the model folder.

This module and upstream T5X can read each other's checkpoints. Before reading any array, the module
compares the names and shapes of the arrays in the checkpoint with the model.
"""

import contextlib
import dataclasses
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import jax
import msgspec
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from etils import epath
from flax import traverse_util
from jax.experimental import multihost_utils
from orbax.checkpoint import checkpoint_managers

from vmsst import storage
from vmsst.encoder import loading
from vmsst.errors import InputError, some
from vmsst.formats import encoder_json, t5x, tensors
from vmsst.train import input_pipeline

AssignmentMap = Sequence[tuple[str, str | None]]


@dataclasses.dataclass
class SaveCheckpointConfig:
  """When to save a checkpoint and what to save (`t5x.utils.SaveCheckpointConfig`).

  Attributes:
    dtype: Dtype of the saved parameters, "float32" or "bfloat16".
    period: Steps between checkpoints. The run also saves a checkpoint before its first step and
      after its last step.
    checkpoint_steps: Additional steps at which to save a checkpoint.
    keep: Number of recent checkpoints to keep (default: all). The best checkpoints according to
      `trainer.KeepBestAction` are also kept.
    save_dataset: Whether to save the state of the data iterator, so that a restart need not reread
      the data.
  """

  dtype: Literal["float32", "bfloat16"] | None = "float32"
  period: Annotated[int, msgspec.Meta(ge=0)] | None = None
  checkpoint_steps: Sequence[Annotated[int, msgspec.Meta(ge=0)]] | None = None
  keep: Annotated[int, msgspec.Meta(ge=1)] | None = None
  save_dataset: bool = False


@dataclasses.dataclass
class RestoreCheckpointConfig:
  """The checkpoint to start from (`t5x.utils.RestoreCheckpointConfig`).

  Attributes:
    path: A checkpoint, or a folder with checkpoints. If None, the training starts from scratch.
    mode: "specific" reads `path`, a checkpoint or an encoder that `vmsst.load` can open. If `path`
      is a training run, its best checkpoint is read. "latest" reads the newest checkpoint in the
      folder `path`. "all" reads all checkpoints in the folder, for evaluation only.
    assignment_map: Pairs (regular expression, name of a checkpoint array). For each model array,
      the first expression that matches the array's full name selects the checkpoint array to read.
      If the second entry of that pair is None, the model array is not read from the checkpoint.
    fallback_to_scratch: Whether to initialize arrays that are missing from the checkpoint or that
      `assignment_map` skips.
    dtype: Dtype of the restored parameters (default: the model's dtype).
  """

  path: str | Sequence[str] | None
  mode: Literal["specific", "latest", "all"] = "latest"
  assignment_map: AssignmentMap | None = None
  fallback_to_scratch: bool = False
  dtype: Literal["float32", "float16", "bfloat16"] | None = None


@dataclasses.dataclass
class CheckpointConfig:
  """Which checkpoints to save and restore (`t5x.utils.CheckpointConfig`)."""

  save: SaveCheckpointConfig | None = None
  restore: RestoreCheckpointConfig | None = None


def newest_intact(model_dir: str) -> epath.Path | None:
  """Returns the newest intact checkpoint in `model_dir`, or None if the folder has no checkpoint.

  If newer checkpoints are damaged, logs warnings and renames them to `damaged_checkpoint_<step>`.

  Raises:
    InputError: If all checkpoints are damaged.
  """
  step = -1
  if jax.process_index() == 0:
    damaged: dict[epath.Path, str] = {}
    for path in reversed(t5x.folders(model_dir)):
      problem: str | None = "it has no folder `state`, as if T5X without Orbax wrote it"
      if t5x.is_complete(path):
        problem = t5x.damage(path)
      elif storage.is_url(path):
        continue  # An unfinished checkpoint is not damaged; `CheckpointManager` removes it.
      if problem is None:
        step = t5x.step_of(path)
        break
      damaged[path] = problem
    if damaged and step < 0:
      problems = "; ".join(f"{path.name}: {problem}" for path, problem in damaged.items())
      raise InputError(
        f"every checkpoint in {model_dir} is damaged: {problems}. Set another MODEL_DIR to start "
        "over"
      )
    for path, problem in damaged.items():
      aside = path.parent / f"damaged_{path.name}"
      storage.remove(aside)
      storage.rename(path, aside)
      logging.warning("%s is damaged: %s. Renamed to %s.", path, problem, aside.name)
  if jax.process_count() > 1:  # All processes must resume from the same step.
    step = int(multihost_utils.broadcast_one_to_all(np.int32(step)))
  return None if step < 0 else epath.Path(storage.path(model_dir)) / f"checkpoint_{step}"


def find_checkpoints(cfg: RestoreCheckpointConfig) -> list[epath.Path]:
  """Returns the checkpoints that `cfg` refers to, sorted by step.

  Raises:
    InputError: If no checkpoint exists, or a checkpoint is damaged.
  """
  paths = [cfg.path] if isinstance(cfg.path, str | os.PathLike) else list(cfg.path or ())
  checkpoints: list[epath.Path] = []
  for location in paths:
    path = epath.Path(storage.path(location))
    if cfg.mode == "specific" and loading.lacks_checkpoint(location):
      checkpoints.append(epath.Path(location))  # an encoder without a T5X checkpoint
    elif cfg.mode == "specific":
      checkpoints.append(path if (path / "state").is_dir() else t5x.find_checkpoint(path))
    else:
      inside = t5x.all_checkpoints(path)
      checkpoints += inside if cfg.mode == "all" else inside[-1:]
  if not checkpoints:
    raise InputError(f"no checkpoint_<step> in {cfg.path}; change RestoreCheckpointConfig.path")
  for path in checkpoints if jax.process_index() == 0 else ():
    problem = t5x.damage(path) if (path / "state").is_dir() else None
    if problem:
      raise InputError(f"{path} is damaged: {problem}; choose another checkpoint")
  return checkpoints


def find_checkpoint(cfg: RestoreCheckpointConfig) -> epath.Path:
  """Returns the single checkpoint that `cfg` refers to.

  Raises:
    InputError: If `cfg` does not refer to exactly one checkpoint, or the checkpoint is damaged.
  """
  paths = find_checkpoints(cfg)
  if len(paths) != 1:
    raise InputError(
      f"{cfg.path} has {len(paths)} checkpoints; set RestoreCheckpointConfig.mode to 'specific' or "
      "'latest'"
    )
  return paths[0]


# --------------------------------------------------------------------------------------------
# Reading


def _flatten(tree: Mapping[str, Any]) -> dict[str, Any]:
  return traverse_util.flatten_dict(tree, sep="/")


def saved_arrays(path: epath.Path) -> Mapping[str, Any]:
  """Returns an encoder's arrays by name. For a T5X checkpoint, returns only the arrays' metadata.

  Args:
    path: A `checkpoint_<step>` folder, or an encoder that `vmsst.load` opens.
  """
  if (path / "state").is_dir():
    return t5x.read_metadata(path)
  arrays = loading.read_arrays(path)
  return {f"{t5x.PARAMETERS}/{name}": array for name, array in arrays.items()}


def find_arrays(
  path: epath.Path,
  saved: Mapping[str, Any],
  shapes: Mapping[str, Any],
  assignment_map: AssignmentMap | None = None,
  *,
  may_lack: bool = False,
) -> dict[str, tensors.Source]:
  """Selects the checkpoint array to read for each model array, without reading any array.

  Args:
    path: The checkpoint, for error messages.
    saved: The checkpoint's arrays (`saved_arrays`).
    shapes: The model's state dict, with a ShapeDtypeStruct for each array.
    assignment_map: See `RestoreCheckpointConfig`.
    may_lack: Whether arrays may be missing from the checkpoint.

  Returns:
    The source of each model array, by name.

  Raises:
    InputError: If an array is missing or has an unexpected shape; the message names the array.
  """
  model, unused = _flatten(shapes), {pattern for pattern, _ in assignment_map or ()}
  sources: dict[str, tensors.Source] = {}
  missing: list[str] = []
  for name, array in model.items():
    saved_name, is_needed = name, not may_lack
    for pattern, replacement in assignment_map or ():
      if match := re.fullmatch(pattern, name):
        unused.discard(pattern)
        saved_name = "" if replacement is None else match.expand(replacement)
        is_needed |= bool(saved_name)  # The checkpoint must have every array named in the map.
        break
    source = None
    if saved_name.startswith("target/"):
      source = tensors.find(saved_name, array.shape, saved)
    elif saved_name in saved:
      # Parameters can be stacked or split by layer, but optimizer state cannot, because Adafactor
      # does not factor a stack of layers along the same axes as a single layer.
      source = tensors.Source((saved_name,))
    if source is not None:
      sources[name] = source
      if (shape := source.shape(saved)) != tuple(array.shape):
        raise InputError(
          f"{name} has shape {tuple(array.shape)} in the model and {shape} in {path} "
          f"({source.names[0]}); use a checkpoint of the same model and size"
        )
    elif is_needed:
      missing.append(saved_name or name)
  if unused:
    raise InputError(
      f"assignment_map: {sorted(unused)[0]!r} matches no array in the model; the model has "
      f"{some(model)}"
    )
  if missing:
    raise InputError(
      f"{path} lacks {some(missing)}; the checkpoint has {some(saved)}. Use a checkpoint of "
      "the same model, or set RestoreCheckpointConfig.assignment_map and fallback_to_scratch=True "
      "to initialize the missing arrays. If only optimizer state is missing, set scan_layers as "
      "in the run that wrote the checkpoint"
    )
  return sources


def restore(
  path: epath.Path,
  shapes: Mapping[str, Any],
  shardings: Mapping[str, Any],
  *,
  dtype: str | None = None,
  assignment_map: AssignmentMap | None = None,
  fallback: Callable[[Sequence[str]], Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
  """Returns the model's state dict, read from the checkpoint at `path` onto the devices.

  Args:
    path: A `checkpoint_<step>` folder, or an encoder that `vmsst.load` opens.
    shapes: The model's state dict, with a ShapeDtypeStruct for each array.
    shardings: The same tree, with a NamedSharding for each array.
    dtype: Dtype of the parameters, `target/...` (default: the model's dtype).
    assignment_map: See `RestoreCheckpointConfig`.
    fallback: Function that takes array names and returns initial values by name. If omitted, the
      checkpoint must contain every array in the model.

  Raises:
    InputError: If an array is missing or has an unexpected shape; the message names the array.
  """
  model = _flatten(shapes)
  model_shardings = _flatten(shardings)
  saved = saved_arrays(path)
  sources = find_arrays(path, saved, shapes, assignment_map, may_lack=fallback is not None)
  missing = [name for name in model if name not in sources]
  args: dict[str, Any] = {}
  for name, source in sources.items():
    casts = dtype is not None and name.startswith("target/")
    mesh, spec = model_shardings[name].mesh, tuple(model_shardings[name].spec)
    # The first axis of stacked layers is never sharded.
    if source.stacked:  # The model stacks layers that the checkpoint saved separately.
      spec = spec[1:]
    elif source.layer is not None:  # The model needs one layer from a saved stack.
      spec = (None, *spec)
    for saved_name in source.names:
      args[saved_name] = ocp.ArrayRestoreArgs(
        sharding=jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec)),
        global_shape=tuple(saved[saved_name].shape),
        dtype=jax.numpy.dtype(dtype) if casts else model[name].dtype,
      )
  if (path / "state").is_dir():
    arrays = t5x.restore(path, args)
  else:
    arrays = {}
    for saved_name, arg in args.items():  # Every process has the complete saved arrays.
      x = np.asarray(saved[saved_name], arg.dtype)
      arrays[saved_name] = jax.make_array_from_callback(x.shape, arg.sharding, x.__getitem__)
  state: dict[str, Any] = {}
  used_names: set[str] = set()
  for name, source in sources.items():
    array = source.make(arrays)
    if source.stacked or source.layer is not None:
      array = jax.device_put(array, model_shardings[name])
    # Training donates the state, so two model arrays that are read from the same saved array must
    # not share a buffer.
    state[name] = jax.numpy.copy(array) if source.names[0] in used_names else array
    used_names.update(source.names)
  if missing and fallback is not None:
    logging.info("Not read from %s, but newly initialized: %s.", path, ", ".join(missing))
    state.update(fallback(missing))
  return traverse_util.unflatten_dict(state, sep="/")


# --------------------------------------------------------------------------------------------
# Writing


class _DataStateHandler(ocp.CheckpointHandler):
  """Writes a checkpoint's `dataset` folder, then the checksums of the checkpoint's files."""

  def save(self, directory: epath.Path, args: "DataStateSave") -> None:
    args.state.copy_to(
      storage.path(directory), process=jax.process_index(), processes=jax.process_count()
    )

  def finalize(self, directory: epath.Path) -> None:
    if jax.process_index() == 0:
      checkpoint = directory.parent
      state = checkpoint / "state"
      if not state.is_dir():
        raise RuntimeError(f"Orbax did not finish {state} before {directory}")
      t5x.write_checksums(checkpoint, {"state": state, "dataset": directory})

  def restore(self, directory: epath.Path, args: Any = None) -> Any:
    raise NotImplementedError("read with DataState.read_from")


@dataclasses.dataclass
class DataStateSave(ocp.args.CheckpointArgs):
  """The data iterator state to write."""

  state: input_pipeline.DataState


@dataclasses.dataclass
class _NewestAndBest(checkpoint_managers.PreservationPolicy):
  """Preserves a run's newest checkpoints and the checkpoints listed in `best.json`."""

  model_dir: str
  newest: int

  def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
    best = best_names(self.model_dir)
    first = len(checkpoints) - self.newest
    return [n >= first or f"checkpoint_{info.step}" in best for n, info in enumerate(checkpoints)]


def best_names(model_dir: str) -> list[str]:
  """Returns the checkpoint names in `best.json`, best first, or no names if the file is missing."""
  best = t5x.read_best(model_dir) or {}
  return [entry["checkpoint"] for entry in best.get("ranking", [best] if best else [])]


def write_average(
  model_dir: str, count: int, shapes: Mapping[str, Any], shardings: Mapping[str, Any]
) -> None:
  """Writes the average of the best checkpoints, or of the newest ones if `best.json` is missing.

  Args:
    model_dir: The run's folder. Its checkpoints must be complete.
    count: Maximum number of checkpoints to average.
    shapes: See `restore`.
    shardings: See `restore`.
  """
  complete = {path.name: path for path in t5x.all_checkpoints(model_dir)}
  names = [name for name in best_names(model_dir) if name in complete][:count]
  names = names or [*complete][-count:]
  logging.info("Averaging %s.", ", ".join(names))
  total: Any = None
  for name in names:
    params = restore(
      complete[name],
      {t5x.PARAMETERS: shapes[t5x.PARAMETERS]},
      {t5x.PARAMETERS: shardings[t5x.PARAMETERS]},
    )
    total = params if total is None else jax.tree.map(jax.numpy.add, total, params)
  mean = jax.tree.map(lambda x: x / len(names), total[t5x.PARAMETERS])
  folder = epath.Path(storage.path(model_dir)) / t5x.AVERAGE
  checkpoint = folder / loading.CHECKPOINT
  t5x.write_params(checkpoint, _flatten(mean))
  if jax.process_index() == 0:
    t5x.write_checksums(checkpoint, {"state": checkpoint / "state"})
    if (folder.parent / encoder_json.ENCODER_FILE).is_file():
      encoder_json.save_assets(encoder_json.load_encoder_assets(model_dir), folder)


class CheckpointManager:
  """Writes checkpoints below `model_dir` in the background, and deletes old ones.

  Args:
    model_dir: Absolute path of the run's folder.
    cfg: When and what to save, and how many checkpoints to keep.
  """

  def __init__(self, model_dir: str, cfg: SaveCheckpointConfig):
    self._model_dir = model_dir
    self._cfg = cfg
    self._failed = False
    t5x.silence_orbax()
    handlers = ocp.handlers.DefaultCheckpointHandlerRegistry()  # Orbax writes items in this order.
    handlers.add("state", ocp.args.PyTreeSave, ocp.PyTreeCheckpointHandler())
    handlers.add("dataset", DataStateSave, _DataStateHandler())
    in_store = storage.is_url(model_dir)
    if in_store and jax.process_index() == 0:
      t5x.prepare(model_dir)
    self._manager = ocp.CheckpointManager(
      model_dir,
      handler_registry=handlers,
      options=ocp.CheckpointManagerOptions(
        step_prefix="checkpoint",
        preservation_policy=_NewestAndBest(model_dir, cfg.keep) if cfg.keep else None,
        create=True,
        enable_async_checkpointing=True,
        cleanup_tmp_directories=not in_store,
        temporary_path_class=t5x.TEMPORARY_PATH if in_store else None,
      ),
    )

  def save(self, train_state: Any, data_state: input_pipeline.DataState) -> None:
    """Starts writing `train_state`, unless a checkpoint for its step exists.

    The files are written in the background. Call `release` before the next training step.

    Raises:
      InputError: If this checkpoint or the previous checkpoint could not be written.
    """
    step = int(train_state.step)
    if step in self._manager.all_steps():
      return
    state = train_state.state_dict()
    if self._cfg.dtype == "bfloat16":
      state["target"] = jax.tree.map(
        lambda x: x.astype("bfloat16") if x.dtype == np.float32 else x, state["target"]
      )
    items = ocp.args.Composite(state=ocp.args.PyTreeSave(state), dataset=DataStateSave(data_state))
    with self._orbax_errors():
      self._manager.save(step, args=items, force=True)

  def wait(self) -> None:
    """Waits until all checkpoints are complete."""
    with self._orbax_errors():
      self._manager.wait_until_finished()

  def release(self) -> None:
    """Waits until training can overwrite the arrays of the saved train state.

    On CPUs, Orbax writes checkpoints from the arrays themselves. If a step donated these arrays
    earlier, JAX would copy them and need memory for a second train state.

    Raises:
      InputError: If writing a checkpoint in the background has failed.
    """
    if jax.default_backend() == "cpu":
      self.wait()
    with self._orbax_errors():
      self._manager.check_for_errors()

  def close(self) -> None:
    """Waits until all checkpoints are complete, unless an earlier write has failed."""
    if not self._failed:
      with self._orbax_errors():
        self._manager.wait_until_finished()
        self._manager.close()

  @contextlib.contextmanager
  def _orbax_errors(self) -> Iterator[None]:
    try:
      yield
    except Exception as error:
      self._failed = True
      reason = str(error).partition("\n")[0]
      raise InputError(
        f"a checkpoint in {self._model_dir} could not be written: {reason}. Fix the problem and "
        "rerun the same command to resume from the newest checkpoint"
      ) from error
