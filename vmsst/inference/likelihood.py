"""The likelihood of sentences under a decoder that sees one sentence vector.

Axes: `Z` is the decoder's sentence input, in VMSST `[z_lang; z_sem]`.
"""

import functools
from typing import Any, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from vmsst.losses import vocabulary
from vmsst.networks import vmsst


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
