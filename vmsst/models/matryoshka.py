"""Matryoshka losses, for vectors whose first dimensions are useful by themselves.

A model computes its in-batch loss from the whole vectors and from their first dimensions. Vectors
of the trained encoder can then be cut (`encode(truncate_dim=64)`, `vmsst embed --dimensions 64`),
which saves memory and time of a search; `vmsst eval --dimensions 64` evaluates them.

Reference: Kusupati et al. 2022, Matryoshka Representation Learning (with equal weights).
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vmsst import errors
from vmsst.models import base

Vectors = TypeVar("Vectors")


def check_dims(dims: Any) -> None:
  """Raises InputError unless `dims` is a sequence of different positive integers."""
  numbers = isinstance(dims, Sequence) and all(type(dim) is int and dim > 0 for dim in dims)
  if not numbers or len({*dims}) < len(dims):
    raise errors.InputError(
      f"matryoshka_dims is {dims!r}; set it to different numbers of dimensions, such as (64, 128), "
      "or () to train whole vectors only"
    )


def mean_loss(
  loss: Callable[[Vectors], tuple[Float[Array, "..."], base.Metrics]],
  vectors: Vectors,
  dims: Sequence[int],
) -> tuple[Float[Array, "..."], base.Metrics]:
  """Returns the mean of a loss of whole vectors and of their first `dims` dimensions.

  Further dimensions are replaced by zeros, which changes no dot product or cosine of the others.

  Args:
    loss: Maps vectors to a loss and metrics.
    vectors: An array or several, with the dimensions of the vectors last.
    dims: Numbers of first dimensions; (): only the whole vectors.

  Returns:
    The mean, and metrics: those of the whole vectors, and, for each number of dimensions, its loss
    and metrics with the prefix `first_64/`.

  Raises:
    InputError: the vectors have no more dimensions than a number in `dims`.
  """
  total, metrics = loss(vectors)
  metrics = dict(metrics)
  for dim in dims:
    part, part_metrics = loss(jax.tree.map(lambda x, dim=dim: _first(x, dim), vectors))
    total += part
    named = {"loss": base.average(part), **part_metrics}
    metrics |= {f"first_{dim}/{name}": value for name, value in named.items()}
  return total / (1 + len(dims)), metrics


def _first(x: Float[Array, "... S"], dim: int) -> Float[Array, "... S"]:
  if dim >= x.shape[-1]:
    raise errors.InputError(
      f"matryoshka_dims has {dim}, but vectors have {x.shape[-1]} dimensions; give smaller numbers"
    )
  return jnp.where(jnp.arange(x.shape[-1]) < dim, x, 0.0)
