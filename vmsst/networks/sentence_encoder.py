"""The sentence encoder: token table, encoder, pooling and the layers after pooling.

The config class selects the encoder: T5, BERT, a BiLSTM or, for static encoders, the identity. The
layers after pooling correspond to sentence-transformers modules.
"""

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any, ClassVar, Protocol, cast

import jax
import jax.numpy as jnp
import msgspec
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from vmsst import arrays, errors
from vmsst.arrays import layouts
from vmsst.networks import dropout, static, t5, transformer

POOLINGS = ("mean", "max", "cls", "last", "mean_sqrt_len_tokens", "weightedmean")
ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
  "Identity": lambda x: x, "Tanh": jnp.tanh, "Sigmoid": nn.sigmoid, "Softplus": nn.softplus,
  "ReLU": nn.relu, "LeakyReLU": nn.leaky_relu, "ELU": nn.elu, "SELU": nn.selu,
  "GELU": functools.partial(nn.gelu, approximate=False), "SiLU": nn.silu, "Mish": jax.nn.mish,
}  # fmt: skip
"""Activations of a dense layer, by their names in torch.nn, with torch's default options."""
CONFIGS: dict[str, type] = {
  "StaticConfig": static.StaticConfig,
  "T5Config": t5.T5Config,
  "TransformerConfig": transformer.TransformerConfig,
}
"""Config classes by name, for the field `config_class` of saved encoders; callers may add more."""
LAYER_NORM_EPSILON = 1e-5


class EncoderConfig(Protocol):
  """Interface for encoder configurations: frozen dataclasses that construct the encoder."""

  __dataclass_fields__: ClassVar[dict[str, Any]]

  @property
  def vocab_size(self) -> int:
    """Number of rows in the token table."""

  @property
  def emb_dim(self) -> int:
    """Width of the token vectors."""

  @property
  def dtype(self) -> str:
    """Compute dtype."""

  @property
  def width(self) -> int:
    """Width of the hidden states."""

  def token_embedder(self) -> nn.Module:
    """Returns the token table, which maps token ids to vectors."""

  def encoder(self) -> nn.Module:
    """Returns the encoder, which maps token vectors and their mask to hidden states."""


class Dense(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
  """A linear layer followed by an activation.

  Attributes:
    features: Width of the output.
    activation: One of `ACTIVATIONS`.
    bias: Whether to add a bias.
  """

  features: int
  activation: str = "Tanh"
  bias: bool = True

  def __post_init__(self) -> None:
    errors.as_integer("Dense.features", self.features)
    errors.check_choice("Dense.activation", self.activation, ACTIVATIONS)


class LayerNorm(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
  """A layer norm with scale and bias."""


class Dropout(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
  """Dropout that is applied only in training.

  Attributes:
    rate: Probability of zeroing a value.
  """

  rate: float = 0.2

  def __post_init__(self) -> None:
    errors.check_number("Dropout.rate", self.rate, "[0, 1)")


class Normalize(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
  """Scales vectors to length 1."""


Layer = Dense | LayerNorm | Dropout | Normalize


class SentenceEncoder(nn.Module):
  """Maps token ids to sentence vectors (in VMSST, the means of the semantic latent).

  The parameters can be loaded from a checkpoint of any larger model that has `token_embedder`,
  `encoder` and `mean` at the top level.

  Attributes:
    config: Configuration of the encoder.
    latent_dim: Width of the sentence vector (S); in the VMSST paper, `config.emb_dim`.
    head: Whether to add a bias-free linear layer, `mean`, after the pooling and the pooler (EMS
      does not); or a sequence of layers to add instead. The output width of the last layer must be
      `latent_dim`.
    pooling: How to pool the hidden states of the real tokens: "mean"; "max", the largest value in
      each dimension (LASER); "cls", the first token; "last", the last token;
      "mean_sqrt_len_tokens", the sum divided by the square root of the number of tokens; or
      "weightedmean", a mean weighted by position, counted from 1. A plus sign concatenates several
      poolings, as in "cls+mean".
    normalize: Whether to scale vectors to length 1 after all layers.
    pooler_dim: Width of the pooler, a layer `tanh(W h + b)` after the pooling, as in LaBSE and
      distiluse (default: no pooler).
  """

  config: EncoderConfig
  latent_dim: int
  head: bool | tuple[Layer, ...] = True
  pooling: str = "mean"
  normalize: bool = False
  pooler_dim: int | None = None

  def __post_init__(self) -> None:
    for name in self.pooling.split("+"):
      errors.check_choice("SentenceEncoder.pooling", name, POOLINGS)
    errors.check_sizes(self)
    *_, width = self.widths
    if self.latent_dim != width:
      raise errors.InputError(
        f"SentenceEncoder.latent_dim is {self.latent_dim}, but the sentence vectors have width "
        f"{width}; set it to {width}, or set SentenceEncoder.head to True"
      )
    super().__post_init__()

  @property
  def layers(self) -> dict[str, Layer]:
    """The layers after the pooling, keyed by parameter name."""
    layers: dict[str, Layer] = {}
    if self.pooler_dim is not None:
      layers["pooler"] = Dense(self.pooler_dim)
    if not isinstance(self.head, bool):
      layers |= {f"head_{i}": layer for i, layer in enumerate(self.head)}
    elif self.head:
      layers["mean"] = Dense(self.latent_dim, "Identity", bias=False)
    return layers | ({"normalize": Normalize()} if self.normalize else {})

  @property
  def widths(self) -> list[int]:
    """The width of the pooled vector, followed by the output width of each layer."""
    widths = [self.config.width * len(self.pooling.split("+"))]
    for layer in self.layers.values():
      widths.append(layer.features if isinstance(layer, Dense) else widths[-1])
    return widths

  def setup(self) -> None:
    """Creates the submodules."""
    self.token_embedder = self.config.token_embedder()
    self.encoder = self.config.encoder()
    # These layers are small, so they use the logical axis "kv", which T5X's rules replicate.
    for name, layer in self.layers.items():
      if isinstance(layer, Dense):
        setattr(self, name, t5.Dense(layer.features, ("embed", "kv"), use_bias=layer.bias))
      elif isinstance(layer, LayerNorm):
        setattr(self, name, transformer.LayerNorm(LAYER_NORM_EPSILON, axis="kv"))
      elif isinstance(layer, Dropout):
        setattr(self, name, dropout.Dropout(layer.rate))

  def __call__(
    self, tokens_BT: Int[Array, "B T"], packing_RW: Any = None, *, deterministic: bool = True
  ) -> Float[Array, "B S"]:
    """Returns float32 sentence vectors; padding (id 0) at the end does not change them.

    With mean or max pooling, rows with only padding are pooled to zeros.

    Args:
      tokens_BT: Token ids.
      packing_RW: Rows of several texts, int32 [R, W], from `vmsst.data.packing.pack`. If present,
        the encoder processes these rows instead of the rows of `tokens_BT`, with the same results.
      deterministic: Whether to disable dropout; if False, an rng named "dropout" is required.
    """
    tokens, mask_BT = tokens_BT, tokens_BT != arrays.PAD_ID
    mask = mask_BT
    if packing_RW is not None:
      tokens = jnp.where(packing_RW >= 0, tokens_BT.reshape(-1)[packing_RW], arrays.PAD_ID)
      mask = packing_RW // tokens_BT.shape[1] + 1  # numbers of the texts; 0 is padding
    hidden_BTD = self.encoder(self.token_embedder(tokens), mask, deterministic=deterministic)
    if packing_RW is not None:  # Move the hidden states back to the rows of `tokens_BT`.
      token_N = jnp.where(packing_RW >= 0, packing_RW, tokens_BT.size).reshape(-1)
      place_N = jnp.zeros(tokens_BT.size, int).at[token_N].set(jnp.arange(token_N.size))
      hidden_BTD = hidden_BTD.reshape(token_N.size, -1)[place_N.reshape(tokens_BT.shape)]
    pooled = [pool(name, hidden_BTD, mask_BT) for name in self.pooling.split("+")]
    vector_BS = jnp.concatenate(pooled, axis=-1)
    for name, layer in self.layers.items():
      if isinstance(layer, Dense):
        vector_BS = ACTIVATIONS[layer.activation](getattr(self, name)(vector_BS))
      elif isinstance(layer, LayerNorm):
        vector_BS = getattr(self, name)(vector_BS)
      elif isinstance(layer, Dropout):
        vector_BS = getattr(self, name)(vector_BS, deterministic=deterministic)
      else:
        # Limit the divisor from below instead of adding an epsilon to it, so that all but tiny
        # vectors get length 1. Zeros stay zeros.
        square_B1 = jnp.sum(jnp.square(vector_BS), axis=-1, keepdims=True)
        vector_BS = vector_BS * jax.lax.rsqrt(jnp.maximum(square_B1, 1e-24))
    return layouts.constrain(vector_BS, ("batch", "kv"))


def embed(
  network: nn.Module,
  params: Any,
  tokens_BT: Int[Array, "B T"],
  packing_RW: Int[Array, "R W"] | None = None,
  *,
  dropout_rng: jax.Array | None = None,
) -> Float[Array, "B S"]:
  """Returns sentence vectors from a network with the same call signature as `SentenceEncoder`.

  Args:
    network: The network.
    params: Network parameters.
    tokens_BT: Token ids.
    packing_RW: See `SentenceEncoder`.
    dropout_rng: Random key for dropout; if None, there is no dropout.
  """
  inputs = (tokens_BT,) if packing_RW is None else (tokens_BT, packing_RW)
  return cast(jax.Array, run(network, params, "__call__", *inputs, dropout_rng=dropout_rng))


def run(
  network: nn.Module,
  params: Any,
  method: str,
  *arrays: jax.Array,
  dropout_rng: jax.Array | None = None,
) -> Any:
  """Returns the output of a network's method. If `dropout_rng` is None, dropout is disabled."""
  rngs = None if dropout_rng is None else {"dropout": dropout_rng}
  return network.apply(
    {"params": params}, *arrays, deterministic=dropout_rng is None, method=method, rngs=rngs
  )


def is_transformer(config: EncoderConfig) -> bool:
  """Returns whether an encoder has attention, instead of being a static encoder or an LSTM."""
  return isinstance(config, t5.T5Config | transformer.TransformerConfig)


def first_layers(network: Any, params: Any, layers: int) -> tuple[Any, Any]:
  """Returns a shorter encoder with only the first layers, and its parameters.

  The shorter encoder keeps the pooling, the head and any norm after the last layer.

  Args:
    network: A `SentenceEncoder`, or a network with the same `config` and parameter names.
    params: Network parameters, with separate or scanned layers.
    layers: Number of layers to keep; must be below the encoder's number of layers.

  Raises:
    InputError: If the encoder is not a transformer, or if it has at most `layers` layers.
  """
  config: Any = network.config
  field = "num_encoder_layers" if isinstance(config, t5.T5Config) else "num_layers"
  errors.check(is_transformer(config), "the encoder", type(config).__name__, "a transformer")
  errors.as_integer("layers", layers, maximum=getattr(config, field) - 1)
  changes: dict[str, Any] = {field: layers}
  if isinstance(config, transformer.TransformerConfig):
    changes["local_layers"] = tuple(i for i in config.local_layers if i < layers)
  encoder = {}
  for name, value in params["encoder"].items():
    # Separate layers are `layers_0`, `layers_1`, ...; scanned layers are stacked in `layers`.
    number = re.fullmatch(r"layers_(\d+)", name)
    if number is None or int(number[1]) < layers:
      encoder[name] = jax.tree.map(lambda x: x[:layers], value) if name == "layers" else value
  config = dataclasses.replace(config, **changes)
  return dataclasses.replace(network, config=config, parent=None), {**params, "encoder": encoder}


def masked_mean(
  hidden_BTD: Float[Array, "B T D"], mask_BT: Bool[Array, "B T"]
) -> Float[Array, "B D"]:
  """Returns the mean of the real tokens' vectors, in float32 for any input dtype.

  Padding never affects the mean, even if padded positions contain NaN. The mean of a row without
  real tokens is zero.
  """
  hidden_BTD = jnp.where(mask_BT[..., None], hidden_BTD.astype(jnp.float32), 0.0)
  count_B1 = jnp.sum(mask_BT, axis=1, keepdims=True, dtype=jnp.float32)
  return jnp.sum(hidden_BTD, axis=1) / jnp.maximum(count_B1, 1.0)


def masked_max(
  hidden_BTD: Float[Array, "B T D"], mask_BT: Bool[Array, "B T"]
) -> Float[Array, "B D"]:
  """Returns the maximum over real tokens in each dimension, in float32 for any input dtype.

  Padding never affects the maximum, even if padded positions contain NaN. The result for a row
  without real tokens is zero.

  If several tokens share the maximum, only the first of these tokens receives the gradient. (This
  function does not call `jnp.max`, because the gradient of `jnp.max` compares the values with the
  maximum. If the compiler computes the values twice with different rounding, no value equals the
  maximum, and the gradient is NaN.)
  """
  hidden_BTD = hidden_BTD.astype(jnp.float32)
  index_BD = jnp.argmax(jnp.where(mask_BT[..., None], hidden_BTD, -jnp.inf), axis=1)
  is_max_BTD = jnp.arange(hidden_BTD.shape[1])[:, None] == index_BD[:, None]
  return jnp.sum(jnp.where(is_max_BTD & mask_BT[..., None], hidden_BTD, 0.0), axis=1)


def pool(
  pooling: str, hidden_BTD: Float[Array, "B T D"], mask_BT: Bool[Array, "B T"]
) -> Float[Array, "B D"]:
  """Pools the hidden states of each row into one float32 vector, with one of `POOLINGS`."""
  if pooling == "cls":
    return hidden_BTD[:, 0].astype(jnp.float32)
  if pooling == "max":
    return masked_max(hidden_BTD, mask_BT)
  count_B = jnp.sum(mask_BT, axis=1)
  if pooling == "last":
    last_B = jnp.maximum(count_B - 1, 0)
    return hidden_BTD[jnp.arange(len(last_B)), last_B].astype(jnp.float32)
  if pooling == "weightedmean":
    hidden_BTD = hidden_BTD * (jnp.arange(hidden_BTD.shape[1])[:, None] + 1.0)
  mean_BD = masked_mean(hidden_BTD, mask_BT)
  # `mean_BD` is a sum divided by n. These factors replace n by sqrt(n), or by 1 + 2 + ... + n.
  factor_B = {"mean_sqrt_len_tokens": jnp.sqrt(count_B), "weightedmean": 2 / (count_B + 1)}
  return mean_BD * factor_B[pooling][:, None] if pooling in factor_B else mean_BD
