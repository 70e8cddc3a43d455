"""Translation ranking: additive margin softmax (AMS).

With AMS, translations must outscore other sentences by a margin. With a margin of 0, AMS is the
same as the contrastive loss in EMS (EMS paper, section III-C, equation 8), which is computed from
the cosines between outputs of the projection head. Negatives come only from the opposite side: the
negatives of a source are targets, and the negatives of a target are sources.

References: Chidambaram et al. 2019; Yang et al. 2019 (AMS); Feng et al. 2022
(LaBSE, margin 0.3, scale 100); the EMS paper, section V (LaBSE-EMS, margin 0.3, scale 10).
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from vmsst.losses import contrastive


def additive_margin_softmax(
  cosine_BB: Float[Array, "B B"], *, margin: float, scale: float
) -> Float[Array, "B"]:
  """Returns the loss of each pair, summed over both directions, in nats.

  loss_i = -log softmax_j(x_ij)_i - log softmax_j(x_ji)_i
  x_ij = scale * (cos_ij - margin * [i = j])

  Args:
    cosine_BB: Cosines between sources (rows) and targets (columns), with translations on the
      diagonal.
    margin: Subtracted from the cosine of each pair.
    scale: Factor applied to every score; the inverse of the temperature.

  Examples:
    >>> loss_B = additive_margin_softmax(jnp.eye(2), margin=0.3, scale=10.0)
    >>> [round(float(loss), 5) for loss in loss_B]  # 2 log(1 + exp(10 (0 - 0.7)))
    [0.00182, 0.00182]
  """
  score_BB = scale * (cosine_BB - margin * jnp.eye(len(cosine_BB), dtype=cosine_BB.dtype))
  return 2.0 * contrastive.contrastive_loss(score_BB)
