"""The BERT encoder: learned positions, post-layer-norm, biases, an ungated feed-forward layer.

One stack serves EMS (its paper, section III, with details from the release) and imported models:
mBERT, LaBSE, XLM-R and multilingual E5. The encoder adds positions and token types itself, so that
callers pass it the same as any other encoder: token vectors and a mask.

Padding is at the end, with id 0 throughout this library. For models trained with another padding id
(1 in XLM-R), the importer swaps two rows of the token table and sets `position_offset` to the row
of the first position.

References: Devlin et al. 2019 (BERT), Conneau et al. 2020 (XLM-R), Feng et al. 2022 (LaBSE).
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen import partitioning
from jaxtyping import Array, Bool, Float

from vmsst import errors
from vmsst.arrays import sharding
from vmsst.networks import dropout, t5

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
  "gelu": functools.partial(nn.gelu, approximate=False),
  "relu": nn.relu,
  "swish": nn.swish,
}


@dataclasses.dataclass(frozen=True)
class BertConfig:
  """Sizes and numerics of a BERT encoder: plain values only, so that gin can bind and save it.

  Attributes:
    vocab_size: Rows of the token table (V), at least the vocabulary size.
    emb_dim: Width of token embeddings and hidden states (D), a multiple of `num_heads`.
    num_heads: Attention heads (H).
    mlp_dim: Width of the feed-forward layer.
    num_layers: Layers of the encoder.
    max_positions: Rows of the position table.
    position_offset: Row of the first token's position: 0 in BERT, 2 in XLM-R. Sentences have at
      most `max_positions - position_offset` tokens.
    num_token_types: Rows of the token type table, of which single sentences use the first; 0: no
      table.
    activation: Activation of the feed-forward layer: "gelu" (exact, not the tanh approximation),
      "relu" or "swish".
    layer_norm_eps: Added to the variance in layer norms.
    initializer_std: Standard deviation of the initial normal distribution of tables and kernels.
    dropout_rate: Dropout probability of embeddings, attention weights, and the outputs of attention
      and feed-forward layer.
    dtype: Compute dtype, "float32" or "bfloat16". Parameters, norms and softmaxes are always
      float32.
    remat: What the backward pass recomputes: "none", "minimal" (all but the weight matmuls) or
      "full" (each layer from its input).
    scan_layers: Compile one layer and scan over the stack. Computes the same function and compiles
      faster. Checkpoints hold one stacked `layers` instead of `layers_0`, `layers_1`, ...; either
      is restored into either network.
  """

  vocab_size: int
  emb_dim: int = 1024
  num_heads: int = 16
  mlp_dim: int = 4096
  num_layers: int = 6
  max_positions: int = 120
  position_offset: int = 0
  num_token_types: int = 0
  activation: str = "swish"
  layer_norm_eps: float = 1e-12
  initializer_std: float = 0.02
  dropout_rate: float = 0.0
  dtype: str = "float32"
  remat: str = "none"
  scan_layers: bool = False

  def __post_init__(self):
    for name in ("vocab_size", "emb_dim", "num_heads", "mlp_dim", "num_layers", "max_positions"):
      errors.check_integer(f"BertConfig.{name}", getattr(self, name))
    for name in ("position_offset", "num_token_types"):
      errors.check_integer(f"BertConfig.{name}", getattr(self, name), minimum=0)
    errors.check_choice("BertConfig.activation", self.activation, ACTIVATIONS)
    errors.check_choice("BertConfig.dtype", self.dtype, t5.DTYPES)
    errors.check_choice("BertConfig.remat", self.remat, t5.REMAT_CHOICES)
    errors.check_positive("BertConfig.layer_norm_eps", self.layer_norm_eps)
    errors.check_positive("BertConfig.initializer_std", self.initializer_std)
    errors.check_rate("BertConfig.dropout_rate", self.dropout_rate)
    if self.emb_dim % self.num_heads:
      raise errors.InputError(
        f"BertConfig.emb_dim is {self.emb_dim}; it must be a multiple of num_heads "
        f"({self.num_heads})"
      )
    if self.position_offset >= self.max_positions:
      raise errors.InputError(
        f"BertConfig.position_offset is {self.position_offset}; it must be below "
        f"max_positions ({self.max_positions})"
      )

  @property
  def max_tokens(self) -> int:
    """Most tokens of a sentence."""
    return self.max_positions - self.position_offset

  @property
  def width(self) -> int:
    """Width of the encoder's hidden states."""
    return self.emb_dim

  def token_embedder(self) -> t5.TokenEmbedder:
    """Returns the token table, initially N(0, initializer_std) like the tables added to it."""
    init = nn.initializers.normal(self.initializer_std)
    return t5.TokenEmbedder(self.vocab_size, self.emb_dim, self.dtype, embedding_init=init)

  def encoder(self) -> "BertEncoder":
    """Returns the encoder."""
    return BertEncoder(self)


def dense(
  config: BertConfig,
  features: int,
  axes: tuple[str, str],
  dtype: str | None = None,
  *,
  name: str | None = None,
) -> nn.Module:
  """Returns a linear layer with bias, initialized as in BERT; dtype None: the compute dtype."""
  init = nn.initializers.normal(config.initializer_std)
  return t5.Dense(features, axes, init, dtype or config.dtype, use_bias=True, name=name)


class LayerNorm(nn.Module):
  """Normalizes each vector to zero mean and unit variance (float32), then scales and shifts it.

  Attributes:
    epsilon: Added to the variance.
    dtype: Output dtype.
  """

  epsilon: float
  dtype: str = "float32"

  @nn.compact
  def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
    """Returns `(x - mean) / sqrt(variance + epsilon) * scale + bias` in the output dtype."""
    scale_D, bias_D = (
      partitioning.param_with_axes(name, init, (x.shape[-1],), jnp.float32, axes=("embed",))
      for name, init in (("scale", nn.initializers.ones), ("bias", nn.initializers.zeros))
    )
    x = x.astype(jnp.float32)
    x = x - jnp.mean(x, axis=-1, keepdims=True)
    x = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + self.epsilon)
    return (x * scale_D + bias_D).astype(self.dtype)


class SelfAttention(nn.Module):
  """Multi-head self-attention with logits scaled by 1 / sqrt(head width)."""

  config: BertConfig
  deterministic: bool

  @nn.compact
  def __call__(
    self, x_BTD: Float[Array, "B T D"], bias_B11T: Float[Array, "B 1 1 T"]
  ) -> Float[Array, "B T D"]:
    """Attends over T with `bias_B11T` (padding, float32) added to the logits."""
    cfg = self.config

    def heads(name: str) -> Float[Array, "B T H K"]:
      project = dense(cfg, cfg.emb_dim, ("embed", "joined_kv"), name=name)
      return t5.split_heads(project(x_BTD), cfg.num_heads)

    out_BTD = t5.attend(
      heads("query") / math.sqrt(cfg.emb_dim // cfg.num_heads),
      heads("key"),
      heads("value"),
      bias_B11T,
      dropout.Dropout(cfg.dropout_rate, deterministic=self.deterministic),
    )
    return dense(cfg, cfg.emb_dim, ("joined_kv", "embed"), name="out")(out_BTD)


class Mlp(nn.Module):
  """Feed-forward layer `wo activation(wi x)`, with biases."""

  config: BertConfig

  @nn.compact
  def __call__(self, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """Returns the output, shaped like the input."""
    cfg = self.config
    wide_BTM = dense(cfg, cfg.mlp_dim, ("embed", "mlp"), name="wi")(x_BTD)
    # Recomputing the activation in the backward pass costs less than storing its inner values.
    hidden_BTM = jax.checkpoint(ACTIVATIONS[cfg.activation])(wide_BTM)
    hidden_BTM = sharding.constrain(hidden_BTM, ("batch", "length", "mlp"))
    return dense(cfg, cfg.emb_dim, ("mlp", "embed"), name="wo")(hidden_BTM)


class EncoderLayer(nn.Module):
  """Self-attention and feed-forward layer, each residual and post-normed."""

  config: BertConfig
  deterministic: bool

  @nn.compact
  def __call__(
    self, x_BTD: Float[Array, "B T D"], bias_B11T: Float[Array, "B 1 1 T"]
  ) -> tuple[Float[Array, "B T D"], None]:
    """Returns the new hidden states and None, as a scan body must."""
    cfg = self.config
    drop = dropout.Dropout(cfg.dropout_rate, deterministic=self.deterministic)
    norm = functools.partial(LayerNorm, cfg.layer_norm_eps, cfg.dtype)
    y_BTD = SelfAttention(cfg, self.deterministic, name="attention")(x_BTD, bias_B11T)
    x_BTD = norm(name="post_attention_layer_norm")(x_BTD + drop(y_BTD))
    y_BTD = Mlp(cfg, name="mlp")(x_BTD)
    x_BTD = norm(name="post_mlp_layer_norm")(x_BTD + drop(y_BTD))
    return sharding.constrain(x_BTD, ("batch", "length", "embed")), None


class BertEncoder(nn.Module):
  """Adds positions and token type to embedded tokens and runs a stack of encoder layers.

  Attributes:
    config: Sizes and numerics.
  """

  config: BertConfig

  @nn.compact
  def __call__(
    self,
    embedded_BTD: Float[Array, "B T D"],
    mask_BT: Bool[Array, "B T"],
    *,
    deterministic: bool = True,
  ) -> Float[Array, "B T D"]:
    """Returns hidden states in the compute dtype; those of padding are undefined.

    Args:
      embedded_BTD: Token vectors, plus anything the caller adds to them.
      mask_BT: True at real tokens; padding must be at the end.
      deterministic: False enables dropout (needs an rng named "dropout").

    Raises:
      InputError: the sentences are longer than the position table.
    """
    cfg = self.config
    first, length = cfg.position_offset, embedded_BTD.shape[1]
    if first + length > cfg.max_positions:
      raise errors.InputError(
        f"sentences have {length} tokens; BertConfig has positions for {cfg.max_tokens} "
        f"(max_positions {cfg.max_positions}, position_offset {first}); shorten them"
      )

    def table(name: str, rows: int) -> Float[Array, "R D"]:
      # T5X's Adafactor has no axis for absolute positions; the rules of this one replicate rows.
      return partitioning.param_with_axes(
        name,
        nn.initializers.normal(cfg.initializer_std),
        (rows, cfg.emb_dim),
        jnp.float32,
        axes=("relpos_buckets", "embed"),
      )

    added_TD = table("position_embedding", cfg.max_positions)[first : first + length]
    if cfg.num_token_types:
      added_TD = added_TD + table("token_type_embedding", cfg.num_token_types)[0]
    x_BTD = embedded_BTD.astype(cfg.dtype) + added_TD.astype(cfg.dtype)
    x_BTD = LayerNorm(cfg.layer_norm_eps, cfg.dtype, name="embedding_layer_norm")(x_BTD)
    x_BTD = dropout.Dropout(cfg.dropout_rate)(x_BTD, deterministic=deterministic)

    return t5.run_layers(
      EncoderLayer,
      cfg,
      cfg.num_layers,
      x_BTD,
      t5.padding_bias(mask_BT),
      deterministic=deterministic,
      initializing=self.is_initializing(),
    )


class ClsPooler(nn.Module):
  """The pooler of BERT and LaBSE: `tanh(W h + b)` of the first token's hidden state, in float32.

  Attributes:
    config: Sizes and numerics of the encoder.
  """

  config: BertConfig

  @nn.compact
  def __call__(self, hidden_BTD: Float[Array, "B T D"]) -> Float[Array, "B D"]:
    """Returns one vector per sentence, not normalized."""
    # T5X's rules replicate a "kv" axis: the head is small.
    pooler = dense(self.config, hidden_BTD.shape[-1], ("embed", "kv"), "float32", name="dense")
    return jnp.tanh(pooler(hidden_BTD[:, 0]))
