"""The features of pairs and texts: texts, language ids, hard negatives and teacher vectors."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from vmsst import errors, languages
from vmsst.data import readers, seqio_vocabulary, teacher_vectors, vocabularies, word_splitting

SIDES = {"inputs": "input_language", "targets": "target_language"}
"""The two texts of a pair, and their language ids."""
TEACHER_SIDES = ("teacher_inputs", "teacher_targets")
"""A teacher's vectors of the two texts."""
EXTRA_FEATURES = ("negatives", *TEACHER_SIDES)
"""Features that not all data has, and that data leaves out if they have no length: hard negatives
of a pair's source, and a teacher's vectors of its sides."""
# Rows whose words are split together: Juman++ starts once for each batch.
SPLIT_ROWS = 256
_LANGUAGES = {language.index: language for language in languages.LANGUAGES}


def text_feature(vocabulary: vocabularies.Vocabulary) -> seqio.Feature:
  """Returns the seqio feature of token ids, with an EOS token if the vocabulary has one."""
  return seqio.Feature(
    seqio_vocabulary.SeqioVocabulary(vocabulary),
    add_eos=vocabulary.eos_id is not None,
    dtype=tf.int32,
  )


def pair_features(
  vocabulary: vocabularies.Vocabulary,
  *,
  negatives: int = 0,
  teacher: tuple[str | None, Sequence[readers.BitextFile]] = (None, ()),
) -> Mapping[str, seqio.Feature]:
  """Returns the seqio features of a pair: two texts, two language ids, and extra features.

  Args:
    vocabulary: Tokenizes the texts.
    negatives: Number of hard negatives of a pair.
    teacher: Folder of a teacher's vectors, from `vmsst data embed`, or None; and the files.

  Raises:
    InputError: vectors of a file are missing, or have several dimensions.
  """
  size = 1 + max(language.index for language in languages.LANGUAGES)
  language = seqio.Feature(seqio.PassThroughVocabulary(size=size), add_eos=False, dtype=tf.int32)
  text = text_feature(vocabulary)
  features = {
    "inputs": text,
    "targets": text,
    "input_language": language,
    "target_language": language,
  }
  if negatives:
    features["negatives"] = seqio.Feature(
      text.vocabulary, add_eos=False, required=False, dtype=tf.int32, rank=2
    )
  folder, bitexts = teacher
  if folder:
    paths = {}
    for bitext in bitexts:
      width = teacher_vectors.open_vectors(folder, bitext).shape[2]
      paths[width] = teacher_vectors.vectors_path(folder, bitext)
    if len(paths) > 1:
      widths = ", ".join(f"{width} ({path})" for width, path in sorted(paths.items()))
      raise errors.InputError(
        f"teacher vectors have several dimensions: {widths}; embed all files with one encoder"
      )
    vector = seqio.ContinuousFeature(required=False, dtype=tf.float32)
    features |= dict.fromkeys(TEACHER_SIDES, vector)
  return features


def language_columns(
  pair: Sequence[languages.Language], size: int | tf.Tensor
) -> dict[str, tf.Tensor]:
  """Returns the language ids of `size` pairs of two languages, int32 [B, 1] each."""
  return {
    name: tf.fill([size, 1], tf.constant(language.index, tf.int32))
    for name, language in zip(SIDES.values(), pair, strict=True)
  }


def teacher_columns(record_B: tf.Tensor, shape: Sequence[int]) -> dict[str, tf.Tensor]:
  """Returns a teacher's vectors of both sides, float32 [B, S] each, from serialized [B, 2, S]."""
  vector_B2S = tf.reshape(tf.io.decode_raw(record_B, tf.float32), [-1, *shape])
  return dict(zip(TEACHER_SIDES, tf.unstack(vector_B2S, axis=1), strict=True))


def wanted(names: Iterable[str], lengths: Mapping[str, Any] | None) -> list[str]:
  """Returns the names without those of extra features without a length."""
  return [x for x in names if lengths is None or x not in EXTRA_FEATURES or lengths.get(x)]


def split_columns(columns: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
  """Returns columns whose strings are split into words by the rules of their languages.

  The Python code of this step has no state, so that iterators after it can be saved.
  """

  def split(text_BK: np.ndarray, language_B1: np.ndarray) -> np.ndarray:
    texts = [text.decode("utf-8") for text in text_BK.ravel()]
    rows = np.repeat(language_B1[:, 0], text_BK.size // len(text_BK)).tolist()
    words = word_splitting.split_words(texts, [_LANGUAGES[row] for row in rows])
    return np.array([text.encode("utf-8") for text in words], "O").reshape(text_BK.shape)

  split_texts = dict(columns)
  for name, language in {**SIDES, "negatives": "target_language"}.items():
    if name in columns:
      sides = [columns[name], columns[language]]
      words = tf.numpy_function(split, sides, tf.string, stateful=False)
      split_texts[name] = tf.ensure_shape(words, columns[name].shape)
  return split_texts
