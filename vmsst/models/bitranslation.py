"""The BITRANSLATION model, and functions that VMSST also uses to arrange pairs and score tokens.

Axes: `R` rows per pair in one decoder call, `N` = `B R` rows per batch, `Z` width of the decoder's
conditioning vector.
"""

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from vmsst import arrays
from vmsst.losses import vocabulary
from vmsst.models import base
from vmsst.networks import sentence_encoder, vmsst


class Pairs(NamedTuple):
  """Both sides of each pair in a batch, `inputs` first and `targets` second."""

  tokens_B2T: Int[Array, "B 2 T"]
  mask_B2T: Bool[Array, "B 2 T"]
  languages_B2: Int[Array, "B 2"]


def pairs_in_batch(batch: base.Batch) -> Pairs:
  """Returns both sides of the pairs in a batch, with the shorter side padded to the longer one."""
  tokens_B2T = base.interleave(batch["inputs"], batch["targets"])
  languages_B2 = jnp.concatenate([batch["input_language"], batch["target_language"]], axis=1)
  return Pairs(tokens_B2T, tokens_B2T != arrays.PAD_ID, languages_B2)


def embed(
  network: vmsst.BitranslationNetwork, params: Any, pairs: Pairs
) -> Float[Array, "B 2 T D"]:
  """Looks up the token vectors once, for the encoders and the decoder."""
  return cast(jax.Array, network.apply({"params": params}, pairs.tokens_B2T, method="embed"))


def rows(x: Float[Array, "B R ..."]) -> Float[Array, "N ..."]:
  """Merges the first two axes; the rows of a pair stay together, on the same device."""
  return x.reshape(-1, *x.shape[2:])


def other_side(x: Float[Array, "B 2 ..."]) -> Float[Array, "B 2 ..."]:
  """Swaps the two sides of each pair."""
  return jnp.flip(x, axis=1)


class Scores(NamedTuple):
  """Decoder scores for the tokens of a batch.

  Attributes:
    weighted: Weighted sum of the negative log-likelihoods of all tokens.
    nll_BRT: Negative log-likelihood of each token in nats, without gradient.
    correct_BRT: Whether each token scored higher than all other tokens, without gradient.
  """

  weighted: Float[Array, ""]
  nll_BRT: Float[Array, "B R T"]
  correct_BRT: Bool[Array, "B R T"]


def score(
  network: vmsst.BitranslationNetwork,
  params: Any,
  tokens_BRT: Int[Array, "B R T"],
  embedded_BRTD: Float[Array, "B R T D"],
  languages_BR: Int[Array, "B R"],
  sentence_BRZ: Float[Array, "B R Z"],
  weights_BR: Float[Array, "B R"],
  *,
  dropout_rng: jax.Array | None,
) -> Scores:
  """Scores the tokens of all rows in one decoder call, given a conditioning vector for each row.

  Args:
    network: Network with a decoder and a vocabulary projection.
    params: Network parameters.
    tokens_BRT: Tokens to predict; padding is ignored.
    embedded_BRTD: Token vectors.
    languages_BR: Language of each row.
    sentence_BRZ: Conditioning vector for each row.
    weights_BR: Weight of the tokens in each row.
    dropout_rng: Random key for decoder dropout, or None.
  """
  hidden_NTD = sentence_encoder.run(
    network,
    params,
    "decode",
    rows(embedded_BRTD),
    rows(languages_BR),
    rows(sentence_BRZ),
    dropout_rng=dropout_rng,
  )
  projected = network.apply({"params": params}, hidden_NTD, rows(sentence_BRZ), method="project")
  projection = cast(vmsst.Projection, projected)
  weights_BRT = weights_BR[..., None] * (tokens_BRT != arrays.PAD_ID)
  weighted, aux = vocabulary.weighted_nll(
    *projection, rows(tokens_BRT), rows(weights_BRT), dtype=network.config.dtype
  )
  shape = tokens_BRT.shape
  return Scores(weighted, aux.nll_BT.reshape(shape), aux.correct_BT.reshape(shape))


def token_metrics(
  name: str, scores: Scores, indices: slice, mask_B2T: Bool[Array, "B 2 T"]
) -> base.Metrics:
  """Returns nll/<name> and token_accuracy/<name>: averages over the tokens of two rows per pair.

  Args:
    name: Suffix of the metric names, for example "translation".
    scores: Scores of all rows.
    indices: Indices of the two rows.
    mask_B2T: True for tokens of the two rows, False for padding.
  """
  count = jnp.sum(mask_B2T, dtype=jnp.float32)
  nll, correct = (
    jnp.sum(jnp.where(mask_B2T, value_BRT[:, indices], 0.0))
    for value_BRT in (scores.nll_BRT, scores.correct_BRT)
  )
  return {
    f"nll/{name}": base.ratio(nll, count),
    f"token_accuracy/{name}": base.ratio(correct, count),
  }


class BitranslationModel(base.BitextModel):
  """Predicts each sentence from the semantic mean of its translation (VMSST paper).

  The loss of a pair (x_i, x_j) is -log p(x_i | mu(x_j)) - log p(x_j | mu(x_i)), where mu(x) is the
  semantic mean of the sentence x. Both terms are summed over real tokens, including EOS.
  """

  network: vmsst.BitranslationNetwork

  @property
  def sentence_encoder(self) -> sentence_encoder.SentenceEncoder:
    """The semantic encoder with the head that computes the mean."""
    return sentence_encoder.SentenceEncoder(self.network.config, self.network.latent_dim)

  def loss_fn(
    self, params: Any, batch: base.Batch, dropout_rng: jax.Array | None
  ) -> tuple[jax.Array, base.Metrics]:
    """Returns the mean translation loss over pairs, and metrics.

    Metrics: loss, nll/translation (nats per token), token_accuracy/translation, embedding_norm,
    tokens_per_example (real tokens on both sides).
    """
    encoder_rng, decoder_rng = base.split_rng(dropout_rng, 2)
    pairs = pairs_in_batch(batch)
    count = pairs.tokens_B2T.shape[0]
    embedded_B2TD = embed(self.network, params, pairs)
    mean_NS = sentence_encoder.run(
      self.network,
      params,
      "semantic_mean",
      rows(embedded_B2TD),
      rows(pairs.mask_B2T),
      dropout_rng=encoder_rng,
    )
    mean_B2S = mean_NS.reshape(count, 2, -1)
    scores = score(
      self.network,
      params,
      pairs.tokens_B2T,
      embedded_B2TD,
      pairs.languages_B2,
      other_side(mean_B2S),
      jnp.full((count, 2), 1 / count),
      dropout_rng=decoder_rng,
    )
    metrics = {
      "loss": base.ratio(scores.weighted * count, count),
      **token_metrics("translation", scores, slice(0, 2), pairs.mask_B2T),
      **base.vector_metrics(mean_B2S, batch),
    }
    return scores.weighted, metrics
