"""Updates only the rows of the token table that a batch uses.

For a 250,000 x 256 token table, an AdamW step reads four arrays of 256 MB and writes three arrays
of 256 MB, although a batch uses only a few thousand rows of the table. Before the gradients are
computed, `RowWise` copies the rows that the batch uses, from the table and from the optimizer's
moments. The model sees only a small table with these rows. After the update, the rows are written
back. The full table and its moments are updated in place, and a step allocates no other array of
the table's size.

The rows for tokens that are not in the batch have zero gradients. Therefore, the gradients and
their norm are the same as with an optimizer that updates the whole table. The updates differ,
however. With `RowWise`, momentum and weight decay do not change the rows for tokens that are not in
the batch, and the moments of these rows do not decay ("lazy Adam").
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from vmsst.train import optimizers

PyTree = Any

_MODULE, _TABLE, _ROWS = "token_embedder", "embedding", "rows"
# Batch features that contain token ids.
_TOKENS = ("inputs", "targets", "negatives")


class RowWise(optimizers.OptimizerDef):
  """Trains all parameters, but updates only the token table rows that a batch uses.

  The token table must be the parameter `token_embedder/embedding`, and only `t5.TokenEmbedder` may
  use it. Models that also predict tokens with the table, such as EMS, are not supported.

  Args:
    optimizer: An optax optimizer that treats rows independently, such as AdamW. Clipping by the
      global norm is allowed.
  """

  def __init__(self, optimizer: optimizers.OptaxWrapper):
    self._optimizer = optimizer

  def init_state(self, params: PyTree) -> PyTree:
    """Returns the state before the first step."""
    return self._optimizer.init_state(params)

  def select(self, params: PyTree, batch: Any) -> tuple[PyTree, Callable[[PyTree], PyTree]]:
    """Returns the parameters with only the batch's token rows, and a function that adds row ids."""
    tokens = jnp.concatenate([batch[name].reshape(-1) for name in _TOKENS if name in batch])
    count = params[_MODULE][_TABLE].shape[0]
    # JAX needs a fixed number of ids, so the ids are padded with an id past the end of the table.
    # For this id, `_rows` returns the last row of the table, and `put` writes nothing.
    ids_U = jnp.unique(tokens, size=min(len(tokens), count), fill_value=count)

    def complete(tree: PyTree) -> PyTree:
      return {**tree, _MODULE: {**tree[_MODULE], _ROWS: ids_U}}

    return _rows(params, ids_U), complete

  def apply_gradient(
    self, params: PyTree, state: PyTree, grads: PyTree, *, step: jax.Array, learning_rate: Any
  ) -> tuple[PyTree, PyTree]:
    """Returns the parameters and the state after one more step."""
    table = dict(grads[_MODULE])
    ids_U = table.pop(_ROWS)
    before = params, state
    rows, rows_state = _rows(before, ids_U)
    after = self._optimizer.apply_gradient(
      rows, rows_state, {**grads, _MODULE: table}, step=step, learning_rate=learning_rate
    )

    def put(path: Any, x: jax.Array, new: jax.Array) -> jax.Array:
      return x.at[ids_U].set(new, mode="drop") if _is_table(path) else new

    return jax.tree_util.tree_map_with_path(put, before, after)

  def logical_axes(self, params: PyTree, state: PyTree, param_axes: PyTree) -> PyTree:
    """Returns `state` with every array replaced by its PartitionSpec, or by None if replicated."""
    return self._optimizer.logical_axes(params, state, param_axes)


def _rows(tree: PyTree, ids_U: Int[Array, "U"]) -> PyTree:
  """Returns parameters or moments with the token table reduced to the rows `ids_U`."""

  def take(path: Any, x: jax.Array) -> jax.Array:
    return jnp.take(x, ids_U, axis=0, mode="clip") if _is_table(path) else x

  return jax.tree_util.tree_map_with_path(take, tree)


def _is_table(path: Any) -> bool:
  return [getattr(entry, "key", None) for entry in path[-2:]] == [_MODULE, _TABLE]
