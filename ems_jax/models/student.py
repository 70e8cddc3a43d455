"""Base of models that learn from a teacher: options, vectors of pairs, choice of anchors."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ems_jax import teachers
from vmsst import errors, languages
from vmsst.losses import contrastive
from vmsst.models import base, gradient_caching
from vmsst.models import contrastive as contrastive_model
from vmsst.networks import sentence_encoder
from vmsst.text import vocabularies

# Languages by decreasing corpus size (soft contrastive paper, section 4.1).
PRIORITY = ("en", "ru", "ja", "fr", "ko")


class StudentModel(base.BitextModel):
  """A sentence encoder that learns from the vectors of a frozen teacher (`ems_jax.teachers`)."""

  network: sentence_encoder.SentenceEncoder

  def __init__(
    self,
    *,
    network: sentence_encoder.SentenceEncoder,
    input_vocabulary: vocabularies.Vocabulary,
    optimizer_def: Any = None,
    max_length: int = 512,
    teacher: teachers.Teacher | None = None,
    priority: Sequence[str] = PRIORITY,
    embedding_slices: int = 1,
  ):
    """Wires the network to the teacher.

    Args:
      network: The student, which encodes both sides.
      input_vocabulary: Vocabulary of both sides.
      optimizer_def: T5X optimizer definition; None for evaluation.
      max_length: Tokens of a sentence, including EOS if the vocabulary has it.
      teacher: Computes vectors in the training step; None: the batch contains them.
      priority: Language codes by decreasing priority. The side of a pair with the higher priority
        is its anchor, the side that the teacher encodes if it encodes only one. Other languages
        follow in the order of `vmsst.languages`.
      embedding_slices: Number of slices for gradient caching: the same gradient with the memory of
        one slice, which the backward pass encodes again.
    """
    super().__init__(
      network=network,
      input_vocabulary=input_vocabulary,
      optimizer_def=optimizer_def,
      max_length=max_length,
    )
    errors.check_integer("embedding_slices", embedding_slices)
    if teacher is not None:
      teacher.check_vocabulary(input_vocabulary)
    self.teacher = teacher
    self.embedding_slices = embedding_slices
    # A language pair has the same anchor in either direction.
    self._rank_L = len(priority) + np.arange(languages.NUM_LANGUAGES, dtype=np.int32)
    for rank, code in reversed(list(enumerate(priority))):
      self._rank_L[languages.language(code).index] = rank

  @property
  def sentence_encoder(self) -> sentence_encoder.SentenceEncoder:
    """The network itself."""
    return self.network

  def _student_vectors(
    self, params: Any, batch: base.Batch, dropout_rng: jax.Array | None
  ) -> Float[Array, "B 2 S"]:
    """Returns the student's vectors of both sides."""
    return gradient_caching.embed_pairs(
      self.network, params, batch, slices=self.embedding_slices, rng=dropout_rng
    )

  def _anchor_vectors(self, batch: base.Batch) -> Float[Array, "B S"]:
    """Returns the teacher's vectors of the anchors."""
    return teachers.anchor_vectors(
      self.teacher,
      batch,
      self.vocabulary,
      self._anchor_is_input(batch),
      count=self.embedding_slices,
    )

  def _pair_vectors(self, batch: base.Batch) -> Float[Array, "B 2 S"]:
    """Returns the teacher's vectors of both sides."""
    return teachers.pair_vectors(self.teacher, batch, self.vocabulary, count=self.embedding_slices)

  def _anchors_first(
    self, vector_B2S: Float[Array, "B 2 S"], batch: base.Batch
  ) -> tuple[Float[Array, "B S"], Float[Array, "B S"]]:
    """Returns the vectors of the anchors, and those of the other sides."""
    is_input_B1 = self._anchor_is_input(batch)[:, None]
    input_BS, target_BS = vector_B2S[:, 0], vector_B2S[:, 1]
    anchor_BS = jnp.where(is_input_B1, input_BS, target_BS)
    return anchor_BS, jnp.where(is_input_B1, target_BS, input_BS)

  def _anchor_is_input(self, batch: base.Batch) -> Bool[Array, "B"]:
    rank_L = jnp.asarray(self._rank_L)
    input_B, target_B = (
      rank_L[batch[name][:, 0]] for name in ("input_language", "target_language")
    )
    return input_B <= target_B


def common_metrics(
  loss_B: Float[Array, "B"], vector_B2S: Float[Array, "B 2 S"], batch: base.Batch
) -> base.Metrics:
  """Returns the metrics of a student's vectors.

  They are loss, accuracy/forward (inputs to targets, by cosine) and accuracy/backward (0 to 1,
  within the batch), embedding_norm and tokens_per_example (real tokens of both sides).
  """
  cosine_BB = contrastive.similarity(vector_B2S[:, 0], vector_B2S[:, 1], cosine=True)
  return {
    "loss": base.average(loss_B),
    **contrastive_model.accuracy_metrics(*contrastive.in_batch_accuracy(cosine_BB)),
    **base.vector_metrics(vector_B2S, batch),
  }
