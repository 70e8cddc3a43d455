"""EMS: cross-lingual token-level reconstruction (XTR) with contrastive learning.

In a batch, the feature `inputs` contains side 0 of each pair, and the feature `targets` contains
side 1.

References: the EMS paper, section III; Mao et al. 2021 (arXiv 2105.13856) for UGT.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ems_jax.losses import ranking, xtr
from ems_jax.networks import ems
from vmsst import errors
from vmsst.losses import contrastive
from vmsst.models import base, bitranslation, gradient_caching, matryoshka, vector_losses
from vmsst.models import contrastive as contrastive_model
from vmsst.networks import sentence_encoder

MASKINGS = ("none", "input", "ugt")


_Term = tuple[Float[Array, ""], base.Metrics]
"""One of the two losses: its mean over pairs, and metrics."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class EmsModel(vector_losses.VectorLossModel):
  """Trains sentence vectors to predict a translation's tokens and to be closest to its vector.

  The loss of a batch is the mean over its pairs. The loss of a pair (x_i, x_j) is (equations 6, 8
  and 12)

    KL(p(x_j) || q(x_i)) + KL(p(x_i) || q(x_j))
      - log softmax_k(sim(x_i, x_k) / T)_j - log softmax_k(sim(x_k, x_j) / T)_i

  p is the token distribution of a sentence, q is the XTR head's prediction from a sentence vector,
  and sim is the cosine. If the network lacks one of the heads, the corresponding loss is omitted.
  `margin` is subtracted from the cosine of each pair, as in LaBSE's additive margin softmax.

  Negatives come from the global batch, regardless of the number of devices. By default, an error is
  raised if the trainer divides batches into microbatches, because each pair would then have fewer
  negatives. To save the same amount of memory, use `embedding_slices` instead.

  Attributes:
    network: Encoder and heads; the heads determine the losses.
    scale: Factor applied to every cosine in the contrastive loss, 1 / T.
    margin: Subtracted from the cosine of each pair.
    masking: "none"; "ugt" (unified generative task), which masks one token on one side of each pair
      and trains the masked sentence to predict this token in addition to the tokens of the other
      side; or "input", which masks tokens in the same way, but does not train the masked sentence
      to predict the masked token. "input" follows the released code with one exception: the
      sentence without the mask predicts the original token, whereas in the released code this
      sentence predicts the mask token.
    mask_id: Id of the mask token; it must not occur in text.
    count_repeats: If False, every distinct token in the XTR targets has the same share, however
      often it occurs, as in the released code.
    negative_groups: Number of groups of consecutive pairs into which a batch is divided; negatives
      come only from the same group. With one group per device, as in the released code, a pair's
      negatives come only from its own device.
    normalize: Whether the encoder scales its vectors to length 1 when it is used after training; no
      loss depends on this option.

  For the inherited attributes, see `vmsst.models.vector_losses.VectorLossModel`.
  `matryoshka_dims` applies to the contrastive loss.
  """

  network: ems.EmsNetwork
  max_length: int = 120
  scale: float = 10.0
  margin: float = 0.0
  masking: str = "none"
  mask_id: int | None = None
  count_repeats: bool = True
  negative_groups: int = 1
  normalize: bool = False

  def __post_init__(self) -> None:
    super().__post_init__()
    errors.check_number("scale", self.scale, "(0, inf)")
    errors.check_number("margin", self.margin, "[0, inf)")
    errors.check_choice("masking", self.masking, MASKINGS)
    if self.masking == "ugt" and not self.network.xtr:
      raise errors.InputError(
        "masking is 'ugt', but only an XTR head predicts masked tokens; set EmsNetwork.xtr"
      )
    size = self.network.config.vocab_size
    if self.masking != "none" and (self.mask_id is None or not 0 < self.mask_id < size):
      raise errors.InputError(
        f"mask_id is {self.mask_id}; for masking = {self.masking!r}, set it to an id from 1 to "
        f"{size - 1} that does not occur in text, such as 2 (<MASK>) in the EMS vocabulary"
      )
    errors.as_integer("negative_groups", self.negative_groups)

  @property
  def compares_pairs(self) -> bool:
    """Whether the network has a contrastive head, whose loss uses in-batch negatives."""
    return self.network.contrastive

  @property
  def sentence_encoder(self) -> sentence_encoder.SentenceEncoder:
    """The encoder with mean pooling and no heads."""
    return sentence_encoder.SentenceEncoder(
      self.network.config, self.network.latent_dim, head=False, normalize=self.normalize
    )

  def loss_fn(
    self, params: Any, batch: base.Batch, dropout_rng: jax.Array | None
  ) -> tuple[jax.Array, base.Metrics]:
    """Returns the mean loss over pairs, and the metrics of `vector_loss`.

    If `dropout_rng` is None, no token is masked.
    """
    read_B2T = bitranslation.pairs_in_batch(batch).tokens_B2T
    mask_rng, encoder_rng = base.split_rng(dropout_rng, 2)
    masked_B2 = None
    if self.masking != "none" and mask_rng is not None:
      # The leading tokens (BOS, a prefix) are never masked.
      words_B2U, masked_B2 = mask_one_token(
        read_B2T[..., self._leading_count :],
        cast(int, self.mask_id),
        special_ids=self.vocabulary.special_ids,
        rng=mask_rng,
      )
      read_B2T = jnp.concatenate([read_B2T[..., : self._leading_count], words_B2U], axis=-1)
    vector_B2S = gradient_caching.embed_texts(
      self.network, params, read_B2T, batch, slices=self.embedding_slices, rng=encoder_rng
    )
    return self.vector_loss(params, vector_B2S, batch, masked_B2)

  def vector_loss(
    self,
    params: Any,
    vector_BRS: Float[Array, "B R S"],
    batch: base.Batch,
    masked_B2: Int[Array, "B 2"] | None = None,
  ) -> tuple[jax.Array, base.Metrics]:
    """Returns the mean loss over pairs, and metrics. `masked_B2` holds the masked tokens, if any.

    Metrics: loss, loss/xtr and loss/contrastive (nats per pair, only for heads that the network
    has), kl/xtr (nats per sentence), accuracy/forward (inputs to targets) and accuracy/backward (0
    to 1, within the batch, without margin), embedding_norm, tokens_per_example (real tokens on both
    sides).
    """
    pairs = bitranslation.pairs_in_batch(batch)
    count = len(pairs.tokens_B2T)
    if masked_B2 is None:
      masked_B2 = jnp.zeros_like(pairs.languages_B2)
    terms = {}
    if self.network.xtr:
      terms["xtr"] = self._xtr(params, vector_BRS, pairs, masked_B2)
    if self.network.contrastive:
      compare = functools.partial(self._contrastive, params)
      terms["contrastive"] = matryoshka.mean_loss(compare, vector_BRS, self.matryoshka_dims)
    loss = sum((term for term, _ in terms.values()), jnp.zeros(()))
    metrics = {"loss": base.ratio(loss * count, count)}
    for name, (term, term_metrics) in terms.items():
      metrics |= {f"loss/{name}": base.ratio(term * count, count), **term_metrics}
    return loss, metrics | base.vector_metrics(vector_BRS, batch)

  @property
  def _leading_count(self) -> int:
    """Number of tokens before a sentence's text, such as BOS."""
    return len(self.vocabulary.leading_ids)

  def _apply(self, params: Any, *arrays: jax.Array, **options: Any) -> jax.Array:
    return cast(jax.Array, self.network.apply({"params": params}, *arrays, **options))

  def _xtr(
    self,
    params: Any,
    vector_B2S: Float[Array, "B 2 S"],
    pairs: bitranslation.Pairs,
    masked_B2: Int[Array, "B 2"],
  ) -> _Term:
    """Returns the XTR loss (equation 6): each sentence predicts the other side of its pair."""
    count = len(vector_B2S)
    other_language_N = bitranslation.rows(bitranslation.other_side(pairs.languages_B2))
    targets = xtr.xtr_targets(
      bitranslation.rows(bitranslation.other_side(pairs.tokens_B2T[..., self._leading_count :])),
      special_ids=self.vocabulary.special_ids,
      count_repeats=self.count_repeats,
    )
    if self.masking == "ugt":
      targets = xtr.ugt_targets(targets, bitranslation.rows(masked_B2))
    loss, kl_N = xtr.weighted_kl(
      self._apply(params, bitranslation.rows(vector_B2S), other_language_N, method="xtr_hidden"),
      self._apply(params, method="xtr_kernel"),
      targets,
      jnp.full(2 * count, 1 / count),
      dtype=self.network.config.dtype,
    )
    return loss, {"kl/xtr": base.average(kl_N)}

  def _contrastive(self, params: Any, vector_B2S: Float[Array, "B 2 S"]) -> _Term:
    """Returns the contrastive loss (equation 8) with the margin."""
    count, groups = len(vector_B2S), self.negative_groups
    if count % groups:
      raise errors.InputError(
        f"a batch of {count} pairs does not divide into negative_groups={groups} equal groups; use "
        f"a divisor of {count}"
      )
    compared_NC = self._apply(params, bitranslation.rows(vector_B2S), method="project")
    compared = compared_NC.reshape(groups, count // groups, 2, -1)
    cosine = jax.vmap(functools.partial(contrastive.similarity, cosine=True))(
      compared[:, :, 0], compared[:, :, 1]
    )
    loss = jax.vmap(
      functools.partial(ranking.additive_margin_softmax, margin=self.margin, scale=self.scale)
    )(cosine)
    accuracies = jax.vmap(contrastive.in_batch_accuracy)(cosine)
    return jnp.mean(loss), contrastive_model.accuracy_metrics(*accuracies)


def mask_one_token(
  tokens_B2T: Int[Array, "B 2 T"], mask_id: int, *, special_ids: Sequence[int] = (), rng: jax.Array
) -> tuple[Int[Array, "B 2 T"], Int[Array, "B 2"]]:
  """Masks one random token on a random side of each pair.

  Args:
    tokens_B2T: Both sides of each pair; 0 is padding.
    mask_id: Id that replaces the token.
    special_ids: Ids that, like padding, are never masked, such as EOS.
    rng: Random key.

  Returns:
    The tokens after masking, and, for each side, the original token at the mask, or 0 if the side
    has no mask. A side without tokens stays unchanged.
  """
  side_rng, token_rng = jax.random.split(rng)
  is_token_B2T = xtr.is_word(tokens_B2T, special_ids)
  side_B = jax.random.bernoulli(side_rng, shape=tokens_B2T.shape[:1]).astype(jnp.int32)
  # The token with the highest random number is masked; special tokens and padding receive the
  # lowest number.
  noise_B2T = jnp.where(is_token_B2T, jax.random.uniform(token_rng, tokens_B2T.shape), -1.0)
  is_highest_B2T = jnp.arange(tokens_B2T.shape[2]) == jnp.argmax(noise_B2T, axis=2)[..., None]
  is_side_B2 = side_B[:, None] == jnp.arange(2)
  is_masked_B2T = is_token_B2T & is_highest_B2T & is_side_B2[..., None]
  masked_B2 = jnp.sum(jnp.where(is_masked_B2T, tokens_B2T, 0), axis=2)
  return jnp.where(is_masked_B2T, mask_id, tokens_B2T), masked_B2
