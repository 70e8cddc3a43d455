import pytest

from vmsst import errors, languages
from vmsst.data import formats
from vmsst.mining import alignment_files
from vmsst.mining.document_alignment import Alignment

SOURCE, TARGET = ["a\tb", "<c> & \x0b'd'", "e"], ["1", "2\r", "3"]
ALIGNMENTS = [Alignment([0, 1], [0], 0.81), Alignment([], [1], 0.0), Alignment([2], [2], 0.5)]


def lines(form):
  codes = ("de", "fr")
  return [*alignment_files.lines(SOURCE, TARGET, ALIGNMENTS, form, codes)]


def test_tsv_has_pairs_without_deletions():
  assert lines("tsv") == ["0.810000\ta b <c> & \x0b'd'\t1", "0.500000\te\t3"]


def test_line_numbers_are_read_as_they_were_written(tmp_path):
  path = tmp_path / "x"
  path.write_text("".join(f"{line}\n" for line in lines("vecalign")))
  assert path.read_text() == "[0, 1]:[0]:0.810000\n[]:[1]:0.000000\n[2]:[2]:0.500000\n"
  assert alignment_files.read_line_numbers(str(path)) == ALIGNMENTS
  path.write_text("[0, 1]:[0]\n")
  assert alignment_files.read_line_numbers(str(path)) == [Alignment([0, 1], [0], 0.0)]


@pytest.mark.parametrize("line", ["", "[0]", "[0]:x", "[0]:0", "[0]:[a]", "[0]:[0]:x", "[" * 9999])
def test_other_lines_are_refused(line, tmp_path):
  (tmp_path / "x").write_text(f"[0]:[0]\n{line}\n")
  with pytest.raises(errors.InputError, match=r"x:2: .* is not an alignment such as \[3\]:"):
    alignment_files.read_line_numbers(str(tmp_path / "x"))


def test_tmx_is_read_by_the_reader_of_bitext(tmp_path):
  start, end = alignment_files.frame("tmx", ("de", "fr"))
  path = tmp_path / "x.tmx"
  path.write_text("".join([start, *(f"{line}\n" for line in lines("tmx")), end]))
  rows = formats.require(formats.parse_tmx(str(path), *map(languages.language, ("de", "fr"))))
  assert [row.texts for row in rows] == [("a b <c> & 'd'", "1"), ("e", "3")]
