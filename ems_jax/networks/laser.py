"""LASER's network: an encoder, max pooling and a decoder.

The encoder is LASER's stack of bidirectional LSTM layers or any encoder that
`vmsst.networks.sentence_encoder` supports. The decoder is LASER's LSTM or a transformer. The token
table and the encoder have the same names as in a sentence encoder, so that inference loads them
without the decoder.

In LASER's released training code, the vocabulary projection has a bias for each vocabulary piece.
Here, the projection has no bias. The last layer of the LSTM decoder has one, and the product of
this bias and the projection kernel acts as a bias for the logits.

Axes: `O` width of the decoder's output, which is the input of the vocabulary projection.

References: Artetxe and Schwenk 2019 (arXiv 1812.10464), section 3. The initialization, the
transformer decoder's inputs, and the details of the LSTM decoder that the paper omits follow
LASER's released training code.
"""

import jax.numpy as jnp
from flax import linen as nn
from flax.linen import partitioning
from jaxtyping import Array, Float, Int

from vmsst import arrays, errors, languages
from vmsst.arrays import layouts
from vmsst.networks import dropout, lstm, sentence_encoder, t5, transformer
from vmsst.networks import vmsst as vmsst_networks


def token_table(vocab_size: int, features: int, limit: float, dtype: str) -> nn.Module:
  """Returns LASER's token table, initialized uniformly between -`limit` and `limit`."""
  return t5.TokenEmbedder(vocab_size, features, dtype, embedding_init=lstm.uniform(limit))


class TransformerDecoder(nn.Module):
  """Computes the states that predict the next token of a sentence, given the sentence vector.

  The input of the first layer is [token; language; sentence] at every position, and all layers have
  the width of this input. The decoder has no cross-attention.

  Attributes:
    config: Configuration of the decoder; `emb_dim` is the width of the concatenated input.
    language_dim: Width of the language embedding.
    num_languages: Number of rows in the language table.
    initializer_range: The language table and the start vector are initialized uniformly between
      -`initializer_range` and `initializer_range`.
  """

  config: transformer.TransformerConfig
  language_dim: int
  num_languages: int
  initializer_range: float

  @nn.compact
  def __call__(
    self,
    embedded_BTE: Float[Array, "B T E"],
    languages_B: Int[Array, "B"],
    sentence_BZ: Float[Array, "B Z"],
    *,
    deterministic: bool = True,
  ) -> Float[Array, "B T O"]:
    """Returns states of width `config.emb_dim`: state t predicts token t from earlier tokens.

    Padding must be at the end; states at padding are undefined.

    Args:
      embedded_BTE: Vectors of the tokens to predict. The decoder shifts these vectors right by one
        position and inserts a learned start vector.
      languages_B: Target language of each row; an index outside the table gives NaN.
      sentence_BZ: Sentence vectors.
      deterministic: Whether to disable dropout; if False, an rng named "dropout" is required.

    Raises:
      InputError: If the sentences have more tokens than the config has positions.
    """
    cfg = self.config
    batch, length, width = embedded_BTE.shape
    if length > cfg.max_positions:
      raise errors.InputError(
        f"sentences have {length} tokens, but the decoder's TransformerConfig has positions for "
        f"only {cfg.max_positions}; increase max_positions"
      )
    uniform = lstm.uniform(self.initializer_range)
    language_B1G = t5.TokenEmbedder(
      self.num_languages,
      self.language_dim,
      cfg.dtype,
      "relpos_buckets",
      uniform,
      name="language_embedder",
    )(languages_B[:, None])
    start_E = partitioning.param_with_axes(
      "start_embedding", uniform, (width,), jnp.float32, axes=("embed",)
    )
    position_TE = partitioning.param_with_axes(
      "position_embedding",
      nn.initializers.normal(cfg.initializer_std),
      (cfg.max_positions, width),
      jnp.float32,
      axes=("relpos_buckets", "embed"),
    )[:length]
    start_B1E = jnp.broadcast_to(start_E, (batch, 1, width))
    token_BTE = jnp.concatenate([start_B1E, embedded_BTE[:, :-1]], axis=1) + position_TE
    token_BTE = dropout.Dropout(cfg.dropout_rate)(token_BTE, deterministic=deterministic)
    once_B1Y = jnp.concatenate([language_B1G, sentence_BZ[:, None].astype(cfg.dtype)], axis=-1)
    once_BTY = jnp.broadcast_to(once_B1Y, (batch, length, once_B1Y.shape[-1]))
    return t5.run_layers(
      transformer.EncoderLayer,
      cfg,
      cfg.num_layers,
      jnp.concatenate([token_BTE.astype(cfg.dtype), once_BTY], axis=-1),
      t5.causal_bias(length)[None, None],
      deterministic=deterministic,
      initializing=self.is_initializing(),
    )


class LaserNetwork(nn.Module):
  """An encoder, and a decoder conditioned on the encoder's max-pooled states at every step.

  Attributes:
    config: Configuration of the encoder. The attributes below set the decoder's sizes; if `config`
      is an `LstmConfig`, its own decoder sizes are ignored.
    target_emb_dim: Width of the decoder's token embeddings (E); the decoder has its own table.
    decoder_dim: Width of the LSTM decoder's state.
    decoder_output_dim: Width of the LSTM decoder's output (O), the input of the vocabulary
      projection.
    language_dim: Width of the decoder's language embedding.
    num_languages: Number of rows in the decoder's language table.
    initializer_range: The parameters of the LSTM decoder, or the tables of a transformer decoder,
      are initialized uniformly between -`initializer_range` and `initializer_range`.
    transformer_decoder: Configuration of a transformer decoder (default: use the LSTM decoder). Its
      `emb_dim` must be the sum of `target_emb_dim`, `language_dim` and the width of a sentence
      vector.
  """

  config: sentence_encoder.EncoderConfig
  target_emb_dim: int = 320
  decoder_dim: int = 2048
  decoder_output_dim: int = 512
  language_dim: int = 32
  num_languages: int = languages.NUM_LANGUAGES
  initializer_range: float = 0.1
  transformer_decoder: transformer.TransformerConfig | None = None

  def __post_init__(self) -> None:
    errors.check_sizes(self)
    width = self.target_emb_dim + self.language_dim + self.latent_dim
    if self.transformer_decoder is not None and self.transformer_decoder.emb_dim != width:
      raise errors.InputError(
        f"LaserNetwork.transformer_decoder.emb_dim is {self.transformer_decoder.emb_dim}; set it "
        f"to {width}, the sum of target_emb_dim, language_dim and the width of a sentence vector"
      )
    super().__post_init__()

  @property
  def latent_dim(self) -> int:
    """Width of the sentence vector (S), equal to the width of the encoder's hidden states."""
    return self.config.width

  def setup(self) -> None:
    """Creates the submodules."""
    cfg = self.config
    if isinstance(cfg, lstm.LstmConfig):
      self.token_embedder = token_table(
        cfg.vocab_size, cfg.emb_dim, cfg.initializer_range, cfg.dtype
      )
    else:
      self.token_embedder = cfg.token_embedder()
    self.encoder = cfg.encoder()
    self.target_embedder = token_table(
      cfg.vocab_size, self.target_emb_dim, self.initializer_range, cfg.dtype
    )
    if self.transformer_decoder is None:
      decoder_config = lstm.LstmConfig(
        cfg.vocab_size,
        emb_dim=self.target_emb_dim,
        decoder_dim=self.decoder_dim,
        decoder_output_dim=self.decoder_output_dim,
        language_dim=self.language_dim,
        initializer_range=self.initializer_range,
        dtype=cfg.dtype,
      )
      self.decoder: nn.Module = lstm.LstmDecoder(decoder_config, self.num_languages)
      width = self.decoder_output_dim
    else:
      self.decoder = TransformerDecoder(
        self.transformer_decoder, self.language_dim, self.num_languages, self.initializer_range
      )
      width = self.transformer_decoder.emb_dim
    self.logits = vmsst_networks.OutputKernel(width, width, cfg.vocab_size)

  def __call__(
    self, tokens_BT: Int[Array, "B T"], *, deterministic: bool = True
  ) -> Float[Array, "B S"]:
    """Returns unnormalized float32 sentence vectors; padding (id 0) does not change them.

    Rows with only padding are mapped to zeros.

    Args:
      tokens_BT: Token ids; padding must be at the end.
      deterministic: Whether to disable dropout; if False, an rng named "dropout" is required.
    """
    mask_BT = tokens_BT != arrays.PAD_ID
    hidden_BTD = self.encoder(self.token_embedder(tokens_BT), mask_BT, deterministic=deterministic)
    vector_BS = layouts.constrain(sentence_encoder.masked_max(hidden_BTD, mask_BT), ("batch", "kv"))
    if self.is_initializing():
      # Flax initializes only what this method calls, so call the decoder to create its parameters.
      self.decode(tokens_BT, jnp.zeros_like(tokens_BT[:, 0]), vector_BS)
    return vector_BS

  def decode(
    self,
    tokens_BT: Int[Array, "B T"],
    languages_B: Int[Array, "B"],
    vector_BS: Float[Array, "B S"],
    *,
    deterministic: bool = True,
  ) -> vmsst_networks.Projection:
    """Returns the projection that predicts each token from the sentence and the tokens before it.

    Args:
      tokens_BT: Tokens to predict; padding must be at the end.
      languages_B: Language of each row, an index into `vmsst.languages`; an index outside the table
        gives NaN.
      vector_BS: Vectors of the sentences to translate.
      deterministic: Whether to disable the transformer decoder's dropout; if False, an rng named
        "dropout" is required.
    """
    # LASER's LSTM decoder has no dropout.
    options = {} if self.transformer_decoder is None else {"deterministic": deterministic}
    hidden_BTO = self.decoder(self.target_embedder(tokens_BT), languages_B, vector_BS, **options)
    return vmsst_networks.Projection(hidden_BTO, None, self.logits(), None)
