import pathlib

import line_files
import numpy as np
import opus_tree
import pytest

from vmsst import errors
from vmsst.data import readers, tables
from vmsst.languages import language


def test_files_of_a_dataset_are_read_in_place_and_shared(tmp_path, monkeypatch):
  pairs = [(f"s{i}", f"t{i}") for i in range(10)]
  folder = opus_tree.write_dataset(tmp_path, "x", {("de", "en"): pairs}, validation=0, shards=3)
  files, teacher = readers.find_bitext(f"{folder}/*-train*"), str(tmp_path / "teacher")
  for file, size in zip(files, (4, 3, 3), strict=True):
    path = pathlib.Path(tables.vectors_path(teacher, file))
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, np.full([size, 2, 1], size, np.float32))
  table = tables.open_records(files, [4, 3, 3], teacher)
  columns = table.rows(np.array([9, 0, 4]))
  assert columns["inputs"] == ["s8", "s0", "s1"]
  assert columns["targets"] == ["t8", "t0", "t1"]
  assert columns["input_language"].tolist() == [[language("de").index]] * 3
  assert table.share(0, 2) is None  # Hosts with fewer files would repeat their rows more often.
  monkeypatch.setattr(tables, "check_vectors", None)  # Files are compared with vectors only once.
  shares = [table.share(index, 3) for index in range(3)]
  assert [len(share) for share in shares] == [4, 3, 3]
  assert [share.rows(np.array([2]))["teacher_inputs"].item() for share in shares] == [4, 3, 3]
  with pytest.raises(errors.InputError, match=r"has 3 pairs, but .* says 5; copy or build"):
    tables.open_records(files, [4, 5, 3]).rows(np.array([5]))


def test_vectors_of_another_shape_or_number_are_refused(tmp_path):
  """Vectors of other texts are tested with `vmsst data embed`."""
  path = line_files.write_tsv(tmp_path / "x" / "a.de-en.tsv", [("s", "t")] * 14)
  (bitext,) = readers.find_bitext(str(path))
  for vectors, message in (
    (np.zeros([14, 2]), r"must be float32 \[lines, 2, width\]"),
    (np.zeros([14, 3], np.float32), r"must be float32 \[lines, 2, width\]"),
    (np.zeros([13, 2, 3], np.float32), r"vectors for 13 lines, but .* has 14 lines"),
  ):
    np.save(f"{path}.npy", vectors)
    with pytest.raises(errors.InputError, match=message):
      tables.check_vectors(str(tmp_path), {bitext: 14})


def test_vectors_are_taken_across_arrays():
  arrays = [np.arange(n * 2 * 2, dtype=np.float32).reshape(n, 2, 2) + 100 * n for n in (3, 0, 2)]
  expected = np.concatenate(arrays)
  for numbers in ([3, 0, 2, 0], []):
    index = np.array(numbers, np.int64)
    for column_index in (0, 1):
      column = tables.VectorColumn(arrays, column_index)
      np.testing.assert_array_equal(column[index], expected[index, column_index])
    column = tables.VectorColumn(arrays, 0, index)
    turned = np.arange(len(index))[::-1]
    np.testing.assert_array_equal(column[turned], expected[index[::-1], 0])
