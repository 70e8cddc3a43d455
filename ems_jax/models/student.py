"""What models that learn from a teacher share: options, vectors of pairs, the side it reads."""

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
from vmsst.networks import sentence_encoder
from vmsst.text import vocabularies

# Languages by the size of their corpora (section 4.1 of the soft contrastive paper).
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
      network: The student: encoder of both sides.
      input_vocabulary: Vocabulary of both sides.
      optimizer_def: T5X optimizer definition; None for evaluation.
      max_length: Tokens of a sentence, EOS included where the vocabulary has one.
      teacher: Computes vectors in the step; None: they come with the batch.
      priority: Codes of languages, the first one first: the side of a pair whose language comes
        first is its anchor, which the teacher reads where it reads one side. Languages that are not
        named come last; of two that are alike, `inputs` is the anchor.
      embedding_slices: Encode the batch in so many slices, recomputed in the backward pass: the
        same gradient at the memory of one slice.
    """
    super().__init__(
      network=network,
      input_vocabulary=input_vocabulary,
      optimizer_def=optimizer_def,
      max_length=max_length,
    )
    if embedding_slices < 1:
      raise errors.InputError(f"embedding_slices is {embedding_slices}; it has to be at least 1")
    if teacher is not None:
      teacher.check_vocabulary(input_vocabulary)
    self.teacher = teacher
    self.embedding_slices = embedding_slices
    self._rank_L = np.full(languages.NUM_LANGUAGES, len(priority), np.int32)
    for rank, code in reversed(list(enumerate(priority))):
      self._rank_L[languages.language(code).index] = rank

  @property
  def sentence_encoder(self) -> sentence_encoder.SentenceEncoder:
    """The trained network itself."""
    return self.network

  def _embed_pairs(
    self, params: Any, batch: base.Batch, dropout_rng: jax.Array | None
  ) -> Float[Array, "B 2 S"]:
    """The student's vectors of both sides, from one encoder call a slice."""
    tokens_B2T = base.interleave_sides(batch["inputs"], batch["targets"])
    return gradient_caching.embed_sides(
      self.network, params, tokens_B2T, slices=self.embedding_slices, rng=dropout_rng
    )

  def _anchor_vectors(self, batch: base.Batch) -> Float[Array, "B S"]:
    """The teacher's vectors of the sides whose languages have the higher priority."""
    return teachers.anchor_vectors(
      self.teacher, batch, self._anchor_is_input(batch), count=self.embedding_slices
    )

  def _pair_vectors(self, batch: base.Batch) -> Float[Array, "B 2 S"]:
    """The teacher's vectors of both sides."""
    return teachers.pair_vectors(self.teacher, batch, count=self.embedding_slices)

  def _anchor_is_input(self, batch: base.Batch) -> Bool[Array, "B"]:
    rank_L = jnp.asarray(self._rank_L)
    input_B, target_B = (
      rank_L[batch[name][:, 0]] for name in ("input_language", "target_language")
    )
    return input_B <= target_B


def common_metrics(
  loss_B: Float[Array, "B"], vector_B2S: Float[Array, "B 2 S"], batch: base.Batch
) -> base.Metrics:
  """Metrics of a student by its vectors.

  Returns:
    loss, accuracy/forward (inputs to targets, by cosine) and accuracy/backward (0 to 1, within the
    batch), embedding_norm, tokens_per_example (real tokens of both sides).
  """
  cosine_BB = contrastive.similarity(vector_B2S[:, 0], vector_B2S[:, 1], cosine=True)
  forward_B, backward_B = contrastive.in_batch_accuracy(cosine_BB)
  return {
    "loss": base.average(loss_B),
    "accuracy/forward": base.average(forward_B),
    "accuracy/backward": base.average(backward_B),
    "embedding_norm": base.average(jnp.linalg.norm(vector_B2S, axis=-1)),
    "tokens_per_example": base.average(base.tokens_per_pair(batch)),
  }
