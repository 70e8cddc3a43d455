"""Contrastive loss with the other pairs of the batch as negatives.

All functions see the whole batch: under a sharded `jit` the negatives are those of every device.

References: the VMSST paper, section 6.3; Sohn 2016 (N-pair loss).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def identical_rows(tokens_BT: Int[Array, "B T"]) -> Bool[Array, "B B"]:
  """True at (i, j) where rows i and j hold the same token ids; every row equals itself."""
  return jnp.all(tokens_BT[:, None, :] == tokens_BT[None, :, :], axis=-1)


def similarity(
  source_BS: Float[Array, "B S"],
  target_BS: Float[Array, "B S"],
  *,
  cosine: bool = False,
  scale: float = 1.0,
) -> Float[Array, "B B"]:
  """Score of every source (rows) with every target (columns), float32.

  Args:
    source_BS: Vectors of one side.
    target_BS: Vectors of the other; row i translates row i.
    cosine: Normalize the vectors first; the paper takes plain dot products.
    scale: Factor on every score, the inverse of a temperature.
  """
  source_BS, target_BS = source_BS.astype(jnp.float32), target_BS.astype(jnp.float32)
  if cosine:
    source_BS, target_BS = _unit_rows(source_BS), _unit_rows(target_BS)
  # Dot products of unnormalized vectors are large: the default precision of accelerators, bfloat16
  # passes, would round away the differences that the softmax needs.
  return scale * jnp.matmul(source_BS, target_BS.T, precision=jax.lax.Precision.HIGHEST)


def contrastive_loss(
  score_BB: Float[Array, "B B"], *, same_BB: Bool[Array, "B B"] | None = None
) -> Float[Array, "B"]:
  """Loss of each pair, both directions averaged, in nats.

  loss_i = -1/2 [log softmax_j(score_ij)_i + log softmax_j(score_ji)_i]

  Args:
    score_BB: Similarities with the positives on the diagonal (see `similarity`).
    same_BB: Symmetric; pairs j that are no negatives of pair i (see `identical_rows`). The diagonal
      is ignored. None: every other pair is a negative.

  Examples:
    >>> loss_B = contrastive_loss(jnp.array([[9.0, 0.0], [0.0, 9.0]]))
    >>> [round(float(loss), 5) for loss in loss_B]  # log(1 + exp(-9))
    [0.00012, 0.00012]
  """
  score_BB = _without_duplicates(score_BB, same_BB)
  # logsumexp takes its row's maximum out first, so scores of any size are safe.
  forward_B = jax.nn.logsumexp(score_BB, axis=1)
  backward_B = jax.nn.logsumexp(score_BB, axis=0)
  return 0.5 * (forward_B + backward_B) - _positives(score_BB)


def in_batch_accuracy(
  score_BB: Float[Array, "B B"], *, same_BB: Bool[Array, "B B"] | None = None
) -> tuple[Float[Array, "B"], Float[Array, "B"]]:
  """Whether the translation outscores all negatives: source to target, target to source (0 or 1).

  A tie counts as wrong, so that constant vectors score 0. Arguments as for `contrastive_loss`.
  """
  score_BB = _without_duplicates(score_BB, same_BB)
  positive_B = _positives(score_BB)
  negative_BB = jnp.where(_diagonal(score_BB), -jnp.inf, score_BB)
  forward_B = positive_B > jnp.max(negative_BB, axis=1)
  backward_B = positive_B > jnp.max(negative_BB, axis=0)
  return forward_B.astype(jnp.float32), backward_B.astype(jnp.float32)


def _unit_rows(x_BS: Float[Array, "B S"]) -> Float[Array, "B S"]:
  """Rows of length 1; a zero row stays zero and has a finite gradient."""
  square_B1 = jnp.sum(jnp.square(x_BS), axis=-1, keepdims=True)
  return x_BS * jax.lax.rsqrt(jnp.maximum(square_B1, 1e-12))


def _diagonal(score_BB: Float[Array, "B B"]) -> Bool[Array, "B B"]:
  return jnp.eye(score_BB.shape[0], dtype=bool)


def _positives(score_BB: Float[Array, "B B"]) -> Float[Array, "B"]:
  # A masked sum, not a gather: with rows on different devices it needs no communication.
  return jnp.sum(jnp.where(_diagonal(score_BB), score_BB, 0.0), axis=1)


def _without_duplicates(
  score_BB: Float[Array, "B B"], same_BB: Bool[Array, "B B"] | None
) -> Float[Array, "B B"]:
  if same_BB is None:
    return score_BB
  return jnp.where(same_BB & ~_diagonal(score_BB), -jnp.inf, score_BB)
