"""Generates and scores text from sentence vectors, with the decoder from a training run.

Example:
  translator = vmsst.load_translator("/runs/small")
  translator.translate(["How are you?"], "de")
  translator.pair_log_likelihoods(["How are you?"], ["Wie geht's?"], languages=("en", "de"))
  vectors = translator.encoder.encode(["How are you?"])
  translator.generate(vectors, "de")

Axes: `Z` indexes the dimensions of the decoder's sentence input, which is `[z_lang; z_sem]` in
VMSST.
"""

import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from vmsst import arrays, errors, languages
from vmsst.data import input_texts
from vmsst.encoder import backends, encoding
from vmsst.encoder.encoder import Encoder
from vmsst.formats import encoder_json
from vmsst.io import progress_bar
from vmsst.losses import vocabulary
from vmsst.networks import decoder, vmsst


class Translator:
  """Generates and scores sentences from vectors, in any language used to train the decoder.

  Attributes:
    encoder: Maps sentences to the vectors that `generate` accepts.
  """

  def __init__(self, network: vmsst.BitranslationNetwork, params: Any, encoder: Encoder):
    """Creates a translator from parameters in memory; `vmsst.load_translator` reads a checkpoint.

    Args:
      network: The network with the decoder.
      params: The network's parameters.
      encoder: The semantic encoder from the same run.
    """
    self.encoder = encoder
    self._network = network
    self._params = params

  @property
  def digest(self) -> str:
    """Hexadecimal SHA-256 of the parameters, networks, vocabulary and maximum length.

    Two translators with the same digest return the same results up to rounding error.
    """
    settings = encoder_json.digest(self._network, self.encoder.vocabulary, self.encoder.max_length)
    return hashlib.sha256(f"{settings} {self.encoder.digest}".encode()).hexdigest()

  def translate(
    self,
    sentences: input_texts.Texts,
    language: str | Sequence[str],
    *,
    max_length: int | None = None,
    batch_size: int = 64,
  ) -> list[str]:
    """Returns one sentence in `language` for each input, generated from the input's vector.

    The vector of an input is the mean of the input's semantic latent. All arguments except
    `sentences` are as in `generate`.

    Raises:
      TypeError: If an item is not a string. The message shows the item.
      InputError: As in `generate`.
    """
    sentences = input_texts.as_list(sentences)
    vectors_NS = self.encoder.encode(sentences, batch_size=batch_size, progress=False)
    return self.generate(vectors_NS, language, max_length=max_length, batch_size=batch_size)

  def generate(
    self,
    vectors_NS: Float[np.ndarray, "N S"],
    language: str | Sequence[str],
    *,
    max_length: int | None = None,
    batch_size: int = 64,
  ) -> list[str]:
    """Generates a sentence for each vector by greedy decoding, up to EOS.

    If the network has a language latent, the latent is set to zero (the mean of its prior), as in
    the translation terms of the training loss. Apart from rounding error, a generated sentence does
    not depend on the other vectors.

    Args:
      vectors_NS: Semantic latents, as `encoder.encode` returns them (not normalized).
      language: Code of the language to generate (see `vmsst.languages`), or one code for each row.
      max_length: Maximum tokens per sentence, EOS included (default: as in training). If the
        vocabulary has no EOS, all sentences have this length.
      batch_size: Sentences per batch.

    Raises:
      InputError: If a language is unknown, the run was not trained on it, or an option is out of
        range.
    """
    length = self.encoder.max_length
    if max_length is not None:
      length = errors.as_integer("max_length", max_length)
    batch_size = errors.as_integer("batch_size", batch_size)
    sentence_NZ = self._sentence_vectors(vectors_NS)
    count = len(sentence_NZ)
    language_N = self._language_rows(language, count)
    # Round the batch size up to a power of two, so that JAX compiles few shapes.
    rows = min(batch_size, 1 << (count - 1).bit_length())
    texts: list[str] = []
    with progress_bar.Bar(total=count, unit=" sentences") as bar:
      for start in range(0, count, batch_size):
        row_B = np.arange(start, start + rows)
        real_B = row_B < count
        row_B = np.minimum(row_B, count - 1)
        tokens_BT = generate_tokens(
          self._network,
          self._params,
          sentence_NZ[row_B],
          language_N[row_B],
          real_B,
          length=length,
          eos_id=self.encoder.vocabulary.eos_id,
          pieces=self.encoder.vocabulary.size,
        )
        texts += map(self.encoder.vocabulary.decode, np.asarray(tokens_BT)[real_B].tolist())
        bar.update(int(real_B.sum()))
    return texts

  def log_likelihoods(
    self,
    sentences: input_texts.Texts,
    language: str | Sequence[str],
    vectors_NS: Float[np.ndarray, "N S"],
    *,
    per_token: bool = False,
    batch_size: int = 64,
  ) -> Float[np.ndarray, "N"]:
    """Returns log p(sentence | vector) for each sentence in nats, float32. Values are at most 0.

    The log-likelihood of a sentence is the sum over its tokens, EOS included. Sentences are cut as
    in `encoder.encode`.

    Args:
      sentences: Strings.
      language: Language code for all sentences, or one code for each sentence.
      vectors_NS: Semantic latent for each sentence, as in `generate`.
      per_token: Whether to divide by the number of tokens, so that long and short sentences are
        comparable.
      batch_size: Sentences per batch.

    Raises:
      ValueError: If the number of sentences differs from the number of vectors.
      InputError: As in `generate`.
    """
    sentences = input_texts.as_list(sentences)
    language_N = self._language_rows(language, len(sentences))
    batch_size = errors.as_integer("batch_size", batch_size)
    sentence_NZ = self._sentence_vectors(vectors_NS)
    if len(sentence_NZ) != len(sentences):
      raise ValueError(f"{len(sentence_NZ):,} vectors for {len(sentences):,} sentences")
    length = self.encoder.max_length
    ids = self.encoder.vocabulary.encode(sentences, length, language)
    score_N = np.empty(len(sentences), np.float32)
    for index_B, tokens_RT in backends.padded_batches(ids, batch_size, length):
      index_R = np.resize(index_B, len(tokens_RT))  # padding rows repeat sentences
      score_R = token_log_likelihoods(
        self._network, self._params, tokens_RT, language_N[index_R], sentence_NZ[index_R]
      )
      score_N[index_B] = np.asarray(score_R)[: len(index_B)]
    if per_token:
      score_N /= np.fromiter((max(1, len(row)) for row in ids), np.float32, len(ids))
    return score_N

  def pair_log_likelihoods(
    self,
    sources: input_texts.Texts,
    targets: input_texts.Texts,
    *,
    languages: tuple[str | Sequence[str], str | Sequence[str]],
    per_token: bool = False,
    batch_size: int = 64,
    on_cut: Callable[[int, int, int], None] | None = encoding.log_cut,
  ) -> Float[np.ndarray, "N 2"]:
    """Returns log p(target | source's vector) and log p(source | target's vector) for each pair.

    These log-likelihoods are the translation terms of the training loss, with the mean of the
    semantic latent as the sentence vector and zeros as the language latent. Translations score
    higher than unrelated sentences.

    Args:
      sources: Strings.
      targets: Strings, one for each source.
      languages: The sources' language and the targets' language. Each is one code, or one code for
        each sentence.
      per_token: As in `log_likelihoods`.
      batch_size: Sentences per batch.
      on_cut: As in `encoder.encode`.

    Raises:
      ValueError: If the sources and targets differ in number, or if `languages` does not contain
        two values.
      TypeError, InputError: As in `translate`.
    """
    pair_texts = [input_texts.as_list(texts) for texts in (sources, targets)]
    codes = input_texts.languages_by_side(languages)
    source_NS, target_NS = (
      self.encoder.encode(
        texts, language=language, batch_size=batch_size, progress=False, on_cut=on_cut
      )
      for texts, language in zip(pair_texts, codes, strict=True)
    )
    score = functools.partial(self.log_likelihoods, per_token=per_token, batch_size=batch_size)
    forward_N = score(pair_texts[1], codes[1], source_NS)
    backward_N = score(pair_texts[0], codes[0], target_NS)
    return np.stack([forward_N, backward_N], axis=1)

  def _sentence_vectors(self, vectors_NS: Any) -> np.ndarray:
    """Returns the decoder's sentence input for each row, with language latents set to zero."""
    semantic = self._network.latent_dim
    vectors_NS = np.asarray(vectors_NS, np.float32)
    return np.pad(vectors_NS, ((0, 0), (self._network.sentence_dim - semantic, 0)))

  def _language_rows(self, language: str | Sequence[str], count: int) -> np.ndarray:
    """Returns each sentence's row in the language table."""
    codes = input_texts.languages(language, count)
    # Check a single code even if no sentences are given.
    checked = {language} if isinstance(language, str) else set(codes)
    rows = {code: languages.language(code).index for code in checked}
    trained = self.encoder.languages
    trained_rows = None if trained is None else {languages.language(x).index for x in trained}
    groups = self._network.decoder_groups
    for code, row in rows.items():
      in_table = row < self._network.num_languages and not (groups and groups[row] < 0)
      if not in_table or (trained_rows is not None and row not in trained_rows):
        choose = f"; choose one of {', '.join(trained)}" if trained else ""
        raise errors.InputError(f"this run was not trained on the language {code!r}{choose}")
    return np.array([rows[code] for code in codes], np.int32)


class _State(NamedTuple):
  """Loop state: the tokens so far, the last token, and whether each sentence has ended."""

  position: Int[Array, ""]
  tokens_BT: Int[Array, "B T"]
  last_B: Int[Array, "B"]
  ended_B: Bool[Array, "B"]
  cache: Any


@functools.partial(jax.jit, static_argnames=("network", "length", "eos_id", "pieces"))
def generate_tokens(
  network: vmsst.BitranslationNetwork,
  params: Any,
  sentence_BZ: Float[Array, "B Z"],
  languages_B: Int[Array, "B"],
  wanted_B: Bool[Array, "B"],
  *,
  length: int,
  eos_id: int | None,
  pieces: int,
) -> Int[Array, "B T"]:
  """Generates tokens by greedy decoding, up to and including EOS. Padding follows EOS.

  Args:
    network: The network with the decoder and the vocabulary projection.
    params: The network's parameters.
    sentence_BZ: The decoder's sentence input for each row.
    languages_B: Language for each row, as an index in `vmsst.languages`.
    wanted_B: For each row, whether to generate a sentence. The other rows stay empty.
    length: Maximum tokens per row (T).
    eos_id: Id of the EOS token, or None.
    pieces: Vocabulary size; the network's token table may have more rows.
  """

  def apply(*arrays: Any, method: str, **options: Any) -> Any:
    return network.apply({"params": params, **options}, *arrays, method=method, mutable=["cache"])

  def product(vectors_BM: jax.Array, kernel_MV: jax.Array) -> jax.Array:
    # As in the loss, multiply in the compute dtype and sum in float32.
    factors = (x.astype(network.config.dtype) for x in (vectors_BM, kernel_MV))
    return jnp.matmul(*factors, preferred_element_type=jnp.float32)

  # The sentence vector adds the same term to the logits at every step, so compute this term once.
  blank_B1D = jnp.zeros((len(sentence_BZ), 1, network.config.emb_dim), network.config.dtype)
  once, _ = apply(blank_B1D, sentence_BZ, method="project")
  sentence_part_BV = jnp.zeros(())
  if once.sentence_BZ is not None:
    sentence_part_BV = product(once.sentence_BZ, once.sentence_kernel_ZV)

  def next_hidden(tokens_B: jax.Array, position: jax.Array, cache: Any) -> tuple[Any, Any]:
    step = decoder.Step(position, length)
    return apply(tokens_B, languages_B, sentence_BZ, step, method="decode_next", **cache)

  def step(state: _State) -> _State:
    hidden_BD, cache = next_hidden(state.last_B, state.position, state.cache)
    new, _ = apply(hidden_BD[:, None], sentence_BZ, method="project")
    logits_BV = product(new.hidden_BTD[:, 0], new.hidden_kernel_DV) + sentence_part_BV
    id_V = jnp.arange(logits_BV.shape[1])
    possible_V = (id_V != arrays.PAD_ID) & (id_V < pieces)
    logits_BV = jnp.where(possible_V, logits_BV, -jnp.inf)
    # Avoid `jnp.argmax`, because on CPUs, XLA's argmax takes as long as the vocabulary projection.
    best_B1 = jnp.max(logits_BV, axis=1, keepdims=True)
    token_B = jnp.min(jnp.where(logits_BV < best_B1, logits_BV.shape[1], id_V), axis=1)
    token_B = jnp.where(state.ended_B, arrays.PAD_ID, token_B.astype(jnp.int32))
    tokens_BT = jax.lax.dynamic_update_index_in_dim(state.tokens_BT, token_B, state.position, 1)
    ended_B = state.ended_B if eos_id is None else state.ended_B | (token_B == eos_id)
    return _State(state.position + 1, tokens_BT, token_B, ended_B, cache)

  _, shapes = jax.eval_shape(next_hidden, jnp.zeros_like(languages_B), jnp.zeros((), jnp.int32), {})
  cache = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
  empty_BT = jnp.full((len(sentence_BZ), length), arrays.PAD_ID, jnp.int32)
  first = _State(jnp.zeros((), jnp.int32), empty_BT, empty_BT[:, 0], ~wanted_B, cache)
  last = jax.lax.while_loop(
    lambda state: (state.position < length) & ~jnp.all(state.ended_B), step, first
  )
  return last.tokens_BT


@functools.partial(jax.jit, static_argnames="network")
def token_log_likelihoods(
  network: vmsst.BitranslationNetwork,
  params: Any,
  tokens_BT: Int[Array, "B T"],
  languages_B: Int[Array, "B"],
  sentence_BZ: Float[Array, "B Z"],
) -> Float[Array, "B"]:
  """Returns log p(tokens | sentence vector, language) for each row, in nats, float32.

  The result is a sum over the tokens that are not padding. The softmax covers all rows of the
  network's token table.

  Args:
    network: The network with the decoder and the vocabulary projection.
    params: The network's parameters.
    tokens_BT: Token ids for the sentences, EOS included; padding does not count.
    languages_B: Language for each row, as an index in `vmsst.languages`.
    sentence_BZ: The decoder's sentence input for each row.
  """

  def projection(net: vmsst.BitranslationNetwork) -> vmsst.Projection:
    hidden_BTD = net.decode(net.embed(tokens_BT), languages_B, sentence_BZ)
    return net.project(hidden_BTD, sentence_BZ)

  factors = cast(vmsst.Projection, network.apply({"params": params}, method=projection))
  ones_BT = jnp.ones(tokens_BT.shape)
  _, aux = vocabulary.weighted_nll(*factors, tokens_BT, ones_BT, dtype=network.config.dtype)
  return -jnp.sum(aux.nll_BT, axis=1)
