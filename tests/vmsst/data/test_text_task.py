import itertools

import line_files
import numpy as np
import pytest
import seqio

from vmsst import errors, languages
from vmsst.data import features, readers, sample, sources, text_task, vocabularies
from vmsst.languages import language

PAIR = tuple(languages.language(code) for code in ("de", "en"))
VOCABULARIES = {
  "bytes": vocabularies.ByteVocabulary(lowercase=True),
  "pieces": vocabularies.SentencePieceVocabulary(sample.vocabulary_path()),
}
LENGTHS = {"inputs": 9, "targets": 7, "input_language": 1, "target_language": 1}
MAX_LENGTH = 12
# Empty, short, cut and over-long sides, more than one call works on.
TEXTS = [("x " * (i % 17), f"Y{i} " * (i % 5)) for i in range(150)]


def make_task(vocabulary, **options):
  columns = {
    "inputs": np.array([source.encode() for source, _ in TEXTS], object),
    "targets": np.array([target.encode() for _, target in TEXTS], object),
    "input_language": np.full([len(TEXTS), 1], PAIR[0].index, np.int32),
    "target_language": np.full([len(TEXTS), 1], PAIR[1].index, np.int32),
  }
  return text_task.TextTask(
    "texts",
    sources.MemorySource({"train": lambda: columns}),
    features.pair_features(vocabulary),
    vocabulary=vocabulary,
    **{"max_length": MAX_LENGTH, **options},
  )


def expected(vocabulary):
  """Ids of both sides, with EOS tokens, by the vocabulary's own Python code."""
  for pair in TEXTS:
    if all(0 < len(ids) <= MAX_LENGTH for ids in vocabulary.tokenize(pair)):
      limits = (LENGTHS["inputs"], LENGTHS["targets"])
      yield [vocabulary.encode([text], limit)[0] for text, limit in zip(pair, limits)]  # noqa: B905


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_rows_are_those_of_the_vocabulary_padded_or_not(kind):
  vocabulary = VOCABULARIES[kind]
  task = make_task(vocabulary)
  wanted = list(expected(vocabulary))
  assert 20 < len(wanted) < 150
  padded = task.get_dataset(LENGTHS, shuffle=False)
  assert {name: spec.shape for name, spec in padded.element_spec.items()} == {
    name: [length] for name, length in LENGTHS.items()
  }
  for row, ids in zip(padded.as_numpy_iterator(), wanted, strict=True):
    for side, values in zip(("inputs", "targets"), ids, strict=True):
      np.testing.assert_array_equal(row[side], values + [0] * (LENGTHS[side] - len(values)))
  whole = task.get_dataset(LENGTHS, shuffle=False, trim_output_features=False)
  longest = max(len(row["inputs"]) for row in whole.as_numpy_iterator())
  assert longest == MAX_LENGTH + 1 if kind == "bytes" else longest > LENGTHS["inputs"]
  assert all(row["targets"].all() for row in whole.as_numpy_iterator())


def test_features_end_with_eos_only_if_the_vocabulary_has_one(data_root):
  path = str(data_root / "vocab" / "ems_62languages_bpe_60000.model")
  without_end = features.pair_features(vocabularies.SentencePieceVocabulary(path))
  assert not without_end["inputs"].add_eos
  found = features.pair_features(VOCABULARIES["bytes"])
  assert found["inputs"].add_eos
  assert not found["input_language"].add_eos
  assert found["input_language"].vocabulary.vocab_size > len(languages.LANGUAGES)


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
