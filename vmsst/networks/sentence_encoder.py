"""The sentence encoder: token table, encoder, pooling and an optional head.

The config makes the encoder: T5, BERT or BiLSTM.
"""

from typing import Any, ClassVar, Protocol, cast

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from vmsst import arrays, errors
from vmsst.arrays import sharding
from vmsst.networks import lstm, t5, transformer

POOLINGS = ("mean", "max", "cls", "last")
CONFIGS: dict[str, type] = {
  cls.__name__: cls for cls in (t5.T5Config, transformer.TransformerConfig, lstm.LstmConfig)
}
"""Configs by name, for files that describe encoders."""


class EncoderConfig(Protocol):
  """Sizes and numerics of an encoder: a frozen dataclass of plain values that makes its parts."""

  __dataclass_fields__: ClassVar[dict[str, Any]]

  @property
  def vocab_size(self) -> int:
    """Rows of the token table."""

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
    """Returns the token table: maps token ids to vectors."""

  def encoder(self) -> nn.Module:
    """Returns the encoder: maps token vectors and their mask to hidden states."""


class SentenceEncoder(nn.Module):
  """Maps token ids to sentence vectors: means of the semantic latent (VMSST paper, section 5).

  Without the head, the vectors are the pooled hidden states themselves, as in EMS. Imported
  encoders use the pooling they were trained with.

  Inference can load any larger model as this network if the names `token_embedder`, `encoder` and
  `mean` are at the top level of its parameters.

  Attributes:
    config: Sizes and numerics of the encoder.
    latent_dim: Width of the sentence vector (S); in the paper, `config.emb_dim`.
    head: Whether a bias-free linear layer, `mean`, follows the pooling and the pooler. Without it,
      `latent_dim` must be the width of the pooler or, without one, of the hidden states.
    pooling: "mean" of the real tokens' hidden states; "max", their largest value in each dimension
      (LASER); "cls" or "last", the hidden state of the first or last token.
    pooler_dim: Width of the pooler, a layer `tanh(W h + b)` after the pooling, as in LaBSE and
      distiluse; None: no pooler.
    normalize: Scales vectors to length 1.
  """

  config: EncoderConfig
  latent_dim: int
  head: bool = True
  pooling: str = "mean"
  normalize: bool = False
  pooler_dim: int | None = None

  def __post_init__(self) -> None:
    errors.check_choice("SentenceEncoder.pooling", self.pooling, POOLINGS)
    errors.check_sizes(self)
    width = self.pooler_dim or self.config.width
    if not self.head and self.latent_dim != width:
      raise errors.InputError(
        f"SentenceEncoder.latent_dim is {self.latent_dim}; without a head it must be the width of "
        f"the {'encoder' if self.pooler_dim is None else 'pooler'}, {width}"
      )
    super().__post_init__()

  def setup(self) -> None:
    """Creates the submodules."""
    self.token_embedder = self.config.token_embedder()
    self.encoder = self.config.encoder()
    # T5X's rules replicate a "kv" axis: these layers are small.
    if self.pooler_dim is not None:
      self.pooler = t5.Dense(self.pooler_dim, ("embed", "kv"), use_bias=True)
    if self.head:
      self.mean = t5.Dense(self.latent_dim, ("embed", "kv"))

  def __call__(
    self, tokens_BT: Int[Array, "B T"], *, deterministic: bool = True
  ) -> Float[Array, "B S"]:
    """Returns float32 sentence vectors; padding (id 0) at the end does not change them.

    With "mean" or "max" pooling, rows with only padding give zeros.
    """
    mask_BT = tokens_BT != arrays.PAD_ID
    hidden_BTD = self.encoder(self.token_embedder(tokens_BT), mask_BT, deterministic=deterministic)
    if self.pooling == "mean":
      vector_BS = masked_mean(hidden_BTD, mask_BT)
    elif self.pooling == "max":
      vector_BS = masked_max(hidden_BTD, mask_BT)
    elif self.pooling == "cls":
      vector_BS = hidden_BTD[:, 0].astype(jnp.float32)
    else:
      last_B = jnp.maximum(jnp.sum(mask_BT, axis=1) - 1, 0)
      vector_BS = hidden_BTD[jnp.arange(len(last_B)), last_B].astype(jnp.float32)
    if self.pooler_dim is not None:
      vector_BS = jnp.tanh(self.pooler(vector_BS))
    if self.head:
      vector_BS = self.mean(vector_BS)
    if self.normalize:
      # A maximum, not a sum, keeps all but tiny lengths exact; zeros stay zeros.
      square_B1 = jnp.sum(jnp.square(vector_BS), axis=-1, keepdims=True)
      vector_BS = vector_BS * jax.lax.rsqrt(jnp.maximum(square_B1, 1e-24))
    return sharding.constrain(vector_BS, ("batch", "kv"))


def embed(
  network: nn.Module,
  params: Any,
  tokens_BT: Int[Array, "B T"],
  *,
  dropout_rng: jax.Array | None = None,
) -> Float[Array, "B S"]:
  """Returns sentence vectors of a network with the call signature of `SentenceEncoder`.

  Args:
    network: The network.
    params: Its parameters.
    tokens_BT: Token ids.
    dropout_rng: Key of dropout; None disables it.
  """
  rngs = None if dropout_rng is None else {"dropout": dropout_rng}
  vector_BS = network.apply(
    {"params": params}, tokens_BT, deterministic=dropout_rng is None, rngs=rngs
  )
  return cast(jax.Array, vector_BS)


def masked_mean(
  hidden_BTD: Float[Array, "B T D"], mask_BT: Bool[Array, "B T"]
) -> Float[Array, "B D"]:
  """Returns the mean of the real tokens' vectors, float32 for any input dtype.

  Padding never affects the mean, not even as NaN. A row without real tokens gives zeros.
  """
  hidden_BTD = jnp.where(mask_BT[..., None], hidden_BTD.astype(jnp.float32), 0.0)
  count_B1 = jnp.sum(mask_BT, axis=1, keepdims=True, dtype=jnp.float32)
  return jnp.sum(hidden_BTD, axis=1) / jnp.maximum(count_B1, 1.0)


def masked_max(
  hidden_BTD: Float[Array, "B T D"], mask_BT: Bool[Array, "B T"]
) -> Float[Array, "B D"]:
  """Returns the largest of the real tokens' values in each dimension, float32 for any input dtype.

  Padding never affects the maximum, not even as NaN. A row without real tokens gives zeros.

  The gradient goes to the first of equal values. The gradient of `jnp.max` compares values with the
  maximum: if the compiler computes them twice with different rounding, none is equal, and the
  gradient is NaN.
  """
  hidden_BTD = hidden_BTD.astype(jnp.float32)
  place_BD = jnp.argmax(jnp.where(mask_BT[..., None], hidden_BTD, -jnp.inf), axis=1)
  chosen_BTD = jnp.arange(hidden_BTD.shape[1])[:, None] == place_BD[:, None]
  return jnp.sum(jnp.where(chosen_BTD & mask_BT[..., None], hidden_BTD, 0.0), axis=1)
