"""VMSST, and VMSST with an additional contrastive loss (VMSST paper, sections 4 and 6.3).

A pair (x_i, x_j) has three latents: z_sem, the meaning of both sentences, and z_i and z_j, the rest
of each. Sides are 0 (`inputs`) and 1 (`targets`).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from vmsst import errors
from vmsst.losses import gaussian
from vmsst.models import base, contrastive, generation
from vmsst.networks import sentence_encoder, vmsst
from vmsst.text import vocabularies

# Names of the latents of a pair in metrics.
LATENTS = ("semantic", "input_language", "target_language")
# Rows of a pair in the decoder call of a step.
_RECONSTRUCTION, _TRANSLATION = slice(0, 2), slice(2, 4)


class _Terms(NamedTuple):
  """The VMSST loss of a batch, its metrics, and the semantic means that other losses use."""

  loss: Float[Array, ""]
  metrics: base.Metrics
  semantic_mean_B2S: Float[Array, "B 2 S"]


class VmsstModel(base.BitextModel):
  """Source separation with a variational bound, and translation from the semantic mean.

  The loss of a pair, averaged over the batch's pairs:

    -log p(x_i | mu_sem(x_j), 0) - log p(x_j | mu_sem(x_i), 0) - elbo_weight * ELBO
    ELBO = log p(x_i | z_sem, z_i) + log p(x_j | z_sem, z_j) - kl_weight * (KL_sem + KL_i + KL_j)

  Log-likelihoods are summed over real tokens, EOS included, and KLs over dimensions. z_sem is
  sampled from the posterior of one side, which alternates by row and is swapped at every step. In
  translation, the language latent is its prior mean: the target's own latent would leak its text
  (`language_mean` uses it nevertheless), and the source's is of another language. The weight of the
  KLs rises linearly from 0 to `kl_weight` over the first `kl_anneal_steps` steps.
  """

  network: vmsst.VmsstNetwork

  def __init__(
    self,
    *,
    network: vmsst.VmsstNetwork,
    input_vocabulary: vocabularies.Vocabulary,
    optimizer_def: Any = None,
    max_length: int = 32,
    elbo_weight: float = 0.1,
    kl_anneal_steps: int = 1_000_000,
    kl_weight: float = 1.0,
    elbo_sample: bool = True,
    language_mean: bool = False,
  ):
    """Wires the network to the loss.

    Args:
      network: Both encoders and the decoder.
      input_vocabulary: Vocabulary of both sides.
      optimizer_def: T5X optimizer definition; None for evaluation.
      max_length: Tokens of a sentence, EOS included.
      elbo_weight: Lambda in the paper.
      kl_anneal_steps: Steps until the KL terms reach their full weight; 0: full from the start.
      kl_weight: Full weight of the KL terms; 0 omits them, but latents are still sampled.
      elbo_sample: Whether the ELBO's decoder gets samples of the latents, not posterior means as in
        the released code of Wieting et al. (2020).
      language_mean: Whether translation gets the posterior mean of the target's own language latent
        instead of the prior mean. It then sees the text that it predicts.
    """
    super().__init__(
      network=network,
      input_vocabulary=input_vocabulary,
      optimizer_def=optimizer_def,
      max_length=max_length,
    )
    weights = {"elbo_weight": elbo_weight, "kl_weight": kl_weight}
    for name, value in {**weights, "kl_anneal_steps": kl_anneal_steps}.items():
      errors.check_not_negative(name, value)
    errors.check_boolean("elbo_sample", elbo_sample)
    errors.check_boolean("language_mean", language_mean)
    self.elbo_weight = elbo_weight
    self.kl_anneal_steps = kl_anneal_steps
    self.kl_weight = kl_weight
    self.elbo_sample = elbo_sample
    self.language_mean = language_mean

  @property
  def sentence_encoder(self) -> sentence_encoder.SentenceEncoder:
    """The semantic encoder and its mean."""
    return sentence_encoder.SentenceEncoder(self.network.config, self.network.latent_dim)

  def loss_fn(
    self,
    params: Any,
    batch: base.Batch,
    dropout_rng: jax.Array | None,
    step: jax.Array | int | None = None,
  ) -> tuple[jax.Array, base.Metrics]:
    """Returns the mean over pairs of the loss, and metrics.

    Args:
      params: Parameters of the network.
      batch: `inputs`, `targets`, `input_language` and `target_language`.
      dropout_rng: Key of latents and dropout; None: means instead of samples, no dropout.
      step: Completed steps (see `vmsst.launch.step_trainer`); None: full KL weight.

    Metrics: loss; for translation and reconstruction, nll/ (nats per token) and token_accuracy/;
    for the latents semantic, input_language and target_language, kl/ (nats per sentence),
    kl_per_dim/ and active_units/; kl_weight; embedding_norm; tokens_per_example (real tokens of
    both sides).
    """
    terms = self._terms(params, batch, dropout_rng, step)
    return terms.loss, terms.metrics

  def _terms(
    self, params: Any, batch: base.Batch, rng: jax.Array | None, step: jax.Array | int | None
  ) -> _Terms:
    encoder_rng, decoder_rng, *latent_rngs = generation.split_rng(rng, 2 + len(LATENTS))
    pairs = generation.pairs_of(batch)
    count = pairs.tokens_B2T.shape[0]
    embedded_B2TD = generation.embed(self.network, params, pairs)
    by_side = self._posteriors(params, pairs, embedded_B2TD, encoder_rng)
    mean_B2S = by_side.semantic_mean_BS
    latents = _latents_of_pairs(by_side, alternating_sides(count, step))
    keyed = zip(latents.values(), latent_rngs, strict=True)
    samples = (gaussian.sample(*latent, key if self.elbo_sample else None) for latent, key in keyed)
    own_B2G = by_side.language_mean_BG
    translated_B2G = own_B2G if self.language_mean else jnp.zeros_like(own_B2G)
    weight_4 = jnp.array([self.elbo_weight, self.elbo_weight, 1.0, 1.0]) / count
    scores = generation.score(
      self.network,
      params,
      _twice(pairs.tokens_B2T),
      _twice(embedded_B2TD),
      _twice(pairs.languages_B2),
      _sentences(*samples, mean_B2S=mean_B2S, translated_B2G=translated_B2G),
      jnp.broadcast_to(weight_4, (count, 4)),
      dropout_rng=decoder_rng,
    )
    kl = {name: gaussian.kl_from_standard(*latent) for name, latent in latents.items()}
    kl_weight = self._kl_weight(step)
    loss = scores.weighted
    if self.kl_weight:  # otherwise an infinite KL would give NaN: 0 * infinity
      loss += self.elbo_weight * kl_weight * jnp.mean(sum(kl.values()))
    metrics = {
      "loss": base.ratio(loss * count, count),
      **generation.token_metrics("translation", scores, _TRANSLATION, pairs.mask_B2T),
      **generation.token_metrics("reconstruction", scores, _RECONSTRUCTION, pairs.mask_B2T),
      "kl_weight": base.ratio(kl_weight, 1),
      **base.vector_metrics(mean_B2S, batch),
    }
    for name, (mean_BK, _) in latents.items():
      metrics[f"kl/{name}"] = base.average(kl[name])
      metrics[f"kl_per_dim/{name}"] = base.average(kl[name] / mean_BK.shape[-1])
      metrics[f"active_units/{name}"] = base.ratio(gaussian.active_units(mean_BK), 1)
    return _Terms(loss, metrics, mean_B2S)

  def _posteriors(
    self,
    params: Any,
    pairs: generation.Pairs,
    embedded_B2TD: Float[Array, "B 2 T D"],
    dropout_rng: jax.Array | None,
  ) -> vmsst.Posteriors:
    """Returns the posteriors of both sides of each pair ([B, 2, ...]) from one call per encoder."""
    of_rows = vmsst.run(
      self.network,
      params,
      "posteriors",
      *(generation.rows(x) for x in (embedded_B2TD, pairs.mask_B2T, pairs.languages_B2)),
      dropout_rng=dropout_rng,
    )
    return vmsst.Posteriors(*(x.reshape(*pairs.languages_B2.shape, -1) for x in of_rows))

  def _kl_weight(self, step: jax.Array | int | None) -> jax.Array:
    if step is None or not self.kl_anneal_steps:
      return jnp.asarray(self.kl_weight, jnp.float32)
    risen = jnp.minimum(1.0, jnp.asarray(step, jnp.float32) / self.kl_anneal_steps)
    return self.kl_weight * risen


def _latents_of_pairs(
  by_side: vmsst.Posteriors, side_B: Int[Array, "B"]
) -> dict[str, tuple[jax.Array, jax.Array]]:
  """Returns mean and log-variance of each latent of a pair, [B, K]; z_sem from the given sides."""
  semantic = (by_side.semantic_mean_BS, by_side.semantic_log_variance_BS)
  language = (by_side.language_mean_BG, by_side.language_log_variance_BG)
  sides: list[Any] = [
    (take_side(x, side_B) for x in semantic),
    (x[:, 0] for x in language),
    (x[:, 1] for x in language),
  ]
  return {name: tuple(parts) for name, parts in zip(LATENTS, sides, strict=True)}


def _sentences(
  semantic_BS: Float[Array, "B S"],
  input_language_BG: Float[Array, "B G"],
  target_language_BG: Float[Array, "B G"],
  *,
  mean_B2S: Float[Array, "B 2 S"],
  translated_B2G: Float[Array, "B 2 G"],
) -> Float[Array, "B 4 Z"]:
  """Returns the conditioning vector of each row: sampled latents, then those of translation."""
  language_B2G = jnp.stack([input_language_BG, target_language_BG], axis=1)
  semantic_B2S = jnp.stack([semantic_BS, semantic_BS], axis=1)
  language_B4G = jnp.concatenate([language_B2G, translated_B2G], axis=1)
  semantic_B4S = jnp.concatenate([semantic_B2S, generation.other_side(mean_B2S)], axis=1)
  return jnp.concatenate([language_B4G, semantic_B4S], axis=-1)


def _twice(x: Float[Array, "B 2 ..."]) -> Float[Array, "B 4 ..."]:
  """Returns both sides twice, for reconstruction and for translation."""
  return jnp.concatenate([x, x], axis=1)


class VmsstContrastiveModel(VmsstModel):
  """CONTRASTIVE with VMSST as a second task; the loss is contrastive + vmsst_weight * VMSST."""

  def __init__(
    self,
    *,
    network: vmsst.VmsstNetwork,
    input_vocabulary: vocabularies.Vocabulary,
    optimizer_def: Any = None,
    max_length: int = 32,
    elbo_weight: float = 0.1,
    kl_anneal_steps: int = 1_000_000,
    kl_weight: float = 1.0,
    elbo_sample: bool = True,
    language_mean: bool = False,
    vmsst_weight: float = 0.0005,
    similarity: str = "dot",
    scale: float = 1.0,
    mask_duplicates: bool = False,
  ):
    """Wires the network to the losses.

    Args:
      network: Both encoders and the decoder.
      input_vocabulary: Vocabulary of both sides.
      optimizer_def: T5X optimizer definition; None for evaluation.
      max_length: Tokens of a sentence, EOS included.
      elbo_weight: Weight of the ELBO within the VMSST loss.
      kl_anneal_steps: Steps until the KL terms reach their full weight; 0: full from the start.
      kl_weight: Full weight of the KL terms; 0 omits them, but latents are still sampled.
      elbo_sample: As for `VmsstModel`.
      language_mean: As for `VmsstModel`.
      vmsst_weight: Weight of the VMSST loss, whose ELBO has the weight `elbo_weight` in addition.
      similarity: "dot" (as in the paper) or "cosine", of semantic means.
      scale: Factor on every score, the inverse of a temperature.
      mask_duplicates: Whether to exclude pairs that share a side with a pair from its negatives.
    """
    super().__init__(
      network=network,
      input_vocabulary=input_vocabulary,
      optimizer_def=optimizer_def,
      max_length=max_length,
      elbo_weight=elbo_weight,
      kl_anneal_steps=kl_anneal_steps,
      kl_weight=kl_weight,
      elbo_sample=elbo_sample,
      language_mean=language_mean,
    )
    errors.check_not_negative("vmsst_weight", vmsst_weight)
    contrastive.check_similarity(similarity, scale)
    self.vmsst_weight = vmsst_weight
    self.similarity = similarity
    self.scale = scale
    self.mask_duplicates = mask_duplicates

  def loss_fn(
    self,
    params: Any,
    batch: base.Batch,
    dropout_rng: jax.Array | None,
    step: jax.Array | int | None = None,
  ) -> tuple[jax.Array, base.Metrics]:
    """Returns the mean over pairs of the loss, and metrics.

    Args:
      params: As for `VmsstModel`.
      batch: As for `VmsstModel`.
      dropout_rng: As for `VmsstModel`.
      step: As for `VmsstModel`.

    Metrics: those of `VmsstModel`, loss/contrastive, loss/vmsst, accuracy/forward and
    accuracy/backward.
    """
    terms = self._terms(params, batch, dropout_rng, step)
    contrastive_B, metrics = contrastive.in_batch_loss(
      terms.semantic_mean_B2S,
      batch,
      similarity=self.similarity,
      scale=self.scale,
      mask_duplicates=self.mask_duplicates,
    )
    loss = jnp.mean(contrastive_B) + self.vmsst_weight * terms.loss
    count = contrastive_B.size
    return loss, {
      **terms.metrics,
      **metrics,
      "loss": base.ratio(loss * count, count),
      "loss/contrastive": base.average(contrastive_B),
      "loss/vmsst": base.ratio(terms.loss * count, count),
    }


def alternating_sides(pairs: int, step: jax.Array | int | None) -> Int[Array, "B"]:
  """Returns the side (0 or 1) from which z_sem is sampled: alternates by row and by step."""
  return (jnp.arange(pairs) + (0 if step is None else step)) % 2


def take_side(x_B2S: Float[Array, "B 2 S"], side_B: Int[Array, "B"]) -> Float[Array, "B S"]:
  """Returns one side of each pair."""
  return jnp.where(side_B[:, None] == 0, x_B2S[:, 0], x_B2S[:, 1])
