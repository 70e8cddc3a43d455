"""Generates the likeliest tokens that a beam search finds, with cached keys and values.

Axes: `K` beams of a sentence, `N` the `B K` rows of the decoder.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from vmsst.arrays import padding
from vmsst.inference import decoding
from vmsst.networks import vmsst


class _State(NamedTuple):
  """The search: unfinished hypotheses, the likeliest first, and the best finished one."""

  position: Int[Array, ""]
  tokens_BKT: Int[Array, "B K T"]
  last_BK: Int[Array, "B K"]
  log_p_BK: Float[Array, "B K"]
  best_BT: Int[Array, "B T"]
  score_B: Float[Array, "B"]
  cache: decoding.Cache


@functools.partial(jax.jit, static_argnames=("network", "length", "eos_id", "pieces", "beams"))
def search_tokens(
  network: vmsst.BitranslationNetwork,
  params: Any,
  sentence_BZ: Float[Array, "B Z"],
  languages_B: Int[Array, "B"],
  wanted_B: Bool[Array, "B"],
  length_penalty: Float[Array, ""] | float,
  *,
  length: int,
  eos_id: int | None,
  pieces: int,
  beams: int,
) -> Int[Array, "B T"]:
  """Returns tokens up to and including EOS, then padding.

  The score of a sentence y is log p(y) / ((5 + |y|) / 6)^length_penalty, with its number of tokens
  |y|, EOS included (Wu et al. 2016). Each step extends the likeliest `beams` hypotheses without
  EOS. The search of a sentence ends when none of them can exceed the best finished one. If none has
  finished within `length` tokens, the likeliest is cut there.

  Args:
    network: The network with the decoder and the vocabulary projection.
    params: Its parameters.
    sentence_BZ: The decoder's sentence input of each sentence.
    languages_B: Language of each sentence, as an index of `vmsst.languages`.
    wanted_B: Sentences to generate; the others stay empty.
    length_penalty: 0 or more; the higher, the longer the sentences.
    length: Most tokens of a sentence (T).
    eos_id: Id of the EOS token, or None.
    pieces: Size of the vocabulary; the network's table may have more rows.
    beams: Hypotheses of a sentence (K).
  """
  batch = len(sentence_BZ)
  next_logits, cache = decoding.start(
    network, params, sentence_BZ, languages_B, length=length, rows=beams
  )

  def score(log_p: jax.Array, tokens: jax.Array | int) -> jax.Array:
    return log_p / ((5 + tokens) / 6) ** length_penalty

  def finish(state: _State, log_p_BK: jax.Array, eos: int) -> _State:
    """Keeps the best hypothesis that EOS has just ended, if it exceeds the best one so far."""
    beam_B1 = jnp.argmax(log_p_BK, axis=1)[:, None]
    log_p_B = jnp.take_along_axis(log_p_BK, beam_B1, axis=1)[:, 0]
    new_BT = jnp.take_along_axis(state.tokens_BKT, beam_B1[..., None], axis=1)[:, 0]
    new_BT = new_BT.at[:, state.position].set(eos)
    score_B = score(log_p_B, state.position + 1)
    is_better_B = score_B > state.score_B
    return state._replace(
      best_BT=jnp.where(is_better_B[:, None], new_BT, state.best_BT),
      score_B=jnp.where(is_better_B, score_B, state.score_B),
    )

  def step(state: _State) -> _State:
    logits_NV, cache = next_logits(state.last_BK.reshape(-1), state.position, state.cache)
    size = logits_NV.shape[1]
    possible_V = decoding.possible_tokens(size, pieces)
    log_p_NV = jnp.where(possible_V, jax.nn.log_softmax(logits_NV), -jnp.inf)
    log_p_BKV = state.log_p_BK[..., None] + log_p_NV.reshape(batch, beams, size)
    if eos_id is not None:
      state = finish(state, log_p_BKV[..., eos_id], eos_id)
      log_p_BKV = log_p_BKV.at[..., eos_id].set(-jnp.inf)
    log_p_BK, place_BK = jax.lax.top_k(log_p_BKV.reshape(batch, -1), beams)
    parent_BK, token_BK = place_BK // size, (place_BK % size).astype(jnp.int32)
    tokens_BKT = jnp.take_along_axis(state.tokens_BKT, parent_BK[..., None], axis=1)
    row_N = (jnp.arange(batch)[:, None] * beams + parent_BK).reshape(-1)
    return state._replace(
      position=state.position + 1,
      tokens_BKT=tokens_BKT.at[..., state.position].set(token_BK),
      last_BK=token_BK,
      log_p_BK=log_p_BK,
      # Rows are the first axis of a layer's cache; scanned layers are stacked before it.
      cache=jax.tree.map(lambda x: jnp.take(x, row_N, axis=x.ndim - 4), cache),
    )

  def unfinished(state: _State) -> jax.Array:
    # Log-likelihoods only fall, so that no extension scores above this bound.
    bound_B = score(state.log_p_BK[:, 0], length)
    return (state.position < length) & jnp.any(wanted_B & (state.score_B < bound_B))

  empty_BKT = jnp.full((batch, beams, length), padding.PAD_ID, jnp.int32)
  nothing_BK = jnp.full((batch, beams), -jnp.inf)
  first = _State(
    position=jnp.zeros((), jnp.int32),
    tokens_BKT=empty_BKT,
    last_BK=empty_BKT[..., 0],
    log_p_BK=nothing_BK.at[:, 0].set(0.0),  # all beams are the same at first
    best_BT=empty_BKT[:, 0],
    score_B=nothing_BK[:, 0],
    cache=cache,
  )
  last = jax.lax.while_loop(unfinished, step, first)
  is_finished_B = jnp.isfinite(last.score_B)
  tokens_BT = jnp.where(is_finished_B[:, None], last.best_BT, last.tokens_BKT[:, 0])
  return jnp.where(wanted_B[:, None], tokens_BT, padding.PAD_ID)
