"""Nearest neighbors on all devices of a process: a `Search` of `vmsst.search.exact_search`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from vmsst.search import exact_search

_AXIS = "targets"

Best = tuple[Float[Array, "N K"], Int[Array, "N K"]]
"""Scores and row numbers of the best neighbors."""


def search(
  source: exact_search.Selection,
  target: exact_search.Selection,
  k_source: int,
  k_target: int | None,
  /,
) -> exact_search.Both:
  """The `Search` for the machine it runs on: accelerators, or NumPy if there are none."""
  on_cpu = jax.default_backend() == "cpu"
  return (exact_search.search if on_cpu else search_on_devices)(source, target, k_source, k_target)


def search_on_devices(
  source: exact_search.Selection,
  target: exact_search.Selection,
  k_source: int,
  k_target: int | None,
  /,
  *,
  sources: int = 1 << 15,
  targets: int = 1 << 13,
) -> exact_search.Both:
  """A `Search` with float32 matmuls on all devices.

  Args:
    source: See `Search`.
    target: See `Search`.
    k_source: See `Search`.
    k_target: See `Search`.
    sources: Sources to compare at once, replicated on the devices.
    targets: Targets to compare at once, sharded over them. Scores of the defaults take 1 GB.
  """
  mesh = Mesh(np.array(jax.local_devices()), _AXIS)
  whole, shared = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), (_AXIS,)))
  width, height = _block_size(len(target.row_N), targets), _block_size(len(source.row_N), sources)
  width += -width % mesh.size
  forward = exact_search.no_neighbors(len(source.row_N), k_source)
  backward = None if k_target is None else exact_search.no_neighbors(len(target.row_N), k_target)
  step = _step(mesh, None if k_target is None else min(k_target, height))
  for rows, source_BD in source.unit_blocks(height):
    shape = height, k_source
    best = np.full(shape, -np.inf, np.float32), np.zeros(shape, np.int32)
    query_BD, best = jax.device_put((_pad_rows(source_BD, height), best), whole)
    waiting = None
    for columns, target_CD in target.unit_blocks(width):
      base_CD = jax.device_put(_pad_rows(target_CD, width), shared)
      size_2 = np.array([len(source_BD), len(target_CD)], np.int32)
      best, near = step(query_BD, base_CD, best, size_2, np.int32(columns.start))
      # Merges the block before while the devices compute this one.
      _merge_backward(backward, waiting, rows.start)
      waiting = columns, near
    _merge_backward(backward, waiting, rows.start)
    forward.score_NK[rows], forward.index_NK[rows] = (np.asarray(x)[: len(source_BD)] for x in best)
  return forward, backward


def _merge_backward(
  backward: exact_search.Neighbors | None, block: tuple[slice, Best] | None, start: int
) -> None:
  if backward is not None and block is not None:
    columns, near = block
    score_CK, index_CK = (np.asarray(x)[: columns.stop - columns.start] for x in near)
    exact_search.merge(backward, columns, exact_search.Neighbors(index_CK, score_CK), start)


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
    height, width = score_BC.shape
    first = jax.lax.axis_index(_AXIS) * width
    real_C = first + jnp.arange(width) < size_2[1]
    real_B1 = jnp.arange(height)[:, None] < size_2[0]
    score_BC = jnp.where(real_C & real_B1, score_BC, -jnp.inf)
    score_BK, index_BK = jax.lax.top_k(score_BC, min(best[0].shape[1], width))
    # Devices are in the order of their targets, and top_k prefers earlier entries.
    rest = (
      jax.lax.all_gather(x, _AXIS, axis=1, tiled=True)
      for x in (score_BK, index_BK + first + column)
    )
    score_BL, index_BL = (jnp.concatenate(x, axis=1) for x in zip(best, rest, strict=True))
    score_BK, order_BK = jax.lax.top_k(score_BL, best[0].shape[1])
    best = score_BK, jnp.take_along_axis(index_BL, order_BK, axis=1)
    if backward is None:
      return best, None
    score_CK, index_CK = jax.lax.top_k(score_BC.T, backward)
    return best, (score_CK, index_CK)

  whole, shared = PartitionSpec(), PartitionSpec(_AXIS)
  return jax.jit(
    jax.shard_map(
      compare_block,
      mesh=mesh,
      in_specs=(whole, shared, whole, whole, whole),
      out_specs=(whole, None if backward is None else shared),
      check_vma=False,
    )
  )


def _block_size(count: int, most: int) -> int:
  """Returns a block size for `count` vectors; powers of two, so that few shapes are compiled."""
  return min(most, 1 << max(count - 1, 0).bit_length())


def _pad_rows(rows_NX: np.ndarray, height: int) -> np.ndarray:
  return np.pad(rows_NX, [(0, height - len(rows_NX)), (0, 0)])
