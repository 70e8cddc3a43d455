"""The training step and the training loop (`t5x.trainer` in the bundled runtime).

Each training step is one call to a jitted function with donated arguments. The function computes
the gradients (in microbatches), applies the update, and adds the step's metrics to a sum. The sum
is reset when metrics are written. The host only supplies batches.
"""

import collections
import functools
import inspect
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Annotated, Any

import clu.metrics
import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from absl import logging
from jax.sharding import PartitionSpec

from vmsst import errors
from vmsst.errors import InputError
from vmsst.io import progress_bar
from vmsst.train import input_pipeline, partitioning, summaries
from vmsst.train.actions import (  # noqa: F401  (T5X's names)
  BaseAction,
  EarlyStoppingAction,
  KeepBestAction,
  TerminateOnNanAction,
)

Metrics = MutableMapping[str, clu.metrics.Metric]
Scalars = Mapping[str, float]
Batch = Mapping[str, jax.Array]

_STEPS_IN_FLIGHT = 2


def merge_metrics(first: Metrics, second: Metrics) -> Metrics:
  """Merges two sets of metrics. Metrics in only one of the sets are returned unchanged."""
  return {**second, **{n: x.merge(second[n]) if n in second else x for n, x in first.items()}}


# --------------------------------------------------------------------------------------------
# The step


def accumulate_grads_microbatched(
  model: Any,
  train_state: Any,
  batch: Batch,
  dropout_rng: jax.Array,
  num_microbatches: int | None,
  data_partition_spec: PartitionSpec = PartitionSpec("data"),  # noqa: B008
) -> tuple[Any, Metrics, Any]:
  """Computes gradients and metrics for a batch in `num_microbatches` microbatches of equal size.

  Each microbatch uses a separate random key. The in-batch negatives of an example come from the
  example's own microbatch.

  Returns:
    Gradients, metrics, and the mutable collections after the batch (None if the model has none). If
    the metric "loss" is a `clu.metrics.Average`, this function returns the gradients of the average
    over the whole batch. Otherwise, gradients are sums over microbatches, as in upstream T5X.
  """
  loss_fn = _at_step(model.loss_fn, train_state)
  params, complete = train_state.optimizer_def.select(train_state.params, batch)
  grad_fn = jax.value_and_grad(lambda params, *args: loss_fn(complete(params), *args), has_aux=True)

  def grads_of(microbatch: Batch, rng: jax.Array, mutables: Any) -> tuple[Any, Metrics, Any]:
    if mutables is None:
      (_, metrics), grads = grad_fn(params, microbatch, rng)
      return grads, metrics, None
    (_, (metrics, mutables)), grads = grad_fn(params, microbatch, rng, mutables)
    return grads, metrics, mutables

  mutables = train_state.flax_mutables or None
  if not num_microbatches or num_microbatches == 1:
    grads, metrics, mutables = grads_of(batch, dropout_rng, mutables)
    return complete(grads), metrics, mutables
  rows = next(iter(batch.values())).shape[0]
  size = rows // num_microbatches

  def microbatch_step(index: jax.Array, carry: Any) -> Any:
    rng, grads, metrics, mutables = carry
    rng, step_rng = jax.random.split(rng)
    microbatch = {
      name: partitioning.with_sharding_constraint(
        jax.lax.dynamic_slice_in_dim(value, index * size, size), data_partition_spec
      )
      for name, value in batch.items()
    }
    new_grads, new_metrics, mutables = grads_of(microbatch, step_rng, mutables)
    metrics = _where(index == 0, new_metrics, merge_metrics(metrics, new_metrics))
    weight = _loss_count(new_metrics)
    return rng, jax.tree.map(lambda x, y: x + weight * y, grads, new_grads), metrics, mutables

  sample = {n: jax.ShapeDtypeStruct((size, *v.shape[1:]), v.dtype) for n, v in batch.items()}
  _, metrics, _ = jax.eval_shape(grads_of, sample, dropout_rng, mutables)
  zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), params)
  carry = (dropout_rng, zeros, jax.tree.map(jnp.zeros_like, metrics), mutables)
  _, grads, metrics, mutables = jax.lax.fori_loop(0, num_microbatches, microbatch_step, carry)
  total = jnp.maximum(_loss_count(metrics), 1)
  return complete(jax.tree.map(lambda x: x / total, grads)), metrics, mutables


def _loss_count(metrics: Metrics) -> jax.Array | float:
  """Returns the number of pairs or tokens in a mean loss, or 1 if the loss is a sum."""
  loss = metrics.get("loss")
  return loss.count if isinstance(loss, clu.metrics.Average) else 1.0


def _at_step(function: Callable[..., Any], train_state: Any) -> Callable[..., Any]:
  """Binds `step`, the number of updates so far, to a model function if the function accepts it."""
  if "step" in inspect.signature(function).parameters:
    return functools.partial(function, step=train_state.step)
  return function


def _where(condition: jax.Array, first: Any, second: Any) -> Any:
  return jax.tree.map(lambda a, b: jnp.where(condition, a, b), first, second)


def train_with_lr(
  train_state: Any,
  batch: Batch,
  learning_rate: jax.Array,
  dropout_rng: jax.Array,
  model: Any,
  num_microbatches: int | None,
  data_partition_spec: PartitionSpec = PartitionSpec("data"),  # noqa: B008
) -> tuple[Any, Metrics]:
  """Runs one step: computes the gradients for the batch and applies the update."""
  grads, metrics, mutables = accumulate_grads_microbatched(
    model, train_state, batch, dropout_rng, num_microbatches, data_partition_spec
  )
  new_state = train_state.apply_gradient(grads, learning_rate, mutables)
  rate = jnp.asarray([learning_rate])
  metrics = {
    **metrics,
    "learning_rate": clu.metrics.Average.from_model_output(rate),
    "learning_rate/current": clu.metrics.LastValue.from_model_output(rate),
  }
  return new_state, metrics


@jax.jit
def state_is_finite(train_state: Any) -> jax.Array:
  """Returns whether all parameters are finite and no optimizer state is NaN, bool []."""
  checks = [jnp.all(jnp.isfinite(leaf)) for leaf in _floats(train_state.params)]
  checks += [~jnp.any(jnp.isnan(leaf)) for leaf in _floats(train_state.param_states)]
  return jnp.all(jnp.stack(checks))


def _floats(tree: Any) -> list[jax.Array]:
  return [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]


def eval_step(model: Any, train_state: Any, batch: Batch) -> Metrics:
  """Returns the metrics for one batch, without dropout."""
  eval_fn = _at_step(model.eval_fn, train_state)
  mutables = [train_state.flax_mutables] if train_state.flax_mutables else []
  return eval_fn(train_state.params, batch, *mutables)[1]


# --------------------------------------------------------------------------------------------
# The loop


class Trainer:
  """Runs a model's training steps and evaluations on a mesh, and writes their metrics.

  Args:
    model: See docs/model_interface.md.
    train_state: Parameters and optimizer state, on the devices; `train` donates them.
    partitioner: Provides the device mesh.
    eval_names: Names of the datasets for `eval`.
    summary_dir: Folder for the TensorBoard and JSONL files. If None, no files are written.
    train_state_axes: PartitionSpecs for `train_state`.
    rng: Random key for the run; each step folds the step number into this key.
    learning_rate_fn: Function that takes a step and returns its learning rate.
    num_microbatches: Number of microbatches per batch (default: 1).
  """

  def __init__(
    self,
    model: Any,
    train_state: Any,
    partitioner: partitioning.PjitPartitioner,
    eval_names: Sequence[str],
    summary_dir: str | None,
    train_state_axes: Any,
    rng: jax.Array,
    learning_rate_fn: Callable[[jax.Array], jax.Array],
    num_microbatches: Annotated[int, msgspec.Meta(ge=0)] | None,  # As in upstream T5X, 0 means 1.
  ):
    if hasattr(model, "check_microbatches"):
      model.check_microbatches(num_microbatches or 1)
    self._model = model
    self.train_state = train_state
    self._partitioner = partitioner
    self._train_state_axes = train_state_axes
    self._base_rng = rng
    self._learning_rate_fn = learning_rate_fn
    self._num_microbatches = num_microbatches
    self.stop_training = False
    self.train_writer = summaries.SummaryWriter(summary_dir, "train")
    self.eval_writers = {
      name: summaries.SummaryWriter(summary_dir, f"training_eval/{name}") for name in eval_names
    }
    self._all_finite = True
    self._make_sums: dict[frozenset[str], Callable[[], Any]] = {}  # keys: feature names
    self._start_time = time.time()

  def _get_step_rng(self, step: jax.Array) -> jax.Array:
    return jax.random.fold_in(self._base_rng, step)

  @functools.cached_property
  def _partitioned_train_step(self) -> partitioning.PartitionedFunction:
    def train_step(train_state: Any, batch: Batch) -> tuple[Any, Metrics]:
      return train_with_lr(
        train_state,
        batch,
        learning_rate=self._learning_rate_fn(train_state.step),
        dropout_rng=self._get_step_rng(train_state.step),
        model=self._model,
        num_microbatches=self._num_microbatches,
        data_partition_spec=self._partitioner.data_partition_spec,
      )

    return self._partitioner.partition(
      train_step,
      in_axis_resources=(self._train_state_axes, self._partitioner.data_partition_spec),
      out_axis_resources=(self._train_state_axes, None),
      donate_argnums=(0,),
    )

  @functools.cached_property
  def _partitioned_eval_step(self) -> partitioning.PartitionedFunction:
    return self._partitioner.partition(
      functools.partial(eval_step, self._model),
      in_axis_resources=(self._train_state_axes, self._partitioner.data_partition_spec),
      out_axis_resources=None,
    )

  @functools.cached_property
  def _traced_train_step(self) -> Callable[..., Any]:
    """The training step, jitted so that `empty_sums` and `summing_train_step` share one trace."""
    return jax.jit(self._partitioned_train_step.function, inline=True)

  @functools.cached_property
  def summing_train_step(self) -> partitioning.PartitionedFunction:
    """(train_state, sums, batch) -> (train_state, sums, (metrics, whether the loss is finite)).

    `sums` is (number of steps, sum of their metrics). `train_state` and `sums` are donated.
    """
    step = self._traced_train_step

    def summing_step(train_state: Any, sums: Any, batch: Batch) -> Any:
      count, total = sums
      train_state, metrics = step(train_state, batch)
      total = _where(count == 0, metrics, merge_metrics(total, metrics))
      finite = jnp.asarray(True)
      if "loss" in metrics:
        # Check the loss's sum and count, because their quotient is NaN for a batch without tokens.
        leaves = jax.tree.leaves(metrics["loss"])
        finite = jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))
      return train_state, (count + 1, total), (metrics, finite)

    return self._partitioner.partition(
      summing_step,
      in_axis_resources=(self._train_state_axes, None, self._partitioner.data_partition_spec),
      out_axis_resources=(self._train_state_axes, None, None),
      donate_argnums=(0, 1),
    )

  def empty_sums(self, batch: Batch) -> Any:
    """Returns `sums` over zero steps for `summing_train_step`. `batch` has arrays or shapes."""
    with self._partitioner.context():
      kind = frozenset(batch)
      if kind not in self._make_sums:
        _, shapes = jax.eval_shape(self._traced_train_step, self.train_state, batch)
        self._make_sums[kind] = jax.jit(
          lambda: (jnp.zeros((), jnp.int32), jax.tree.map(jnp.zeros_like, shapes)),
          out_shardings=self._partitioner.shardings(None),
        )
      return self._make_sums[kind]()

  def train(
    self,
    batches: Iterator[Batch],
    num_steps: int,
    start_step: int,
    bar: summaries.Progress | None = None,
    should_stop: Callable[[int], bool] = lambda step: False,
  ) -> tuple[int, Scalars]:
    """Trains for `num_steps`, or until `should_stop` returns true, and writes the metrics.

    Args:
      batches: Global batches.
      num_steps: Maximum number of steps.
      start_step: Number of steps before this call.
      bar: Progress bar.
      should_stop: Function that takes the number of finished steps and returns whether to stop.

    Returns:
      The number of steps trained, and their metrics.
    """
    step = start_step
    sums: dict[frozenset[str], Any] = {}  # keys: feature names, which determine the metrics
    in_flight: collections.deque[tuple[int, Metrics, jax.Array]] = collections.deque()

    def finish_oldest() -> None:
      number, metrics, finite = in_flight.popleft()
      if not np.asarray(finite) and self._all_finite:  # This waits for the devices.
        logging.warning("Step %d is the first step with a loss that is not finite.", number)
        self._all_finite = False
      progress_bar.alive()
      if bar is not None:
        bar.show(number, metrics)

    while step < start_step + num_steps and not should_stop(step):
      step += 1
      with jax.profiler.StepTraceAnnotation("train", step_num=step):
        batch = next(batches)
        kind = frozenset(batch)
        if kind not in sums:
          sums[kind] = self.empty_sums(batch)
        self.train_state, sums[kind], (metrics, finite) = self.summing_train_step(
          self.train_state, sums[kind], batch
        )
        in_flight.append((step, metrics, finite))
        if len(in_flight) > _STEPS_IN_FLIGHT:  # Limit the device queue for accurate step times.
          finish_oldest()
    while in_flight:
      finish_oldest()
    if not sums:
      return 0, {}
    total = functools.reduce(merge_metrics, (metrics for _, metrics in sums.values()))
    values = summaries.numbers(total)
    uptime = time.time() - self._start_time
    self.train_writer.write_scalars(step, {**values, "timing/uptime": uptime})
    return step - start_step, values

  def eval(self, batch_iters: Mapping[str, Iterator[input_pipeline.Batch]]) -> dict[str, Scalars]:
    """Computes, writes and returns the metrics for every evaluation dataset, by name."""
    step = int(self.train_state.step)
    results: dict[str, Scalars] = {}
    for name, batches in batch_iters.items():
      total: Metrics | None = None
      for batch in batches:
        if input_pipeline.can_trim():
          batch = input_pipeline.trim_padding(batch)
        metrics = self._partitioned_eval_step(self.train_state, self._partitioner.to_devices(batch))
        total = metrics if total is None else merge_metrics(total, metrics)
        progress_bar.alive()
      if total is None:
        raise InputError(f"the evaluation dataset {name} is empty; check its split")
      results[name] = summaries.numbers(total)
      self.eval_writers[name].write_scalars(step, results[name])
      self.eval_writers[name].flush()
    return results

  def check(self, batch_size: int) -> None:
    """Raises InputError unless the batch size is divisible by the microbatch and slice counts."""
    for name, divisor in (
      ("num_microbatches", self._num_microbatches or 1),
      ("embedding_slices", getattr(self._model, "embedding_slices", 1)),
    ):
      errors.check(
        batch_size % divisor == 0, name, divisor, f"a divisor of the batch size, {batch_size}"
      )
      batch_size //= divisor

  def close(self) -> None:
    """Closes the metric writers."""
    for writer in (self.train_writer, *self.eval_writers.values()):
      writer.close()
