"""Files of datasets against TensorFlow and TFDS."""

import opus_tree
import pytest

from vmsst import errors, languages
from vmsst.data import dataset_shards, readers

TEXTS = {
  ("de", "en"): [("Häuser 1", "houses 1"), ("x" * 300, "long"), ("", "empty")],
  ("zh_TW", "es"): [("房子", "casa"), ("二", "dos")],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return opus_tree.write_dataset(tmp_path_factory.mktemp("tfds"), "mine", TEXTS, validation=1)


def test_a_shard_is_a_bitext(folder):
  (bitext,) = readers.find_bitext(f"{folder}/*-validation_cmnHant_spa.tfrecord*")
  assert (bitext.source, bitext.target) == tuple(map(languages.language, ("zh_TW", "es")))
  assert list(readers.read_pairs(bitext)) == [("房子", "casa")]
  texts = dataset_shards.Records(bitext.paths[0]).texts(0)
  assert list(texts.values()) == ["Corpus", "房子", "cmnHant", "casa", "spa"]


def test_a_damaged_tfrecord_is_named(folder, tmp_path):
  content = next(folder.glob("*-train_deu_eng*")).read_bytes()
  path = tmp_path / "x-train_deu_eng.tfrecord"

  def outcome(content):
    """Returns the number of examples in a file, or the error without the name of the file."""
    path.write_bytes(content)
    try:
      records = dataset_shards.Records(str(path))
      return len([records.texts(number) for number in range(len(records))])
    except errors.InputError as error:
      return str(error).removeprefix(f"{path}: ").partition(";")[0]

  # A file that is cut after a record is valid. The record counts of the dataset reveal the loss.
  cuts = {outcome(content[:size]) for size in range(1, len(content))}
  assert cuts == {1, "record 1 is truncated", "record 2 is truncated"}
  for position in range(12, 120, 3):  # keys and texts
    changed = content[:position] + b"\xff" + content[position + 1 :]
    assert outcome(changed).startswith("record 1 is damaged or was not written")


def test_tensorflow_reads_what_is_written(tmp_path):
  import tensorflow as tf

  examples = dataset_shards.Examples("deu", "eng")
  texts = [("ß" * (i * 17 % 300), "x" * (i * i % 20_000)) for i in range(50)]
  records = [examples.example(b"Europarl", s.encode(), t.encode()) for s, t in texts]
  path = tmp_path / "x-train_deu_eng.tfrecord"
  written = dataset_shards.write(path, iter(records))
  assert written == (50, sum(map(len, records)))
  dataset = tf.data.TFRecordDataset(str(path), buffer_size=1 << 20)  # verifies checksums
  for record, (source, target) in zip(dataset.as_numpy_iterator(), texts, strict=True):
    features = tf.train.Example.FromString(record).features.feature
    decoded = {name: feature.bytes_list.value[0].decode() for name, feature in features.items()}
    codes = {"source_language": "deu", "target_language": "eng"}
    assert decoded == {"source": source, "target": target, "corpus": "Europarl", **codes}
