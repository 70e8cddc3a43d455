"""CONTRASTIVE: a sentence encoder trained with in-batch negatives (VMSST paper, section 6.3).

Axes: `K` hard negatives per pair, `U` tokens per hard negative.

References for hard negatives: Guo et al. 2018, Yang et al. 2019 (mUSE), Wang et al. 2022 (E5).
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from vmsst import errors
from vmsst.losses import contrastive
from vmsst.models import base, matryoshka, vector_losses
from vmsst.networks import sentence_encoder

SIMILARITIES = ("dot", "cosine")
PairLoss = Callable[..., Float[Array, "B"]]


def accuracy_metrics(forward_B: Float[Array, "B"], backward_B: Float[Array, "B"]) -> base.Metrics:
  """Returns both results of `in_batch_accuracy`, as accuracy/forward and accuracy/backward."""
  return {
    "accuracy/forward": base.average(forward_B),
    "accuracy/backward": base.average(backward_B),
  }


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class InBatchNegativesModel(vector_losses.VectorLossModel):
  """A model whose loss compares each pair with the other pairs in the batch.

  Negatives come from the global batch, regardless of the number of devices. By default, an error is
  raised if the trainer divides batches into microbatches, because each pair would then have fewer
  negatives. To save the same amount of memory, use `embedding_slices` instead.

  Attributes:
    similarity: "dot" (as in the VMSST paper) or "cosine".
    scale: Factor applied to every score; the inverse of the temperature.
    mask_duplicates: Whether pairs that share a text, on either side, are excluded from each other's
      negatives. Otherwise, if a text occurs twice in a batch, a correct translation would count as
      a negative.
    symmetric: Whether to average the losses from sources to targets and from targets to sources. If
      False, only the loss from sources to targets is used.
    share_negatives: Whether to compare each source with the hard negatives of all pairs, as in E5
      and sentence-transformers. If False, each source is compared only with the hard negatives of
      its own pair, as in mUSE.
    pair_loss: Function that returns the loss of each pair, [B], and has the same arguments as
      `vmsst.losses.contrastive.contrastive_loss`. The argument `symmetric` is passed only if the
      attribute `symmetric` is False, and `negative_BN` only if the batch has hard negatives.

  For the inherited attributes, see `vector_losses.VectorLossModel`.
  """

  similarity: str = "dot"
  scale: float = 1.0
  mask_duplicates: bool = False
  symmetric: bool = True
  share_negatives: bool = True
  pair_loss: PairLoss = contrastive.contrastive_loss

  def __post_init__(self) -> None:
    super().__post_init__()
    errors.check_choice("similarity", self.similarity, SIMILARITIES)
    errors.check_number("scale", self.scale, "(0, inf)")

  @property
  def compares_pairs(self) -> bool:
    """True, because the loss uses in-batch negatives."""
    return True

  def score(
    self, source_BS: Float[Array, "B S"], target_NS: Float[Array, "N S"]
  ) -> Float[Array, "B N"]:
    """Returns the scores between all sources and all targets."""
    cosine = self.similarity == "cosine"
    return contrastive.similarity(source_BS, target_NS, cosine=cosine, scale=self.scale)

  def in_batch_loss(
    self,
    vector_B2S: Float[Array, "B 2 S"],
    batch: base.Batch,
    negative_BKS: Float[Array, "B K S"] | None = None,
  ) -> tuple[Float[Array, "B"], base.Metrics]:
    """Returns the loss of each pair, and metrics.

    Metrics: see `accuracy_metrics`. If the batch contains hard negatives, there are two more
    metrics: accuracy/negatives (0 to 1, the fraction of hard negatives that score below the target)
    and negatives_per_example (mean number of hard negatives per pair that are not ignored).

    Args:
      vector_B2S: Vectors of both sides of each pair.
      batch: The batch; duplicates are detected in its `inputs` and `targets`.
      negative_BKS: Vectors of the hard negatives in the feature `negatives`.
    """
    same_BB = None
    if self.mask_duplicates:
      same_BB = contrastive.pairs_with_a_common_text(batch["inputs"], batch["targets"])
    vectors: tuple[jax.Array, ...] = (vector_B2S,)
    usable_BBK = None
    if negative_BKS is not None:
      vectors = (vector_B2S, negative_BKS)
      usable_BBK = contrastive.usable_negatives(
        batch["negatives"], batch["inputs"], batch["targets"], same_BB
      )

    def loss(vectors: Sequence[jax.Array]) -> tuple[Float[Array, "B"], base.Metrics]:
      source_BS, target_BS = vectors[0][:, 0], vectors[0][:, 1]
      score_BB = self.score(source_BS, target_BS)
      negative_BBK = None
      if usable_BBK is not None:
        negative_BN = self.score(source_BS, vectors[1].reshape(-1, source_BS.shape[1]))
        negative_BBK = jnp.where(usable_BBK, negative_BN.reshape(usable_BBK.shape), -jnp.inf)
      return self.loss_of_scores(score_BB, negative_BBK, same_BB, batch)

    return matryoshka.mean_loss(loss, vectors, self.matryoshka_dims)

  def loss_of_scores(
    self,
    score_BB: Float[Array, "B B"],
    negative_BBK: Float[Array, "B B K"] | None,
    same_BB: Bool[Array, "B B"] | None,
    batch: base.Batch,
  ) -> tuple[Float[Array, "B"], base.Metrics]:
    """Returns the loss of each pair, and the metrics of `in_batch_loss`.

    Args:
      score_BB: Scores between sources (rows) and targets (columns).
      negative_BBK: Scores between each source and the hard negatives of every pair; -inf for hard
        negatives that the source is not compared with.
      same_BB: True for pairs that are not negatives of each other.
      batch: The batch.
    """
    metrics = accuracy_metrics(*contrastive.in_batch_accuracy(score_BB, same_BB=same_BB))
    options: dict[str, Any] = {} if self.symmetric else {"symmetric": False}
    if negative_BBK is not None:
      # The diagonal contains the scores between each source and the hard negatives of its own pair.
      negative_BK = contrastive.positives(negative_BBK)
      shared_BN = negative_BBK.reshape(len(score_BB), -1)
      options["negative_BN"] = shared_BN if self.share_negatives else negative_BK
      below_BK = negative_BK < contrastive.positives(score_BB)[:, None]
      count_B = jnp.sum(negative_BK > -jnp.inf, axis=1)
      below = jnp.sum(below_BK & (negative_BK > -jnp.inf))
      metrics["accuracy/negatives"] = base.ratio(below, jnp.sum(count_B))
      metrics["negatives_per_example"] = base.average(count_B)
    return self.pair_loss(score_BB, same_BB=same_BB, **options), metrics


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ContrastiveModel(InBatchNegativesModel):
  """One encoder for both sides, trained to score translations above other sentences in the batch.

  Batches may contain hard negatives in the feature `negatives` (int32, [B, K, U]): K wrong targets
  for each source. The encoder encodes these sentences as well as both sides of each pair. Hard
  negatives that contain only padding are ignored. With `mask_duplicates`, a source ignores hard
  negatives that equal a text in its own pair or in a pair that shares a text with its own pair.

  Attributes:
    network: Encoder for both sides.

  For the inherited attributes, see `InBatchNegativesModel`.
  """

  network: sentence_encoder.SentenceEncoder

  _TEXTS = ("inputs", "targets", "negatives")

  def vector_loss(
    self, params: Any, vector_BRS: Float[Array, "B R S"], batch: base.Batch
  ) -> tuple[jax.Array, base.Metrics]:
    """Returns the mean contrastive loss over pairs, and metrics.

    Metrics: loss, accuracy/forward (inputs to targets) and accuracy/backward (targets to inputs;
    both from 0 to 1, within the batch), embedding_norm, tokens_per_example (real tokens on both
    sides), and the metrics of `in_batch_loss` and `matryoshka.mean_loss`.
    """
    vector_B2S = vector_BRS[:, :2]
    negative_BKS = vector_BRS[:, 2:] if "negatives" in batch else None
    loss_B, metrics = self.in_batch_loss(vector_B2S, batch, negative_BKS)
    metrics = {"loss": base.average(loss_B), **metrics, **base.vector_metrics(vector_B2S, batch)}
    return jnp.mean(loss_B), metrics
