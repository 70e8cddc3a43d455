"""Runs a model's `predict_batch` or `score_batch` on every example of a dataset."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vmsst.io import progress_bar
from vmsst.train import input_pipeline, partitioning

InferFn = Callable[..., Any]


def get_infer_fn(
  infer_step: Callable[..., Any],
  batch_size: int,
  train_state_axes: Any,
  partitioner: partitioning.PjitPartitioner,
) -> InferFn:
  """Returns a function that runs `infer_step` on every example of a dataset.

  Args:
    infer_step: `model.predict_batch`, `predict_batch_with_aux` or `score_batch`.
    batch_size: Examples in a global batch.
    train_state_axes: PartitionSpecs for the train state.
    partitioner: Provides the device mesh.

  Returns:
    `fn(dataset, train_state, rng=None)`, where `dataset` yields (index, features). `fn` returns a
    list of (index, result), with each result as NumPy arrays. If `infer_step` also returns a dict
    of auxiliary values, `fn` returns the list and a dict with a list for each auxiliary value.
  """
  run = get_array_fn(infer_step, batch_size, train_state_axes, partitioner)

  def infer(dataset: Any, train_state: Any, rng: jax.Array | None = None) -> Any:
    blocks = list(dataset.batch(1024).as_numpy_iterator())
    if not blocks:
      return []
    indices, features = jax.tree.map(lambda *arrays: np.concatenate(arrays), *blocks)
    results, aux = run(features, train_state, rng), None
    if isinstance(results, tuple) and len(results) == 2 and isinstance(results[1], Mapping):
      results, aux = results
    leaves, structure = jax.tree.flatten(results)
    rows = [jax.tree.unflatten(structure, row) for row in zip(*leaves, strict=True)]
    examples = list(zip(indices.tolist(), rows, strict=True))
    return examples if aux is None else (examples, jax.tree.map(list, dict(aux)))

  return infer


def get_array_fn(
  infer_step: Callable[..., Any],
  batch_size: int,
  train_state_axes: Any,
  partitioner: partitioning.PjitPartitioner,
) -> Callable[..., Any]:
  """Returns a function that runs `infer_step` on examples in memory.

  The returned function puts examples of similar length into the same batch to reduce padding. It
  returns the results in the order of the examples.

  Args:
    infer_step: See `get_infer_fn`.
    batch_size: Examples in a global batch.
    train_state_axes: PartitionSpecs for the train state.
    partitioner: Provides the device mesh.

  Returns:
    `fn(features, train_state, rng=None)`, where `features` are arrays [N, ...] by name. It returns
    the results of `infer_step` for all examples, as NumPy arrays [N, ...].
  """
  accepted = inspect.signature(infer_step).parameters

  def step(params: Any, batch: Any, rng: Any, mutables: Any) -> Any:
    options = {"rng": rng, "flax_mutables": mutables}
    return infer_step(params, batch, **{x: options[x] for x in options if x in accepted})

  partitioned = partitioner.partition(
    step,
    in_axis_resources=(
      train_state_axes.params,
      partitioner.data_partition_spec,
      None,
      train_state_axes.flax_mutables,
    ),
    out_axis_resources=None,
  )
  partitioner.data_shard(batch_size)  # Check that the batch size fits the mesh.

  def run(
    features: Mapping[str, np.ndarray], train_state: Any, rng: jax.Array | None = None
  ) -> Any:
    length = np.zeros(len(next(iter(features.values()))), np.int64)
    for value in features.values():
      if value.ndim == 2 and value.shape[1] > 1:
        used = (value != 0) * np.arange(1, value.shape[1] + 1)
        length = np.maximum(length, used.max(axis=1))
    order = np.argsort(length, kind="stable")
    results: Any = None
    for start in range(0, len(order), batch_size):
      rows = order[start : start + batch_size]
      padded = np.concatenate([rows, np.repeat(rows[:1], batch_size - len(rows))])
      batch = input_pipeline.trim_padding(input_pipeline.take_rows(features, padded))
      step_rng = None
      if rng is not None:
        step_rng, rng = jax.random.split(rng)
      # Every process passes the complete batch to the devices, because the rows that belong to one
      # host need not be adjacent in the batch.
      device_batch = partitioner.whole_to_devices(batch)
      result = partitioned(train_state.params, device_batch, step_rng, train_state.flax_mutables)
      # Copy the result to the host to free device memory. Convert bfloat16, because few NumPy
      # functions support it.
      result = jax.tree.map(
        lambda x: np.asarray(x, np.float32 if x.dtype == jnp.bfloat16 else x.dtype), result
      )
      if not start:
        results = jax.tree.map(lambda x: np.empty((len(order), *x.shape[1:]), x.dtype), result)
      for array, values in zip(jax.tree.leaves(results), jax.tree.leaves(result), strict=True):
        array[rows] = values[: len(rows)]
      progress_bar.alive()
    return results

  return run
