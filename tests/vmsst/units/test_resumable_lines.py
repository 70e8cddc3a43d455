"""Files of lines that are written in parts."""

import pathlib

from vmsst.io import work_folders
from vmsst.units import resumable_lines


def test_a_writer_resumes_after_the_parts_before_the_first_gap(tmp_path):
  output = tmp_path / "lines.txt"
  with work_folders.owned(output):
    writer = resumable_lines.LineWriter(output, ["a"])
    for number in range(3):
      writer.append([str(number)])
    # A writer that was killed while it removed its parts.
    (part,) = pathlib.Path(work_folders.path_of(output)).glob("*1")
    part.unlink()
    assert resumable_lines.LineWriter(output, ["b"]).parts == 0
    again = resumable_lines.LineWriter(output, ["a"])
    assert again.parts == 1
    for number in (1, 2):
      again.append([str(number)])
    again.finish()
  assert output.read_text() == "0\n1\n2\n"
