"""VMSST and BITRANSLATION networks: encoders, heads, decoder and vocabulary projection.

The top-level parameters have the same names as in `sentence_encoder.SentenceEncoder`
(`token_embedder`, `encoder`, `mean`), so that inference can load the semantic encoder alone.

Language groups may have separate language encoders or decoders. Groups are specified as a tuple
that maps the index of each language (see `vmsst.languages`) to a group number, or to -1 if the
language has no group. If the tuple is empty, all languages share one language encoder or decoder.
Otherwise, each group has its own copy. Every copy processes all rows of a batch. Each row's output
is then taken from the copy for the row's language. This works under any sharding, but n copies take
n times the FLOPs of one. Only the copies for languages in the batch receive gradients.

Axes: `S` semantic latent, `G` language latent, and `Z` for the decoder's conditioning vector, which
is `[z_lang; z_sem]` in VMSST and `z_sem` in BITRANSLATION.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import linen as nn
from flax.linen import partitioning
from jaxtyping import Array, Bool, Float, Int

from vmsst import arrays, errors, languages
from vmsst.arrays import layouts
from vmsst.networks import decoder, sentence_encoder, t5


class Posteriors(NamedTuple):
  """Diagonal Gaussian posteriors of each sentence's latents, in float32."""

  semantic_mean_BS: Float[Array, "B S"]
  semantic_log_variance_BS: Float[Array, "B S"]
  language_mean_BG: Float[Array, "B G"]
  language_log_variance_BG: Float[Array, "B G"]


class Projection(NamedTuple):
  """Arguments for `losses.vocabulary.weighted_nll`; the logits are `hidden W_h + sentence W_s`.

  `sentence_BZ` and its kernel are None if the logits depend only on the hidden states.
  """

  hidden_BTD: Float[Array, "B T D"]
  sentence_BZ: Float[Array, "B Z"] | None
  hidden_kernel_DV: Float[Array, "D V"]
  sentence_kernel_ZV: Float[Array, "Z V"] | None


class OutputKernel(nn.Module):
  """The rows of the vocabulary projection that multiply one part of its concatenated input.

  Attributes:
    rows: Number of rows in this kernel.
    fan_in: Number of rows in the complete projection.
    vocab_size: Number of columns (V).
  """

  rows: int
  fan_in: int
  vocab_size: int

  @nn.compact
  def __call__(self) -> Float[Array, "M V"]:
    """Returns the kernel, float32."""
    return partitioning.param_with_axes(
      "kernel",
      decoder.slice_initializer(self.rows, self.fan_in),
      (self.rows, self.vocab_size),
      jnp.float32,
      axes=("embed", "vocab"),
    )


def of_own_group(
  outputs: Sequence[Float[Array, "B ..."]], groups: tuple[int, ...], languages_B: Int[Array, "B"]
) -> Float[Array, "B ..."]:
  """Selects each row from its language group's output; without groups, returns the only output.

  If a row's language has no group, the row's output is NaN.
  """
  if not groups:
    return outputs[0]
  group_B = jnp.take(jnp.array(groups), languages_B, mode="fill", fill_value=-1)
  selected = jnp.full_like(outputs[0], jnp.nan)
  for group, output in enumerate(outputs):
    in_group = (group_B == group).reshape(-1, *[1] * (output.ndim - 1))
    selected = jnp.where(in_group, output, selected)
  return selected


class BitranslationNetwork(nn.Module):
  """A semantic encoder, and a decoder conditioned on the mean of the semantic latent.

  Attributes:
    config: Configuration of the encoder and the decoder.
    latent_dim: Width of each latent (S and G); in the paper, `config.emb_dim`.
    num_decoder_layers: Number of decoder layers (default: the number of encoder layers).
    num_languages: Number of rows in each table of language vectors.
    factorized: Whether to compute the logits from the conditioning vector z and a hidden state h as
      `(W_f [z; h]) W`, where W has D rows (VMSST paper, appendix A.1), instead of `[z; h] W`.
    decoder_language_embedding: Whether the decoder starts from a language-specific vector; if
      False, all languages share one start vector.
    decoder_groups: Language groups with separate decoders; see the module docstring.
  """

  config: t5.T5Config
  latent_dim: int
  num_decoder_layers: int | None = None
  num_languages: int = languages.NUM_LANGUAGES
  factorized: bool = False
  decoder_language_embedding: bool = True
  decoder_groups: tuple[int, ...] = ()

  def __post_init__(self) -> None:
    errors.check_sizes(self)
    self._check_groups("decoder_groups")
    super().__post_init__()

  def _check_groups(self, name: str) -> None:
    groups = getattr(self, name)
    if not groups:
      return
    field = f"{type(self).__name__}.{name}"
    if len(groups) != self.num_languages:
      raise errors.InputError(
        f"{field} has {len(groups)} entries, but num_languages is {self.num_languages}; set one "
        "group per language"
      )
    if {*groups, -1} != {*range(-1, _count(groups))} or not _count(groups):
      raise errors.InputError(f"{field} must number groups from 0 without gaps; -1 means no group")

  @property
  def sentence_dim(self) -> int:
    """Width of the decoder's conditioning vector (Z)."""
    return self.latent_dim

  def setup(self) -> None:
    """Creates the submodules."""
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
    fan_in = self.sentence_dim + cfg.emb_dim
    self.logits_hidden = OutputKernel(cfg.emb_dim, fan_in, cfg.vocab_size)
    self.logits_latent = OutputKernel(self.sentence_dim, fan_in, cfg.vocab_size)

  def _head(self) -> nn.Module:
    return t5.Dense(self.latent_dim, ("embed", "kv"))

  def _new_decoder(self) -> nn.Module:
    layers = self.num_decoder_layers or self.config.num_encoder_layers
    starts = self.num_languages if self.decoder_language_embedding else 1
    return decoder.LatentDecoder(self.config, layers, starts)

  def __call__(self, tokens_BT: Int[Array, "B T"]) -> Any:
    """Returns the `Projection` of each sentence, decoded from the sentence's posterior mean.

    This method runs every submodule, so that `init` creates all parameters. All sentences are
    decoded in the language with index 0.
    """
    languages_B, sentence_BZ = jnp.zeros_like(tokens_BT[:, 0]), self._own_sentence(tokens_BT)
    hidden_BTD = self.decode(self.embed(tokens_BT), languages_B, sentence_BZ)
    return self.project(hidden_BTD, sentence_BZ)

  def _own_sentence(self, tokens_BT: Int[Array, "B T"]) -> Float[Array, "B Z"]:
    return self.semantic_mean(self.embed(tokens_BT), tokens_BT != arrays.PAD_ID)

  def embed(self, tokens_BT: Int[Array, "B T"]) -> Float[Array, "B T D"]:
    """Returns token vectors, the input of the encoders and the decoder."""
    return self.token_embedder(tokens_BT)

  def semantic_mean(
    self,
    embedded_BTD: Float[Array, "B T D"],
    mask_BT: Bool[Array, "B T"],
    *,
    deterministic: bool = True,
  ) -> Float[Array, "B S"]:
    """Returns the sentence vector, which is the float32 mean of the semantic latent."""
    pooled_BD = _pool(self.encoder, embedded_BTD, mask_BT, deterministic)
    return self._latent(self.mean, pooled_BD)

  def decode(
    self,
    embedded_BTD: Float[Array, "B T D"],
    languages_B: Int[Array, "B"],
    sentence_BZ: Float[Array, "B Z"],
    **options: Any,
  ) -> Float[Array, "B T D"]:
    """Returns the decoder's hidden states; for the arguments, see `decoder.LatentDecoder`."""
    starts_B = languages_B if self.decoder_language_embedding else jnp.zeros_like(languages_B)
    outputs = [
      decode(embedded_BTD, starts_B, sentence_BZ, **options)
      for decode in (self.decoders if self.decoder_groups else (self.decoder,))
    ]
    return of_own_group(outputs, self.decoder_groups, languages_B)

  def decode_next(
    self,
    tokens_B: Int[Array, "B"],
    languages_B: Int[Array, "B"],
    sentence_BZ: Float[Array, "B Z"],
    step: decoder.Step,
  ) -> Float[Array, "B D"]:
    """Returns the hidden states that predict the token at one generation step.

    Args:
      tokens_B: Tokens of the previous step; any tokens at the first step.
      languages_B: Languages, as in `decode`.
      sentence_BZ: Sentence vectors.
      step: The generation step. The Flax collection "cache" must be mutable, contain zeros at the
        first step, and be passed from each step to the next.
    """
    embedded_B1D = self.embed(tokens_B[:, None])
    return self.decode(embedded_B1D, languages_B, sentence_BZ, step=step)[:, 0]

  def project(
    self, hidden_BTD: Float[Array, "B T D"], sentence_BZ: Float[Array, "B Z"]
  ) -> Projection:
    """Returns the inputs of the vocabulary projection; for `sentence_BZ`, see `decode`."""
    if self.factorized:
      mixed_BTD = self.logits_factor(hidden_BTD, sentence_BZ)
      return Projection(mixed_BTD, None, self.logits_hidden(), None)
    return Projection(hidden_BTD, sentence_BZ, self.logits_hidden(), self.logits_latent())

  def _latent(self, head: nn.Module, pooled_BD: Float[Array, "B D"]) -> Float[Array, "B K"]:
    return layouts.constrain(head(pooled_BD), ("batch", "kv"))


class VmsstNetwork(BitranslationNetwork):
  """Two encoders with a shared token table, Gaussian heads, and a decoder that uses both latents.

  The semantic encoder does not use the language. The language encoder adds a learned language
  vector to every token vector (VMSST paper, section 5 and figure 2).

  Attributes:
    encoder_language_embedding: Whether the language encoder adds the language vector.
    single_encoder: Whether the semantic encoder is also the language encoder. The encoder then runs
      twice, the second time with the language vector. If `encoder_language_embedding` is False, it
      runs only once, for both latents.
    language_encoder_groups: Language groups with separate language encoders; see the module
      docstring.
  """

  encoder_language_embedding: bool = True
  single_encoder: bool = False
  language_encoder_groups: tuple[int, ...] = ()

  def __post_init__(self) -> None:
    self._check_groups("language_encoder_groups")
    if self.single_encoder and self.language_encoder_groups:
      raise errors.InputError(
        "VmsstNetwork.single_encoder leaves no language encoder for language_encoder_groups; set "
        "only one of them"
      )
    super().__post_init__()

  @property
  def sentence_dim(self) -> int:
    """Width of `[z_lang; z_sem]`."""
    return 2 * self.latent_dim

  def setup(self) -> None:
    """Creates the submodules."""
    super().setup()
    cfg = self.config
    self.log_variance = self._head()
    self.language_mean = self._head()
    self.language_log_variance = self._head()
    if self.encoder_language_embedding:
      self.encoder_language_embedder = t5.TokenEmbedder(
        self.num_languages, cfg.emb_dim, cfg.dtype, "relpos_buckets"
      )
    if self.single_encoder:
      return
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
      languages_B: Language of each sentence; an index into `vmsst.languages`.
      deterministic: Whether to disable dropout; if False, an rng named "dropout" is required.
    """
    pooled_BD = _pool(self.encoder, embedded_BTD, mask_BT, deterministic)
    language_BD = pooled_BD
    if self.encoder_language_embedding:
      embedded_BTD = embedded_BTD + self.encoder_language_embedder(languages_B[:, None])
    if not self.single_encoder or self.encoder_language_embedding:
      if groups := self.language_encoder_groups:
        encoders = self.language_encoders
      else:
        encoders = [self.encoder if self.single_encoder else self.language_encoder]
      outputs = [_pool(encoder, embedded_BTD, mask_BT, deterministic) for encoder in encoders]
      language_BD = of_own_group(outputs, groups, languages_B)
    return Posteriors(
      self._latent(self.mean, pooled_BD),
      self._latent(self.log_variance, pooled_BD),
      self._latent(self.language_mean, language_BD),
      self._latent(self.language_log_variance, language_BD),
    )

  def _own_sentence(self, tokens_BT: Int[Array, "B T"]) -> Float[Array, "B Z"]:
    languages_B = jnp.zeros_like(tokens_BT[:, 0])
    posteriors = self.posteriors(self.embed(tokens_BT), tokens_BT != arrays.PAD_ID, languages_B)
    return jnp.concatenate([posteriors.language_mean_BG, posteriors.semantic_mean_BS], axis=-1)


def _count(groups: tuple[int, ...]) -> int:
  return max(groups) + 1


def _pool(
  encoder: nn.Module,
  embedded_BTD: Float[Array, "B T D"],
  mask_BT: Bool[Array, "B T"],
  deterministic: bool,
) -> Float[Array, "B D"]:
  hidden_BTD = encoder(embedded_BTD, mask_BT, deterministic=deterministic)
  return sentence_encoder.masked_mean(hidden_BTD, mask_BT)
