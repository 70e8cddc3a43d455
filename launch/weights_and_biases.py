"""Sends the metrics of a run to Weights & Biases.

`gin/runs/wandb.gin` adds it to a run:

  train_script.train.actions = @weights_and_biases.with_logging()
  weights_and_biases.with_logging:
    actions = %ACTIONS
    model_dir = %MODEL_DIR

It uses actions, which both T5X runtimes call in their first process only.
"""

import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import gin
import numpy as np
from gin import config_parser

from vmsst import errors
from vmsst.files import atomic_files, storage

RUN_ID_FILE = "wandb_run_id.txt"
"""File in MODEL_DIR with the ID of its Weights & Biases run, which a resumed run continues."""

_STEP = "step"
_FOLDERS = {"TRAIN": "", "TRAIN_EVAL": "training_eval/", "INFER_EVAL": "inference_eval/"}


def with_logging(
  actions: Mapping[str, Sequence[Any]],
  model_dir: str,
  project: str = "vmsst",
  name: str | None = None,
) -> dict[str, list[Any]]:
  """Returns actions and, for each mode, one that logs its metrics to Weights & Biases.

  Metrics have the names of their TensorBoard folders, such as `train/loss` and
  `training_eval/TASK/loss`. The run's configuration consists of the gin macros and, as `gin`, the
  whole gin configuration, without credentials in addresses.

  Args:
    actions: The run's other actions by mode, the `actions` of T5X's `train`. They run first.
    model_dir: Folder of the run. Local files of Weights & Biases are written there, or to the
      working directory if it is a URL.
    project: Project, created if needed.
    name: Display name of the run; None: the name of the folder.

  Raises:
    InputError: wandb is not installed.
  """
  with errors.requires("wandb", "logging to Weights & Biases"):
    import wandb  # noqa: F401
  run = _Run(os.fspath(model_dir), project, name)
  return {
    mode: [*actions.get(mode, ()), LogAction(run, folder)] for mode, folder in _FOLDERS.items()
  }


class LogAction:
  """A T5X action that logs metrics and never stops the run.

  Args:
    run: The Weights & Biases run.
    folder: Prefix of the names of metrics.
  """

  failure = None

  def __init__(self, run: "_Run", folder: str):
    self._run = run
    self._folder = folder

  def run(self, train_state: Any, metrics_by_task: Mapping[str, Mapping[str, Any]]) -> bool:
    """Logs the metrics of all tasks at the state's step; returns False."""
    values = {
      f"{self._folder}{task}/{name}": value
      for task, metrics in metrics_by_task.items()
      for name, value in _scalars(metrics).items()
    }
    self._run.log(int(train_state.step), values)
    return False


class _Run:
  """A Weights & Biases run, begun or continued when the first metrics are logged."""

  def __init__(self, model_dir: str, project: str, name: str | None):
    self._model_dir, self._project, self._name = model_dir, project, name
    self._open: Any = None

  def log(self, step: int, values: Mapping[str, float]) -> None:
    if self._open is None:
      self._open = self._begin()
    # Steps since the last checkpoint are logged again after a crash: the step is a metric, because
    # Weights & Biases drops what is logged at an earlier step.
    self._open.log({_STEP: step, **values})

  def _begin(self) -> Any:
    import wandb

    folder = self._model_dir.rstrip("/")
    text = errors.without_credentials(gin.config_str())
    try:
      run = wandb.init(
        project=self._project,
        name=self._name or os.path.basename(folder),
        id=_run_id(folder),
        resume="allow",
        dir=None if storage.is_url(folder) else folder,
        config={**_macros(text), "gin": text},
      )
    except wandb.errors.Error as error:
      raise errors.InputError(
        f"Weights & Biases: {error}; run `wandb login`, or set WANDB_MODE=offline"
      ) from error
    run.define_metric(_STEP, hidden=True)
    run.define_metric("*", step_metric=_STEP)
    return run


def _run_id(model_dir: str) -> str:
  path = storage.path(model_dir) / RUN_ID_FILE
  if not path.is_file():
    atomic_files.write_text(path, secrets.token_hex(4))
  return path.read_text().strip()


def _scalars(metrics: Mapping[str, Any]) -> dict[str, float]:
  """Returns the scalars among metrics: numbers, arrays of one, or clu's values of these."""
  arrays = {name: np.asarray(getattr(value, "value", value)) for name, value in metrics.items()}
  return {
    name: float(array)
    for name, array in arrays.items()
    if array.ndim == 0 and np.issubdtype(array.dtype, np.number)
  }


class _AsText(config_parser.ParserDelegate):
  """Keeps references and macros in gin values as text."""

  def configurable_reference(self, name: str, evaluate: bool) -> str:
    return f"@{name}{'()' if evaluate else ''}"

  def macro(self, name: str) -> str:
    return f"%{name}"


def _macros(text: str) -> dict[str, Any]:
  """Returns the macros of a gin configuration."""
  return {
    statement.selector: statement.value
    for statement in config_parser.ConfigParser(text, _AsText())
    if isinstance(statement, config_parser.BindingStatement) and not statement.arg_name
  }
