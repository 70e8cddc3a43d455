"""Reserves a folder for one run, and writes the encoder's files to it.

In gin:

  train_script.train.summarize_config_fn = @model_dir.summarize_run
  model_dir.summarize_run:
    model = %MODEL
    languages = %TRAINING_LANGUAGES
"""

import contextlib
import dataclasses
import os
import pathlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from vmsst import storage
from vmsst.errors import InputError
from vmsst.formats import encoder_json
from vmsst.io import input_files
from vmsst.jobs import outputs

RUN_ID = "run_id"
"""File with the ID of the run that started last, if MODEL_DIR is in an object store."""


@contextlib.contextmanager
def open_folder(name: str, model_dir: str, *, claim: bool = False) -> Iterator[Callable[[], None]]:
  """Creates a folder for a command's output.

  Args:
    name: The folder's name in messages, such as MODEL_DIR.
    model_dir: Absolute path, or URL in an object store.
    claim: Whether to prevent other runs from writing to the folder. A local folder is locked. An
      object store has no locks, so if several runs use a folder in a store, only the run that
      started last may write to the folder.

  Yields:
    A function that raises InputError if a later run uses the same folder in an object store.

  Raises:
    InputError: If the path is relative, or a different run is using the folder.
  """
  if not storage.is_url(model_dir) and not os.path.isabs(model_dir):
    raise InputError(
      f"{name} must be an absolute path, got {model_dir!r}; try {os.path.abspath(model_dir)!r}"
    )
  if claim and model_dir.startswith("s3://"):
    raise InputError(
      f"{name} {model_dir}: checkpoints cannot be written to s3://; set a local path or gs://"
    )
  path, url, run_id = storage.path(model_dir), f"{model_dir}/{RUN_ID}", uuid.uuid4().bytes
  checks_id = False

  def check_claim() -> None:
    if checks_id and not (storage.is_file(url) and input_files.read_bytes(url) == run_id):
      raise InputError(f"a run that started later now uses {model_dir}; set a different {name}")

  with contextlib.ExitStack() as stack:
    if jax.process_index() == 0:
      if isinstance(path, pathlib.Path):
        path.mkdir(parents=True, exist_ok=True)
        if claim:
          stack.enter_context(outputs.ownership(path, is_folder=True))
      elif claim:
        storage.write(url, run_id)
        checks_id = True
      else:
        storage.check_writable(model_dir)
    yield check_claim


def summarize_run(
  model_dir: str,
  summary_writer: Any,
  step: int,
  model: Any,
  languages: Sequence[str] | None = None,
  vocabulary: Any = None,
) -> None:
  """Writes the run's `config.gin`, `encoder.json` and vocabulary file to `model_dir`.

  To write `config.gin`, the function calls `summarize_gin_config` from the T5X runtime in use,
  either upstream or bundled.

  Args:
    model_dir: The run's folder.
    summary_writer: The runtime's TensorBoard writer.
    step: Current step.
    model: A `vmsst.models.base.BitextModel`.
    languages: Codes for the training languages (default: unknown).
    vocabulary: Vocabulary that contains the training sets' prompts (default: the model's
      vocabulary).
  """
  from t5x import gin_utils  # upstream or bundled

  gin_utils.summarize_gin_config(model_dir, summary_writer, step)
  if vocabulary is not None:
    model = dataclasses.replace(model, vocabulary=vocabulary)
  if jax.process_index() == 0:
    encoder_json.save_encoder_assets(model, model_dir, languages)
