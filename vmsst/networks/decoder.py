"""A T5 1.1 decoder conditioned on one sentence vector at every layer.

Instead of cross-attention, each layer adds `W [LN(x); z]` to its hidden states `x`, where LN is a
norm and `z` is the vector that represents the sentence (VMSST paper, section 5; Wieting et al.
2020). `z` is the same at every position, so `W` is stored as two kernels, and the product with `z`
is computed once per sentence. Otherwise, each layer is the same as in the T5 decoder: causal
self-attention with unidirectional relative positions and a gated feed-forward layer, each with a
norm before it.

Axes: `Z` is the width of the conditioning vector, which is `[z_lang; z_sem]` in VMSST.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from vmsst.arrays import layouts
from vmsst.networks import dropout, t5


def slice_initializer(rows: int, fan_in: int) -> Any:
  """Returns an initializer for `rows` rows of a kernel that has `fan_in` rows in total."""
  return nn.initializers.variance_scaling(rows / fan_in, "fan_in", "truncated_normal")


class SentenceInjection(nn.Module):
  """Maps token and sentence vectors to `W [x; z]` for every token, without bias or activation.

  Attributes:
    config: Configuration of the decoder.
  """

  config: t5.T5Config

  @nn.compact
  def __call__(
    self, x_BTD: Float[Array, "B T D"], sentence_BZ: Float[Array, "B Z"]
  ) -> Float[Array, "B T D"]:
    """Returns `W [x; z]`, with `W` stored as the kernels `hidden` [D, D] and `sentence` [Z, D]."""
    features, fan_in = x_BTD.shape[-1], x_BTD.shape[-1] + sentence_BZ.shape[-1]

    def linear(name: str, x: Float[Array, "... M"]) -> Float[Array, "... D"]:
      # Use the same logical axes as for the second kernel of a feed-forward layer. T5X's rules
      # shard the first of these axes.
      kernel_init = slice_initializer(x.shape[-1], fan_in)
      return t5.Dense(features, ("mlp", "embed"), kernel_init, self.config.dtype, name=name)(x)

    return linear("hidden", x_BTD) + linear("sentence", sentence_BZ)[:, None, :]


class DecoderLayer(nn.Module):
  """Causal self-attention, sentence injection and MLP, each with a pre-norm and a residual."""

  config: t5.T5Config
  deterministic: bool

  @nn.compact
  def __call__(
    self,
    x_BTD: Float[Array, "B T D"],
    bias_BHTT: Float[Array, "#B #H #T T"],
    sentence_BZ: Float[Array, "B Z"],
    position: Int[Array, ""] | None = None,
  ) -> tuple[Float[Array, "B T D"], None]:
    """Returns the new hidden states and None, as a scan body requires.

    For `position`, see `t5.SelfAttention`.
    """
    cfg, deterministic = self.config, self.deterministic
    drop = dropout.Dropout(cfg.dropout_rate, broadcast_dims=(-2,), deterministic=deterministic)
    y_BTD = t5.RMSNorm(cfg.dtype, name="pre_self_attention_layer_norm")(x_BTD)
    attention = t5.SelfAttention(cfg, deterministic, name="self_attention")
    y_BTD = attention(y_BTD, bias_BHTT, position)
    x_BTD = x_BTD + drop(y_BTD)
    y_BTD = t5.RMSNorm(cfg.dtype, name="pre_injection_layer_norm")(x_BTD)
    y_BTD = SentenceInjection(cfg, name="injection")(y_BTD, sentence_BZ)
    x_BTD = x_BTD + drop(y_BTD)
    y_BTD = t5.RMSNorm(cfg.dtype, name="pre_mlp_layer_norm")(x_BTD)
    y_BTD = t5.GatedMlp(cfg, deterministic, name="mlp")(y_BTD)
    x_BTD = x_BTD + drop(y_BTD)
    return layouts.constrain(x_BTD, ("batch", "length", "embed")), None


class Step(NamedTuple):
  """One generation step.

  Attributes:
    position: Position of the token to predict, counted from 0.
    length: Maximum number of tokens per sentence, and thus the total number of steps.
  """

  position: Int[Array, ""]
  length: int


class LatentDecoder(nn.Module):
  """Computes the hidden states that predict the next token, given the sentence vector.

  Attributes:
    config: Configuration of the decoder; `num_encoder_layers` is ignored.
    num_layers: Number of decoder layers.
    num_languages: Number of rows in the table of language vectors.
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
    step: Step | None = None,
    deterministic: bool = True,
  ) -> Float[Array, "B T D"]:
    """Returns hidden states in the compute dtype; state t predicts token t from earlier tokens.

    Padding must be at the end; hidden states at padding are undefined.

    Args:
      embedded_BTD: Vectors of the tokens to predict. The decoder shifts these vectors right by one
        position and inserts the language vector at the start (VMSST paper, appendix A.2).
      languages_B: Target language of each row; an index into `vmsst.languages`.
      sentence_BZ: Sentence vectors.
      step: The generation step; if omitted, all positions are computed at once. If a step is
        passed, `embedded_BTD` contains one vector per row: the vector of the previous token, or any
        vector at the first step. For the cache, see `t5.SelfAttention`.
      deterministic: Whether to disable dropout; if False, an rng named "dropout" is required.
    """
    cfg = self.config
    start_B1D = t5.TokenEmbedder(
      self.num_languages, cfg.emb_dim, cfg.dtype, "relpos_buckets", name="language_embedder"
    )(languages_B[:, None])
    embedded_BTD = embedded_BTD.astype(cfg.dtype)
    if step is None:
      length, position = embedded_BTD.shape[1], None
      x_BTD = jnp.concatenate([start_B1D, embedded_BTD[:, :-1]], axis=1)
    else:
      position, length = step
      x_BTD = jnp.where(position == 0, start_B1D, embedded_BTD)
    positions_1HQT = t5.RelativePositionBias(
      cfg.num_heads,
      cfg.relpos_buckets,
      cfg.relpos_max_distance,
      bidirectional=False,
      name="relpos_bias",
    )(length, position)
    drop = dropout.Dropout(cfg.dropout_rate, broadcast_dims=(-2,), deterministic=deterministic)
    x_BTD = t5.run_layers(
      DecoderLayer,
      cfg,
      self.num_layers,
      drop(x_BTD),
      positions_1HQT + t5.causal_bias(length, position),
      sentence_BZ,
      *(() if position is None else (position,)),
      deterministic=deterministic,
      initializing=self.is_initializing(),
    )
    return drop(t5.RMSNorm(cfg.dtype, name="decoder_norm")(x_BTD))
