import io

import tensorflow as tf

from vmsst.tasks.opus import shards


def test_checksums_are_those_of_the_standard():
  # RFC 3720, B.4, and the usual check value of CRC-32C; masked as in TensorFlow's documentation.
  plain = {b"123456789": 0xE3069283, bytes(32): 0x8A9136AA, bytes(range(32)): 0x46DD794E, b"": 0}
  expected = [(((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF for crc in plain.values()]
  written = []
  assert shards.write_tfrecord(written.append, plain) == (4, sum(map(len, plain)))
  assert [int.from_bytes(record[-4:], "little") for record in written] == expected
  assert shards.write_tfrecord(written.append, []) == (0, 0)


def test_tensorflow_reads_what_is_written(tmp_path):
  examples = shards.Examples("deu", "eng")
  texts = [("ß" * (i * 17 % 300), "x" * (i * i % 20_000)) for i in range(50)]
  stream = io.BytesIO()
  records = [examples.example(b"Europarl", s.encode(), t.encode()) for s, t in texts]
  assert shards.write_tfrecord(stream.write, iter(records)) == (50, sum(map(len, records)))
  path = tmp_path / "x.tfrecord"
  path.write_bytes(stream.getvalue())
  dataset = tf.data.TFRecordDataset(str(path), buffer_size=1 << 20)
  for record, (source, target) in zip(dataset.as_numpy_iterator(), texts, strict=True):
    features = tf.train.Example.FromString(record).features.feature
    assert {name: feature.bytes_list.value[0].decode() for name, feature in features.items()} == {
      "source": source,
      "target": target,
      "source_language": "deu",
      "target_language": "eng",
      "corpus": "Europarl",
    }
