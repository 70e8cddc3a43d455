"""Dropout with random numbers that are cheap to generate on CPUs.

Sixteen random bits decide whether to keep a value, so one 32-bit random word is enough for two
values. On CPUs, JAX lowers its random number generator, threefry, to a loop that compiles fast but
reads and writes every word five times. This module computes threefry in one expression that writes
each word once.
"""

import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

_LEVELS = 2**16
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


class Dropout(nn.Module):
  """Zeroes values at random and divides the remaining values by the keep probability, as in Flax.

  Needs an rng named "dropout", unless the rate is 0 or dropout is deterministic.

  Attributes:
    rate: Probability of zeroing a value, rounded to a multiple of 2^-16.
    broadcast_dims: Axes along which all values are kept or zeroed together.
    deterministic: If True, values are returned unchanged.
  """

  rate: float
  broadcast_dims: Sequence[int] = ()
  deterministic: bool | None = None

  @nn.compact
  def __call__(
    self, x: Float[Array, "..."], deterministic: bool | None = None
  ) -> Float[Array, "..."]:
    """Returns `x` after dropout; pass `deterministic` here or to the constructor."""
    deterministic = nn.merge_param("deterministic", self.deterministic, deterministic)
    dropped = min(round(self.rate * _LEVELS), _LEVELS - 1)
    if deterministic or not dropped:
      return x
    shape = list(x.shape)
    for axis in self.broadcast_dims:
      shape[axis] = 1
    is_kept = random_levels(self.make_rng("dropout"), tuple(shape)) >= dropped
    return jnp.where(is_kept, x / (1 - dropped / _LEVELS), jnp.zeros_like(x))


# Jitted, so that JAX traces threefry's many operations only once per shape.
@functools.partial(jax.jit, static_argnums=1)
def random_levels(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
  """Returns independent, uniformly distributed integers from 0 to 2^16 - 1, as uint32."""
  axis = max(len(shape) - 2, 0)
  size = shape[axis]
  # Use two random words as the key for `random_words`, so that `key` may use any PRNG.
  words = random_words(
    jax.random.bits(key, (2,), jnp.uint32), (*shape[:axis], (size + 1) // 2, *shape[axis + 1 :])
  )
  levels = jnp.concatenate([words % _LEVELS, words // _LEVELS], axis=axis)
  return jax.lax.slice_in_dim(levels, 0, size, axis=axis)


def random_words(key_2: jax.Array, shape: tuple[int, ...]) -> jax.Array:
  """Returns the same uint32 words as `jax.random.bits` with the same threefry key.

  Args:
    key_2: The two words of the key's data.
    shape: Shape of the result, which must have fewer than 2^32 words.
  """

  def by_jax(key_2: jax.Array) -> jax.Array:
    key = jax.random.wrap_key_data(key_2, impl="threefry2x32")
    return jax.random.bits(key, shape, jnp.uint32)

  def as_one_expression(key_2: jax.Array) -> jax.Array:
    index = jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(shape)
    # Without the barrier, XLA would recompute a word for each use.
    return jax.lax.optimization_barrier(_threefry(key_2, index))

  return jax.lax.platform_dependent(key_2, cpu=as_one_expression, default=by_jax)


def _threefry(key_2: jax.Array, index: jax.Array) -> jax.Array:
  """Returns the XOR of the two Threefry-2x32 output words (Salmon et al. 2011) at each counter."""
  keys = (key_2[0], key_2[1], key_2[0] ^ key_2[1] ^ jnp.uint32(_PARITY))
  first, second = jnp.broadcast_to(keys[0], index.shape), index + keys[1]
  for group in range(5):
    for rotation in _ROTATIONS[group % 2]:
      first = first + second
      second = first ^ (second << rotation | second >> (32 - rotation))
    first = first + keys[(group + 1) % 3]
    second = second + keys[(group + 2) % 3] + jnp.uint32(group + 1)
  return first ^ second
