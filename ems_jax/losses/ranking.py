"""Translation ranking: additive margin softmax (AMS), and hard negatives next to in-batch ones.

With AMS, translations must outscore other sentences by a margin. Without a margin it is the
contrastive loss of EMS (EMS paper, section III-C, equation 8), on the cosines of the outputs of the
projection head. The denominators include sentences of the other side only: those of the same side
are not negatives.

Axes: `K` hard negatives of a sentence.

References: Guo et al. 2018; Chidambaram et al. 2019; Yang et al. 2019 (AMS, mUSE); Feng et al. 2022
(LaBSE, margin 0.3, scale 100); the EMS paper, section V (LaBSE-EMS, margin 0.3, scale 10).
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from vmsst.losses import contrastive


def additive_margin_softmax(
  cosine_BB: Float[Array, "B B"], *, margin: float, scale: float
) -> Float[Array, "B"]:
  """Returns the loss of each pair, summed over both directions, in nats.

  loss_i = -log softmax_j(x_ij)_i - log softmax_j(x_ji)_i
  x_ij = scale * (cos_ij - margin * [i = j])

  Args:
    cosine_BB: Cosines of every source (rows) with every target (columns), translations on the
      diagonal.
    margin: Subtracted from the cosine of a pair.
    scale: Factor on every score, the inverse of a temperature.

  Examples:
    >>> loss_B = additive_margin_softmax(jnp.eye(2), margin=0.3, scale=10.0)
    >>> [round(float(loss), 5) for loss in loss_B]  # 2 log(1 + exp(10 (0 - 0.7)))
    [0.00182, 0.00182]
  """
  score_BB = scale * (cosine_BB - margin * jnp.eye(len(cosine_BB), dtype=cosine_BB.dtype))
  return 2.0 * contrastive.contrastive_loss(score_BB)


def negative_scores(
  source_BS: Float[Array, "B S"],
  negative_BKS: Float[Array, "B K S"],
  *,
  cosine: bool = False,
  scale: float = 1.0,
) -> Float[Array, "B K"]:
  """Returns the score of every source with its own hard negatives, float32.

  Args:
    source_BS: Vectors of the sources.
    negative_BKS: Vectors of the hard negatives of each source.
    cosine: As for `vmsst.losses.contrastive.similarity`, which scores the batch.
    scale: As for `vmsst.losses.contrastive.similarity`.
  """
  score = functools.partial(contrastive.similarity, cosine=cosine, scale=scale)
  return jax.vmap(score)(source_BS[:, None], negative_BKS)[:, 0]


def ranking_loss(
  score_BB: Float[Array, "B B"],
  negative_BK: Float[Array, "B K"],
  *,
  same_BB: Bool[Array, "B B"] | None = None,
) -> Float[Array, "B"]:
  """Returns the loss of each source against all targets and its own hard negatives, in nats.

  loss_i = -log(exp(score_ii) / (sum_j exp(score_ij) + sum_k exp(negative_ik)))

  One direction, as in Guo et al.; for the other, pass the transposed scores and negative sources.
  The hard negatives of other sources are not used.

  Args:
    score_BB: Score of every source (rows) with every target (columns), translations on the
      diagonal.
    negative_BK: Score of every source with its hard negatives (see `negative_scores`); -inf where
      there is none.
    same_BB: Pairs that are not negatives of each other (see `vmsst.losses.contrastive`).
  """
  score_BB = contrastive.without_duplicates(score_BB, same_BB)
  rivals_BM = jnp.concatenate([score_BB, negative_BK], axis=1)
  return jax.nn.logsumexp(rivals_BM, axis=1) - contrastive.positives(score_BB)
