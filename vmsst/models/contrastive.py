"""CONTRASTIVE: a sentence encoder trained with in-batch negatives (VMSST paper, section 6.3)."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vmsst import errors
from vmsst.losses import contrastive
from vmsst.models import base, gradient_caching
from vmsst.networks import sentence_encoder
from vmsst.text import vocabularies

SIMILARITIES = ("dot", "cosine")


def check_similarity(similarity: str, scale: float) -> None:
  """Raises InputError where one of these options of a contrastive loss cannot be used."""
  if similarity not in SIMILARITIES:
    raise errors.InputError(f"similarity is {similarity!r}; known: {', '.join(SIMILARITIES)}")
  if scale <= 0:
    raise errors.InputError(f"scale is {scale}; it has to be positive")


def in_batch_loss(
  vector_B2S: Float[Array, "B 2 S"],
  batch: base.Batch,
  *,
  similarity: str,
  scale: float,
  mask_duplicates: bool,
) -> tuple[Float[Array, "B"], base.Metrics]:
  """Contrastive loss of each pair of sentence vectors, and its metrics.

  Args:
    vector_B2S: Vectors of both sides of the batch's pairs.
    batch: Its `inputs` and `targets`; read for duplicates.
    similarity: One of SIMILARITIES.
    scale: Factor on every score.
    mask_duplicates: Take pairs that share a side with a pair out of its negatives.

  Returns:
    The loss, and the metrics accuracy/forward (inputs to targets), accuracy/backward (0 to 1,
    within the batch) and embedding_norm.
  """
  score_BB = contrastive.similarity(
    vector_B2S[:, 0], vector_B2S[:, 1], cosine=similarity == "cosine", scale=scale
  )
  same_BB = None
  if mask_duplicates:
    same_BB = contrastive.identical_rows(batch["inputs"])
    same_BB |= contrastive.identical_rows(batch["targets"])
  forward_B, backward_B = contrastive.in_batch_accuracy(score_BB, same_BB=same_BB)
  return contrastive.contrastive_loss(score_BB, same_BB=same_BB), {
    "accuracy/forward": base.average(forward_B),
    "accuracy/backward": base.average(backward_B),
    "embedding_norm": base.average(jnp.linalg.norm(vector_B2S, axis=-1)),
  }


class ContrastiveModel(base.BitextModel):
  """One encoder for both sides, trained to score a translation above the batch's other sentences.

  The negatives are the whole global batch, on any number of devices; with microbatches (a trainer's
  setting) they are those of a microbatch, so prefer `embedding_slices` where memory is short.
  """

  network: sentence_encoder.SentenceEncoder

  def __init__(
    self,
    *,
    network: sentence_encoder.SentenceEncoder,
    input_vocabulary: vocabularies.Vocabulary,
    optimizer_def: Any = None,
    max_length: int = 32,
    similarity: str = "dot",
    scale: float = 1.0,
    mask_duplicates: bool = False,
    embedding_slices: int = 1,
  ):
    """Wires the network to the loss.

    Args:
      network: Encoder of both sides.
      input_vocabulary: Vocabulary of both sides.
      optimizer_def: T5X optimizer definition; None for evaluation.
      max_length: Tokens of a sentence, EOS included.
      similarity: "dot" (the paper's) or "cosine".
      scale: Factor on every score, the inverse of a temperature.
      mask_duplicates: Take pairs that share a side with a pair out of its negatives: a sentence
        that occurs twice in a batch has two right answers.
      embedding_slices: Encode the batch in so many slices, recomputed in the backward pass: the
        same gradient at the memory of one slice.
    """
    super().__init__(
      network=network,
      input_vocabulary=input_vocabulary,
      optimizer_def=optimizer_def,
      max_length=max_length,
    )
    check_similarity(similarity, scale)
    if embedding_slices < 1:
      raise errors.InputError(f"embedding_slices is {embedding_slices}; it has to be at least 1")
    self.similarity = similarity
    self.scale = scale
    self.mask_duplicates = mask_duplicates
    self.embedding_slices = embedding_slices

  @property
  def sentence_encoder(self) -> sentence_encoder.SentenceEncoder:
    """The trained network itself."""
    return self.network

  def loss_fn(
    self, params: Any, batch: base.Batch, dropout_rng: jax.Array | None
  ) -> tuple[jax.Array, base.Metrics]:
    """Returns the mean over pairs of the contrastive loss, and metrics.

    Metrics: loss, accuracy/forward (inputs to targets) and accuracy/backward (0 to 1, within the
    batch), embedding_norm, tokens_per_example (real tokens of both sides).
    """
    vector_B2S = self._embed_pairs(params, batch, dropout_rng)
    loss_B, metrics = in_batch_loss(
      vector_B2S,
      batch,
      similarity=self.similarity,
      scale=self.scale,
      mask_duplicates=self.mask_duplicates,
    )
    metrics = {
      "loss": base.average(loss_B),
      **metrics,
      "tokens_per_example": base.average(base.tokens_per_pair(batch)),
    }
    return jnp.mean(loss_B), metrics

  def _embed_pairs(
    self, params: Any, batch: base.Batch, dropout_rng: jax.Array | None
  ) -> Float[Array, "B 2 S"]:
    """Vectors of both sides, from one encoder call a slice."""
    tokens_B2T = base.interleave_sides(batch["inputs"], batch["targets"])
    return gradient_caching.embed_sides(
      self.network, params, tokens_B2T, slices=self.embedding_slices, rng=dropout_rng
    )
