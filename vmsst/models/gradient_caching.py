"""Gradient caching: encodes large batches slice by slice with the exact gradient.

A loss over all vectors of a batch, such as a contrastive one, needs the activations of every
sentence in the backward pass, so memory limits the number of negatives. Gradient caching
(GradCache) keeps only the vectors: the forward pass encodes the batch slice by slice, and the
backward pass encodes each slice again and backpropagates the gradient of its vectors. Activations
exist for one slice at a time, at the cost of one more forward pass.

Reference: Gao et al. 2021, Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from vmsst import errors
from vmsst.arrays import layouts
from vmsst.models import base
from vmsst.networks import sentence_encoder

Encode = Callable[[Any, jax.Array | None], Any]


def map_slices(encode: Encode, batch: Any, *, slices: int, rng: jax.Array | None = None) -> Any:
  """Returns `encode(batch, rng)`, computed slice by slice with gradient caching.

  The gradient of a loss over all outputs is exact.

  Args:
    encode: Maps a slice of the batch and a random key (or None) to arrays, row by row: outputs have
      the rows of their slice first and depend on no other row. It may close over parameters.
    batch: Arrays with the batch axis first.
    slices: Number of slices, a divisor of the batch size. With 1, nothing is recomputed.
    rng: Split into one key per slice.

  Raises:
    InputError: `slices` does not divide the batch.
  """

  def without_totals(batch_slice: Any, rng: jax.Array | None) -> tuple[Any, None]:
    return encode(batch_slice, rng), None

  rows, _ = map_and_sum_slices(without_totals, batch, slices=slices, rng=rng)
  return rows


def map_and_sum_slices(
  encode: Encode, batch: Any, *, slices: int, rng: jax.Array | None = None
) -> tuple[Any, Any]:
  """Returns rows and totals of a batch, computed slice by slice with gradient caching.

  Args:
    encode: As for `map_slices`, but it returns a pair: rows of its slice, and totals over them,
      such as the sum of a loss. Totals are added over slices.
    batch: As for `map_slices`.
    slices: As for `map_slices`.
    rng: As for `map_slices`.

  Raises:
    InputError: `slices` does not divide the batch.
  """
  if slices == 1:
    return encode(batch, rng)
  size = jax.tree.leaves(batch)[0].shape[0]
  if slices < 1 or size % slices:
    raise errors.InputError(f"a batch of {size} has no {slices} equal slices; choose a divisor")

  # Slice s has the rows s, s + slices, s + 2 slices, ... Devices hold consecutive rows, so every
  # slice has equally many rows on each device, and no row moves between devices.
  def cut(x: jax.Array) -> jax.Array:
    x = x.reshape(size // slices, slices, *x.shape[1:]).swapaxes(0, 1)
    return layouts.constrain(x, (None, "batch", *[None] * (x.ndim - 2)))

  def join(x: jax.Array) -> jax.Array:
    x = x.swapaxes(0, 1).reshape(size, *x.shape[2:])
    return layouts.constrain(x, ("batch", *[None] * (x.ndim - 1)))

  body = jax.checkpoint(lambda pair: encode(*pair), prevent_cse=False)
  rngs = None if rng is None else jax.random.split(rng, slices)
  rows, totals = jax.lax.map(body, (jax.tree.map(cut, batch), rngs))
  return jax.tree.map(join, rows), jax.tree.map(lambda x: jnp.sum(x, axis=0), totals)


def embed_texts(
  network: nn.Module,
  params: Any,
  tokens_BRT: Int[Array, "B R T"],
  *,
  slices: int,
  rng: jax.Array | None,
) -> Float[Array, "B R S"]:
  """Returns vectors of the R texts of each row, computed with gradient caching.

  Args:
    network: Maps token ids to vectors (see `sentence_encoder.embed`), in one call per slice.
    params: Parameters of the network.
    tokens_BRT: Token ids, such as both texts of each pair.
    slices: As for `map_slices`, with the same errors.
    rng: Key of dropout, split into one per slice; without a key, no dropout.
  """

  def encode(tokens_BRT: Int[Array, "B R T"], rng: jax.Array | None) -> Float[Array, "B R S"]:
    tokens_NT = tokens_BRT.reshape(-1, tokens_BRT.shape[-1])
    vector_NS = sentence_encoder.embed(network, params, tokens_NT, dropout_rng=rng)
    return vector_NS.reshape(*tokens_BRT.shape[:2], -1)

  vector_BRS: jax.Array = map_slices(encode, tokens_BRT, slices=slices, rng=rng)
  return vector_BRS


def embed_pairs(
  network: nn.Module, params: Any, batch: base.Batch, *, slices: int, rng: jax.Array | None
) -> Float[Array, "B 2 S"]:
  """Returns vectors of both texts of each pair; for the arguments see `embed_texts`."""
  tokens_B2T = base.interleave(batch["inputs"], batch["targets"])
  return embed_texts(network, params, tokens_B2T, slices=slices, rng=rng)
