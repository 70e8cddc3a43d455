"""Distributions over the vocabulary with a few tokens each: what a sentence vector has to predict.

They are never arrays of the vocabulary's size: a distribution is a list of tokens and the share of
each, and the shares of a token that is listed twice add up.

Where the paper is silent: the length of a sentence is that of its tokens without padding, unknown
words included. EMS's vocabulary has neither BOS nor EOS; where a vocabulary has them, `special_ids`
takes them out, since they say nothing about a sentence.

References: the EMS paper, section III-B; Mao et al. 2021 (arXiv 2105.13856) for UGT.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from vmsst import padding


class TokenTargets(NamedTuple):
  """A distribution over the vocabulary for each sentence.

  Attributes:
    tokens_BT: Tokens; the order is of no importance.
    share_BT: Probability that each one adds to its token's, 0 at padding.
  """

  tokens_BT: Int[Array, "B T"]
  share_BT: Float[Array, "B T"]


def xtr_targets(
  tokens_BT: Int[Array, "B T"], *, special_ids: Sequence[int] = (), count_repeats: bool = True
) -> TokenTargets:
  """Distribution of the tokens of each sentence: p(w) = N_w / |S| (EMS paper, equation 7).

  A sentence without tokens has shares of 0.

  Args:
    tokens_BT: The sentence to be predicted, the other one of the pair; 0 is padding.
    special_ids: Ids besides padding that are no part of a sentence, such as EOS.
    count_repeats: False gives a token 1 / |S| however often it occurs, as the released code does;
      shares then sum to less than 1.
  """
  is_token_BT = tokens_BT != padding.PAD_ID
  for special_id in special_ids:
    is_token_BT &= tokens_BT != special_id
  length_B1 = jnp.sum(is_token_BT, axis=1, keepdims=True, dtype=jnp.float32)
  if not count_repeats:
    is_token_BT &= ~_occurred_before(tokens_BT)
  return TokenTargets(tokens_BT, is_token_BT / jnp.maximum(length_B1, 1.0))


def ugt_targets(targets: TokenTargets, masked_B: Int[Array, "B"]) -> TokenTargets:
  """Targets of the unified generative task: half the other sentence, half the own masked token.

  p(w) = 1/2 p_xtr(w) + 1/2 [w = masked token]

  The halves are those of the code released with Mao et al. 2021. It masks one token in one sentence
  of a pair, taken at random; the sentence without a mask keeps the targets of XTR.

  Args:
    targets: Those of XTR, [B, T].
    masked_B: The token that stood where the encoded sentence (the one that predicts `targets`) has
      a mask; 0 where it has none.

  Returns:
    The targets, [B, T + 1].
  """
  masked_B1 = masked_B[:, None]
  half_B1 = 0.5 * (masked_B1 != padding.PAD_ID)
  return TokenTargets(
    jnp.concatenate([targets.tokens_BT, masked_B1], axis=1),
    jnp.concatenate([(1.0 - half_B1) * targets.share_BT, half_B1], axis=1),
  )


def negative_entropy(targets: TokenTargets) -> Float[Array, "B"]:
  """sum_w p(w) log p(w) of each distribution, in nats."""
  # sum over positions of share * log(p of its token) adds each token's shares up.
  same_BTT = targets.tokens_BT[:, :, None] == targets.tokens_BT[:, None, :]
  probability_BT = jnp.sum(jnp.where(same_BTT, targets.share_BT[:, None, :], 0.0), axis=2)
  log_BT = jnp.log(jnp.where(targets.share_BT > 0, probability_BT, 1.0))
  return jnp.sum(targets.share_BT * log_BT, axis=1)


def _occurred_before(tokens_BT: Int[Array, "B T"]) -> Bool[Array, "B T"]:
  same_BTT = tokens_BT[:, :, None] == tokens_BT[:, None, :]
  return jnp.any(jnp.tril(same_BTT, k=-1), axis=2)
