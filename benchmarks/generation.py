"""Compares generation with cached keys and values to decoding all positions at each step.

  python benchmarks/generation.py
  python benchmarks/generation.py --width=512 --layers=6 --vocabulary=32000 --batch=16

A VMSST decoder with random weights, by default of the size of `quickstart.gin`, generates --batch
sentences of --length tokens each (there is no EOS):

* uncached: at each step, decodes all positions again and projects the last one to the vocabulary;
* cached: `vmsst.inference.decoding.generate_tokens`, greedily;
* beam: `vmsst.inference.beam_search.search_tokens` with --beams hypotheses.

The tokens of the first two must be identical. The variants take turns in one process, after a
warm-up run that compiles.

Prints one JSON line per variant and a last one: `ratio` is the median sentences per second of
cached over those of uncached, above 1 if cached is faster. `ratio_of_cpu_seconds` is more reliable
on a shared machine. `matmul_gflops` is the rate of large float32 matmuls of this machine at that
time, by which to compare sentences per second between machines.
"""

import argparse
import functools
import json
import statistics
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import measure
import numpy as np

from vmsst.inference import beam_search, decoding
from vmsst.networks import t5
from vmsst.networks import vmsst as networks

BASELINE, OURS, BEAM = "uncached", "cached", "beam"


@functools.partial(jax.jit, static_argnames=("network", "length", "pieces"))
def uncached_tokens(
  network: networks.VmsstNetwork,
  params: Any,
  sentence_BZ: jax.Array,
  languages_B: jax.Array,
  *,
  length: int,
  pieces: int,
) -> jax.Array:
  """Returns greedy tokens; each step decodes all positions."""

  def hidden(net: networks.VmsstNetwork, tokens_BT: jax.Array) -> jax.Array:
    return net.decode(net.embed(tokens_BT), languages_B, sentence_BZ)

  def apply(*arrays: jax.Array, method: Any) -> Any:
    return network.apply({"params": params}, *arrays, method=method)

  def step(position: jax.Array, tokens_BT: jax.Array) -> jax.Array:
    hidden_BTD = apply(tokens_BT, method=hidden)
    hidden_B1D = jax.lax.dynamic_slice_in_dim(hidden_BTD, position, 1, axis=1)
    new = apply(hidden_B1D, sentence_BZ, method="project")
    logits_BV = new.hidden_BTD[:, 0] @ new.hidden_kernel_DV
    logits_BV += new.sentence_BZ @ new.sentence_kernel_ZV
    possible_V = decoding.possible_tokens(logits_BV.shape[1], pieces)
    token_B = jnp.argmax(jnp.where(possible_V, logits_BV, -jnp.inf), axis=1)
    return tokens_BT.at[:, position].set(token_B.astype(jnp.int32))

  tokens_BT = jnp.zeros((len(sentence_BZ), length), jnp.int32)
  return jax.lax.fori_loop(0, length, step, tokens_BT)


def make_variants(options: argparse.Namespace) -> dict[str, Callable[[], np.ndarray]]:
  """Returns functions without arguments that generate tokens [B, T]."""
  config = t5.T5Config(
    vocab_size=options.vocabulary,
    emb_dim=options.width,
    num_heads=options.heads,
    head_dim=options.head_dim,
    mlp_dim=options.mlp,
    num_encoder_layers=1,
  )
  network = networks.VmsstNetwork(
    config, latent_dim=options.width, num_decoder_layers=options.layers, single_encoder=True
  )
  init = jax.jit(network.init)
  params = init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))["params"]
  sentence_BZ = jax.random.normal(jax.random.key(1), (options.batch, network.sentence_dim))
  languages_B = jnp.arange(options.batch) % 8 + 1
  wanted_B = jnp.ones(options.batch, bool)
  keys_B = jax.random.split(jax.random.key(2), options.batch)
  arrays = (network, params, sentence_BZ, languages_B)
  sizes = {"length": options.length, "pieces": options.vocabulary}
  found = {
    BASELINE: lambda: uncached_tokens(*arrays, **sizes),
    OURS: lambda: decoding.generate_tokens(
      *arrays, wanted_B, keys_B, 1.0, eos_id=None, sampled=False, **sizes
    ),
    BEAM: lambda: beam_search.search_tokens(
      *arrays, wanted_B, 0.6, eos_id=None, beams=options.beams, **sizes
    ),
  }
  return {name: lambda run=run: np.asarray(run()) for name, run in found.items()}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--batch", type=int, default=64, help="sentences")
  parser.add_argument("--length", type=int, default=32, help="tokens per sentence")
  parser.add_argument("--width", type=int, default=256, help="width of states and latents")
  parser.add_argument("--layers", type=int, default=1, help="decoder layers")
  parser.add_argument("--heads", type=int, default=4, help="attention heads")
  parser.add_argument("--head_dim", type=int, default=32, help="width of a head")
  parser.add_argument("--mlp", type=int, default=256, help="width of the feed-forward layer")
  parser.add_argument("--vocabulary", type=int, default=3600, help="vocabulary size")
  parser.add_argument("--beams", type=int, default=4, help="hypotheses of the beam search")
  parser.add_argument("--repeats", type=int, default=5, help="timed runs per variant")
  options = parser.parse_args()
  variants = make_variants(options)
  tokens = {name: run() for name, run in variants.items()}  # compiles
  if not np.array_equal(tokens[BASELINE], tokens[OURS]):
    raise SystemExit("cached and uncached tokens differ")
  runs = measure.in_turns(
    variants, options.repeats, lambda name: measure.timed(variants[name], 1, warm_up=0)
  )
  gflops = measure.matmul_gflops()
  lines = {}
  for name, own in runs.items():
    seconds = measure.all_of(own, "seconds")
    lines[name] = {
      "benchmark": "generation",
      "variant": name,
      "device": measure.jax_device(),
      **measure.machine("jax", "jaxlib"),
      **{key: value for key, value in vars(options).items() if key not in ("repeats", "beams")},
      **({"beams": options.beams} if name == BEAM else {}),
      "runs": len(seconds),
      "seconds": measure.summary(seconds),
      "cpu_seconds": measure.summary(measure.all_of(own, "cpu_seconds")),
      "sentences_per_second": round(options.batch / statistics.median(seconds), 1),
      "matmul_gflops": gflops,
    }
    print(json.dumps(lines[name]), flush=True)
  ours, baseline = lines[OURS], lines[BASELINE]
  ratios = {
    "ratio": baseline["seconds"]["median"] / ours["seconds"]["median"],
    "ratio_of_minima": baseline["seconds"]["min"] / ours["seconds"]["min"],
    "ratio_of_cpu_seconds": baseline["cpu_seconds"]["median"] / ours["cpu_seconds"]["median"],
  }
  rounded = {name: round(value, 2) for name, value in ratios.items()}
  print(json.dumps({"benchmark": "generation", **rounded, "matmul_gflops": gflops}))


if __name__ == "__main__":
  main()
