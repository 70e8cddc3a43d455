"""Small steps from text to token ids.

Texts that fit in memory are tokenized once, when they are read (`sources.InMemorySource`); the
steps here serve texts that are streamed, and give the same ids.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from vmsst import languages
from vmsst.bitext.tokenized_pairs import SIDES, TEACHER_SIDES
from vmsst.tasks import seqio_vocabulary
from vmsst.text import vocabularies, word_splitting

# What a pair may have beside its sides and languages: wrong translations of its source, and a
# teacher's vectors of its sides. Data leaves out those that no length is given for.
EXTRA_FEATURES = ("negatives", *TEACHER_SIDES)
# Rows whose words are split at once: Juman++ starts anew for each of these.
SPLIT_ROWS = 256
# Rows that are turned round at once.
_ROWS = 64
_LANGUAGES = {language.index: language for language in languages.LANGUAGES}


def text_feature(vocabulary: vocabularies.Vocabulary) -> seqio.Feature:
  """The seqio feature of token ids; an end mark is added where the vocabulary has one."""
  return seqio.Feature(
    seqio_vocabulary.SeqioVocabulary(vocabulary),
    add_eos=vocabulary.eos_id is not None,
    dtype=tf.int32,
  )


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
    vocabulary: What tokenizes the strings. Where it splits text into words first, that is done to
      those under `negatives` too.
    pair: The languages of all rows, where they are the same in all.

  Raises:
    InputError: what splits text in a language of `pair` is not installed. For other languages,
      TensorFlow raises an error of its own that quotes this one, when the first row is asked for.
  """
  require_splitter(vocabulary, pair)
  encoder = seqio_vocabulary.SeqioVocabulary(vocabulary)
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
    words = word_splitting.split_words(texts, [_LANGUAGES[row] for row in rows])
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
