"""BITRANSLATION: generates each sentence of a pair from the other's vector (VMSST, section 6.3)."""

from typing import Any

import jax
import jax.numpy as jnp

from vmsst.models import base, generation
from vmsst.networks import sentence_encoder, vmsst


class BitranslationModel(base.BitextModel):
  """One semantic encoder and a decoder that translates its mean in both directions (VMSST paper).

  The loss of a pair is -log p(x_i | mu(x_j)) - log p(x_j | mu(x_i)), summed over real tokens, EOS
  included.
  """

  network: vmsst.BitranslationNetwork

  @property
  def sentence_encoder(self) -> sentence_encoder.SentenceEncoder:
    """The semantic encoder and its mean."""
    return sentence_encoder.SentenceEncoder(self.network.config, self.network.latent_dim)

  def loss_fn(
    self, params: Any, batch: base.Batch, dropout_rng: jax.Array | None
  ) -> tuple[jax.Array, base.Metrics]:
    """Returns the mean over pairs of the translation loss, and metrics.

    Metrics: loss, nll/translation (nats per token), token_accuracy/translation, embedding_norm,
    tokens_per_example (real tokens of both sides).
    """
    encoder_rng, decoder_rng = generation.split_rng(dropout_rng, 2)
    pairs = generation.pairs_in_batch(batch)
    count = pairs.tokens_B2T.shape[0]
    embedded_B2TD = generation.embed(self.network, params, pairs)
    mean_NS = vmsst.run(
      self.network,
      params,
      "semantic_mean",
      generation.rows(embedded_B2TD),
      generation.rows(pairs.mask_B2T),
      dropout_rng=encoder_rng,
    )
    mean_B2S = mean_NS.reshape(count, 2, -1)
    scores = generation.score(
      self.network,
      params,
      pairs.tokens_B2T,
      embedded_B2TD,
      pairs.languages_B2,
      generation.other_side(mean_B2S),
      jnp.full((count, 2), 1 / count),
      dropout_rng=decoder_rng,
    )
    metrics = {
      "loss": base.ratio(scores.weighted * count, count),
      **generation.token_metrics("translation", scores, slice(0, 2), pairs.mask_B2T),
      **base.vector_metrics(mean_B2S, batch),
    }
    return scores.weighted, metrics
