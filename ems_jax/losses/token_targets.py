"""Token distributions of sentences, the targets that sentence vectors must predict.

A distribution is a list of tokens with their shares, never an array of vocabulary size. The shares
of a token that is listed twice add up.

The paper does not define the length of a sentence; here it is the number of its tokens, including
unknown ones, without padding. EMS's vocabulary has neither BOS nor EOS. For vocabularies that do
(<s> and </s>, [CLS] and [SEP]), `special_ids` excludes them, because they carry no information
about the sentence.

References: the EMS paper, section III-B; Mao et al. 2021 (arXiv 2105.13856) for UGT.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from vmsst import arrays


class TokenTargets(NamedTuple):
  """A distribution over the vocabulary for each sentence.

  Attributes:
    tokens_BT: Tokens in any order.
    share_BT: Probability that each position adds to its token; 0 at padding.
  """

  tokens_BT: Int[Array, "B T"]
  share_BT: Float[Array, "B T"]


def is_word(tokens: Int[Array, "... T"], special_ids: Sequence[int]) -> Bool[Array, "... T"]:
  """Returns True at tokens that are neither padding nor one of `special_ids`."""
  return ~jnp.isin(tokens, jnp.array((arrays.PAD_ID, *special_ids)))


def xtr_targets(
  tokens_BT: Int[Array, "B T"], *, special_ids: Sequence[int] = (), count_repeats: bool = True
) -> TokenTargets:
  """Returns the token distribution of each sentence: p(w) = N_w / |S| (EMS paper, equation 7).

  In a sentence without tokens, all shares are 0.

  Args:
    tokens_BT: The sentence to predict, the other side of the pair; 0 is padding.
    special_ids: Ids in addition to padding that do not count as tokens, such as BOS and EOS.
    count_repeats: If False, a token has the share 1 / |S| however often it occurs, as in the
      released code; shares may then sum to less than 1.
  """
  is_token_BT = is_word(tokens_BT, special_ids)
  length_B1 = jnp.sum(is_token_BT, axis=1, keepdims=True, dtype=jnp.float32)
  if not count_repeats:
    same_BTT = tokens_BT[:, :, None] == tokens_BT[:, None, :]
    occurred_before_BT = jnp.any(jnp.tril(same_BTT, k=-1), axis=2)
    is_token_BT &= ~occurred_before_BT
  return TokenTargets(tokens_BT, is_token_BT / jnp.maximum(length_B1, 1.0))


def ugt_targets(targets: TokenTargets, masked_B: Int[Array, "B"]) -> TokenTargets:
  """Returns targets of the unified generative task: half other sentence, half own masked token.

  p(w) = 1/2 p_xtr(w) + 1/2 [w = masked token]

  The weights are those of the code released with Mao et al. 2021, which masks one random token in
  one sentence of a pair. The sentence without a mask keeps the XTR targets.

  Args:
    targets: The XTR targets, [B, T].
    masked_B: The masked token of the encoded sentence (the one that predicts `targets`); 0 if it
      has no mask.

  Returns:
    The targets, [B, T + 1].
  """
  masked_B1 = masked_B[:, None]
  half_B1 = 0.5 * (masked_B1 != arrays.PAD_ID)
  return TokenTargets(
    jnp.concatenate([targets.tokens_BT, masked_B1], axis=1),
    jnp.concatenate([(1.0 - half_B1) * targets.share_BT, half_B1], axis=1),
  )


def negative_entropy(targets: TokenTargets) -> Float[Array, "B"]:
  """Returns sum_w p(w) log p(w) of each distribution, in nats."""
  # Summing share * log(p of its token) over positions adds up the shares of each token.
  same_BTT = targets.tokens_BT[:, :, None] == targets.tokens_BT[:, None, :]
  probability_BT = jnp.sum(jnp.where(same_BTT, targets.share_BT[:, None, :], 0.0), axis=2)
  log_BT = jnp.log(jnp.where(targets.share_BT > 0, probability_BT, 1.0))
  return jnp.sum(targets.share_BT * log_BT, axis=1)
