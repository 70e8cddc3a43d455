"""CONTRASTIVE: a sentence encoder trained with in-batch negatives (VMSST paper, section 6.3)."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from vmsst import errors
from vmsst.losses import contrastive
from vmsst.models import base, gradient_caching, matryoshka
from vmsst.networks import sentence_encoder

SIMILARITIES = ("dot", "cosine")
PairLoss = Callable[..., Float[Array, "B"]]


def accuracy_metrics(forward_B: Float[Array, "B"], backward_B: Float[Array, "B"]) -> base.Metrics:
  """Returns the results of `in_batch_accuracy` as metrics: accuracy/forward, accuracy/backward."""
  return {
    "accuracy/forward": base.average(forward_B),
    "accuracy/backward": base.average(backward_B),
  }


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class InBatchNegativesModel(base.BitextModel):
  """A model whose loss compares the vectors of a pair with those of other pairs of the batch.

  The negatives are those of the global batch on any number of devices. Microbatches (a trainer
  setting) would divide it and are refused; `embedding_slices` saves as much memory.

  Attributes:
    similarity: "dot" (as in the paper) or "cosine".
    scale: Factor on every score, the inverse of a temperature.
    mask_duplicates: Whether to exclude pairs that share a text with a pair from its negatives, on
      whichever sides: a text that occurs twice in a batch has two correct answers.
    embedding_slices: Number of slices for gradient caching: the same gradient with the memory of
      one slice, which the backward pass computes again.
    matryoshka_dims: Numbers of first dimensions whose loss is averaged with that of the whole
      vectors, so that vectors can be cut to them; see `vmsst.models.matryoshka`.
    pair_loss: Computes the loss of each pair, [B], from the scores of all pairs and the mask of
      those that are no negatives, as `vmsst.losses.contrastive.contrastive_loss` does.

  The other options are those of `base.BitextModel`.
  """

  similarity: str = "dot"
  scale: float = 1.0
  mask_duplicates: bool = False
  embedding_slices: int = 1
  matryoshka_dims: Sequence[int] = ()
  pair_loss: PairLoss = contrastive.contrastive_loss

  def __post_init__(self) -> None:
    """Checks the options."""
    super().__post_init__()
    errors.check_choice("similarity", self.similarity, SIMILARITIES)
    errors.check_number("scale", self.scale, "(0, inf)")
    errors.as_integer("embedding_slices", self.embedding_slices)
    matryoshka.check_dims(self.matryoshka_dims)

  @property
  def compares_pairs(self) -> bool:
    """True: in-batch negatives."""
    return True

  def _duplicates(self, batch: base.Batch) -> Bool[Array, "B B"] | None:
    """Returns which pairs of the batch share a text; None if they stay negatives."""
    if not self.mask_duplicates:
      return None
    return contrastive.pairs_with_a_common_text(batch["inputs"], batch["targets"])

  def in_batch_loss(
    self, vector_B2S: Float[Array, "B 2 S"], batch: base.Batch
  ) -> tuple[Float[Array, "B"], base.Metrics]:
    """Returns the loss of each pair, and `accuracy_metrics`.

    Args:
      vector_B2S: Vectors of both sides of the batch's pairs.
      batch: The batch; its `inputs` and `targets` show duplicates.
    """
    same_BB = self._duplicates(batch)

    def loss(vector_B2S: Float[Array, "B 2 S"]) -> tuple[Float[Array, "B"], base.Metrics]:
      source_BS, target_BS = vector_B2S[:, 0], vector_B2S[:, 1]
      cosine = self.similarity == "cosine"
      score_BB = contrastive.similarity(source_BS, target_BS, cosine=cosine, scale=self.scale)
      loss_B = self.pair_loss(score_BB, same_BB=same_BB)
      return loss_B, accuracy_metrics(*contrastive.in_batch_accuracy(score_BB, same_BB=same_BB))

    return matryoshka.mean_loss(loss, vector_B2S, self.matryoshka_dims)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ContrastiveModel(InBatchNegativesModel):
  """One encoder for both sides, trained to score translations above other sentences of the batch.

  Attributes:
    network: Encoder of both sides.

  The other options are those of `InBatchNegativesModel`.
  """

  network: sentence_encoder.SentenceEncoder

  @property
  def sentence_encoder(self) -> sentence_encoder.SentenceEncoder:
    """The network itself."""
    return self.network

  def loss_fn(
    self, params: Any, batch: base.Batch, dropout_rng: jax.Array | None
  ) -> tuple[jax.Array, base.Metrics]:
    """Returns the mean over pairs of the contrastive loss, and metrics.

    Metrics: loss, accuracy/forward (inputs to targets) and accuracy/backward (0 to 1, within the
    batch), embedding_norm, tokens_per_example (real tokens of both sides), and those of
    `matryoshka.mean_loss`.
    """
    vector_B2S = gradient_caching.embed_pairs(
      self.network, params, batch, slices=self.embedding_slices, rng=dropout_rng
    )
    loss_B, metrics = self.in_batch_loss(vector_B2S, batch)
    metrics = {
      "loss": base.average(loss_B),
      **metrics,
      **base.vector_metrics(vector_B2S, batch),
    }
    return jnp.mean(loss_B), metrics
