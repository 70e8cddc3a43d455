"""SeqIO features of pairs and texts: texts, language ids, hard negatives and teacher vectors.

`SeqioVocabulary` makes a vocabulary of `vmsst.data` a seqio vocabulary with the same ids;
`BitextFeatureConverter` converts task examples to the inputs of a sentence encoder in training and
evaluation.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from vmsst import errors, languages
from vmsst.data import vocabularies
from vmsst.data.tables import TEACHER_SIDES

EXTRA_FEATURES = ("negatives", *TEACHER_SIDES)
"""Features that not all data has, and that data leaves out if they have no length: hard negatives
of a pair's source, and a teacher's vectors of its sides."""
_TOKENS = seqio.FeatureConverter.FeatureSpec(dtype=tf.int32)
# The argument of `bitext.files` for each feature that not all data has.
_ARGUMENTS = {"negatives": "negatives", **dict.fromkeys(TEACHER_SIDES, "teacher")}
_VECTOR = seqio.FeatureConverter.FeatureSpec(dtype=tf.float32)


class SeqioVocabulary(seqio.Vocabulary):
  """A `vmsst.data.vocabularies` vocabulary as a seqio vocabulary, with the same ids.

  The EOS token of a model without one is None; in seqio's class it is -1, which its preprocessors
  would append.
  """

  def __init__(self, vocabulary: vocabularies.Vocabulary):
    super().__init__()
    self.wrapped = vocabulary

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
    return self.wrapped.tokenize([s])[0]

  def _decode(self, ids: Iterable[int]) -> str:
    return self.wrapped.decode(ids)

  def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
    def encode(text: tf.Tensor) -> np.ndarray:
      return np.array(self._encode(text.numpy().decode()), np.int32)

    return tf.ensure_shape(tf.py_function(encode, [s], tf.int32), [None])

  def _decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
    return tf.py_function(lambda x: self._decode(x.numpy().tolist()), [ids], tf.string)

  def __eq__(self, other: object) -> bool:
    return isinstance(other, SeqioVocabulary) and self.wrapped == other.wrapped

  def __hash__(self) -> int:
    return hash(self.wrapped)


def text_feature(vocabulary: vocabularies.Vocabulary) -> seqio.Feature:
  """Returns the seqio feature of token ids, with an EOS token if the vocabulary has one."""
  return seqio.Feature(
    SeqioVocabulary(vocabulary),
    add_eos=vocabulary.eos_id is not None,
    dtype=tf.int32,
  )


def pair_features(
  vocabulary: vocabularies.Vocabulary,
  *,
  negatives: int = 0,
  teacher: bool = False,
) -> Mapping[str, seqio.Feature]:
  """Returns the seqio features of a pair: two texts, two language ids, and extra features.

  Args:
    vocabulary: Tokenizes the texts.
    negatives: Number of hard negatives of a pair.
    teacher: Whether there are a teacher's vectors, from `vmsst data embed`.
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
  if teacher:
    vector = seqio.ContinuousFeature(required=False, dtype=tf.float32)
    features |= dict.fromkeys(TEACHER_SIDES, vector)
  return features


def check_lengths(
  shapes: Mapping[str, Sequence[int | None]],
  lengths: Mapping[str, Any],
  passed_through: Iterable[str] = (),
) -> None:
  """Raises InputError if `task_feature_lengths` do not fit the data.

  Args:
    shapes: Shape of each column of a row.
    lengths: `task_feature_lengths`; see `BitextFeatureConverter`.
    passed_through: Further columns that may have a length.
  """
  ranks = {name: spec.rank for name, spec in BitextFeatureConverter.TASK_FEATURES.items()}
  possible = {*(ranks.keys() & shapes.keys()), *passed_through}
  if "inputs" not in lengths or not possible.issuperset(lengths):
    arguments = sorted({_ARGUMENTS[name] for name in lengths if name in _ARGUMENTS})
    how = f"; bind bitext.files.{' and '.join(arguments)}" if arguments else ""
    raise errors.InputError(
      f"task_feature_lengths has {sorted(lengths)}; it needs 'inputs', and the data only has "
      f"{sorted(possible)}{how}"
    )
  for name in ranks.keys() & lengths.keys():
    label, size = f"task_feature_lengths[{name!r}]", np.size(lengths[name])
    shape = "(number of texts, length of each)" if ranks[name] == 2 else "one number"
    errors.check(size == ranks[name], label, lengths[name], shape)
    if name in TEACHER_SIDES:
      same = lengths[name] == shapes[name][0]
      errors.check(same, label, lengths[name], f"{shapes[name][0]}, as the teacher's vectors have")


class BitextFeatureConverter(seqio.FeatureConverter):
  """Pads every feature to its length; model features have the names of task features.

  The length of `negatives`, a matrix, is (number of texts, length of each text). The length of
  `teacher_inputs` and `teacher_targets` is the dimension of the vectors.

  Works for pairs and single texts: the features of a call are the keys of its
  `task_feature_lengths`, e.g. only `inputs` in evaluation.
  """

  TASK_FEATURES: Mapping[str, seqio.FeatureConverter.FeatureSpec] = {
    "inputs": _TOKENS,
    "targets": _TOKENS,
    "input_language": _TOKENS,
    "target_language": _TOKENS,
    "negatives": seqio.FeatureConverter.FeatureSpec(dtype=tf.int32, rank=2, sequence_dim=1),
    **dict.fromkeys(TEACHER_SIDES, _VECTOR),
  }
  MODEL_FEATURES = TASK_FEATURES
  PACKING_FEATURE_DTYPES = None

  def __init__(self, pack: bool = False, use_custom_packing_ops: bool = False, **options):
    """Takes the arguments of seqio.FeatureConverter, which refuses `pack`."""
    # Padding gives every row its length; checking it again would cost as much.
    super().__init__(
      pack=pack,
      use_custom_packing_ops=use_custom_packing_ops,
      **{"apply_length_check": False, **options},
    )

  def __call__(
    self, ds: tf.data.Dataset, task_feature_lengths: Mapping[str, Any]
  ) -> tf.data.Dataset:
    """Returns the features that have a length, padded to it, and drops all others.

    Raises:
      InputError: see `check_lengths`.
    """
    shapes = {name: spec.shape for name, spec in ds.element_spec.items()}
    check_lengths(shapes, task_feature_lengths, self._passthrough_features)
    narrowed = copy.copy(self)
    narrowed.TASK_FEATURES = {
      name: spec for name, spec in self.TASK_FEATURES.items() if name in task_feature_lengths
    }
    narrowed.MODEL_FEATURES = narrowed.TASK_FEATURES
    return super(BitextFeatureConverter, narrowed).__call__(ds, task_feature_lengths)

  def _convert_features(
    self, ds: tf.data.Dataset, task_feature_lengths: Mapping[str, Any]
  ) -> tf.data.Dataset:
    kept = {**self.TASK_FEATURES, **self._passthrough_features}
    spec = ds.element_spec

    def is_padded(name: str) -> bool:
      lengths = np.atleast_1d(task_feature_lengths[name]).tolist()
      return spec[name].shape[: len(lengths)].as_list() == lengths

    if set(spec) == set(kept) and all(map(is_padded, kept)):
      return ds  # Padded already; another step per row would cost more than all steps so far.

    narrow = ds.map(lambda row: {name: row[name] for name in kept})
    return seqio.trim_and_pad_dataset(narrow, task_feature_lengths)

  def get_model_feature_lengths(self, task_feature_lengths: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the lengths of the task, unchanged."""
    return task_feature_lengths
