"""`t5x train`: the training run."""

import concurrent.futures
import contextlib
import functools
import pathlib
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging
from etils import epath
from jax.experimental import multihost_utils

from vmsst.errors import InputError
from vmsst.launch.runtime import checkpoints, gin_utils, partitioning, progress, utils
from vmsst.launch.runtime import data as data_lib
from vmsst.launch.runtime import evaluation as evaluation_lib
from vmsst.launch.runtime import model_dir as model_dir_lib
from vmsst.launch.runtime import trainer as trainer_lib

TRAIN_METRIC_KEY = "train"
_EVALUATED = "timing/evaluate_seconds"  # written when an evaluation is complete


def _seqio_evaluator(**arguments: Any) -> Any:
  """`seqio.Evaluator`, imported when it is used."""
  import seqio

  return seqio.Evaluator(**arguments)


def train(
  *,
  model: Any,
  train_dataset_cfg: data_lib.DatasetConfig,
  train_eval_dataset_cfg: data_lib.DatasetConfig | None,
  infer_eval_dataset_cfg: data_lib.DatasetConfig | None,
  checkpoint_cfg: checkpoints.CheckpointConfig,
  partitioner: partitioning.PjitPartitioner,
  trainer_cls: Callable[..., trainer_lib.BaseTrainer],
  model_dir: str,
  total_steps: int,
  eval_steps: int,
  eval_period: int,
  relative_steps: int | None = None,
  stats_period: int | None = None,
  random_seed: int | None,
  use_hardware_rng: bool = False,
  summarize_config_fn: Callable[..., None] = gin_utils.summarize_gin_config,
  inference_evaluator_cls: Callable[..., Any] = _seqio_evaluator,
  get_dataset_fn: Callable[..., Any] = data_lib.get_dataset,
  actions: Mapping[str, Sequence[trainer_lib.BaseAction]] | None = None,
  train_eval_get_dataset_fn: Callable[..., Any] = data_lib.get_training_eval_datasets,
  run_eval_before_training: bool = False,
) -> tuple[int, Any]:
  """Trains a model, evaluates it on the way and writes checkpoints below `model_dir`.

  Starts from the newest intact checkpoint in `model_dir`, else from `checkpoint_cfg.restore`, else
  from scratch. Checkpoints and evaluations come at multiples of their periods, whatever step the
  run started at, and after the last step; an evaluation that did not end is done again. SIGTERM and
  SIGINT write a checkpoint and end the run. A state that is not finite is never written.

  Args:
    model: see the model interface in docs/model_interface.md.
    train_dataset_cfg: what to train on.
    train_eval_dataset_cfg: what to compute the training metrics on, without updates; or None.
    infer_eval_dataset_cfg: what to evaluate through SeqIO metrics; or None.
    checkpoint_cfg: what to start from and what to save.
    partitioner: the mesh.
    trainer_cls: makes the trainer.
    model_dir: absolute folder of the run.
    total_steps: step to end at.
    eval_steps: batches of each training evaluation.
    eval_period: steps between evaluations.
    relative_steps: steps to do from where the run starts, instead of `total_steps`.
    stats_period: steps that training metrics are averaged over; by default the shorter of the
      evaluation and checkpoint periods.
    random_seed: seed of initialization, dropout and latents; None takes the time and the fast
      generator.
    use_hardware_rng: the fast generator, with the given seed.
    summarize_config_fn: writes the configuration (model_dir, summary_writer, step).
    inference_evaluator_cls: `seqio.Evaluator`, perhaps with bound arguments.
    get_dataset_fn: gives the training data.
    actions: by mode ("TRAIN", "TRAIN_EVAL", "INFER_EVAL"), what looks at the metrics and may stop.
    train_eval_get_dataset_fn: gives the data of the training evaluation.
    run_eval_before_training: evaluate before the first step too.

  Returns:
    The last step and the last train state.

  Raises:
    InputError: something given from outside cannot be used.
  """
  began = time.time()
  model_dir_lib.check_model_dir(model_dir)
  layout = partitioner.get_data_layout(train_dataset_cfg.batch_size)
  data_lib.get_mixture_or_task(train_dataset_cfg)  # says so if it is unknown
  modes = {mode.name for mode in trainer_lib.ActionMode}
  unknown = set(actions or {}) - modes
  if unknown:
    raise InputError(f"actions: {sorted(unknown)[0]!r} is none of {', '.join(sorted(modes))}")
  init_rng, trainer_rng = jax.random.split(_root_key(random_seed, use_hardware_rng))

  save_cfg = checkpoint_cfg.save
  checkpoint_period = (save_cfg.period or 0) if save_cfg else 0
  checkpoint_steps = set((save_cfg.checkpoint_steps or ()) if save_cfg else ())
  if not (train_eval_dataset_cfg or infer_eval_dataset_cfg):
    eval_period = 0

  with contextlib.ExitStack() as cleanup:
    cleanup.enter_context(model_dir_lib.explained(model_dir))
    if jax.process_index() == 0:
      cleanup.enter_context(model_dir_lib.only_run(model_dir))
    dataset = get_dataset_fn(
      train_dataset_cfg, layout.shard_id, layout.num_shards, model.FEATURE_CONVERTER_CLS
    )
    batches = data_lib.TrainIterator(
      dataset,
      partitioner,
      snapshot_period=checkpoint_period if save_cfg and save_cfg.save_dataset else None,
    )
    cleanup.callback(batches.close)
    shapes = {
      name: (layout.batch_size, *spec.shape[1:]) for name, spec in batches.element_spec.items()
    }
    types = {name: spec.dtype.as_numpy_dtype for name, spec in batches.element_spec.items()}
    train_eval_datasets: Mapping[str, Any] = {}
    if train_eval_dataset_cfg is not None:
      train_eval_datasets = train_eval_get_dataset_fn(
        train_eval_dataset_cfg,
        layout.shard_id,
        layout.num_shards,
        eval_steps,
        model.FEATURE_CONVERTER_CLS,
      )

    initializer = utils.TrainStateInitializer(
      optimizer_def=model.optimizer_def,
      init_fn=model.get_initial_variables,
      input_shapes=shapes,
      input_types=types,
      partitioner=partitioner,
    )
    own = checkpoints.newest_intact(model_dir)
    train_state, data_state = _initial_state(initializer, checkpoint_cfg, own, init_rng)
    first_step = int(train_state.step)
    if relative_steps:
      total_steps = first_step + relative_steps
    if total_steps < first_step:
      raise InputError(
        f"TRAIN_STEPS={total_steps} is less than the step of the checkpoint, {first_step}"
      )
    batches.start(first_step, data_state, snapshot_steps={total_steps, *checkpoint_steps})
    utils.write_model_info(
      model_dir, initializer.global_train_state_shape, initializer.train_state_axes
    )

    trainer = trainer_cls(
      model=model,
      train_state=train_state,
      partitioner=partitioner,
      eval_names=list(train_eval_datasets),
      summary_dir=model_dir,
      train_state_axes=initializer.train_state_axes,
      rng=trainer_rng,
    )
    cleanup.callback(trainer.close)
    del train_state
    summarize_config_fn(model_dir, trainer.train_writer, first_step)
    evaluator = None
    if infer_eval_dataset_cfg is not None:
      evaluator = evaluation_lib.InferenceEvaluator(
        infer_eval_dataset_cfg, inference_evaluator_cls, model, partitioner, model_dir
      )
      cleanup.callback(evaluator.close)
      evaluation_lib.require_tasks(evaluator, infer_eval_dataset_cfg)
    manager = None
    if save_cfg is not None and (checkpoint_period or checkpoint_steps):
      manager = checkpoints.CheckpointManager(model_dir, save_cfg)
      cleanup.callback(manager.close)

    bar = progress.Progress(total_steps, layout.batch_size)
    log = progress.EvaluationLog()
    run = _Run(
      trainer=trainer,
      evaluator=evaluator,
      train_eval_datasets=train_eval_datasets,
      train_state_axes=initializer.train_state_axes,
      actions={trainer_lib.ActionMode[mode]: list(todo) for mode, todo in (actions or {}).items()},
      bar=bar,
      log=log,
      model_dir=model_dir,
    )

    def save(step: int) -> None:
      if manager is None:
        return
      if not trainer_lib.state_is_finite(trainer.train_state):
        raise InputError(
          f"the parameters are not finite after step {step}, and no checkpoint of them is written: "
          "the last one is from before. Lower the learning rate or look at the data. "
          + run.what_was_not_finite()
        )
      trainer.finish_writing()  # a checkpoint never comes before the metrics of its steps
      manager.save(trainer.train_state, batches.state(step))

    step = first_step
    try:
      with model_dir_lib.explained(model_dir), _stop_on_signal() as stop:
        if (
          step == total_steps
          or (run_eval_before_training and own is None)
          or (own and eval_period and step % eval_period == 0 and _not_evaluated(model_dir, step))
        ):
          stop.at_once(run.evaluate, step)
        if checkpoint_period:
          save(step)
        if jax.process_index() == 0:
          todo = f"training to step {total_steps}"
          if step == total_steps:
            todo = f"at step {step} already, the last: nothing to train"
          print(f"Ready after {time.time() - began:.1f} s; {todo}.")
          sys.stdout.flush()
        periods = [p for p in (eval_period, checkpoint_period) if p]
        stats = stats_period or min([*periods, total_steps])
        while step < total_steps and not (stop.is_set or trainer.stop_training):
          marks = [
            *((step // p + 1) * p for p in (*periods, stats) if p),
            *(s for s in checkpoint_steps if s > step),
            total_steps,
          ]
          done, summary = trainer.train(
            batches, min(marks) - step, step, bar=bar, should_stop=stop.agreed
          )
          step += done
          if manager is not None:
            manager.check()
          run.act(trainer_lib.ActionMode.TRAIN, functools.partial(_train_metrics, summary))
          if stop.is_set:
            break
          last = step == total_steps
          due = checkpoint_period and (last or step % checkpoint_period == 0)
          if due or step in checkpoint_steps:
            save(step)
          if eval_period and (last or step % eval_period == 0):
            stop.at_once(run.evaluate, step)
        if stop.is_set or trainer.stop_training:
          save(step)
        bar.finish_line()
      trainer.finish_writing()
      if stop.is_set:
        if jax.process_index() == 0:
          print(f"Stopped by {stop.name} at step {step}; the same command goes on from there.")
        if stop.name == "SIGINT":
          raise KeyboardInterrupt
    finally:
      run.print_tables()
    return step, trainer.train_state


def _root_key(random_seed: int | None, use_hardware_rng: bool) -> jax.Array:
  if random_seed is None:
    random_seed = int(multihost_utils.broadcast_one_to_all(np.int32(time.time())))
    use_hardware_rng = True
  if use_hardware_rng:
    utils.set_hardware_rng_ops()
  return jax.random.PRNGKey(random_seed)


def _initial_state(
  initializer: utils.TrainStateInitializer,
  cfg: checkpoints.CheckpointConfig,
  own: epath.Path | None,
  init_rng: jax.Array,
) -> tuple[Any, data_lib.DataState | None]:
  """The state to start from, and where the data stands there.

  A run that starts from another's checkpoint begins its data anew; `own` is one of this run.
  """
  if own is not None:
    logging.info("Resuming from %s.", own)
    data_state = data_lib.DataState.read_from(
      pathlib.Path(own) / "dataset", jax.process_index(), jax.process_count()
    )
    return initializer.from_checkpoint(own), data_state
  restore = cfg.restore
  if restore is not None and restore.path:
    path = checkpoints.find_checkpoint(restore)
    state = initializer.from_checkpoint(
      path,
      dtype=restore.dtype,
      assignment_map=restore.assignment_map,
      fallback_rng=init_rng if restore.fallback_to_scratch else None,
    )
    return state, data_lib.DataState(int(state.step), None)
  return initializer.from_scratch(init_rng), None


def _not_evaluated(model_dir: str, step: int) -> bool:
  """Whether the run in `model_dir` has trained up to `step` and not ended the evaluation there."""
  path = pathlib.Path(model_dir) / TRAIN_METRIC_KEY / "metrics.jsonl"
  if not path.is_file():
    return False
  with path.open(encoding="utf-8") as lines:
    written = [line for line in lines if line.startswith(f'{{"step": {step},')]
  return bool(written) and not any(_EVALUATED in line for line in written)


def _train_metrics(
  summary: "concurrent.futures.Future[trainer_lib.Scalars]",
) -> dict[str, trainer_lib.Scalars]:
  return {TRAIN_METRIC_KEY: summary.result()}


class _Run:
  """Evaluations of a run, and what acts on their metrics."""

  def __init__(
    self,
    *,
    trainer: trainer_lib.BaseTrainer,
    evaluator: evaluation_lib.InferenceEvaluator | None,
    train_eval_datasets: Mapping[str, Any],
    train_state_axes: Any,
    actions: Mapping[trainer_lib.ActionMode, Sequence[trainer_lib.BaseAction]],
    bar: progress.Progress,
    log: progress.EvaluationLog,
    model_dir: str,
  ):
    self._model_dir = model_dir
    self._trainer = trainer
    self._evaluator = evaluator
    self._train_eval_datasets = train_eval_datasets
    self._axes = train_state_axes
    self._actions = actions
    self._bar = bar
    self._log = log

  def act(
    self,
    mode: trainer_lib.ActionMode,
    metrics: Callable[[], Mapping[str, Mapping[str, Any]]],
  ) -> None:
    """Runs the actions of `mode`; waits for the metrics only where there are any."""
    todo = self._actions.get(mode)
    if not todo:
      return
    stop, failure = False, ""
    if jax.process_index() == 0:
      values = metrics()
      stop = any([action.run(self._trainer.train_state, values) for action in todo])
      failure = next((action.failure for action in todo if action.failure), "")
    if jax.process_count() > 1:
      stop, failed = multihost_utils.broadcast_one_to_all(np.asarray([stop, bool(failure)]))
      failure = failure or ("process 0 says what" if failed else "")
    if failure:
      raise InputError(f"{failure}. {self.what_was_not_finite()}".strip())
    self._trainer.stop_training |= bool(stop)

  def what_was_not_finite(self) -> str:
    """A sentence on the first loss that was not finite; empty where all were."""
    self._trainer.finish_steps()
    step = self._trainer.first_not_finite
    if step is None:
      return ""
    path = trainer_lib.not_finite_path(self._model_dir, step)
    return f"The first loss that was not finite is that of step {step}; its batch is kept in {path}"

  def evaluate(self, step: int) -> None:
    """Computes and writes the training evaluation and the SeqIO evaluation."""
    resume = self._bar.pause(f"step {step}: evaluating")
    began = time.time()
    if self._train_eval_datasets:
      results = self._trainer.eval(
        {name: ds.as_numpy_iterator() for name, ds in self._train_eval_datasets.items()}
      )
      self.act(trainer_lib.ActionMode.TRAIN_EVAL, lambda: results)
    if self._evaluator is not None:
      future = self._evaluator.evaluate(self._trainer.train_state, self._axes)
      values = future.result() or {}
      self._log.add(step, values)
      self.act(trainer_lib.ActionMode.INFER_EVAL, lambda: values)
    self._trainer.train_writer.write_scalars(step, {_EVALUATED: time.time() - began})
    resume()

  def print_tables(self) -> None:
    """Prints the first and the newest metrics of every evaluation."""
    if jax.process_index() == 0:
      for text in self._log.tables():
        print(f"\n{text}")
      sys.stdout.flush()


class _Interrupted(BaseException):
  """Ends what `_Stop.at_once` does."""


class _Stop:
  """Whether a signal asked the run to end, and which."""

  def __init__(self) -> None:
    self.is_set = False
    self.name = ""
    self._interrupts = False

  def set(self, name: str) -> None:
    """Notes the signal `name`, and ends what `at_once` does."""
    self.is_set = True
    self.name = name
    if self._interrupts:
      self._interrupts = False
      raise _Interrupted

  def agreed(self, step: int) -> bool:
    """Whether the run is to end after `step`: the same in all processes, whichever was asked."""
    if jax.process_count() > 1 and multihost_utils.reached_preemption_sync_point(step):
      self.set("SIGTERM")
    return self.is_set

  def at_once(self, work: Callable[[int], None], step: int) -> None:
    """Does `work(step)`, unless or until a signal comes.

    One of several processes cannot leave the others alone with it: they do it to the end.
    """
    self._interrupts = jax.process_count() == 1
    try:
      if not self.is_set:
        work(step)
      self._interrupts = False
    except _Interrupted:
      pass


@contextlib.contextmanager
def _stop_on_signal() -> Iterator[_Stop]:
  """SIGTERM and SIGINT set the flag; a second SIGINT interrupts at once.

  With several processes, `jax.distributed` listens for SIGTERM and tells it to all of them.
  """
  stop = _Stop()
  previous: dict[int, Any] = {}

  def handle(number: int, frame: Any) -> None:
    if number == signal.SIGINT:
      signal.signal(signal.SIGINT, previous[signal.SIGINT])
    stop.set(signal.Signals(number).name)

  try:
    for number in (signal.SIGTERM, signal.SIGINT) if jax.process_count() == 1 else ():
      previous[number] = signal.signal(number, handle)
  except ValueError:  # not in the main thread: the caller handles signals
    pass
  try:
    yield stop
  finally:
    for signum, handler in previous.items():
      signal.signal(signum, handler)
