"""`t5x train`: the training run."""

import contextlib
import itertools
import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import jax
import msgspec
import numpy as np
from absl import logging
from jax.experimental import multihost_utils

from vmsst import storage
from vmsst.encoder import loading
from vmsst.errors import InputError, check, check_choice
from vmsst.formats import encoder_json, t5x
from vmsst.io import manifest
from vmsst.train import actions as actions_lib
from vmsst.train import checkpoints, input_pipeline, partitioning, summaries
from vmsst.train import model_dir as model_dir_lib
from vmsst.train import train_state as train_state_lib
from vmsst.train import trainer as trainer_lib

# Config values that affect training, but not how the encoder uses its parameters.
_TRAINING_ONLY = ("dropout_rate", "dtype", "remat", "scan_layers")
_EVALUATED = "timing/evaluate_seconds"  # Written when an evaluation is complete.


def train(
  *,
  model: Any,
  train_dataset_cfg: input_pipeline.DatasetConfig,
  train_eval_dataset_cfg: input_pipeline.DatasetConfig | None,
  infer_eval_dataset_cfg: input_pipeline.DatasetConfig | None,
  checkpoint_cfg: checkpoints.CheckpointConfig,
  partitioner: partitioning.PjitPartitioner,
  trainer_cls: Callable[..., trainer_lib.Trainer],
  model_dir: str,
  total_steps: Annotated[int, msgspec.Meta(ge=0)],
  eval_steps: Annotated[int, msgspec.Meta(ge=1)],
  eval_period: Annotated[int, msgspec.Meta(ge=0)],
  stats_period: Annotated[int, msgspec.Meta(ge=1)] | None = None,
  random_seed: input_pipeline.Seed | None,
  use_hardware_rng: bool = False,
  summarize_config_fn: Callable[..., None] | None = None,
  inference_evaluator_cls: Callable[..., Any] | None = None,
  get_dataset_fn: Callable[..., Any] | None = None,
  train_eval_get_dataset_fn: Callable[..., Any] = input_pipeline.get_training_eval_datasets,
  actions: Mapping[str, Sequence[actions_lib.BaseAction]] | None = None,
  run_eval_before_training: bool = False,
  on_sigterm: Callable[[], object] | None = None,
  evaluator: Any = None,
  average: Annotated[int, msgspec.Meta(ge=1)] = 1,
) -> tuple[int, Any]:
  """Trains a model, evaluates it and writes checkpoints below `model_dir`.

  Training starts from the newest intact checkpoint in `model_dir`. If there is none, training
  starts from the checkpoint in `checkpoint_cfg.restore`, or else from scratch. A checkpoint is
  saved before the first step, at every multiple of the checkpoint period, and after the last step.
  The model is evaluated at every multiple of `eval_period` and after the last step. A resumed run
  repeats an interrupted evaluation. On SIGTERM or SIGINT, the function writes a checkpoint and ends
  the run. It never saves a state with infinite or NaN parameters.

  Args:
    model: See docs/model_interface.md.
    train_dataset_cfg: Training data.
    train_eval_dataset_cfg: Data for computing the loss and other training metrics in each
      evaluation, if any.
    infer_eval_dataset_cfg: Data for the SeqIO evaluation, if any.
    checkpoint_cfg: Checkpoint to start from, and checkpoints to save.
    partitioner: Provides the device mesh.
    trainer_cls: Creates the trainer.
    model_dir: Absolute path of the run's folder.
    total_steps: Step at which the training ends.
    eval_steps: Number of batches from `train_eval_dataset_cfg` per evaluation.
    eval_period: Steps between evaluations.
    stats_period: Number of steps over which training metrics are averaged (default: the shorter of
      the evaluation and checkpoint periods).
    random_seed: Random seed for initialization, dropout and latents. If None, the seed is the
      current time, and the hardware random number generator is used.
    use_hardware_rng: Whether to use the hardware random number generator even if a seed is set.
    summarize_config_fn: Function that takes (model_dir, summary_writer, step) and writes the
      configuration.
    inference_evaluator_cls: `seqio.Evaluator` (default), optionally with bound arguments.
    get_dataset_fn: Function that returns the training data (default: `loader.get_batches`). Its
      arguments are `train_dataset_cfg`, the index of the data shard, the number of shards, and a
      function that creates the model's feature converter.
    train_eval_get_dataset_fn: Function that returns the datasets for `train_eval_dataset_cfg` by
      name.
    actions: Actions by mode ("TRAIN", "TRAIN_EVAL", "INFER_EVAL"). An action receives the metrics
      and may stop the run.
    run_eval_before_training: Whether to also evaluate before the first step.
    on_sigterm: Function to call at the end if SIGTERM stopped the run.
    evaluator: Object that replaces the SeqIO evaluation. Its method `evaluate(train_state,
      train_state_axes)` returns metrics by task.
    average: Number of checkpoints to average after the last step. `vmsst.load` opens the average.
      The run averages the best checkpoints if it uses `KeepBestAction`, otherwise the newest
      checkpoints.

  Returns:
    The last step and the last train state.

  Raises:
    InputError: If the configuration or the data cannot be used, a checkpoint cannot be written, or
      `model_dir` contains checkpoints from a different encoder.
    OSError: If a file other than a checkpoint cannot be written.
  """
  if random_seed is None or use_hardware_rng:
    # This random number generator is fast, but its numbers depend on the sharding.
    jax.config.update("jax_default_prng_impl", "unsafe_rbg")
  if random_seed is None:
    random_seed = int(multihost_utils.broadcast_one_to_all(np.int32(time.time())))
  init_rng, trainer_rng = jax.random.split(jax.random.PRNGKey(random_seed))
  actions = actions or {}
  for mode in actions:
    check_choice("actions", mode, ("TRAIN", "TRAIN_EVAL", "INFER_EVAL"))
  save_cfg = checkpoint_cfg.save or checkpoints.SaveCheckpointConfig()
  save_period, save_steps = save_cfg.period or 0, set(save_cfg.checkpoint_steps or ())
  all_actions = itertools.chain.from_iterable(actions.values())
  keep_best = [action for action in all_actions if isinstance(action, actions_lib.KeepBestAction)]
  option = "KeepBestAction.count" if keep_best else "KEEP_CHECKPOINTS"
  num_kept = min([action.count for action in keep_best], default=save_cfg.keep)
  check(num_kept is None or average <= num_kept, "average", average, f"at most {option}={num_kept}")
  if keep_best and not (save_period and eval_period % save_period == 0):
    raise InputError(
      f"EVAL_PERIOD={eval_period} is not a multiple of CHECKPOINT_PERIOD={save_period}, so the "
      "best checkpoint would not be saved; change one of them"
    )
  if not (train_eval_dataset_cfg or infer_eval_dataset_cfg or evaluator):
    eval_period = 0
  start_s = time.time()
  batch_size = train_dataset_cfg.batch_size
  shard = partitioner.data_shard(batch_size)
  log = summaries.EvaluationLog()

  def converter(**options: Any) -> Any:  # Accessing FEATURE_CONVERTER_CLS imports seqio.
    return model.FEATURE_CONVERTER_CLS(**options)

  if get_dataset_fn is None:
    from vmsst.data import loader

    get_dataset_fn = loader.get_batches

  with contextlib.ExitStack() as cleanup:

    def closing(resource: Any) -> Any:
      return cleanup.enter_context(contextlib.closing(resource))

    check_claim = cleanup.enter_context(
      model_dir_lib.open_folder("MODEL_DIR", model_dir, claim=True)
    )

    # Data
    rows = get_dataset_fn(train_dataset_cfg, *shard, converter)
    batches: input_pipeline.TrainIterator = closing(
      input_pipeline.TrainIterator(rows, partitioner, save_state=save_cfg.save_dataset)
    )
    train_eval_datasets: Mapping[str, Any] = {}
    if train_eval_dataset_cfg is not None:
      train_eval_datasets = train_eval_get_dataset_fn(
        train_eval_dataset_cfg, *shard, eval_steps, converter
      )

    # The train state: resumed from this run, read from `checkpoint_cfg.restore`, or new
    spec = batches.element_spec  # for this process's rows, not for the global batch
    initializer = train_state_lib.TrainStateInitializer(
      optimizer_def=model.optimizer_def,
      init_fn=model.get_initial_variables,
      input_shapes={name: (batch_size, *x.shape[1:]) for name, x in spec.items()},
      input_types={name: x.dtype for name, x in spec.items()},
      partitioner=partitioner,
    )
    checkpoint, restore = checkpoints.newest_intact(model_dir), checkpoint_cfg.restore
    if checkpoint is not None:
      logging.info("Resuming from %s.", checkpoint)
      _check_encoder(model, model_dir)
      train_state = initializer.from_checkpoint(checkpoint)
      data_state = input_pipeline.DataState.read_from(
        storage.path(checkpoint) / "dataset", jax.process_index(), jax.process_count()
      )
    elif restore is not None and restore.path not in (None, [], ()):
      start = checkpoints.find_checkpoint(restore)
      train_state = initializer.from_checkpoint(start, restore, init_rng)
      # Read the data from the start.
      data_state = input_pipeline.DataState(int(train_state.step), None)
    else:
      train_state, data_state = initializer.from_scratch(init_rng), None
    step = first_step = int(train_state.step)
    if total_steps < first_step:
      raise InputError(
        f"TRAIN_STEPS={total_steps} is less than the checkpoint's step, {first_step}; raise "
        "TRAIN_STEPS, or set another MODEL_DIR to start over"
      )
    batches.start(first_step, data_state)
    if jax.process_index() == 0:  # An average of earlier checkpoints is outdated.
      storage.remove(storage.path(model_dir) / t5x.AVERAGE / loading.CHECKPOINT)

    # Trainer, evaluator and checkpoint manager
    trainer = closing(
      trainer_cls(
        model=model,
        train_state=train_state,
        partitioner=partitioner,
        eval_names=list(train_eval_datasets),
        summary_dir=model_dir,
        train_state_axes=initializer.train_state_axes,
        rng=trainer_rng,
      )
    )
    del train_state  # The trainer donates the state.
    trainer.check(batch_size)
    if infer_eval_dataset_cfg is not None:
      from vmsst.train import eval as eval_lib

      evaluator = closing(
        eval_lib.InferenceEvaluator(
          infer_eval_dataset_cfg, inference_evaluator_cls, model, partitioner, model_dir
        )
      )
    manager = None
    if save_period or save_steps:
      manager = closing(checkpoints.CheckpointManager(model_dir, save_cfg))
    # Write the first files only after all setup that may fail, so that a run that fails during
    # setup does not overwrite the files of an earlier run.
    initializer.write_model_info(model_dir)
    if summarize_config_fn is not None:
      summarize_config_fn(model_dir, trainer.train_writer, first_step)
    bar = summaries.Progress(first_step, total_steps, batch_size)

    def is_due(period: int) -> bool:
      return period > 0 and (step == total_steps or step % period == 0)

    def act(mode: str, metrics: Mapping[str, Mapping[str, Any]]) -> None:
      if todo := actions.get(mode):
        stops = False
        if jax.process_index() == 0:
          stops = any([action.run(trainer.train_state, metrics) for action in todo])
        if jax.process_count() > 1:
          stops = multihost_utils.broadcast_one_to_all(np.asarray(stops))
        trainer.stop_training |= bool(stops)

    def evaluate() -> None:
      bar.end_line(f"step {step}: evaluating")
      start = time.time()
      if train_eval_datasets:
        results = trainer.eval(
          {name: dataset.as_numpy_iterator() for name, dataset in train_eval_datasets.items()}
        )
        act("TRAIN_EVAL", results)
      if evaluator is not None:
        values = evaluator.evaluate(trainer.train_state, initializer.train_state_axes)
        log.add(step, values)
        act("INFER_EVAL", values)
      trainer.train_writer.write_scalars(step, {_EVALUATED: time.time() - start})
      bar.unpause()

    def save() -> None:
      # Start writing a checkpoint for this step, unless one exists.
      if manager is not None:
        if not trainer_lib.state_is_finite(trainer.train_state):
          raise InputError(
            f"the parameters are not finite after step {step}, so they are not saved; the last "
            "checkpoint is from an earlier step. Lower the learning rate or check the data"
          )
        check_claim()
        trainer.train_writer.flush()  # Write metrics before the checkpoint.
        manager.save(trainer.train_state, batches.state())

    try:
      with _stop_on_signal() as stop:
        evaluate_first = run_eval_before_training
        if checkpoint is not None and (step > 0 or run_eval_before_training):
          # The run may have ended before the evaluation of this step was complete.
          evaluated = _evaluated_steps(model_dir)
          is_first = run_eval_before_training and not evaluated
          evaluate_first = (is_first or is_due(eval_period)) and step not in evaluated
        # Save first, so that the checkpoint is written during the evaluation.
        if save_period:
          save()
        if evaluate_first or step == total_steps:
          evaluate()
        summaries.print_once(
          f"Ready after {time.time() - start_s:.1f} s; training from step {step} to {total_steps}."
        )

        periods = [period for period in (eval_period, save_period) if period]
        periods.append(stats_period or min([*periods, total_steps]))
        while step < total_steps and not (stop.signal or trainer.stop_training):
          # Train until the next step at which to save, evaluate or write statistics.
          stops = [(step // period + 1) * period for period in periods]
          stops += [save_step for save_step in save_steps if save_step > step]
          count = min(total_steps, *stops) - step
          if manager is not None:
            manager.release()
          done, metrics = trainer.train(batches, count, step, bar=bar, should_stop=stop.agree)
          step += done
          check_claim()
          act("TRAIN", {"train": metrics})
          if not stop.signal:
            if step in save_steps or is_due(save_period):
              save()
            if is_due(eval_period):
              evaluate()
        if stop.signal or trainer.stop_training:
          save()
        bar.end_line()
    finally:
      log.print_tables(t5x.read_best(model_dir))
    if average > 1 and manager is not None and not stop.signal:
      manager.wait()
      shapes = initializer.global_train_state_shape.state_dict()
      shardings = partitioner.shardings(initializer.train_state_axes).state_dict()
      checkpoints.write_average(model_dir, average, shapes, shardings)
    if stop.signal:
      summaries.print_once(f"Stopped by {stop.signal} at step {step}; rerun the command to resume.")
    if stop.signal == "SIGINT":
      raise KeyboardInterrupt
  if stop.signal and on_sigterm is not None:
    on_sigterm()
  return step, trainer.train_state


class _Stop:
  """The signal that stops the run.

  Attributes:
    signal: Name of the signal, or "" if none was received.
  """

  signal = ""

  def agree(self, step: int) -> bool:
    """Returns whether to stop after `step`. All processes agree, even if only one is signaled."""
    if jax.process_count() > 1 and multihost_utils.reached_preemption_sync_point(step):
      self.signal = "SIGTERM"
    return bool(self.signal)


@contextlib.contextmanager
def _stop_on_signal() -> Iterator[_Stop]:
  """Yields an object that records SIGTERM and SIGINT. A second SIGINT interrupts immediately.

  In a multi-process run, `jax.distributed` handles SIGTERM and informs all processes.
  """
  stop = _Stop()
  previous: dict[int, Any] = {}

  def handle(number: int, frame: Any) -> None:
    if number == signal.SIGINT:
      signal.signal(signal.SIGINT, previous[signal.SIGINT])
    stop.signal = signal.Signals(number).name

  with contextlib.suppress(ValueError):  # Only the main thread can handle signals.
    for number in (signal.SIGTERM, signal.SIGINT) if jax.process_count() == 1 else ():
      previous[number] = signal.signal(number, handle)
  try:
    yield stop
  finally:
    for received, handler in previous.items():
      signal.signal(received, handler)


def _evaluated_steps(model_dir: str) -> set[int]:
  """Returns the steps with an evaluation that an earlier process completed."""
  path = storage.path(model_dir) / "train" / "metrics.jsonl"
  lines = path.read_text().splitlines() if path.is_file() else []
  return {json.loads(line)["step"] for line in lines if _EVALUATED in line}


def _check_encoder(model: Any, model_dir: str) -> None:
  """Raises InputError if the checkpoints in a folder belong to a different encoder.

  Options that do not affect the encoder, such as the dropout rate, may differ.
  """
  if not (storage.path(model_dir) / encoder_json.ENCODER_FILE).is_file():
    return
  saved = encoder_json.load_encoder_assets(model_dir)

  def describe(network: Any, vocabulary: Any) -> dict[str, Any]:
    record = encoder_json.describe(network)
    config = record.pop("config")
    for name in _TRAINING_ONLY:
      config.pop(name, None)
    digest = encoder_json.digest(saved.network, vocabulary, saved.max_length)
    return {**record, **config, "vocabulary": {"name": type(vocabulary).__name__, "digest": digest}}

  if changes := manifest.differences(
    describe(saved.network, saved.vocabulary), describe(model.sentence_encoder, model.vocabulary)
  ):
    raise InputError(
      f"MODEL_DIR {model_dir} has checkpoints from a different encoder: {changes}; train the same "
      "encoder, or set another MODEL_DIR"
    )
