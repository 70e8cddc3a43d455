"""What a dataset that `vmsst data build` made delivers to training, against what a step takes.

  python benchmarks/opus_input.py --data_dir=/data/tfds --config=vmsst --vocabulary=/data/spm.model

Delivered are the batches of training: the mixture of all language pairs, shuffled, grouped by
length. Variants:

* text: every text is tokenised when it is read;
* cache: token ids are read that SeqIO's `cache_tasks_main` has written beforehand, to a temporary
  folder; a line `caching` says how long that took, and the bytes of both;
* contrastive, vmsst: a training step of that model at the size of gin/sizes/small.gin, with
  batches of the same kind that are ready beforehand.

Each measurement is a process of its own, and the variants take turns; what comes before the first
batches, compilation and first steps do not count. Tokens are those of both sides, without padding.

Prints a JSON line a variant, and a last one for each model: `ratio` is the pairs a second that
`text` delivers over those that a step takes, `cache_ratio` the same of `cache`: above 1 training
does not wait. `cpu_share` and `cache_cpu_share` are the input's CPU seconds over those of the steps
that use it up: what it takes away from them where both have the same cores.
"""

import argparse
import importlib.metadata
import itertools
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from vocab_projection import all_of, summary

BENCHMARK = "opus_input"
INPUTS, MODELS = ("text", "cache"), ("contrastive", "vmsst")
RATES = ("pairs", "tokens")
PACKAGES = ("jax", "flax", "seqio", "tensorflow", "tensorflow-datasets")
_READY = 8  # Batches that steps are measured with.
_MODULE = "opus_input_tasks"


# --------------------------------------------------------------------------------------------
# One measurement


def make_vocabulary(options: argparse.Namespace) -> Any:
  from vmsst import vocabularies

  return vocabularies.SentencePieceVocabulary(options.vocabulary, lowercase=options.lowercase)


def batches(options: argparse.Namespace, use_cached: bool) -> Iterator[dict[str, np.ndarray]]:
  """The batches of training, without end."""
  import seqio

  from vmsst.tasks import datasets, feature_converter
  from vmsst.tasks.opus import mixtures

  seqio.add_global_cache_dirs([options.cache] if use_cached else [])
  mixture = mixtures.opus(
    options.config, make_vocabulary(options), options.data_dir, max_length=options.length
  )
  config = types.SimpleNamespace(
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
    pack=False,
    use_custom_packing_ops=False,
    trim_output_features=True,
    module=None,
  )
  converter = feature_converter.BitextFeatureConverter
  return datasets.get_length_grouped_dataset(config, 0, 1, converter).as_numpy_iterator()


def tokens_of(batch: dict[str, np.ndarray]) -> int:
  return sum(int(np.count_nonzero(batch[side])) for side in ("inputs", "targets"))


def timed(run: Callable[[], int], options: argparse.Namespace, count: int) -> dict[str, Any]:
  """Pairs and tokens a second, of the clock and of CPU; `run` returns the tokens of a batch."""
  start, cpu_start = time.perf_counter(), time.process_time()
  tokens = sum(run() for _ in range(count))
  seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
  amounts = {"pairs": count * options.batch, "tokens": tokens}
  return {
    **{f"{name}_per_second": [amounts[name] / seconds] for name in RATES},
    **{f"{name}_per_cpu_second": [amounts[name] / cpu_seconds] for name in RATES},
  }


def measure_input(variant: str, options: argparse.Namespace) -> dict[str, Any]:
  found = batches(options, use_cached=variant == "cache")
  for _ in range(options.warm_up):
    next(found)
  return timed(lambda: tokens_of(next(found)), options, options.batches)


def make_model(variant: str, options: argparse.Namespace) -> Any:
  from vmsst.launch.runtime import adafactor
  from vmsst.models import contrastive, vmsst
  from vmsst.networks import sentence_encoder, t5
  from vmsst.networks import vmsst as networks

  vocabulary = make_vocabulary(options)
  config = t5.T5Config(
    vocab_size=vocabulary.size,
    emb_dim=512,
    num_heads=4,
    head_dim=32,
    mlp_dim=256,
    num_encoder_layers=1,
  )
  optimizer = adafactor.Adafactor(learning_rate=1e-3)
  if variant == "vmsst":
    network = networks.VmsstNetwork(config, latent_dim=512)
    return vmsst.VmsstModel(
      network=network,
      input_vocabulary=vocabulary,
      optimizer_def=optimizer,
      max_length=options.length,
    )
  network = sentence_encoder.SentenceEncoder(config, latent_dim=512)
  return contrastive.ContrastiveModel(
    network=network, input_vocabulary=vocabulary, optimizer_def=optimizer, max_length=options.length
  )


def measure_step(variant: str, options: argparse.Namespace) -> dict[str, Any]:
  import jax

  ready = list(itertools.islice(batches(options, use_cached=False), _READY))
  model = make_model(variant, options)
  rng = jax.random.key(1)

  def step(optimizer, batch):
    gradients, metrics = jax.grad(model.loss_fn, has_aux=True)(optimizer.target, batch, rng)
    return optimizer.apply_gradient(gradients, learning_rate=1e-3), metrics

  def create(rng):
    variables = model.get_initial_variables(rng, {"inputs": (1, 2)})
    return model.optimizer_def.create(variables["params"])

  optimizer = jax.jit(create)(jax.random.key(0))
  compiled = jax.jit(step, donate_argnums=0)
  turns = itertools.cycle(ready)

  def run() -> int:
    nonlocal optimizer
    batch = next(turns)
    optimizer, metrics = compiled(optimizer, batch)
    jax.block_until_ready((optimizer, metrics))
    return tokens_of(batch)

  run()
  return timed(run, options, options.steps)


# --------------------------------------------------------------------------------------------
# The cache


def make_cache(options: argparse.Namespace) -> dict[str, Any]:
  """Writes the cache, in a process of its own; the line on it."""
  module = pathlib.Path(options.cache, f"{_MODULE}.py")
  module.write_text(
    "from vmsst import vocabularies\n"
    "from vmsst.tasks.opus import mixtures\n"
    f"vocabulary = vocabularies.SentencePieceVocabulary({options.vocabulary!r}, "
    f"lowercase={options.lowercase})\n"
    f"mixtures.opus({options.config!r}, vocabulary, {options.data_dir!r}, "
    f"max_length={options.length})\n",
    encoding="utf-8",
  )
  command = [
    *(sys.executable, "-m", "seqio.scripts.cache_tasks_main"),
    f"--module_import={_MODULE}",
    f"--tasks=opus_{options.config}_.*",
    f"--output_cache_dir={options.cache}",
    "--min_shards=4",
  ]
  places = [options.cache, *filter(None, [os.environ.get("PYTHONPATH")])]
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
  seconds = time.perf_counter() - start
  dataset = pathlib.Path(options.data_dir, "opus_bitext", options.config)
  return {
    "benchmark": BENCHMARK,
    "variant": "caching",
    "seconds": round(seconds, 1),
    "cpu_seconds": round(cpu_of_children() - cpu_start, 1),
    "dataset_mb": size_mb(dataset),
    "cache_mb": size_mb(pathlib.Path(options.cache)),
  }


def cpu_of_children() -> float:
  used = resource.getrusage(resource.RUSAGE_CHILDREN)
  return used.ru_utime + used.ru_stime


def size_mb(folder: pathlib.Path) -> float:
  return round(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6, 1)


# --------------------------------------------------------------------------------------------
# All of them


def report(variant: str, runs: list[dict], options: argparse.Namespace) -> dict[str, Any]:
  """The line of one variant."""
  rates = {key: summary(all_of(runs, key)) for key in runs[0]}
  return {
    "benchmark": BENCHMARK,
    "variant": variant,
    "cpus": os.cpu_count(),
    "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
    "batch": options.batch,
    "length": options.length,
    "runs": len(runs),
    **{key: {name: round(value) for name, value in rate.items()} for key, rate in rates.items()},
  }


def in_own_process(what: str, cache: str) -> dict[str, Any]:
  command = [sys.executable, __file__, *sys.argv[1:], f"--measure={what}", f"--cache={cache}"]
  done = subprocess.run(command, capture_output=True, text=True, check=False)
  if done.returncode:
    raise SystemExit(f"{done.stderr}\n{what} failed (exit code {done.returncode})")
  return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--data_dir", required=True, help="the output folder of vmsst data build")
  parser.add_argument("--config", required=True, help="name of the recipe")
  parser.add_argument("--vocabulary", required=True, help="a SentencePiece model")
  parser.add_argument("--lowercase", action="store_true", help="for a vocabulary of small letters")
  parser.add_argument("--batch", type=int, default=256, help="pairs")
  parser.add_argument("--length", type=int, default=32, help="tokens of a sentence at most")
  parser.add_argument("--batches", type=int, default=400, help="timed batches of a process")
  parser.add_argument("--warm_up", type=int, default=48, help="batches before those")
  parser.add_argument("--steps", type=int, default=8, help="timed steps of a process")
  parser.add_argument("--rounds", type=int, default=2, help="processes of each variant")
  parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
  parser.add_argument("--measure", choices=(*INPUTS, *MODELS), help=argparse.SUPPRESS)
  parser.add_argument("--cache", help=argparse.SUPPRESS)
  options = parser.parse_args()
  if options.measure:
    measure = measure_input if options.measure in INPUTS else measure_step
    print(json.dumps(measure(options.measure, options)))
    return

  runs: dict[str, list[dict]] = {variant: [] for variant in (*INPUTS, *options.models)}
  with tempfile.TemporaryDirectory() as options.cache:
    print(json.dumps(make_cache(options)), flush=True)
    for _ in range(options.rounds):
      for variant, own in runs.items():
        own.append(in_own_process(variant, options.cache))
  lines = {variant: report(variant, own, options) for variant, own in runs.items()}
  for line in lines.values():
    print(json.dumps(line))
  for model in options.models:
    found = {"benchmark": BENCHMARK, "model": model}
    for variant, prefix in zip(INPUTS, ("", "cache_"), strict=True):
      rate, cpu_rate = (
        lines[variant][key]["median"] / lines[model][key]["median"]
        for key in ("pairs_per_second", "pairs_per_cpu_second")
      )
      found |= {f"{prefix}ratio": round(rate, 2), f"{prefix}cpu_share": round(1 / cpu_rate, 4)}
    print(json.dumps(found))


if __name__ == "__main__":
  main()
