"""The contrastive loss of EMS: `vmsst.losses.contrastive`, summed over directions.

Compute the scores with `vmsst.losses.contrastive.similarity`, `cosine=True` and `scale` 1 / T, from
the outputs of the projection head (EMS paper, equations 9 to 11).

Reference: the EMS paper, section III-C.
"""

from jaxtyping import Array, Bool, Float

from vmsst.losses import contrastive


def in_batch_loss(
  score_BB: Float[Array, "B B"], *, same_BB: Bool[Array, "B B"] | None = None
) -> Float[Array, "B"]:
  """Returns the loss of each pair, summed over both directions, in nats (equation 8).

  loss_i = -log softmax_j(score_ij)_i - log softmax_j(score_ji)_i

  The denominators of equation 8 include sentences of the other side only: those of the same side
  are not negatives.

  Args:
    score_BB: sim / T of every source (rows) with every target (columns), translations on the
      diagonal.
    same_BB: Pairs that are not negatives of each other (see `vmsst.losses.contrastive`); not used
      in the paper.
  """
  return 2.0 * contrastive.contrastive_loss(score_BB, same_BB=same_BB)
