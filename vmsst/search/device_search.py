"""Nearest-neighbor search on all devices in a process; see `vmsst.search.exact_search.Search`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from vmsst.search import exact_search

_AXIS = "targets"

Best = tuple[Float[Array, "N K"], Int[Array, "N K"]]  # scores and row numbers of the best neighbors


def search(
  source: exact_search.Selection,
  target: exact_search.Selection,
  k_source: int,
  k_target: int | None,
  /,
) -> exact_search.Both:
  """A `Search` that uses accelerators if JAX finds any, and NumPy on the CPU otherwise."""
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
  """A `Search` that computes float32 matmuls on all devices.

  Args:
    source: See `Search`.
    target: See `Search`.
    k_source: See `Search`.
    k_target: See `Search`.
    sources: Sources per block, replicated on all devices.
    targets: Targets per block, sharded over the devices. With the default block sizes, the scores
      for one block take 1 GB.
  """
  mesh = Mesh(np.array(jax.local_devices()), _AXIS)
  replicated, sharded = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), (_AXIS,)))
  width, height = _block_size(len(target.row_N), targets), _block_size(len(source.row_N), sources)
  width += -width % mesh.size
  forward = exact_search.no_neighbors(len(source.row_N), k_source)
  backward = None if k_target is None else exact_search.no_neighbors(len(target.row_N), k_target)
  step = _step(mesh, None if k_target is None else min(k_target, height))
  for rows, source_BD in source.unit_blocks(height):
    shape = height, k_source
    best = np.full(shape, -np.inf, np.float32), np.zeros(shape, np.int32)
    query_BD, best = jax.device_put((_pad_rows(source_BD, height), best), replicated)
    pending = None
    for columns, target_CD in target.unit_blocks(width):
      base_CD = jax.device_put(_pad_rows(target_CD, width), sharded)
      size_2 = np.array([len(source_BD), len(target_CD)], np.int32)
      best, block_best = step(query_BD, base_CD, best, size_2, np.int32(columns.start))
      # Merge the previous block while the devices compute the current block.
      _merge_backward(backward, pending, rows.start)
      pending = columns, block_best
    _merge_backward(backward, pending, rows.start)
    forward.score_NK[rows], forward.index_NK[rows] = (np.asarray(x)[: len(source_BD)] for x in best)
  return forward, backward


def _merge_backward(
  backward: exact_search.Neighbors | None, block: tuple[slice, Best] | None, start: int
) -> None:
  if backward is not None and block is not None:
    columns, neighbors = block
    score_CK, index_CK = (np.asarray(x)[: columns.stop - columns.start] for x in neighbors)
    exact_search.merge(backward, columns, exact_search.Neighbors(index_CK, score_CK), start)


@functools.cache
def _step(mesh: Mesh, backward: int | None):
  """Compiles the function that compares a block of sources with a block of targets.

  Args:
    mesh: Devices over which targets are sharded.
    backward: Number of sources to find for each target, or None to find only targets.
  """

  def compare_block(
    query_BD: Float[Array, "B D"],
    base_CD: Float[Array, "C D"],
    best: Best,
    size_2: Int[Array, "2"],
    column: Int[Array, ""],
  ) -> tuple[Best, Best | None]:
    """Returns each source's best targets so far, and each target's best sources in this block.

    Args:
      query_BD: Unit vectors for the sources, followed by padding.
      base_CD: Unit vectors for the targets on this device. On the last device, padding follows
        them.
      best: Best targets for each source from earlier blocks.
      size_2: Number of sources and number of targets, without padding.
      column: Row number of the block's first target.
    """
    score_BC = jnp.matmul(query_BD, base_CD.T, precision=jax.lax.Precision.HIGHEST)
    height, width = score_BC.shape
    first = jax.lax.axis_index(_AXIS) * width
    real_C = first + jnp.arange(width) < size_2[1]
    real_B1 = jnp.arange(height)[:, None] < size_2[0]
    score_BC = jnp.where(real_C & real_B1, score_BC, -jnp.inf)
    score_BK, index_BK = jax.lax.top_k(score_BC, min(best[0].shape[1], width))
    # Ties go to the lower row, because the devices hold the targets in row order and top_k prefers
    # earlier entries.
    block_best = (
      jax.lax.all_gather(x, _AXIS, axis=1, tiled=True)
      for x in (score_BK, index_BK + first + column)
    )
    score_BL, index_BL = (jnp.concatenate(x, axis=1) for x in zip(best, block_best, strict=True))
    score_BK, order_BK = jax.lax.top_k(score_BL, best[0].shape[1])
    best = score_BK, jnp.take_along_axis(index_BL, order_BK, axis=1)
    if backward is None:
      return best, None
    score_CK, index_CK = jax.lax.top_k(score_BC.T, backward)
    return best, (score_CK, index_CK)

  replicated, sharded = PartitionSpec(), PartitionSpec(_AXIS)
  return jax.jit(
    jax.shard_map(
      compare_block,
      mesh=mesh,
      in_specs=(replicated, sharded, replicated, replicated, replicated),
      out_specs=(replicated, None if backward is None else sharded),
      check_vma=False,
    )
  )


def _block_size(count: int, limit: int) -> int:
  """Returns a block size for `count` vectors: a power of two, so that JAX compiles few shapes."""
  return min(limit, 1 << max(count - 1, 0).bit_length())


def _pad_rows(rows_NX: np.ndarray, height: int) -> np.ndarray:
  return np.pad(rows_NX, [(0, height - len(rows_NX)), (0, 0)])
