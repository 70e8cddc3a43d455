"""`t5x infer`: predictions, scores or embeddings of a task's examples, as JSON lines."""

import base64
import functools
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from vmsst import errors
from vmsst.errors import InputError
from vmsst.files import atomic_files, progress_bar, storage
from vmsst.launch import distributed
from vmsst.launch.runtime import (
  checkpoints,
  gin_utils,
  parameter_names,
  partitioning,
  progress,
  utils,
)
from vmsst.launch.runtime import data as data_lib
from vmsst.launch.runtime import model_dir as model_dir_lib

MODES = {
  "predict": "predict_batch",
  "predict_with_aux": "predict_batch_with_aux",
  "score": "score_batch",
}


def infer(
  *,
  mode: str,
  model: Any,
  dataset_cfg: data_lib.DatasetConfig,
  restore_checkpoint_cfg: checkpoints.RestoreCheckpointConfig,
  partitioner: partitioning.PjitPartitioner,
  output_dir: str,
  checkpoint_period: int,
  shard_id: int = 0,
  num_shards: int = 1,
  merge_chunked_results: bool = True,
  output_vocab_feature_name: str = "targets",
  summarize_config_fn: Callable[..., None] = gin_utils.summarize_gin_config,
  fallback_init_rng: int | None = None,
) -> None:
  """Runs a model over every example of a task, or of a mixture's tasks.

  Writes `<task>-<mode>.jsonl-<shard>-of-<shards>` below `output_dir`: one line per example, with
  its text inputs and the prediction or score. Saves results every `checkpoint_period` batches; an
  interrupted run resumes after the last saved chunk.

  Args:
    mode: "predict", "predict_with_aux" or "score".
    model: See docs/model_interface.md.
    dataset_cfg: The examples.
    restore_checkpoint_cfg: The checkpoint; only parameters are read.
    partitioner: The mesh.
    output_dir: Absolute folder for the results.
    checkpoint_period: Batches per chunk.
    shard_id: The shard of the data that this job processes.
    num_shards: Number of jobs that share the data.
    merge_chunked_results: Whether to merge the chunks into one file at the end.
    output_vocab_feature_name: Feature whose vocabulary decodes predicted ids.
    summarize_config_fn: Writes the configuration (model_dir, summary_writer, step).
    fallback_init_rng: Seed to initialize parameters that the checkpoint lacks, needed for
      `fallback_to_scratch`.

  Raises:
    InputError: The configuration, the data or the checkpoint cannot be used.
  """
  import seqio
  import tensorflow as tf

  name_of = functools.partial(parameter_names.parameter_name, "infer")
  if mode not in MODES:
    raise InputError(f"infer.mode={mode!r}; set it to one of {', '.join(MODES)}")
  errors.check_integer(name_of("checkpoint_period"), checkpoint_period)
  errors.check_integer(name_of("num_shards"), num_shards)
  errors.check_integer(name_of("shard_id"), shard_id, minimum=0)
  wanted = f"a number below num_shards={num_shards}"
  errors.check(shard_id < num_shards, name_of("shard_id"), shard_id, wanted)
  errors.check_boolean(name_of("merge_chunked_results"), merge_chunked_results)
  errors.check_seed(name_of("fallback_init_rng"), fallback_init_rng)
  utils.check_model(name_of("model"), model)
  partitioning.check_partitioner(name_of("partitioner"), partitioner)
  data_lib.check_dataset_config(name_of("dataset_cfg"), dataset_cfg)
  checkpoints.check_restore_config(name_of("restore_checkpoint_cfg"), restore_checkpoint_cfg)
  provider = data_lib.get_mixture_or_task(dataset_cfg)
  data_lib.check_split(dataset_cfg)
  for task in seqio.get_subtasks(provider) if mode != "score" else ():
    features = task.output_features
    wanted = f"a feature of {task.name}: {', '.join(features)}"
    label = name_of("output_vocab_feature_name")
    valid = output_vocab_feature_name in features
    errors.check(valid, label, output_vocab_feature_name, wanted)
  lengths = dataset_cfg.task_feature_lengths
  converter = model.FEATURE_CONVERTER_CLS(pack=False)

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
  initializer = utils.TrainStateInitializer(
    optimizer_def=None,
    init_fn=model.get_initial_variables,
    input_shapes={name: (dataset_cfg.batch_size, *value.shape) for name, value in spec.items()},
    input_types={name: value.dtype.as_numpy_dtype for name, value in spec.items()},
    partitioner=partitioner,
  )
  state = initializer.from_checkpoint(
    checkpoints.find_checkpoint(restore_checkpoint_cfg),
    restore_checkpoint_cfg,
    utils.optional_key(fallback_init_rng),
  )
  infer_fn = utils.get_infer_fn(
    infer_step=getattr(model, MODES[mode]),
    batch_size=dataset_cfg.batch_size,
    train_state_axes=initializer.train_state_axes,
    partitioner=partitioner,
  )
  with (
    model_dir_lib.explained(output_dir),
    model_dir_lib.opened(name_of("output_dir"), output_dir) as folder,
  ):
    if shard_id == 0:
      summarize_config_fn(model_dir=output_dir, summary_writer=None, step=0)
    for task in seqio.get_subtasks(provider):
      name = f"{task.name}-{mode}.jsonl-{shard_id:05d}-of-{num_shards:05d}"
      output = storage.path(output_dir) / name
      if output.is_file():
        progress.print_once(f"Skipping {task.name}: {output} exists.")
        continue
      chunks = storage.path(output_dir) / f"tmp-{name}"
      rows = tf.data.Dataset.zip((examples(task), converter(examples(task), lengths)))
      vocabulary = None
      if mode != "score":
        vocabulary = task.output_features[output_vocab_feature_name].vocabulary
      with progress_bar.Bar(
        desc=task.name, unit=" examples", disable=jax.process_index() != 0
      ) as bar:
        _write_chunks(
          chunks,
          rows.as_numpy_iterator(),
          checkpoint_period * dataset_cfg.batch_size,
          functools.partial(infer_fn, train_state=state),
          vocabulary,
          bar,
          folder,
        )
      distributed.barrier()  # no process may delete chunks while another still looks for them
      if merge_chunked_results and jax.process_index() == 0:
        _merge(chunks, output)


def _write_chunks(
  folder: storage.Path,
  rows: Iterator[tuple[Any, Any]],
  size: int,
  infer_fn: Callable[..., Any],
  vocabulary: Any,
  bar: progress_bar.Bar,
  output: model_dir_lib.Folder,
) -> None:
  """Writes the results of every `size` rows to a file of `folder`, if it is not there yet.

  Args:
    folder: Folder of the chunks.
    rows: (example, features) of each row.
    size: Rows per chunk.
    infer_fn: Runs the model on a dataset of features.
    vocabulary: Decodes predictions; None for scores.
    bar: Counts the rows.
    output: The output folder, which has results once a file is written.
  """
  import tensorflow as tf

  for number in itertools.count():
    chunk = list(itertools.islice(rows, size))
    if not chunk:
      return
    path = folder / f"{number:08d}.jsonl"
    if not path.is_file():
      columns = {name: np.stack([row[name] for _, row in chunk]) for name in chunk[0][1]}
      dataset = tf.data.Dataset.from_tensor_slices(columns).enumerate()
      try:
        result = infer_fn(dataset, rng=jax.random.PRNGKey(number))
      except NotImplementedError as error:  # the model lacks this mode
        raise InputError(str(error)) from error
      if jax.process_index() == 0:
        _write(path, _lines([example for example, _ in chunk], result, vocabulary))
        output.has_results = True
    bar.update(len(chunk))


def _merge(folder: storage.Path, output: storage.Path) -> None:
  """Moves all lines of the chunks in `folder` to `output`."""
  chunks = [folder / name for name in sorted(storage.names(folder)) if name.endswith(".jsonl")]
  _write(output, (line for path in chunks for line in _read_lines(path)))
  storage.remove(folder)
  print(f"Wrote {output}")


def _read_lines(path: storage.Path) -> Iterator[str]:
  with storage.open_binary(path) as file:
    yield from (line.decode() for line in file)


def _write(path: storage.Path, lines: Iterable[str]) -> None:
  with atomic_files.atomic_text(path) as file:
    file.writelines(lines)


def _lines(rows: list[Any], result: Any, vocabulary: Any) -> Iterator[str]:
  outputs, aux = result if isinstance(result, tuple) else (result, {})
  for position, (row, (_, output)) in enumerate(zip(rows, outputs, strict=True)):
    line: dict[str, Any] = {"inputs": _json(row)}
    if vocabulary is None:
      line["score"] = _json(output)
    else:
      line["prediction"] = vocabulary.decode(np.asarray(output).tolist())
    line.update({name: _json(values[position]) for name, values in aux.items()})
    yield json.dumps(line, ensure_ascii=False) + "\n"


def _json(value: Any) -> Any:
  if isinstance(value, bytes):
    try:
      return value.decode("utf-8")
    except UnicodeDecodeError:
      return base64.b64encode(value).decode("ascii")
  if isinstance(value, Mapping):
    return {name: _json(inner) for name, inner in value.items()}
  if isinstance(value, tuple | list):
    return [_json(inner) for inner in value]
  array = np.asarray(value)
  if array.dtype == object:
    return [_json(inner) for inner in array.tolist()]
  return array.tolist()
