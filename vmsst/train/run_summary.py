"""Writes the files for later use of a run: `config.gin`, `encoder.json` and the vocabulary.

In gin:

  train_script.train.summarize_config_fn = @run_summary.summarize_run
  run_summary.summarize_run:
    model = %MODEL
    languages = %TRAINING_LANGUAGES
"""

from collections.abc import Sequence
from typing import Any

import jax

from vmsst.formats import encoder_json


def summarize_run(
  model_dir: str,
  summary_writer: Any,
  step: int,
  model: Any,
  languages: Sequence[str] | None = None,
) -> None:
  """Writes the run's `config.gin`, its `encoder.json` and its vocabulary file to `model_dir`.

  The T5X runtime in use, upstream or bundled, writes its own summary first.

  Args:
    model_dir: Folder of the run.
    summary_writer: TensorBoard writer of the runtime.
    step: Current step.
    model: A `vmsst.models.base.BitextModel`.
    languages: Codes of the training languages; None if unknown.
  """
  from t5x import gin_utils  # upstream or bundled

  gin_utils.summarize_gin_config(model_dir, summary_writer, step)
  if jax.process_index() == 0:
    encoder_json.save_encoder_assets(model, model_dir, languages)
