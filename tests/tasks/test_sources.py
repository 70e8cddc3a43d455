import line_files
import numpy as np
import pytest

from vmsst import errors
from vmsst.bitext import readers, tokenized_pairs
from vmsst.languages import language
from vmsst.tasks import sources
from vmsst.text import vocabularies


def _source(count=10, eos_id=1, **options):
  rows, counts = tokenized_pairs.pair_rows(
    [(f"source {i}", f"t{i}") for i in range(count)] + [("", "x"), ("y" * 99, "z")],
    language("de"),
    language("en"),
    vocabularies.ByteVocabulary(),
    max_length=40,
  )
  assert (counts.kept, counts.empty, counts.too_long) == (count, 1, 1)
  return sources.InMemorySource({"train": lambda: rows}, eos_id=eos_id, **options)


def _targets(dataset):
  decode = vocabularies.ByteVocabulary().decode
  return [decode(row["targets"].tolist()) for row in dataset.as_numpy_iterator()]


def test_rows_in_memory_are_whole_and_in_order():
  source = _source()
  assert source.num_input_examples("train") == 10
  rows = list(source.get_dataset(shuffle=False).as_numpy_iterator())
  expected = vocabularies.ByteVocabulary().encode([f"source {i}" for i in range(10)], 99)
  assert [row["inputs"].tolist() for row in rows] == expected
  assert {int(row["input_language"][0]) for row in rows} == {language("de").index}
  assert {row["target_language"].dtype for row in rows} == {np.dtype("int32")}
  cut = next(source.get_dataset(shuffle=False, sequence_length={"inputs": 4}).as_numpy_iterator())
  assert cut["inputs"].tolist() == [*expected[0][:3], 1]
  assert cut["targets"].tolist() == rows[0]["targets"].tolist()


def test_every_epoch_is_a_new_order_of_all_rows():
  stream = _targets(_source().get_dataset(shuffle=True, seed=3, num_epochs=3))
  epochs = [stream[:10], stream[10:20], stream[20:]]
  assert all(sorted(epoch) == [f"t{i}" for i in range(10)] for epoch in epochs)
  assert len({tuple(epoch) for epoch in epochs}) == 3
  assert stream == _targets(_source().get_dataset(shuffle=True, seed=3, num_epochs=3))
  assert stream != _targets(_source().get_dataset(shuffle=True, seed=4, num_epochs=3))


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
