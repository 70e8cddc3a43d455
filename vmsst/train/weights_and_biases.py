"""Sends the TensorBoard metrics of a run to Weights & Biases; `gin/runs/wandb.gin` binds it."""

import os
import secrets
from collections.abc import Callable
from typing import Any

import gin
import jax

from vmsst import errors, storage
from vmsst.jobs import outputs

RUN_ID_FILE = "wandb_run_id.txt"
"""File in MODEL_DIR with the ID of its Weights & Biases run, which a resumed run continues."""


def summarize_run(
  model_dir: str,
  summary_writer: Any,
  step: int,
  summarize_config_fn: Callable[..., None],
  project: str = "vmsst",
  name: str | None = None,
) -> None:
  """Begins or continues a Weights & Biases run, then calls another `summarize_config_fn`.

  Metrics have the names of their TensorBoard folders, such as `train/loss`. The run's configuration
  is `gin`, the whole gin configuration without credentials in addresses.

  Args:
    model_dir: Folder of the run, on a local disk.
    summary_writer: TensorBoard writer of the runtime, which has written nothing so far.
    step: Current step.
    summarize_config_fn: Writes the configuration (model_dir, summary_writer, step).
    project: Project, created if needed.
    name: Display name of the run; None: the name of the folder.

  Raises:
    InputError: wandb is not installed, or `model_dir` is a URL.
  """
  if jax.process_index() == 0:
    with errors.requires("wandb", "logging to Weights & Biases"):
      import wandb
      from wandb.integration import tensorboard
    folder = model_dir.rstrip("/")
    if storage.is_url(folder):
      raise errors.InputError(
        f"Weights & Biases cannot read metrics in {folder}; set a local MODEL_DIR, or remove "
        "runs/wandb.gin"
      )
    path = storage.path(folder) / RUN_ID_FILE
    if not path.is_file():
      outputs.write_text(path, secrets.token_hex(4))
    tensorboard.patch(root_logdir=folder)
    wandb.init(
      project=project,
      name=name or os.path.basename(folder),
      id=path.read_text().strip(),
      resume="allow",
      dir=folder,
      config={"gin": errors.without_credentials(gin.config_str())},
    )
  summarize_config_fn(model_dir, summary_writer, step)
