"""A model and a task small enough to train in a test, and a dataset with hidden state.

As a script, kills training runs and compares their results with an undisturbed run.
"""

import functools
import itertools
import json
import multiprocessing
import os
import random
import signal
import sys
import threading
import warnings

import clu.metrics
import commands
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import seqio
import tensorflow as tf
from flax.linen import partitioning as flax_partitioning

from vmsst import storage
from vmsst.data import batches, loader
from vmsst.train import (
  adafactor,
  checkpoints,
  input_pipeline,
  optimizers,
  partitioning,
  train,
  trainer,
)

FEATURES = {"inputs": 8}


class _Network(nn.Module):
  width: int = 4
  vocab: int = 16

  @nn.compact
  def __call__(self, tokens):
    table = flax_partitioning.param_with_axes(
      "table", nn.initializers.normal(1.0), (self.vocab, self.width), axes=("vocab", "embed")
    )
    mask = (tokens != 0)[..., None]
    return jnp.sum(table[tokens] * mask, axis=1) / jnp.maximum(jnp.sum(mask, axis=1), 1)


class _Converter(seqio.FeatureConverter):
  TASK_FEATURES = {"inputs": seqio.FeatureConverter.FeatureSpec(dtype=tf.int32)}  # noqa: RUF012
  MODEL_FEATURES = TASK_FEATURES
  PACKING_FEATURE_DTYPES = None

  def _convert_features(self, ds, task_feature_lengths):
    ds = ds.map(lambda row: {"inputs": row["inputs"]})
    return self._pack_or_pad(ds, task_feature_lengths)

  def get_model_feature_lengths(self, task_feature_lengths):
    return task_feature_lengths


class ToyModel:
  """Pulls the mean embedding of a row toward its number of tokens, with dropout noise.

  Args:
    width: Width of the table.
    noise: Scale of random noise in the loss of a row.
    poison: Token; the loss is NaN if the first row of a batch starts with it.
  """

  FEATURE_CONVERTER_CLS = _Converter
  input_vocabulary = output_vocabulary = seqio.PassThroughVocabulary(16)

  def __init__(self, width=4, noise=0.0, poison=None, optimizer_def=None):
    self.module = _Network(width)
    self.optimizer_def = optimizer_def or adafactor.Adafactor(
      logical_factor_rules=adafactor.standard_logical_factor_rules()
    )
    self._noise = noise
    self._poison = poison

  def get_initial_variables(self, rng, input_shapes, input_types=None):
    return self.module.init(rng, jnp.ones(input_shapes["inputs"], jnp.int32))

  def loss_fn(self, params, batch, dropout_rng):
    vectors = self.module.apply({"params": params}, batch["inputs"])
    goal = jnp.sum(batch["inputs"] != 0, axis=1, keepdims=True)
    loss = jnp.mean(jnp.square(vectors - goal), axis=1)
    if dropout_rng is not None:
      loss += self._noise * jax.random.normal(dropout_rng, loss.shape) * vectors[:, 0]
    if self._poison is not None:
      loss *= jnp.where(batch["inputs"][0, 0] == self._poison, jnp.nan, 1.0)
    return jnp.mean(loss), {"loss": clu.metrics.Average.from_model_output(loss)}

  def eval_fn(self, params, batch):
    return self.loss_fn(params, batch, None)

  def score_batch(self, params, batch):
    return self.module.apply({"params": params}, batch["inputs"])


class Growing(ToyModel):
  """A model whose loss and metric `updates` grow with the step; counts how often it is traced."""

  traces = 0

  def loss_fn(self, params, batch, dropout_rng, step):
    self.traces += 1
    loss, metrics = super().loss_fn(params, batch, dropout_rng)
    weight = jnp.float32(step)
    updates = clu.metrics.Average.from_model_output(jnp.full(batch["inputs"].shape[:1], weight))
    return loss * (1 + weight), {**metrics, "updates": updates}

  def eval_fn(self, params, batch, step):
    return self.loss_fn(params, batch, None, step)


def rows(count=64, seed=0):
  """Returns token rows of several lengths, [count, 8], padded with 0."""
  rng = np.random.default_rng(seed)
  tokens = rng.integers(1, 16, (count, 8)).astype(np.int32)
  return tokens * (np.arange(8) < rng.integers(1, 9, (count, 1)))


def mean_of_scores(targets, scores):
  """Returns a metric, the mean of all scores."""
  del targets
  return {"mean": float(np.mean(scores)), "rows": len(scores)}


def add_task(name="toy"):
  """Registers the task `name`, with metrics on its validation split."""
  if name in seqio.TaskRegistry.names():
    return name

  def dataset(split, shuffle_files=False, seed=None):
    del shuffle_files, seed
    return tf.data.Dataset.from_tensor_slices(
      {"inputs": tf.ragged.constant([r[r != 0] for r in rows(seed=len(split))], dtype=tf.int32)}
    ).map(lambda row: {"inputs": row["inputs"], "targets_pretokenized": ""})

  feature = seqio.Feature(seqio.PassThroughVocabulary(16), add_eos=False, dtype=tf.int32)
  seqio.TaskRegistry.add(
    name,
    source=seqio.FunctionDataSource(dataset, splits=("train", "validation")),
    preprocessors=[],
    output_features={"inputs": feature},
    metric_fns=[mean_of_scores],
  )
  return name


def config(split="train", batch_size=8, shuffle=True):
  """Returns a DatasetConfig of the task."""
  return input_pipeline.DatasetConfig(
    mixture_or_task_name=add_task(),
    task_feature_lengths=FEATURES,
    split=split,
    batch_size=batch_size,
    shuffle=shuffle,
    seed=1,
  )


def slices(cfg, shard_id, num_shards, converter, **options):
  """Returns this process's rows of the batches of one process: the same for any number of them."""
  size = cfg.batch_size // num_shards
  rows = slice(shard_id * size, (shard_id + 1) * size)
  whole = loader.get_batches(cfg, 0, 1, converter, **options)
  return batches.BatchIterator(
    whole._dataset.map(lambda batch: input_pipeline.take_rows(batch, rows)),
    {name: jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype)
     for name, x in whole.element_spec.items()},
  )  # fmt: skip


def saving(period, *, save_dataset=True, restore=None, **options):
  """Returns a CheckpointConfig that saves every `period` steps and starts from `restore`."""
  save = checkpoints.SaveCheckpointConfig(period=period, save_dataset=save_dataset, **options)
  return checkpoints.CheckpointConfig(save=save, restore=restore)


def restoring(checkpoint):
  """Returns a RestoreCheckpointConfig of one checkpoint."""
  return checkpoints.RestoreCheckpointConfig(path=str(checkpoint), mode="specific")


def run(model_dir, *, total_steps=12, period=5, noise=0.5, partitions=1, **overrides):
  """Trains; returns the last step and train state."""
  arguments = {
    "model": ToyModel(noise=noise),
    "train_dataset_cfg": config(),
    "train_eval_dataset_cfg": None,
    "infer_eval_dataset_cfg": None,
    "checkpoint_cfg": saving(period),
    "partitioner": partitioning.PjitPartitioner(num_partitions=partitions),
    "trainer_cls": make_trainer(),
    "model_dir": str(model_dir),
    "total_steps": total_steps,
    "eval_steps": 2,
    "eval_period": 4,
    "random_seed": 0,
    **overrides,
  }
  return train.train(**arguments)


def metrics(folder, name="loss"):
  """Returns the values of a metric in a folder of logs by step."""
  rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
  return {row["step"]: row[name] for row in rows if name in row}


def make_trainer(**overrides):
  """Returns a constructor of trainers with a short schedule."""

  def construct(*arguments, **options):
    return trainer.Trainer(
      *arguments,
      **options,
      **{
        "learning_rate_fn": optimizers.create_learning_rate_scheduler(
          factors="constant", base_learning_rate=0.1
        ),
        "num_microbatches": None,
        **overrides,
      },
    )

  return construct


def read_checkpoint(path):
  """Returns all arrays of a checkpoint, on the host."""
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Orbax recommends passing shardings
    return host(ocp.PyTreeCheckpointer().restore(path / "state"))


def host(tree):
  """Returns the arrays of a tree on the host."""
  return jax.tree.map(np.asarray, tree)


def assert_same(first, second):
  """Asserts bitwise equal train states."""
  jax.tree.map(np.testing.assert_array_equal, host(first), host(second))


def shuffled_dataset():
  """Returns an endless dataset of {inputs: [2, 16]} whose order depends on hidden state."""
  return (
    tf.data.Dataset.range(50)
    .shuffle(50, seed=3)
    .repeat()
    .map(lambda i: {"inputs": tf.fill([16], tf.cast(i + 1, tf.int32))})
    .batch(2, drop_remainder=True)
  )


def take_rows(iterator, count):
  """Returns the next `count` batches: for each, the number that fills each row."""
  return [np.asarray(next(iterator)["inputs"])[:, 0].tolist() for _ in range(count)]


def expected_rows(start, count):
  """Returns what `take` returns of batches `start` to `start + count` of the dataset."""
  rows = list(shuffled_dataset().take(start + count).as_numpy_iterator())
  return [row["inputs"][:, 0].tolist() for row in rows[start:]]


# --------------------------------------------------------------------------------------------
# Runs that are killed

PERIOD = 5


def train_watched(folder, total_steps):
  """Runs training with checkpoints, both evaluations and metrics of every step."""
  loggers = [seqio.TensorBoardLogger, functools.partial(seqio.JSONLogger, write_n_results=0)]
  run(
    folder,
    total_steps=total_steps,
    stats_period=1,
    eval_period=2 * PERIOD,
    train_eval_dataset_cfg=config("validation", shuffle=False),
    infer_eval_dataset_cfg=config("validation", batch_size=24, shuffle=False),
    inference_evaluator_cls=functools.partial(seqio.Evaluator, logger_cls=loggers),
    run_eval_before_training=True,
    checkpoint_cfg=saving(PERIOD, keep=2),
  )


def written_metrics(folder):
  """Returns all metrics below `folder` except times, by file, step and name.

  Repeated steps must have the same values.
  """
  found = {}
  for path in folder.rglob("*.jsonl"):
    for record in map(json.loads, path.read_text().splitlines()):
      step = record.pop("step")
      for name, value in record.items():
        if not name.startswith("timing/"):
          key = (str(path.relative_to(folder)), step, name)
          assert found.setdefault(key, value) == value, f"{key}: {found[key]}, then {value}"
  return found


def assert_same_runs(first, second, total_steps):
  """Asserts bitwise equal last checkpoints and equal metrics of every step."""
  name = f"checkpoint_{total_steps}"
  jax.tree.map(
    np.testing.assert_array_equal,
    read_checkpoint(first / name),
    read_checkpoint(second / name),
  )
  wanted = written_metrics(first)
  assert written_metrics(second) == wanted
  lines = "train/metrics.jsonl"
  losses = [wanted[lines, step + 1, "loss"] for step in range(total_steps)]
  assert len(set(losses)) > total_steps // 2  # batches differ
  kinds = {place for place, _, _ in wanted}
  assert kinds >= {lines, "training_eval/toy/metrics.jsonl", "inference_eval/toy-metrics.jsonl"}


def kill(folder, kills, cwd):
  """Trains `folder`/whole undisturbed, and `folder`/killed with SIGKILLs until it is finished."""
  commands.run([sys.executable, __file__, folder, kills], cwd=cwd)


def _attempt(folder, steps, count=0, seconds=0.0):
  """Trains; kills this process some seconds after its `count`-th batch, if `count`."""
  advance, batches_so_far = input_pipeline.TrainIterator.__next__, itertools.count(1)

  def counted(self):
    if next(batches_so_far) == count:
      threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
    return advance(self)

  input_pipeline.TrainIterator.__next__ = counted
  train_watched(folder, steps)


def _main(folder, kills):
  draw, steps = random.Random(0), 10 * kills
  # Batches are trained, saved and evaluated in some 10 ms each.
  moments = [(draw.randint(1, 12), draw.uniform(0, 0.15)) for _ in range(kills)]
  for name, moment in (("whole", ()), *(("killed", x) for x in moments), ("killed", ())):
    process = multiprocessing.get_context("fork").Process(
      target=_attempt, args=(folder / name, steps, *moment)
    )
    process.start()
    process.join()
    print(name, moment, process.exitcode, flush=True)
    assert process.exitcode == (-signal.SIGKILL if moment else 0)


if __name__ == "__main__":
  _main(storage.path(sys.argv[1]), int(sys.argv[2]))
