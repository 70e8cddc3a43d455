"""Generates tokens one by one, greedily, and computes the likelihood of sentences.

Axes: `Z` is the decoder's sentence input, in VMSST `[z_lang; z_sem]`.
"""

import functools
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from vmsst import arrays
from vmsst.losses import vocabulary
from vmsst.networks import decoder, vmsst


class _State(NamedTuple):
  """Sentences in generation: their tokens so far, the last ones, and whether they have ended."""

  position: Int[Array, ""]
  tokens_BT: Int[Array, "B T"]
  last_B: Int[Array, "B"]
  ended_B: Bool[Array, "B"]
  cache: Any


@functools.partial(jax.jit, static_argnames=("network", "length", "eos_id", "pieces"))
def generate_tokens(
  network: vmsst.BitranslationNetwork,
  params: Any,
  sentence_BZ: Float[Array, "B Z"],
  languages_B: Int[Array, "B"],
  wanted_B: Bool[Array, "B"],
  *,
  length: int,
  eos_id: int | None,
  pieces: int,
) -> Int[Array, "B T"]:
  """Returns the most likely tokens, one after the other, up to and including EOS, then padding.

  Args:
    network: The network with the decoder and the vocabulary projection.
    params: Its parameters.
    sentence_BZ: The decoder's sentence input of each row.
    languages_B: Language of each row, as an index of `vmsst.languages`.
    wanted_B: Rows to generate; the others stay empty.
    length: Most tokens of a row (T).
    eos_id: Id of the EOS token, or None.
    pieces: Size of the vocabulary; the network's table may have more rows.
  """

  def apply(*arrays: Any, method: str, **options: Any) -> Any:
    return network.apply({"params": params, **options}, *arrays, method=method, mutable=["cache"])

  def product(vectors_BM: jax.Array, kernel_MV: jax.Array) -> jax.Array:
    # As in the loss: factors in the compute dtype, sums in float32.
    factors = (x.astype(network.config.dtype) for x in (vectors_BM, kernel_MV))
    return jnp.matmul(*factors, preferred_element_type=jnp.float32)

  # The sentence's part of the logits is the same for all its tokens.
  blank_B1D = jnp.zeros((len(sentence_BZ), 1, network.config.emb_dim), network.config.dtype)
  once, _ = apply(blank_B1D, sentence_BZ, method="project")
  sentence_part_BV = jnp.zeros(())
  if once.sentence_BZ is not None:
    sentence_part_BV = product(once.sentence_BZ, once.sentence_kernel_ZV)

  def next_hidden(tokens_B: jax.Array, position: jax.Array, cache: Any) -> tuple[Any, Any]:
    step = decoder.Step(position, length)
    return apply(tokens_B, languages_B, sentence_BZ, step, method="decode_next", **cache)

  def step(state: _State) -> _State:
    hidden_BD, cache = next_hidden(state.last_B, state.position, state.cache)
    new, _ = apply(hidden_BD[:, None], sentence_BZ, method="project")
    logits_BV = product(new.hidden_BTD[:, 0], new.hidden_kernel_DV) + sentence_part_BV
    id_V = jnp.arange(logits_BV.shape[1])
    possible_V = (id_V != arrays.PAD_ID) & (id_V < pieces)
    logits_BV = jnp.where(possible_V, logits_BV, -jnp.inf)
    # `jnp.argmax`, for which XLA's CPU backend takes as long as for the whole projection.
    best_B1 = jnp.max(logits_BV, axis=1, keepdims=True)
    token_B = jnp.min(jnp.where(logits_BV < best_B1, logits_BV.shape[1], id_V), axis=1)
    token_B = jnp.where(state.ended_B, arrays.PAD_ID, token_B.astype(jnp.int32))
    tokens_BT = jax.lax.dynamic_update_index_in_dim(
      state.tokens_BT, token_B, state.position, axis=1
    )
    ended_B = state.ended_B if eos_id is None else state.ended_B | (token_B == eos_id)
    return _State(state.position + 1, tokens_BT, token_B, ended_B, cache)

  _, shapes = jax.eval_shape(next_hidden, jnp.zeros_like(languages_B), jnp.zeros((), jnp.int32), {})
  cache = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
  empty_BT = jnp.full((len(sentence_BZ), length), arrays.PAD_ID, jnp.int32)
  first = _State(jnp.zeros((), jnp.int32), empty_BT, empty_BT[:, 0], ~wanted_B, cache)
  last = jax.lax.while_loop(
    lambda state: (state.position < length) & ~jnp.all(state.ended_B), step, first
  )
  return last.tokens_BT


@functools.partial(jax.jit, static_argnames="network")
def log_likelihoods(
  network: vmsst.BitranslationNetwork,
  params: Any,
  tokens_BT: Int[Array, "B T"],
  languages_B: Int[Array, "B"],
  sentence_BZ: Float[Array, "B Z"],
) -> Float[Array, "B"]:
  """Returns log p(tokens | sentence vector, language) of each row, in nats, float32.

  It is the sum over real tokens that training maximizes, without weights. The softmax is over all
  rows of the network's table.

  Args:
    network: The network with the decoder and the vocabulary projection.
    params: Its parameters.
    tokens_BT: Tokens of the sentences, EOS included; padding never counts.
    languages_B: Language of each row, as an index of `vmsst.languages`.
    sentence_BZ: The decoder's sentence input of each row.
  """

  def projection(net: vmsst.BitranslationNetwork) -> vmsst.Projection:
    hidden_BTD = net.decode(net.embed(tokens_BT), languages_B, sentence_BZ)
    return net.project(hidden_BTD, sentence_BZ)

  parts = cast(vmsst.Projection, network.apply({"params": params}, method=projection))
  ones_BT = jnp.ones(tokens_BT.shape)
  _, aux = vocabulary.weighted_nll(*parts, tokens_BT, ones_BT, dtype=network.config.dtype)
  return -jnp.sum(aux.nll_BT, axis=1)
