"""The networks of VMSST and BITRANSLATION: encoders, heads, decoder and output kernels.

Both keep the names of `sentence_encoder.SentenceEncoder` (`token_embedder`, `encoder`, `mean`) at
the top of their parameters, so that inference loads their semantic encoder alone.

Axes: `S` semantic and `G` language latent, as everywhere, and `Z` for all that the decoder is given
of a sentence: `[z_lang; z_sem]` in VMSST, `z_sem` in BITRANSLATION.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen import partitioning
from jaxtyping import Array, Bool, Float, Int

from vmsst import errors, languages, sharding
from vmsst.networks import decoder, pooling, t5


class Posteriors(NamedTuple):
  """Diagonal Gaussians of the latents of each sentence, float32."""

  semantic_mean_BS: Float[Array, "B S"]
  semantic_log_variance_BS: Float[Array, "B S"]
  language_mean_BG: Float[Array, "B G"]
  language_log_variance_BG: Float[Array, "B G"]


class OutputKernel(nn.Module):
  """The rows of the vocabulary projection that belong to one part of its input.

  Attributes:
    part: Rows here.
    whole: Rows of the whole projection.
    vocab_size: Columns (V).
  """

  part: int
  whole: int
  vocab_size: int

  @nn.compact
  def __call__(self) -> Float[Array, "M V"]:
    """Returns the kernel, float32."""
    return partitioning.param_with_axes(
      "kernel",
      decoder.part_of_fan_in(self.part, self.whole),
      (self.part, self.vocab_size),
      jnp.float32,
      axes=("embed", "vocab"),
    )


class BitranslationNetwork(nn.Module):
  """A semantic encoder, and a decoder that is given its mean.

  Attributes:
    config: Sizes and numerics of encoder and decoder.
    latent_dim: Width of a latent (S, and G where there is one); the paper's is `config.emb_dim`.
    num_decoder_layers: Layers of the decoder; None: as many as an encoder has.
    num_languages: Rows of a language table.
  """

  config: t5.T5Config
  latent_dim: int
  num_decoder_layers: int | None = None
  num_languages: int = languages.NUM_LANGUAGES

  def __post_init__(self) -> None:
    for name in ("latent_dim", "num_decoder_layers", "num_languages"):
      value = getattr(self, name)
      if value is not None and (not isinstance(value, int) or value < 1):
        raise errors.InputError(
          f"{type(self).__name__}.{name} is {value!r}; it has to be a positive integer"
        )
    super().__post_init__()

  @property
  def sentence_dim(self) -> int:
    """Width of what the decoder is given of a sentence (Z)."""
    return self.latent_dim

  def setup(self) -> None:
    """Makes the parts, each with its own parameters."""
    cfg = self.config
    self.token_embedder = t5.TokenEmbedder(cfg.vocab_size, cfg.emb_dim, cfg.dtype)
    self.encoder = t5.T5Encoder(cfg)
    self.mean = self._head()
    self.decoder = decoder.LatentDecoder(
      cfg, self.num_decoder_layers or cfg.num_encoder_layers, self.num_languages
    )
    whole = self.sentence_dim + cfg.emb_dim
    self.logits_hidden = OutputKernel(cfg.emb_dim, whole, cfg.vocab_size)
    self.logits_latent = OutputKernel(self.sentence_dim, whole, cfg.vocab_size)

  def _head(self) -> nn.Module:
    return t5.Dense(self.latent_dim, ("embed", "kv"))

  def __call__(self, tokens_BT: Int[Array, "B T"]) -> Any:
    """Runs every part once, so that `init` makes all parameters; languages are unknown.

    Returns hidden states of the decoder from the mean of each sentence's own posterior, and the
    output kernels.
    """
    embedded_BTD, mask_BT = self.embed(tokens_BT), tokens_BT != t5.PADDING_ID
    languages_B = jnp.zeros_like(tokens_BT[:, 0])
    sentence_BZ = self._own_sentence(embedded_BTD, mask_BT, languages_B)
    return self.decode(embedded_BTD, languages_B, sentence_BZ), self.output_kernels()

  def _own_sentence(
    self,
    embedded_BTD: Float[Array, "B T D"],
    mask_BT: Bool[Array, "B T"],
    languages_B: Int[Array, "B"],
  ) -> Float[Array, "B Z"]:
    del languages_B
    return self.semantic_mean(embedded_BTD, mask_BT)

  def embed(self, tokens_BT: Int[Array, "B T"]) -> Float[Array, "B T D"]:
    """Returns token vectors, the input of the encoders and of the decoder."""
    return self.token_embedder(tokens_BT)

  def semantic_mean(
    self,
    embedded_BTD: Float[Array, "B T D"],
    mask_BT: Bool[Array, "B T"],
    *,
    deterministic: bool = True,
  ) -> Float[Array, "B S"]:
    """Returns the mean of the semantic latent, float32: the embedding of a sentence."""
    return self._latent(self.mean, self._pooled(embedded_BTD, mask_BT, deterministic))

  def decode(
    self,
    embedded_BTD: Float[Array, "B T D"],
    languages_B: Int[Array, "B"],
    sentence_BZ: Float[Array, "B Z"],
    *,
    deterministic: bool = True,
  ) -> Float[Array, "B T D"]:
    """Returns the decoder's hidden states; arguments as of `decoder.LatentDecoder`."""
    return self.decoder(embedded_BTD, languages_B, sentence_BZ, deterministic=deterministic)

  def output_kernels(self) -> tuple[Float[Array, "D V"], Float[Array, "Z V"]]:
    """Returns the vocabulary projection of `[z; h]`: the rows of `h`, then those of `z`."""
    return self.logits_hidden(), self.logits_latent()

  def _pooled(
    self, embedded_BTD: Float[Array, "B T D"], mask_BT: Bool[Array, "B T"], deterministic: bool
  ) -> Float[Array, "B D"]:
    hidden_BTD = self.encoder(embedded_BTD, mask_BT, deterministic=deterministic)
    return pooling.masked_mean(hidden_BTD, mask_BT)

  def _latent(self, head: nn.Module, pooled_BD: Float[Array, "B D"]) -> Float[Array, "B K"]:
    return sharding.constrain(head(pooled_BD), ("batch", "kv"))


class VmsstNetwork(BitranslationNetwork):
  """Two encoders over one token table, Gaussian heads, and a decoder that is given both latents.

  The semantic encoder is told no language. In the language encoder a learned vector of the
  language is added to every token's (VMSST paper, section 5 and figure 2).
  """

  @property
  def sentence_dim(self) -> int:
    """Width of `[z_lang; z_sem]`."""
    return 2 * self.latent_dim

  def setup(self) -> None:
    """Makes the parts, each with its own parameters."""
    super().setup()
    cfg = self.config
    self.log_variance = self._head()
    self.language_encoder = t5.T5Encoder(cfg)
    self.encoder_language_embedder = t5.TokenEmbedder(
      self.num_languages, cfg.emb_dim, cfg.dtype, "relpos_buckets"
    )
    self.language_mean = self._head()
    self.language_log_variance = self._head()

  def posteriors(
    self,
    embedded_BTD: Float[Array, "B T D"],
    mask_BT: Bool[Array, "B T"],
    languages_B: Int[Array, "B"],
    *,
    deterministic: bool = True,
  ) -> Posteriors:
    """Returns the posteriors of both latents of each sentence.

    Args:
      embedded_BTD: Token vectors.
      mask_BT: True at real tokens.
      languages_B: Language of each sentence; an index of `vmsst.languages`.
      deterministic: False turns dropout on (needs an rng named "dropout").
    """
    pooled_BD = self._pooled(embedded_BTD, mask_BT, deterministic)
    marked_BTD = embedded_BTD + self.encoder_language_embedder(languages_B[:, None])
    hidden_BTD = self.language_encoder(marked_BTD, mask_BT, deterministic=deterministic)
    language_BD = pooling.masked_mean(hidden_BTD, mask_BT)
    return Posteriors(
      self._latent(self.mean, pooled_BD),
      self._latent(self.log_variance, pooled_BD),
      self._latent(self.language_mean, language_BD),
      self._latent(self.language_log_variance, language_BD),
    )

  def _own_sentence(
    self,
    embedded_BTD: Float[Array, "B T D"],
    mask_BT: Bool[Array, "B T"],
    languages_B: Int[Array, "B"],
  ) -> Float[Array, "B Z"]:
    own = self.posteriors(embedded_BTD, mask_BT, languages_B)
    return jnp.concatenate([own.language_mean_BG, own.semantic_mean_BS], axis=-1)


def run(
  network: nn.Module,
  params: Any,
  method: str,
  *arrays: jax.Array,
  dropout_rng: jax.Array | None = None,
) -> Any:
  """Returns what a method of a network gives; without a key there is no dropout."""
  rngs = None if dropout_rng is None else {"dropout": dropout_rng}
  return network.apply(
    {"params": params}, *arrays, deterministic=dropout_rng is None, method=method, rngs=rngs
  )
