"""The BERT encoder: learned positions, post-layer-norm, biases, an ungated feed-forward layer.

One stack serves EMS (its paper, section III; details of the release) and what is imported: mBERT,
LaBSE, XLM-R and multilingual E5. Positions and token types belong to the encoder and are added
inside of it, so that a caller hands it what it hands any other encoder: token vectors and a mask.

Padding stands at the end. Its id is 0 throughout this library; where another one was used in
training (1 in XLM-R), the importer swaps two rows of the token table. No id is seen in here, and
`position_offset` says where such models start to count.

References: Devlin et al. 2019 (BERT), Conneau et al. 2020 (XLM-R), Feng et al. 2022 (LaBSE).
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen import partitioning
from jaxtyping import Array, Bool, Float, Int

from vmsst import errors, sharding
from vmsst.networks import t5

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
  "gelu": functools.partial(nn.gelu, approximate=False),
  "relu": nn.relu,
  "swish": nn.swish,
}


@dataclasses.dataclass(frozen=True)
class BertConfig:
  """Sizes and numerics of a BERT encoder; plain values only, so it can be bound by gin and saved.

  Attributes:
    vocab_size: Rows of the token table (V), at least the vocabulary's size.
    emb_dim: Width of token embeddings and hidden states (D), a multiple of `num_heads`.
    num_heads: Attention heads (H).
    mlp_dim: Width of the feed-forward layer.
    num_layers: Layers of the encoder.
    max_positions: Rows of the position table.
    position_offset: Row of a sentence's first token: 0 in BERT, 2 in XLM-R. A sentence has at most
      `max_positions - position_offset` tokens.
    num_token_types: Rows of the token type table, of which a sentence by itself uses the first;
      0: there is none.
    embedding_norm: Whether the sum of token, position and type is layer-normed.
    activation: Of the feed-forward layer: "gelu" (exact, not its tanh form), "relu" or "swish".
    layer_norm_eps: What layer norms add to the variance.
    initializer_std: Standard deviation of the normal that tables and kernels start with.
    dropout_rate: Probability of dropping: embeddings, attention weights, and what attention and
      the feed-forward layer add.
    dtype: Compute dtype, "float32" or "bfloat16". Parameters, norms and softmaxes are float32 in
      both.
    remat: What the backward pass recomputes: "none", "minimal" (all but products with weights) or
      "full" (each layer from its input).
    scan_layers: Compile one layer and scan over the stack. Same function, shorter compilation, but
      the checkpoint holds one stacked `layers` in place of `layers_0`, `layers_1` and so on.
  """

  vocab_size: int
  emb_dim: int = 1024
  num_heads: int = 16
  mlp_dim: int = 4096
  num_layers: int = 6
  max_positions: int = 120
  position_offset: int = 0
  num_token_types: int = 0
  embedding_norm: bool = True
  activation: str = "swish"
  layer_norm_eps: float = 1e-12
  initializer_std: float = 0.02
  dropout_rate: float = 0.0
  dtype: str = "float32"
  remat: str = "none"
  scan_layers: bool = False

  def __post_init__(self):
    least = {
      **dict.fromkeys(("vocab_size", "emb_dim", "num_heads", "mlp_dim", "num_layers"), 1),
      **{"max_positions": 1, "position_offset": 0, "num_token_types": 0},
    }
    for name, minimum in least.items():
      value = getattr(self, name)
      if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise errors.InputError(
          f"BertConfig.{name} is {value!r}; it has to be an integer of {minimum} or more"
        )
    for name, choices in (
      ("activation", tuple(ACTIVATIONS)),
      ("dtype", t5.DTYPES),
      ("remat", ("none", *t5.REMAT_POLICIES)),
    ):
      if getattr(self, name) not in choices:
        raise errors.InputError(
          f"BertConfig.{name} is {getattr(self, name)!r}; known: {', '.join(choices)}"
        )
    if self.emb_dim % self.num_heads:
      raise errors.InputError(
        f"BertConfig.emb_dim is {self.emb_dim}, not a multiple of the {self.num_heads} heads"
      )
    if self.position_offset >= self.max_positions:
      raise errors.InputError(
        f"BertConfig.position_offset is {self.position_offset}, outside the table of "
        f"{self.max_positions} positions"
      )
    for name in ("layer_norm_eps", "initializer_std"):
      if not 0 < getattr(self, name) < math.inf:
        raise errors.InputError(
          f"BertConfig.{name} is {getattr(self, name)!r}; it has to be a positive number"
        )
    if not 0 <= self.dropout_rate < 1:
      raise errors.InputError(
        f"BertConfig.dropout_rate is {self.dropout_rate!r}; it has to be in [0, 1)"
      )


class TokenEmbedder(nn.Module):
  """The token table of a BERT, N(0, initializer_std) at first like the tables that are added to it.

  Attributes:
    config: Sizes and numerics.
  """

  config: BertConfig

  @nn.compact
  def __call__(self, tokens_BT: Int[Array, "B T"]) -> Float[Array, "B T D"]:
    """Looks tokens up. An id outside the table gives NaN, so that it cannot go unseen."""
    cfg = self.config
    table_VD = partitioning.param_with_axes(
      "embedding",
      nn.initializers.normal(cfg.initializer_std),
      (cfg.vocab_size, cfg.emb_dim),
      jnp.float32,
      axes=("vocab", "embed"),
    )
    # Gathered before the cast: the table is far larger than the batch.
    embedded_BTD = jnp.take(table_VD, tokens_BT, axis=0).astype(cfg.dtype)
    return sharding.constrain(embedded_BTD, ("batch", "length", "embed"))


class Dense(nn.Module):
  """A product with one weight matrix, and a bias that starts as zero.

  Attributes:
    features: Output width.
    axes: Logical axes of the kernel (input, output).
    kernel_init: Initializer of the float32 kernel.
    dtype: Compute and output dtype.
  """

  features: int
  axes: tuple[str, str]
  kernel_init: Callable[..., Any]
  dtype: str = "float32"

  @nn.compact
  def __call__(self, x: Float[Array, "... M"]) -> Float[Array, "... N"]:
    """Returns `x @ kernel + bias`."""
    kernel = partitioning.param_with_axes(
      "kernel", self.kernel_init, (x.shape[-1], self.features), jnp.float32, axes=self.axes
    )
    bias = partitioning.param_with_axes(
      "bias", nn.initializers.zeros, (self.features,), jnp.float32, axes=self.axes[1:]
    )
    # One matrix per product: XLA's CPU backend is slow on the kernel gradient of a 3-D product.
    flat = x.reshape(-1, x.shape[-1]).astype(self.dtype)
    flat = flat @ kernel.astype(self.dtype) + bias.astype(self.dtype)
    return flat.reshape(*x.shape[:-1], self.features)


class LayerNorm(nn.Module):
  """Zero mean and unit variance for each vector (float32), then a weight and a bias.

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
    head_dim = cfg.emb_dim // cfg.num_heads
    kernel_init = nn.initializers.normal(cfg.initializer_std)

    def heads(name: str) -> Float[Array, "B T H K"]:
      project = Dense(cfg.emb_dim, ("embed", "joined_kv"), kernel_init, cfg.dtype, name=name)
      out_BTHK = project(x_BTD).reshape(*x_BTD.shape[:-1], cfg.num_heads, head_dim)
      return sharding.constrain(out_BTHK, ("batch", "length", "heads", "kv"))

    query_BTHK = heads("query") / math.sqrt(head_dim)
    logits_BHTT = jnp.einsum(
      "bqhd,bkhd->bhqk", query_BTHK, heads("key"), preferred_element_type=jnp.float32
    )
    weights_BHTT = jax.nn.softmax(logits_BHTT + bias_B11T, axis=-1).astype(cfg.dtype)
    weights_BHTT = nn.Dropout(cfg.dropout_rate)(weights_BHTT, deterministic=self.deterministic)
    out_BTHK = jnp.einsum("bhqk,bkhd->bqhd", weights_BHTT, heads("value"))
    return Dense(cfg.emb_dim, ("joined_kv", "embed"), kernel_init, cfg.dtype, name="out")(
      out_BTHK.reshape(x_BTD.shape)
    )


class Mlp(nn.Module):
  """Feed-forward layer `wo activation(wi x)`, with biases."""

  config: BertConfig

  @nn.compact
  def __call__(self, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """Returns the layer's output, of its input's shape."""
    cfg = self.config
    kernel_init = nn.initializers.normal(cfg.initializer_std)
    wide = Dense(cfg.mlp_dim, ("embed", "mlp"), kernel_init, cfg.dtype, name="wi")
    hidden_BTM = ACTIVATIONS[cfg.activation](wide(x_BTD))
    hidden_BTM = sharding.constrain(hidden_BTM, ("batch", "length", "mlp"))
    return Dense(cfg.emb_dim, ("mlp", "embed"), kernel_init, cfg.dtype, name="wo")(hidden_BTM)


class EncoderLayer(nn.Module):
  """Self-attention, then the feed-forward layer, each added to its input and the sum normed."""

  config: BertConfig
  deterministic: bool

  @nn.compact
  def __call__(
    self, x_BTD: Float[Array, "B T D"], bias_B11T: Float[Array, "B 1 1 T"]
  ) -> tuple[Float[Array, "B T D"], None]:
    """Returns the new hidden states and None: the form of a scan's body."""
    cfg = self.config
    drop = nn.Dropout(cfg.dropout_rate, deterministic=self.deterministic)
    norm = functools.partial(LayerNorm, cfg.layer_norm_eps, cfg.dtype)
    y_BTD = SelfAttention(cfg, self.deterministic, name="attention")(x_BTD, bias_B11T)
    x_BTD = norm(name="post_attention_layer_norm")(x_BTD + drop(y_BTD))
    y_BTD = Mlp(cfg, name="mlp")(x_BTD)
    x_BTD = norm(name="post_mlp_layer_norm")(x_BTD + drop(y_BTD))
    return sharding.constrain(x_BTD, ("batch", "length", "embed")), None


class BertEncoder(nn.Module):
  """A stack of encoder layers over embedded tokens, to which it adds positions and token type.

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
    """Returns hidden states in the compute dtype; those of padding mean nothing.

    Args:
      embedded_BTD: Token vectors, with whatever the caller has added to them.
      mask_BT: True at real tokens, which stand before padding.
      deterministic: False turns dropout on (needs an rng named "dropout").

    Raises:
      InputError: sentences are longer than the position table.
    """
    cfg = self.config
    first, length = cfg.position_offset, embedded_BTD.shape[1]
    if first + length > cfg.max_positions:
      raise errors.InputError(
        f"sentences of {length} tokens: BertConfig has positions for {cfg.max_positions - first} "
        f"(max_positions {cfg.max_positions}, position_offset {first})"
      )

    def table(name: str, rows: int) -> Float[Array, "R D"]:
      # T5X's Adafactor knows no axis of absolute positions; these rules replicate the rows.
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
    if cfg.embedding_norm:
      x_BTD = LayerNorm(cfg.layer_norm_eps, cfg.dtype, name="embedding_layer_norm")(x_BTD)
    x_BTD = nn.Dropout(cfg.dropout_rate)(x_BTD, deterministic=deterministic)

    bias_B11T = jnp.where(mask_BT, 0.0, t5.MASKED)[:, None, None, :]
    layers = t5.layer_stack(
      EncoderLayer,
      cast(Any, cfg),  # of a config it reads `remat` and `scan_layers`
      cfg.num_layers,
      deterministic=deterministic,
      initializing=self.is_initializing(),
    )
    for layer in layers:
      x_BTD, _ = layer(x_BTD, bias_B11T)
    return x_BTD


class ClsPooler(nn.Module):
  """LaBSE's sentence vector: `tanh(W h + b)` of the first token's hidden state, in float32.

  Attributes:
    config: Sizes and numerics of the encoder below it.
  """

  config: BertConfig

  @nn.compact
  def __call__(self, hidden_BTD: Float[Array, "B T D"]) -> Float[Array, "B D"]:
    """Returns one vector a sentence, not normalized."""
    kernel_init = nn.initializers.normal(self.config.initializer_std)
    # T5X's rules replicate a "kv" axis: the head is small.
    dense = Dense(hidden_BTD.shape[-1], ("embed", "kv"), kernel_init, name="dense")
    return jnp.tanh(dense(hidden_BTD[:, 0]))
