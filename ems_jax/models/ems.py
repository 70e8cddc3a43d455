"""EMS: cross-lingual token-level reconstruction (XTR) with contrastive learning.

Sides of a pair are 0 (`inputs`) and 1 (`targets`).

References: the EMS paper, section III; Mao et al. 2021 (arXiv 2105.13856) for UGT.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ems_jax.losses import margin as margin_losses
from ems_jax.losses import token_targets, xtr
from ems_jax.networks import ems
from vmsst import errors, padding
from vmsst.losses import contrastive
from vmsst.models import base, generation, gradient_caching
from vmsst.networks import sentence_encoder
from vmsst.text import vocabularies

MASKINGS = ("none", "input", "ugt")


class _Term(NamedTuple):
  """One of the two losses: its mean over pairs, and metrics."""

  loss: Float[Array, ""]
  metrics: base.Metrics


class EmsModel(base.BitextModel):
  """Each sentence's vector predicts the tokens of its translation, and is nearest to its vector.

  The loss of a pair, averaged over the batch's pairs (equations 6, 8 and 12):

    KL(p(x_j) || q(x_i)) + KL(p(x_i) || q(x_j))
      - log softmax_k(sim(x_i, x_k) / T)_j - log softmax_k(sim(x_k, x_j) / T)_i

  p is the distribution of a sentence's tokens and q what the XTR head makes of the other one's
  vector; sim is the cosine. A network without one of the heads is trained without its loss. With a
  margin, sim of a pair has it taken off: LaBSE's additive margin softmax.

  The negatives are the whole global batch, on any number of devices; with microbatches (a trainer's
  setting) they are those of a microbatch, so prefer `embedding_slices` where memory is short.
  """

  network: ems.EmsNetwork

  def __init__(
    self,
    *,
    network: ems.EmsNetwork,
    input_vocabulary: vocabularies.Vocabulary,
    optimizer_def: Any = None,
    max_length: int = 120,
    scale: float = 10.0,
    margin: float = 0.0,
    masking: str = "none",
    mask_id: int | None = None,
    count_repeats: bool = True,
    negative_groups: int = 1,
    embedding_slices: int = 1,
  ):
    """Wires the network to the losses.

    Args:
      network: Encoder and heads; says by its heads which losses there are.
      input_vocabulary: Vocabulary of both sides.
      optimizer_def: T5X optimizer definition; None for evaluation.
      max_length: Tokens of a sentence, EOS included where the vocabulary has one.
      scale: Factor on every cosine in the contrastive loss, 1 / T.
      margin: What is taken off the cosine of a pair.
      masking: "none"; "ugt": in training one token of one side of each pair is masked, and the
        masked sentence predicts it beside the tokens of the other (the unified generative task);
        "input": masked alike, but not predicted, as in the released code (which has the other
        sentence predict the mask; here it predicts the token).
      mask_id: Piece that stands for a masked token, one that no text gives.
      count_repeats: False gives a token of the XTR targets one share however often it occurs, as
        the released code does.
      negative_groups: Cuts the batch into so many runs of pairs, which are no negatives of each
        other: with one for each device, negatives are those of the own device, as in the released
        code.
      embedding_slices: Encode the batch in so many slices, recomputed in the backward pass: the
        same gradient at the memory of one slice.
    """
    super().__init__(
      network=network,
      input_vocabulary=input_vocabulary,
      optimizer_def=optimizer_def,
      max_length=max_length,
    )
    if scale <= 0:
      raise errors.InputError(f"scale is {scale}; it has to be positive")
    if margin < 0:
      raise errors.InputError(f"margin is {margin}; it cannot be negative")
    if masking not in MASKINGS:
      raise errors.InputError(f"masking is {masking!r}; known: {', '.join(MASKINGS)}")
    if masking == "ugt" and not network.xtr:
      raise errors.InputError("masking is 'ugt', but EmsNetwork.xtr is False: nothing predicts it")
    if masking != "none" and (mask_id is None or not 0 < mask_id < network.config.vocab_size):
      raise errors.InputError(
        f"mask_id is {mask_id}; masking = {masking!r} needs a piece that no text gives, 1 to "
        f"{network.config.vocab_size - 1} (<MASK> is 2 in the vocabulary released with EMS)"
      )
    for name, value in {
      "negative_groups": negative_groups,
      "embedding_slices": embedding_slices,
    }.items():
      if value < 1:
        raise errors.InputError(f"{name} is {value}; it has to be at least 1")
    self.scale = scale
    self.margin = margin
    self.masking = masking
    self.mask_id = mask_id
    self.count_repeats = count_repeats
    self.negative_groups = negative_groups
    self.embedding_slices = embedding_slices

  @property
  def sentence_encoder(self) -> sentence_encoder.SentenceEncoder:
    """The encoder with the mean of its hidden states, before either head."""
    return sentence_encoder.SentenceEncoder(
      self.network.config, self.network.latent_dim, head=False
    )

  def loss_fn(
    self, params: Any, batch: base.Batch, dropout_rng: jax.Array | None
  ) -> tuple[jax.Array, base.Metrics]:
    """Returns the mean over pairs of the loss, and metrics; without a key nothing is masked.

    Metrics: loss, loss/xtr and loss/contrastive (nats a pair; of the losses that there are),
    kl/xtr (nats a sentence), accuracy/forward (inputs to targets) and accuracy/backward (0 to 1,
    within the batch, without margin), embedding_norm, tokens_per_example (real tokens of both
    sides).
    """
    pairs = generation.pairs_of(batch)
    count = len(pairs.tokens_B2T)
    mask_rng, encoder_rng = generation.split_rng(dropout_rng, 2)
    read_B2T, masked_B2 = pairs.tokens_B2T, jnp.zeros_like(pairs.languages_B2)
    if self.masking != "none" and mask_rng is not None:
      read_B2T, masked_B2 = mask_one_token(
        read_B2T, cast(int, self.mask_id), special_ids=self._special_ids, rng=mask_rng
      )
    vector_B2S = gradient_caching.embed_sides(
      self.network, params, read_B2T, slices=self.embedding_slices, rng=encoder_rng
    )
    terms = {}
    if self.network.xtr:
      terms["xtr"] = self._xtr(params, vector_B2S, pairs, masked_B2)
    if self.network.contrastive:
      terms["contrastive"] = self._contrastive(params, vector_B2S)
    loss = sum((term.loss for term in terms.values()), jnp.zeros(()))
    metrics = {"loss": base.ratio(loss * count, count)}
    for name, term in terms.items():
      metrics |= {f"loss/{name}": base.ratio(term.loss * count, count), **term.metrics}
    metrics["embedding_norm"] = base.average(jnp.linalg.norm(vector_B2S, axis=-1))
    metrics["tokens_per_example"] = base.average(base.tokens_per_pair(batch))
    return loss, metrics

  @property
  def _special_ids(self) -> tuple[int, ...]:
    """Ids that are no part of a sentence, besides padding."""
    return () if self.vocabulary.eos_id is None else (self.vocabulary.eos_id,)

  def _apply(self, params: Any, *arrays: jax.Array, **options: Any) -> jax.Array:
    return cast(jax.Array, self.network.apply({"params": params}, *arrays, **options))

  def _xtr(
    self,
    params: Any,
    vector_B2S: Float[Array, "B 2 S"],
    pairs: generation.Pairs,
    masked_B2: Int[Array, "B 2"],
  ) -> _Term:
    """Equation 6: every sentence predicts the other one of its pair."""
    count = len(vector_B2S)
    other_language_N = generation.rows(generation.other_side(pairs.languages_B2))
    targets = token_targets.xtr_targets(
      generation.rows(generation.other_side(pairs.tokens_B2T)),
      special_ids=self._special_ids,
      count_repeats=self.count_repeats,
    )
    if self.masking == "ugt":
      targets = token_targets.ugt_targets(targets, generation.rows(masked_B2))
    loss, kl_N = xtr.weighted_kl(
      self._apply(params, generation.rows(vector_B2S), other_language_N, method="xtr_hidden"),
      self._apply(params, method="xtr_kernel"),
      targets,
      jnp.full(2 * count, 1 / count),
      dtype=self.network.config.dtype,
    )
    return _Term(loss, {"kl/xtr": base.average(kl_N)})

  def _contrastive(self, params: Any, vector_B2S: Float[Array, "B 2 S"]) -> _Term:
    """Equation 8, with a margin where there is one."""
    count, groups = len(vector_B2S), self.negative_groups
    if count % groups:
      raise ValueError(f"a batch of {count} cannot be cut into {groups} equal groups of negatives")
    compared_NC = self._apply(params, generation.rows(vector_B2S), method="compared")
    compared = compared_NC.reshape(groups, count // groups, 2, -1)
    cosine = jax.vmap(functools.partial(contrastive.similarity, cosine=True))(
      compared[:, :, 0], compared[:, :, 1]
    )
    loss = jax.vmap(
      functools.partial(margin_losses.additive_margin_softmax, margin=self.margin, scale=self.scale)
    )(cosine)
    forward, backward = jax.vmap(contrastive.in_batch_accuracy)(cosine)
    return _Term(
      jnp.mean(loss),
      {"accuracy/forward": base.average(forward), "accuracy/backward": base.average(backward)},
    )


def mask_one_token(
  tokens_B2T: Int[Array, "B 2 T"],
  mask_id: int,
  *,
  special_ids: Sequence[int] = (),
  rng: jax.Array,
) -> tuple[Int[Array, "B 2 T"], Int[Array, "B 2"]]:
  """Masks one token of one side of each pair, side and token at random.

  Args:
    tokens_B2T: Both sides of each pair; 0 is padding.
    mask_id: What is put in the token's place.
    special_ids: Ids besides padding that are never masked, such as EOS.
    rng: Random key.

  Returns:
    The tokens, and of each side the token that stood where its mask is, 0 where it has none. A side
    without tokens is left as it is.
  """
  side_rng, token_rng = jax.random.split(rng)
  is_token_B2T = tokens_B2T != padding.PAD_ID
  for special_id in special_ids:
    is_token_B2T &= tokens_B2T != special_id
  side_B = jax.random.bernoulli(side_rng, shape=tokens_B2T.shape[:1]).astype(jnp.int32)
  drawn_B2T = jnp.where(is_token_B2T, jax.random.uniform(token_rng, tokens_B2T.shape), -1.0)
  is_drawn_B2T = jnp.arange(tokens_B2T.shape[2]) == jnp.argmax(drawn_B2T, axis=2)[..., None]
  is_side_B2 = side_B[:, None] == jnp.arange(2)
  is_masked_B2T = is_token_B2T & is_drawn_B2T & is_side_B2[..., None]
  masked_B2 = jnp.sum(jnp.where(is_masked_B2T, tokens_B2T, 0), axis=2)
  return jnp.where(is_masked_B2T, mask_id, tokens_B2T), masked_B2
