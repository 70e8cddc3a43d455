"""The transformer encoder in BERT and its successors; the default options match BERT.

`TransformerEncoder` implements the encoder of EMS (EMS paper, section III, with details from the
released code) and several released encoders: BERT, RoBERTa, XLM-R, DistilBERT, MPNet, ModernBERT,
Qwen3, Gemma 3 and T5. `vmsst.formats.transformers` reads the options of released encoders from
`config.json`. `TransformerEncoder` itself adds positions and token types to the token vectors, so
that all encoders in this library have the same inputs: token vectors and a mask.

Throughout this library, padding is at the end and has id 0. For models trained with a different
padding id, such as 1 in XLM-R, the importer swaps the rows for this id and for id 0 in the token
table. It also sets `position_offset` to the row of the position table that such a model uses for
the first token.

References: Devlin et al. 2019 (BERT), Conneau et al. 2020 (XLM-R), Song et al. 2020 (MPNet), Su et
al. 2021 (rotary positions), Ainslie et al. 2023 (grouped queries), Warner et al. 2024 (ModernBERT).
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.linen import partitioning
from jaxtyping import Array, Float, Int

from vmsst import errors
from vmsst.arrays import layouts
from vmsst.networks import dropout, t5

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
  "gelu": functools.partial(nn.gelu, approximate=False),
  "gelu_tanh": functools.partial(nn.gelu, approximate=True),
  "relu": nn.relu,
  "swish": nn.swish,
}
POSITIONS = ("learned", "rotary", "relative")
NORMS = ("layer", "rms")
NORM_PLACES = ("after", "before", "around")
RELPOS_MAX_DISTANCE = 128  # distances of at least this value share the last bucket


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
  """Configuration of an encoder; all fields are plain values that gin can bind and save.

  Attributes:
    vocab_size: Number of rows in the token table (V); at least the vocabulary size.
    emb_dim: Width of token embeddings and hidden states (D), a multiple of `num_heads`.
    num_heads: Number of attention heads (H).
    mlp_dim: Width of the feed-forward layer.
    num_layers: Number of encoder layers.
    max_positions: Number of rows in the position table. If there is no position table, this is the
      maximum number of tokens per sentence.
    position_offset: Row of the position table for the first token: 0 in BERT, 2 in XLM-R. Sentences
      may have at most `max_positions - position_offset` tokens.
    num_token_types: Number of rows in the token type table; only the first row, for single
      sentences, is used. With 0 rows, or without learned positions, there is no token type table.
    activation: Activation of the feed-forward layer: "gelu" (exact), "gelu_tanh" (tanh
      approximation), "relu" or "swish".
    layer_norm_eps: Epsilon added to the variance in norms.
    initializer_std: Standard deviation of the normal distribution that initializes tables and
      kernels.
    dropout_rate: Dropout probability for embeddings, attention weights, and the outputs of
      attention and feed-forward layers.
    dtype: Compute dtype, "float32" or "bfloat16". Parameters, norms and softmaxes are always
      float32.
    remat: What the backward pass recomputes: nothing ("none"), everything except the weight matmuls
      ("minimal"), or each layer from its input ("full").
    scan_layers: Whether to compile one layer and scan it over the stack, which computes the same
      function but compiles faster. Checkpoints then contain one stacked `layers` instead of
      `layers_0`, `layers_1`, ... Both kinds of checkpoint can be restored with either setting.
    num_kv_heads: Number of key and value heads (grouped queries), a divisor of `num_heads`
      (default: `num_heads`).
    head_dim: Width of a head (default: `emb_dim / num_heads`).
    query_scalar: Queries are divided by the square root of this number (default: `head_dim`).
    qk_norm: Whether to normalize queries and keys in each head.
    positions: "learned", a table added to the token vectors; "rotary", rotations of queries and
      keys; or "relative", only the relative biases (see `relpos_buckets`).
    rope_theta: Base of the rotary wavelengths.
    local_rope_theta: Base of the rotary wavelengths in local layers.
    relpos_buckets: Number of relative-distance buckets. As in T5, each bucket has a learned bias
      for the attention logits, shared by all layers. With 0 buckets, there is no bias.
    causal: Whether tokens attend only to themselves and to earlier tokens.
    local_layers: Indices of the layers with local attention.
    window: In local layers, tokens attend only to tokens closer than this distance.
    norm: "layer" or "rms" (scaled by the root mean square, without centering or bias).
    norm_place: Where to put the norms for each attention and feed-forward layer: "after" the
      residual sum (BERT), "before" the layer, or "around" the layer (on its input, and on its
      output before the residual sum). With "before" and "around", a final norm follows the last
      layer.
    first_norm: Whether the first layer has a norm before its attention; False in ModernBERT.
    embedding_norm: Whether to apply a norm to the embeddings.
    scale_embeddings: Whether to multiply the token vectors by `sqrt(emb_dim)`.
    use_bias: Whether linear layers have a bias.
    norm_bias: Whether layer norms have a bias.
    gated: Whether the feed-forward layer is `wo (activation(wi_0 x) * wi_1 x)`.
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
  num_kv_heads: int | None = None
  head_dim: int | None = None
  query_scalar: int | None = None
  qk_norm: bool = False
  positions: str = "learned"
  rope_theta: float = 10_000.0
  local_rope_theta: float = 10_000.0
  relpos_buckets: int = 0
  causal: bool = False
  local_layers: tuple[int, ...] = ()
  window: int = 128
  norm: str = "layer"
  norm_place: str = "after"
  first_norm: bool = True
  embedding_norm: bool = True
  scale_embeddings: bool = False
  use_bias: bool = True
  norm_bias: bool = True
  gated: bool = False

  def __post_init__(self):
    errors.check_sizes(self, may_be_zero=("position_offset", "num_token_types", "relpos_buckets"))
    errors.check_choice("TransformerConfig.activation", self.activation, ACTIVATIONS)
    errors.check_choice("TransformerConfig.positions", self.positions, POSITIONS)
    errors.check_choice("TransformerConfig.norm", self.norm, NORMS)
    errors.check_choice("TransformerConfig.norm_place", self.norm_place, NORM_PLACES)
    errors.check_choice("TransformerConfig.dtype", self.dtype, t5.DTYPES)
    errors.check_choice("TransformerConfig.remat", self.remat, t5.REMAT_CHOICES)
    for name in ("layer_norm_eps", "initializer_std", "rope_theta", "local_rope_theta"):
      errors.check_number(f"TransformerConfig.{name}", getattr(self, name), "(0, inf)")
    errors.check_number("TransformerConfig.dropout_rate", self.dropout_rate, "[0, 1)")
    if self.head_dim is None and self.emb_dim % self.num_heads:
      raise errors.InputError(
        f"TransformerConfig.emb_dim is {self.emb_dim}; it must be a multiple of num_heads "
        f"({self.num_heads})"
      )
    for valid, name, requirement in (
      (self.num_heads % self.kv_heads == 0, "num_kv_heads",
       f"a divisor of num_heads ({self.num_heads})"),
      (self.positions != "rotary" or self.head_width % 2 == 0, "head_dim",
       "an even number, for rotary positions"),
      (self.relpos_buckets % 4 == 0, "relpos_buckets", "a multiple of 4"),
      (all(0 <= i < self.num_layers for i in self.local_layers), "local_layers",
       f"numbers from 0 to {self.num_layers - 1}"),
    ):  # fmt: skip
      errors.check(valid, f"TransformerConfig.{name}", getattr(self, name), requirement)
    if self.position_offset >= self.max_positions:
      raise errors.InputError(
        f"TransformerConfig.position_offset is {self.position_offset}; it must be below "
        f"max_positions ({self.max_positions})"
      )

  @property
  def max_tokens(self) -> int:
    """Maximum number of tokens per sentence."""
    return self.max_positions - self.position_offset

  @property
  def width(self) -> int:
    """Width of the encoder's hidden states."""
    return self.emb_dim

  @property
  def head_width(self) -> int:
    """Width of an attention head (K)."""
    return self.emb_dim // self.num_heads if self.head_dim is None else self.head_dim

  @property
  def kv_heads(self) -> int:
    """Number of key and value heads."""
    return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

  def token_embedder(self) -> t5.TokenEmbedder:
    """Returns the token table, initialized from the same distribution as the other tables."""
    init = nn.initializers.normal(self.initializer_std)
    return t5.TokenEmbedder(self.vocab_size, self.emb_dim, self.dtype, embedding_init=init)

  def encoder(self) -> "TransformerEncoder":
    """Returns the encoder."""
    return TransformerEncoder(self)


def dense(
  config: TransformerConfig, features: int, axes: tuple[str, str], *, name: str | None = None
) -> nn.Module:
  """Returns a linear layer, initialized as in BERT."""
  init = nn.initializers.normal(config.initializer_std)
  return t5.Dense(features, axes, init, config.dtype, config.use_bias, name=name)


class LayerNorm(nn.Module):
  """Normalizes each vector to zero mean and unit variance (float32), then scales and shifts it.

  Attributes:
    epsilon: Added to the variance.
    dtype: Output dtype.
    centered: Whether to subtract the mean. If False, the variance is the mean square (RMSNorm).
    use_bias: Whether to add a bias.
    axis: Logical axis of the parameters.
  """

  epsilon: float
  dtype: str = "float32"
  centered: bool = True
  use_bias: bool = True
  axis: str = "embed"

  @nn.compact
  def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
    """Returns `(x - mean) / sqrt(variance + epsilon) * scale + bias` in the output dtype."""

    def vector(name: str, init: Callable[..., Any]) -> Float[Array, "D"]:
      return partitioning.param_with_axes(name, init, x.shape[-1:], jnp.float32, axes=(self.axis,))

    scale_D = vector("scale", nn.initializers.ones)
    bias_D = vector("bias", nn.initializers.zeros) if self.use_bias else None
    x = x.astype(jnp.float32)
    if self.centered:
      x = x - jnp.mean(x, axis=-1, keepdims=True)
    x = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + self.epsilon)
    x = x * scale_D
    return (x if bias_D is None else x + bias_D).astype(self.dtype)


def norm(config: TransformerConfig, name: str, axis: str = "embed") -> LayerNorm:
  """Returns the norm layer that the config selects."""
  centered = config.norm == "layer"
  use_bias = centered and config.norm_bias
  return LayerNorm(config.layer_norm_eps, config.dtype, centered, use_bias, axis, name=name)


def rotary_angles(length: int, head_width: int, theta: float) -> Float[Array, "T F"]:
  """Returns the angle t * theta^(-2f / K) for each position t and each f from 0 to K / 2 - 1."""
  rate_F = theta ** (-np.arange(0, head_width, 2) / head_width)
  return jnp.asarray(np.arange(length)[:, None] * rate_F, jnp.float32)


def rotate(
  x_BTHK: Float[Array, "B T H K"], angle_TF: Float[Array, "T F"]
) -> Float[Array, "B T H K"]:
  """Rotates each pair of components (f, f + K/2) by its angle; computed in float32."""
  first, second = jnp.split(x_BTHK.astype(jnp.float32), 2, axis=-1)
  cos, sin = jnp.cos(angle_TF)[:, None], jnp.sin(angle_TF)[:, None]
  rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
  return rotated.astype(x_BTHK.dtype)


class SelfAttention(nn.Module):
  """Multi-head self-attention."""

  config: TransformerConfig
  deterministic: bool

  @nn.compact
  def __call__(
    self,
    x_BTD: Float[Array, "B T D"],
    bias_BHTT: Float[Array, "#B #H #T T"],
    angle_TF: Float[Array, "T F"] | None = None,
  ) -> Float[Array, "B T D"]:
    """Returns the attention output; `bias_BHTT` (float32) is added to the logits."""
    cfg = self.config

    def heads(name: str, count: int) -> Float[Array, "B T H K"]:
      project = dense(cfg, count * cfg.head_width, ("embed", "joined_kv"), name=name)
      x_BTHK = project(x_BTD).reshape(*x_BTD.shape[:2], count, -1)
      if cfg.qk_norm and name != "value":
        x_BTHK = norm(cfg, f"{name}_norm", "kv")(x_BTHK)
      if angle_TF is not None and name != "value":
        x_BTHK = rotate(x_BTHK, angle_TF)
      if count < cfg.num_heads:
        x_BTHK = jnp.repeat(x_BTHK, cfg.num_heads // count, axis=2)
      return layouts.constrain(x_BTHK, ("batch", "length", "heads", "kv"))

    scalar = cfg.head_width if cfg.query_scalar is None else cfg.query_scalar
    out_BTM = t5.attend(
      heads("query", cfg.num_heads) / math.sqrt(scalar),
      heads("key", cfg.kv_heads),
      heads("value", cfg.kv_heads),
      bias_BHTT,
      dropout.Dropout(cfg.dropout_rate, deterministic=self.deterministic),
    )
    return dense(cfg, cfg.emb_dim, ("joined_kv", "embed"), name="out")(out_BTM)


class Mlp(nn.Module):
  """Feed-forward layer `wo activation(wi x)` or, if gated, `wo (activation(wi_0 x) * wi_1 x)`."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """Returns the output, shaped like the input."""
    cfg = self.config
    wide = functools.partial(dense, cfg, cfg.mlp_dim, ("embed", "mlp"))
    wide_BTM = wide(name="wi_0" if cfg.gated else "wi")(x_BTD)
    # Recomputing the activation in the backward pass costs less than storing intermediate values.
    hidden_BTM = jax.checkpoint(ACTIVATIONS[cfg.activation])(wide_BTM)
    if cfg.gated:
      hidden_BTM = hidden_BTM * wide(name="wi_1")(x_BTD)
    hidden_BTM = layouts.constrain(hidden_BTM, ("batch", "length", "mlp"))
    return dense(cfg, cfg.emb_dim, ("mlp", "embed"), name="wo")(hidden_BTM)


class EncoderLayer(nn.Module):
  """Self-attention and a feed-forward layer, each with a norm and a residual connection."""

  config: TransformerConfig
  deterministic: bool

  @nn.compact
  def __call__(
    self,
    x_BTD: Float[Array, "B T D"],
    bias: Float[Array, "*kinds #B #H #T T"],
    angle: Float[Array, "*kinds T F"] | None = None,
    number: Int[Array, ""] | int | None = None,
  ) -> tuple[Float[Array, "B T D"], None]:
    """Returns the new hidden states and None, as a scan body requires.

    Args:
      x_BTD: Hidden states.
      bias: Float32 bias added to the logits, for positions and masks. If the config has local
        layers, this is a stack of two biases: one for global layers and one for local layers.
      angle: Rotary angles or None; with local layers, a stack of two arrays, as for `bias`.
      number: Index of the layer; required if the config has local layers or if `first_norm` is
        False.
    """
    cfg = self.config
    if cfg.local_layers:
      is_local = jnp.isin(jnp.arange(cfg.num_layers), jnp.array(cfg.local_layers))[number]
      bias, angle = jax.tree.map(lambda kinds: kinds[is_local.astype(int)], (bias, angle))
    attend, mlp = SelfAttention(cfg, self.deterministic, name="attention"), Mlp(cfg, name="mlp")
    drop = dropout.Dropout(cfg.dropout_rate, deterministic=self.deterministic)

    def residual(
      x_BTD: Float[Array, "B T D"], layer: Callable[[jax.Array], jax.Array], name: str
    ) -> Float[Array, "B T D"]:
      y_BTD = x_BTD
      if cfg.norm_place != "after":
        y_BTD = norm(cfg, f"pre_{name}_layer_norm")(x_BTD)
        if name == "attention" and not cfg.first_norm:
          y_BTD = jnp.where(number == 0, x_BTD, y_BTD)
      y_BTD = layer(y_BTD)
      if cfg.norm_place == "before":
        return x_BTD + drop(y_BTD)
      after = norm(cfg, f"post_{name}_layer_norm")
      if cfg.norm_place == "around":
        return x_BTD + drop(after(y_BTD))
      return after(x_BTD + drop(y_BTD))

    x_BTD = residual(x_BTD, lambda y_BTD: attend(y_BTD, bias, angle), "attention")
    x_BTD = residual(x_BTD, mlp, "mlp")
    return layouts.constrain(x_BTD, ("batch", "length", "embed")), None


class TransformerEncoder(nn.Module):
  """Adds position and token type vectors to token vectors and runs a stack of encoder layers.

  Attributes:
    config: Configuration of the encoder.
  """

  config: TransformerConfig

  @nn.compact
  def __call__(
    self, embedded_BTD: Float[Array, "B T D"], mask_BT: t5.Mask, *, deterministic: bool = True
  ) -> Float[Array, "B T D"]:
    """Returns hidden states in the compute dtype; states at padding are undefined.

    Args:
      embedded_BTD: Token vectors, including any vectors that the caller added to them.
      mask_BT: True at real tokens, or an integer mask (see `t5.padding_bias`). Padding must be at
        the end.
      deterministic: Whether to disable dropout; if False, an rng named "dropout" is required.

    Raises:
      InputError: If the sentences have more tokens than the config has positions.
    """
    cfg = self.config
    first, length = cfg.position_offset, embedded_BTD.shape[1]
    if first + length > cfg.max_positions:
      raise errors.InputError(
        f"sentences have {length} tokens, but TransformerConfig has positions for only "
        f"{cfg.max_tokens} (max_positions {cfg.max_positions}, position_offset {first}); shorten "
        "the sentences"
      )

    def table(name: str, rows: int) -> Float[Array, "R D"]:
      # T5X's Adafactor has no axis name for absolute positions. Use the axis name for relative
      # positions; T5X's rules replicate this axis.
      return partitioning.param_with_axes(
        name,
        nn.initializers.normal(cfg.initializer_std),
        (rows, cfg.emb_dim),
        jnp.float32,
        axes=("relpos_buckets", "embed"),
      )

    x_BTD = embedded_BTD.astype(cfg.dtype)
    if cfg.scale_embeddings:
      x_BTD = x_BTD * jnp.asarray(math.sqrt(cfg.emb_dim), cfg.dtype)
    if cfg.positions == "learned":
      added = table("position_embedding", cfg.max_positions)[first : first + length]
      if mask_BT.dtype != bool:  # Count positions from the start of each text.
        starts_BT = jnp.arange(length) * (jnp.diff(mask_BT, axis=1, prepend=0) != 0)
        added = added[jnp.arange(length) - jax.lax.cummax(starts_BT, axis=1)]
      if cfg.num_token_types:
        added = added + table("token_type_embedding", cfg.num_token_types)[0]
      x_BTD = x_BTD + added.astype(cfg.dtype)
    if cfg.embedding_norm:
      x_BTD = norm(cfg, "embedding_layer_norm")(x_BTD)
    x_BTD = dropout.Dropout(cfg.dropout_rate)(x_BTD, deterministic=deterministic)

    x_BTD = t5.run_layers(
      EncoderLayer,
      cfg,
      cfg.num_layers,
      x_BTD,
      *self._attention(mask_BT),
      numbered=bool(cfg.local_layers) or not cfg.first_norm,
      deterministic=deterministic,
      initializing=self.is_initializing(),
    )
    return x_BTD if cfg.norm_place == "after" else norm(cfg, "encoder_norm")(x_BTD)

  def _attention(self, mask_BT: t5.Mask) -> tuple[jax.Array | None, ...]:
    """Returns the attention bias, and the rotary angles or None.

    If the config has local layers, the bias and the angles are each a stack of two arrays: one for
    global layers and one for local layers.
    """
    cfg, length = self.config, mask_BT.shape[1]
    bias = t5.padding_bias(mask_BT)
    if cfg.relpos_buckets:
      bias += t5.RelativePositionBias(
        cfg.num_heads, cfg.relpos_buckets, RELPOS_MAX_DISTANCE, name="relpos_bias"
      )(length)
    if cfg.causal:
      bias += t5.causal_bias(length)
    angles = None
    if cfg.positions == "rotary":
      angles = rotary_angles(length, cfg.head_width, cfg.rope_theta)
    if cfg.local_layers:
      position_T = np.arange(length)
      is_near_TT = np.abs(position_T[:, None] - position_T) < cfg.window
      local = bias + jnp.where(is_near_TT, 0.0, t5.MASKED)
      bias = jnp.stack([jnp.broadcast_to(bias, local.shape), local])
      if angles is not None:
        angles = jnp.stack([angles, rotary_angles(length, cfg.head_width, cfg.local_rope_theta)])
    return bias, angles
