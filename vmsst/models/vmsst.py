"""VMSST, and VMSST with an additional contrastive loss (VMSST paper, sections 4 and 6.3).

A sentence pair (x_i, x_j) has three latents: z_sem represents the meaning that both sentences
share, z_i represents what is specific to x_i, and z_j represents what is specific to x_j. In a
batch, the feature `inputs` contains side 0 of each pair, and the feature `targets` contains side 1.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from vmsst import errors
from vmsst.errors import InputError
from vmsst.losses import gaussian
from vmsst.models import base, bitranslation, contrastive, gradient_caching
from vmsst.networks import sentence_encoder, vmsst

# A latent has collapsed if its mutual information with the text is below this value, in nats.
COLLAPSED_BELOW = 0.1
# Names of the latents in metrics.
LATENTS = ("semantic", "input_language", "target_language")
# Each pair has four rows in the decoder call: two reconstructions, then two translations.
_RECONSTRUCTION, _TRANSLATION = slice(0, 2), slice(2, 4)


class _Terms(NamedTuple):
  """The VMSST loss summed over pairs, its metrics, and values that other losses and metrics use."""

  total: Float[Array, ""]  # sum over pairs
  metrics: base.Metrics
  semantic_mean_B2S: Float[Array, "B 2 S"]
  latents: dict[str, gaussian.Latent]  # posteriors of each pair


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class VmsstModel(base.BitextModel):
  """Trains with a variational bound (ELBO) and with translation from the semantic mean.

  The loss of a batch is the mean over its pairs. The loss of a pair (x_i, x_j) is

    -log p(x_i | mu_sem(x_j), 0) - log p(x_j | mu_sem(x_i), 0) - elbo_weight * ELBO
    ELBO = log p(x_i | z_sem, z_i) + log p(x_j | z_sem, z_j) - kl_weight * (KL_sem + KL_i + KL_j)

  The first two terms are translation losses: each sentence is predicted from the semantic mean
  mu_sem of the other sentence and a language latent. By default, this language latent is the prior
  mean (zero): a latent from the sentence to predict would reveal its text, and a latent from the
  other sentence would describe a different language. In the ELBO, z_sem is sampled from the
  posterior of one sentence of the pair: the first or the second, alternating from pair to pair and
  from step to step. Log-likelihoods are summed over real tokens, including EOS; KLs are summed over
  dimensions. Over the first `kl_anneal_steps` steps, the weight of the KLs rises linearly from 0 to
  `kl_weight`.

  Attributes:
    network: Network with both encoders and the decoder.
    elbo_weight: Weight of the ELBO (lambda in the paper).
    kl_anneal_steps: Number of steps over which the KL weight rises to `kl_weight`; if 0, the KL
      weight is constant.
    kl_weight: Final weight of the KL terms; if 0, the KL terms are omitted, but latents are still
      sampled.
    elbo_sample: Whether the ELBO's reconstructions use samples of the latents. If False, the
      reconstructions use posterior means, as in the released code of Wieting et al. (2020).
    language_mean: Whether translation uses the posterior mean of the target's language latent
      instead of the prior mean. This posterior mean is computed from the text to predict.
    evaluation_samples: Number of samples for the likelihood bounds in evaluation; if 0, the bounds
      are omitted.

  For the inherited attributes, see `base.BitextModel`.
  """

  network: vmsst.VmsstNetwork
  elbo_weight: float = 0.1
  kl_anneal_steps: int = 1_000_000
  kl_weight: float = 1.0
  elbo_sample: bool = True
  language_mean: bool = False
  evaluation_samples: int = 4

  def __post_init__(self) -> None:
    super().__post_init__()
    errors.as_integer("evaluation_samples", self.evaluation_samples, minimum=0)
    for name in ("elbo_weight", "kl_weight", "kl_anneal_steps"):
      errors.check_number(name, getattr(self, name), "[0, inf)")

  @property
  def sentence_encoder(self) -> sentence_encoder.SentenceEncoder:
    """The semantic encoder with the head that computes the mean."""
    return sentence_encoder.SentenceEncoder(self.network.config, self.network.latent_dim)

  def loss_fn(
    self,
    params: Any,
    batch: base.Batch,
    dropout_rng: jax.Array | None,
    step: jax.Array | int | None = None,
  ) -> tuple[jax.Array, base.Metrics]:
    """Returns the mean loss over pairs, and metrics.

    Args:
      params: Network parameters.
      batch: Features `inputs`, `targets`, `input_language` and `target_language`.
      dropout_rng: Random key for sampling latents and for dropout. If None, the posterior means are
        used as latents, and there is no dropout.
      step: Number of completed training steps; required in training if the KL weight is annealed.
        If omitted in evaluation, the KL weight is `kl_weight`.

    Raises:
      InputError: If the KL weight is annealed but `step` is missing in training.

    Metrics: loss; nll/* (nats per token) and token_accuracy/* for translation and reconstruction;
    for each latent (semantic, input_language and target_language), kl/* (nats per sentence),
    kl_per_dim/*, active_dims/* (number of dimensions with a KL above 0.01 nats),
    mutual_information/* (between latent and text, in nats; at most the logarithm of the number of
    pairs) and collapsed/* (1 if the mutual information is below COLLAPSED_BELOW); kl_weight;
    embedding_norm; tokens_per_example (real tokens on both sides).
    """
    if step is None and dropout_rng is not None and self.kl_anneal_steps and self.kl_weight:
      raise InputError(
        "the trainer does not pass the step, so the KL weight would not rise; on upstream T5X, add "
        "--gin_file=runs/upstream.gin, or set KL_ANNEAL_STEPS = 0"
      )
    side_B = alternating_sides(batch["inputs"].shape[0], step)
    return self._objective(params, batch, side_B, dropout_rng, step)

  def eval_fn(
    self, params: Any, batch: base.Batch, step: jax.Array | int | None = None
  ) -> tuple[jax.Array, base.Metrics]:
    """Returns the training objective at `step` without dropout, and metrics.

    Latents are sampled as in training, but with a fixed key. The metrics are the metrics of
    `loss_fn` and two lower bounds on log p(x_i, x_j) in nats per pair: elbo and
    importance_weighted_bound. Both bounds are estimated from `evaluation_samples` samples and do
    not depend on the KL weight.
    """
    objective_rng, bounds_rng = jax.random.split(jax.random.key(0))
    side_B = alternating_sides(batch["inputs"].shape[0], None)
    loss, metrics = self._objective(params, batch, side_B, objective_rng, step, dropout=False)
    if self.evaluation_samples:
      metrics |= self._bounds(params, batch, side_B, bounds_rng)
    return loss, metrics

  def _objective(
    self,
    params: Any,
    batch: base.Batch,
    side_B: Int[Array, "B"],
    rng: jax.Array | None,
    step: jax.Array | int | None,
    *,
    dropout: bool = True,
  ) -> tuple[jax.Array, base.Metrics]:
    """Returns the loss and metrics; `side_B` selects the side from which each z_sem is sampled."""
    terms = self._terms(params, batch, side_B, rng, step, dropout=dropout)
    return terms.total / side_B.size, terms.metrics | latent_metrics(terms.latents, rng)

  def _terms(
    self,
    params: Any,
    batch: base.Batch,
    side_B: Int[Array, "B"],
    rng: jax.Array | None,
    step: jax.Array | int | None,
    *,
    dropout: bool,
  ) -> _Terms:
    encoder_rng, decoder_rng, *latent_rngs = base.split_rng(rng, 2 + len(LATENTS))
    if not dropout:
      encoder_rng = decoder_rng = None
    pairs = bitranslation.pairs_in_batch(batch)
    count = pairs.tokens_B2T.shape[0]
    embedded_B2TD = bitranslation.embed(self.network, params, pairs)
    by_side = self._posteriors(params, pairs, embedded_B2TD, encoder_rng)
    mean_B2S = by_side.semantic_mean_BS
    latents = _latents_of_pairs(by_side, side_B)
    keyed = zip(latents.values(), latent_rngs, strict=True)
    samples = (gaussian.sample(*latent, key if self.elbo_sample else None) for latent, key in keyed)
    language_B2G = by_side.language_mean_BG
    translated_B2G = language_B2G if self.language_mean else jnp.zeros_like(language_B2G)
    translated_B2Z = _conditions(translated_B2G, bitranslation.other_side(mean_B2S))
    # Each pair has four rows: reconstructions of both sides, then translations into both sides.
    weight_4 = jnp.array([self.elbo_weight, self.elbo_weight, 1.0, 1.0])
    scores = bitranslation.score(
      self.network,
      params,
      _twice(pairs.tokens_B2T),
      _twice(embedded_B2TD),
      _twice(pairs.languages_B2),
      jnp.concatenate([_sample_latents(*samples), translated_B2Z], axis=1),
      jnp.broadcast_to(weight_4, (count, 4)),
      dropout_rng=decoder_rng,
    )
    kl_B = sum(gaussian.kl_from_standard(*latent) for latent in latents.values())
    kl_weight = jnp.asarray(self.kl_weight, jnp.float32)
    if step is not None and self.kl_anneal_steps:
      kl_weight *= jnp.minimum(1.0, jnp.asarray(step, jnp.float32) / self.kl_anneal_steps)
    total = scores.weighted
    if self.kl_weight:  # 0 times an infinite KL would be NaN.
      total += self.elbo_weight * kl_weight * jnp.sum(kl_B)
    metrics = {
      "loss": base.ratio(total, count),
      **bitranslation.token_metrics("translation", scores, _TRANSLATION, pairs.mask_B2T),
      **bitranslation.token_metrics("reconstruction", scores, _RECONSTRUCTION, pairs.mask_B2T),
      "kl_weight": base.ratio(kl_weight, 1),
      **base.vector_metrics(mean_B2S, batch),
    }
    return _Terms(total, metrics, mean_B2S, latents)

  def _bounds(
    self, params: Any, batch: base.Batch, side_B: Int[Array, "B"], rng: jax.Array
  ) -> base.Metrics:
    """Returns bounds on log p(x_i, x_j); `side_B` selects the side from which z_sem is sampled."""
    pairs = bitranslation.pairs_in_batch(batch)
    embedded_B2TD = bitranslation.embed(self.network, params, pairs)
    by_side = self._posteriors(params, pairs, embedded_B2TD, None)
    latents = list(_latents_of_pairs(by_side, side_B).values())

    def log_likelihood(z: Sequence[jax.Array]) -> Float[Array, "B"]:
      scores = bitranslation.score(
        self.network,
        params,
        pairs.tokens_B2T,
        embedded_B2TD,
        pairs.languages_B2,
        _sample_latents(*z),
        jnp.ones_like(pairs.languages_B2, jnp.float32),
        dropout_rng=None,
      )
      return -jnp.sum(jnp.where(pairs.mask_B2T, scores.nll_BRT, 0.0), axis=(1, 2))

    bounds = gaussian.likelihood_bounds(
      log_likelihood, latents, samples=self.evaluation_samples, rng=rng
    )
    return {
      "elbo": base.average(bounds.elbo_B),
      "importance_weighted_bound": base.average(bounds.importance_weighted_B),
    }

  def _posteriors(
    self,
    params: Any,
    pairs: bitranslation.Pairs,
    embedded_B2TD: Float[Array, "B 2 T D"],
    dropout_rng: jax.Array | None,
  ) -> vmsst.Posteriors:
    """Returns the posteriors of both sides of each pair, [B, 2, ...]; calls each encoder once."""
    posteriors = sentence_encoder.run(
      self.network,
      params,
      "posteriors",
      *(bitranslation.rows(x) for x in (embedded_B2TD, pairs.mask_B2T, pairs.languages_B2)),
      dropout_rng=dropout_rng,
    )
    return vmsst.Posteriors(*(x.reshape(*pairs.languages_B2.shape, -1) for x in posteriors))


def latent_metrics(latents: Mapping[str, gaussian.Latent], rng: jax.Array | None) -> base.Metrics:
  """Returns the metrics of the latents in a batch; `VmsstModel.loss_fn` describes these metrics.

  Args:
    latents: Posteriors, keyed by latent name.
    rng: Random key for the samples from which mutual information is estimated (default: a fixed
      key).
  """
  metrics = {}
  keys = base.split_rng(jax.random.key(0) if rng is None else rng, len(latents))
  for (name, latent), key in zip(latents.items(), keys, strict=True):
    mean_BK, log_variance_BK = map(jax.lax.stop_gradient, latent)
    kl_B = gaussian.kl_from_standard(mean_BK, log_variance_BK)
    information = gaussian.mutual_information(mean_BK, log_variance_BK, cast(jax.Array, key))
    metrics[f"kl/{name}"] = base.average(kl_B)
    metrics[f"kl_per_dim/{name}"] = base.average(kl_B / mean_BK.shape[-1])
    active = gaussian.active_dimensions(mean_BK, log_variance_BK)
    metrics[f"active_dims/{name}"] = base.ratio(active, 1)
    metrics[f"mutual_information/{name}"] = base.ratio(information, 1)
    metrics[f"collapsed/{name}"] = base.ratio(information < COLLAPSED_BELOW, 1)
  return metrics


def _latents_of_pairs(
  by_side: vmsst.Posteriors, side_B: Int[Array, "B"]
) -> dict[str, gaussian.Latent]:
  """Returns the posteriors of each pair's latents; `side_B` selects the sentence for z_sem."""
  semantic = (by_side.semantic_mean_BS, by_side.semantic_log_variance_BS)
  language = (by_side.language_mean_BG, by_side.language_log_variance_BG)
  values: list[Any] = [
    (take_side(x, side_B) for x in semantic),
    (x[:, 0] for x in language),
    (x[:, 1] for x in language),
  ]
  latents = zip(LATENTS, values, strict=True)
  return {name: (mean_BK, log_variance_BK) for name, (mean_BK, log_variance_BK) in latents}


def _conditions(
  language_B2G: Float[Array, "B 2 G"], semantic_B2S: Float[Array, "B 2 S"]
) -> Float[Array, "B 2 Z"]:
  """Returns the conditioning vectors of both sides."""
  return jnp.concatenate([language_B2G, semantic_B2S], axis=-1)


def _sample_latents(
  semantic_BS: Float[Array, "B S"],
  input_language_BG: Float[Array, "B G"],
  target_language_BG: Float[Array, "B G"],
) -> Float[Array, "B 2 Z"]:
  """Returns the conditioning vectors for reconstructing both sides from sampled latents."""
  language_B2G = jnp.stack([input_language_BG, target_language_BG], axis=1)
  return _conditions(language_B2G, jnp.stack([semantic_BS, semantic_BS], axis=1))


def _twice(x: Float[Array, "B 2 ..."]) -> Float[Array, "B 4 ..."]:
  """Duplicates both sides: the first copy is for reconstruction, the second for translation."""
  return jnp.concatenate([x, x], axis=1)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class VmsstContrastiveModel(VmsstModel, contrastive.InBatchNegativesModel):
  """CONTRASTIVE with VMSST as a second task; the loss is contrastive + vmsst_weight * VMSST.

  The contrastive loss compares the semantic means of the sentences in a batch. Gradient caching
  covers both tasks, so only one slice of the batch is encoded and decoded at a time.

  Attributes:
    vmsst_weight: Weight of the VMSST loss. Within this loss, the weight of the ELBO is
      `elbo_weight`.

  For the inherited attributes, see `VmsstModel` and `contrastive.InBatchNegativesModel`.
  """

  vmsst_weight: float = 0.0005

  def __post_init__(self) -> None:
    super().__post_init__()
    errors.check_number("vmsst_weight", self.vmsst_weight, "[0, inf)")

  def _objective(
    self,
    params: Any,
    batch: base.Batch,
    side_B: Int[Array, "B"],
    rng: jax.Array | None,
    step: jax.Array | int | None,
    *,
    dropout: bool = True,
  ) -> tuple[jax.Array, base.Metrics]:
    """Returns the loss and metrics of both tasks.

    Metrics, in addition to the metrics of `VmsstModel`: loss/contrastive, loss/vmsst,
    accuracy/forward and accuracy/backward, and the metrics of `matryoshka.mean_loss`.
    """

    def vmsst_of_slice(batch_slice: Any, rng: jax.Array | None) -> Any:
      pairs, side_B = batch_slice
      terms = self._terms(params, pairs, side_B, rng, step, dropout=dropout)
      return (terms.semantic_mean_B2S, terms.latents), (terms.total, terms.metrics)

    (mean_B2S, latents), (total, vmsst_metrics) = gradient_caching.map_and_sum_slices(
      vmsst_of_slice, (dict(batch), side_B), slices=self.embedding_slices, rng=rng
    )
    count = side_B.size
    vmsst_loss = total / count
    contrastive_B, metrics = self.in_batch_loss(mean_B2S, batch)
    loss = jnp.mean(contrastive_B) + self.vmsst_weight * vmsst_loss
    return loss, {
      **vmsst_metrics,
      **latent_metrics(latents, rng),
      **metrics,
      "loss": base.ratio(loss * count, count),
      "loss/contrastive": base.average(contrastive_B),
      "loss/vmsst": base.ratio(total, count),
    }


def alternating_sides(pairs: int, step: jax.Array | int | None) -> Int[Array, "B"]:
  """Returns the side (0 or 1) from which each z_sem is sampled; it alternates by pair and step."""
  return (jnp.arange(pairs) + (0 if step is None else step)) % 2


def take_side(x_B2S: Float[Array, "B 2 S"], side_B: Int[Array, "B"]) -> Float[Array, "B S"]:
  """Returns the vector on side `side_B` of each pair."""
  return jnp.where(side_B[:, None] == 0, x_B2S[:, 0], x_B2S[:, 1])
