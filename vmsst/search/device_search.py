"""Nearest neighbors on all devices of a process: an engine of `vmsst.search.exact_search`."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from vmsst.search import exact_search

# Vectors compared at once: sources, replicated, and targets, sharded over devices. Their scores
# take 1 GB.
_SOURCES, _TARGETS = 1 << 15, 1 << 13
_AXIS = "targets"
# Targets of a block that are compared again in float32, per neighbor and in addition.
_CANDIDATES = 4
_CHUNK = 256  # Queries whose candidates are in memory at once.
# Bound on the error of a cosine in bfloat16: both factors are rounded by up to 2^-8, and the sum of
# the products' sizes is at most 1. The rest is for the accumulation in float32.
_ROUNDING = 0.009

Best = tuple[Float[Array, "N K"], Int[Array, "N K"]]
"""Scores and row numbers of the best neighbors."""


def engine() -> exact_search.Engine:
  """Returns the engine for this machine: `compare` on accelerators, NumPy on CPUs."""
  return exact_search.compare if jax.default_backend() == "cpu" else compare


def anywhere(
  source: exact_search.UnitVectors,
  target: exact_search.UnitVectors,
  forward: exact_search.Neighbors,
  backward: exact_search.Neighbors | None,
  /,
) -> None:
  """The `exact_search.Engine` that `engine` returns in the process that calls it."""
  engine()(source, target, forward, backward)


def compare(
  source: exact_search.UnitVectors,
  target: exact_search.UnitVectors,
  forward: exact_search.Neighbors,
  backward: exact_search.Neighbors | None,
  /,
) -> None:
  """An `exact_search.Engine`: matmuls on all devices, targets sharded.

  For one direction they are in bfloat16, and the best of each block are compared again in float32.
  A query whose other targets may be as near, given the largest rounding error of bfloat16, is
  compared with all targets of the block in float32. Thus the result is that of float32.
  """
  mesh = Mesh(np.array(jax.local_devices()), _AXIS)
  width = _few(len(target), _TARGETS)
  width += -width % mesh.size
  if backward is None:
    _compare_forward(mesh, width, source, target, forward)
  else:
    _compare_both(mesh, width, source, target, forward, backward)


def _compare_both(
  mesh: Mesh,
  width: int,
  source: exact_search.UnitVectors,
  target: exact_search.UnitVectors,
  forward: exact_search.Neighbors,
  backward: exact_search.Neighbors,
) -> None:
  height = _few(len(source), _SOURCES)
  step = _step(mesh, min(backward.score_NK.shape[1], height))
  for row, held, query_BD, best in _source_blocks(mesh, height, source, forward):
    waiting = None
    for column, count, base_CD in _target_blocks(mesh, width, target):
      size_2 = np.array([len(held), count], np.int32)
      best, found = step(query_BD, base_CD, best, size_2, np.int32(column))
      # Merges the block before while the devices compute this one.
      _merge_backward(waiting)
      waiting = backward[column : column + count], found, row
    _merge_backward(waiting)
    _keep(held, best)


def _compare_forward(
  mesh: Mesh,
  width: int,
  source: exact_search.UnitVectors,
  target: exact_search.UnitVectors,
  forward: exact_search.Neighbors,
) -> None:
  height = _few(len(source), _SOURCES)
  step, exact_step = _rounded_step(mesh), _step(mesh, None)
  for _, held, query_BD, best in _source_blocks(mesh, height, source, forward):
    for column, count, base_CD in _target_blocks(mesh, width, target):
      size_2 = np.array([len(held), count], np.int32)
      new, unsure_B = step(query_BD, base_CD, best, size_2, np.int32(column))
      unsure_P = np.flatnonzero(np.asarray(unsure_B)[: len(held)])
      if len(unsure_P):
        few = _few(len(unsure_P), height)
        place_P = np.resize(unsure_P, few)
        old = jax.tree.map(lambda x, place_P=place_P: x[place_P], best)
        size_2 = np.array([len(unsure_P), count], np.int32)
        found, _ = exact_step(query_BD[place_P], base_CD, old, size_2, np.int32(column))
        # Padding is not part of the block, so that it is dropped.
        place_P = np.where(np.arange(few) < len(unsure_P), place_P, height)
        new = jax.tree.map(
          lambda x, y, place_P=place_P: x.at[place_P].set(y, mode="drop"), new, found
        )
      best = new
    _keep(held, best)


def _source_blocks(
  mesh: Mesh, height: int, source: exact_search.UnitVectors, forward: exact_search.Neighbors
) -> Iterator[tuple[int, exact_search.Neighbors, Float[Array, "B D"], Best]]:
  """Yields each block's first row and neighbors, and its vectors and neighbors on every device."""
  whole = NamedSharding(mesh, PartitionSpec())
  for row, source_BD in source.unit_blocks(height):
    held = forward[row : row + len(source_BD)]
    best = _padded(held.score_NK, height), _padded(held.index_NK.astype(np.int32), height)
    yield row, held, *jax.device_put((_padded(source_BD, height), best), whole)


def _target_blocks(
  mesh: Mesh, width: int, target: exact_search.UnitVectors
) -> Iterator[tuple[int, int, Float[Array, "C D"]]]:
  """Yields each block's first row, its number of rows, and its vectors, sharded over devices."""
  shared = NamedSharding(mesh, PartitionSpec(_AXIS))
  for column, target_CD in target.unit_blocks(width):
    yield column, len(target_CD), jax.device_put(_padded(target_CD, width), shared)


def _keep(held: exact_search.Neighbors, best: Best) -> None:
  held.score_NK[:], held.index_NK[:] = (np.asarray(x)[: len(held)] for x in best)


def _merge_backward(waiting: tuple[exact_search.Neighbors, Best, int] | None) -> None:
  if waiting is not None:
    best, found, row = waiting
    score_CK, index_CK = (np.asarray(x)[: len(best.score_NK)] for x in found)
    exact_search.merge(best, exact_search.Neighbors(index_CK, score_CK), row)


@functools.cache
def _step(mesh: Mesh, backward: int | None):
  """Compiles the comparison of two blocks.

  Args:
    mesh: Devices over which targets are sharded.
    backward: Number of sources to find for each target; None: no search in that direction.
  """

  def compare_block(
    query_BD: Float[Array, "B D"],
    base_CD: Float[Array, "C D"],
    best: Best,
    size_2: Int[Array, "2"],
    column: Int[Array, ""],
  ) -> tuple[Best, Best | None]:
    """Returns the best targets of the sources so far, and each target's best in the block.

    Args:
      query_BD: Unit vectors of sources, padded at the end.
      base_CD: This device's unit vectors of targets; the last ones are padded at the end.
      best: Best targets of each source so far.
      size_2: Number of sources and targets without padding.
      column: Number of the block's first target.
    """
    score_BC = jnp.matmul(query_BD, base_CD.T, precision=jax.lax.Precision.HIGHEST)
    score_BC, first = _without_padding(score_BC, size_2)
    new = jax.lax.top_k(score_BC, min(best[0].shape[1], len(base_CD)))
    best = _merge_devices(best, (new[0], new[1] + first + column))
    if backward is None:
      return best, None
    score_CK, index_CK = jax.lax.top_k(score_BC.T, backward)
    return best, (score_CK, index_CK)

  return _compiled(mesh, compare_block, None if backward is None else PartitionSpec(_AXIS))


@functools.cache
def _rounded_step(mesh: Mesh):
  """Compiles the comparison of sources with a block of targets, with matmuls in bfloat16."""

  def compare_block(
    query_BD: Float[Array, "B D"],
    base_CD: Float[Array, "C D"],
    best: Best,
    size_2: Int[Array, "2"],
    column: Int[Array, ""],
  ) -> tuple[Best, Bool[Array, "B"]]:
    """Returns the best targets of the sources so far, and which of them may be wrong.

    The arguments are those of `_step`.
    """
    rounded_BD, rounded_CD = (x.astype(jnp.bfloat16) for x in (query_BD, base_CD))
    score_BC = jnp.matmul(rounded_BD, rounded_CD.T, preferred_element_type=jnp.float32)
    score_BC, first = _without_padding(score_BC, size_2)
    k = best[0].shape[1]
    rough_BR, index_BR = jax.lax.top_k(score_BC, min(_CANDIDATES * k + _CANDIDATES, len(base_CD)))
    # Among equally near targets the first comes first.
    order_BR = jnp.argsort(index_BR, axis=1)
    index_BR, kept_BR = (jnp.take_along_axis(x, order_BR, axis=1) for x in (index_BR, rough_BR))

    def exact(own: tuple[Float[Array, "D"], Int[Array, "R"]]) -> Float[Array, "R"]:
      query_D, index_R = own
      return jnp.sum(query_D * base_CD[index_R], axis=1)

    score_BR = jax.lax.map(exact, (query_BD, index_BR), batch_size=min(_CHUNK, len(query_BD)))
    score_BR = jnp.where(kept_BR > -jnp.inf, score_BR, -jnp.inf)
    best = _merge_devices(best, (score_BR, index_BR + first + column))
    all_are_candidates = rough_BR.shape[1] == len(base_CD)
    rest_B = jnp.full(len(query_BD), -jnp.inf) if all_are_candidates else rough_BR[:, -1]
    rest_B = jax.lax.pmax(rest_B, _AXIS)
    return best, rest_B + _ROUNDING >= best[0][:, -1]

  return _compiled(mesh, compare_block, PartitionSpec())


def _compiled(mesh: Mesh, compare_block: Callable[..., Any], second: PartitionSpec | None):
  """Compiles a comparison of blocks; `second` is the layout of its second result."""
  whole, shared = PartitionSpec(), PartitionSpec(_AXIS)
  return jax.jit(
    jax.shard_map(
      compare_block,
      mesh=mesh,
      in_specs=(whole, shared, whole, whole, whole),
      out_specs=(whole, second),
      check_vma=False,
    )
  )


def _without_padding(
  score_BC: Float[Array, "B C"], size_2: Int[Array, "2"]
) -> tuple[Float[Array, "B C"], Int[Array, ""]]:
  """Returns the scores, -inf for padding, and the number of the device's first target."""
  height, width = score_BC.shape
  first = jax.lax.axis_index(_AXIS) * width
  real_C = first + jnp.arange(width) < size_2[1]
  real_B1 = jnp.arange(height)[:, None] < size_2[0]
  return jnp.where(real_C & real_B1, score_BC, -jnp.inf), first


def _merge_devices(best: Best, new: Best) -> Best:
  """Returns the best of those so far and of the new ones of all devices."""
  # Devices are in the order of their targets, and top_k prefers earlier entries.
  rest = (jax.lax.all_gather(x, _AXIS, axis=1, tiled=True) for x in new)
  score_BL, index_BL = (jnp.concatenate(x, axis=1) for x in zip(best, rest, strict=True))
  score_BK, order_BK = jax.lax.top_k(score_BL, best[0].shape[1])
  return score_BK, jnp.take_along_axis(index_BL, order_BK, axis=1)


def _few(count: int, most: int) -> int:
  """Returns a block size for `count` vectors; powers of two, so that few shapes are compiled."""
  return min(most, 1 << max(count - 1, 0).bit_length())


def _padded(rows_NX: np.ndarray, height: int) -> np.ndarray:
  return np.pad(rows_NX, [(0, height - len(rows_NX)), (0, 0)])
