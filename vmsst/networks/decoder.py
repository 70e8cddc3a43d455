"""A T5 1.1 decoder that is given a sentence as one vector, at every layer.

In place of cross-attention a layer adds `W [LN(x); z]` to its hidden states (VMSST paper, section
5; Wieting et al. 2020). `z` is the same at every position, so `W` is kept as two kernels and its
product with `z` is taken once a sentence. The rest is T5's decoder: causal self-attention with
relative positions of one direction, gated feed-forward layer, a norm before each.

Axes: `Z` is the vector that the decoder is given, in VMSST `[z_lang; z_sem]`.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float, Int

from vmsst import sharding
from vmsst.networks import t5


def part_of_fan_in(part: int, whole: int) -> Any:
  """Initializer of `part` rows of a kernel that has `whole` rows: what all of it would start as."""
  return nn.initializers.variance_scaling(part / whole, "fan_in", "truncated_normal")


class SentenceInjection(nn.Module):
  """`W [x; z]` for every token: a bias-free product with token and sentence, no activation.

  Attributes:
    config: Sizes and numerics.
  """

  config: t5.T5Config

  @nn.compact
  def __call__(
    self, x_BTD: Float[Array, "B T D"], sentence_BZ: Float[Array, "B Z"]
  ) -> Float[Array, "B T D"]:
    """Returns the product, `W` kept as the kernels `hidden` [D, D] and `sentence` [Z, D]."""
    features, whole = x_BTD.shape[-1], x_BTD.shape[-1] + sentence_BZ.shape[-1]

    def product(name: str, x: Float[Array, "... M"]) -> Float[Array, "... D"]:
      # Axes as of a feed-forward layer's second kernel: T5X's rules shard the input side.
      kernel_init = part_of_fan_in(x.shape[-1], whole)
      return t5.Dense(features, ("mlp", "embed"), kernel_init, self.config.dtype, name=name)(x)

    return product("hidden", x_BTD) + product("sentence", sentence_BZ)[:, None, :]


class DecoderLayer(nn.Module):
  """Causal self-attention, sentence, feed-forward layer: each on normed input and added to it."""

  config: t5.T5Config
  deterministic: bool

  @nn.compact
  def __call__(
    self,
    x_BTD: Float[Array, "B T D"],
    bias_BHTT: Float[Array, "#B #H T T"],
    sentence_BZ: Float[Array, "B Z"],
  ) -> tuple[Float[Array, "B T D"], None]:
    """Returns the new hidden states and None: the form of a scan's body."""
    cfg, deterministic = self.config, self.deterministic
    drop = nn.Dropout(cfg.dropout_rate, broadcast_dims=(-2,), deterministic=deterministic)
    y_BTD = t5.RMSNorm(cfg.dtype, name="pre_self_attention_layer_norm")(x_BTD)
    y_BTD = t5.SelfAttention(cfg, deterministic, name="self_attention")(y_BTD, bias_BHTT)
    x_BTD = x_BTD + drop(y_BTD)
    y_BTD = t5.RMSNorm(cfg.dtype, name="pre_injection_layer_norm")(x_BTD)
    y_BTD = SentenceInjection(cfg, name="injection")(y_BTD, sentence_BZ)
    x_BTD = x_BTD + drop(y_BTD)
    y_BTD = t5.RMSNorm(cfg.dtype, name="pre_mlp_layer_norm")(x_BTD)
    y_BTD = t5.GatedMlp(cfg, deterministic, name="mlp")(y_BTD)
    x_BTD = x_BTD + drop(y_BTD)
    return sharding.constrain(x_BTD, ("batch", "length", "embed")), None


class LatentDecoder(nn.Module):
  """Hidden states from which the next token of a sentence is predicted, given a vector of it.

  Attributes:
    config: Sizes and numerics; `num_encoder_layers` is not read.
    num_layers: Layers of the decoder.
    num_languages: Rows of its language table.
  """

  config: t5.T5Config
  num_layers: int
  num_languages: int

  @nn.compact
  def __call__(
    self,
    embedded_BTD: Float[Array, "B T D"],
    languages_B: Int[Array, "B"],
    sentence_BZ: Float[Array, "B Z"],
    *,
    deterministic: bool = True,
  ) -> Float[Array, "B T D"]:
    """Returns hidden states in the compute dtype: the one at t predicts token t from those before.

    Padding has to be at the end; hidden states there mean nothing.

    Args:
      embedded_BTD: Vectors of the tokens to predict. Inside they move one place to the right, and
        the vector of the language takes the first place (VMSST paper, appendix A.2).
      languages_B: Language to decode into; an index of `vmsst.languages`.
      sentence_BZ: What the decoder knows of each sentence.
      deterministic: False turns dropout on (needs an rng named "dropout").
    """
    cfg = self.config
    length = embedded_BTD.shape[1]
    start_B1D = t5.TokenEmbedder(
      self.num_languages, cfg.emb_dim, cfg.dtype, "relpos_buckets", name="language_embedder"
    )(languages_B[:, None])
    x_BTD = jnp.concatenate([start_B1D, embedded_BTD[:, :-1].astype(cfg.dtype)], axis=1)
    positions_1HTT = t5.RelativePositionBias(
      cfg.num_heads,
      cfg.relpos_buckets,
      cfg.relpos_max_distance,
      bidirectional=False,
      name="relpos_bias",
    )(length)
    causal_TT = np.where(np.tri(length, dtype=bool), 0.0, t5.MASKED)
    bias_1HTT = positions_1HTT + jnp.asarray(causal_TT, jnp.float32)

    x_BTD = nn.Dropout(cfg.dropout_rate, broadcast_dims=(-2,))(x_BTD, deterministic=deterministic)
    layers = t5.layer_stack(
      DecoderLayer,
      cfg,
      self.num_layers,
      deterministic=deterministic,
      initializing=self.is_initializing(),
    )
    for layer in layers:
      x_BTD, _ = layer(x_BTD, bias_1HTT, sentence_BZ)
    x_BTD = t5.RMSNorm(cfg.dtype, name="decoder_norm")(x_BTD)
    return nn.Dropout(cfg.dropout_rate)(x_BTD, deterministic=deterministic)
