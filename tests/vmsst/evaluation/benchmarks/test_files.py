import gzip

import pytest

from vmsst import errors
from vmsst.evaluation.benchmarks import files


def test_files_are_found_and_read_plain_or_gzipped(tmp_path):
  (tmp_path / "b.txt").write_text("eins\nzwei\n", encoding="utf-8")
  (tmp_path / "a.txt.gz").write_bytes(gzip.compress("ä\nö\n".encode()))
  found = files.files_in(tmp_path, "*.txt")
  assert [files.plain_name(path) for path in found] == ["a.txt", "b.txt"]
  assert files.aligned(*found) == [["ä", "ö"], ["eins", "zwei"]]
  assert files.plain_or_gzipped(tmp_path / "a.txt") == tmp_path / "a.txt.gz"


def test_a_file_in_two_forms_or_in_none_is_an_error(tmp_path):
  with pytest.raises(errors.InputError, match=r"has no \*\.x or \*\.y; ask for it"):
    files.files_in(tmp_path, "*.x", "*.y", source="ask for it")
  with pytest.raises(errors.InputError, match=r"neither .*c\.x nor c\.x\.gz exists; ask for it"):
    files.plain_or_gzipped(tmp_path / "c.x", source="ask for it")
  for name in ("c.x", "c.x.gz"):
    (tmp_path / name).write_bytes(b"")
  with pytest.raises(errors.InputError, match=r"c\.x and .*c\.x\.gz both exist"):
    files.files_in(tmp_path, "*.x")


def test_lines_that_do_not_fit_are_reported_with_file_and_line(tmp_path):
  three, two, empty = (tmp_path / name for name in ("three", "two", "empty"))
  three.write_text("a\nb\nc\n", encoding="utf-8")
  two.write_text("a\nb\tc\n", encoding="utf-8")
  empty.write_text("", encoding="utf-8")
  with pytest.raises(errors.InputError, match=r"two:2: 2 fields, not 1"):
    files.column(two)
  two.write_text("a\nb\n", encoding="utf-8")
  with pytest.raises(errors.InputError, match=r"three has 3 lines and .*two has 2"):
    files.aligned(three, two)
  with pytest.raises(errors.InputError, match=r"empty is empty"):
    files.aligned(empty, empty)


def test_scores_are_finite_numbers_and_codes_are_known(tmp_path):
  assert files.number(" 2.5", tmp_path, 1) == 2.5
  for field in ("", "nan", "inf", "4,5", "x"):
    with pytest.raises(errors.InputError, match=r":7: .* is not a score"):
      files.number(field, tmp_path, 7)
  assert files.known_code("zho_Hant", tmp_path) == "zho_Hant"
  with pytest.raises(errors.InputError, match=r"xq\.tsv: unknown language code 'xq'"):
    files.known_code("xq", tmp_path / "xq.tsv")
