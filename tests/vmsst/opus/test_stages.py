import numpy as np
import opus_tree
import pytest

from vmsst.data import dataset_shards
from vmsst.opus import cleaning, releases, stages

HELD_OUT = [("tatoeba", "Wer bist du?"), ("ntrex", "Who are you?")]


def _texts(numbers):
  return [(f"Satz Nummer {n} ist hier.", f"Sentence number {n} is here.") for n in numbers]


EUROPARL = [
  *_texts(range(100)),
  *_texts(range(3)),  # Again: duplicates.
  ("Satz nummer 5 ist hier!", "Sentence Number 5 is here"),  # A near duplicate.
  ("", "nothing"),
  ("gleich und gleich", "Gleich und gleich!"),
  ("Wer bist du?", "Who's that?"),
  ("wer BIST du", "Who goes there?"),
  ("Wer ist da?", "«Who are you!»"),
  ("Wer bist du?", "Who are you?"),
]


@pytest.fixture
def clean(tmp_path):
  """Cleans rows of a corpus into two buckets; returns the file and the facts."""
  held_out = cleaning.EvaluationSentences.from_texts(HELD_OUT)
  held_out.save(tmp_path / "held_out")

  def run(corpus, rows):
    part = opus_tree.Part(corpus, "v1", ("de", "en"), rows, "tsv")
    opus_tree.write(tmp_path / corpus, [part])
    ((release,), _) = releases.scan(str(tmp_path / corpus))
    output, source = tmp_path / f"{corpus}.parquet", (str(tmp_path / "held_out"), held_out.digest)
    return str(output), stages.clean(output, release, cleaning.Cleaning(), source, 2)

  return run


def test_clean_counts_why_pairs_are_left_out(clean):
  _, facts = clean("Europarl", EUROPARL)
  assert facts["counts"] == {"read": 110, "empty": 1, "copy": 1, "held_out": 4, "kept": 104}
  assert facts["held_out"] == {"tatoeba": 3, "ntrex": 2}
  assert facts["faults"] == []


def test_merge_keeps_the_first_of_equal_pairs_and_write_takes_ranks(clean, tmp_path):
  files = [
    (clean("Europarl", EUROPARL)[0], "Europarl"),
    (clean("Tatoeba", _texts(range(60, 140)))[0], "Tatoeba"),
  ]
  paths = [str(tmp_path / f"{bucket}.parquet") for bucket in (0, 1)]
  facts = [stages.merge(path, files, bucket, 0) for bucket, path in enumerate(paths)]
  for corpus, counts in {
    "Europarl": {"read": 104, "duplicate": 3, "near_duplicate": 1, "kept": 100},
    "Tatoeba": {"read": 80, "duplicate": 40, "near_duplicate": 0, "kept": 40},
  }.items():
    assert {name: sum(fact[corpus][name] for fact in facts) for name in counts} == counts
  ranks_N = stages.load_ranks(paths[0])
  count = facts[0]["Europarl"]["kept"]
  for ranks_K in (ranks_N[:count], ranks_N[count:]):
    assert ranks_K.tolist() == sorted(set(ranks_K.tolist()))

  def shard(bounds):
    bounds = dict(zip(("Europarl", "Tatoeba"), bounds, strict=True))
    shape = stages.write(tmp_path / "x", paths, ["Europarl", "Tatoeba"], bounds, ("deu", "eng"))
    records = dataset_shards.Records(str(tmp_path / "x"))
    assert shape["rows"] == len(records)
    return [records.pair(number) for number in range(len(records))]

  everything, half = (0, 1 << 64), (0, 1 << 63)
  rows = shard([everything, everything])
  assert sorted(rows) == sorted(_texts(range(140)))
  assert rows != sorted(rows)
  assert {*shard([half, (0, 0)])} < {*_texts(range(100))}
  shards = shard([half, everything]) + shard([(1 << 63, 1 << 64), (5, 5)])
  assert sorted(shards) == sorted(rows)


def test_ranks_are_random_and_depend_on_key_corpus_and_seed_alone():
  keys_N = np.arange(4000, dtype=np.uint64)
  tags_N = np.arange(4000) % 2
  ranks_N = stages.ranks(keys_N, tags_N, ["a", "b"], 0)
  assert abs(ranks_N.astype(float).mean() / 2**64 - 0.5) < 0.02
  assert abs(np.corrcoef(keys_N, ranks_N.astype(float))[0, 1]) < 0.05
  last_N = stages.ranks(keys_N[-5:], tags_N[-5:] ^ 1, ["b", "a"], 0)
  np.testing.assert_array_equal(last_N, ranks_N[-5:])
  assert not np.any(stages.ranks(keys_N, tags_N, ["a", "b"], 1) == ranks_N)
  assert not np.any(stages.ranks(keys_N, tags_N ^ 1, ["a", "b"], 0) == ranks_N)


def _numbered(count):
  """Rows of key and texts: keys of all 64 bits, empty and long texts."""
  for i in range(count):
    key = (i * 0x9E3779B97F4A7C15) % 2**64
    yield key, ("ä" * (i % 5)).encode(), ("文" * (i % 11) + str(i)).encode()


def _write(path, count):
  with stages.BucketWriter(path, 4) as writer:
    for row in _numbered(count):
      writer.add(*row)


@pytest.mark.parametrize("memory_bytes", [2000, stages.MEMORY_BYTES])
def test_rows_come_back_by_bucket_in_their_order(tmp_path, monkeypatch, memory_bytes):
  monkeypatch.setattr(stages, "MEMORY_BYTES", memory_bytes)
  _write(tmp_path / "x", 500)
  for bucket in range(4):
    rows = [
      tuple(row.values())
      for table in stages.read_bucket(tmp_path / "x", bucket)
      for row in table.to_pylist()
    ]
    assert rows == [row for row in _numbered(500) if row[0] % 4 == bucket]


def test_a_damaged_page_is_found(tmp_path):
  _write(tmp_path / "x", 500)
  content = bytearray((tmp_path / "x").read_bytes())
  content[100] ^= 1
  (tmp_path / "x").write_bytes(content)
  with pytest.raises(OSError, match="CRC checksum"):
    [list(stages.read_bucket(tmp_path / "x", bucket)) for bucket in range(4)]
