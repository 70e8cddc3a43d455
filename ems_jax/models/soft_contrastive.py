"""Soft contrastive learning: a student learns a teacher's similarities.

Reference: Park et al. 2024, Improving Multi-lingual Alignment Through Soft Contrastive Learning,
section 3.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ems_jax.losses import distillation as distillation_loss
from ems_jax.models import distillation
from vmsst import errors
from vmsst.losses import contrastive
from vmsst.models import base, matryoshka

LABELS = ("priority", "average", "hard")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class SoftContrastiveModel(distillation.StudentModel):
  """Trains cross-lingual similarities to match a teacher's similarities.

  The loss of a batch is L_cross (equation 2), or lambda L_cross + L_mono (equations 6 and 7).
  L_cross compares labels with the student's similarities between sources and targets. L_mono
  compares the same labels with the student's similarities among sources and among targets. Labels
  are computed from the teacher's similarities between anchors ("priority", equation 4) or from the
  teacher's similarities averaged over both sides ("average", equation 5). "hard" labels (equation
  3) do not use a teacher. Student and teacher similarities are cosines divided by the same
  temperature.

  In the equations, the source s is the anchor of a pair, and the target t is the opposite side. In
  batches with a single language pair (`one_language_pair` in `vmsst.data.loader`), all sources are
  therefore in one language and all targets in another, so L_mono is monolingual, as in the paper.
  In batches with several language pairs, labels compare sentences in different languages, so the
  teacher must support all of these languages.

  Candidates come from the global batch, regardless of the number of devices. By default, an error
  is raised if the trainer divides batches into microbatches, because each pair would then have
  fewer candidates. To save the same amount of memory, use `embedding_slices` instead.

  Attributes:
    labels: "priority", "average" or "hard".
    scale: Factor applied to every cosine, 1 / tau.
    monolingual: Whether to add L_mono to the loss (TCM).
    cross_weight: lambda, the weight of L_cross if L_mono is added; unused otherwise.
    row_normalized: Whether to use the paper's labels, normalized over targets, in both directions
      (see `ems_jax.losses.distillation`).

  For the inherited attributes, see `distillation.StudentModel`.
  """

  labels: str = "priority"
  scale: float = 10.0
  monolingual: bool = True
  cross_weight: float = 0.1
  row_normalized: bool = False

  def __post_init__(self) -> None:
    super().__post_init__()
    errors.check_choice("labels", self.labels, LABELS)
    errors.check_number("scale", self.scale, "(0, inf)")
    errors.check_number("cross_weight", self.cross_weight, "[0, inf)")

  @property
  def compares_pairs(self) -> bool:
    """True, because the other pairs in the batch are candidates."""
    return True

  def vector_loss(
    self, params: Any, vector_BRS: Float[Array, "B R S"], batch: base.Batch
  ) -> tuple[jax.Array, base.Metrics]:
    """Returns the mean loss over pairs, and metrics.

    Metrics: see `distillation.common_metrics`; also loss/cross and, if `monolingual`, loss/mono
    (nats per pair, not multiplied by lambda), label/entropy (nats per label; a lower bound for each
    direction of loss/cross and loss/mono) and label/translation (0 to 1, the label's weight on the
    translation).
    """
    labels = self._labels(batch)

    def loss(vector_B2S: Float[Array, "B 2 S"]) -> tuple[Float[Array, "B"], base.Metrics]:
      source_BS, target_BS = self._anchors_first(vector_B2S, batch)
      cross_B = distillation_loss.cross_lingual_loss(self._score(source_BS, target_BS), labels)
      terms = {"loss/cross": base.average(cross_B)}
      if not self.monolingual:
        return cross_B, terms
      mono_B = distillation_loss.monolingual_loss(
        self._score(source_BS, source_BS), self._score(target_BS, target_BS), labels
      )
      return self.cross_weight * cross_B + mono_B, {**terms, "loss/mono": base.average(mono_B)}

    loss_B, terms = matryoshka.mean_loss(loss, vector_BRS, self.matryoshka_dims)
    entropy_B = jnp.sum(jax.scipy.special.entr(labels.row_BB), axis=1)
    return jnp.mean(loss_B), {
      **distillation.common_metrics(loss_B, vector_BRS, batch),
      **terms,
      "label/entropy": base.average(entropy_B),
      "label/translation": base.average(jnp.diag(labels.row_BB)),
    }

  def _labels(self, batch: base.Batch) -> distillation_loss.Labels:
    if self.labels == "hard":
      return distillation_loss.hard_labels(len(batch["inputs"]))
    source_BS, target_BS = self._anchors_first(self._teacher_vectors(batch), batch)
    score_BB = self._score(source_BS, source_BS)
    if self.labels == "average":
      score_BB = 0.5 * (score_BB + self._score(target_BS, target_BS))
    return distillation_loss.soft_labels(score_BB, row_normalized=self.row_normalized)

  def _score(self, x_BS: Float[Array, "B S"], y_BS: Float[Array, "B S"]) -> Float[Array, "B B"]:
    return contrastive.similarity(x_BS, y_BS, cosine=True, scale=self.scale)
