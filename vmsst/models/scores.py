"""Models that learn from gold similarities of pairs, or from a teacher's scores for candidates.

Axes: `K` hard negatives per pair, `C` = 1 + K candidates per query (the target, then the hard
negatives).
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from vmsst import errors
from vmsst.losses import contrastive, scores
from vmsst.models import base, matryoshka, vector_losses
from vmsst.models import contrastive as contrastive_model
from vmsst.networks import sentence_encoder


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class SimilarityModel(vector_losses.VectorLossModel):
  """Trains an encoder on pairs with gold similarities, as in semantic textual similarity.

  The gold similarity of each pair is read from the float32 feature `scores`, [B, 1].

  Attributes:
    network: Encoder for both sides.
    loss: "cosent" uses only the order of the gold similarities in a batch, so they may have any
      range; "mse" is the mean squared error of the cosines, so gold similarities must lie between
      -1 and 1.
    scale: Factor that "cosent" applies to every cosine; the inverse of the temperature.

  For the inherited attributes, see `vector_losses.VectorLossModel`.
  """

  network: sentence_encoder.SentenceEncoder
  loss: str = "cosent"
  scale: float = 20.0

  def __post_init__(self) -> None:
    super().__post_init__()
    errors.check_choice("loss", self.loss, ("cosent", "mse"))
    errors.check_number("scale", self.scale, "(0, inf)")

  @property
  def compares_pairs(self) -> bool:
    """Whether the loss ranks the pairs in a batch."""
    return self.loss == "cosent"

  def vector_loss(
    self, params: Any, vector_BRS: Float[Array, "B R S"], batch: base.Batch
  ) -> tuple[jax.Array, base.Metrics]:
    """Returns the loss of the batch, and metrics.

    Metrics: loss, error (mean absolute difference between cosine and gold similarity),
    embedding_norm, tokens_per_example (real tokens on both sides), and the metrics of
    `matryoshka.mean_loss`.
    """
    grade_B = batch["scores"][:, 0]

    def loss(vector_B2S: Float[Array, "B 2 S"]) -> tuple[Float[Array, "B"], base.Metrics]:
      unit_B2S = contrastive.unit_rows(vector_B2S)
      cosine_B = jnp.sum(unit_B2S[:, 0] * unit_B2S[:, 1], axis=-1)
      loss_B = jnp.square(cosine_B - grade_B)
      if self.loss == "cosent":
        loss_B = jnp.full_like(cosine_B, scores.cosent(cosine_B, grade_B, scale=self.scale))
      return loss_B, {"error": base.average(jnp.abs(cosine_B - grade_B))}

    loss_B, metrics = matryoshka.mean_loss(loss, vector_BRS, self.matryoshka_dims)
    return jnp.mean(loss_B), {
      "loss": base.average(loss_B),
      **metrics,
      **base.vector_metrics(vector_BRS, batch),
    }


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ScoreDistillationModel(contrastive_model.ContrastiveModel):
  """Trains an encoder to match a teacher's scores for each query's target and hard negatives.

  The teacher is usually a cross-encoder. The float32 feature `scores`, [B, 1 + K], contains the
  teacher's scores. `ContrastiveModel` describes which hard negatives are ignored.

  Attributes:
    distillation: "kl_divergence" compares the student's and the teacher's distributions over the
      candidates; "margin_mse" compares their margins between the target and each hard negative.
    temperature: Divisor applied to the teacher's scores by "kl_divergence"; the student's
      temperature is 1 / `scale`.
    contrastive_weight: Weight of the contrastive loss in the total loss; E5 uses 0.2.

  For the inherited attributes, see `ContrastiveModel`.
  """

  distillation: str = "kl_divergence"
  temperature: float = 1.0
  contrastive_weight: float = 0.0

  def __post_init__(self) -> None:
    super().__post_init__()
    errors.check_choice("distillation", self.distillation, ("kl_divergence", "margin_mse"))
    errors.check_number("temperature", self.temperature, "(0, inf)")
    errors.check_number("contrastive_weight", self.contrastive_weight, "[0, inf)")

  @property
  def compares_pairs(self) -> bool:
    """Whether the loss uses in-batch negatives."""
    return self.contrastive_weight > 0

  def loss_of_scores(
    self,
    score_BB: Float[Array, "B B"],
    negative_BBK: Float[Array, "B B K"] | None,
    same_BB: Bool[Array, "B B"] | None,
    batch: base.Batch,
  ) -> tuple[Float[Array, "B"], base.Metrics]:
    """Returns the loss of each pair, and metrics, including loss/distillation and loss/contrastive.

    For the arguments and the other metrics, see `InBatchNegativesModel.loss_of_scores`.
    """
    contrastive_B, metrics = super().loss_of_scores(score_BB, negative_BBK, same_BB, batch)
    if negative_BBK is None or "scores" not in batch:
      raise errors.InputError(
        "the batch has no hard negatives with a teacher's scores; add the features `negatives` and "
        "`scores` to the data"
      )
    negative_BK = contrastive.positives(negative_BBK)
    score_BC = jnp.concatenate([contrastive.positives(score_BB)[:, None], negative_BK], axis=1)
    arrays = (score_BC, batch["scores"], score_BC > -jnp.inf)
    if self.distillation == "margin_mse":
      loss_B = scores.margin_mse(*arrays)
    else:
      loss_B = scores.kl_divergence(*arrays, temperature=self.temperature)
    metrics["loss/distillation"] = base.average(loss_B)
    metrics["loss/contrastive"] = base.average(contrastive_B)
    return loss_B + self.contrastive_weight * contrastive_B, metrics
