"""`t5x train`: the training run."""

import contextlib
import dataclasses
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import jax
import msgspec
import numpy as np
from absl import logging
from etils import epath
from jax.experimental import multihost_utils

from vmsst import errors, storage
from vmsst.checkpoints import t5x
from vmsst.errors import InputError
from vmsst.formats import encoder_json
from vmsst.io import stored_settings
from vmsst.jobs import signals
from vmsst.train import checkpoints, partitioning, progress
from vmsst.train import data as data_lib
from vmsst.train import model_dir as model_dir_lib
from vmsst.train import train_state as train_state_lib
from vmsst.train import trainer as trainer_lib

TRAIN_METRIC_KEY = "train"
_MODES = ("TRAIN", "TRAIN_EVAL", "INFER_EVAL")
_NOT_OF_THE_ENCODER = ("dropout_rate", "dtype", "remat", "scan_layers")  # but of its training
_EVALUATED = "timing/evaluate_seconds"  # written when an evaluation is complete


def train(
  *,
  model: Any,
  train_dataset_cfg: data_lib.DatasetConfig,
  train_eval_dataset_cfg: data_lib.DatasetConfig | None,
  infer_eval_dataset_cfg: data_lib.DatasetConfig | None,
  checkpoint_cfg: checkpoints.CheckpointConfig,
  partitioner: partitioning.PjitPartitioner,
  trainer_cls: Callable[..., trainer_lib.Trainer],
  model_dir: str,
  total_steps: Annotated[int, msgspec.Meta(ge=0)],
  eval_steps: Annotated[int, msgspec.Meta(ge=1)],
  eval_period: Annotated[int, msgspec.Meta(ge=0)],
  stats_period: Annotated[int, msgspec.Meta(ge=1)] | None = None,
  random_seed: data_lib.Seed | None,
  use_hardware_rng: bool = False,
  summarize_config_fn: Callable[..., None] | None = None,
  inference_evaluator_cls: Callable[..., Any] | None = None,
  get_dataset_fn: Callable[..., Any] | None = None,
  actions: Mapping[str, Sequence[trainer_lib.BaseAction]] | None = None,
  train_eval_get_dataset_fn: Callable[..., Any] = data_lib.get_training_eval_datasets,
  run_eval_before_training: bool = False,
  profile_steps: tuple[int, int] | None = None,
  on_sigterm: Callable[[], object] | None = None,
  evaluator: Any = None,
) -> tuple[int, Any]:
  """Trains a model, evaluates it and writes checkpoints below `model_dir`.

  Starts from the newest intact checkpoint in `model_dir`, else from `checkpoint_cfg.restore`, else
  from scratch. Saves and evaluates at multiples of the periods, whatever step the run started at,
  and after the last step. Repeats an evaluation that was interrupted. SIGTERM and SIGINT write a
  checkpoint and end the run. Never saves a state with infinite or NaN parameters.

  Args:
    model: See docs/model_interface.md.
    train_dataset_cfg: Training data.
    train_eval_dataset_cfg: Data of the training evaluation (metrics without updates), or None.
    infer_eval_dataset_cfg: Data of the SeqIO evaluation, or None.
    checkpoint_cfg: What to start from and what to save.
    partitioner: The mesh.
    trainer_cls: Creates the trainer.
    model_dir: Absolute folder of the run.
    total_steps: Last step.
    eval_steps: Batches of each training evaluation.
    eval_period: Steps between evaluations.
    stats_period: Steps that training metrics are averaged over; by default the shorter of the
      evaluation and checkpoint periods.
    random_seed: Seed of initialization, dropout and latents; None takes the time and the hardware
      generator.
    use_hardware_rng: Whether to use the hardware generator with a given seed too.
    summarize_config_fn: Writes the configuration (model_dir, summary_writer, step).
    inference_evaluator_cls: `seqio.Evaluator` (default), perhaps with bound arguments.
    get_dataset_fn: Returns the training data (default: `loader.get_batches`). Called with
      `train_dataset_cfg`, the shard, the number of shards and a constructor of the model's feature
      converter.
    actions: Actions by mode ("TRAIN", "TRAIN_EVAL", "INFER_EVAL"), which see the metrics and may
      stop the run.
    train_eval_get_dataset_fn: Returns the data of the training evaluation.
    run_eval_before_training: Whether to evaluate before the first step too.
    profile_steps: First and last step of a trace to write to `model_dir`/profile, for XProf and
      Perfetto.
    on_sigterm: Called at the end of a run that SIGTERM stopped, which otherwise returns as any.
    evaluator: Used in place of a SeqIO evaluation; has `evaluate(train_state, train_state_axes)`,
      which returns metrics by task, and `close()`.

  Returns:
    The last step and the last train state.

  Raises:
    InputError: The configuration, the data or the disk cannot be used, or `model_dir` has
      checkpoints of another encoder.
  """
  check_run(model, train_dataset_cfg)
  began = time.time()
  layout = partitioner.get_data_layout(train_dataset_cfg.batch_size)
  actions = actions or {}
  if unknown := set(actions) - set(_MODES):
    raise InputError(f"actions: unknown modes {sorted(unknown)}; use {', '.join(_MODES)}")
  if random_seed is None or use_hardware_rng:  # fast, but reproducible only for one sharding
    jax.config.update("jax_default_prng_impl", "unsafe_rbg")
  if random_seed is None:
    random_seed = int(multihost_utils.broadcast_one_to_all(np.int32(time.time())))
  init_rng, trainer_rng = jax.random.split(jax.random.PRNGKey(random_seed))
  save_cfg = checkpoint_cfg.save or checkpoints.SaveCheckpointConfig()
  every_action = [action for each in actions.values() for action in each]
  if actions.get("TRAIN_EVAL") or actions.get("INFER_EVAL"):
    errors.as_integer("EVAL_PERIOD", eval_period)
  if any(isinstance(action, trainer_lib.KeepBestAction) for action in every_action):
    period = save_cfg.period or 0
    if not save_cfg.checkpoint_steps:
      errors.as_integer("CHECKPOINT_PERIOD", period)
    wanted = f"a multiple of CHECKPOINT_PERIOD={period}, so that the best checkpoint is saved"
    errors.check(not period or eval_period % period == 0, "EVAL_PERIOD", eval_period, wanted)
  shard = (layout.shard_id, layout.num_shards)

  def converter(**options: Any) -> Any:  # imports seqio
    return model.FEATURE_CONVERTER_CLS(**options)

  if get_dataset_fn is None:
    from vmsst.data import loader

    get_dataset_fn = loader.get_batches

  with contextlib.ExitStack() as cleanup:

    def closing(part: Any) -> Any:
      return cleanup.enter_context(contextlib.closing(part))

    check_claim = cleanup.enter_context(model_dir_lib.opened("MODEL_DIR", model_dir, claim=True))
    batches: data_lib.TrainIterator = closing(
      data_lib.TrainIterator(
        get_dataset_fn(train_dataset_cfg, *shard, converter),
        partitioner,
        save_state=save_cfg.save_dataset,
      )
    )
    train_eval_datasets: Mapping[str, Any] = {}
    if train_eval_dataset_cfg is not None:
      train_eval_datasets = train_eval_get_dataset_fn(
        train_eval_dataset_cfg, *shard, eval_steps, converter
      )

    spec = batches.element_spec  # of this process's rows of a batch
    initializer = train_state_lib.TrainStateInitializer(
      optimizer_def=model.optimizer_def,
      init_fn=model.get_initial_variables,
      input_shapes={name: (layout.batch_size, *x.shape[1:]) for name, x in spec.items()},
      input_types={name: x.dtype for name, x in spec.items()},
      partitioner=partitioner,
    )
    own_checkpoint = checkpoints.newest_intact(model_dir)
    if own_checkpoint is not None:
      _check_encoder(model, model_dir)
    train_state, data_state = _initial_state(
      initializer, checkpoint_cfg.restore, own_checkpoint, init_rng
    )
    first_step = int(train_state.step)
    evaluates = train_eval_dataset_cfg or infer_eval_dataset_cfg or evaluator
    schedule = _Schedule(
      first_step=first_step,
      total_steps=total_steps,
      eval_period=eval_period if evaluates else 0,
      checkpoint_period=save_cfg.period or 0,
      checkpoint_steps=frozenset(save_cfg.checkpoint_steps or ()),
      stats_period=stats_period,
    )
    batches.start(first_step, data_state)
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
    del train_state  # the trainer donates it
    trainer.profile_steps = profile_steps
    trainer.check(layout.batch_size, total_steps)
    if infer_eval_dataset_cfg is not None:
      from vmsst.train import eval as eval_lib

      evaluator = closing(
        eval_lib.InferenceEvaluator(
          infer_eval_dataset_cfg, inference_evaluator_cls, model, partitioner, model_dir
        )
      )
    manager = None
    if schedule.saves:
      manager = closing(checkpoints.CheckpointManager(model_dir, save_cfg))
    # After all that may fail, so that a mistake does not replace the files of the run.
    train_state_lib.write_model_info(
      model_dir, initializer.global_train_state_shape, initializer.train_state_axes
    )
    if summarize_config_fn is not None:
      summarize_config_fn(model_dir, trainer.train_writer, first_step)
    run = _Run(
      step=first_step,
      schedule=schedule,
      batches=batches,
      train_eval_datasets=train_eval_datasets,
      trainer=trainer,
      train_state_axes=initializer.train_state_axes,
      evaluator=evaluator,
      actions=actions,
      manager=manager,
      bar=progress.Progress(first_step, schedule.total_steps, layout.batch_size),
      model_dir=model_dir,
      check_claim=check_claim,
    )
    try:
      with stop_on_signal(run.stop):
        before = run_eval_before_training
        run.prepare(run.lacks_evaluation(before) if own_checkpoint else before)
        last = schedule.total_steps
        done = f"already at the last step, {last}: nothing to train"
        plan = done if first_step == last else f"training to step {last}"
        progress.print_once(f"Ready after {time.time() - began:.1f} s; {plan}.")
        run.train()
      run.finish()
    finally:
      run.log.print_tables(t5x.read_best(model_dir))
  if run.stop.is_set and on_sigterm is not None:
    on_sigterm()
  return run.step, trainer.train_state


def check_run(model: Any, train_dataset_cfg: data_lib.DatasetConfig) -> None:
  """Raises InputError unless a model can be trained on this data."""
  optimizer = getattr(model, "optimizer_def", None)
  wanted = "an optimizer, such as @adafactor.Adafactor()"
  errors.check(
    hasattr(optimizer, "apply_gradient"), "the model's optimizer_def (OPTIMIZER)", optimizer, wanted
  )
  lengths = train_dataset_cfg.task_feature_lengths
  wanted = "a dict of maximum lengths by feature"
  errors.check(bool(lengths), "TASK_FEATURE_LENGTHS", lengths, wanted)


def _check_encoder(model: Any, model_dir: str) -> None:
  """Raises InputError if the checkpoints in a folder are of another encoder than that of a model.

  A resumed run may change what leaves the encoder the same function of its parameters.
  """
  if not (storage.path(model_dir) / encoder_json.ENCODER_FILE).is_file():
    return
  saved = encoder_json.load_encoder_assets(model_dir)

  def described(network: Any, vocabulary: Any) -> dict[str, Any]:
    record = encoder_json.describe(network)
    config = record.pop("config")
    digest = encoder_json.digest(saved.network, vocabulary, saved.max_length)
    return {
      **record,
      **{name: value for name, value in config.items() if name not in _NOT_OF_THE_ENCODER},
      "vocabulary": {"name": type(vocabulary).__name__, "digest": digest},
    }

  if changes := stored_settings.differences(
    described(saved.network, saved.vocabulary), described(model.sentence_encoder, model.vocabulary)
  ):
    raise InputError(
      f"MODEL_DIR {model_dir} has checkpoints of another encoder: {changes}; train the same "
      "encoder, or set another MODEL_DIR"
    )


def _initial_state(
  initializer: train_state_lib.TrainStateInitializer,
  restore: checkpoints.RestoreCheckpointConfig | None,
  own_checkpoint: epath.Path | None,
  init_rng: jax.Array,
) -> tuple[Any, data_lib.DataState | None]:
  """Returns the train state and the data iterator state to start from.

  Args:
    initializer: Creates the train state.
    restore: Checkpoint of another run to start from; the data starts over.
    own_checkpoint: Checkpoint of this run to resume from, or None.
    init_rng: Key to initialize parameters.
  """
  if own_checkpoint is not None:
    logging.info("Resuming from %s.", own_checkpoint)
    data_state = data_lib.DataState.read_from(
      storage.path(own_checkpoint) / "dataset", jax.process_index(), jax.process_count()
    )
    return initializer.from_checkpoint(own_checkpoint), data_state
  if restore is not None and restore.path not in (None, [], ()):
    state = initializer.from_checkpoint(checkpoints.find_checkpoint(restore), restore, init_rng)
    return state, data_lib.DataState(int(state.step), None)
  return initializer.from_scratch(init_rng), None


class _Interrupted(BaseException):
  """Ends the work of `StopRequest.at_once`."""


class StopRequest:
  """Whether a signal asked the run to stop.

  Attributes:
    is_set: Whether it did.
    name: Name of the signal, or "".
  """

  def __init__(self) -> None:
    self.is_set = False
    self.name = ""
    self._interrupts = False

  def set(self, name: str) -> None:
    """Records the signal `name` and interrupts the work of `at_once`."""
    self.is_set = True
    self.name = name
    if self._interrupts:
      self._interrupts = False
      raise _Interrupted

  def agreed(self, step: int) -> bool:
    """Returns whether to stop after `step`: the same in all processes, whichever got the signal."""
    if jax.process_count() > 1 and multihost_utils.reached_preemption_sync_point(step):
      self.set("SIGTERM")
    return self.is_set

  def at_once(self, work: Callable[[], None]) -> None:
    """Runs `work`, unless or until a signal arrives.

    In a multi-process run, `work` always completes: no process may leave the others alone with it.
    """
    self._interrupts = jax.process_count() == 1
    with contextlib.suppress(_Interrupted):
      if not self.is_set:
        work()
      self._interrupts = False


@contextlib.contextmanager
def stop_on_signal(stop: StopRequest) -> Iterator[None]:
  """Makes SIGTERM and SIGINT set `stop`; a second SIGINT interrupts at once.

  In a multi-process run, `jax.distributed` handles SIGTERM and informs all processes.
  """
  previous: dict[int, Any] = {}

  def handle(number: int, frame: Any) -> None:
    if number == signal.SIGINT:
      signal.signal(signal.SIGINT, previous[signal.SIGINT])
    stop.set(signal.Signals(number).name)

  with contextlib.suppress(ValueError):  # not in the main thread: the caller handles signals
    for number in (signal.SIGTERM, signal.SIGINT) if jax.process_count() == 1 else ():
      previous[number] = signal.signal(number, handle)
  try:
    yield
  finally:
    signals.restore(previous)


@dataclasses.dataclass(frozen=True)
class _Schedule:
  """The steps at which a run writes metrics, saves and evaluates.

  Attributes:
    first_step: Step that the run starts from.
    total_steps: Last step; the run saves and evaluates there too.
    eval_period: Steps between evaluations; 0 for none.
    checkpoint_period: Steps between checkpoints; 0 for none.
    checkpoint_steps: Further steps to save after.
    stats_period: Steps between training metrics; None takes the shorter of the other periods.
  """

  first_step: int
  total_steps: int
  eval_period: int
  checkpoint_period: int
  checkpoint_steps: frozenset[int]
  stats_period: int | None

  def __post_init__(self):
    if self.total_steps < self.first_step:
      raise InputError(
        f"TRAIN_STEPS={self.total_steps} is less than the checkpoint's step, {self.first_step}; "
        "raise it, or set another MODEL_DIR to start over"
      )

  @property
  def saves(self) -> bool:
    """Whether the run saves at any step."""
    return bool(self.checkpoint_period or self.checkpoint_steps)

  def next_stop(self, step: int) -> int:
    """Returns the next step after `step` at which to do more than train."""
    periods = [period for period in (self.eval_period, self.checkpoint_period) if period]
    periods.append(self.stats_period or min([*periods, self.total_steps]))
    return min(
      self.total_steps,
      *((step // period + 1) * period for period in periods),
      *(later for later in self.checkpoint_steps if later > step),
    )

  def saves_at(self, step: int) -> bool:
    """Returns whether to save after `step`."""
    return step in self.checkpoint_steps or self._is_due(self.checkpoint_period, step)

  def evaluates_at(self, step: int) -> bool:
    """Returns whether to evaluate after `step`."""
    return self._is_due(self.eval_period, step)

  def _is_due(self, period: int, step: int) -> bool:
    return period > 0 and (step == self.total_steps or step % period == 0)


@dataclasses.dataclass(kw_only=True)
class _Run:
  """A run under way: trains, evaluates and saves.

  Attributes:
    step: Steps trained so far.
    schedule: When to save and evaluate.
    batches: Training data.
    train_eval_datasets: Data of the training evaluation, by task.
    trainer: Holds the train state.
    train_state_axes: PartitionSpecs of the train state.
    evaluator: Computes metrics from embeddings, or None.
    actions: Actions by mode.
    manager: Writes checkpoints, or None.
    bar: Shows the progress.
    model_dir: Folder of the run.
    check_claim: Raises InputError if another run has taken the folder over.
    stop: Whether a signal arrived.
    log: Collects metrics for the tables at the end.
  """

  step: int
  schedule: _Schedule
  batches: data_lib.TrainIterator
  train_eval_datasets: Mapping[str, Any]
  trainer: trainer_lib.Trainer
  train_state_axes: Any
  evaluator: Any
  actions: Mapping[str, Sequence[trainer_lib.BaseAction]]
  manager: checkpoints.CheckpointManager | None
  bar: progress.Progress
  model_dir: str
  check_claim: Callable[[], None]
  stop: StopRequest = dataclasses.field(default_factory=StopRequest)
  log: progress.EvaluationLog = dataclasses.field(default_factory=progress.EvaluationLog)

  def prepare(self, evaluate_first: bool) -> None:
    """Evaluates and saves the state that the run starts from, if wanted or nothing else is left."""
    if evaluate_first or self.step == self.schedule.total_steps:
      self.stop.at_once(self.evaluate)
    if self.schedule.checkpoint_period:
      self.save()

  def train(self) -> None:
    """Trains to the last step, a signal or an action that stops the run; saves and evaluates."""
    while self.step < self.schedule.total_steps and not self._is_stopping():
      self._train_until(self.schedule.next_stop(self.step))
      if self.stop.is_set:
        break
      if self.schedule.saves_at(self.step):
        self.save()
      if self.schedule.evaluates_at(self.step):
        self.stop.at_once(self.evaluate)
    if self._is_stopping():
      self.save()
    self.bar.end_line()

  def finish(self) -> None:
    """Waits for the metrics and shows why the run stopped early, if it did.

    Raises:
      KeyboardInterrupt: SIGINT stopped it.
    """
    self.trainer.finish_writing()
    if self.stop.is_set:
      progress.print_once(
        f"Stopped by {self.stop.name} at step {self.step}; rerun the same command to resume."
      )
    if self.stop.name == "SIGINT":
      raise KeyboardInterrupt

  def _is_stopping(self) -> bool:
    return self.stop.is_set or self.trainer.stop_training

  def _train_until(self, step: int) -> None:
    done, summary = self.trainer.train(
      self.batches, step - self.step, self.step, bar=self.bar, should_stop=self.stop.agreed
    )
    self.step += done
    if self.manager is not None:
      self.manager.check()
    self.check_claim()
    self._act("TRAIN", lambda: {TRAIN_METRIC_KEY: summary.result()})

  def save(self) -> None:
    """Writes a checkpoint of this step in the background, if there is none.

    Raises:
      InputError: The state is not finite or cannot be written.
    """
    if self.manager is None:
      return
    if not trainer_lib.state_is_finite(self.trainer.train_state):
      raise InputError(
        f"the parameters are not finite after step {self.step}, so they are not saved; the last "
        "checkpoint is from before. Lower the learning rate or check the data. "
        + self._first_not_finite()
      )
    self.check_claim()
    self.trainer.finish_writing()  # a checkpoint never precedes the metrics of its steps
    self.manager.save(self.trainer.train_state, self.batches.state())

  def evaluate(self) -> None:
    """Computes and writes the training evaluation and the SeqIO evaluation."""
    self.bar.end_line(f"step {self.step}: evaluating")
    began = time.time()
    if self.train_eval_datasets:
      results = self.trainer.eval(
        {name: ds.as_numpy_iterator() for name, ds in self.train_eval_datasets.items()}
      )
      self._act("TRAIN_EVAL", lambda: results)
    if self.evaluator is not None:
      values = self.evaluator.evaluate(self.trainer.train_state, self.train_state_axes)
      self.log.add(self.step, values)
      self._act("INFER_EVAL", lambda: values)
    self.trainer.train_writer.write_scalars(self.step, {_EVALUATED: time.time() - began})
    self.bar.unpause()

  def lacks_evaluation(self, before_training: bool) -> bool:
    """Returns whether the run was at this step earlier but did not finish evaluating."""
    period = self.schedule.eval_period
    path = storage.path(self.model_dir) / TRAIN_METRIC_KEY / "metrics.jsonl"
    if not period or self.step % period:
      return False
    lines = path.read_text().splitlines() if path.is_file() else []
    written = [line for line in lines if line.startswith(f'{{"step": {self.step},')]
    evaluates = bool(written) if self.step else before_training
    return evaluates and not any(_EVALUATED in line for line in written)

  def _act(
    self,
    mode: str,
    metrics: Callable[[], Mapping[str, Mapping[str, Any]]],
  ) -> None:
    """Runs the actions of `mode`; waits for the metrics only if there are any actions."""
    todo = self.actions.get(mode)
    if not todo:
      return
    stop, failure = False, ""
    if jax.process_index() == 0:
      values = metrics()
      stop = any([action.run(self.trainer.train_state, values) for action in todo])
      failure = next((action.failure for action in todo if action.failure), "")
    if jax.process_count() > 1:
      stop, failed = multihost_utils.broadcast_one_to_all(np.asarray([stop, bool(failure)]))
      failure = failure or ("an action failed; see the output of process 0" if failed else "")
    if failure:
      raise InputError(f"{failure}. {self._first_not_finite()}".strip())
    self.trainer.stop_training |= bool(stop)

  def _first_not_finite(self) -> str:
    """Returns a sentence on the first loss that was not finite; "" if all were."""
    self.trainer.finish_steps()
    step = self.trainer.first_not_finite
    if step is None:
      return ""
    path = trainer_lib.not_finite_path(self.model_dir, step)
    return f"The first loss that is not finite is that of step {step}; its batch is in {path}"
