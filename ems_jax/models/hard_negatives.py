"""Hard negatives: a sentence encoder trained with similar but wrong translations.

Axes: `K` hard negatives of a sentence, `R` sentences of a pair, `U` tokens of any length.

References: Guo et al. 2018; mUSE (Yang et al. 2019); Table 2 of the soft contrastive paper, where
mUSE's loss with three hard negatives is a baseline.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ems_jax.losses import ranking
from vmsst import arrays
from vmsst.losses import contrastive
from vmsst.models import base, bitranslation, gradient_caching, matryoshka
from vmsst.models import contrastive as contrastive_model


class HardNegativesModel(contrastive_model.ContrastiveModel):
  """CONTRASTIVE with hard negatives of each source in addition to in-batch ones.

  The loss of a pair (x_i, y_i) with the hard negatives w_i1 .. w_iK:

    -1/2 log exp(s(x_i, y_i)) / (sum_j exp(s(x_i, y_j)) + sum_k exp(s(x_i, w_ik)))
    -1/2 log exp(s(x_i, y_i)) / sum_j exp(s(x_j, y_i))

  s is the score of CONTRASTIVE. Hard negatives are the feature `negatives`, int32 [B, K, U], in the
  language of the targets; rows with only padding are ignored. With `mask_duplicates`, so are hard
  negatives that equal a text of their pair, or of a pair that shares a text with it. Each pair has
  K more sentences to encode. The options are those of CONTRASTIVE.
  """

  def loss_fn(
    self, params: Any, batch: base.Batch, dropout_rng: jax.Array | None
  ) -> tuple[jax.Array, base.Metrics]:
    """Returns the mean over pairs of the loss, and metrics.

    Metrics: loss, accuracy/forward (inputs to targets) and accuracy/backward (0 to 1, within the
    batch), accuracy/negatives (0 to 1, hard negatives that score below the translation),
    negatives_per_example, embedding_norm, tokens_per_example (real tokens of both sides).
    """

    # Sides and hard negatives have separate encoder calls, because they may differ in length.
    def encode(tokens: tuple[jax.Array, jax.Array], rng: jax.Array | None) -> Any:
      return tuple(
        gradient_caching.embed_sides(self.network, params, tokens_BRU, slices=1, rng=part_rng)
        for tokens_BRU, part_rng in zip(tokens, bitranslation.split_rng(rng, 2), strict=True)
      )

    tokens_B2T = base.interleave_sides(batch["inputs"], batch["targets"])
    vector_B2S, negative_BKS = gradient_caching.map_slices(
      encode, (tokens_B2T, batch["negatives"]), slices=self.embedding_slices, rng=dropout_rng
    )
    given_BK = jnp.any(batch["negatives"] != arrays.PAD_ID, axis=-1)
    same_BB = self._duplicates(batch)
    if same_BB is not None:
      for side in ("inputs", "targets"):
        is_text_BKB = contrastive.identical_rows(batch["negatives"], batch[side])
        given_BK &= ~jnp.any(is_text_BKB & same_BB[:, None], axis=-1)

    def loss(vectors: tuple[jax.Array, jax.Array]) -> tuple[Float[Array, "B"], base.Metrics]:
      vector_B2S, negative_BKS = vectors
      source_BS, target_BS = vector_B2S[:, 0], vector_B2S[:, 1]
      options: dict[str, Any] = {"cosine": self.similarity == "cosine", "scale": self.scale}
      score_BB = contrastive.similarity(source_BS, target_BS, **options)
      negative_BK = ranking.negative_scores(source_BS, negative_BKS, **options)
      negative_BK = jnp.where(given_BK, negative_BK, -jnp.inf)
      to_target_B = ranking.ranking_loss(score_BB, negative_BK, same_BB=same_BB)
      to_source_B = ranking.ranking_loss(score_BB.T, negative_BK[:, :0], same_BB=same_BB)
      accuracies = contrastive.in_batch_accuracy(score_BB, same_BB=same_BB)
      below_BK = given_BK & (negative_BK < jnp.diagonal(score_BB)[:, None])
      return 0.5 * (to_target_B + to_source_B), {
        **contrastive_model.accuracy_metrics(*accuracies),
        "accuracy/negatives": base.ratio(jnp.sum(below_BK), jnp.sum(given_BK)),
      }

    loss_B, metrics = matryoshka.mean_loss(loss, (vector_B2S, negative_BKS), self.matryoshka_dims)
    return jnp.mean(loss_B), {
      "loss": base.average(loss_B),
      **metrics,
      "negatives_per_example": base.average(jnp.sum(given_BK, axis=1)),
      **base.vector_metrics(vector_B2S, batch),
    }
