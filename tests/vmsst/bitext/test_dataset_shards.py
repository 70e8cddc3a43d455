"""Files of datasets, against TensorFlow and TFDS."""

import pathlib

import opus_dataset
import pytest

from vmsst import errors, languages
from vmsst.bitext import dataset_shards, readers

PAIRS = {
  ("de", "en"): [("Häuser 1", "houses 1"), ("x" * 300, "long"), ("", "empty")],
  ("zh_TW", "es"): [("房子", "casa"), ("二", "dos")],
}
RECORDS = [f"record {i} ".encode() * (i % 9) for i in range(500)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return opus_dataset.write(tmp_path_factory.mktemp("tfds"), "mine", PAIRS, validation=1)


def test_a_shard_is_a_bitext(folder):
  (bitext,) = readers.find_bitext(f"{folder}/*-train_deu_eng.tfrecord*")
  assert (bitext.source, bitext.target) == (languages.language("de"), languages.language("en"))
  assert list(readers.read_pairs(bitext)) == PAIRS["de", "en"][1:]
  (bitext,) = readers.find_bitext(f"{folder}/*-validation_cmnHant_spa.tfrecord*")
  assert (bitext.source, bitext.target) == (languages.language("zh_TW"), languages.language("es"))
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


def test_a_damaged_tfrecord_is_named(folder, tmp_path):
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


def test_tensorflow_reads_what_is_written(tmp_path):
  import tensorflow as tf

  examples = dataset_shards.Examples("deu", "eng")
  texts = [("ß" * (i * 17 % 300), "x" * (i * i % 20_000)) for i in range(50)]
  records = [examples.example(b"Europarl", s.encode(), t.encode()) for s, t in texts]
  path = tmp_path / "x-train_deu_eng.tfrecord"
  written = dataset_shards.write(path, iter(records), "tfrecord")
  assert written == (50, sum(map(len, records)))
  dataset = tf.data.TFRecordDataset(str(path), buffer_size=1 << 20)  # verifies checksums
  for record, (source, target) in zip(dataset.as_numpy_iterator(), texts, strict=True):
    features = tf.train.Example.FromString(record).features.feature
    found = {name: feature.bytes_list.value[0].decode() for name, feature in features.items()}
    codes = {"source_language": "deu", "target_language": "eng"}
    assert found == {"source": source, "target": target, "corpus": "Europarl", **codes}
  one_sided = tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"a"]))
  example = tf.train.Example(features=tf.train.Features(feature={"source": one_sided}))
  dataset_shards.write(path, [records[0], example.SerializeToString()], "tfrecord")
  with pytest.raises(errors.InputError, match=r"tfrecord: record 2 has no target; use a dataset"):
    list(readers.read_pairs(*readers.find_bitext(str(path))))


def test_array_records_are_read_in_any_order_and_any_damage_is_named(tmp_path):
  path = tmp_path / "x.array_record"
  written = dataset_shards.write(path, iter(RECORDS), "array_record")
  assert written == (500, sum(map(len, RECORDS)))
  found = dataset_shards.ArrayRecords(path, 500)
  assert len(found) == 500
  assert found.read([17, 3, 499, 3]) == [RECORDS[i] for i in (17, 3, 499, 3)]
  assert found.read([]) == []
  whole = path.read_bytes()
  dataset_shards.write(tmp_path / "y", RECORDS, "array_record")
  assert (tmp_path / "y").read_bytes() == whole
  messages = set()
  for place in range(0, len(whole), 4001):
    path.write_bytes(whole[:place] + bytes(64) + whole[place + 64 :])
    try:
      read = dataset_shards.ArrayRecords(path, 500).read(range(500))
      assert read == RECORDS  # padding
    except errors.InputError as error:
      messages.add(str(error)[: len(str(path)) + 12])
  assert messages == {f"{path}: Corrupted ", f"{path} is truncate"}
  path.write_bytes(whole)
  for given, count, message in (
    (path, 501, "has 500 records, but its dataset lists 501"),
    (pathlib.Path("/nowhere/x"), None, "no such file"),
    ("gs://bucket/x", None, "cannot be in an object store; give a local path"),
  ):
    with pytest.raises(errors.InputError, match=message):
      dataset_shards.ArrayRecords(given, count)


@pytest.mark.parametrize("file_format", dataset_shards.FORMATS)
def test_a_full_disk_is_an_error(file_format):
  with pytest.raises(OSError, match=r"/dev/full|No space left"):
    dataset_shards.write("/dev/full", RECORDS * 100, file_format)
