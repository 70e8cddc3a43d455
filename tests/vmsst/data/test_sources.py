import itertools

import line_files
import numpy as np
import pytest
import seqio

from vmsst import errors
from vmsst.data import readers, sources
from vmsst.languages import language


def _source(count=10):
  columns = {"inputs": np.array([f"s{i}" for i in range(count)], object), "id": np.arange(count)}
  return sources.MemorySource({"train": lambda: columns})


def _ids(**options):
  whole = {"shuffle": True, "seed": 3, "shard": sources.WHOLE, "num_epochs": 1}
  stream = _source().stream("train", **{**whole, **options})
  rows = list(stream.as_numpy_iterator())
  assert all(row["inputs"] == f"s{row['id']}".encode() for row in rows)
  return [int(row["id"]) for row in rows]


def test_rows_in_memory_are_whole_and_in_order():
  assert _source().num_input_examples("train") == 10
  assert _ids(shuffle=False) == list(range(10))
  shards = [_ids(num_epochs=2, shard=seqio.ShardInfo(i, 3)) for i in range(3)]
  assert [len(shard) for shard in shards] == [7, 7, 6]
  assert sorted(itertools.chain(*shards)) == sorted([*range(10), *range(10)])


def test_every_epoch_is_a_new_order_of_all_rows():
  stream = _ids(num_epochs=3)
  epochs = [stream[:10], stream[10:20], stream[20:]]
  assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
  assert len({tuple(epoch) for epoch in epochs}) == 3
  assert stream == _ids(num_epochs=3)
  assert stream != _ids(num_epochs=3, seed=4)


def _streamed(tmp_path):
  line_files.write_tsv(tmp_path / "a.de-en.tsv.gz", [(f"s{i}", f"t{i}") for i in range(5)])
  line_files.write_text(tmp_path / "b.de-en.de", "\ufeffs5\r\ns6\ns7")
  line_files.write_text(tmp_path / "b.de-en.en", "t5\r\nt6\nt7")
  files = readers.find_bitext(str(tmp_path / "*.de-en.*"))
  assert len(files) == 2
  return sources.StreamSource({"train": files})


def test_streamed_files_give_their_lines_in_order(tmp_path):
  source = _streamed(tmp_path)
  assert source.num_input_examples("train") == 8
  rows = list(source.get_dataset(shuffle=False).as_numpy_iterator())
  assert [(x["inputs"], x["targets"]) for x in rows] == [
    (f"s{i}".encode(), f"t{i}".encode()) for i in range(8)
  ]
  assert int(rows[7]["target_language"][0]) == language("en").index
  mixed = source.get_dataset(shuffle=True, seed=0).as_numpy_iterator()
  assert sorted(x["inputs"] for x in mixed) == [f"s{i}".encode() for i in range(8)]


def test_streamed_files_are_checked_before_the_first_line(tmp_path):
  line_files.write_text(tmp_path / "b.de-en.tsv", "a\tb\nc\n")
  source = sources.StreamSource({"train": readers.find_bitext(str(tmp_path / "b.*"))})
  with pytest.raises(errors.InputError, match=r"b\.de-en\.tsv:2"):
    source.get_dataset()
