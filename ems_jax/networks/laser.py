"""LASER's network: an encoder, the maximum of its hidden states, and an LSTM decoder.

The encoder is LASER's stack of bidirectional LSTM layers or any other that
`vmsst.networks.sentence_encoder` knows. Token table and encoder have the names that it gives them,
so that inference loads the two without the decoder.

LASER's released training code has, beside what is here, a bias for every piece of the vocabulary.
Here the bias of the decoder's output is the only one, as the projection turns it into one of the
logits.

Axes: `O` width of what the decoder hands to the vocabulary projection.

References: Artetxe and Schwenk 2019 (arXiv 1812.10464), section 3; its released training code for
initialization and for what the paper does not say of the decoder.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen import partitioning
from jaxtyping import Array, Float, Int

from vmsst import errors, languages, padding, sharding
from vmsst.networks import lstm, sentence_encoder
from vmsst.networks import vmsst as vmsst_networks


class TokenTable(nn.Module):
  """A token table as `t5.TokenEmbedder`, but uniform around zero at first.

  Attributes:
    vocab_size: Rows (V).
    features: Width (E).
    initializer_range: Largest distance from zero.
    dtype: Dtype of the vectors handed out.
  """

  vocab_size: int
  features: int
  initializer_range: float
  dtype: str = "float32"

  @nn.compact
  def __call__(self, tokens_BT: Int[Array, "B T"]) -> Float[Array, "B T E"]:
    """Looks tokens up. An id outside the table gives NaN, so that it cannot go unseen."""

    def uniform(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
      limit = self.initializer_range
      return jax.random.uniform(key, shape, dtype, -limit, limit)

    table_VE = partitioning.param_with_axes(
      "embedding", uniform, (self.vocab_size, self.features), jnp.float32, axes=("vocab", "embed")
    )
    # Gathered before the cast: the table is far larger than the batch.
    embedded_BTE = jnp.take(table_VE, tokens_BT, axis=0).astype(self.dtype)
    return sharding.constrain(embedded_BTE, ("batch", "length", "embed"))


class LaserNetwork(nn.Module):
  """An encoder, and a decoder that is given the maximum of its hidden states at every step.

  Attributes:
    config: Sizes and numerics of the encoder. Of an `LstmConfig` nothing of the decoder's is read:
      its sizes are those below, with any encoder.
    target_emb_dim: Width of the decoder's token embeddings (E); they have a table of their own.
    decoder_dim: Width of the decoder's state.
    decoder_output_dim: Width of what it hands to the vocabulary projection (O).
    language_dim: Width of its language embedding.
    num_languages: Rows of its language table.
    initializer_range: Every parameter of the decoder starts uniform within this distance of zero.
  """

  config: sentence_encoder.EncoderConfig
  target_emb_dim: int = 320
  decoder_dim: int = 2048
  decoder_output_dim: int = 512
  language_dim: int = 32
  num_languages: int = languages.NUM_LANGUAGES
  initializer_range: float = 0.1

  def __post_init__(self) -> None:
    for field in dataclasses.fields(LaserNetwork):
      value = getattr(self, field.name)
      if field.type is int and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise errors.InputError(
          f"LaserNetwork.{field.name} is {value!r}; it has to be a positive integer"
        )
    super().__post_init__()

  @property
  def latent_dim(self) -> int:
    """Width of the sentence vector (S), that of the encoder's hidden states."""
    return sentence_encoder.hidden_dim(self.config)

  def setup(self) -> None:
    """Makes the parts, each with its own parameters."""
    cfg = self.config
    self.token_embedder = self._new_token_embedder()
    self.encoder = sentence_encoder.new_encoder(cfg)
    decoder_config = lstm.LstmConfig(
      cfg.vocab_size,
      emb_dim=self.target_emb_dim,
      decoder_dim=self.decoder_dim,
      decoder_output_dim=self.decoder_output_dim,
      language_dim=self.language_dim,
      initializer_range=self.initializer_range,
      dtype=cfg.dtype,
    )
    self.target_embedder = TokenTable(
      cfg.vocab_size, self.target_emb_dim, self.initializer_range, cfg.dtype
    )
    self.decoder = lstm.LstmDecoder(decoder_config, self.num_languages)
    self.logits = vmsst_networks.OutputKernel(
      self.decoder_output_dim, self.decoder_output_dim, cfg.vocab_size
    )

  def _new_token_embedder(self) -> nn.Module:
    cfg = self.config
    if isinstance(cfg, lstm.LstmConfig):
      return TokenTable(cfg.vocab_size, cfg.emb_dim, cfg.initializer_range, cfg.dtype)
    return sentence_encoder.new_token_embedder(cfg)

  def __call__(
    self, tokens_BT: Int[Array, "B T"], *, deterministic: bool = True
  ) -> Float[Array, "B S"]:
    """Returns unnormalized float32 sentence vectors; padding (id 0) at the end changes nothing.

    A row of padding alone gives zeros.

    Args:
      tokens_BT: Token ids.
      deterministic: False turns dropout on (needs an rng named "dropout").
    """
    mask_BT = tokens_BT != padding.PAD_ID
    hidden_BTD = self.encoder(self.token_embedder(tokens_BT), mask_BT, deterministic=deterministic)
    vector_BS = sharding.constrain(lstm.masked_max(hidden_BTD, mask_BT), ("batch", "kv"))
    if self.is_initializing():
      # Parameters are made of tokens alone: so are the decoder's.
      self.decode(tokens_BT, jnp.zeros_like(tokens_BT[:, 0]), vector_BS)
    return vector_BS

  def decode(
    self,
    tokens_BT: Int[Array, "B T"],
    languages_B: Int[Array, "B"],
    vector_BS: Float[Array, "B S"],
  ) -> vmsst_networks.Projection:
    """Returns what the logits of each token are made of, given the tokens before it.

    Args:
      tokens_BT: Tokens to predict; padding has to be at the end.
      languages_B: Their language; an index of `vmsst.languages`. One outside the table gives NaN.
      vector_BS: Vectors of the sentences to translate.
    """
    hidden_BTO = self.decoder(self.target_embedder(tokens_BT), languages_B, vector_BS)
    return vmsst_networks.Projection(hidden_BTO, None, self.logits(), None)
