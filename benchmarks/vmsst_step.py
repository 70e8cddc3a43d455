"""Compares a VMSST training step with a direct implementation of the paper.

  python benchmarks/vmsst_step.py

A step computes the value and gradients of the VMSST loss with sampled latents, and an Adafactor
update. The model has the size of gin/sizes/small.gin. All variants have the same encoders, losses,
parameters and batch:

* direct: four decoder calls (two reconstructions, two translations), each with the concatenated
  projection [B, T, 3D] @ [3D, V] and all its logits;
* four_calls: four decoder calls, each with `vmsst.losses.vocabulary`;
* dense: one decoder call for all rows, with the concatenated projection;
* ours: `vmsst.models.vmsst`.

direct and dense store the projection as one kernel, and do not count correct tokens. Before timing,
the benchmark checks on a few pairs that all variants compute the same loss and gradients.

Each measurement runs in its own process, and the variants take turns. All processes use huge pages,
as `t5x train` does (GLIBC_TUNABLES=glibc.malloc.hugetlb=1). Memory is the peak memory of the
process (CPU, Linux) or the device, without the parameters, the optimizer state and the batch.

Prints one JSON line per variant. In the last line, `ratio` is the median time of direct divided by
the median time of ours, and `memory_ratio` is the same ratio for memory. Both are above 1 if ours
is better. `gflops` is the rate of NumPy's float32 matmuls, measured after the benchmark. On a
shared machine, CPU seconds are more reliable.
"""

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import measure
import numpy as np
from vocab_projection import matmul

from vmsst import arrays
from vmsst.data import vocabularies
from vmsst.models import bitranslation
from vmsst.models import vmsst as vmsst_model
from vmsst.networks import sentence_encoder, t5
from vmsst.networks import vmsst as networks
from vmsst.train import adafactor, train_state

BASELINE, OURS = "direct", "ours"
# The network's kernels, and the concatenated kernel that replaces them.
KERNELS, CONCATENATED = ("logits_latent", "logits_hidden"), "logits"
CHECKED_PAIRS = 2
# Tolerance relative to the loss, or to the largest value of a gradient.
TOLERANCE = 1e-4


# --------------------------------------------------------------------------------------------
# The variants: replacements of `bitranslation.score`


def dense_score(network, params, tokens, embedded, languages, sentence, weights, *, dropout_rng):
  """Scores all rows in one decoder call with the concatenated projection; counts no tokens."""
  tokens_NT, embedded_NTD, languages_N, sentence_NZ, weights_N = map(
    bitranslation.rows, (tokens, embedded, languages, sentence, weights)
  )
  hidden_NTD = sentence_encoder.run(
    network, params, "decode", embedded_NTD, languages_N, sentence_NZ, dropout_rng=dropout_rng
  )
  sentence_NTZ = jnp.broadcast_to(sentence_NZ[:, None], (*tokens_NT.shape, sentence_NZ.shape[-1]))
  both_NTP = jnp.concatenate([sentence_NTZ, hidden_NTD], axis=-1)
  kernel_PV = params[CONCATENATED]["kernel"]
  logits_MV = matmul(both_NTP.reshape(-1, both_NTP.shape[-1]), kernel_PV, network.config.dtype)
  target_M1 = jnp.take_along_axis(logits_MV, tokens_NT.reshape(-1, 1), axis=1)
  nll_M = jax.nn.logsumexp(logits_MV, axis=1) - target_M1[:, 0]
  nll_BRT = jnp.where(tokens != arrays.PAD_ID, nll_M.reshape(tokens.shape), 0.0)
  weighted = jnp.sum(weights_N.reshape(weights.shape)[..., None] * nll_BRT)
  return bitranslation.Scores(
    weighted, jax.lax.stop_gradient(nll_BRT), jnp.zeros(tokens.shape, bool)
  )


def one_by_one(score: Callable[..., bitranslation.Scores]) -> Callable[..., bitranslation.Scores]:
  """Returns a function that calls `score` for one reconstruction or translation at a time."""

  def each(network, params, *inputs, dropout_rng):
    scores = [
      score(network, params, *(x[:, row : row + 1] for x in inputs), dropout_rng=dropout_rng)
      for row in range(inputs[0].shape[1])
    ]
    weighted, *per_token = zip(*scores, strict=True)
    return bitranslation.Scores(sum(weighted), *(jnp.concatenate(x, axis=1) for x in per_token))

  return each


SCORES: dict[str, Callable[..., bitranslation.Scores]] = {
  BASELINE: one_by_one(dense_score),
  "four_calls": one_by_one(bitranslation.score),
  "dense": dense_score,
  OURS: bitranslation.score,
}
CONCATENATING = (BASELINE, "dense")


# --------------------------------------------------------------------------------------------
# Model, batch, step


def make_model(options: argparse.Namespace) -> vmsst_model.VmsstModel:
  config = t5.T5Config(
    vocab_size=options.vocabulary,
    emb_dim=options.width,
    num_heads=4,
    head_dim=32,
    mlp_dim=256,
    num_encoder_layers=1,
    dtype=options.dtype,
  )
  return vmsst_model.VmsstModel(
    network=networks.VmsstNetwork(config, latent_dim=options.width),
    vocabulary=vocabularies.ByteVocabulary(),  # not used
    optimizer_def=adafactor.Adafactor(),
  )


def make_batch(options: argparse.Namespace, pairs: int) -> dict[str, jax.Array]:
  """Returns random sentences of full length."""
  keys = jax.random.split(jax.random.key(1), 2)
  batch = {
    name: jax.random.randint(key, (pairs, options.length), 1, options.vocabulary)
    for name, key in zip(("inputs", "targets"), keys, strict=True)
  }
  languages = {"input_language": 1, "target_language": 2}
  return batch | {name: jnp.full((pairs, 1), row) for name, row in languages.items()}


def make_params(model: vmsst_model.VmsstModel, variant: str) -> dict[str, Any]:
  shapes = {"inputs": (1, 2)}
  params = jax.jit(lambda rng: model.get_initial_variables(rng, shapes)["params"])(
    jax.random.key(0)
  )
  return concatenate(params) if variant in CONCATENATING else params


def concatenate(params: dict[str, Any]) -> dict[str, Any]:
  """Returns parameters or gradients with a single projection kernel."""
  kernel_PV = jnp.concatenate([params[name]["kernel"] for name in KERNELS])
  unchanged = {name: value for name, value in params.items() if name not in KERNELS}
  return {**unchanged, CONCATENATED: {"kernel": kernel_PV}}


def gradients(model: vmsst_model.VmsstModel, variant: str) -> Callable[..., Any]:
  """Returns the function that computes loss, metrics and gradients."""

  def run(params, batch, rng):
    with mock.patch.object(bitranslation, "score", SCORES[variant]):
      return jax.value_and_grad(model.loss_fn, has_aux=True)(params, batch, rng, 1000)

  return run


def check(options: argparse.Namespace) -> dict[str, float]:
  """Returns the largest differences of a variant from ours; exits if they are too large."""
  options = argparse.Namespace(**{**vars(options), "dtype": "float32"})
  model, batch = make_model(options), make_batch(options, CHECKED_PAIRS)
  results = {}
  for variant in options.variants:
    run = jax.jit(gradients(model, variant))
    with jax.default_matmul_precision("highest"):  # The default precision on GPUs is TF32.
      (loss, _), grads = run(make_params(model, variant), batch, jax.random.key(2))
    grads = grads if variant in CONCATENATING else concatenate(grads)
    results[variant] = jax.device_get((loss, grads))
  expected_loss, expected = results[OURS]
  differences = {"loss": 0.0, "gradients": 0.0}
  for loss, grads in results.values():
    by_leaf = jax.tree.map(
      lambda a, b: float(np.max(np.abs(a - b)) / np.max(np.abs(b))), grads, expected
    )
    new = {
      "loss": float(abs(loss / expected_loss - 1)),
      "gradients": max(jax.tree.leaves(by_leaf)),
    }
    differences = {name: max(value, new[name]) for name, value in differences.items()}
  if max(differences.values()) > TOLERANCE:
    raise SystemExit(f"the variants compute different results: {differences}")
  return differences


# --------------------------------------------------------------------------------------------
# One measurement


def make_state(model: Any, params: Any) -> train_state.TrainState:
  return train_state.TrainState.create(model.optimizer_def, {"params": params})


def measure_step(variant: str, options: argparse.Namespace) -> dict[str, Any]:
  model = make_model(options)
  batch = make_batch(options, options.batch)
  compute = gradients(model, variant)

  def step(state, batch, rng):
    (_, metrics), grads = compute(state.params, batch, rng)
    return state.apply_gradient(grads, learning_rate=1e-3), metrics

  # Without jit, arrays in the state can share a buffer, and a shared buffer cannot be donated.
  optimizer = jax.jit(make_state, static_argnums=0)(model, make_params(model, variant))
  rng = jax.random.key(2)
  compiled = jax.jit(step, donate_argnums=0).lower(optimizer, batch, rng).compile()
  jax.block_until_ready((optimizer, batch))
  measure.reset_peak()
  before = measure.device_bytes()

  def run():
    nonlocal optimizer
    optimizer, _ = jax.block_until_ready(compiled(optimizer, batch, rng))

  times = measure.timed(run, options.repeats)
  used = measure.device_bytes(peak=True) - before
  return {**times, "bytes": used, "device": measure.jax_device()}


# --------------------------------------------------------------------------------------------
# All measurements


def flops(variant: str, options: argparse.Namespace) -> dict[str, int]:
  """Returns the FLOPs of a step's weight matmuls by component, gradients included."""
  width, heads, mlp = options.width, 4 * 32, 256
  layer = 4 * width * heads + 3 * width * mlp
  tokens, sentences = 2 * options.batch * options.length, 2 * options.batch
  encoders = 2 * tokens * layer + 4 * sentences * width * width
  decoder = 2 * tokens * (layer + width * width) + 2 * sentences * 2 * width * width
  rows = 2 * tokens * 3 if variant in CONCATENATING else 2 * tokens + 2 * sentences * 2
  projection = rows * width * options.vocabulary
  counts = {"encoders": encoders, "decoder": decoder, "projection": projection}
  return {name: 3 * 2 * count for name, count in counts.items()}


def report(variant: str, runs: list[dict], options: argparse.Namespace) -> dict[str, Any]:
  """Returns the result of a variant for one JSON line."""
  return {
    "benchmark": "vmsst_step",
    "variant": variant,
    "device": runs[0]["device"],
    **measure.machine("jax", "jaxlib", "flax"),
    **{name: getattr(options, name) for name in ("batch", "length", "width", "vocabulary")},
    "dtype": options.dtype,
    "runs": len(measure.all_of(runs, "seconds")),
    "seconds": measure.summary(measure.all_of(runs, "seconds")),
    "cpu_seconds": measure.summary(measure.all_of(runs, "cpu_seconds")),
    "additional_gb": round(max(run["bytes"] for run in runs) / 1e9, 3),
    "tflop": round(sum(flops(variant, options).values()) / 1e12, 3),
  }


def in_own_process(what: str) -> dict[str, Any]:
  arguments = [*sys.argv[1:], f"--measure={what}"]
  return measure.in_own_process(__file__, arguments, what, measure.HUGE_PAGES)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--batch", type=int, default=64, help="pairs")
  parser.add_argument("--length", type=int, default=32, help="tokens per sentence")
  parser.add_argument("--width", type=int, default=512, help="width of states and latents")
  parser.add_argument("--vocabulary", type=int, default=60000, help="vocabulary size")
  parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
  parser.add_argument("--variants", nargs="+", default=list(SCORES), choices=SCORES)
  parser.add_argument("--repeats", type=int, default=2, help="timed steps per process")
  parser.add_argument("--rounds", type=int, default=2, help="processes per variant")
  parser.add_argument("--measure", choices=("check", *SCORES), help=argparse.SUPPRESS)
  options = parser.parse_args()
  if min(options.repeats, options.rounds) < 1:
    parser.error("--repeats and --rounds must be at least 1")
  if missing := {BASELINE, OURS} - set(options.variants):
    parser.error(f"add {', '.join(sorted(missing))} to --variants; the report needs them")
  if options.measure:
    checked = options.measure == "check"
    print(json.dumps(check(options) if checked else measure_step(options.measure, options)))
    return

  differences = in_own_process("check")
  runs = measure.in_turns(options.variants, options.rounds, in_own_process)
  lines = {variant: report(variant, runs[variant], options) for variant in runs}
  for line in lines.values():
    print(json.dumps(line))
  model, baseline = lines[OURS], lines[BASELINE]
  ratios = {
    "ratio": baseline["seconds"]["median"] / model["seconds"]["median"],
    "ratio_of_minima": baseline["seconds"]["min"] / model["seconds"]["min"],
    "memory_ratio": baseline["additional_gb"] / model["additional_gb"],
    "ratio_of_cpu_seconds": baseline["cpu_seconds"]["median"] / model["cpu_seconds"]["median"],
  }
  rounded = {name: round(value, 3) for name, value in ratios.items()}
  rounded["gflops"] = measure.numpy_gflops()
  checked = {f"{name}_difference": float(f"{x:.1e}") for name, x in differences.items()}
  print(json.dumps({"benchmark": "vmsst_step", **rounded, **checked}))


if __name__ == "__main__":
  main()
