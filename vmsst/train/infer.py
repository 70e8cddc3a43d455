"""`t5x infer`: writes predictions, scores or embeddings for a task's examples as JSON lines."""

import contextlib
import itertools
import json
import math
import os
import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

import gin
import jax
import msgspec
import numpy as np
import seqio
import tensorflow as tf
from jax.experimental import multihost_utils

from vmsst import storage
from vmsst.data import loader
from vmsst.formats import t5x
from vmsst.io import input_files, manifest, progress_bar
from vmsst.jobs import job
from vmsst.train import (
  checkpoints,
  gin_utils,
  inference,
  input_pipeline,
  partitioning,
  summaries,
  train_state,
)
from vmsst.train import model_dir as model_dir_lib

MODES = {
  "predict": "predict_batch",
  "predict_with_aux": "predict_batch_with_aux",
  "score": "score_batch",
}


def infer(
  *,
  mode: Literal["predict", "predict_with_aux", "score"],
  model: Any,
  dataset_cfg: input_pipeline.DatasetConfig,
  restore_checkpoint_cfg: checkpoints.RestoreCheckpointConfig,
  partitioner: partitioning.PjitPartitioner,
  output_dir: str,
  checkpoint_period: Annotated[int, msgspec.Meta(ge=1)],
  shard_id: Annotated[int, msgspec.Meta(ge=0)] = 0,
  num_shards: Annotated[int, msgspec.Meta(ge=1)] = 1,
  output_vocab_feature_name: str = "targets",
  summarize_config_fn: Callable[..., None] = gin_utils.summarize_gin_config,
) -> None:
  """Runs a model on every example of a task, or of all tasks in a mixture.

  Writes the file `<task>-<mode>.jsonl-<shard>-of-<shards>` below `output_dir`, with one line per
  example. Each line contains the example's inputs and the model's prediction or score. Results are
  saved every `checkpoint_period` batches. If you repeat an interrupted run with the same
  configuration, checkpoint and examples, the run resumes after the last saved batch.

  Args:
    mode: "predict", "predict_with_aux" or "score".
    model: See docs/model_interface.md.
    dataset_cfg: The examples.
    restore_checkpoint_cfg: The checkpoint. Only its parameters are read.
    partitioner: Provides the device mesh.
    output_dir: Absolute path of the folder for the results.
    checkpoint_period: Batches between saves.
    shard_id: Index of the data shard to process, from 0.
    num_shards: Number of data shards.
    output_vocab_feature_name: Name of the feature with the vocabulary that decodes predicted ids.
    summarize_config_fn: Function that takes (model_dir, summary_writer, step) and writes the
      configuration.

  Raises:
    InputError: If the configuration, the data or the checkpoint cannot be used.
  """
  provider = loader.get_mixture_or_task(dataset_cfg)
  loader.check_split(dataset_cfg)
  lengths = dataset_cfg.task_feature_lengths
  converter = model.FEATURE_CONVERTER_CLS(pack=False)
  size = checkpoint_period * dataset_cfg.batch_size

  def examples(task: Any) -> Any:
    return task.get_dataset(
      sequence_length=lengths,
      split=dataset_cfg.split,
      shuffle=False,
      num_epochs=1,
      shard_info=seqio.ShardInfo(index=shard_id, num_shards=num_shards),
      use_cached=dataset_cfg.use_cached,
      seed=dataset_cfg.seed,
    )

  spec = converter(examples(provider), lengths).element_spec
  initializer = train_state.TrainStateInitializer(
    optimizer_def=None,
    init_fn=model.get_initial_variables,
    input_shapes={name: (dataset_cfg.batch_size, *value.shape) for name, value in spec.items()},
    input_types={name: value.dtype.as_numpy_dtype for name, value in spec.items()},
    partitioner=partitioner,
  )
  checkpoint = checkpoints.find_checkpoint(restore_checkpoint_cfg)
  state = initializer.from_checkpoint(checkpoint, restore_checkpoint_cfg)
  sums = storage.path(checkpoint) / t5x.CHECKSUMS
  digest = manifest.digest(sums.read_text()) if sums.is_file() else None
  inputs = {"checkpoint": {"name": os.fspath(checkpoint), "digest": digest}}
  # An interrupted run resumes only with the same gin configuration, because the configuration
  # contains the decoding options. The text of the configuration imports `__main__` under one of
  # several aliases. Gin may pick a different alias in each run, so replace the alias by `__main__`.
  config = gin.config_str()
  for alias in re.findall(r"^import __main__ as (\w+)$", config, re.MULTILINE):
    config = re.sub(rf"\b{alias}\b", "__main__", config)
  options = {"split": dataset_cfg.split, "lengths": str(lengths), "config": config}
  infer_fn = inference.get_infer_fn(
    infer_step=getattr(model, MODES[mode]),
    batch_size=dataset_cfg.batch_size,
    train_state_axes=initializer.train_state_axes,
    partitioner=partitioner,
  )
  with model_dir_lib.open_folder("infer.output_dir", output_dir):
    if shard_id == 0:
      summarize_config_fn(model_dir=output_dir, summary_writer=None, step=0)
    for task in seqio.get_subtasks(provider):
      output = (
        storage.path(output_dir) / f"{task.name}-{mode}.jsonl-{shard_id:05d}-of-{num_shards:05d}"
      )
      if output.is_file():
        summaries.print_once(f"Skipping {task.name}: {output} exists; delete it to rerun the task.")
        continue
      vocabulary = None
      if mode != "score":
        vocabulary = task.output_features[output_vocab_feature_name].vocabulary
      rows = tf.data.Dataset.zip((examples(task), converter(examples(task), lengths)))
      iterator = rows.as_numpy_iterator()
      part_names: list[str] = []
      is_first = jax.process_index() == 0
      output_job = job.Job(output, inputs=inputs, options=options, is_folder=False)
      with (
        output_job if is_first else contextlib.nullcontext() as writer,
        progress_bar.Bar(desc=task.name, unit=" examples", disable=not is_first) as bar,
      ):
        while chunk := list(itertools.islice(iterator, size)):
          part_names.append(f"lines-{len(part_names):05d}")
          key = manifest.digest([_json(example) for example, _ in chunk])
          done = writer is not None and writer.done(part_names[-1], key) is not None
          if jax.process_count() > 1:  # All processes must run the model on the same examples.
            done = bool(multihost_utils.broadcast_one_to_all(np.asarray(done)))
          if not done:
            columns = {name: np.stack([row[name] for _, row in chunk]) for name in chunk[0][1]}
            dataset = tf.data.Dataset.from_tensor_slices(columns).enumerate()
            rng = jax.random.PRNGKey(len(part_names) - 1)
            result = infer_fn(dataset, train_state=state, rng=rng)
            if writer is not None:
              with writer.part(part_names[-1], key) as (path, _):
                lines = _lines([example for example, _ in chunk], result, vocabulary)
                path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
          bar.update(len(chunk))
        if writer is not None:
          with writer.output() as path, path.open("wb") as stream:
            for name in part_names:
              stream.write(input_files.read_bytes(writer.path(name)))
          print(f"Wrote {output}")


def _lines(rows: list[Any], result: Any, vocabulary: Any) -> Iterator[str]:
  outputs, aux = result if isinstance(result, tuple) else (result, {})
  for position, (row, (_, output)) in enumerate(zip(rows, outputs, strict=True)):
    value = {"score": output}
    if vocabulary is not None:
      value = {"prediction": vocabulary.decode(np.asarray(output).tolist())}
    yield _json({"inputs": row, **value, **{name: x[position] for name, x in aux.items()}})


def _json(value: Any) -> str:
  """Returns JSON as T5X writes it: full arrays, and bytes as text if possible, else as base64."""
  return json.dumps(
    value, cls=seqio.TensorAndNumpyEncoder, max_ndarray_size=math.inf, ensure_ascii=False
  )
