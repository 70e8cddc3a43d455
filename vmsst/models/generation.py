"""What the models that generate sentences share: pairs as rows, and the decoder's score of them.

Axes: `R` counts the rows that a pair gives to one decoder call, `N` is `B R` rows of a batch, `Z`
is what the decoder is given of a sentence.
"""

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from vmsst import padding
from vmsst.losses import vocabulary
from vmsst.models import base
from vmsst.networks import vmsst


class Pairs(NamedTuple):
  """Both sides of each pair of a batch: `inputs`, then `targets`."""

  tokens_B2T: Int[Array, "B 2 T"]
  mask_B2T: Bool[Array, "B 2 T"]
  languages_B2: Int[Array, "B 2"]


def pairs_of(batch: base.Batch) -> Pairs:
  """Returns the sides of the batch's pairs, the shorter padded to the longer."""
  tokens_B2T = base.interleave_sides(batch["inputs"], batch["targets"])
  languages_B2 = jnp.concatenate([batch["input_language"], batch["target_language"]], axis=1)
  return Pairs(tokens_B2T, tokens_B2T != padding.PAD_ID, languages_B2)


def embed(
  network: vmsst.BitranslationNetwork, params: Any, pairs: Pairs
) -> Float[Array, "B 2 T D"]:
  """Returns the tokens' vectors, looked up once for encoders and decoder."""
  return cast(jax.Array, network.apply({"params": params}, pairs.tokens_B2T, method="embed"))


def rows(x: Float[Array, "B R ..."]) -> Float[Array, "N ..."]:
  """All rows one below the other; those of a pair stay together, and on their device."""
  return x.reshape(-1, *x.shape[2:])


def other_side(x: Float[Array, "B 2 ..."]) -> Float[Array, "B 2 ..."]:
  """The sides of each pair exchanged."""
  return jnp.flip(x, axis=1)


def split_rng(rng: jax.Array | None, count: int) -> list[jax.Array | None]:
  """`count` keys out of one, or as many times None."""
  return [None] * count if rng is None else list(jax.random.split(rng, count))


class Scores(NamedTuple):
  """The decoder's opinion of sentences.

  Attributes:
    weighted: Sum over all tokens of weight times negative log-likelihood.
    nll_BRT: Negative log-likelihood of each token in nats, without gradient.
    correct_BRT: Whether each token was the likeliest, without gradient.
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
  """Scores rows of tokens, given what the decoder is to know of each: one decoder call for all.

  Args:
    network: Has the decoder and the vocabulary projection.
    params: Its parameters.
    tokens_BRT: Tokens to predict; padding counts for nothing.
    embedded_BRTD: Their vectors.
    languages_BR: Their languages.
    sentence_BRZ: What the decoder is given of each row.
    weights_BR: Weight of each row's tokens.
    dropout_rng: Key of the decoder's dropout, or None.
  """
  hidden_NTD = vmsst.run(
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
  weights_BRT = weights_BR[..., None] * (tokens_BRT != padding.PAD_ID)
  weighted, aux = vocabulary.weighted_nll(
    *projection,
    rows(tokens_BRT),
    rows(weights_BRT),
    dtype=network.config.dtype,
  )
  shape = tokens_BRT.shape
  return Scores(weighted, aux.nll_BT.reshape(shape), aux.correct_BT.reshape(shape))


def token_metrics(
  name: str, scores: Scores, part: slice, mask_B2T: Bool[Array, "B 2 T"]
) -> base.Metrics:
  """Metrics per real token of two of a pair's rows: nll/<name> in nats and token_accuracy/<name>.

  Args:
    name: What the rows are.
    scores: Of all rows.
    part: Which rows.
    mask_B2T: Their real tokens.
  """
  count = jnp.sum(mask_B2T, dtype=jnp.float32)
  nll, correct = (
    jnp.sum(jnp.where(mask_B2T, value_BRT[:, part], 0.0))
    for value_BRT in (scores.nll_BRT, scores.correct_BRT)
  )
  return {
    f"nll/{name}": base.ratio(nll, count),
    f"token_accuracy/{name}": base.ratio(correct, count),
  }
