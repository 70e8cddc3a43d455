import pathlib

import line_files
import numpy as np
import opus_tree
import pytest

from vmsst import errors
from vmsst.data import readers, tables, teacher_vectors
from vmsst.languages import language


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


def test_a_dataset_s_files_are_read_and_shared_where_they_are(tmp_path, monkeypatch):
  pairs = [(f"s{i}", f"t{i}") for i in range(10)]
  folder = opus_tree.write_dataset(tmp_path, "x", {("de", "en"): pairs}, validation=0, shards=3)
  files, teacher = readers.find_bitext(f"{folder}/*-train*"), str(tmp_path / "teacher")
  for file, size in zip(files, (4, 3, 3), strict=True):
    path = pathlib.Path(teacher_vectors.vectors_path(teacher, file))
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, np.full([size, 2, 1], size, np.float32))
  table = tables.open_records(files, [4, 3, 3], teacher)
  columns = table.rows(np.array([9, 0, 4]))
  assert columns["inputs"] == ["s8", "s0", "s1"]
  assert columns["targets"] == ["t8", "t0", "t1"]
  assert columns["input_language"].tolist() == [[language("de").index]] * 3
  assert table.share(0, 2) is None  # Hosts with fewer files would repeat their rows more often.
  monkeypatch.setattr(teacher_vectors, "check", None)  # Files are compared with vectors only once.
  shares = [table.share(index, 3) for index in range(3)]
  assert [len(share) for share in shares] == [4, 3, 3]
  assert [share.rows(np.array([2]))["teacher_inputs"].item() for share in shares] == [4, 3, 3]
  with pytest.raises(errors.InputError, match=r"has 3 pairs, but .* counts 5; copy or build"):
    tables.open_records(files, [4, 5, 3]).rows(np.array([5]))
