"""SeqIO evaluation of a model, for `t5x eval` and during training."""

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

import jax
import seqio

from vmsst import storage
from vmsst.data import loader
from vmsst.errors import InputError
from vmsst.train import (
  checkpoints,
  distributed,
  gin_utils,
  inference,
  input_pipeline,
  partitioning,
  summaries,
)
from vmsst.train import model_dir as model_dir_lib
from vmsst.train import train_state as train_state_lib


class InferenceEvaluator:
  """Computes the metrics of SeqIO tasks from a model's predictions and scores.

  Args:
    infer_eval_dataset_cfg: The tasks.
    inference_evaluator_cls: `seqio.Evaluator`, optionally with bound arguments.
    model: The model. It must define the methods that the tasks use: `predict_batch`,
      `predict_batch_with_aux` or `score_batch`.
    partitioner: Provides the device mesh.
    log_dir: The run's folder; SeqIO's loggers write to its subfolder inference_eval (default:
      write nothing).

  Attributes:
    model_feature_shapes: Shapes of the model features in one example, by name.

  Raises:
    InputError: If no task has both metrics and the requested split.
  """

  def __init__(
    self,
    infer_eval_dataset_cfg: input_pipeline.DatasetConfig,
    inference_evaluator_cls: Callable[..., Any] | None,
    model: Any,
    partitioner: partitioning.PjitPartitioner,
    log_dir: str | None = None,
  ):
    loader.get_mixture_or_task(infer_eval_dataset_cfg)  # Fail early if the task is unknown.
    self._cfg = infer_eval_dataset_cfg
    self._model = model
    self._partitioner = partitioner
    logs = summaries.LogFolder(storage.path(log_dir) / "inference_eval") if log_dir else None
    self._evaluator = (inference_evaluator_cls or seqio.Evaluator)(
      mixture_or_task_name=self._cfg.mixture_or_task_name,
      feature_converter=model.FEATURE_CONVERTER_CLS(pack=False),
      eval_split=self._cfg.split,
      use_cached=self._cfg.use_cached,
      seed=self._cfg.seed,
      sequence_length=self._cfg.task_feature_lengths,
      use_memory_cache=self._cfg.use_memory_cache,
      **({"log_dir": os.fspath(logs.local)} if logs else {"logger_cls": ()}),
    )
    self._logs = logs
    if not self._evaluator.eval_tasks:
      raise InputError(
        f"{self._cfg.mixture_or_task_name!r} has no task with metrics and a split "
        f"{self._cfg.split!r}; choose another mixture or split"
      )
    self.model_feature_shapes: Mapping[str, tuple[int, ...]] = self._evaluator.model_feature_shapes
    self._infer_fns: dict[str, Any] = {}

  def evaluate(self, train_state: Any, train_state_axes: Any) -> Mapping[str, Mapping[str, Any]]:
    """Runs the model on every task and returns the metrics by task.

    Each process runs the model on its own rows of every batch. Only the first process computes the
    metrics; all other processes return an empty dict.
    """

    def infer(method: str, dataset: Any, rng: Any = None) -> Any:
      if method not in self._infer_fns:  # A model may lack methods that no task uses.
        self._infer_fns[method] = inference.get_infer_fn(
          getattr(self._model, method), self._cfg.batch_size, train_state_axes, self._partitioner
        )
      return self._infer_fns[method](dataset, train_state, rng)

    key = jax.random.PRNGKey(0)
    metrics, _ = self._evaluator.evaluate(
      compute_metrics=jax.process_index() == 0,
      step=int(train_state.step),
      predict_fn=functools.partial(infer, "predict_batch", rng=key),
      predict_with_aux_fn=functools.partial(infer, "predict_batch_with_aux", rng=key),
      score_fn=functools.partial(infer, "score_batch"),
    )
    results = metrics.result() or {}
    if self._logs and jax.process_index() == 0:
      self._logs.upload()
    # Computing metrics may take longer than the timeout of a collective, so wait at a barrier.
    if jax.process_count() > 1:
      distributed.barrier()
    return results

  def close(self) -> None:
    """Waits for metrics that are still being computed."""
    self._evaluator.close()


def evaluate(
  *,
  model: Any,
  dataset_cfg: input_pipeline.DatasetConfig,
  restore_checkpoint_cfg: checkpoints.RestoreCheckpointConfig,
  partitioner: partitioning.PjitPartitioner,
  output_dir: str,
  inference_evaluator_cls: Callable[..., Any] = seqio.Evaluator,
  summarize_config_fn: Callable[..., None] = gin_utils.summarize_gin_config,
) -> dict[int, Any]:
  """Evaluates one checkpoint, or all checkpoints in a folder, and prints their metrics as tables.

  Args:
    model: See docs/model_interface.md.
    dataset_cfg: The tasks.
    restore_checkpoint_cfg: The checkpoints. Only their parameters are read.
    partitioner: Provides the device mesh.
    output_dir: Absolute path of the folder for the SeqIO logs, config.gin and model-info.txt.
    inference_evaluator_cls: `seqio.Evaluator`, optionally with bound arguments.
    summarize_config_fn: Function that takes (model_dir, summary_writer, step) and writes the
      configuration.

  Returns:
    The metrics for each step, by task.

  Raises:
    InputError: If the configuration, the data or a checkpoint cannot be used.
  """
  paths = checkpoints.find_checkpoints(restore_checkpoint_cfg)
  results: dict[int, Any] = {}
  with model_dir_lib.open_folder("evaluate.output_dir", output_dir):
    evaluator = InferenceEvaluator(
      dataset_cfg, inference_evaluator_cls, model, partitioner, output_dir
    )
    initializer = train_state_lib.TrainStateInitializer(
      optimizer_def=None,
      init_fn=model.get_initial_variables,
      input_shapes={
        name: (dataset_cfg.batch_size, *shape)
        for name, shape in evaluator.model_feature_shapes.items()
      },
      partitioner=partitioner,
    )
    for path in paths:
      state = initializer.from_checkpoint(path, restore_checkpoint_cfg)
      if not results:
        summarize_config_fn(model_dir=output_dir, summary_writer=None, step=0)
        initializer.write_model_info(output_dir)
      step = int(state.step)
      results[step] = evaluator.evaluate(state, initializer.train_state_axes)
      log = summaries.EvaluationLog()
      log.add(step, results[step])
      log.print_tables()
    evaluator.close()
  return results
