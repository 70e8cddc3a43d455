"""The T5 1.1 encoder: pre-RMSNorm, gated GELU, one relative position bias table, no bias terms.

Parameter names, kernel layouts and initial distributions match the T5 1.1 example in T5X, so that
T5X's Adafactor, partitioning rules and checkpoints work. Every parameter has logical axes from
T5X's standard set. Sharding constraints on activations apply only when a mesh and axis rules are
set.

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

from vmsst import errors
from vmsst.arrays import layouts
from vmsst.networks import dropout

DTYPES = ("float32", "bfloat16")
REMAT_POLICIES: dict[str, Callable[..., Any] | None] = {
  # With "minimal", the backward pass recomputes everything except the weight matmuls; with "full",
  # it recomputes each layer from its input.
  "minimal": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
  "full": None,
}
REMAT_CHOICES = ("none", *REMAT_POLICIES)
# The bias for masked keys. It is so negative that the softmax gives these keys a weight of zero. It
# is finite, because infinite biases would produce NaN in rows with only padding.
MASKED = -1e9
# True at tokens, or the number of each token's text (see `padding_bias`); False or 0 at padding.
Mask = Bool[Array, "B T"] | Int[Array, "B T"]

TRUNCATED_FAN_IN = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal")
_NORMAL_FAN_IN = nn.initializers.variance_scaling(1.0, "fan_in", "normal")
_UNIFORM_FAN_AVG = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform")


@dataclasses.dataclass(frozen=True)
class T5Config:
  """Configuration of a T5 1.1 stack; all fields are plain values that gin can bind and save.

  Attributes:
    vocab_size: Number of rows in the token table (V); at least the vocabulary size.
    emb_dim: Width of token embeddings and hidden states (D).
    num_heads: Number of attention heads (H).
    head_dim: Width of one head; H * head_dim may differ from D.
    mlp_dim: Width of the gated feed-forward layer.
    num_encoder_layers: Number of layers in each encoder.
    dropout_rate: Dropout probability; dropout is applied in the same places as in T5.
    dtype: Compute dtype, "float32" or "bfloat16". Parameters, norm statistics, softmaxes and
      pooling are always float32.
    relpos_buckets: Number of relative-distance buckets, half of them for each direction.
    relpos_max_distance: Distances of at least this value share the last bucket.
    remat: What the backward pass recomputes: nothing ("none"), everything except the weight matmuls
      ("minimal"), or each layer from its input ("full").
    scan_layers: Whether to compile one layer and scan it over the stack, which computes the same
      function but compiles faster. Checkpoints then contain one stacked `layers` instead of
      `layers_0`, `layers_1`, ... Both kinds of checkpoint can be restored with either setting.
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
    errors.check_sizes(self)
    errors.check_choice("T5Config.dtype", self.dtype, DTYPES)
    errors.check_choice("T5Config.remat", self.remat, REMAT_CHOICES)
    errors.check_number("T5Config.dropout_rate", self.dropout_rate, "[0, 1)")
    is_multiple = self.relpos_buckets > 0 and self.relpos_buckets % 4 == 0
    errors.check(is_multiple, "T5Config.relpos_buckets", self.relpos_buckets, "a multiple of 4")

  @property
  def width(self) -> int:
    """Width of the encoder's hidden states."""
    return self.emb_dim

  def token_embedder(self) -> "TokenEmbedder":
    """Returns the token table."""
    return TokenEmbedder(self.vocab_size, self.emb_dim, self.dtype)

  def encoder(self) -> "T5Encoder":
    """Returns the encoder."""
    return T5Encoder(self)


class Dense(nn.Module):
  """A linear layer.

  Attributes:
    features: Output width.
    axes: Logical axes of the kernel (input, output).
    kernel_init: Initializer of the float32 kernel.
    dtype: Compute and output dtype.
    use_bias: Whether to add a bias, initially zero.
  """

  features: int
  axes: tuple[str, str]
  kernel_init: Callable[..., Any] = TRUNCATED_FAN_IN
  dtype: str = "float32"
  use_bias: bool = False

  @nn.compact
  def __call__(self, x: Float[Array, "... M"]) -> Float[Array, "... N"]:
    """Returns `x @ kernel`, plus the bias if there is one."""
    kernel = partitioning.param_with_axes(
      "kernel", self.kernel_init, (x.shape[-1], self.features), jnp.float32, axes=self.axes
    )
    kernel = layouts.gather(kernel.astype(self.dtype), self.axes)
    flat = layouts.linear(x.reshape(-1, x.shape[-1]).astype(self.dtype), kernel)
    if self.use_bias:
      bias = partitioning.param_with_axes(
        "bias", nn.initializers.zeros, (self.features,), jnp.float32, axes=self.axes[1:]
      )
      flat = flat + bias.astype(self.dtype)
    return flat.reshape(*x.shape[:-1], self.features)


class RMSNorm(nn.Module):
  """Scales each vector to unit mean square (in float32, epsilon 1e-6), then by learned weights.

  Attributes:
    dtype: Compute and output dtype.
  """

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
  """The token table, which several encoders and a decoder may share.

  Attributes:
    vocab_size: Number of rows (V).
    features: Width (D).
    dtype: Dtype of the returned vectors.
    rows_axis: Logical axis of the rows.
    embedding_init: Initializer of the float32 table; N(0, 1) by default.
  """

  vocab_size: int
  features: int
  dtype: str = "float32"
  rows_axis: str = "vocab"
  embedding_init: Callable[..., Any] = nn.initializers.normal(1.0)

  @nn.compact
  def __call__(self, tokens_BT: Int[Array, "B T"]) -> Float[Array, "B T D"]:
    """Returns token vectors; an id outside the table gives NaN, which makes the mistake visible.

    Instead of the whole table, the parameters may contain only some rows, together with the ids of
    these rows in ascending order; see `vmsst.train.row_wise`.
    """
    if self.has_variable("params", "rows"):
      table_VD: jax.Array = self.get_variable("params", "embedding")
      ids_V: jax.Array = self.get_variable("params", "rows")
      row_BT = jnp.searchsorted(ids_V, tokens_BT)
      tokens_BT = jnp.where(ids_V[row_BT] == tokens_BT, row_BT, len(ids_V))
    else:
      table_VD = partitioning.param_with_axes(
        "embedding",
        self.embedding_init,
        (self.vocab_size, self.features),
        jnp.float32,
        axes=(self.rows_axis, "embed"),
      )
    # Gather before casting, because the table is far larger than the batch.
    embedded_BTD = jnp.take(table_VD, tokens_BT, axis=0).astype(self.dtype)
    return layouts.constrain(embedded_BTD, ("batch", "length", "embed"))


def relative_position_buckets(
  length: int, *, buckets: int, max_distance: int, bidirectional: bool = True
) -> np.ndarray:
  """Returns the bucket for each query position and key position, int32 [length, length].

  If `bidirectional`, half of the buckets are for keys after the query. Otherwise, all buckets are
  for keys before the query, and later keys fall into bucket 0. In each direction, the first
  half of the buckets cover one distance each. The other half cover logarithmically growing ranges
  up to `max_distance`; all longer distances share the last bucket.

  Raises:
    InputError: If `max_distance` is too small for logarithmic buckets.
  """
  position_T = np.arange(length)
  offset_TT = position_T[None, :] - position_T[:, None]
  per_direction = buckets // 2 if bidirectional else buckets
  exact = per_direction // 2
  if max_distance <= exact:
    raise errors.InputError(
      f"T5Config.relpos_max_distance is {max_distance}; it must exceed {exact}, the number of "
      "distances that have a bucket of their own"
    )
  distance_TT = np.abs(offset_TT) if bidirectional else np.maximum(-offset_TT, 0)
  growth = np.log(np.maximum(distance_TT, 1) / exact) / math.log(max_distance / exact)
  # Distances that are powers of two can lie exactly on the boundary between two buckets. The
  # epsilon prevents rounding errors from moving these distances below the boundary.
  far_TT = exact + np.floor(growth * (per_direction - exact) + 1e-6).astype(np.int64)
  bucket_TT = np.where(distance_TT < exact, distance_TT, np.minimum(far_TT, per_direction - 1))
  if bidirectional:
    bucket_TT += per_direction * (offset_TT > 0)
  return bucket_TT.astype(np.int32)


def buckets_by_offset(*, buckets: int, max_distance: int) -> np.ndarray:
  """Returns the bucket for each offset from query to key, int32 [2 max_distance + 1].

  The first entry is for the offset -max_distance. For keys farther away than `max_distance`, use
  the first or the last entry. For arguments and errors, see `relative_position_buckets`.
  """
  length = 2 * max_distance + 1
  return relative_position_buckets(length, buckets=buckets, max_distance=max_distance)[max_distance]


class RelativePositionBias(nn.Module):
  """A learned bias per head and relative-distance bucket, shared by all layers.

  Attributes:
    num_heads: Number of attention heads (H).
    buckets: Number of relative-distance buckets.
    max_distance: Distances of at least this value share the last bucket.
    bidirectional: Whether keys after the query have separate buckets.
  """

  num_heads: int
  buckets: int
  max_distance: int
  bidirectional: bool = True

  @nn.compact
  def __call__(
    self, length: int, position: Int[Array, ""] | None = None
  ) -> Float[Array, "1 H Q T"]:
    """Returns the float32 attention bias.

    Args:
      length: Number of keys (T).
      position: Position of the query if there is only one query (default: one query per key).
    """
    table_HR = partitioning.param_with_axes(
      "rel_embedding",
      _UNIFORM_FAN_AVG,
      (self.num_heads, self.buckets),
      jnp.float32,
      axes=("heads", "relpos_buckets"),
    )
    bucket_QT: Any = relative_position_buckets(
      length, buckets=self.buckets, max_distance=self.max_distance, bidirectional=self.bidirectional
    )
    if position is not None:
      bucket_QT = jax.lax.dynamic_slice_in_dim(jnp.asarray(bucket_QT), position, 1)
    # Multiply the table by one-hot vectors instead of indexing it, so that the gradient is a matmul
    # instead of a scatter.
    onehot_RQT = jnp.asarray(np.arange(self.buckets)[:, None, None] == bucket_QT, jnp.float32)
    bias_HQT = jnp.einsum("hr,rqk->hqk", table_HR, onehot_RQT, precision=jax.lax.Precision.HIGHEST)
    return bias_HQT[None]


def padding_bias(mask_BT: Mask) -> Float[Array, "B 1 #T T"]:
  """Returns the float32 attention bias that hides padding from all queries.

  If rows consist of several texts, pass an integer mask with the number of each token's text,
  counted from 1, and 0 at padding. The bias then also hides each text from the other texts.
  """
  if mask_BT.dtype == bool:
    return jnp.where(mask_BT, 0.0, MASKED)[:, None, None, :]
  is_same_BTT = (mask_BT[:, :, None] == mask_BT[:, None, :]) & (mask_BT[:, None, :] > 0)
  return jnp.where(is_same_BTT, 0.0, MASKED)[:, None]


def causal_bias(length: int, position: Int[Array, ""] | None = None) -> Float[Array, "Q T"]:
  """Returns the float32 attention bias that hides later keys from each query.

  Args:
    length: Number of keys (T).
    position: Position of the query if there is only one query (default: one query per key).
  """
  if position is not None:
    return jnp.where(jnp.arange(length) <= position, 0.0, MASKED)[None]
  return jnp.asarray(np.where(np.tri(length, dtype=bool), 0.0, MASKED), jnp.float32)


def split_heads(x_BTM: Float[Array, "B T M"], num_heads: int) -> Float[Array, "B T H K"]:
  """Splits projected vectors into heads, which are sharded over the mesh."""
  x_BTHK = x_BTM.reshape(*x_BTM.shape[:-1], num_heads, -1)
  return layouts.constrain(x_BTHK, ("batch", "length", "heads", "kv"))


def attend(
  query_BTHK: Float[Array, "B T H K"],
  key_BTHK: Float[Array, "B T H K"],
  value_BTHK: Float[Array, "B T H K"],
  bias_BHTT: Float[Array, "#B #H #T T"],
  drop: Callable[[jax.Array], jax.Array],
) -> Float[Array, "B T M"]:
  """Returns softmax(query key^T + bias) value with heads joined; the softmax is float32.

  Args:
    query_BTHK: Queries, already scaled if the logits should be scaled.
    key_BTHK: Keys.
    value_BTHK: Values; the attention weights are cast to the same dtype.
    bias_BHTT: Float32 bias added to the logits, for positions and masks.
    drop: Dropout for the attention weights.
  """
  logits_BHTT = jnp.einsum(
    "bqhd,bkhd->bhqk", query_BTHK, key_BTHK, preferred_element_type=jnp.float32
  )
  weights_BHTT = drop(jax.nn.softmax(logits_BHTT + bias_BHTT, axis=-1).astype(value_BTHK.dtype))
  out_BTHK = jnp.einsum("bhqk,bkhd->bqhd", weights_BHTT, value_BTHK)
  return out_BTHK.reshape(*out_BTHK.shape[:2], -1)


class SelfAttention(nn.Module):
  """Multi-head self-attention; 1/sqrt(head_dim) scales the query initializer, not the logits."""

  config: T5Config
  deterministic: bool

  @nn.compact
  def __call__(
    self,
    x_BTD: Float[Array, "B T D"],
    bias_BHTT: Float[Array, "#B #H T T"],
    position: Int[Array, ""] | None = None,
  ) -> Float[Array, "B T D"]:
    """Returns the attention output of each query.

    Args:
      x_BTD: Hidden states.
      bias_BHTT: Float32 bias added to the logits, for positions and masks.
      position: In generation, the position of the only hidden state in `x_BTD`. The mutable
        collection "cache" contains the keys and values of earlier positions; each call adds the
        keys and values of the current position.
    """
    cfg = self.config

    def query_init(*args):
      return _NORMAL_FAN_IN(*args) / math.sqrt(cfg.head_dim)

    def heads(name: str, kernel_init: Callable[..., Any]) -> Float[Array, "B T H K"]:
      width = cfg.num_heads * cfg.head_dim
      project = Dense(width, ("embed", "joined_kv"), kernel_init, cfg.dtype, name=name)
      return split_heads(project(x_BTD), cfg.num_heads)

    def all_positions(name: str) -> Float[Array, "B T H K"]:
      new_BTHK = heads(name, _NORMAL_FAN_IN)
      if position is None:
        return new_BTHK
      # Store the keys and values of each head contiguously, because attention reads them together.
      new_BHTK = new_BTHK.swapaxes(1, 2)
      rows, heads_of_row, _, width = new_BHTK.shape
      shape = (rows, heads_of_row, bias_BHTT.shape[-1], width)
      cached = self.variable("cache", f"cached_{name}", jnp.zeros, shape, new_BHTK.dtype)
      cached.value = jax.lax.dynamic_update_slice_in_dim(cached.value, new_BHTK, position, axis=2)
      return cached.value.swapaxes(1, 2)

    out_BTM = attend(
      heads("query", query_init),
      all_positions("key"),
      all_positions("value"),
      bias_BHTT,
      dropout.Dropout(cfg.dropout_rate, broadcast_dims=(-2,), deterministic=self.deterministic),
    )
    return Dense(x_BTD.shape[-1], ("joined_kv", "embed"), _NORMAL_FAN_IN, cfg.dtype, name="out")(
      out_BTM
    )


@jax.checkpoint  # Recomputing costs less than storing intermediates.
def _gated_gelu(gate: jax.Array, value: jax.Array) -> jax.Array:
  return nn.gelu(gate, approximate=True) * value


class GatedMlp(nn.Module):
  """Feed-forward layer `wo(gelu(wi_0 x) * wi_1 x)` with tanh-approximated GELU."""

  config: T5Config
  deterministic: bool

  @nn.compact
  def __call__(self, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """Returns the output, shaped like the input."""
    cfg = self.config
    wide = functools.partial(Dense, cfg.mlp_dim, ("embed", "mlp"), dtype=cfg.dtype)
    hidden_BTM = _gated_gelu(wide(name="wi_0")(x_BTD), wide(name="wi_1")(x_BTD))
    hidden_BTM = dropout.Dropout(cfg.dropout_rate, broadcast_dims=(-2,))(
      hidden_BTM, deterministic=self.deterministic
    )
    hidden_BTM = layouts.constrain(hidden_BTM, ("batch", "length", "mlp"))
    return Dense(x_BTD.shape[-1], ("mlp", "embed"), dtype=cfg.dtype, name="wo")(hidden_BTM)


class EncoderLayer(nn.Module):
  """Self-attention and a gated feed-forward layer, both pre-norm with residual connections."""

  config: T5Config
  deterministic: bool

  @nn.compact
  def __call__(
    self, x_BTD: Float[Array, "B T D"], bias_BHTT: Float[Array, "#B #H T T"]
  ) -> tuple[Float[Array, "B T D"], None]:
    """Returns the new hidden states and None, as a scan body requires."""
    cfg, deterministic = self.config, self.deterministic
    drop = dropout.Dropout(cfg.dropout_rate, broadcast_dims=(-2,), deterministic=deterministic)
    y_BTD = RMSNorm(cfg.dtype, name="pre_attention_layer_norm")(x_BTD)
    y_BTD = SelfAttention(cfg, deterministic, name="attention")(y_BTD, bias_BHTT)
    x_BTD = x_BTD + drop(y_BTD)
    y_BTD = RMSNorm(cfg.dtype, name="pre_mlp_layer_norm")(x_BTD)
    y_BTD = GatedMlp(cfg, deterministic, name="mlp")(y_BTD)
    x_BTD = x_BTD + drop(y_BTD)
    return layouts.constrain(x_BTD, ("batch", "length", "embed")), None


def run_layers(
  layer_cls: Any,
  config: Any,
  count: int,
  x_BTD: Float[Array, "B T D"],
  *shared: jax.Array | None,
  deterministic: bool,
  initializing: bool,
  numbered: bool = False,
) -> Float[Array, "B T D"]:
  """Runs a stack of layers in the calling module: `layers_0`, `layers_1`, ... or scanned `layers`.

  Args:
    layer_cls: Module class that is constructed with (config, deterministic). Its instances are
      called with hidden states and `shared`, and return new hidden states and None.
    config: Configuration passed to each layer; its `scan_layers` and `remat` apply to the stack.
    count: Number of layers.
    x_BTD: Input of the first layer.
    *shared: Arrays (or None) passed to every layer.
    deterministic: Passed to each layer; False enables dropout.
    initializing: Whether the calling module is being initialized.
    numbered: Whether to pass the index of each layer as an additional argument after `shared`.

  Returns:
    The output of the last layer.
  """
  if config.remat != "none":
    layer_cls = nn.remat(
      layer_cls, policy=REMAT_POLICIES[config.remat], prevent_cse=not config.scan_layers
    )
  if not config.scan_layers:
    for i in range(count):
      layer = layer_cls(config, deterministic, name=f"layers_{i}")
      x_BTD, _ = layer(x_BTD, *shared, *((i,) if numbered else ()))
    return x_BTD
  # Initialization creates the stacked parameters. Later calls only read these parameters.
  axis = 0 if initializing else partitioning.ScanIn(0)
  scanned = partitioning.scan_with_axes(
    layer_cls,
    variable_axes={"params": axis, "cache": 0},
    split_rngs={"params": True, "dropout": True},
    in_axes=(*(nn.broadcast for _ in shared), *((0,) if numbered else ())),
    length=count,
    axis_name="layers",
  )
  numbers = (jnp.arange(count),) if numbered else ()
  x_BTD, _ = scanned(config, deterministic, name="layers")(x_BTD, *shared, *numbers)
  return x_BTD


class T5Encoder(nn.Module):
  """A stack of encoder layers over embedded tokens.

  Attributes:
    config: Configuration of the encoder.
  """

  config: T5Config

  @nn.compact
  def __call__(
    self, embedded_BTD: Float[Array, "B T D"], mask_BT: Mask, *, deterministic: bool = True
  ) -> Float[Array, "B T D"]:
    """Returns hidden states in the compute dtype; states at padding are undefined.

    Args:
      embedded_BTD: Token vectors, including any vectors that the caller added to them.
      mask_BT: True at real tokens, or an integer mask (see `padding_bias`).
      deterministic: Whether to disable dropout; if False, an rng named "dropout" is required.
    """
    cfg = self.config
    positions_1HTT = RelativePositionBias(
      cfg.num_heads, cfg.relpos_buckets, cfg.relpos_max_distance, name="relpos_bias"
    )(embedded_BTD.shape[1])
    x_BTD = dropout.Dropout(cfg.dropout_rate, broadcast_dims=(-2,))(
      embedded_BTD.astype(cfg.dtype), deterministic=deterministic
    )
    x_BTD = run_layers(
      EncoderLayer,
      cfg,
      cfg.num_encoder_layers,
      x_BTD,
      positions_1HTT + padding_bias(mask_BT),
      deterministic=deterministic,
      initializing=self.is_initializing(),
    )
    x_BTD = RMSNorm(cfg.dtype, name="encoder_norm")(x_BTD)
    return dropout.Dropout(cfg.dropout_rate)(x_BTD, deterministic=deterministic)
