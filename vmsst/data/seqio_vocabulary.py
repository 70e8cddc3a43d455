"""Vocabularies of `vmsst.data` as seqio vocabularies, with the same ids."""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

import numpy as np
import seqio
import tensorflow as tf
import tensorflow_text as tf_text

from vmsst.data import vocabularies


class SeqioVocabulary(seqio.Vocabulary):
  """A `vmsst.data.vocabularies` vocabulary as a seqio vocabulary, with the same ids.

  It does not know languages: text for a vocabulary that splits words must be split already, by
  `features.split_columns`.

  The EOS token of a model without one is None; in seqio's class it is -1, which its preprocessors
  would append.
  """

  def __init__(self, vocabulary: vocabularies.Vocabulary):
    super().__init__()
    self.wrapped = vocabulary
    self._of_words = vocabulary
    if isinstance(vocabulary, vocabularies.SentencePieceVocabulary):
      self._of_words = dataclasses.replace(vocabulary, pretokenize=False)

  @property
  def bos_id(self) -> None:
    """None: there is no BOS token."""

  @property
  def eos_id(self) -> int | None:
    """Id of the EOS token, or None."""
    return self.wrapped.eos_id

  @property
  def unk_id(self) -> int | None:
    """Id of unknown pieces."""
    return self.wrapped.unk_id

  @property
  def _base_vocab_size(self) -> int:
    return self.wrapped.size

  def _encode(self, s: str) -> Sequence[int]:
    return self._of_words.tokenize([s])[0]

  def _decode(self, ids: Iterable[int]) -> str:
    return self.wrapped.decode(ids)

  def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
    return self.encode_rows(s[None]).values

  def encode_rows(self, text_N: tf.Tensor) -> tf.RaggedTensor:
    """Returns the ids of many texts at once, int32 [N, T], without EOS tokens."""
    wrapped = self.wrapped
    if not isinstance(wrapped, (vocabularies.SentencePieceVocabulary, vocabularies.ByteVocabulary)):
      return self._encode_by_python(text_N)
    if wrapped.lowercase:
      text_N = tf.strings.lower(text_N, encoding="utf-8")
    if isinstance(wrapped, vocabularies.ByteVocabulary):
      ids = tf.cast(tf.io.decode_raw(tf.strings.reduce_join(text_N), tf.uint8), tf.int32) + 3
      return tf.RaggedTensor.from_row_lengths(ids, tf.strings.length(text_N))
    return tf_text.SentencepieceTokenizer(model=wrapped.model_bytes).tokenize(text_N)

  def _encode_by_python(self, text_N: tf.Tensor) -> tf.RaggedTensor:
    def tokenize(texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
      rows = self.wrapped.tokenize([text.decode("utf-8") for text in texts])
      total = sum(map(len, rows))
      ids = np.fromiter(itertools.chain.from_iterable(rows), np.int32, total)
      return ids, np.fromiter(map(len, rows), np.int32, len(rows))

    ids, sizes_N = tf.numpy_function(tokenize, [text_N], (tf.int32, tf.int32), stateful=False)
    return tf.RaggedTensor.from_row_lengths(
      tf.ensure_shape(ids, [None]), tf.ensure_shape(sizes_N, [None])
    )

  def _decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
    return tf.py_function(lambda x: self.wrapped.decode(x.numpy().tolist()), [ids], tf.string)

  def __eq__(self, other: object) -> bool:
    return isinstance(other, SeqioVocabulary) and self.wrapped == other.wrapped

  def __hash__(self) -> int:
    return hash(self.wrapped)

  def __str__(self) -> str:
    return f"SeqioVocabulary({self.wrapped})"
