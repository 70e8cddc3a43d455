"""Measures the host time and data waiting time of a training step; compares with upstream T5X.

  python benchmarks/step_overhead.py
  python benchmarks/step_overhead.py --upstream_path=T5X:AIRIO:JESTIMATOR

Each run has its own process, and the variants take turns:

* tiny: a dual encoder with almost no device work, trained from the same gin file by both runtimes.
  time_to_first_step_s is the time from process start to the end of the first step, with a SeqIO
  task as data. host_ms_per_step is the wall time per step over many steps on one repeated batch.
  The clock is a metric of the model: a runtime computes metrics on the host after the steps that
  they sum, and this metric records the time when it is computed.
* contrastive, ems: `t5x train` with gin/contrastive_small.gin and gin/ems_small.gin on the sample
  corpus, in memory or streamed. The time of a step consists of waiting for data (`data_wait_ms`),
  waiting for devices (`device_wait_ms`) and host time (`host_ms`). Warm-up steps are not counted.

Neither runtime is modified. Prints one JSON line per run and a last one: `ratio` is the smallest
share of a small step's time that is neither waiting for data nor host time. With upstream, `ratio`
is the smaller of both ratios of tiny (upstream over bundled, above 1 if the bundled runtime is
better), and `share_of_devices` is that share.
"""

import argparse
import functools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import clu.metrics
import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import measure
import numpy as np
from flax.linen import partitioning
from input_pipeline import write_sample

VOCABULARY, WIDTH, LENGTH, BATCH = 256, 8, 8, 8
STAMPS = "STEP_OVERHEAD_STAMPS"  # environment variable: file to record times in
TASK = "step_overhead_v1"
SECONDS_PER_RUN = 600
# Gin file and number of steps of each small run.
SMALL = {"contrastive": ("contrastive_small.gin", 100), "ems": ("ems_small.gin", 240)}
INPUTS = {"memory": 1 << 40, "stream": 0}  # bitext.files.memory_limit
_WARM_UP = 40  # steps, because each length of batches compiles
PACKAGES = ("jax", "flax", "tensorflow", "seqio", "clu")

GIN = """
from __gin__ import dynamic_registration
import __main__ as train_script
import step_overhead
from t5x import adafactor
from t5x import gin_utils
from t5x import partitioning
from t5x import trainer
from t5x import utils

train_script.train:
  model = @step_overhead.TinyDualEncoder()
  model_dir = '{model_dir}'
  train_dataset_cfg = @utils.DatasetConfig()
  train_eval_dataset_cfg = None
  infer_eval_dataset_cfg = None
  checkpoint_cfg = @utils.CheckpointConfig()
  partitioner = @partitioning.PjitPartitioner()
  trainer_cls = @trainer.Trainer
  total_steps = {total_steps}
  eval_steps = 1
  eval_period = 0
  stats_period = {stats_period}
  random_seed = 0
  summarize_config_fn = @gin_utils.summarize_gin_config
  get_dataset_fn = @{get_dataset_fn}

step_overhead.TinyDualEncoder.optimizer_def = @adafactor.Adafactor()
adafactor.Adafactor.logical_factor_rules = @adafactor.standard_logical_factor_rules()
partitioning.PjitPartitioner:
  num_partitions = 1
  logical_axis_rules = @partitioning.standard_logical_axis_rules()
trainer.Trainer:
  num_microbatches = None
  learning_rate_fn = @utils.create_learning_rate_scheduler()
utils.CheckpointConfig:
  restore = None
  save = None
utils.DatasetConfig:
  mixture_or_task_name = @step_overhead.register_task()
  task_feature_lengths = {{'inputs': {length}, 'targets': {length}}}
  split = 'train'
  batch_size = {batch}
  shuffle = False
  seed = 0
  use_cached = False
  pack = False
"""


# --------------------------------------------------------------------------------------------
# Configurables of the gin file: the model, its clock and its data


@flax.struct.dataclass
class Clock(clu.metrics.Average):
  """Counts steps and records the time when the host computes their number."""

  def compute(self) -> float:
    """Returns the number of steps after writing a line with the time."""
    steps = float(self.total)
    line = {"time": time.time(), "steps": steps, "device": measure.jax_device()}
    with open(os.environ[STAMPS], "a", encoding="utf-8") as file:
      file.write(json.dumps(line) + "\n")
    return steps


class MeanEmbedding(nn.Module):
  """The encoder: one table of token embeddings."""

  @nn.compact
  def __call__(self, tokens_BT):
    """Returns the mean of the token embeddings, [B, D]."""
    table_VD = partitioning.param_with_axes(
      "embedding",
      nn.initializers.normal(1.0),
      (VOCABULARY, WIDTH),
      jnp.float32,
      axes=("vocab", "embed"),
    )
    return jnp.mean(table_VD[tokens_BT], axis=1)


class TinyDualEncoder:
  """A dual encoder with in-batch negatives and T5X's model interface."""

  def __init__(self, optimizer_def: Any):
    self.optimizer_def = optimizer_def
    self.module = MeanEmbedding()

  @staticmethod
  def FEATURE_CONVERTER_CLS(**arguments: Any) -> Any:
    """Returns SeqIO's identity converter; the examples already have the right length."""
    import seqio

    return seqio.PassThroughFeatureConverter(**arguments)

  def get_initial_variables(self, rng, input_shapes, input_types=None):
    """Returns parameters and their axes."""
    del input_types
    return self.module.init(rng, jnp.zeros(input_shapes["inputs"], jnp.int32))

  def loss_fn(self, params, batch, dropout_rng):
    """Returns the contrastive loss and the metrics."""
    del dropout_rng
    inputs_BD = self.module.apply({"params": params}, batch["inputs"])
    targets_BD = self.module.apply({"params": params}, batch["targets"])
    score_BB = inputs_BD @ targets_BD.T
    loss = -jnp.mean(jnp.diagonal(jax.nn.log_softmax(score_BB)))
    return loss, {
      "loss": clu.metrics.Average.from_model_output(loss[None]),
      "clock": Clock.from_model_output(jnp.ones((1,))),
    }


def example_pairs(split: str, shuffle_files: bool, seed: int | None = None) -> Any:
  """Returns 64 pairs of random tokens as a tf.data dataset."""
  del split, shuffle_files, seed
  import tensorflow as tf

  tokens = np.random.default_rng(0).integers(1, VOCABULARY, (2, 64, LENGTH), np.int32)
  return tf.data.Dataset.from_tensor_slices({"inputs": tokens[0], "targets": tokens[1]})


def register_task() -> str:
  """Registers the task of `example_pairs` and returns its name."""
  import seqio

  if TASK not in seqio.TaskRegistry.names():
    feature = seqio.Feature(seqio.PassThroughVocabulary(VOCABULARY), add_eos=False)
    seqio.TaskRegistry.add(
      TASK,
      source=seqio.FunctionDataSource(example_pairs, splits=["train"]),
      preprocessors=[],
      output_features={"inputs": feature, "targets": feature},
    )
  return TASK


def one_batch_forever(cfg, shard_id, num_shards, feature_converter_cls) -> Any:
  """Returns one repeated batch, so that data costs almost nothing."""
  del shard_id, num_shards, feature_converter_cls
  return example_pairs(cfg.split, False).batch(cfg.batch_size).take(1).cache().repeat()


# --------------------------------------------------------------------------------------------
# The small runs


class Stopwatch:
  """Sums the seconds that the training thread spends in functions, by name."""

  def __init__(self) -> None:
    self.seconds: dict[str, float] = {}
    self.calls: dict[str, int] = {}

  def watch(self, owner: type, method: str, name: str) -> None:
    """Starts to time the calls of a method."""
    inner = getattr(owner, method)

    @functools.wraps(inner)
    def timed(*arguments: Any, **options: Any) -> Any:
      start = time.perf_counter()
      try:
        return inner(*arguments, **options)
      finally:
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
        self.calls[name] = self.calls.get(name, 0) + 1
        if name == "data" and self.calls[name] == _WARM_UP:
          self.begin()

    setattr(owner, method, timed)

  def begin(self) -> None:
    """Resets the sums."""
    self.seconds.clear()
    self.start, self.cpu_start = time.perf_counter(), time.process_time()


def measure_small(name: str, source: str, folder: str) -> dict[str, float]:
  """Trains in this process and returns milliseconds per step."""
  from vmsst.launch import main as launch
  from vmsst.launch.runtime import data, trainer
  from vmsst.tasks import sample

  watch = Stopwatch()
  watch.watch(data.TrainIterator, "__next__", "data")
  watch.watch(trainer.BaseTrainer, "_finish_step", "devices")
  found: dict[str, float] = {}
  finish = trainer.BaseTrainer.finish_steps

  def last(self: Any, bar: Any = None) -> None:
    """Runs after the last step."""
    finish(self, bar)
    if bar is not None and not found:
      count = watch.calls["data"] - _WARM_UP
      wall = time.perf_counter() - watch.start
      waits = {
        f"{name}_wait_ms": 1e3 * watch.seconds[f"{name}{s}"] / count
        for name, s in (("data", ""), ("device", "s"))
      }
      step_ms = 1e3 * wall / count
      found.update(
        step_ms=step_ms,
        **waits,
        host_ms=step_ms - sum(waits.values()),
        cpu_ms=1e3 * (time.process_time() - watch.cpu_start) / count,
      )

  trainer.BaseTrainer.finish_steps = last
  gin_file, steps = SMALL[name]
  path = sample.vocabulary_path()
  bindings = {
    "MODEL_DIR": f"{folder}/model",
    "DATA_ROOT": folder,
    "PATTERNS": ["*.tsv"],
    "TRAIN_STEPS": steps,
    "vocabularies.SentencePieceVocabulary.path": path,
    "VOCAB_SIZE": vocabulary_size(path),
    "__main__.train.infer_eval_dataset_cfg": None,
    "__main__.train.train_eval_dataset_cfg": None,
    "utils.CheckpointConfig.save": None,
    "bitext.files.memory_limit": INPUTS[source],
  }
  if name == "ems":
    bindings["VOCABULARY_PATH"] = path
  launch.main(
    [
      "train",
      f"--gin_file={gin_file}",
      *(f"--gin.{key}={value!r}" for key, value in bindings.items()),
    ]
  )
  return found


def vocabulary_size(path: str) -> int:
  from vmsst.text import vocabularies

  return vocabularies.SentencePieceVocabulary(path).size


def small_in_own_process(name: str, source: str) -> dict[str, float]:
  """Returns the results of `measure_small` in its own process."""
  with tempfile.TemporaryDirectory(prefix="step_overhead_") as folder:
    write_sample(pathlib.Path(folder))
    arguments = [f"--measure={name}", f"--source={source}", f"--folder={folder}"]
    return measure.in_own_process(__file__, arguments, f"{name}, {source}", measure.HUGE_PAGES)


def small_line(name: str, source: str, runs: Sequence[Mapping[str, float]]) -> dict[str, Any]:
  """Returns the line of a small run."""
  median = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
  return {
    "benchmark": "step_overhead",
    "variant": name,
    "data": source,
    **measure.machine(*PACKAGES),
    "steps": SMALL[name][1] - _WARM_UP,
    "repeats": len(runs),
    **{key: round(value, 3) for key, value in median.items()},
    "share_waiting_for_data": round(median["data_wait_ms"] / median["step_ms"], 4),
    "share_of_host": round(median["host_ms"] / median["step_ms"], 4),
  }


# --------------------------------------------------------------------------------------------
# The tiny runs


def run(variant: str, environment: Mapping[str, str], **settings: Any) -> tuple[float, list[dict]]:
  """Trains in its own process and returns its start time and the lines of the clock.

  Raises:
    SystemExit: the process failed; the message ends with its last output.
  """
  module = {"bundled": ["vmsst.launch.main", "train"], "upstream": ["t5x.train"]}[variant]
  with tempfile.TemporaryDirectory(prefix="step_overhead_") as name:
    folder = pathlib.Path(name)
    gin_file, stamps = folder / "tiny.gin", folder / "stamps.jsonl"
    gin_file.write_text(
      GIN.format(model_dir=folder / "model", length=LENGTH, batch=BATCH, **settings),
      encoding="utf-8",
    )
    start = time.time()
    done = subprocess.run(
      [sys.executable, "-m", *module, f"--gin_file={gin_file}"],
      env={**environment, STAMPS: str(stamps)},
      cwd=folder,
      capture_output=True,
      text=True,
      errors="replace",
      timeout=SECONDS_PER_RUN,
      check=False,
    )
    if done.returncode or not stamps.exists():
      raise SystemExit(
        f"the {variant} runtime failed (exit code {done.returncode}):\n{done.stderr[-3000:]}"
      )
    lines = [json.loads(line) for line in stamps.read_text(encoding="utf-8").splitlines()]
  return start, lines


def time_to_first_step(variant: str, environment: Mapping[str, str]) -> float:
  """Returns the seconds from process start to the end of the first step."""
  start, lines = run(
    variant, environment, total_steps=1, stats_period=1, get_dataset_fn="utils.get_dataset"
  )
  return lines[0]["time"] - start


def host_ms_per_step(variant: str, environment: Mapping[str, str], steps: int) -> tuple[float, str]:
  """Returns milliseconds per step without the first fifth of `steps`, and the device."""
  period = steps // 5
  _, lines = run(
    variant,
    environment,
    total_steps=5 * period,
    stats_period=period,
    get_dataset_fn="step_overhead.one_batch_forever",
  )
  first, last = lines[0], lines[-1]
  counted = sum(line["steps"] for line in lines[1:])
  if counted != 4 * period:
    raise SystemExit(f"the {variant} runtime reported {counted:.0f} steps instead of {4 * period}")
  return 1e3 * (last["time"] - first["time"]) / counted, last["device"]


def environments(upstream_path: str) -> dict[str, dict[str, str]]:
  """Returns the environment of each variant's processes; only upstream gets `upstream_path`."""
  here = str(pathlib.Path(__file__).resolve().parent)
  given = os.environ.get("PYTHONPATH", "")
  paths = {"upstream": [here, upstream_path, given], "bundled": [here, given]}
  return {
    variant: {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, parts))}
    for variant, parts in paths.items()
  }


def require_upstream(environment: Mapping[str, str]) -> None:
  """Exits with instructions if upstream T5X cannot be imported."""
  check = "import t5x.train, t5x.adafactor"
  done = subprocess.run(
    [sys.executable, "-c", check],
    env=environment,
    cwd=tempfile.gettempdir(),
    capture_output=True,
    text=True,
    check=False,
  )
  if done.returncode:
    reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
    raise SystemExit(
      f"upstream T5X cannot be imported ({reason}); clone google-research/t5x, google/airio and "
      "google-research/jestimator, install their dependencies, and pass their folders as "
      "--upstream_path=T5X:AIRIO:JESTIMATOR or in PYTHONPATH"
    )


def tiny_lines(options: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, float]]:
  """Returns a line per runtime, and with upstream the ratios of both numbers."""
  environment = environments(options.upstream_path)
  variants = ["bundled"]
  if options.upstream_path:
    require_upstream(environment["upstream"])
    variants.append("upstream")
  first_step: dict[str, list[float]] = {name: [] for name in variants}
  per_step: dict[str, list[float]] = {name: [] for name in variants}
  device = ""
  for _ in range(options.repeats):
    for variant in variants:
      first_step[variant].append(time_to_first_step(variant, environment[variant]))
    for variant in variants:
      milliseconds, device = host_ms_per_step(variant, environment[variant], options.steps)
      per_step[variant].append(milliseconds)
  lines = [
    {
      "benchmark": "step_overhead",
      "variant": "tiny",
      "runtime": variant,
      "device": device,
      **measure.machine(*PACKAGES),
      "batch": BATCH,
      "length": LENGTH,
      "parameters": VOCABULARY * WIDTH,
      "steps": options.steps,
      "repeats": options.repeats,
      "time_to_first_step_s": measure.summary(first_step[variant]),
      "host_ms_per_step": measure.summary(per_step[variant]),
    }
    for variant in variants
  ]
  if len(variants) == 1:
    return lines, {}
  return lines, {
    name: statistics.median(values["upstream"]) / statistics.median(values["bundled"])
    for name, values in (("time_to_first_step", first_step), ("host_ms_per_step", per_step))
  }


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--upstream_path", default="", help="folders T5X:AIRIO:JESTIMATOR")
  parser.add_argument("--steps", type=int, default=5000, help="steps per tiny run")
  parser.add_argument("--repeats", type=int, default=3, help="runs per kind and runtime")
  parser.add_argument("--measure", choices=SMALL, help=argparse.SUPPRESS)
  parser.add_argument("--source", choices=INPUTS, help=argparse.SUPPRESS)
  parser.add_argument("--folder", help=argparse.SUPPRESS)
  options = parser.parse_args()
  if options.measure:
    found = measure_small(options.measure, options.source, options.folder)
    print(json.dumps(found))
    return
  if options.steps < 5 or options.repeats < 1:
    parser.error("--steps must be at least 5 and --repeats at least 1")

  lines, ratios = tiny_lines(options)
  runs: dict[tuple[str, str], list[dict[str, float]]] = {
    (name, source): [] for name in SMALL for source in INPUTS
  }
  for _ in range(options.repeats):
    for key, own in runs.items():
      own.append(small_in_own_process(*key))
  small = [small_line(*key, own) for key, own in runs.items()]
  for line in (*lines, *small):
    print(json.dumps(line))
  share = min(1 - line["share_waiting_for_data"] - line["share_of_host"] for line in small)
  found = {"ratio": round(min(ratios.values(), default=share), 3)}
  found |= {f"ratio_{name}": round(value, 3) for name, value in ratios.items()}
  print(json.dumps({"benchmark": "step_overhead", **found, "share_of_devices": round(share, 3)}))


if __name__ == "__main__":
  main()
