"""`t5x eval`: SeqIO metrics of checkpoints."""

import functools
from collections.abc import Callable
from typing import Any

from vmsst import errors
from vmsst.launch.runtime import (
  checkpoints,
  gin_utils,
  parameter_names,
  partitioning,
  progress,
  utils,
)
from vmsst.launch.runtime import data as data_lib
from vmsst.launch.runtime import evaluation as evaluation_lib
from vmsst.launch.runtime import model_dir as model_dir_lib


def evaluate(
  *,
  model: Any,
  dataset_cfg: data_lib.DatasetConfig,
  restore_checkpoint_cfg: checkpoints.RestoreCheckpointConfig,
  partitioner: partitioning.PjitPartitioner,
  output_dir: str,
  inference_evaluator_cls: Callable[..., Any] = evaluation_lib.seqio_evaluator,
  summarize_config_fn: Callable[..., None] = gin_utils.summarize_gin_config,
  fallback_init_rng: int | None = None,
) -> dict[int, Any]:
  """Evaluates one checkpoint, or all of a folder, and prints a table of the metrics.

  Args:
    model: See docs/model_interface.md.
    dataset_cfg: The tasks.
    restore_checkpoint_cfg: The checkpoints; only parameters are read.
    partitioner: The mesh.
    output_dir: Absolute folder for SeqIO's loggers, config.gin and model-info.txt.
    inference_evaluator_cls: `seqio.Evaluator`, perhaps with bound arguments.
    summarize_config_fn: Writes the configuration (model_dir, summary_writer, step).
    fallback_init_rng: Seed to initialize parameters that a checkpoint lacks, needed for
      `fallback_to_scratch`.

  Returns:
    The metrics by task, by step.

  Raises:
    InputError: The configuration, the data or a checkpoint cannot be used.
  """
  name = functools.partial(parameter_names.parameter_name, "evaluate")
  errors.check_seed(name("fallback_init_rng"), fallback_init_rng)
  utils.check_model(name("model"), model)
  partitioning.check_partitioner(name("partitioner"), partitioner)
  data_lib.check_dataset_config(name("dataset_cfg"), dataset_cfg)
  checkpoints.check_restore_config(name("restore_checkpoint_cfg"), restore_checkpoint_cfg)
  paths = checkpoints.find_checkpoints(restore_checkpoint_cfg)
  log = progress.EvaluationLog()
  results: dict[int, Any] = {}
  with (
    model_dir_lib.explained(output_dir),
    model_dir_lib.opened(name("output_dir"), output_dir) as folder,
  ):
    evaluator = evaluation_lib.InferenceEvaluator(
      dataset_cfg, inference_evaluator_cls, model, partitioner, output_dir
    )
    initializer = utils.TrainStateInitializer(
      optimizer_def=None,
      init_fn=model.get_initial_variables,
      input_shapes={
        name: (dataset_cfg.batch_size, *shape)
        for name, shape in evaluator.model_feature_shapes.items()
      },
      partitioner=partitioner,
    )
    for path in paths:
      state = initializer.from_checkpoint(
        path, restore_checkpoint_cfg, utils.optional_key(fallback_init_rng)
      )
      if not results:
        summarize_config_fn(model_dir=output_dir, summary_writer=None, step=0)
        utils.write_model_info(
          output_dir, initializer.global_train_state_shape, initializer.train_state_axes
        )
      step = int(state.step)
      results[step] = evaluator.evaluate(state, initializer.train_state_axes).result()
      folder.has_results = True
      log.add(step, results[step] or {})
    evaluator.close()
  log.print_tables()
  return results
