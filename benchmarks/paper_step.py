"""Measures complete training steps at the sizes of the papers: throughput, MFU and memory.

  python benchmarks/paper_step.py --model vmsst_24l contrastive_24l --pairs=256
  python benchmarks/paper_step.py --size=tiny --peak_tflops=0.1

A step computes the loss, gradients, optimizer update and metrics. It uses the functions of the
bundled runtime (`vmsst.train.trainer`), jitted with donated state. Parameters are float32; --dtype
is the data type of the computations. Batches contain random tokens, in sentences of full length,
and are on the device before the first step. Models, sizes, dropout and optimizers are the same as
in the gin files, with Adafactor for VMSST, BITRANSLATION and CONTRASTIVE, and Adam for EMS. Each
model runs in its own process.

With --microbatches, gradients are accumulated as in the trainer, and the in-batch negatives of
CONTRASTIVE and EMS come only from the same microbatch.

Model FLOPs count the matmuls of one step, 2 M N K each, forward and backward (3 times the forward
pass). Recomputation, elementwise operations and the optimizer do not count. The multiplications per
sentence of T tokens are listed below, with D = width, H = heads * head size, M = feed-forward
width, Z = width of the decoder's sentence vector (D; in VMSST 2 D), V = vocabulary, L = layers:

* T5 encoder: L T (4 D H + 3 D M + 2 T H);
* decoder: L (T (4 D H + 3 D M + 2 T H + D D) + Z D);
* vocabulary projection: V (T D + Z); the sentence vector is multiplied once per sentence;
* BERT encoder: L T (4 D D + 2 D M + 2 T D);
* heads and the scores of all pairs: see `forward_multiplications`.

A pair counts as 2 sentences in each encoder, and as 2 (BITRANSLATION) or 4 (VMSST) in the decoder.
MFU is the model FLOPs per second divided by the device's bfloat16 peak (--peak_tflops).

Prints one JSON line per model. In the last line, `ratio` is the smallest MFU divided by the target
of 0.5.
"""

import argparse
import contextlib
import dataclasses
import functools
import importlib.metadata
import json
import statistics
import subprocess
import sys
import time
import types
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import measure
import optax

from ems_jax.models import ems as ems_model
from ems_jax.networks import ems as ems_network
from vmsst.arrays import devices
from vmsst.data import vocabularies
from vmsst.losses import vocabulary
from vmsst.models import bitranslation, contrastive
from vmsst.models import vmsst as vmsst_model
from vmsst.networks import sentence_encoder, t5, transformer
from vmsst.networks import vmsst as vmsst_network
from vmsst.train import adafactor, optimizers, train_state, trainer

MODELS = (
  "vmsst_24l",
  "vmsst_6l",
  "bitranslation_24l",
  "bitranslation_6l",
  "contrastive_24l",
  "contrastive_6l",
  "ems",
)
TARGET_MFU = 0.5
FIRST_STEPS = 2  # not timed
CONTRASTIVE_DROPOUT = EMS_DROPOUT = 0.1
LANGUAGES = {"input_language": 1, "target_language": 2}


# --------------------------------------------------------------------------------------------
# Sizes, models and optimizers, as set in gin/sizes, gin/models and gin/runs


@dataclasses.dataclass(frozen=True)
class Size:
  """The size of a model and of its batches."""

  layers: int
  width: int
  heads: int
  mlp: int
  vocabulary: int
  length: int
  pairs: int
  remat: str = "none"


_6L = Size(layers=6, width=1024, heads=16, mlp=2816, vocabulary=250112, length=32, pairs=256)
SIZES = {
  "6l": _6L,
  "24l": dataclasses.replace(_6L, layers=24, remat="minimal"),
  "ems": Size(layers=6, width=1024, heads=16, mlp=4096, vocabulary=60000, length=120, pairs=152),
  "tiny": Size(layers=2, width=64, heads=4, mlp=128, vocabulary=512, length=8, pairs=8),
}


def size_of(name: str, options: argparse.Namespace) -> Size:
  """Returns the size of a model, with overrides from the command line."""
  size = SIZES["tiny" if options.size == "tiny" else name.rpartition("_")[2]]
  replacements = {key: getattr(options, key) for key in ("pairs", "remat")}
  return dataclasses.replace(size, **{key: value for key, value in replacements.items() if value})


def make_model(name: str, size: Size, *, dtype: str, scan_layers: bool) -> Any:
  """Returns a model configured as in its gin file."""
  numerics = {"dtype": dtype, "remat": size.remat, "scan_layers": scan_layers}
  common = {"vocab_size": size.vocabulary, "emb_dim": size.width, "num_heads": size.heads}
  kind = name.partition("_")[0]
  if kind == "ems":
    bert_config = transformer.TransformerConfig(
      **common,
      **numerics,
      mlp_dim=size.mlp,
      num_layers=size.layers,
      max_positions=size.length,
      dropout_rate=EMS_DROPOUT,
    )
    return ems_model.EmsModel(
      network=ems_network.EmsNetwork(bert_config),
      vocabulary=vocabularies.ByteVocabulary(),  # only its EOS id is used
      max_length=size.length,
    )
  config = t5.T5Config(
    **common,
    **numerics,
    head_dim=size.width // size.heads,
    mlp_dim=size.mlp,
    num_encoder_layers=size.layers,
    dropout_rate=CONTRASTIVE_DROPOUT if kind == "contrastive" else 0.0,
  )
  model_cls, network_cls = {
    "vmsst": (vmsst_model.VmsstModel, vmsst_network.VmsstNetwork),
    "bitranslation": (bitranslation.BitranslationModel, vmsst_network.BitranslationNetwork),
    "contrastive": (contrastive.ContrastiveModel, sentence_encoder.SentenceEncoder),
  }[kind]
  return model_cls(
    network=network_cls(config, latent_dim=size.width),
    vocabulary=vocabularies.ByteVocabulary(),  # not used
    max_length=size.length,
  )


def make_optimizer(model: Any) -> tuple[Any, optimizers.Schedule]:
  """Returns the optimizer and the learning-rate schedule from a model's gin file."""
  if isinstance(model, ems_model.EmsModel):
    rates = optimizers.create_learning_rate_scheduler("constant * linear_warmup", 3e-4, 10000)
    return optimizers.chain([optax.add_decayed_weights(1e-5), optax.adam(rates)]), rates
  rules = adafactor.standard_logical_factor_rules()
  rates = optimizers.create_learning_rate_scheduler(
    "constant * linear_warmup * rsqrt_decay", 0.0632455532, 4000
  )
  return adafactor.Adafactor(logical_factor_rules=rules), rates


def make_batch(size: Size) -> dict[str, jax.Array]:
  """Returns random pairs of sentences of full length."""
  keys = jax.random.split(jax.random.key(1), 2)
  batch = {
    name: jax.random.randint(key, (size.pairs, size.length), 5, size.vocabulary)
    for name, key in zip(("inputs", "targets"), keys, strict=True)
  }
  return batch | {name: jnp.full((size.pairs, 1), row) for name, row in LANGUAGES.items()}


def make_step(model: Any, rates: optimizers.Schedule, microbatches: int) -> Callable[..., Any]:
  """Returns a function that maps (state, batch, rng) to the next state and the loss."""

  def step(state, batch, rng):
    loss_fn = model.loss_fn
    if isinstance(model, vmsst_model.VmsstModel):
      loss_fn = functools.partial(loss_fn, step=state.step)
    grads, metrics, _ = trainer.accumulate_grads_microbatched(
      types.SimpleNamespace(loss_fn=loss_fn),
      state,
      batch,
      jax.random.fold_in(rng, state.step),
      microbatches,
    )
    with jax.named_scope("optimizer"):
      state = state.apply_gradient(grads, rates(state.step))
    return state, metrics["loss"].compute()

  return step


def projection_chunk(chunk: int | None) -> contextlib.AbstractContextManager[Any]:
  """Sets the chunk size of the vocabulary projection (default: the device's default)."""
  if chunk is None:
    return contextlib.nullcontext()
  return mock.patch.object(vocabulary, "default_chunk", return_value=chunk)


# --------------------------------------------------------------------------------------------
# FLOPs


def encoder_multiplications(config: Any, length: int) -> int:
  """Returns the number of multiplications per sentence in an encoder's matmuls."""
  width, mlp = config.emb_dim, config.mlp_dim
  if isinstance(config, transformer.TransformerConfig):
    layer = 4 * width**2 + 2 * width * mlp + 2 * length * width
    return config.num_layers * length * layer
  joined = config.num_heads * config.head_dim
  layer = 4 * width * joined + 3 * width * mlp + 2 * length * joined
  return config.num_encoder_layers * length * layer


def forward_multiplications(
  network: Any, pairs: int, length: int, microbatches: int = 1
) -> dict[str, int]:
  """Returns the number of multiplications in a step's forward matmuls, by component."""
  config, sentences = network.config, 2 * pairs
  width, encoder = config.emb_dim, encoder_multiplications(config, length)
  scored = pairs * (pairs // microbatches)  # number of sentence pairs with a score
  if isinstance(network, ems_network.EmsNetwork):
    features = width + network.language_dim
    return {
      "encoder": sentences * encoder,
      "projection": sentences * features * (features + config.vocab_size),
      "heads": sentences * width * (width + network.projection_dim)
      + scored * network.projection_dim,
    }
  latent = network.latent_dim
  if isinstance(network, sentence_encoder.SentenceEncoder):
    return {
      "encoder": sentences * encoder,
      "heads": sentences * width * latent + scored * latent,
    }
  is_vmsst = isinstance(network, vmsst_network.VmsstNetwork)
  encoders, heads, decoded = (2, 4, 2 * sentences) if is_vmsst else (1, 1, sentences)
  layers, sentence_width = config.num_encoder_layers, network.sentence_dim
  return {
    "encoder": encoders * sentences * encoder,
    "heads": heads * sentences * width * latent,
    "decoder": decoded * (encoder + layers * (length * width + sentence_width) * width),
    "projection": decoded * config.vocab_size * (length * width + sentence_width),
  }


def model_flops(network: Any, pairs: int, length: int, microbatches: int = 1) -> float:
  """Returns the FLOPs of a step's matmuls, with gradients and without recomputation."""
  counts = forward_multiplications(network, pairs, length, microbatches)
  return 3.0 * 2.0 * sum(counts.values())


def peak_tflops(device: jax.Device, override: float | None) -> float | None:
  """Returns a device's peak in TFLOP/s (the override or the published peak), or None if unknown."""
  published = devices.of_kind(device.device_kind)
  return override or (published.flops / 1e12 if published else None)


# --------------------------------------------------------------------------------------------
# One measurement


def measure_model(name: str, options: argparse.Namespace) -> dict[str, Any]:
  """Returns the result of a model for one JSON line."""
  jax.config.update("jax_default_prng_impl", "unsafe_rbg")  # as in the runtime
  size = size_of(name, options)
  model = make_model(name, size, dtype=options.dtype, scan_layers=options.scan_layers)
  optimizer_def, rates = make_optimizer(model)

  def start(rng):
    variables = model.get_initial_variables(rng, {"inputs": (1, size.length)})
    return train_state.TrainState.create(optimizer_def, variables)

  state = jax.block_until_ready(jax.jit(start)(jax.random.key(0)))
  batch, rng = make_batch(size), jax.random.key(2)
  begin = time.perf_counter()
  with projection_chunk(options.chunk):
    step = make_step(model, rates, options.microbatches)
    lowered = jax.jit(step, donate_argnums=0).lower(state, batch, rng)
  traced = time.perf_counter()
  compiled = lowered.compile()
  compile_seconds = time.perf_counter() - traced
  measure.reset_peak()
  losses = []

  def run() -> None:
    nonlocal state
    state, loss = compiled(state, batch, rng)
    losses.append(float(loss))

  seconds = []
  for _ in range(FIRST_STEPS + options.steps):
    before = time.perf_counter()
    run()
    seconds.append(time.perf_counter() - before)
  median = statistics.median(seconds[FIRST_STEPS:])
  device = jax.devices()[0]
  step_flops = model_flops(model.network, size.pairs, size.length, options.microbatches)
  peak = peak_tflops(device, options.peak_tflops)
  tflops = step_flops / median / 1e12
  analysis = compiled.memory_analysis()
  return {
    "benchmark": "paper_step",
    "model": name,
    "device": f"{device.platform} {device.device_kind}",
    "versions": {
      package: importlib.metadata.version(package) for package in ("jax", "jaxlib", "flax")
    },
    "size": options.size,
    **dataclasses.asdict(size),
    **{key: getattr(options, key) for key in ("microbatches", "scan_layers", "chunk", "dtype")},
    "optimizer": type(optimizer_def).__name__,
    "parameters": sum(leaf.size for leaf in jax.tree.leaves(state.params)),
    "steps": options.steps,
    "trace_seconds": round(traced - begin, 1),
    "compile_seconds": round(compile_seconds, 1),
    "seconds": measure.summary(seconds[FIRST_STEPS:]),
    "pairs_per_second": round(size.pairs / median, 1),
    "tokens_per_second": round(2 * size.pairs * size.length / median),
    "model_tflop": float(f"{step_flops / 1e12:.4g}"),
    "model_tflops_per_second": round(tflops, 3),
    "peak_tflops": peak,
    "mfu": round(tflops / peak, 4) if peak else None,
    "peak_gb": round(measure.device_bytes(peak=True) / 1e9, 3),
    "temporary_gb": round(analysis.temp_size_in_bytes / 1e9, 3) if analysis else None,
    "losses": [float(f"{losses[i]:.6g}") for i in (0, -1)],
  }


def in_own_process(name: str) -> dict[str, Any] | None:
  """Measures a model in a new process; prints and returns the result, or None if it failed."""
  command = [sys.executable, __file__, *sys.argv[1:], f"--measure={name}"]
  done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
  print(done.stdout, end="", flush=True)
  if done.returncode:
    print(f"{name} failed (exit code {done.returncode})", file=sys.stderr)
    return None
  return json.loads(done.stdout)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--model", nargs="+", default=list(MODELS), choices=MODELS)
  parser.add_argument("--size", default="paper", choices=("paper", "tiny"))
  parser.add_argument("--pairs", type=int, help="pairs per step (default: 256; EMS: 152; tiny: 8)")
  parser.add_argument(
    "--microbatches", type=int, default=1, help="microbatches per step (default: 1)"
  )
  parser.add_argument(
    "--remat",
    choices=("none", *t5.REMAT_POLICIES),
    help="default: minimal for 24 layers, otherwise none",
  )
  parser.add_argument("--scan_layers", action="store_true", help="compile one layer per stack")
  parser.add_argument(
    "--chunk", type=int, help="tokens (EMS: sentences) per chunk of the vocabulary projection"
  )
  parser.add_argument("--dtype", default="bfloat16", choices=t5.DTYPES, help="compute dtype")
  parser.add_argument("--steps", type=int, default=10, help="timed steps")
  parser.add_argument(
    "--peak_tflops",
    type=float,
    help="peak TFLOP/s of the device (default: looked up by the device name)",
  )
  parser.add_argument("--measure", choices=MODELS, help=argparse.SUPPRESS)
  options = parser.parse_args()
  if min(options.steps, options.microbatches) < 1:
    parser.error("--steps and --microbatches must be at least 1")
  if options.measure:
    print(json.dumps(measure_model(options.measure, options)))
    return
  lines = [in_own_process(name) for name in options.model]
  mfus = [line["mfu"] for line in lines if line and line["mfu"]]
  ratio = round(min(mfus) / TARGET_MFU, 3) if mfus else None
  print(json.dumps({"benchmark": "paper_step", "ratio": ratio}))
  if None in lines:
    raise SystemExit(1)


if __name__ == "__main__":
  main()
