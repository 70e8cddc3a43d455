import itertools

import line_files
import numpy as np
import pytest
import seqio
import tensorflow as tf

from vmsst import errors, languages
from vmsst.data import (
  features,
  readers,
  rows,
  sample,
  seqio_tasks,
  tables,
  teacher_vectors,
  vocabularies,
)
from vmsst.data.features import BitextFeatureConverter
from vmsst.languages import language
from vmsst.tasks import bitext

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
    "input_language": np.full([len(TEXTS), 1], PAIR[0].index, np.int32),
    "target_language": np.full([len(TEXTS), 1], PAIR[1].index, np.int32),
  }
  return seqio_tasks.TextTask(
    "texts",
    seqio_tasks.TableSource({"train": lambda: tables.TextTable(TEXTS, columns)}),
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


@pytest.mark.parametrize("max_length", [MAX_LENGTH, None])
def test_dropped_pairs_and_cut_texts_are_counted_in_a_warning(max_length, caplog):
  vocabulary = VOCABULARIES["bytes"]
  task = make_task(vocabulary, max_length=max_length)
  task.get_dataset(LENGTHS)
  sizes = [[len(ids) for ids in vocabulary.tokenize(pair)] for pair in TEXTS]
  kept = [row for row in sizes if min(row) > 0 and max(row) <= (max_length or max(row))]
  limits = LENGTHS["inputs"], LENGTHS["targets"]
  cut = sum(size + 1 > limit for row in kept for size, limit in zip(row, limits, strict=True))
  assert f"Of the first 150 pairs, dropped: {150 - len(kept)} (" in caplog.text
  assert f"texts cut to 7 tokens: {cut}\n" in caplog.text


def test_features_end_with_eos_only_if_the_vocabulary_has_one(data_root):
  path = str(data_root / "vocab" / "ems_62languages_bpe_60000.model")
  without_end = features.pair_features(vocabularies.SentencePieceVocabulary(path))
  assert not without_end["inputs"].add_eos
  found = features.pair_features(VOCABULARIES["bytes"])
  assert found["inputs"].add_eos
  assert not found["input_language"].add_eos
  assert found["input_language"].vocabulary.vocab_size > len(languages.LANGUAGES)


def _table(count=10):
  columns = {"id": np.arange(count, dtype=np.int32)}
  return tables.TextTable(([f"s{i}"] for i in range(count)), columns)


def _ids(window=10, **options):
  table = _table()
  table.window = window
  texts = rows.Texts("ids", table, rows.Tokenizer(BYTES, max_length=None, keep_all=False))
  options = {"shuffle": True, "seed": 3, "num_epochs": 1, **options}
  chunks = rows.read_rows([texts], [1.0], {"inputs": 5, "id": None}, **options)
  ids = []
  for chunk in itertools.islice(chunks, 3):
    assert [BYTES.decode(text) for text in chunk["inputs"].tolist()] == [
      f"s{i}" for i in chunk["id"]
    ]
    ids += chunk["id"].tolist()
  return ids


def test_rows_are_whole_and_in_order():
  assert _ids(shuffle=False) == list(range(10))
  shards = [_ids(num_epochs=2, shard=(i, 3)) for i in range(3)]
  assert [len(shard) for shard in shards] == [7, 7, 6]
  assert sorted(itertools.chain(*shards)) == sorted([*range(10), *range(10)])


def test_every_epoch_is_a_new_order_of_all_rows():
  stream = _ids(num_epochs=3)
  epochs = [stream[:10], stream[10:20], stream[20:]]
  assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
  assert len({tuple(epoch) for epoch in epochs}) == 3
  assert stream == _ids(num_epochs=3)
  assert stream != _ids(num_epochs=3, seed=4)


def test_large_tables_are_shuffled_in_windows():
  stream = _ids(window=4, num_epochs=3)
  windows = [range(4), range(4, 8), range(8, 10)] * 3
  ends = np.cumsum([len(window) for window in windows]).tolist()
  for start, end, window in zip([0, *ends], ends, windows, strict=False):
    assert sorted(stream[start:end]) == list(window)
  assert len({tuple(stream[i : i + 10]) for i in (0, 10, 20)}) == 3


def test_files_give_their_lines_in_order(tmp_path):
  line_files.write_tsv(tmp_path / "a.de-en.tsv.gz", [(f"s{i}", f"t{i}") for i in range(5)])
  line_files.write_text(tmp_path / "b.de-en.de", "\ufeffs5\r\n \r\ns7")
  line_files.write_text(tmp_path / "b.de-en.en", "t5\r\nt6\nt7")
  table = tables.open_files("x", readers.find_bitext(str(tmp_path / "*.de-en.*")))
  assert (len(table), table.dropped) == (7, 1)
  rows = table.rows(np.array([6, 0, 5]))
  assert rows["inputs"] == ["s7", "s0", "s5"]
  assert rows["targets"] == ["t7", "t0", "t5"]
  assert rows["target_language"].tolist() == [[language("en").index]] * 3


ROW = {
  "inputs": [5, 6, 1], "targets": [7, 1], "input_language": [2], "target_language": [3], "id": 4,
}  # fmt: skip
FEATURE_CONVERTER_LENGTHS = {"inputs": 5, "targets": 2, "input_language": 1, "target_language": 1}


def _dataset(**row):
  columns = {name: tf.constant([value], tf.int32) for name, value in row.items()}
  return tf.data.Dataset.from_tensor_slices(columns)


def test_pairs_are_padded_under_their_own_names():
  dataset = BitextFeatureConverter(pack=False, use_custom_packing_ops=False)(
    _dataset(**ROW), FEATURE_CONVERTER_LENGTHS
  )
  row = next(dataset.as_numpy_iterator())
  assert {name: value.tolist() for name, value in row.items()} == {
    "inputs": [5, 6, 1, 0, 0],
    "targets": [7, 1],
    "input_language": [2],
    "target_language": [3],
  }
  assert {value.dtype for value in row.values()} == {np.dtype("int32")}
  assert dataset.element_spec["inputs"].shape == [5]


def test_packing_is_refused_with_what_to_bind():
  with pytest.raises(errors.InputError, match=r"train_eval/utils[.]DatasetConfig[.]pack = False"):
    BitextFeatureConverter(pack=True)


def test_wrong_features_and_types_are_refused():
  for lengths in ({"inputs": 3, "input": 3}, {"targets": 3}):
    with pytest.raises(errors.InputError, match="needs 'inputs'"):
      BitextFeatureConverter()(_dataset(**ROW), lengths)
  wide = tf.data.Dataset.from_tensor_slices({"inputs": tf.constant([[1, 2]], tf.int64)})
  with pytest.raises(ValueError, match="Got int64, expected int32"):
    BitextFeatureConverter()(wide, {"inputs": 3})


BYTES = vocabularies.ByteVocabulary()
PAIR_LENGTHS = {"inputs": 12, "targets": 12, "input_language": 1, "target_language": 1}
WITH_ALL = {**PAIR_LENGTHS, "negatives": (3, 6), "teacher_inputs": 4, "teacher_targets": 4}
FILES = {"a.de-en.tsv": 14, "b.de-en.tsv": 9, "c.fr-en.tsv": 6}


def vector(file, line, side):
  return [ord(file[0]), line, side, 0.5]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
  """Some lines are dropped: an empty side, or more than 10 bytes. Of negatives some are empty."""
  root = tmp_path_factory.mktemp("corpus")
  folder = root / "bitext"
  for name, count in FILES.items():
    rows = []
    for i in range(count):
      source = "" if i % 5 == 1 else f"{name[0]}{i}"
      target = "much too long" if i % 7 == 3 else f"{name[0].upper()}{i}"
      rows.append((source, target, f"n{i}", "", f"longer{i}", "more"))
    line_files.write_tsv(folder / name, rows)
  for file in readers.find_bitext(str(folder / "*")):
    name = file.paths[0].rsplit("/", 1)[-1]
    path = root / "vectors" / "bitext" / f"{name}.npy"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [[vector(name, i, side) for side in (0, 1)] for i in range(FILES[name])]
    np.save(path, np.array(lines, np.float32))
  return root


def files(corpus, **options):
  return bitext.files(
    "bitext/*.tsv", BYTES, root=str(corpus), max_length=10, teacher="vectors", **options
  )


def check(row):
  """Whether everything in a row is of one line of one file; gives what tells the row."""
  source, target = (BYTES.decode(row[name].tolist()) for name in ("inputs", "targets"))
  file, line = source[0], int(source[1:])
  assert target == f"{file.upper()}{line}"
  for side, name in enumerate(("teacher_inputs", "teacher_targets")):
    assert row[name].tolist() == vector(file, line, side)
  return file, line


EXPECTED = {
  (name[0], i) for name, count in FILES.items() for i in range(count) if i % 5 != 1 and i % 7 != 3
}


def test_every_row_has_its_own_negatives_and_vectors(corpus):
  tasks = seqio.MixtureRegistry.get(files(corpus, negatives=3)).tasks
  seen = []
  for task, shard in itertools.product(tasks, range(2)):
    rows = task.get_dataset(
      WITH_ALL, shuffle=True, seed=3, shard_info=seqio.ShardInfo(index=shard, num_shards=2)
    )
    for row in BitextFeatureConverter()(rows, WITH_ALL).as_numpy_iterator():
      file, line = check(row)
      seen.append((file, line))
      texts = BYTES.encode([f"n{line}", "", f"longer{line}"], 6)
      texts[1] = []  # an empty one has no EOS token: it does not exist
      assert row["negatives"].tolist() == [ids + [0] * (6 - len(ids)) for ids in texts]
  assert len(seen) == len(EXPECTED)
  assert set(seen) == EXPECTED


def test_a_mixture_cuts_and_pads_negatives_to_their_length(corpus):
  mixture = seqio.MixtureRegistry.get(files(corpus, negatives=3))
  lengths = {**WITH_ALL, "negatives": (4, 5)}  # a fourth is missing, the third is cut
  rows = mixture.get_dataset(lengths, shuffle=True, seed=7)
  assert BitextFeatureConverter()(rows, lengths) is rows
  for row in rows.take(30).as_numpy_iterator():
    _, line = check(row)
    (first, third) = BYTES.encode([f"n{line}", f"longer{line}"], 5)
    expected = [first + [0] * (5 - len(first)), [0] * 5, third, [0] * 5]
    assert row["negatives"].tolist() == expected


def test_a_file_all_of_whose_negatives_are_empty(tmp_path):
  (tmp_path / "x.de-en.tsv").write_text("a\tb\t\n", encoding="utf-8")
  name = bitext.files(str(tmp_path / "*.tsv"), BYTES, negatives=1)
  lengths = {**PAIR_LENGTHS, "negatives": (1, 5)}
  row = next(seqio.MixtureRegistry.get(name).get_dataset(lengths).as_numpy_iterator())
  assert row["negatives"].tolist() == [[0] * 5]
  task = seqio.MixtureRegistry.get(name).tasks[0]
  assert not next(task.get_dataset(None).as_numpy_iterator())["negatives"].any()


def test_rows_with_another_number_of_columns_are_named(tmp_path):
  path = tmp_path / "x.de-en.tsv"
  path.write_text("a\tb\tc\td\ne\tf\tg\n", encoding="utf-8")
  (file,) = readers.find_bitext(str(path))
  with pytest.raises(
    errors.InputError, match=r"x\.de-en\.tsv:2: 3 columns in .*, where 4 columns are"
  ):
    list(readers.read_rows(file, 1))
  with pytest.raises(
    errors.InputError, match=r":1: 4 columns in .* where 5 .*TAB 3 hard negatives"
  ):
    list(readers.read_rows(file, 3))
  (tmp_path / "y.de-en.jsonl").write_text('{"de": "a", "en": "b"}\n', encoding="utf-8")
  (file,) = readers.find_bitext(str(tmp_path / "y.*"))
  with pytest.raises(errors.InputError, match="only TSV files contain hard negatives"):
    list(readers.read_rows(file, 1))


def test_what_does_not_go_together_is_refused(corpus, tmp_path):
  with pytest.raises(errors.InputError, match="negatives is -1"):
    files(corpus, negatives=-1)
  data = seqio.MixtureRegistry.get(files(corpus)).get_dataset(
    WITH_ALL | {"negatives": None}, seed=0
  )
  for lengths, message in (
    (WITH_ALL, "has 'negatives', but the data only has .*bind bitext.files.negatives"),
    (
      {**PAIR_LENGTHS, "teacher_inputs": 5},
      r"\['teacher_inputs'\] is 5; set it to 4, the dimension",
    ),
    ({**PAIR_LENGTHS, "inputs": (3, 12)}, r"\['inputs'\] is \(3, 12\); set it to one number"),
  ):
    with pytest.raises(errors.InputError, match=message):
      BitextFeatureConverter()(data, lengths)


def test_vectors_that_do_not_go_with_the_files_are_refused(corpus, tmp_path):
  folder = tmp_path / "vectors" / "bitext"
  folder.mkdir(parents=True)
  source = corpus / "bitext" / "a.de-en.tsv"

  def tasks():
    name = bitext.files(str(source), BYTES, teacher=str(tmp_path / "vectors"))
    return seqio.MixtureRegistry.get(name).tasks

  with pytest.raises(errors.InputError, match=r"a\.de-en\.tsv\.npy: no such file: .*data embed"):
    tasks()
  path = folder / "a.de-en.tsv.npy"
  path.write_bytes(b"nonsense")
  with pytest.raises(errors.InputError, match=r"a\.de-en\.tsv\.npy: not a NumPy file"):
    tasks()
  for wrong in (np.zeros([14, 2]), np.zeros([14, 3], np.float32)):
    np.save(path, wrong)
    with pytest.raises(errors.InputError, match=r"must be float32 \[lines, 2, width\]"):
      tasks()
  np.save(path, np.zeros([13, 2, 3], np.float32))
  with pytest.raises(errors.InputError, match=r"vectors of 13 lines, but .* has 14 lines"):
    tasks()[0].get_dataset(WITH_ALL)
  for name, width in {"a": 3, "b": 4}.items():
    np.save(folder / f"{name}.de-en.tsv.npy", np.zeros([1, 2, width], np.float32))
  with pytest.raises(errors.InputError, match=r"have several dimensions: 3 \(.*, 4 \("):
    bitext.files(str(corpus / "bitext" / "?.de-en.tsv"), BYTES, teacher=str(tmp_path / "vectors"))


def test_vectors_are_taken_across_arrays():
  arrays = [np.arange(n * 2 * 2, dtype=np.float32).reshape(n, 2, 2) + 100 * n for n in (3, 0, 2)]
  whole = np.concatenate(arrays)
  for numbers in ([3, 0, 2, 0], [], [1, 4], list(range(5))):
    index = np.array(numbers, np.int64)
    for side in (0, 1):
      column = teacher_vectors.Column(arrays, side)
      np.testing.assert_array_equal(column[index], whole[index, side])
    column = teacher_vectors.Column(arrays, 0, index)
    turned = np.arange(len(index))[::-1]
    np.testing.assert_array_equal(column[turned], whole[index[::-1], 0])
