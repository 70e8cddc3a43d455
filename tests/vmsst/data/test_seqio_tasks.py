import itertools

import line_files
import numpy as np
import pytest
import seqio
import tensorflow as tf

from vmsst import errors, languages
from vmsst.data import readers, seqio_tasks, vocabularies
from vmsst.data.seqio_tasks import BitextFeatureConverter
from vmsst.tasks import bitext

BYTES = vocabularies.ByteVocabulary()


PAIR_LENGTHS = {"inputs": 12, "targets": 12, "input_language": 1, "target_language": 1}
WITH_ALL = {**PAIR_LENGTHS, "negatives": (3, 6), "teacher_inputs": 4, "teacher_targets": 4}
FILES = {"a.de-en.tsv": 14, "b.de-en.tsv": 9, "c.fr-en.tsv": 6}


def vector(file, line, index):
  return [ord(file[0]), line, index, 0.5]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
  """Files in which some lines are dropped (an empty or long side) and some negatives are empty."""
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
    lines = [[vector(name, i, index) for index in (0, 1)] for i in range(FILES[name])]
    np.save(path, np.array(lines, np.float32))
  return root


def files(corpus, **options):
  return bitext.files(
    "bitext/*.tsv", BYTES, root=str(corpus), max_length=10, teacher="vectors", **options
  )


def check(row):
  """Asserts that all features of a row are from one line. Returns the line's file and number."""
  source, target = (BYTES.decode(row[name].tolist()) for name in ("inputs", "targets"))
  file, line = source[0], int(source[1:])
  assert target == f"{file.upper()}{line}"
  for index, name in enumerate(("teacher_inputs", "teacher_targets")):
    assert row[name].tolist() == vector(file, line, index)
  return file, line


EXPECTED = {
  (name[0], i) for name, count in FILES.items() for i in range(count) if i % 5 != 1 and i % 7 != 3
}


def test_every_row_has_its_own_negatives_and_vectors(corpus):
  mixture = seqio.MixtureRegistry.get(files(corpus, negatives=3))
  lengths = {**WITH_ALL, "negatives": (4, 5)}  # a fourth is missing, the third is cut
  seen = []
  for task, shard in itertools.product(mixture.tasks, range(2)):
    rows = task.get_dataset(
      lengths, shuffle=True, seed=3, shard_info=seqio.ShardInfo(index=shard, num_shards=2)
    )
    assert BitextFeatureConverter()(rows, lengths) is rows
    for row in rows.as_numpy_iterator():
      file, line = check(row)
      seen.append((file, line))
      first, third = BYTES.encode([f"n{line}", f"longer{line}"], 5)
      # An empty negative is missing, so it has no EOS token.
      expected = [first + [0] * (5 - len(first)), [0] * 5, third, [0] * 5]
      assert row["negatives"].tolist() == expected
  assert len(seen) == len(EXPECTED)
  assert set(seen) == EXPECTED
  for row in mixture.get_dataset(lengths, shuffle=True, seed=7).take(30).as_numpy_iterator():
    check(row)


def test_a_file_with_only_empty_negatives(tmp_path):
  (tmp_path / "x.de-en.tsv").write_text("a\tb\t\n", encoding="utf-8")
  name = bitext.files(str(tmp_path / "*.tsv"), BYTES, negatives=1)
  for lengths in ({**PAIR_LENGTHS, "negatives": (1, 5)}, None):
    (task,) = seqio.MixtureRegistry.get(name).tasks
    assert not next(task.get_dataset(lengths).as_numpy_iterator())["negatives"].any()


ROW = {
  "inputs": [5, 6, 1], "targets": [7, 1], "input_language": [2], "target_language": [3], "id": 4,
}  # fmt: skip
ROW_LENGTHS = {"inputs": 5, "targets": 2, "input_language": 1, "target_language": 1}


def _dataset(dtype=tf.int32, **row):
  columns = {name: tf.constant([value], dtype) for name, value in row.items()}
  return tf.data.Dataset.from_tensor_slices(columns)


def test_features_end_with_eos_only_if_the_vocabulary_has_one(data_root):
  path = str(data_root / "vocab" / "ems_62languages_bpe_60000.model")
  without_end = seqio_tasks.pair_features(vocabularies.SentencePieceVocabulary(path))
  assert not without_end["inputs"].add_eos
  with_end = seqio_tasks.pair_features(vocabularies.ByteVocabulary())
  assert with_end["inputs"].add_eos
  assert with_end["input_language"].vocabulary.vocab_size > len(languages.LANGUAGES)


def test_padded_features_keep_their_names():
  dataset = BitextFeatureConverter(pack=False, use_custom_packing_ops=False)(
    _dataset(**ROW), ROW_LENGTHS
  )
  row = next(dataset.as_numpy_iterator())
  assert {name: (value.tolist(), str(value.dtype)) for name, value in row.items()} == {
    "inputs": ([5, 6, 1, 0, 0], "int32"),
    "targets": ([7, 1], "int32"),
    "input_language": ([2], "int32"),
    "target_language": ([3], "int32"),
  }
  assert dataset.element_spec["inputs"].shape == [5]


@pytest.mark.parametrize(
  ("lengths", "message"),
  [
    ({"inputs": 3, "input": 3}, "include 'inputs'"),
    ({"inputs": 3, "negatives": (1, 3)}, "use only features from .*negatives or .*teacher"),
    ({"inputs": 3, "teacher_inputs": 5}, r"\['teacher_inputs'\] is 5; set it to 4, the dimension"),
  ],
)
def test_lengths_that_do_not_fit_the_data_are_refused(lengths, message):
  with pytest.raises(errors.InputError, match=message):
    seqio_tasks.check_lengths({"inputs": [None], "teacher_inputs": [4]}, lengths)
