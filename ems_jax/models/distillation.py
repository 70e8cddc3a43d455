"""Distillation of sentence vectors, and the base class for models that learn from a teacher.

`DistillationModel` trains the vectors of both sides to match the teacher's vector for one side.

References: Reimers and Gurevych 2020, Making Monolingual Sentence Embeddings Multilingual; the
"MSE" baseline in Park et al. 2024, section 5.2.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ems_jax.losses import distillation
from vmsst import errors, languages
from vmsst.data import tables
from vmsst.losses import contrastive
from vmsst.models import base, matryoshka, vector_losses
from vmsst.models import contrastive as contrastive_model
from vmsst.networks import sentence_encoder

# Languages by decreasing corpus size (soft contrastive paper, section 4.1).
PRIORITY = ("en", "ru", "ja", "fr", "ko")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class StudentModel(vector_losses.VectorLossModel):
  """A sentence encoder that learns from the vectors of a frozen teacher.

  `vmsst data embed` computes the teacher's vectors. Batches contain these vectors in the features
  `teacher_inputs` and `teacher_targets`.

  Attributes:
    network: The student; it encodes both sides.
    priority: Language codes by decreasing priority. The anchor of a pair is the side in the
      language with the higher priority. Unlisted languages follow in the order of
      `vmsst.languages`.

  For the inherited attributes, see `vector_losses.VectorLossModel`.
  """

  network: sentence_encoder.SentenceEncoder
  max_length: int = 512
  priority: Sequence[str] = PRIORITY

  def __post_init__(self) -> None:
    super().__post_init__()
    _ = self._rank_L  # This raises an error if a language is unknown.

  @functools.cached_property
  def _rank_L(self) -> np.ndarray:
    """The priority rank of each language, used to choose the anchor of each pair."""
    rank_L = len(self.priority) + np.arange(languages.NUM_LANGUAGES, dtype=np.int32)
    for rank, code in reversed(list(enumerate(self.priority))):
      rank_L[languages.language(code).index] = rank
    return rank_L

  def _teacher_vectors(self, batch: base.Batch) -> Float[Array, "B 2 S"]:
    """Returns the teacher's vectors for both sides, in float32."""
    if missing := [name for name in tables.TEACHER_SIDES if name not in batch]:
      raise errors.InputError(
        f"the batch has no {' and '.join(missing)}; set TEACHER_VECTORS to a folder written by "
        "`vmsst data embed`, and TEACHER_DIM to the width of these vectors"
      )
    return jnp.stack([batch[name].astype(jnp.float32) for name in tables.TEACHER_SIDES], axis=1)

  def _anchors_first(
    self, vector_B2S: Float[Array, "B 2 S"], batch: base.Batch
  ) -> tuple[Float[Array, "B S"], Float[Array, "B S"]]:
    """Returns the vectors of the anchors, then the vectors of the opposite sides."""
    rank_L = jnp.asarray(self._rank_L)
    is_input_B1 = rank_L[batch["input_language"]] <= rank_L[batch["target_language"]]
    input_BS, target_BS = vector_B2S[:, 0], vector_B2S[:, 1]
    anchor_BS = jnp.where(is_input_B1, input_BS, target_BS)
    return anchor_BS, jnp.where(is_input_B1, target_BS, input_BS)


def feature_lengths(
  *, max_length: int, dimension: int | None = None, negatives: int = 0, scores: bool = False
) -> dict[str, Any]:
  """Returns the length of each feature in a batch of pairs, in SeqIO's format.

  Args:
    max_length: Maximum number of tokens per sentence.
    dimension: Width of the teacher's vectors; None if the model does not use them.
    negatives: Number of hard negatives per pair.
    scores: Whether each pair has scores for its target and its hard negatives.
  """
  lengths: dict[str, Any] = {
    **dict.fromkeys(tables.SIDES, max_length),
    **dict.fromkeys(tables.SIDES.values(), 1),
  }
  if dimension is not None:
    lengths |= dict.fromkeys(tables.TEACHER_SIDES, dimension)
  if negatives:
    lengths["negatives"] = (negatives, max_length)
  if scores:
    lengths["scores"] = 1 + negatives
  return lengths


def common_metrics(
  loss_B: Float[Array, "B"], vector_B2S: Float[Array, "B 2 S"], batch: base.Batch
) -> base.Metrics:
  """Returns metrics for the student's vectors.

  The metrics are loss, accuracy/forward (inputs to targets, by cosine) and accuracy/backward (0 to
  1, within the batch), embedding_norm and tokens_per_example (real tokens on both sides).
  """
  cosine_BB = contrastive.similarity(vector_B2S[:, 0], vector_B2S[:, 1], cosine=True)
  return {
    "loss": base.average(loss_B),
    **contrastive_model.accuracy_metrics(*contrastive.in_batch_accuracy(cosine_BB)),
    **base.vector_metrics(vector_B2S, batch),
  }


class DistillationModel(StudentModel):
  """Trains the vectors of both sides to match the teacher's vector for the anchor.

  The loss of a pair is the sum of two mean squared errors, between each student vector and the
  teacher's vector for the anchor (see `ems_jax.losses.distillation`). The anchor is the side in the
  language that comes first in `priority`, for example, English if `priority` is ("en",). Teacher
  and student vectors must have the same width.
  """

  def vector_loss(
    self, params: Any, vector_BRS: Float[Array, "B R S"], batch: base.Batch
  ) -> tuple[jax.Array, base.Metrics]:
    """Returns the mean loss over pairs, and metrics.

    Metrics: see `common_metrics` and `matryoshka.mean_loss`; also cosine/inputs and cosine/targets
    (-1 to 1, between the student's vector for that side and the teacher's vector for the anchor).
    For truncated vectors, the squared error is still divided by the full number of dimensions.

    Raises:
      InputError: If the teacher's and student's vectors differ in width.
    """
    anchor_BS, _ = self._anchors_first(self._teacher_vectors(batch), batch)
    if anchor_BS.shape[1] != vector_BRS.shape[2]:
      raise errors.InputError(
        f"the teacher's vectors have {anchor_BS.shape[1]} dimensions, but the student's vectors "
        f"have {vector_BRS.shape[2]}; set SentenceEncoder.latent_dim to {anchor_BS.shape[1]}"
      )

    def loss(vectors: Sequence[jax.Array]) -> tuple[Float[Array, "B"], base.Metrics]:
      vector_B2S, anchor_BS = vectors
      return distillation.mse(vector_B2S[:, 0], vector_B2S[:, 1], anchor_BS), {}

    loss_B, terms = matryoshka.mean_loss(loss, (vector_BRS, anchor_BS), self.matryoshka_dims)
    anchor_B1S = contrastive.unit_rows(anchor_BS)[:, None]
    cosine_B2 = jnp.sum(contrastive.unit_rows(vector_BRS) * anchor_B1S, axis=-1)
    return jnp.mean(loss_B), {
      **common_metrics(loss_B, vector_BRS, batch),
      **terms,
      "cosine/inputs": base.average(cosine_B2[:, 0]),
      "cosine/targets": base.average(cosine_B2[:, 1]),
    }
