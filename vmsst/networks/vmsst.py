"""The networks of VMSST and BITRANSLATION: encoders, heads, decoder and vocabulary projection.

Both keep the names of `sentence_encoder.SentenceEncoder` (`token_embedder`, `encoder`, `mean`) at
the top of their parameters, so that inference loads their semantic encoder alone.

Copies of a part: groups of languages may have an encoder or a decoder each. Groups are a tuple that
maps the index of every language (see `vmsst.languages`) to its group, or to -1 where it has none;
an empty one means one part for all. Every copy computes all rows and each row keeps what its own
copy gave: exact under any sharding, for as many times the arithmetic of that part as there are
copies. Gradients reach the copies of the languages at hand alone.

Axes: `S` semantic and `G` language latent, as everywhere, and `Z` for all that the decoder is given
of a sentence: `[z_lang; z_sem]` in VMSST, `z_sem` in BITRANSLATION.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen import partitioning
from jaxtyping import Array, Bool, Float, Int

from vmsst import errors, languages, padding, sharding
from vmsst.networks import decoder, pooling, t5


class Posteriors(NamedTuple):
  """Diagonal Gaussians of the latents of each sentence, float32."""

  semantic_mean_BS: Float[Array, "B S"]
  semantic_log_variance_BS: Float[Array, "B S"]
  language_mean_BG: Float[Array, "B G"]
  language_log_variance_BG: Float[Array, "B G"]


class Projection(NamedTuple):
  """What `losses.vocabulary.weighted_nll` makes logits of: `hidden W_h + sentence W_s`.

  The second term is missing where nothing is left of a sentence but in the hidden states.
  """

  hidden_BTD: Float[Array, "B T D"]
  sentence_BZ: Float[Array, "B Z"] | None
  hidden_kernel_DV: Float[Array, "D V"]
  sentence_kernel_ZV: Float[Array, "Z V"] | None


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


def of_own_group(
  outputs: Sequence[Float[Array, "B ..."]], groups: tuple[int, ...], languages_B: Int[Array, "B"]
) -> Float[Array, "B ..."]:
  """Returns each row as the copy of its language's group gave it; without groups the only output.

  A language without a group gives NaN, so that it cannot go unseen.
  """
  if not groups:
    return outputs[0]
  group_B = jnp.take(jnp.array(groups), languages_B, mode="fill", fill_value=-1)
  own = jnp.full_like(outputs[0], jnp.nan)
  for group, output in enumerate(outputs):
    is_own = (group_B == group).reshape(-1, *[1] * (output.ndim - 1))
    own = jnp.where(is_own, output, own)
  return own


class BitranslationNetwork(nn.Module):
  """A semantic encoder, and a decoder that is given its mean.

  Attributes:
    config: Sizes and numerics of encoder and decoder.
    latent_dim: Width of a latent (S, and G where there is one); the paper's is `config.emb_dim`.
    num_decoder_layers: Layers of the decoder; None: as many as an encoder has.
    num_languages: Rows of a language table.
    factorized: Scores tokens by `(W_f [z; h]) W`, W of D rows, in place of `[z; h] W` (VMSST paper,
      appendix A.1).
    decoder_language_embedding: Whether the decoder starts from a vector of the language. Without,
      there is one start vector for all languages.
    decoder_groups: Groups of languages that have a decoder each; see the module's docstring.
  """

  config: t5.T5Config
  latent_dim: int
  num_decoder_layers: int | None = None
  num_languages: int = languages.NUM_LANGUAGES
  factorized: bool = False
  decoder_language_embedding: bool = True
  decoder_groups: tuple[int, ...] = ()

  def __post_init__(self) -> None:
    for name in ("latent_dim", "num_decoder_layers", "num_languages"):
      value = getattr(self, name)
      if value is not None and (not isinstance(value, int) or value < 1):
        raise errors.InputError(
          f"{type(self).__name__}.{name} is {value!r}; it has to be a positive integer"
        )
    self._check_groups("decoder_groups")
    super().__post_init__()

  def _check_groups(self, name: str) -> None:
    groups = getattr(self, name)
    if not groups:
      return
    where = f"{type(self).__name__}.{name}"
    if len(groups) != self.num_languages:
      raise errors.InputError(
        f"{where} has groups of {len(groups)} languages; num_languages is {self.num_languages}"
      )
    if {*groups, -1} != {*range(-1, _count(groups))} or not _count(groups):
      raise errors.InputError(f"{where} has to number groups from 0 without gaps, or -1 for none")

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
    if self.decoder_groups:
      self.decoders = [self._new_decoder() for _ in range(_count(self.decoder_groups))]
    else:
      self.decoder = self._new_decoder()
    if self.factorized:
      self.logits_factor = decoder.SentenceInjection(cfg)
      self.logits_hidden = OutputKernel(cfg.emb_dim, cfg.emb_dim, cfg.vocab_size)
      return
    whole = self.sentence_dim + cfg.emb_dim
    self.logits_hidden = OutputKernel(cfg.emb_dim, whole, cfg.vocab_size)
    self.logits_latent = OutputKernel(self.sentence_dim, whole, cfg.vocab_size)

  def _head(self) -> nn.Module:
    return t5.Dense(self.latent_dim, ("embed", "kv"))

  def _new_decoder(self) -> nn.Module:
    layers = self.num_decoder_layers or self.config.num_encoder_layers
    starts = self.num_languages if self.decoder_language_embedding else 1
    return decoder.LatentDecoder(self.config, layers, starts)

  def __call__(self, tokens_BT: Int[Array, "B T"]) -> Any:
    """Runs every part once, so that `init` makes all parameters; languages are unknown.

    Returns the `Projection` of each sentence, decoded from the mean of its own posterior.
    """
    embedded_BTD, mask_BT = self.embed(tokens_BT), tokens_BT != padding.PAD_ID
    languages_B = jnp.zeros_like(tokens_BT[:, 0])
    sentence_BZ = self._own_sentence(embedded_BTD, mask_BT, languages_B)
    return self.project(self.decode(embedded_BTD, languages_B, sentence_BZ), sentence_BZ)

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
    pooled_BD = _pooled(self.encoder, embedded_BTD, mask_BT, deterministic)
    return self._latent(self.mean, pooled_BD)

  def decode(
    self,
    embedded_BTD: Float[Array, "B T D"],
    languages_B: Int[Array, "B"],
    sentence_BZ: Float[Array, "B Z"],
    *,
    deterministic: bool = True,
  ) -> Float[Array, "B T D"]:
    """Returns the decoder's hidden states; arguments as of `decoder.LatentDecoder`."""
    starts_B = languages_B if self.decoder_language_embedding else jnp.zeros_like(languages_B)
    outputs = [
      each(embedded_BTD, starts_B, sentence_BZ, deterministic=deterministic)
      for each in (self.decoders if self.decoder_groups else (self.decoder,))
    ]
    return of_own_group(outputs, self.decoder_groups, languages_B)

  def project(
    self, hidden_BTD: Float[Array, "B T D"], sentence_BZ: Float[Array, "B Z"]
  ) -> Projection:
    """Returns what the logits of hidden states are made of, given what `decode` was given."""
    if self.factorized:
      mixed_BTD = self.logits_factor(hidden_BTD, sentence_BZ)
      return Projection(mixed_BTD, None, self.logits_hidden(), None)
    return Projection(hidden_BTD, sentence_BZ, self.logits_hidden(), self.logits_latent())

  def _latent(self, head: nn.Module, pooled_BD: Float[Array, "B D"]) -> Float[Array, "B K"]:
    return sharding.constrain(head(pooled_BD), ("batch", "kv"))


class VmsstNetwork(BitranslationNetwork):
  """Two encoders over one token table, Gaussian heads, and a decoder that is given both latents.

  The semantic encoder is told no language. In the language encoder a learned vector of the
  language is added to every token's (VMSST paper, section 5 and figure 2).

  Attributes:
    encoder_language_embedding: Whether the language encoder is told the language.
    single_encoder: Gives all heads what the semantic encoder gives; there is no language encoder.
    language_encoder_groups: Groups of languages that have a language encoder each; see the module's
      docstring.
  """

  encoder_language_embedding: bool = True
  single_encoder: bool = False
  language_encoder_groups: tuple[int, ...] = ()

  def __post_init__(self) -> None:
    self._check_groups("language_encoder_groups")
    if self.single_encoder and self.language_encoder_groups:
      raise errors.InputError(
        "VmsstNetwork.single_encoder leaves no language encoder that language_encoder_groups could "
        "make several of; give one of them"
      )
    super().__post_init__()

  @property
  def sentence_dim(self) -> int:
    """Width of `[z_lang; z_sem]`."""
    return 2 * self.latent_dim

  def setup(self) -> None:
    """Makes the parts, each with its own parameters."""
    super().setup()
    cfg = self.config
    self.log_variance = self._head()
    self.language_mean = self._head()
    self.language_log_variance = self._head()
    if self.single_encoder:
      return
    if self.encoder_language_embedding:
      self.encoder_language_embedder = t5.TokenEmbedder(
        self.num_languages, cfg.emb_dim, cfg.dtype, "relpos_buckets"
      )
    if self.language_encoder_groups:
      copies = _count(self.language_encoder_groups)
      self.language_encoders = [t5.T5Encoder(cfg) for _ in range(copies)]
    else:
      self.language_encoder = t5.T5Encoder(cfg)

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
    pooled_BD = _pooled(self.encoder, embedded_BTD, mask_BT, deterministic)
    language_BD = pooled_BD
    if not self.single_encoder:
      language_BD = self._language_pooled(embedded_BTD, mask_BT, languages_B, deterministic)
    return Posteriors(
      self._latent(self.mean, pooled_BD),
      self._latent(self.log_variance, pooled_BD),
      self._latent(self.language_mean, language_BD),
      self._latent(self.language_log_variance, language_BD),
    )

  def _language_pooled(
    self,
    embedded_BTD: Float[Array, "B T D"],
    mask_BT: Bool[Array, "B T"],
    languages_B: Int[Array, "B"],
    deterministic: bool,
  ) -> Float[Array, "B D"]:
    if self.encoder_language_embedding:
      embedded_BTD = embedded_BTD + self.encoder_language_embedder(languages_B[:, None])
    groups = self.language_encoder_groups
    outputs = [
      _pooled(encoder, embedded_BTD, mask_BT, deterministic)
      for encoder in (self.language_encoders if groups else (self.language_encoder,))
    ]
    return of_own_group(outputs, groups, languages_B)

  def _own_sentence(
    self,
    embedded_BTD: Float[Array, "B T D"],
    mask_BT: Bool[Array, "B T"],
    languages_B: Int[Array, "B"],
  ) -> Float[Array, "B Z"]:
    own = self.posteriors(embedded_BTD, mask_BT, languages_B)
    return jnp.concatenate([own.language_mean_BG, own.semantic_mean_BS], axis=-1)


def _count(groups: tuple[int, ...]) -> int:
  return max(groups) + 1


def _pooled(
  encoder: nn.Module,
  embedded_BTD: Float[Array, "B T D"],
  mask_BT: Bool[Array, "B T"],
  deterministic: bool,
) -> Float[Array, "B D"]:
  hidden_BTD = encoder(embedded_BTD, mask_BT, deterministic=deterministic)
  return pooling.masked_mean(hidden_BTD, mask_BT)


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
