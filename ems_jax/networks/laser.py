"""LASER's network: an encoder, the maximum of its hidden states, and an LSTM decoder.

The encoder is LASER's stack of bidirectional LSTM layers or any other encoder of
`vmsst.networks.sentence_encoder`. Token table and encoder have the same names as there, so that
inference loads them without the decoder.

LASER's released training code also has a bias per vocabulary piece. Here the only output bias is
that of the decoder, which the projection maps to a bias of the logits.

Axes: `O` width of the decoder's output, the input of the vocabulary projection.

References: Artetxe and Schwenk 2019 (arXiv 1812.10464), section 3; its released training code for
initialization and for details of the decoder that the paper omits.
"""

import dataclasses

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from vmsst import errors, languages, padding, sharding
from vmsst.networks import lstm, pooling, sentence_encoder, t5
from vmsst.networks import vmsst as vmsst_networks


def token_table(vocab_size: int, features: int, limit: float, dtype: str) -> nn.Module:
  """Returns LASER's token table, initially uniform within `limit` of zero."""
  return t5.TokenEmbedder(vocab_size, features, dtype, embedding_init=lstm.uniform(limit))


class LaserNetwork(nn.Module):
  """An encoder, and a decoder conditioned at every step on the maximum of its hidden states.

  Attributes:
    config: Sizes and numerics of the encoder. The decoder sizes of an `LstmConfig` are ignored; the
      attributes below apply with any encoder.
    target_emb_dim: Width of the decoder's token embeddings (E), which have their own table.
    decoder_dim: Width of the decoder state.
    decoder_output_dim: Width of the decoder's output (O), the input of the vocabulary projection.
    language_dim: Width of the decoder's language embedding.
    num_languages: Rows of the decoder's language table.
    initializer_range: Decoder parameters are initially uniform within this distance of zero.
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
      if field.type is int:
        errors.check_integer(f"LaserNetwork.{field.name}", getattr(self, field.name))
    super().__post_init__()

  @property
  def latent_dim(self) -> int:
    """Width of the sentence vector (S), equal to that of the encoder's hidden states."""
    return sentence_encoder.hidden_dim(self.config)

  def setup(self) -> None:
    """Creates the submodules."""
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
    self.target_embedder = token_table(
      cfg.vocab_size, self.target_emb_dim, self.initializer_range, cfg.dtype
    )
    self.decoder = lstm.LstmDecoder(decoder_config, self.num_languages)
    self.logits = vmsst_networks.OutputKernel(
      self.decoder_output_dim, self.decoder_output_dim, cfg.vocab_size
    )

  def _new_token_embedder(self) -> nn.Module:
    cfg = self.config
    if isinstance(cfg, lstm.LstmConfig):
      return token_table(cfg.vocab_size, cfg.emb_dim, cfg.initializer_range, cfg.dtype)
    return sentence_encoder.new_token_embedder(cfg)

  def __call__(
    self, tokens_BT: Int[Array, "B T"], *, deterministic: bool = True
  ) -> Float[Array, "B S"]:
    """Returns unnormalized float32 sentence vectors; padding (id 0) does not change them.

    Rows with only padding give zeros.

    Args:
      tokens_BT: Token ids; padding must be at the end.
      deterministic: False enables dropout (needs an rng named "dropout").
    """
    mask_BT = tokens_BT != padding.PAD_ID
    hidden_BTD = self.encoder(self.token_embedder(tokens_BT), mask_BT, deterministic=deterministic)
    vector_BS = sharding.constrain(pooling.masked_max(hidden_BTD, mask_BT), ("batch", "kv"))
    if self.is_initializing():
      # Initialization calls this method only; it must create the decoder's parameters too.
      self.decode(tokens_BT, jnp.zeros_like(tokens_BT[:, 0]), vector_BS)
    return vector_BS

  def decode(
    self,
    tokens_BT: Int[Array, "B T"],
    languages_B: Int[Array, "B"],
    vector_BS: Float[Array, "B S"],
  ) -> vmsst_networks.Projection:
    """Returns the inputs of the vocabulary projection of each token, given the tokens before it.

    Args:
      tokens_BT: Tokens to predict; padding must be at the end.
      languages_B: Their language, an index of `vmsst.languages`; NaN outside the table.
      vector_BS: Vectors of the sentences to translate.
    """
    hidden_BTO = self.decoder(self.target_embedder(tokens_BT), languages_B, vector_BS)
    return vmsst_networks.Projection(hidden_BTO, None, self.logits(), None)
