"""Distillation of sentence vectors: both sides of a pair learn the teacher's vector of one side.

References: Reimers and Gurevych 2020, Making Monolingual Sentence Embeddings Multilingual; the
baseline "MSE" of Park et al. 2024, section 5.2.
"""

from typing import Any

import jax
import jax.numpy as jnp

from ems_jax.losses import distillation
from ems_jax.models import student
from vmsst import errors
from vmsst.losses import contrastive
from vmsst.models import base


class DistillationModel(student.StudentModel):
  """Trains the vectors of both sides to equal the teacher's vector of the anchor.

  The loss of a pair is the sum over its sides of the mean squared error of the student's vector
  (`ems_jax.losses.distillation`). The anchor is the side whose language comes first in `priority`,
  e.g. English with ("en",). Teacher and student vectors must have the same width.
  """

  def loss_fn(
    self, params: Any, batch: base.Batch, dropout_rng: jax.Array | None
  ) -> tuple[jax.Array, base.Metrics]:
    """Returns the mean over pairs of the loss, and metrics.

    Metrics: those of `student.common_metrics`, cosine/inputs and cosine/targets (between the
    student's vector of a side and the teacher's vector, -1 to 1).

    Raises:
      InputError: teacher and student vectors differ in width.
    """
    anchor_BS = self._anchor_vectors(batch)
    vector_B2S = self._student_vectors(params, batch, dropout_rng)
    if anchor_BS.shape[1] != vector_B2S.shape[2]:
      raise errors.InputError(
        f"the teacher's vectors have {anchor_BS.shape[1]} numbers and the student's "
        f"{vector_B2S.shape[2]}; set SentenceEncoder.latent_dim to the width of the teacher"
      )
    loss_B = distillation.mse(vector_B2S[:, 0], vector_B2S[:, 1], anchor_BS)
    anchor_B1S = contrastive.unit_rows(anchor_BS)[:, None]
    cosine_B2 = jnp.sum(contrastive.unit_rows(vector_B2S) * anchor_B1S, axis=-1)
    return jnp.mean(loss_B), {
      **student.common_metrics(loss_B, vector_B2S, batch),
      "cosine/inputs": base.average(cosine_B2[:, 0]),
      "cosine/targets": base.average(cosine_B2[:, 1]),
    }
