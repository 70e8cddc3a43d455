"""The T5 1.1 encoder: pre-RMSNorm, gated GELU, one table of relative position biases, no biases.

Parameter names, kernel layouts and initial distributions are those of T5X's example T5 1.1, so that
its Adafactor, its partitioning rules and its checkpoints fit. Every parameter carries logical axes
out of T5X's standard set; activation constraints do nothing where no mesh or no rules are set.

References: Raffel et al. 2020 (T5), Shazeer 2020 (gated GELU), Xue et al. 2021 (mT5).
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
from jaxtyping import Array, Bool, Float, Int

from vmsst import errors, sharding

DTYPES = ("float32", "bfloat16")
REMAT_POLICIES: dict[str, Callable[..., Any] | None] = {
  # Recompute everything but the products with weights, or everything but a layer's input.
  "minimal": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
  "full": None,
}
# Large enough to zero a masked key in the softmax; finite, for rows of padding alone.
MASKED = -1e9

_TRUNCATED_FAN_IN = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal")
_NORMAL_FAN_IN = nn.initializers.variance_scaling(1.0, "fan_in", "normal")
_UNIFORM_FAN_AVG = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform")


@dataclasses.dataclass(frozen=True)
class T5Config:
  """Sizes and numerics of a T5 1.1 stack; plain values only, so it can be bound by gin and saved.

  Attributes:
    vocab_size: Rows of the token table (V), at least the vocabulary's size.
    emb_dim: Width of token embeddings and hidden states (D).
    num_heads: Attention heads (H).
    head_dim: Width of one head; H * head_dim may differ from D.
    mlp_dim: Width of the gated feed-forward layer.
    num_encoder_layers: Layers of one encoder.
    dropout_rate: Probability of dropping, at the places where T5 does.
    dtype: Compute dtype, "float32" or "bfloat16". Parameters, norms' statistics, softmaxes and
      pooling are float32 in both.
    relpos_buckets: Buckets of relative distance, half of them for each direction.
    relpos_max_distance: Distance from which all share the last bucket.
    remat: What the backward pass recomputes: "none", "minimal" (all but products with weights) or
      "full" (each layer from its input).
    scan_layers: Compile one layer and scan over the stack. Same function, shorter compilation, but
      the checkpoint holds one stacked `layers` in place of `layers_0`, `layers_1` and so on.
  """

  vocab_size: int
  emb_dim: int = 512
  num_heads: int = 6
  head_dim: int = 64
  mlp_dim: int = 1024
  num_encoder_layers: int = 8
  dropout_rate: float = 0.0
  dtype: str = "float32"
  relpos_buckets: int = 32
  relpos_max_distance: int = 128
  remat: str = "none"
  scan_layers: bool = False

  def __post_init__(self):
    for name in ("vocab_size", "emb_dim", "num_heads", "head_dim", "mlp_dim", "num_encoder_layers"):
      value = getattr(self, name)
      if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise errors.InputError(f"T5Config.{name} is {value!r}; it has to be a positive integer")
    if self.dtype not in DTYPES:
      raise errors.InputError(f"T5Config.dtype is {self.dtype!r}; known: {', '.join(DTYPES)}")
    if self.remat not in ("none", *REMAT_POLICIES):
      known = ", ".join(("none", *REMAT_POLICIES))
      raise errors.InputError(f"T5Config.remat is {self.remat!r}; known: {known}")
    if not 0 <= self.dropout_rate < 1:
      raise errors.InputError(
        f"T5Config.dropout_rate is {self.dropout_rate!r}; it has to be in [0, 1)"
      )
    if self.relpos_buckets < 4 or self.relpos_buckets % 4:
      raise errors.InputError(
        f"T5Config.relpos_buckets is {self.relpos_buckets}, not a multiple of 4"
      )
    if self.relpos_max_distance <= self.relpos_buckets // 4:
      raise errors.InputError(
        f"T5Config.relpos_max_distance is {self.relpos_max_distance}; it has to exceed a quarter "
        f"of the {self.relpos_buckets} buckets"
      )


class Dense(nn.Module):
  """A product with one weight matrix, without bias.

  Attributes:
    features: Output width.
    axes: Logical axes of the kernel (input, output).
    kernel_init: Initializer of the float32 kernel.
    dtype: Compute and output dtype.
  """

  features: int
  axes: tuple[str, str]
  kernel_init: Callable[..., Any] = _TRUNCATED_FAN_IN
  dtype: str = "float32"

  @nn.compact
  def __call__(self, x: Float[Array, "... M"]) -> Float[Array, "... N"]:
    """Returns `x @ kernel`."""
    kernel = partitioning.param_with_axes(
      "kernel", self.kernel_init, (x.shape[-1], self.features), jnp.float32, axes=self.axes
    )
    # One matrix per product: XLA's CPU backend is slow on the kernel gradient of a 3-D product.
    flat = x.reshape(-1, x.shape[-1]).astype(self.dtype)
    return (flat @ kernel.astype(self.dtype)).reshape(*x.shape[:-1], self.features)


class RMSNorm(nn.Module):
  """Scales each vector to unit mean square (float32 statistics, epsilon 1e-6), then by a weight."""

  dtype: str = "float32"

  @nn.compact
  def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
    """Returns `x / rms(x) * scale` in the compute dtype."""
    scale_D = partitioning.param_with_axes(
      "scale", nn.initializers.ones, (x.shape[-1],), jnp.float32, axes=("embed",)
    )
    x = x.astype(jnp.float32)
    x = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + 1e-6)
    return x.astype(self.dtype) * scale_D.astype(self.dtype)


class TokenEmbedder(nn.Module):
  """The token table, N(0, 1) at first. One table may serve several encoders and a decoder.

  Attributes:
    vocab_size: Rows (V).
    features: Width (D).
    dtype: Dtype of the vectors handed out.
    rows_axis: Logical axis of the rows.
  """

  vocab_size: int
  features: int
  dtype: str = "float32"
  rows_axis: str = "vocab"

  @nn.compact
  def __call__(self, tokens_BT: Int[Array, "B T"]) -> Float[Array, "B T D"]:
    """Looks tokens up. An id outside the table gives NaN, so that it cannot go unseen."""
    table_VD = partitioning.param_with_axes(
      "embedding",
      nn.initializers.normal(1.0),
      (self.vocab_size, self.features),
      jnp.float32,
      axes=(self.rows_axis, "embed"),
    )
    # Gathered before the cast: the table is far larger than the batch.
    embedded_BTD = jnp.take(table_VD, tokens_BT, axis=0).astype(self.dtype)
    return sharding.constrain(embedded_BTD, ("batch", "length", "embed"))


def relative_position_buckets(
  length: int, *, buckets: int, max_distance: int, bidirectional: bool = True
) -> np.ndarray:
  """Bucket of every (query, key) pair of positions, int32 [length, length].

  Half of the buckets serve keys after the query; without `bidirectional` all of them serve keys
  before it, and later keys fall into bucket 0. Of the buckets of one direction the first half holds
  one distance each, the others grow logarithmically up to `max_distance` and share the last one
  beyond.

  Raises:
    InputError: `max_distance` leaves no room for buckets that grow.
  """
  position_T = np.arange(length)
  offset_TT = position_T[None, :] - position_T[:, None]
  side = buckets // 2 if bidirectional else buckets
  exact = side // 2
  if max_distance <= exact:
    raise errors.InputError(
      f"T5Config.relpos_max_distance is {max_distance}; it has to exceed {exact}, the distances "
      f"that have a bucket of their own"
    )
  distance_TT = np.abs(offset_TT) if bidirectional else np.maximum(-offset_TT, 0)
  growth = np.log(np.maximum(distance_TT, 1) / exact) / math.log(max_distance / exact)
  # Powers of two fall exactly on a boundary: the epsilon keeps them on its upper side.
  far_TT = exact + np.floor(growth * (side - exact) + 1e-6).astype(np.int64)
  bucket_TT = np.where(distance_TT < exact, distance_TT, np.minimum(far_TT, side - 1))
  if bidirectional:
    bucket_TT += side * (offset_TT > 0)
  return bucket_TT.astype(np.int32)


class RelativePositionBias(nn.Module):
  """One learned number for each head and bucket of relative distance, shared by all layers."""

  num_heads: int
  buckets: int
  max_distance: int
  bidirectional: bool = True

  @nn.compact
  def __call__(self, length: int) -> Float[Array, "1 H T T"]:
    """Returns the bias of attention logits in float32, for queries and keys of one length."""
    table_HR = partitioning.param_with_axes(
      "rel_embedding",
      _UNIFORM_FAN_AVG,
      (self.num_heads, self.buckets),
      jnp.float32,
      axes=("heads", "relpos_buckets"),
    )
    bucket_TT = relative_position_buckets(
      length,
      buckets=self.buckets,
      max_distance=self.max_distance,
      bidirectional=self.bidirectional,
    )
    # A product with one-hot rows: its gradient is a product too, where a gather's is a scatter.
    onehot_RTT = jnp.asarray(np.arange(self.buckets)[:, None, None] == bucket_TT, jnp.float32)
    bias_HTT = jnp.einsum("hr,rqk->hqk", table_HR, onehot_RTT, precision=jax.lax.Precision.HIGHEST)
    return bias_HTT[None]


class SelfAttention(nn.Module):
  """Multi-head self-attention with unscaled logits: 1/sqrt(head_dim) is in the query's start."""

  config: T5Config
  deterministic: bool

  @nn.compact
  def __call__(
    self, x_BTD: Float[Array, "B T D"], bias_BHTT: Float[Array, "#B #H T T"]
  ) -> Float[Array, "B T D"]:
    """Attends over T with `bias_BHTT` (positions and padding, float32) added to the logits."""
    cfg = self.config
    width = cfg.num_heads * cfg.head_dim

    def query_init(*args):
      return _NORMAL_FAN_IN(*args) / math.sqrt(cfg.head_dim)

    def heads(name: str, kernel_init: Callable[..., Any]) -> Float[Array, "B T H K"]:
      project = Dense(width, ("embed", "joined_kv"), kernel_init, cfg.dtype, name=name)
      out_BTHK = project(x_BTD).reshape(*x_BTD.shape[:-1], cfg.num_heads, cfg.head_dim)
      return sharding.constrain(out_BTHK, ("batch", "length", "heads", "kv"))

    query_BTHK = heads("query", query_init)
    key_BTHK = heads("key", _NORMAL_FAN_IN)
    value_BTHK = heads("value", _NORMAL_FAN_IN)

    logits_BHTT = jnp.einsum(
      "bqhd,bkhd->bhqk", query_BTHK, key_BTHK, preferred_element_type=jnp.float32
    )
    weights_BHTT = jax.nn.softmax(logits_BHTT + bias_BHTT, axis=-1).astype(cfg.dtype)
    weights_BHTT = nn.Dropout(cfg.dropout_rate, broadcast_dims=(-2,))(
      weights_BHTT, deterministic=self.deterministic
    )
    out_BTHK = jnp.einsum("bhqk,bkhd->bqhd", weights_BHTT, value_BTHK)
    out_BTM = out_BTHK.reshape(*x_BTD.shape[:-1], width)
    return Dense(x_BTD.shape[-1], ("joined_kv", "embed"), _NORMAL_FAN_IN, cfg.dtype, name="out")(
      out_BTM
    )


class GatedMlp(nn.Module):
  """Feed-forward layer `wo(gelu(wi_0 x) * wi_1 x)`, GELU in its tanh form."""

  config: T5Config
  deterministic: bool

  @nn.compact
  def __call__(self, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """Returns the layer's output, of its input's shape."""
    cfg = self.config
    wide = functools.partial(Dense, cfg.mlp_dim, ("embed", "mlp"), dtype=cfg.dtype)
    hidden_BTM = nn.gelu(wide(name="wi_0")(x_BTD), approximate=True) * wide(name="wi_1")(x_BTD)
    hidden_BTM = nn.Dropout(cfg.dropout_rate, broadcast_dims=(-2,))(
      hidden_BTM, deterministic=self.deterministic
    )
    hidden_BTM = sharding.constrain(hidden_BTM, ("batch", "length", "mlp"))
    return Dense(x_BTD.shape[-1], ("mlp", "embed"), dtype=cfg.dtype, name="wo")(hidden_BTM)


class EncoderLayer(nn.Module):
  """Self-attention, then the gated feed-forward layer, each on normed input and added to it."""

  config: T5Config
  deterministic: bool

  @nn.compact
  def __call__(
    self, x_BTD: Float[Array, "B T D"], bias_BHTT: Float[Array, "#B #H T T"]
  ) -> tuple[Float[Array, "B T D"], None]:
    """Returns the new hidden states and None: the form of a scan's body."""
    cfg, deterministic = self.config, self.deterministic
    drop = nn.Dropout(cfg.dropout_rate, broadcast_dims=(-2,), deterministic=deterministic)
    y_BTD = RMSNorm(cfg.dtype, name="pre_attention_layer_norm")(x_BTD)
    y_BTD = SelfAttention(cfg, deterministic, name="attention")(y_BTD, bias_BHTT)
    x_BTD = x_BTD + drop(y_BTD)
    y_BTD = RMSNorm(cfg.dtype, name="pre_mlp_layer_norm")(x_BTD)
    y_BTD = GatedMlp(cfg, deterministic, name="mlp")(y_BTD)
    x_BTD = x_BTD + drop(y_BTD)
    return sharding.constrain(x_BTD, ("batch", "length", "embed")), None


def layer_stack(
  layer_cls: Any, config: T5Config, count: int, *, deterministic: bool, initializing: bool
) -> list[nn.Module]:
  """`count` layers as submodules of the running one: each by itself, or one scanned in their place.

  Args:
    layer_cls: Module made of (config, deterministic), called with hidden states and arrays that all
      layers share; returns new hidden states and None.
    config: Says whether to scan and what the backward pass recomputes.
    count: Number of layers.
    deterministic: Handed to each layer.
    initializing: Whether parameters are being made.
  """
  if config.remat != "none":
    layer_cls = nn.remat(
      layer_cls, policy=REMAT_POLICIES[config.remat], prevent_cse=not config.scan_layers
    )
  if not config.scan_layers:
    return [layer_cls(config, deterministic, name=f"layers_{i}") for i in range(count)]
  # While parameters are made the stacked axis is an output, afterward an input only.
  axis = 0 if initializing else partitioning.ScanIn(0)
  scanned = partitioning.scan_with_axes(
    layer_cls,
    variable_axes={"params": axis},
    split_rngs={"params": True, "dropout": True},
    in_axes=nn.broadcast,
    length=count,
    axis_name="layers",
  )
  return [scanned(config, deterministic, name="layers")]


class T5Encoder(nn.Module):
  """A stack of encoder layers over embedded tokens.

  Attributes:
    config: Sizes and numerics.
  """

  config: T5Config

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
      mask_BT: True at real tokens.
      deterministic: False turns dropout on (needs an rng named "dropout").
    """
    cfg = self.config
    positions_1HTT = RelativePositionBias(
      cfg.num_heads, cfg.relpos_buckets, cfg.relpos_max_distance, name="relpos_bias"
    )(embedded_BTD.shape[1])
    padding_B11T = jnp.where(mask_BT, 0.0, MASKED)[:, None, None, :]
    bias_BHTT = positions_1HTT + padding_B11T

    x_BTD = nn.Dropout(cfg.dropout_rate, broadcast_dims=(-2,))(
      embedded_BTD.astype(cfg.dtype), deterministic=deterministic
    )
    layers = layer_stack(
      EncoderLayer,
      cfg,
      cfg.num_encoder_layers,
      deterministic=deterministic,
      initializing=self.is_initializing(),
    )
    for layer in layers:
      x_BTD, _ = layer(x_BTD, bias_BHTT)
    x_BTD = RMSNorm(cfg.dtype, name="encoder_norm")(x_BTD)
    return nn.Dropout(cfg.dropout_rate)(x_BTD, deterministic=deterministic)
