"""Batches larger than the memory allows: one slice encoded at a time, with the exact gradient."""

from collections.abc import Callable
from typing import Any

import jax
from flax import linen as nn
from jaxtyping import Array, Float, Int

from vmsst import sharding
from vmsst.networks import sentence_encoder

Encode = Callable[[Any, jax.Array | None], Any]


def map_slices(encode: Encode, batch: Any, *, slices: int, rng: jax.Array | None = None) -> Any:
  """Returns `encode(batch, rng)`, computed slice by slice with nothing kept for the backward pass.

  The backward pass encodes each slice again, so it needs the activations of one slice only. A loss
  over all outputs, such as a contrastive one, has its exact gradient (Gao et al. 2021, GradCache).

  Args:
    encode: Maps a slice of the batch and a random key (or None) to arrays, row by row: outputs have
      the rows of their slice first and depend on no other row. It may close over parameters.
    batch: Arrays with the batch axis first.
    slices: Number of slices; has to divide the batch. With 1 nothing is recomputed.
    rng: Split into one key a slice.

  Raises:
    ValueError: `slices` does not divide the batch.
  """
  if slices == 1:
    return encode(batch, rng)
  size = jax.tree.leaves(batch)[0].shape[0]
  if slices < 1 or size % slices:
    raise ValueError(f"a batch of {size} cannot be cut into {slices} equal slices")

  # Slice s takes rows s, s + slices, s + 2 slices ...: each device, which holds consecutive rows,
  # gives an equal share of every slice, and no row moves between devices.
  def cut(x: jax.Array) -> jax.Array:
    x = x.reshape(size // slices, slices, *x.shape[1:]).swapaxes(0, 1)
    return sharding.constrain(x, (None, "batch", *[None] * (x.ndim - 2)))

  def join(x: jax.Array) -> jax.Array:
    x = x.swapaxes(0, 1).reshape(size, *x.shape[2:])
    return sharding.constrain(x, ("batch", *[None] * (x.ndim - 1)))

  body = jax.checkpoint(lambda pair: encode(*pair), prevent_cse=False)
  rngs = None if rng is None else jax.random.split(rng, slices)
  return jax.tree.map(join, jax.lax.map(body, (jax.tree.map(cut, batch), rngs)))


def embed_sides(
  network: nn.Module,
  params: Any,
  tokens_BRT: Int[Array, "B R T"],
  *,
  slices: int,
  rng: jax.Array | None,
) -> Float[Array, "B R S"]:
  """Returns vectors of the R sentences of each row, from one call of the network a slice.

  Args:
    network: Gives a vector for a sentence (see `sentence_encoder.embed`).
    params: Its parameters.
    tokens_BRT: Such as both sides of each pair.
    slices: As of `map_slices`, and so is what is raised.
    rng: Key of dropout, split into one a slice; None: there is none.
  """

  def encode(tokens_BRT: Int[Array, "B R T"], rng: jax.Array | None) -> Float[Array, "B R S"]:
    tokens_NT = tokens_BRT.reshape(-1, tokens_BRT.shape[-1])
    vector_NS = sentence_encoder.embed(network, params, tokens_NT, dropout_rng=rng)
    return vector_NS.reshape(*tokens_BRT.shape[:2], -1)

  vector_BRS: jax.Array = map_slices(encode, tokens_BRT, slices=slices, rng=rng)
  return vector_BRS
