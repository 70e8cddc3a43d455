import numpy as np
import pytest
import tensorflow as tf

from vmsst import errors
from vmsst.data.feature_converter import BitextFeatureConverter

ROW = {
  "inputs": [5, 6, 1],
  "targets": [7, 1],
  "input_language": [2],
  "target_language": [3],
  "id": 4,
}
LENGTHS = {"inputs": 5, "targets": 2, "input_language": 1, "target_language": 1}


def _dataset(**row):
  columns = {name: tf.constant([value], tf.int32) for name, value in row.items()}
  return tf.data.Dataset.from_tensor_slices(columns)


def test_pairs_are_padded_under_their_own_names():
  dataset = BitextFeatureConverter(pack=False, use_custom_packing_ops=False)(
    _dataset(**ROW), LENGTHS
  )
  row = next(dataset.as_numpy_iterator())
  assert {name: value.tolist() for name, value in row.items()} == {
    "inputs": [5, 6, 1, 0, 0],
    "targets": [7, 1],
    "input_language": [2],
    "target_language": [3],
  }
  assert {value.dtype for value in row.values()} == {np.dtype("int32")}
  assert dataset.element_spec["inputs"].shape == [5]


def test_packing_is_refused_with_what_to_bind():
  with pytest.raises(errors.InputError, match=r"train_eval/utils[.]DatasetConfig[.]pack = False"):
    BitextFeatureConverter(pack=True)


def test_wrong_features_and_types_are_refused():
  for lengths in ({"inputs": 3, "input": 3}, {"targets": 3}):
    with pytest.raises(errors.InputError, match="needs 'inputs'"):
      BitextFeatureConverter()(_dataset(**ROW), lengths)
  wide = tf.data.Dataset.from_tensor_slices({"inputs": tf.constant([[1, 2]], tf.int64)})
  with pytest.raises(ValueError, match="Got int64, expected int32"):
    BitextFeatureConverter()(wide, {"inputs": 3})
