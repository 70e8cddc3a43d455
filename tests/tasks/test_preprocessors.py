import seqio
import tensorflow as tf

from vmsst.languages import LANGUAGES
from vmsst.tasks import preprocessors
from vmsst.text import vocabularies

BYTES = vocabularies.ByteVocabulary(lowercase=True)


def _dataset(*pairs):
  return tf.data.Dataset.from_tensor_slices(
    {
      "inputs": [source for source, _ in pairs],
      "targets": [target for _, target in pairs],
      "input_language": [[5]] * len(pairs),
      "target_language": [[6]] * len(pairs),
    }
  )


def test_tokenize_gives_lowercase_letters_and_no_eos():
  dataset = preprocessors.tokenize(_dataset(("Ab", "ÇA")), BYTES)
  row = next(dataset.as_numpy_iterator())
  assert [row["inputs"].tolist(), row["targets"].tolist()] == BYTES.tokenize(["ab", "ça"])
  assert dataset.element_spec["inputs"].dtype == tf.int32


def test_both_directions_follow_each_other():
  rows = list(preprocessors.both_directions(_dataset(("a", "b"), ("c", "d"))).as_numpy_iterator())
  assert [(row["inputs"], row["targets"]) for row in rows] == [
    (b"a", b"b"),
    (b"b", b"a"),
    (b"c", b"d"),
    (b"d", b"c"),
  ]
  assert [int(row["input_language"][0]) for row in rows] == [5, 6, 5, 6]


def test_features_end_with_eos_only_if_the_vocabulary_has_one(data_root):
  path = str(data_root / "vocab" / "ems_62languages_bpe_60000.model")
  without_end = preprocessors.pair_features(vocabularies.SentencePieceVocabulary(path))
  assert not without_end["inputs"].add_eos
  features = preprocessors.pair_features(BYTES)
  assert features["inputs"].add_eos
  assert not features["input_language"].add_eos
  assert features["input_language"].vocabulary.vocab_size > len(LANGUAGES)
  ended = seqio.preprocessors.append_eos_after_trim(
    preprocessors.tokenize(_dataset(("abcdef", "b")), BYTES),
    output_features=features,
    sequence_length={"inputs": 4, "targets": 4, "input_language": 1, "target_language": 1},
  )
  row = next(ended.as_numpy_iterator())
  assert row["inputs"].tolist() == BYTES.encode(["abc"], 9)[0]
  assert row["targets"].tolist() == BYTES.encode(["b"], 9)[0]
