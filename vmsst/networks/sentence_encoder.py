"""From tokens to one vector a sentence: table, encoder, pooling and, where there is one, head.

The encoder is a T5, a BERT or a BiLSTM: its config says which.
"""

from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from vmsst import errors, padding, sharding
from vmsst.networks import bert, lstm, pooling, t5

EncoderConfig = t5.T5Config | bert.BertConfig | lstm.LstmConfig

POOLINGS = ("mean", "max", "cls", "pooler")


def new_token_embedder(config: EncoderConfig) -> nn.Module:
  """Returns the token table that goes with an encoder."""
  if isinstance(config, bert.BertConfig):
    return bert.TokenEmbedder(config)
  return t5.TokenEmbedder(config.vocab_size, config.emb_dim, config.dtype)


def new_encoder(config: EncoderConfig) -> nn.Module:
  """Returns the encoder of a config; all are called with token vectors and their mask."""
  if isinstance(config, bert.BertConfig):
    return bert.BertEncoder(config)
  if isinstance(config, lstm.LstmConfig):
    return lstm.LstmEncoder(config)
  return t5.T5Encoder(config)


def hidden_dim(config: EncoderConfig) -> int:
  """Returns the width of an encoder's hidden states."""
  return 2 * config.hidden_dim if isinstance(config, lstm.LstmConfig) else config.emb_dim


class SentenceEncoder(nn.Module):
  """Sentence vectors of token ids: the mean of the semantic latent (section 5 of the VMSST paper).

  Without a head they are the masked mean itself, as in EMS. Encoders that are imported pool as they
  were trained to.

  A larger model that keeps these names (`token_embedder`, `encoder`, `mean`) at the top of its
  parameters can be loaded for inference as this network.

  Attributes:
    config: Sizes and numerics of the encoder.
    latent_dim: Width of the sentence vector (S); the paper's equals `config.emb_dim`.
    head: Whether a product with a matrix, `mean`, follows the pooling. Without, `latent_dim` is
      the width of the encoder's hidden states.
    pooling: "mean" of the real tokens' hidden states; "max", their largest value in each dimension
      (LASER's); "cls", that of the first token; "pooler", a tanh layer on top of the latter (BERT's
      and LaBSE's; a BertConfig alone has it).
    normalize: Scales vectors to length 1.
  """

  config: EncoderConfig
  latent_dim: int
  head: bool = True
  pooling: str = "mean"
  normalize: bool = False

  def __post_init__(self) -> None:
    if self.pooling not in POOLINGS:
      raise errors.InputError(
        f"SentenceEncoder.pooling is {self.pooling!r}; known: {', '.join(POOLINGS)}"
      )
    if self.pooling == "pooler" and not isinstance(self.config, bert.BertConfig):
      raise errors.InputError("SentenceEncoder.pooling is 'pooler', which takes a BertConfig")
    if not self.head and self.latent_dim != hidden_dim(self.config):
      raise errors.InputError(
        f"SentenceEncoder.latent_dim is {self.latent_dim}; without a head it has to be the "
        f"encoder's width, {hidden_dim(self.config)}"
      )
    super().__post_init__()

  def setup(self) -> None:
    """Makes the parts, each with its own parameters."""
    self.token_embedder = new_token_embedder(self.config)
    self.encoder = new_encoder(self.config)
    if self.pooling == "pooler":
      self.pooler = bert.ClsPooler(cast(bert.BertConfig, self.config))
    if self.head:
      # T5X's rules replicate a "kv" axis: the head is small.
      self.mean = t5.Dense(self.latent_dim, ("embed", "kv"))

  def __call__(
    self, tokens_BT: Int[Array, "B T"], *, deterministic: bool = True
  ) -> Float[Array, "B S"]:
    """Returns float32 sentence vectors; padding (id 0) at the end changes nothing.

    The mean of a row of padding alone is zeros.
    """
    mask_BT = tokens_BT != padding.PAD_ID
    hidden_BTD = self.encoder(self.token_embedder(tokens_BT), mask_BT, deterministic=deterministic)
    if self.pooling == "mean":
      vector_BS = pooling.masked_mean(hidden_BTD, mask_BT)
    elif self.pooling == "max":
      vector_BS = lstm.masked_max(hidden_BTD, mask_BT)
    elif self.pooling == "cls":
      vector_BS = hidden_BTD[:, 0].astype(jnp.float32)
    else:
      vector_BS = self.pooler(hidden_BTD)
    if self.head:
      vector_BS = self.mean(vector_BS)
    if self.normalize:
      # A maximum, not a sum: a length that is not tiny stays exact. Zeros stay zeros.
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
  """Returns sentence vectors of a network that is called as `SentenceEncoder` is.

  Without a key there is no dropout.
  """
  rngs = None if dropout_rng is None else {"dropout": dropout_rng}
  vector_BS = network.apply(
    {"params": params}, tokens_BT, deterministic=dropout_rng is None, rngs=rngs
  )
  return cast(jax.Array, vector_BS)
