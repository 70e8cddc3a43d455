"""Small steps from text to token ids, and the seqio side of a vocabulary.

Texts that fit in memory are tokenised once, when they are read (`sources.InMemorySource`); the
steps here serve texts that are streamed, and give the same ids.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf
import tensorflow_text as tf_text

from vmsst import hugging_face_vocabulary, languages, preprocessing, vocabularies

# The two texts of a pair, and what tells their languages.
SIDES = {"inputs": "input_language", "targets": "target_language"}
# A teacher's vectors of them, where there are any.
TEACHER_SIDES = ("teacher_inputs", "teacher_targets")
# What a pair may have beside its sides and languages: wrong translations of its source, and a
# teacher's vectors of its sides. Data leaves out those that no length is given for.
EXTRA_FEATURES = ("negatives", *TEACHER_SIDES)
# Rows whose words are split at once: Juman++ starts anew for each of these.
SPLIT_ROWS = 256
# Rows that are turned round at once.
_ROWS = 64
_LANGUAGES = {language.index: language for language in languages.LANGUAGES}


class SeqioVocabulary(seqio.Vocabulary):
  """A `vmsst.vocabularies` vocabulary as seqio wants it, with the same ids.

  It is told no language: what a vocabulary that splits text into words is given here is split
  already, by `split_words`.

  seqio's own class reports -1 as the end mark of a model without one, which its preprocessors then
  append; here it is None.
  """

  def __init__(
    self,
    vocabulary: vocabularies.SentencePieceVocabulary
    | vocabularies.ByteVocabulary
    | hugging_face_vocabulary.HuggingFaceVocabulary,
  ):
    super().__init__()
    self.wrapped = vocabulary
    self._of_words = vocabulary
    if isinstance(vocabulary, vocabularies.SentencePieceVocabulary):
      self._of_words = dataclasses.replace(vocabulary, pretokenize=False)

  @property
  def bos_id(self) -> None:
    """None: no text starts with a mark."""

  @property
  def eos_id(self) -> int | None:
    """Id of the end mark, or None."""
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
    """Ids of many texts at once, int32 [N, T], without end marks."""
    if isinstance(self.wrapped, hugging_face_vocabulary.HuggingFaceVocabulary):
      return self._encode_by_python(text_N)
    if self.wrapped.lowercase:
      text_N = tf.strings.lower(text_N, encoding="utf-8")
    if isinstance(self.wrapped, vocabularies.ByteVocabulary):
      ids = tf.cast(tf.io.decode_raw(tf.strings.reduce_join(text_N), tf.uint8), tf.int32) + 3
      return tf.RaggedTensor.from_row_lengths(ids, tf.strings.length(text_N))
    return tf_text.SentencepieceTokenizer(model=self.wrapped.model_bytes).tokenize(text_N)

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


def text_feature(vocabulary: vocabularies.Vocabulary) -> seqio.Feature:
  """The seqio feature of token ids; an end mark is added where the vocabulary has one."""
  return seqio.Feature(vocabulary.to_seqio(), add_eos=vocabulary.eos_id is not None, dtype=tf.int32)


def pair_features(vocabulary: vocabularies.Vocabulary) -> Mapping[str, seqio.Feature]:
  """The seqio features of a pair: two texts and two language ids."""
  size = 1 + max(language.index for language in languages.LANGUAGES)
  language = seqio.Feature(seqio.PassThroughVocabulary(size=size), add_eos=False, dtype=tf.int32)
  text = text_feature(vocabulary)
  return {"inputs": text, "targets": text, "input_language": language, "target_language": language}


def wanted(names: Iterable[str], lengths: Mapping[str, Any] | None) -> list[str]:
  """The names without those of extra features that have no length among those given."""
  return [x for x in names if lengths is None or x not in EXTRA_FEATURES or lengths.get(x)]


def require_splitter(
  vocabulary: vocabularies.Vocabulary, pair: Sequence[languages.Language]
) -> None:
  """Raises InputError where what splits text in a language of `pair` is not installed."""
  for language in pair:
    vocabulary.tokenize([""], language)


def tokenize(
  dataset: tf.data.Dataset,
  vocabulary: vocabularies.Vocabulary,
  pair: Sequence[languages.Language] = (),
) -> tf.data.Dataset:
  """Turns the strings under `inputs` and `targets` into int32 token ids, without end marks.

  This is for rows that are kept; `streamed_tasks.StreamedTask` is faster for those of training.

  Args:
    dataset: Rows of strings and language ids.
    vocabulary: What tokenises the strings. Where it splits text into words first, that is done to
      those under `negatives` too.
    pair: The languages of all rows, where they are the same in all.

  Raises:
    InputError: what splits text in a language of `pair` is not installed. For other languages,
      TensorFlow raises an error of its own that quotes this one, when the first row is asked for.
  """
  require_splitter(vocabulary, pair)
  encoder = vocabulary.to_seqio()
  if getattr(vocabulary, "pretokenize", False):
    dataset = split_words(dataset)
  return dataset.map(
    lambda row: {**row, **{side: encoder.encode_tf(row[side]) for side in SIDES}},
    num_parallel_calls=tf.data.AUTOTUNE,
  )


def split_words(dataset: tf.data.Dataset) -> tf.data.Dataset:
  """Splits the strings of all rows into words by the rules of their languages, in order."""
  return dataset.batch(SPLIT_ROWS).map(split_columns, tf.data.AUTOTUNE).unbatch()


def split_columns(columns: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
  """Splits the strings of many rows into words by the rules of their languages.

  The step runs Python code, but code without state: the place of an iterator behind it can be
  saved.
  """

  def split(text_BK: np.ndarray, language_B1: np.ndarray) -> np.ndarray:
    texts = [text.decode("utf-8") for text in text_BK.ravel()]
    rows = np.repeat(language_B1[:, 0], text_BK.size // len(text_BK)).tolist()
    words = preprocessing.split_words(texts, [_LANGUAGES[row] for row in rows])
    return np.array([text.encode("utf-8") for text in words], "O").reshape(text_BK.shape)

  found = dict(columns)
  for name, language in {**SIDES, "negatives": "target_language"}.items():
    if name in columns:
      sides = [columns[name], columns[language]]
      words = tf.numpy_function(split, sides, tf.string, stateful=False)
      found[name] = tf.ensure_shape(words, columns[name].shape)
  return found


def both_directions(dataset: tf.data.Dataset) -> tf.data.Dataset:
  """Follows every pair with the same pair turned round; token ids are padded with 0."""

  def two(columns: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    straight = dict(columns)
    if straight["inputs"].shape.rank == 2:
      widths = [tf.shape(straight[side])[1] for side in SIDES]
      more = tf.reduce_max(widths) - widths
      for side, missing in zip(SIDES, tf.unstack(more), strict=True):
        straight[side] = tf.pad(straight[side], [[0, 0], [0, missing]])
    turned = swap(straight)
    found = {}
    for name, column in straight.items():
      both = tf.stack([column, turned[name]], axis=1)
      both = tf.reshape(both, tf.concat([[-1], tf.shape(column)[1:]], axis=0))
      found[name] = tf.ensure_shape(both, [None, *spec[name].shape])
    return found

  spec = dataset.element_spec
  return dataset.padded_batch(_ROWS).map(two).unbatch()


def swap(row: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
  """The same pair with its sides exchanged, a teacher's vectors of them too."""
  inputs, targets = TEACHER_SIDES
  teacher = {inputs: row[targets], targets: row[inputs]} if inputs in row else {}
  return {
    **row,
    "inputs": row["targets"],
    "targets": row["inputs"],
    "input_language": row["target_language"],
    "target_language": row["input_language"],
    **teacher,
  }
