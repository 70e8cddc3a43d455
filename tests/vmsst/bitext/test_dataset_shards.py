"""Files of datasets as TensorFlow writes them, read without it."""

import opus_dataset
import pytest

from vmsst import errors, languages
from vmsst.bitext import dataset_shards, readers

PAIRS = {
  ("de", "en"): [("Häuser 1", "houses 1"), ("x" * 300, "long"), ("", "empty")],
  ("zh_TW", "es"): [("房子", "casa"), ("二", "dos")],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return opus_dataset.write(tmp_path_factory.mktemp("tfds"), "mine", PAIRS, validation=1)


def test_a_shard_is_a_bitext(folder):
  (bitext,) = readers.find_bitext(f"{folder}/*-train_deu_eng.tfrecord*")
  assert (bitext.source, bitext.target) == (languages.language("de"), languages.language("en"))
  assert list(readers.read_pairs(bitext)) == PAIRS["de", "en"][1:]
  (bitext,) = readers.find_bitext(f"{folder}/*-validation_cmnHant_spa.tfrecord*")
  assert (bitext.source, bitext.target) == (languages.language("zh_TW"), languages.language("es"))
  assert list(readers.read_pairs(bitext)) == PAIRS["zh_TW", "es"][:1]
  (example,) = dataset_shards.read_examples(bitext.paths[0])
  assert example == {
    "source": "房子",
    "target": "casa",
    "source_language": "cmnHant",
    "target_language": "spa",
    "corpus": "Corpus",
  }


def test_languages_are_given_if_the_name_has_none(folder, tmp_path):
  path = tmp_path / "mine.tfrecord"
  path.write_bytes(next(folder.glob("*-train_deu_eng*")).read_bytes())
  with pytest.raises(errors.InputError, match=r"mine.tfrecord: its name has no pair of language"):
    readers.find_bitext(str(path))
  (bitext,) = readers.find_bitext(str(path), ("de", "en"))
  assert list(readers.read_pairs(bitext)) == PAIRS["de", "en"][1:]


def test_a_damaged_shard_is_named(folder, tmp_path):
  content = next(folder.glob("*-train_deu_eng*")).read_bytes()
  path = tmp_path / "x-train_deu_eng.tfrecord"
  outcomes = set()
  for size in range(1, len(content)):
    path.write_bytes(content[:size])
    outcomes.add(outcome(path))
  # Cut after the first record, the file is whole; TensorFlow's counts find it.
  truncated = "is truncated; copy or build the file again"
  assert outcomes == {1, f"record 1 {truncated}", f"record 2 {truncated}"}
  outcomes = []
  for place in range(12, 120, 3):  # lengths, keys and texts
    path.write_bytes(content[:place] + b"\xff" + content[place + 1 :])
    outcomes.append(outcome(path))
  assert outcomes.count("record 1 is not an example of texts; build it again") > 20


def outcome(path):
  """Returns the number of examples in a file, or the error without the name of the file."""
  try:
    return len(list(dataset_shards.read_examples(str(path))))
  except errors.InputError as error:
    return str(error).removeprefix(f"{path}: ")


def test_an_example_without_a_side_is_named(tmp_path):
  import tensorflow as tf

  def example(**features):
    values = {
      name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[text.encode()]))
      for name, text in features.items()
    }
    return tf.train.Example(features=tf.train.Features(feature=values)).SerializeToString()

  path = str(tmp_path / "x-train_deu_eng.tfrecord")
  with tf.io.TFRecordWriter(path) as writer:
    writer.write(example(source="a", target="b"))
    writer.write(example(source="a"))
  (bitext,) = readers.find_bitext(path)
  with pytest.raises(errors.InputError, match=r"tfrecord: record 2 has no target; use a dataset"):
    list(readers.read_pairs(bitext))
