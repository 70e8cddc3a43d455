import itertools

import line_files
import numpy as np
import pytest
import seqio

from vmsst.data import readers, seqio_tasks, tables, vocabularies
from vmsst.data.features import BitextFeatureConverter, pair_features
from vmsst.tasks import bitext

BYTES = vocabularies.ByteVocabulary()


def test_rows_are_padded_or_whole():
  columns = {name: np.ones([3, 1], np.int32) for name in ("input_language", "target_language")}
  pairs = [("abc", "d"), ("ef", "much too long"), ("g", "hi")]
  task = seqio_tasks.TextTask(
    "texts",
    seqio_tasks.TableSource({"train": lambda: tables.TextTable(pairs, columns)}),
    pair_features(BYTES),
    vocabulary=BYTES,
    max_length=4,
  )
  lengths = {"inputs": 3, "targets": 4, "input_language": 1, "target_language": 1}
  padded = task.get_dataset(lengths, shuffle=False)
  assert {name: spec.shape for name, spec in padded.element_spec.items()} == {
    name: [length] for name, length in lengths.items()
  }
  inputs = [BYTES.encode([text], 9)[0] for text in ("abc", "g")]
  rows = [row["inputs"].tolist() for row in padded.as_numpy_iterator()]
  assert rows == [[*inputs[0][:2], 1], [*inputs[1], 0]]
  whole = task.get_dataset(lengths, shuffle=False, trim_output_features=False)
  assert [row["inputs"].tolist() for row in whole.as_numpy_iterator()] == inputs


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
