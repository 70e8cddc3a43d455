"""Gradient caching: encodes large batches slice by slice with the exact gradient.

A loss over all vectors of a batch, such as a contrastive loss, needs the activations of every
sentence in the backward pass, so memory limits the batch size, and thus the number of in-batch
negatives. Gradient caching (GradCache) keeps only the vectors: the forward pass encodes the batch
slice by slice, and the backward pass encodes each slice again and backpropagates the gradient of
its vectors. Only one slice's activations exist at a time, at the cost of one more forward pass.

Reference: Gao et al. 2021, Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from vmsst import errors
from vmsst.arrays import layouts
from vmsst.networks import sentence_encoder

Encode = Callable[[Any, jax.Array | None], Any]


def map_slices(encode: Encode, batch: Any, *, slices: int, rng: jax.Array | None = None) -> Any:
  """Returns `encode(batch, rng)`, computed slice by slice with gradient caching.

  The gradient of any loss computed from the outputs is exact.

  Args:
    encode: Function that maps a slice of the batch and a random key (or None) to arrays. In each
      array, the first axis must correspond to the rows of the slice, and row i must not depend on
      other slices. The function may close over parameters.
    batch: Arrays. Slice s contains the rows s, s + slices, ... of each array. The first array
      determines the batch size; other arrays may have a different number of rows.
    slices: Number of slices, a divisor of the batch size. With one slice, nothing is recomputed.
    rng: Random key, split into one key per slice.

  Raises:
    InputError: If `slices` does not divide the batch size.
  """

  def without_totals(batch_slice: Any, rng: jax.Array | None) -> tuple[Any, None]:
    return encode(batch_slice, rng), None

  rows, _ = map_and_sum_slices(without_totals, batch, slices=slices, rng=rng)
  return rows


def map_and_sum_slices(
  encode: Encode, batch: Any, *, slices: int, rng: jax.Array | None = None
) -> tuple[Any, Any]:
  """Like `map_slices`, but also returns totals over all slices.

  Args:
    encode: Function like `encode` in `map_slices`, except that it returns two values: the arrays
      for a slice, and totals over the rows of the slice, such as a summed loss.
    batch: See `map_slices`.
    slices: See `map_slices`.
    rng: See `map_slices`.

  Raises:
    InputError: If `slices` does not divide the batch size.
  """
  if slices == 1:
    return encode(batch, rng)
  size = jax.tree.leaves(batch)[0].shape[0]
  if slices < 1 or size % slices:
    raise errors.InputError(
      f"a batch of {size} rows does not divide into {slices} equal slices; use a divisor of {size}"
    )

  # Slice s contains the rows s, s + slices, s + 2 slices, ... Each device holds consecutive rows of
  # the batch, so every slice contains the same number of rows from each device, and no row moves
  # between devices.
  def cut(x: jax.Array) -> jax.Array:
    x = x.reshape(-1, slices, *x.shape[1:]).swapaxes(0, 1)
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
  batch: Mapping[str, jax.Array],
  *,
  slices: int,
  rng: jax.Array | None,
) -> Float[Array, "B R S"]:
  """Returns the vectors of the R texts in each row, computed with gradient caching.

  Args:
    network: Network that maps token ids to vectors (see `sentence_encoder.embed`); it is called
      once per slice.
    params: Network parameters.
    tokens_BRT: Token ids of R texts per row, for example the two texts of each pair.
    batch: The batch. If it has the feature `packing` (see `vmsst.data.packing.pack`), the texts are
      encoded in packed rows. The feature must be packed for the same number of slices.
    slices: Number of slices; must divide the batch size (see `map_slices`).
    rng: Random key for dropout, split into one key per slice; if None, there is no dropout.
  """

  def encode(batch_slice: Any, rng: jax.Array | None) -> Float[Array, "B R S"]:
    tokens_BRT, packing = batch_slice
    tokens_NT = tokens_BRT.reshape(-1, tokens_BRT.shape[-1])
    vector_NS = sentence_encoder.embed(network, params, tokens_NT, packing, dropout_rng=rng)
    return vector_NS.reshape(*tokens_BRT.shape[:2], -1)

  vector_BRS: jax.Array = map_slices(
    encode, (tokens_BRT, batch.get("packing")), slices=slices, rng=rng
  )
  return vector_BRS
