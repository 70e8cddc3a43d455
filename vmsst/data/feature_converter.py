"""Converts task examples to the inputs of a sentence encoder in training and evaluation."""

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from vmsst import errors
from vmsst.data.features import TEACHER_SIDES

_TOKENS = seqio.FeatureConverter.FeatureSpec(dtype=tf.int32)
# The argument of `bitext.files` for each feature that not all data has.
_ARGUMENTS = {"negatives": "negatives", **dict.fromkeys(TEACHER_SIDES, "teacher")}
_VECTOR = seqio.FeatureConverter.FeatureSpec(dtype=tf.float32)


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
    """Takes the arguments of seqio.FeatureConverter.

    Raises:
      InputError: `pack` is set.
    """
    if pack:
      raise errors.InputError(
        "sentences cannot be packed, because every row has one embedding; bind "
        "`train/utils.DatasetConfig.pack = False` and `train_eval/utils.DatasetConfig.pack = False`"
      )
    # Padding gives every row its length; checking it again would cost as much.
    super().__init__(
      pack=False,
      use_custom_packing_ops=use_custom_packing_ops,
      **{"apply_length_check": False, **options},
    )

  def __call__(
    self, ds: tf.data.Dataset, task_feature_lengths: Mapping[str, Any]
  ) -> tf.data.Dataset:
    """Returns the features that have a length, padded to it, and drops all others.

    Raises:
      InputError: a length is given for an unknown or missing feature, or is wrong, or `inputs` has
        no length.
    """
    unknown = set(task_feature_lengths) - set(self.TASK_FEATURES) - set(self._passthrough_features)
    if unknown or "inputs" not in task_feature_lengths:
      raise errors.InputError(
        f"task_feature_lengths has {sorted(task_feature_lengths)}; it needs 'inputs' and may have "
        f"{sorted(set(self.TASK_FEATURES) - {'inputs'})}"
      )
    for name in task_feature_lengths:
      if name in self.TASK_FEATURES:
        self._check(ds, name, task_feature_lengths[name])
    narrowed = copy.copy(self)
    narrowed.TASK_FEATURES = {
      name: spec for name, spec in self.TASK_FEATURES.items() if name in task_feature_lengths
    }
    narrowed.MODEL_FEATURES = narrowed.TASK_FEATURES
    return super(BitextFeatureConverter, narrowed).__call__(ds, task_feature_lengths)

  def _check(self, ds: tf.data.Dataset, name: str, length: Any) -> None:
    """Raises InputError if the data does not have a feature, or its length is wrong."""
    shape = ds.element_spec[name].shape if name in ds.element_spec else None
    if shape is None:
      argument = _ARGUMENTS.get(name)
      raise errors.InputError(
        f"task_feature_lengths has {name!r}, but the data only has {sorted(ds.element_spec)}; "
        + (f"bind bitext.files.{argument}" if argument else "remove it")
      )
    rank = self.TASK_FEATURES[name].rank
    if np.size(length) != rank:
      wanted = "(number of texts, length of each)" if rank == 2 else "one number"
      raise errors.InputError(f"task_feature_lengths[{name!r}] is {length}; set it to {wanted}")
    if name in TEACHER_SIDES and shape[0] != length:
      raise errors.InputError(
        f"task_feature_lengths[{name!r}] is {length}; set it to {shape[0]}, the dimension of the "
        "teacher's vectors"
      )

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

    def pad(row: Mapping[str, tf.Tensor]) -> Mapping[str, tf.Tensor]:
      return {name: _padded(row[name], task_feature_lengths[name]) for name in kept}

    return ds.map(pad)

  def get_model_feature_lengths(self, task_feature_lengths: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the lengths of the task, unchanged."""
    return task_feature_lengths


def _padded(values: tf.Tensor, length: Any) -> tf.Tensor:
  lengths = np.atleast_1d(length).tolist()
  values = values[tuple(slice(0, length) for length in lengths)]
  rest = values.shape.rank - len(lengths)
  missing = tf.constant(lengths) - tf.shape(values)[: len(lengths)]
  paddings = tf.pad(missing[:, None], [[0, rest], [1, 0]])
  return tf.ensure_shape(tf.pad(values, paddings), [*lengths, *values.shape[len(lengths) :]])
