"""Compares an EMS training step with a sentence-transformers step on a BERT of the same size.

  python benchmarks/ems_step.py
  python benchmarks/ems_step.py --size=paper --dtype=bfloat16 --variants ours --peak_tflops=989

A step computes the loss, the gradients and an Adam update of all parameters, with dropout 0.1.
Batches are prepared in advance. They contain random tokens, in sentences of full length. The
encoders of all variants have the same layers, widths, activation and mean pooling.

* sentence_transformers: MultipleNegativesRankingLoss on a `transformers.BertModel`, with PyTorch's
  fused Adam. Requires the extra `torch`;
* without_heads: `ems_jax.models.ems` with the same loss, on the cosines of sentence vectors;
* without_xtr: without_heads plus EMS's contrastive head, a small MLP;
* ours: EMS as in the paper, where sentence vectors also predict the tokens of translations (XTR);
* sentence_transformers_huge_pages, ours_small_pages: sentence_transformers with huge pages, and
  ours with pages of 4 KiB.

Our variants run with GLIBC_TUNABLES=glibc.malloc.hugetlb=1, as `t5x train` does. Linux then backs
large allocations with huge pages instead of pages of 4 KiB. This matters because XLA's CPU client
reallocates its temporary memory in each step. PyTorch runs with its defaults.

All variants use the same cores (--cores). Each measurement runs in its own process, and the
variants take turns; compilation and warm-up steps are not counted.

Prints one JSON line per variant, with tokens per second (sources and targets) and FLOP rates.
`gflop` counts the matmuls of a step, gradients included, and `mfu` is their rate divided by
--peak_tflops. In the last line, `ratio` is the median time of sentence_transformers divided by the
median time of ours. It is above 1 if ours is faster, although ours computes more.
`ratio_of_same_work` has without_heads in place of ours. `ratio_to_best` compares ours with
the faster of sentence_transformers and sentence_transformers_huge_pages. `gflops` is the rate of
NumPy's float32 matmuls, measured after the benchmark. On a shared machine, the ratios of CPU
seconds are more reliable.
"""

import argparse
import json
import math
import os
import statistics
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import measure
import numpy as np
import optax

from ems_jax.models import ems as ems_model
from ems_jax.networks import ems
from vmsst.data import vocabularies
from vmsst.networks import transformer

BASELINE, SAME_WORK, OURS = "sentence_transformers", "without_heads", "ours"
# Network arguments that differ from the paper.
HEADS: dict[str, dict[str, Any]] = {
  SAME_WORK: {"xtr": False, "projection_dim": None},
  "without_xtr": {"xtr": False},
  OURS: {},
}
HUGE_PAGES, SMALL_PAGES = "_huge_pages", "_small_pages"
VARIANTS = (BASELINE, *HEADS, BASELINE + HUGE_PAGES, OURS + SMALL_PAGES)
PACKAGES = ("jax", "jaxlib", "flax", "optax")
THEIR_PACKAGES = ("torch", "transformers", "sentence-transformers")

SIZES: dict[str, dict[str, int]] = {
  "small": {"layers": 2, "width": 256, "heads": 4, "mlp": 1024, "batch": 64, "length": 32},
  "paper": {"layers": 6, "width": 1024, "heads": 16, "mlp": 4096, "batch": 152, "length": 120},
}
VOCABULARY = 60000
LEARNING_RATE = 3e-4
DROPOUT = 0.1
SCALE = 10.0
WARM_UP_STEPS = 2

Step = Callable[[], None]  # Runs one step and waits until it is done.


# --------------------------------------------------------------------------------------------
# The steps


def make_tokens(options: argparse.Namespace) -> np.ndarray:
  """Returns sources and targets of random pairs, [2, pair, token], without padding."""
  rng = np.random.default_rng(0)
  return rng.integers(5, VOCABULARY, size=(2, options.batch, options.length))


def make_network(variant: str, options: argparse.Namespace) -> ems.EmsNetwork:
  config = transformer.TransformerConfig(
    vocab_size=VOCABULARY,
    emb_dim=options.width,
    num_heads=options.heads,
    mlp_dim=options.mlp,
    num_layers=options.layers,
    max_positions=options.length,
    dropout_rate=DROPOUT,
    dtype=options.dtype,
  )
  return ems.EmsNetwork(config, **HEADS[variant])


def make_our_step(network: ems.EmsNetwork, options: argparse.Namespace) -> tuple[Step, str]:
  """Returns a compiled step with donated state, and the device."""
  model = ems_model.EmsModel(
    network=network,
    vocabulary=vocabularies.ByteVocabulary(),  # not used
    max_length=options.length,
    scale=SCALE,
  )
  batch: dict[str, Any] = dict(zip(("inputs", "targets"), make_tokens(options), strict=True))
  batch |= {
    name: np.full((options.batch, 1), row)
    for row, name in enumerate(("input_language", "target_language"))
  }
  batch = {name: jnp.asarray(array, jnp.int32) for name, array in batch.items()}
  optimizer = optax.adam(LEARNING_RATE)

  def start(rng):
    params = model.get_initial_variables(rng, {"inputs": (1, options.length)})["params"]
    return params, optimizer.init(params)

  def step(state, batch, rng, number):
    params, moments = state
    rng = jax.random.fold_in(rng, number)
    (loss, _), grads = jax.value_and_grad(model.loss_fn, has_aux=True)(params, batch, rng)
    updates, moments = optimizer.update(grads, moments, params)
    return (optax.apply_updates(params, updates), moments), loss

  state, rng = jax.jit(start)(jax.random.key(0)), jax.random.key(1)
  compiled = jax.jit(step, donate_argnums=0).lower(state, batch, rng, 0).compile()
  number = 0

  def run() -> None:
    nonlocal state, number
    state, loss = compiled(state, batch, rng, number)
    number += 1
    jax.block_until_ready((state, loss))

  return run, measure.jax_device()


def make_their_step(options: argparse.Namespace) -> tuple[Step, str]:
  """Returns a PyTorch step and its device, which is the GPU if there is one."""
  import sentence_transformers
  import torch
  import transformers
  from sentence_transformers.sentence_transformer import losses, modules

  torch.set_num_threads(len(os.sched_getaffinity(0)))
  torch.manual_seed(0)
  device = "cuda" if torch.cuda.is_available() else "cpu"
  config = transformers.BertConfig(
    vocab_size=VOCABULARY,
    hidden_size=options.width,
    num_hidden_layers=options.layers,
    num_attention_heads=options.heads,
    intermediate_size=options.mlp,
    max_position_embeddings=options.length,
    hidden_act="silu",
    hidden_dropout_prob=DROPOUT,
    attention_probs_dropout_prob=DROPOUT,
    type_vocab_size=1,
  )

  class Encoder(torch.nn.Module):
    """First module of a sentence-transformers model; it takes tokens, so it needs no tokenizer."""

    def __init__(self):
      super().__init__()
      self.bert = transformers.BertModel(config, add_pooling_layer=False)

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
      return {**features, "token_embeddings": self.bert(**features).last_hidden_state}

  model = sentence_transformers.SentenceTransformer(
    modules=[Encoder(), modules.Pooling(options.width, "mean")], device=device
  )
  model.train()
  loss_fn = losses.MultipleNegativesRankingLoss(model, scale=SCALE)
  optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True)
  tokens = torch.from_numpy(make_tokens(options)).to(device)
  mask = torch.ones_like(tokens[0])

  def run() -> None:
    optimizer.zero_grad()
    with torch.autocast(device, torch.bfloat16, enabled=options.dtype == "bfloat16"):
      loss = loss_fn(
        [{"input_ids": token_ids, "attention_mask": mask} for token_ids in tokens], None
      )
    loss.backward()
    optimizer.step()
    if device == "cuda":
      torch.cuda.synchronize()

  name = torch.cuda.get_device_name() if device == "cuda" else device
  return run, f"{device} {name}"


def without_pages(variant: str) -> str:
  """Returns the name of a variant without its page size."""
  return variant.removesuffix(HUGE_PAGES).removesuffix(SMALL_PAGES)


def measure_variant(variant: str, options: argparse.Namespace) -> dict[str, Any]:
  """Returns the times of a variant's steps."""
  os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
  name = without_pages(variant)
  run, device = (
    make_their_step(options)
    if name == BASELINE
    else make_our_step(make_network(name, options), options)
  )
  packages = THEIR_PACKAGES if name == BASELINE else PACKAGES
  return {
    **measure.timed(run, options.steps, warm_up=WARM_UP_STEPS),
    "device": device,
    "cores": len(os.sched_getaffinity(0)),
    "versions": measure.machine(*packages)["versions"],
  }


# --------------------------------------------------------------------------------------------
# All measurements


def flops(variant: str, options: argparse.Namespace) -> int:
  """Returns the FLOPs of a step's matmuls, gradients included."""
  width, pairs = options.width, options.batch
  weights = 4 * width * width + 2 * width * options.mlp
  attention = 2 * options.length * width
  count = 2 * pairs * options.length * options.layers * (weights + attention)
  name = without_pages(variant)
  heads = None if name == BASELINE else make_network(name, options)
  compared = width
  if heads and heads.projection_dim:
    compared = heads.projection_dim
    count += 2 * pairs * width * (width + compared)
  if heads and heads.xtr:
    features = width + heads.language_dim
    count += 2 * pairs * features * (features + VOCABULARY)
  count += pairs * pairs * compared
  return 3 * 2 * count


def report(variant: str, runs: list[dict], options: argparse.Namespace) -> dict[str, Any]:
  """Returns the result of a variant, for one JSON line."""
  times, cpu_times = (measure.all_of(runs, name) for name in ("seconds", "cpu_seconds"))
  step_flops, median = flops(variant, options), statistics.median(times)
  line = {
    "benchmark": "ems_step",
    "variant": variant,
    **{name: runs[0][name] for name in ("device", "cores", "versions")},
    **{name: getattr(options, name) for name in ("size", *SIZES[options.size], "dtype")},
    "vocabulary": VOCABULARY,
    "steps": len(times),
    "seconds": measure.summary(times),
    "cpu_seconds": measure.summary(cpu_times),
    "tokens_per_second": round(2 * options.batch * options.length / median),
    "gflop": round(step_flops / 1e9, 1),
    "gflop_per_second": round(step_flops / median / 1e9, 1),
    "gflop_per_cpu_second": round(step_flops / statistics.median(cpu_times) / 1e9, 1),
  }
  if options.peak_tflops:
    line["mfu"] = round(step_flops / median / (1e12 * options.peak_tflops), 3)
  return line


def ratios(lines: dict[str, dict[str, Any]]) -> dict[str, float]:
  """Returns the time ratios of the measured variants, by wall time and by CPU time."""
  results = {}
  for kind in ("seconds", "cpu_seconds"):
    median = {variant: line[kind]["median"] for variant, line in lines.items()}
    if BASELINE not in median:
      continue
    suffix = "" if kind == "seconds" else "_of_cpu_seconds"
    if OURS in median:
      best = min(median[BASELINE], median.get(BASELINE + HUGE_PAGES, math.inf))
      results["ratio" + suffix] = median[BASELINE] / median[OURS]
      results["ratio_to_best" + suffix] = best / median[OURS]
    if SAME_WORK in median:
      results["ratio_of_same_work" + suffix] = median[BASELINE] / median[SAME_WORK]
  return {name: round(value, 3) for name, value in results.items()}


def in_own_process(variant: str) -> dict[str, Any]:
  huge = variant in HEADS or variant.endswith(HUGE_PAGES)
  arguments = [*sys.argv[1:], f"--measure={variant}"]
  return measure.in_own_process(__file__, arguments, variant, measure.HUGE_PAGES if huge else None)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--size", default="small", choices=SIZES, help="paper: requires a GPU")
  parser.add_argument("--batch", type=int, help="pairs (default: by --size)")
  parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
  parser.add_argument("--cores", type=int, default=2, help="number of CPU cores to use")
  parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
  parser.add_argument("--steps", type=int, default=10, help="timed steps per process")
  parser.add_argument("--rounds", type=int, default=3, help="processes per variant")
  parser.add_argument("--peak_tflops", type=float, help="peak TFLOP/s of the device, for `mfu`")
  parser.add_argument("--measure", choices=VARIANTS, help=argparse.SUPPRESS)
  options = parser.parse_args()
  for name, value in SIZES[options.size].items():
    if getattr(options, name, None) is None:
      setattr(options, name, value)
  if min(options.steps, options.rounds, options.cores, options.batch) < 1:
    parser.error("--steps, --rounds, --cores and --batch must be at least 1")
  if options.measure:
    print(json.dumps(measure_variant(options.measure, options)))
    return

  runs = measure.in_turns(options.variants, options.rounds, in_own_process)
  lines = {variant: report(variant, runs[variant], options) for variant in runs}
  for line in lines.values():
    print(json.dumps(line))
  if results := ratios(lines):
    print(json.dumps({"benchmark": "ems_step", **results, "gflops": measure.numpy_gflops()}))


if __name__ == "__main__":
  main()
