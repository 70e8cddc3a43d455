"""`t5x eval`: SeqIO metrics of checkpoints."""

import sys
from collections.abc import Callable
from typing import Any

import jax

from vmsst.errors import InputError
from vmsst.launch.runtime import checkpoints, gin_utils, partitioning, progress, utils
from vmsst.launch.runtime import data as data_lib
from vmsst.launch.runtime import evaluation as evaluation_lib
from vmsst.launch.runtime import model_dir as model_dir_lib
from vmsst.launch.runtime import train as train_lib


def evaluate(
  *,
  model: Any,
  dataset_cfg: data_lib.DatasetConfig,
  restore_checkpoint_cfg: checkpoints.RestoreCheckpointConfig,
  partitioner: partitioning.PjitPartitioner,
  output_dir: str,
  inference_evaluator_cls: Callable[..., Any] = train_lib._seqio_evaluator,
  summarize_config_fn: Callable[..., None] = gin_utils.summarize_gin_config,
  fallback_init_rng: int | None = None,
) -> dict[int, Any]:
  """Evaluates one checkpoint, or all of a folder, and prints a table of the metrics.

  Args:
    model: see the model interface.
    dataset_cfg: the tasks.
    restore_checkpoint_cfg: the checkpoints; only parameters are read.
    partitioner: the mesh.
    output_dir: absolute folder for SeqIO's loggers, config.gin and model-info.txt.
    inference_evaluator_cls: `seqio.Evaluator`, perhaps with bound arguments.
    summarize_config_fn: writes the configuration.
    fallback_init_rng: seed to initialize parameters that a checkpoint lacks, where
      `fallback_to_scratch` allows it.

  Returns:
    The metrics by task, by step.

  Raises:
    InputError: something given from outside cannot be used.
  """
  model_dir_lib.check_model_dir(output_dir)
  summarize_config_fn(model_dir=output_dir, summary_writer=None, step=0)
  paths = checkpoints.find_checkpoints(restore_checkpoint_cfg)
  evaluator = evaluation_lib.InferenceEvaluator(
    dataset_cfg, inference_evaluator_cls, model, partitioner, output_dir
  )
  evaluation_lib.require_tasks(evaluator, dataset_cfg)
  initializer = utils.TrainStateInitializer(
    optimizer_def=None,
    init_fn=model.get_initial_variables,
    input_shapes={
      name: (dataset_cfg.batch_size, *shape)
      for name, shape in evaluator.model_feature_shapes.items()
    },
    partitioner=partitioner,
  )
  utils.write_model_info(
    output_dir, initializer.global_train_state_shape, initializer.train_state_axes
  )
  log = progress.EvaluationLog()
  results: dict[int, Any] = {}
  for path in paths:
    state = initializer.from_checkpoint(
      path,
      dtype=restore_checkpoint_cfg.dtype,
      assignment_map=restore_checkpoint_cfg.assignment_map,
      fallback_rng=fallback_rng(restore_checkpoint_cfg, fallback_init_rng),
    )
    step = int(state.step)
    with model_dir_lib.explained(output_dir):
      results[step] = evaluator.evaluate(state, initializer.train_state_axes).result()
    log.add(step, results[step] or {})
  evaluator.close()
  if jax.process_index() == 0:
    for text in log.tables():
      print(f"\n{text}")
    sys.stdout.flush()
  return results


def fallback_rng(cfg: checkpoints.RestoreCheckpointConfig, seed: int | None) -> jax.Array | None:
  """The key to initialize missing parameters with, or None where they must all be there."""
  if not cfg.fallback_to_scratch:
    return None
  if seed is None:
    raise InputError("fallback_to_scratch=True needs fallback_init_rng, a seed")
  return jax.random.PRNGKey(seed)
