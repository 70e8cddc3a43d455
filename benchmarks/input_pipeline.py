"""Compares the throughput of data inputs with that of small training steps.

  python benchmarks/input_pipeline.py                              # the sample corpus, 4,000 pieces
  python benchmarks/input_pipeline.py --vocabulary=spm.model --lowercase --patterns /data/*.tsv.gz

Inputs deliver training batches: the mixture of all language pairs, shuffled and grouped by length.

* memory: the files, tokenized once and kept in memory (`bitext.files`);
* stream: the same files, streamed and tokenized while reading (`memory_limit` 0);
* tfds: the same pairs as a dataset in the format of `vmsst data build` (`mixtures.opus`), or the
  dataset given by --data_dir and --config;
* cache: the token ids of that dataset, written in advance by SeqIO's `cache_tasks_main`;
* row_by_row: that dataset with a plain SeqIO task and mixture that process one row at a time, the
  baseline of the other four.

Steps are training steps of gin/contrastive_small.gin (contrastive) and gin/ems_small.gin (ems), on
batches prepared in advance, with huge pages as in `t5x train`.

Each measurement runs in its own process, and the variants take turns. Start-up, compilation and
warm-up steps are not counted.

Prints one JSON line per variant and a last one: `ratios` has the pairs per second of each input
over those of each step, `ratio` is the smallest of those of our inputs, `cpu_shares` has the CPU
seconds of the input over those of the steps that consume it, and `to_row_by_row` the CPU time per
pair of `row_by_row` over that of each input.
"""

import argparse
import itertools
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import measure
import numpy as np

BENCHMARK = "input_pipeline"
INPUTS, BASELINE = ("memory", "stream", "tfds", "cache"), "row_by_row"
# Gin files, batch size and maximum tokens per sentence of each step.
STEPS = {
  "contrastive": (("models/contrastive.gin", "sizes/small.gin"), 256, 32),
  "ems": (("models/ems.gin", "sizes/ems_small.gin", "runs/ems_optimizer.gin"), 64, 64),
}
PACKAGES = ("jax", "flax", "seqio", "tensorflow", "tensorflow-datasets", "tensorflow-text")
CODES = ("ar", "de", "es", "fr", "ru", "tr", "zh")  # sample languages, paired with English
_MEANINGS = 5000
_READY = 8  # batches for the timed steps
_MODULE = "input_pipeline_tasks"


# --------------------------------------------------------------------------------------------
# The data


def write_sample(folder: pathlib.Path, meanings: int = _MEANINGS) -> list[str]:
  """Writes files of the sample corpus, `meanings` pairs each, and returns their paths."""
  from vmsst.tasks import sample

  paths = []
  for code in CODES:
    path = folder / f"sample.{code}-en.tsv"
    with path.open("w", encoding="utf-8") as stream:
      for meaning in range(meanings):
        stream.write(f"{sample.sentence(meaning, code)}\t{sample.sentence(meaning, 'en')}\n")
    paths.append(str(path))
  return paths


def write_dataset(folder: pathlib.Path, patterns: list[str], file_format: str = "tfrecord") -> None:
  """Writes the pairs of files as the TFDS dataset `opus_bitext/benchmark`."""
  import tensorflow_datasets as tfds
  from tensorflow_datasets.core import naming

  from vmsst.bitext import readers
  from vmsst.tasks.opus import records, shards

  place = folder / "opus_bitext" / "benchmark" / "1.0.0"
  place.mkdir(parents=True)
  rows_of: dict[tuple[str, str], list[tuple[str, ...]]] = {}
  for bitext in readers.find_bitext(patterns):
    pair = records.ordered(bitext.source, bitext.target)
    turn = 1 if pair == (bitext.source, bitext.target) else -1
    codes = tuple(readers.compact_code(language) for language in pair)
    rows_of.setdefault(codes, []).extend(row[:2][::turn] for row in readers.read_pairs(bitext))
  infos = []
  for codes, rows in rows_of.items():
    name = f"train_{'_'.join(codes)}"
    make = shards.Examples(*codes).example
    records_of_pair = (make(b"Corpus", a.encode(), b.encode()) for a, b in rows)
    path = place / f"opus_bitext-{name}.{file_format}-00000-of-00001"
    count, size = shards.write(path, records_of_pair, file_format)
    infos.append(tfds.core.SplitInfo(name=name, shard_lengths=[count], num_bytes=size))
  tfds.folder_dataset.write_metadata(
    data_dir=place,
    features=tfds.features.FeaturesDict(dict.fromkeys(shards.FEATURES, tfds.features.Text())),
    split_infos=infos,
    filename_template=naming.ShardedFileTemplate(
      data_dir=place,
      template="{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
      dataset_name="opus_bitext",
      filetype_suffix=file_format,
    ),
    check_data=False,
  )


def write_cache(options: argparse.Namespace) -> dict[str, Any]:
  """Writes the cache in its own process and returns its line."""
  cache = pathlib.Path(options.work, "cache")
  cache.mkdir()
  (cache / f"{_MODULE}.py").write_text(
    "from vmsst.text import vocabularies\n"
    "from vmsst.tasks.opus import mixtures\n"
    f"vocabulary = vocabularies.SentencePieceVocabulary({options.vocabulary!r}, "
    f"lowercase={options.lowercase})\n"
    f"mixtures.opus({options.config!r}, vocabulary, {options.data_dir!r})\n",
    encoding="utf-8",
  )
  command = [
    *(sys.executable, "-m", "seqio.scripts.cache_tasks_main"),
    f"--module_import={_MODULE}",
    f"--tasks=opus_{options.config}_.*",
    f"--output_cache_dir={cache}",
    "--min_shards=4",
  ]
  places = [str(cache), *filter(None, [os.environ.get("PYTHONPATH")])]
  start, cpu_start = time.perf_counter(), cpu_of_children()
  done = subprocess.run(
    command,
    env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
    stderr=subprocess.PIPE,
    text=True,
    check=False,
  )
  if done.returncode:
    raise SystemExit(f"{done.stderr}\ncaching failed (exit code {done.returncode})")
  return {
    "benchmark": BENCHMARK,
    "variant": "caching",
    "seconds": round(time.perf_counter() - start, 1),
    "cpu_seconds": round(cpu_of_children() - cpu_start, 1),
    "dataset_mb": size_mb(pathlib.Path(options.data_dir, "opus_bitext", options.config)),
    "cache_mb": size_mb(cache),
  }


def cpu_of_children() -> float:
  used = resource.getrusage(resource.RUSAGE_CHILDREN)
  return used.ru_utime + used.ru_stime


def size_mb(folder: pathlib.Path) -> float:
  return round(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6, 1)


# --------------------------------------------------------------------------------------------
# The inputs


def make_vocabulary(options: argparse.Namespace) -> Any:
  from vmsst.text import vocabularies

  return vocabularies.SentencePieceVocabulary(options.vocabulary, lowercase=options.lowercase)


def row_by_row(options: argparse.Namespace) -> str:
  """Returns the name of a mixture of the dataset that SeqIO processes one row at a time."""
  import seqio
  import tensorflow as tf
  import tensorflow_datasets as tfds

  from vmsst.tasks import preprocessors, seqio_vocabulary

  encode = seqio_vocabulary.SeqioVocabulary(make_vocabulary(options)).encode_tf

  def tokenize(row):
    language = tf.constant([1], tf.int32)
    languages = {"input_language": language, "target_language": language}
    return {"inputs": encode(row["source"]), "targets": encode(row["target"]), **languages}

  def fits(row):
    sizes = tf.stack([tf.size(row[side]) for side in ("inputs", "targets")])
    return tf.reduce_all((sizes > 0) & (sizes <= options.length))

  folder = pathlib.Path(options.data_dir, "opus_bitext", options.config)
  versioned = f"opus_bitext/{options.config}:{max(path.name for path in folder.iterdir())}"
  parts = []
  for split, info in tfds.builder(versioned, data_dir=options.data_dir).info.splits.items():
    if split.startswith("train_"):
      seqio.TaskRegistry.add(
        f"plain_{split}",
        source=seqio.TfdsDataSource(versioned, options.data_dir, {"train": split}),
        preprocessors=[
          lambda rows: rows.map(tokenize, num_parallel_calls=tf.data.AUTOTUNE),
          lambda rows: rows.filter(fits),
          seqio.preprocessors.append_eos_after_trim,
        ],
        output_features=preprocessors.pair_features(make_vocabulary(options)),
      )
      parts.append((f"plain_{split}", info.num_examples))
  seqio.MixtureRegistry.add("plain", parts)
  return "plain"


def batches(name: str, options: argparse.Namespace) -> Iterator[dict[str, np.ndarray]]:
  """Yields training batches forever."""
  import seqio

  from vmsst.tasks import bitext, datasets, feature_converter
  from vmsst.tasks.opus import mixtures

  lengths = {"max_length": options.length}
  if name == BASELINE:
    mixture = row_by_row(options)
  elif name in ("tfds", "cache"):
    seqio.add_global_cache_dirs([os.path.join(options.work, "cache")])
    mixture = mixtures.opus(options.config, make_vocabulary(options), options.data_dir, **lengths)
  else:
    limit = {"memory": 1 << 40, "stream": 0}[name]
    vocabulary = make_vocabulary(options)
    mixture = bitext.files(options.patterns, vocabulary, memory_limit=limit, **lengths)
  config = training_data(mixture, options, use_cached=name == "cache")
  converter = feature_converter.BitextFeatureConverter
  found = datasets.get_global_batches(config, 0, 1, converter, group_by_length=True)
  return found.as_numpy_iterator()


def training_data(mixture: str, options: argparse.Namespace, *, use_cached: bool = False) -> Any:
  """Returns the DatasetConfig of a mixture's training split, in random order."""
  from vmsst.launch.runtime import data

  return data.DatasetConfig(
    mixture_or_task_name=mixture,
    task_feature_lengths={
      "inputs": options.length,
      "targets": options.length,
      "input_language": 1,
      "target_language": 1,
    },
    split="train",
    batch_size=options.batch,
    shuffle=True,
    seed=0,
    use_cached=use_cached,
  )


def measure_input(name: str, options: argparse.Namespace) -> dict[str, Any]:
  found = batches(name, options)
  before = list(itertools.islice(found, options.warm_up))
  return timed(lambda: next(found), options.batches, options.batch, tokens_of_pair(before))


def tokens_of_pair(batches: list[dict[str, np.ndarray]]) -> float:
  """Returns the mean number of tokens of both sides, without padding."""
  counts = [np.count_nonzero(batch[side]) for batch in batches for side in ("inputs", "targets")]
  return sum(counts) / sum(len(batch["inputs"]) for batch in batches)


def timed(run: Callable[[], Any], count: int, pairs: int, tokens: float) -> dict[str, Any]:
  """Returns the throughput of `run`, which processes `pairs` pairs of `tokens` tokens per call."""
  times = measure.timed(run, count, warm_up=0)
  seconds, cpu_seconds = (sum(times[name]) for name in ("seconds", "cpu_seconds"))
  return {
    "pairs_per_second": [count * pairs / seconds],
    "pairs_per_cpu_second": [count * pairs / cpu_seconds],
    "tokens_per_second": [count * pairs * tokens / seconds],
  }


# --------------------------------------------------------------------------------------------
# The steps

GIN = """
from __gin__ import dynamic_registration
from t5x import adafactor
from t5x import utils
from vmsst.text import vocabularies
OPTIMIZER = @adafactor.Adafactor()
adafactor.Adafactor.logical_factor_rules = @adafactor.standard_logical_factor_rules()
{includes}
VOCAB_SIZE = {size}
VOCABULARY = @vocabularies.SentencePieceVocabulary()
vocabularies.SentencePieceVocabulary.path = {path!r}
utils.create_learning_rate_scheduler.base_learning_rate = 1e-3
utils.create_learning_rate_scheduler.factors = 'constant'
"""


def make_model(name: str, options: argparse.Namespace) -> Any:
  import gin

  import vmsst
  from vmsst.launch import aliases

  aliases.install()
  gin.add_config_file_search_path(str(vmsst.gin_dir()))
  files, _, _ = STEPS[name]
  size = make_vocabulary(options).size
  includes = "\n".join(f"include '{file}'" for file in files)
  gin.parse_config(GIN.format(includes=includes, size=size, path=options.vocabulary))
  return gin.query_parameter("%MODEL").scoped_configurable_fn()


def measure_step(name: str, options: argparse.Namespace) -> dict[str, Any]:
  import jax

  _, options.batch, options.length = STEPS[name]
  ready = list(itertools.islice(batches("memory", options), _READY))
  ready = [trimmed(batch) for batch in ready]
  model = make_model(name, options)
  rng = jax.random.key(1)

  def step(optimizer, batch):
    gradients, metrics = jax.grad(model.loss_fn, has_aux=True)(optimizer.target, batch, rng)
    return optimizer.apply_gradient(gradients, learning_rate=1e-3), metrics

  def create(rng):
    shapes = {name: value.shape for name, value in ready[0].items()}
    return model.optimizer_def.create(model.get_initial_variables(rng, shapes)["params"])

  optimizer = jax.jit(create)(jax.random.key(0))
  compiled = jax.jit(step, donate_argnums=0)
  turns = itertools.cycle(ready)

  def run() -> None:
    nonlocal optimizer
    optimizer, metrics = compiled(optimizer, next(turns))
    jax.block_until_ready((optimizer, metrics))

  for _ in ready:
    run()
  return timed(run, options.steps, options.batch, tokens_of_pair(ready))


def trimmed(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Returns a batch without columns of only padding, as in training."""
  from vmsst.launch.runtime import data

  return data.trim_padding(batch)


# --------------------------------------------------------------------------------------------
# All of them


def report(variant: str, runs: list[dict], options: argparse.Namespace) -> dict[str, Any]:
  """Returns the line of a variant."""
  rates = {key: measure.summary(measure.all_of(runs, key)) for key in runs[0]}
  _, batch, length = STEPS.get(variant, ((), options.batch, options.length))
  return {
    "benchmark": BENCHMARK,
    "variant": variant,
    **measure.machine(*PACKAGES),
    "batch": batch,
    "length": length,
    "runs": len(runs),
    **{key: {name: round(value) for name, value in rate.items()} for key, rate in rates.items()},
  }


def in_own_process(what: str, options: argparse.Namespace) -> dict[str, Any]:
  """Returns the output of --measure."""
  arguments = [f"--measure={what}", f"--given={json.dumps(vars(options))}"]
  pages = measure.HUGE_PAGES if what in STEPS else None
  return measure.in_own_process(__file__, arguments, what, pages)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--patterns", nargs="+", help="bitext files (default: the sample corpus)")
  parser.add_argument("--vocabulary", help="SentencePiece model (default: that of the sample)")
  parser.add_argument("--lowercase", action="store_true", help="lowercase the text")
  parser.add_argument("--data_dir", help="output folder of vmsst data build")
  parser.add_argument("--config", default="benchmark", help="recipe name, with --data_dir")
  parser.add_argument("--batch", type=int, default=256, help="pairs per batch of the inputs")
  parser.add_argument("--length", type=int, default=32, help="tokens per sentence of the inputs")
  parser.add_argument("--batches", type=int, default=200, help="timed batches per process")
  parser.add_argument("--warm_up", type=int, default=48, help="batches before the timed ones")
  parser.add_argument("--steps", type=int, default=16, help="timed steps per process")
  parser.add_argument("--rounds", type=int, default=2, help="processes per variant")
  names = [*INPUTS, BASELINE]
  parser.add_argument("--inputs", nargs="+", default=names, choices=names)
  parser.add_argument("--measure", choices=(*names, *STEPS), help=argparse.SUPPRESS)
  parser.add_argument("--given", help=argparse.SUPPRESS)
  options = parser.parse_args()
  if options.measure:
    given = argparse.Namespace(**json.loads(options.given))
    measured = measure_step if options.measure in STEPS else measure_input
    print(json.dumps(measured(options.measure, given)))
    return

  with tempfile.TemporaryDirectory(prefix="input_pipeline_") as options.work:
    work = pathlib.Path(options.work)
    if not options.vocabulary:
      from vmsst.tasks import sample

      options.vocabulary = sample.vocabulary_path()
    options.patterns = options.patterns or write_sample(work)
    if not options.data_dir:
      options.data_dir, options.config = str(work), "benchmark"
      write_dataset(work, options.patterns)
    if "cache" in options.inputs:
      print(json.dumps(write_cache(options)), flush=True)
    variants = (*options.inputs, *STEPS)
    runs = measure.in_turns(variants, options.rounds, lambda x: in_own_process(x, options))
  lines = {variant: report(variant, own, options) for variant, own in runs.items()}
  for line in lines.values():
    print(json.dumps(line))

  def rate(variant: str, kind: str = "pairs_per_second") -> float:
    return lines[variant][kind]["median"]

  cpu = "pairs_per_cpu_second"
  ours = [name for name in options.inputs if name != BASELINE]
  found = {
    "benchmark": BENCHMARK,
    "ratio": round(min(rate(x) / rate(step) for x in ours for step in STEPS), 2),
    "ratios": {step: {x: round(rate(x) / rate(step), 2) for x in options.inputs} for step in STEPS},
    "cpu_shares": {
      step: {x: round(rate(step, cpu) / rate(x, cpu), 4) for x in options.inputs} for step in STEPS
    },
  }
  if BASELINE in lines:
    found["to_row_by_row"] = {x: round(rate(x, cpu) / rate(BASELINE, cpu), 2) for x in ours}
  print(json.dumps(found))


if __name__ == "__main__":
  main()
