"""From task examples to what a sentence encoder is trained and evaluated on."""

import copy
from collections.abc import Mapping

import seqio
import tensorflow as tf

from vmsst import errors

_TOKENS = seqio.FeatureConverter.FeatureSpec(dtype=tf.int32)


class BitextFeatureConverter(seqio.FeatureConverter):
  """Pads every feature to its length; model features are named as task features are.

  Serves pairs and single texts alike: the features of a call are the keys of its
  `task_feature_lengths`, so that a task of `inputs` alone (evaluation) works.
  """

  TASK_FEATURES: Mapping[str, seqio.FeatureConverter.FeatureSpec] = {
    "inputs": _TOKENS,
    "targets": _TOKENS,
    "input_language": _TOKENS,
    "target_language": _TOKENS,
  }
  MODEL_FEATURES = TASK_FEATURES
  PACKING_FEATURE_DTYPES = None

  def __init__(self, pack: bool = False, use_custom_packing_ops: bool = False, **options):
    """Takes the arguments of seqio.FeatureConverter.

    Raises:
      InputError: packing is asked for.
    """
    if pack:
      raise errors.InputError(
        "sentences cannot be packed: every row is one sentence with one embedding; bind "
        "`train/utils.DatasetConfig.pack = False` and `train_eval/utils.DatasetConfig.pack = False`"
      )
    # Padding cuts and fills every row to its length: checking each of them again costs as much.
    super().__init__(
      pack=False,
      use_custom_packing_ops=use_custom_packing_ops,
      **{"apply_length_check": False, **options},
    )

  def __call__(
    self, ds: tf.data.Dataset, task_feature_lengths: Mapping[str, int]
  ) -> tf.data.Dataset:
    """Pads the features that have a length, and drops every other.

    Raises:
      InputError: a length is given for a feature that does not exist, or none for `inputs`.
    """
    unknown = set(task_feature_lengths) - set(self.TASK_FEATURES) - set(self._passthrough_features)
    if unknown or "inputs" not in task_feature_lengths:
      raise errors.InputError(
        f"task_feature_lengths has {sorted(task_feature_lengths)}: it needs 'inputs' and may have "
        f"{sorted(set(self.TASK_FEATURES) - {'inputs'})}"
      )
    narrowed = copy.copy(self)
    narrowed.TASK_FEATURES = {
      name: spec for name, spec in self.TASK_FEATURES.items() if name in task_feature_lengths
    }
    narrowed.MODEL_FEATURES = narrowed.TASK_FEATURES
    return super(BitextFeatureConverter, narrowed).__call__(ds, task_feature_lengths)

  def _convert_features(
    self, ds: tf.data.Dataset, task_feature_lengths: Mapping[str, int]
  ) -> tf.data.Dataset:
    kept = {**self.TASK_FEATURES, **self._passthrough_features}
    spec = ds.element_spec
    if set(spec) == set(kept) and all(spec[x].shape[0] == task_feature_lengths[x] for x in kept):
      return ds  # Padded already: a step over every row would cost more than all before it.

    def pad(row: Mapping[str, tf.Tensor]) -> Mapping[str, tf.Tensor]:
      return {name: _padded(row[name], task_feature_lengths[name]) for name in kept}

    return ds.map(pad)

  def get_model_feature_lengths(self, task_feature_lengths: Mapping[str, int]) -> Mapping[str, int]:
    """The task's lengths, unchanged."""
    return task_feature_lengths


def _padded(values: tf.Tensor, length: int) -> tf.Tensor:
  values = values[:length]
  padded = tf.pad(values, [[0, length - tf.shape(values)[0]]] + [[0, 0]] * (values.shape.rank - 1))
  return tf.ensure_shape(padded, [length, *values.shape[1:]])
