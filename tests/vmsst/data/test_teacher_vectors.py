import line_files
import numpy as np
import pytest

from vmsst import errors
from vmsst.data import readers, teacher_vectors


def test_vectors_of_another_shape_or_number_are_refused(tmp_path):
  """Vectors of other texts are tested with `vmsst data embed`."""
  path = line_files.write_tsv(tmp_path / "x" / "a.de-en.tsv", [("s", "t")] * 14)
  (bitext,) = readers.find_bitext(str(path))
  for vectors, message in (
    (np.zeros([14, 2]), r"must be float32 \[lines, 2, width\]"),
    (np.zeros([14, 3], np.float32), r"must be float32 \[lines, 2, width\]"),
    (np.zeros([13, 2, 3], np.float32), r"vectors of 13 lines, but .* has 14 lines"),
  ):
    np.save(f"{path}.npy", vectors)
    with pytest.raises(errors.InputError, match=message):
      teacher_vectors.check(str(tmp_path), {bitext: 14})


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
