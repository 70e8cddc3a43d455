"""`t5x infer`: predictions, scores or embeddings of a task's examples, as JSON lines."""

import base64
import itertools
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
import tqdm

from vmsst.errors import InputError
from vmsst.files import atomic_files
from vmsst.launch import distributed
from vmsst.launch.runtime import checkpoints, gin_utils, partitioning, utils
from vmsst.launch.runtime import data as data_lib
from vmsst.launch.runtime import eval as eval_lib
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

  Writes `<task>-<mode>.jsonl-<shard>-of-<shards>` below `output_dir`: one line an example, with
  its text inputs and the prediction or score. Results are written every `checkpoint_period`
  batches; a run that was interrupted goes on after the last complete part.

  Args:
    mode: "predict", "predict_with_aux" or "score".
    model: see the model interface.
    dataset_cfg: the examples.
    restore_checkpoint_cfg: the checkpoint at `path`; only parameters are read.
    partitioner: the mesh.
    output_dir: absolute folder for the results.
    checkpoint_period: batches in a part.
    shard_id: the part of the data that this job does.
    num_shards: jobs that share the data.
    merge_chunked_results: put the parts into one file at the end.
    output_vocab_feature_name: feature whose vocabulary decodes predicted ids.
    summarize_config_fn: writes the configuration.
    fallback_init_rng: see `evaluate`.

  Raises:
    InputError: something given from outside cannot be used.
  """
  import seqio
  import tensorflow as tf

  if mode not in MODES:
    raise InputError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
  model_dir_lib.check_model_dir(output_dir)
  if shard_id == 0:
    summarize_config_fn(model_dir=output_dir, summary_writer=None, step=0)
  provider = data_lib.get_mixture_or_task(dataset_cfg)
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
  path = checkpoints.find_checkpoint(restore_checkpoint_cfg)
  state = initializer.from_checkpoint(
    path,
    dtype=restore_checkpoint_cfg.dtype,
    assignment_map=restore_checkpoint_cfg.assignment_map,
    fallback_rng=eval_lib.fallback_rng(restore_checkpoint_cfg, fallback_init_rng),
  )
  infer_fn = utils.get_infer_fn(
    infer_step=getattr(model, MODES[mode]),
    batch_size=dataset_cfg.batch_size,
    train_state_axes=initializer.train_state_axes,
    partitioner=partitioner,
  )
  size = checkpoint_period * dataset_cfg.batch_size
  for task in seqio.get_subtasks(provider):
    name = f"{task.name}-{mode}.jsonl-{shard_id:05d}-of-{num_shards:05d}"
    output = pathlib.Path(output_dir) / name
    if output.is_file():
      print(f"{output} exists already: skipping {task.name}")
      continue
    parts = pathlib.Path(output_dir) / f"tmp-{name}"
    parts.mkdir(parents=True, exist_ok=True)
    rows = tf.data.Dataset.zip((examples(task), converter(examples(task), lengths)))
    vocabulary = None
    if mode != "score":
      vocabulary = task.output_features[output_vocab_feature_name].vocabulary
    bar = tqdm.tqdm(desc=task.name, unit=" examples", disable=jax.process_index() != 0)
    iterator = rows.as_numpy_iterator()
    for number in itertools.count():
      chunk = list(itertools.islice(iterator, size))
      if not chunk:
        break
      part = parts / f"{number:08d}.jsonl"
      if not part.is_file():
        columns = {name: np.stack([row[name] for _, row in chunk]) for name in chunk[0][1]}
        result = infer_fn(
          tf.data.Dataset.from_tensor_slices(columns).enumerate(),
          train_state=state,
          rng=jax.random.PRNGKey(number),
        )
        if jax.process_index() == 0:
          _write(part, _lines([example for example, _ in chunk], result, mode, vocabulary))
      bar.update(len(chunk))
    bar.close()
    # While another process looks which parts there are, none may go.
    distributed.meet()
    if merge_chunked_results and jax.process_index() == 0:
      chunks = sorted(parts.glob("*.jsonl"))
      _write(output, (line for file in chunks for line in _read_lines(file)))
      for file in chunks:
        file.unlink()
      parts.rmdir()
      print(f"Wrote {output}")


def _read_lines(path: pathlib.Path) -> Iterator[str]:
  with path.open(encoding="utf-8") as file:
    yield from file


def _write(path: pathlib.Path, lines: Iterable[str]) -> None:
  with atomic_files.atomic_text(path) as file:
    file.writelines(lines)


def _lines(rows: list[Any], result: Any, mode: str, vocabulary: Any) -> Iterator[str]:
  outputs, aux = result if isinstance(result, tuple) else (result, {})
  for position, (row, (_, output)) in enumerate(zip(rows, outputs, strict=True)):
    line: dict[str, Any] = {
      "inputs": {name: _json(value) for name, value in row.items()},
    }
    if mode == "score":
      line["score"] = _json(output)
    else:
      ids = np.asarray(output).tolist()
      line["prediction"] = vocabulary.decode(ids)
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
