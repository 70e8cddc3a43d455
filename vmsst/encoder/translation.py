"""Generates and scores text given sentence vectors, with the decoder of a training run.

Example:
  translator = vmsst.load_translator("/runs/small")
  translator.translate(["How are you?"], "de")
  translator.pair_log_likelihoods(["How are you?"], ["Wie geht's?"], languages=("en", "de"))
  vectors = translator.encoder.encode(["How are you?"])
  translator.generate(vectors, "de")

Axes: `Z` is the decoder's sentence input, in VMSST `[z_lang; z_sem]`.
"""

import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from vmsst import errors, languages
from vmsst.data import input_texts
from vmsst.encoder import batching, decoding
from vmsst.encoder.encoder import Encoder
from vmsst.formats import encoder_json
from vmsst.io import progress_bar
from vmsst.networks import vmsst


class Translator:
  """Generates and scores sentences given vectors, in any language of the decoder's training.

  Attributes:
    encoder: Maps sentences to the vectors that `generate` takes.
  """

  def __init__(
    self,
    network: vmsst.BitranslationNetwork,
    params: Any,
    encoder: Encoder,
  ):
    """Takes parameters in memory; `vmsst.load_translator` reads them from a checkpoint.

    Args:
      network: The network with the decoder.
      params: Its parameters.
      encoder: Its semantic encoder.
    """
    self.encoder = encoder
    self._network = network
    self._params = params

  @property
  def digest(self) -> str:
    """A SHA-256 of parameters, networks, vocabulary and maximum length, in hexadecimal.

    Two translators with one digest compute the same, up to rounding error.
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
    """Returns one sentence in `language` for each input, generated from its vector.

    The vector is the mean of the semantic latent, the decoder's only input in the translation terms
    of training. The other arguments are those of `generate`.

    Raises:
      TypeError: an item is not a string; the message names it.
      InputError: as `generate`.
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
    """Returns a sentence for each vector: the most likely token after each other, up to EOS.

    The language latent, if the network has one, is zero: the prior's mean, as in the translation
    terms of training.

    A row's sentence does not depend on the other rows beyond rounding error.

    Args:
      vectors_NS: Semantic latents, as `encoder.encode` returns them (not normalized).
      language: Code of the language to generate (see `vmsst.languages`), or one for each row.
      max_length: Tokens of a sentence, EOS included; None: as in training. If the vocabulary has no
        EOS, all sentences have this length.
      batch_size: Sentences per batch.

    Raises:
      InputError: a language is unknown or was not trained, or an option is out of range.
    """
    length = self.encoder.max_length
    if max_length is not None:
      length = errors.as_integer("max_length", max_length)
    batch_size = errors.as_integer("batch_size", batch_size)
    sentence_NZ = self._sentence_vectors(vectors_NS)
    count = len(sentence_NZ)
    language_N = self._language_rows(language, count)
    rows = min(batch_size, 1 << (count - 1).bit_length())  # for few shapes
    texts: list[str] = []
    with progress_bar.Bar(total=count, unit=" sentences") as bar:
      for start in range(0, count, batch_size):
        row_B = np.arange(start, start + rows)
        real_B = row_B < count
        row_B = np.minimum(row_B, count - 1)
        tokens_BT = decoding.generate_tokens(
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
    """Returns log p(sentence | vector) of each sentence in nats, float32: 0 or below.

    The sum over the tokens of a sentence, EOS included. Sentences are cut as by `encoder.encode`.

    Args:
      sentences: Strings.
      language: Code of their language, or one for each sentence.
      vectors_NS: Semantic latents to generate them from, as for `generate`.
      per_token: Divide by the number of tokens, so that long sentences can be compared with short
        ones.
      batch_size: Sentences per batch.

    Raises:
      ValueError: the sentences and the vectors differ in number.
      InputError: as `generate`.
    """
    sentences = input_texts.as_list(sentences)
    language_N = self._language_rows(language, len(sentences))
    batch_size = errors.as_integer("batch_size", batch_size)
    sentence_NZ = self._sentence_vectors(vectors_NS)
    if len(sentence_NZ) != len(sentences):
      raise ValueError(f"{len(sentence_NZ):,} vectors for {len(sentences):,} sentences")
    length = self.encoder.max_length
    ids = self.encoder.vocabulary.encode(sentences, length, language)
    found_N = np.empty(len(sentences), np.float32)
    for index_B, tokens_RT in batching.padded_batches(ids, batch_size, length):
      index_R = np.resize(index_B, len(tokens_RT))  # repeated in padding rows
      found_R = decoding.log_likelihoods(
        self._network, self._params, tokens_RT, language_N[index_R], sentence_NZ[index_R]
      )
      found_N[index_B] = np.asarray(found_R)[: len(index_B)]
    if per_token:
      found_N /= np.fromiter((max(1, len(row)) for row in ids), np.float32, len(ids))
    return found_N

  def pair_log_likelihoods(
    self,
    sources: input_texts.Texts,
    targets: input_texts.Texts,
    *,
    languages: tuple[str | Sequence[str], str | Sequence[str]],
    per_token: bool = False,
    batch_size: int = 64,
    on_cut: Callable[[int, int, int], None] | None = batching.log_cut,
  ) -> Float[np.ndarray, "N 2"]:
    """Returns log p(target | source's vector) and log p(source | target's vector) of each pair.

    These are the translation terms of training: the vector is the mean of the semantic latent, and
    the language latent is zero. A translation is more likely than another sentence.

    Args:
      sources: Strings.
      targets: As many strings.
      languages: Codes of the languages of sources and targets; of each side one, or one for each
        sentence.
      per_token: As for `log_likelihoods`.
      batch_size: Sentences per batch.
      on_cut: As for `encoder.encode`.

    Raises:
      ValueError: the sides differ in number, or `languages` is not two values.
      TypeError, InputError: as `translate`.
    """
    sides = [input_texts.as_list(side) for side in (sources, targets)]
    codes = input_texts.languages_by_side(languages)
    source_NS, target_NS = (
      self.encoder.encode(
        side, language=language, batch_size=batch_size, progress=False, on_cut=on_cut
      )
      for side, language in zip(sides, codes, strict=True)
    )
    score = functools.partial(self.log_likelihoods, per_token=per_token, batch_size=batch_size)
    forward_N = score(sides[1], codes[1], source_NS)
    backward_N = score(sides[0], codes[0], target_NS)
    return np.stack([forward_N, backward_N], axis=1)

  def _sentence_vectors(self, vectors_NS: Any) -> np.ndarray:
    """Returns the decoder's sentence input of each row; language latents are zero, their mean."""
    semantic = self._network.latent_dim
    vectors_NS = np.asarray(vectors_NS, np.float32)
    return np.pad(vectors_NS, ((0, 0), (self._network.sentence_dim - semantic, 0)))

  def _language_rows(self, language: str | Sequence[str], count: int) -> np.ndarray:
    """Returns the row of the language table for each of `count` sentences."""
    codes = input_texts.languages(language, count)
    # A single code is checked even without sentences, to report mistakes.
    known = {language} if isinstance(language, str) else set(codes)
    rows = {code: languages.language(code).index for code in known}
    trained = self.encoder.languages
    trained_rows = None if trained is None else {languages.language(x).index for x in trained}
    groups = self._network.decoder_groups
    for code, row in rows.items():
      in_table = row < self._network.num_languages and not (groups and groups[row] < 0)
      if not in_table or (trained_rows is not None and row not in trained_rows):
        choose = f"; choose one of {', '.join(trained)}" if trained else ""
        raise errors.InputError(f"this run was not trained on the language {code!r}{choose}")
    return np.array([rows[code] for code in codes], np.int32)
