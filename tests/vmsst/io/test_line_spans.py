import gzip
import hashlib

import pytest

from vmsst import errors
from vmsst.io import line_spans, text_files

TEXTS = [
  b"", b"\n", b"one", b"\xef\xbb\xbfone\r\n\ntwo", b"".join(b"line %d\n" % n for n in range(20)),
  b"".join(b"x" * n + b"\n" for n in range(9)) + b"end",
]  # fmt: skip


@pytest.mark.parametrize("lines", [1, 2, 7, 100])
@pytest.mark.parametrize("zipped", [False, True])
def test_spans_have_the_lines_of_their_files(tmp_path, lines, zipped):
  paths, expected = [], []
  for number, content in enumerate(TEXTS):
    path = tmp_path / f"{number}.txt{'.gz' * zipped}"
    path.write_bytes(gzip.compress(content) if zipped else content)
    paths.append(str(path))
    whole = list(text_files.read_lines(str(path)))
    expected += [whole[start : start + lines] for start in range(0, len(whole), lines)]
  cut = line_spans.cut(paths, lines)
  spans = line_spans.unpack(cut.spans, str(tmp_path / "copies"))
  assert [span.read() for span in spans] == expected
  assert (tmp_path / "copies").exists() == zipped
  assert cut.lines == sum(map(len, expected))
  firsts = {span.name: span.first for span in reversed(cut.spans)}
  assert set(firsts.values()) == {1}
  joined = b"\n".join(content.removesuffix(b"\n") for content in TEXTS if content) + b""
  assert cut.digest == hashlib.blake2b(joined, digest_size=16).hexdigest()


def test_changed_broken_and_equal_lines(tmp_path, monkeypatch):
  path = tmp_path / "x.txt"
  path.write_bytes(b"a\nb\nc\xff\n")
  first, second = line_spans.cut([str(path)], 2).spans
  assert str(second) == f"{path}, lines 3 to 3"
  with pytest.raises(errors.InputError, match=r"x\.txt:3: not UTF-8"):
    second.read()
  (tmp_path / "y").write_bytes(b"0\n0\na\nb\n")
  assert line_spans.cut([str(tmp_path / "y")], 2).spans[1].digest == first.digest
  path.write_bytes(b"a\nB\nc\n")
  with pytest.raises(errors.InputError, match=r"x\.txt has changed"):
    first.read()
  path.unlink()
  with pytest.raises(errors.InputError, match=r"x\.txt: cannot be opened"):
    first.read()
  # A line without an end is refused before it is all read.
  monkeypatch.setattr(text_files, "LINE_BYTES", 1 << 20)
  (tmp_path / "endless").symlink_to("/dev/zero")
  with pytest.raises(errors.InputError, match=r"endless:1: line longer than 1 MB: not a text file"):
    line_spans.cut([str(tmp_path / "endless")], 2)
