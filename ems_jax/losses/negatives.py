"""Translation ranking with hard negatives in addition to in-batch ones.

Axes: `K` hard negatives of a sentence.

References: Guo et al. 2018; Chidambaram et al. 2019; Yang et al. 2019 (mUSE).
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from vmsst.losses import contrastive


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
  given_BK: Bool[Array, "B K"] | None = None,
  same_BB: Bool[Array, "B B"] | None = None,
) -> Float[Array, "B"]:
  """Returns the loss of each source against all targets and its own hard negatives, in nats.

  loss_i = -log(exp(score_ii) / (sum_j exp(score_ij) + sum_k exp(negative_ik)))

  One direction, as in Guo et al.; for the other, pass the transposed scores and negative sources.
  The hard negatives of other sources are not used.

  Args:
    score_BB: Score of every source (rows) with every target (columns), translations on the
      diagonal.
    negative_BK: Score of every source with its hard negatives (see `negative_scores`).
    given_BK: Which hard negatives exist; None: all.
    same_BB: Pairs that are not negatives of each other (see `vmsst.losses.contrastive`).
  """
  score_BB = contrastive.without_duplicates(score_BB, same_BB)
  if given_BK is not None:
    negative_BK = jnp.where(given_BK, negative_BK, -jnp.inf)
  rivals_BM = jnp.concatenate([score_BB, negative_BK], axis=1)
  return jax.nn.logsumexp(rivals_BM, axis=1) - contrastive.positives(score_BB)
