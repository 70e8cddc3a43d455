import pytest
import tensorflow as tf

from vmsst import errors, languages
from vmsst.data import features, vocabularies
from vmsst.data.features import BitextFeatureConverter

ROW = {
  "inputs": [5, 6, 1], "targets": [7, 1], "input_language": [2], "target_language": [3], "id": 4,
}  # fmt: skip
LENGTHS = {"inputs": 5, "targets": 2, "input_language": 1, "target_language": 1}


def _dataset(dtype=tf.int32, **row):
  columns = {name: tf.constant([value], dtype) for name, value in row.items()}
  return tf.data.Dataset.from_tensor_slices(columns)


def test_features_end_with_eos_only_if_the_vocabulary_has_one(data_root):
  path = str(data_root / "vocab" / "ems_62languages_bpe_60000.model")
  without_end = features.pair_features(vocabularies.SentencePieceVocabulary(path))
  assert not without_end["inputs"].add_eos
  with_end = features.pair_features(vocabularies.ByteVocabulary())
  assert with_end["inputs"].add_eos
  assert not with_end["input_language"].add_eos
  assert with_end["input_language"].vocabulary.vocab_size > len(languages.LANGUAGES)


def test_pairs_are_padded_under_their_own_names():
  dataset = BitextFeatureConverter(pack=False, use_custom_packing_ops=False)(
    _dataset(**ROW), LENGTHS
  )
  row = next(dataset.as_numpy_iterator())
  assert {name: (value.tolist(), str(value.dtype)) for name, value in row.items()} == {
    "inputs": ([5, 6, 1, 0, 0], "int32"),
    "targets": ([7, 1], "int32"),
    "input_language": ([2], "int32"),
    "target_language": ([3], "int32"),
  }
  assert dataset.element_spec["inputs"].shape == [5]


@pytest.mark.parametrize(
  ("lengths", "message"),
  [
    ({"inputs": 3, "input": 3}, "needs 'inputs'"),
    ({"inputs": 3, "negatives": (1, 3)}, "only has .*; bind bitext.files.negatives"),
    ({"inputs": (3, 12)}, r"\['inputs'\] is \(3, 12\); set it to one number"),
    ({"inputs": 3, "teacher_inputs": 5}, r"\['teacher_inputs'\] is 5; set it to 4, as the teach"),
  ],
)
def test_lengths_that_do_not_fit_the_data_are_refused(lengths, message):
  with pytest.raises(errors.InputError, match=message):
    features.check_lengths({"inputs": [None], "teacher_inputs": [4]}, lengths)


def test_wrong_types_are_refused():
  with pytest.raises(ValueError, match="Got int64, expected int32"):
    BitextFeatureConverter()(_dataset(tf.int64, inputs=[1, 2]), {"inputs": 3})
