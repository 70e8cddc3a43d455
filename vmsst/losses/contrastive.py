"""Contrastive loss with the other pairs in the batch as negatives.

All functions process the whole batch, so under a sharded `jit`, negatives come from every device.

References: the VMSST paper, section 6.3; Sohn 2016 (N-pair loss).
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from vmsst import arrays


def identical_rows(x: Int[Array, "... T"], y_BU: Int[Array, "B U"]) -> Bool[Array, "... B"]:
  """Compares each row of `x` with each row of `y_BU`; True if they are equal apart from padding."""
  length = max(x.shape[-1], y_BU.shape[-1])

  def pad(tokens: Int[Array, "... T"]) -> Int[Array, "... L"]:
    widths = [(0, 0)] * (tokens.ndim - 1) + [(0, length - tokens.shape[-1])]
    return jnp.pad(tokens, widths, constant_values=arrays.PAD_ID)

  return jnp.all(pad(x)[..., None, :] == pad(y_BU), axis=-1)


def pairs_with_a_common_text(
  inputs_BT: Int[Array, "B T"], targets_BU: Int[Array, "B U"]
) -> Bool[Array, "B B"]:
  """Returns a matrix that is True at (i, j) if a text of pair i is also a text of pair j."""
  texts = (inputs_BT, targets_BU)
  return functools.reduce(jnp.logical_or, [identical_rows(x, y) for x in texts for y in texts])


def similarity(
  source_BS: Float[Array, "B S"],
  target_BS: Float[Array, "B S"],
  *,
  cosine: bool = False,
  scale: float = 1.0,
) -> Float[Array, "B B"]:
  """Returns the scores between all sources (rows) and all targets (columns), float32.

  Args:
    source_BS: Source vectors.
    target_BS: Target vectors; row i is the translation of source i.
    cosine: Whether to normalize the vectors first; the VMSST paper uses plain dot products.
    scale: Factor applied to every score; the inverse of the temperature.
  """
  source_BS, target_BS = source_BS.astype(jnp.float32), target_BS.astype(jnp.float32)
  if cosine:
    source_BS, target_BS = unit_rows(source_BS), unit_rows(target_BS)
  # Dot products of unnormalized vectors are large, and the default precision on accelerators
  # (bfloat16) would round away differences that matter in the softmax.
  return scale * jnp.matmul(source_BS, target_BS.T, precision=jax.lax.Precision.HIGHEST)


def contrastive_loss(
  score_BB: Float[Array, "B B"],
  *,
  same_BB: Bool[Array, "B B"] | None = None,
  negative_BN: Float[Array, "B N"] | None = None,
  symmetric: bool = True,
  margin: float = 0.0,
) -> Float[Array, "B"]:
  """Returns the loss of each pair in nats, by default averaged over both directions.

  forward_i = -log(exp(score_ii) / (sum_j exp(score_ij) + sum_n exp(negative_in)))
  backward_i = -log(exp(score_ii) / sum_j exp(score_ji))

  Args:
    score_BB: Similarities with the positives on the diagonal (see `similarity`).
    same_BB: Symmetric mask of pairs that are not negatives of each other (see
      `pairs_with_a_common_text`); its diagonal is ignored (default: all pairs are negatives of each
      other).
    negative_BN: Similarities between each source and the hard negatives; -inf for missing
      negatives.
    symmetric: Whether to average the forward and backward losses. If False, only the forward loss
      is used.
    margin: Subtracted from score_ii before the softmax (additive margin softmax).

  Examples:
    >>> loss_B = contrastive_loss(jnp.array([[9.0, 0.0], [0.0, 9.0]]))
    >>> [round(float(loss), 5) for loss in loss_B]  # log(1 + exp(-9))
    [0.00012, 0.00012]
  """
  score_BB = without_duplicates(score_BB, same_BB)
  if margin:
    score_BB -= margin * jnp.eye(len(score_BB), dtype=score_BB.dtype)
  rivals_BM = score_BB if negative_BN is None else jnp.concatenate([score_BB, negative_BN], axis=1)
  # logsumexp subtracts the maximum first, so scores of any size are safe.
  log_sum_B = jax.nn.logsumexp(rivals_BM, axis=1)
  if symmetric:
    log_sum_B = 0.5 * (log_sum_B + jax.nn.logsumexp(score_BB, axis=0))
  return log_sum_B - positives(score_BB)


def usable_negatives(
  negatives_BKU: Int[Array, "B K U"],
  inputs_BT: Int[Array, "B T"],
  targets_BT: Int[Array, "B T"],
  same_BB: Bool[Array, "B B"] | None = None,
) -> Bool[Array, "B B K"]:
  """Returns whether the source of pair i is compared with hard negative k of pair j.

  Args:
    negatives_BKU: Tokens of the hard negatives for each pair. Rows with only padding stand for
      missing negatives.
    inputs_BT: Tokens of the sources.
    targets_BT: Tokens of the targets.
    same_BB: See `pairs_with_a_common_text`. If this mask is passed, a source is not compared with
      hard negatives that equal a text in its own pair or in a pair that shares a text with its own
      pair.
  """
  size = len(negatives_BKU)
  exists_BK = jnp.any(negatives_BKU != arrays.PAD_ID, axis=-1)
  if same_BB is None:
    return jnp.broadcast_to(exists_BK, (size, *exists_BK.shape))
  is_text_BKB = identical_rows(negatives_BKU, inputs_BT) | identical_rows(negatives_BKU, targets_BT)
  # Number of pairs that share a text with pair i and also contain negative k of pair j.
  counts_BBK = jnp.einsum("ip,jkp->ijk", same_BB.astype(float), is_text_BKB.astype(float))
  return exists_BK & (counts_BBK == 0)


def in_batch_accuracy(
  score_BB: Float[Array, "B B"], *, same_BB: Bool[Array, "B B"] | None = None
) -> tuple[Float[Array, "B"], Float[Array, "B"]]:
  """Returns 1 if a translation outscores all negatives, otherwise 0, for each pair and direction.

  The directions are source to target and target to source. Ties count as errors, so an encoder that
  returns the same vector for all texts has an accuracy of 0.

  Args:
    score_BB: See `contrastive_loss`.
    same_BB: See `contrastive_loss`.
  """
  score_BB = without_duplicates(score_BB, same_BB)
  positive_B = positives(score_BB)
  negative_BB = jnp.where(_diagonal(score_BB), -jnp.inf, score_BB)
  forward_B = positive_B > jnp.max(negative_BB, axis=1)
  backward_B = positive_B > jnp.max(negative_BB, axis=0)
  return forward_B.astype(jnp.float32), backward_B.astype(jnp.float32)


def unit_rows(x: Float[Array, "... S"]) -> Float[Array, "... S"]:
  """Returns the vectors scaled to length 1; zero vectors stay zero and have finite gradients."""
  square = jnp.sum(jnp.square(x), axis=-1, keepdims=True)
  return x * jax.lax.rsqrt(jnp.maximum(square, 1e-12))


def positives(score_BB: Float[Array, "B B *K"]) -> Float[Array, "B *K"]:
  """Returns the diagonal, computed as a masked sum to avoid communication if rows are sharded."""
  is_diagonal = jnp.expand_dims(_diagonal(score_BB), range(2, score_BB.ndim))
  return jnp.sum(jnp.where(is_diagonal, score_BB, 0.0), axis=1)


def without_duplicates(
  score_BB: Float[Array, "B B"], same_BB: Bool[Array, "B B"] | None
) -> Float[Array, "B B"]:
  """Returns the scores with -inf at pairs that are not negatives of each other."""
  if same_BB is None:
    return score_BB
  return jnp.where(same_BB & ~_diagonal(score_BB), -jnp.inf, score_BB)


def _diagonal(score_BB: Float[Array, "B B"]) -> Bool[Array, "B B"]:
  return jnp.eye(score_BB.shape[0], dtype=bool)
