import gzip
import hashlib

import pytest

from vmsst import errors
from vmsst.files import line_spans, text_files

TEXTS = [
  b"",
  b"\n",
  b"one",
  b"\xef\xbb\xbfone\r\n\ntwo",
  b"".join(b"line %d\n" % n for n in range(20)),
  b"".join(b"x" * n + b"\n" for n in range(9)) + b"end",
]


@pytest.mark.parametrize("chunk", [1, 3, 1 << 16])
@pytest.mark.parametrize("lines", [1, 2, 7, 100])
@pytest.mark.parametrize("zipped", [False, True])
def test_spans_have_the_lines_of_their_files(tmp_path, monkeypatch, lines, chunk, zipped):
  monkeypatch.setattr(text_files, "_CHUNK_BYTES", chunk)
  paths, expected = [], []
  for number, content in enumerate(TEXTS):
    path = tmp_path / f"{number}.txt{'.gz' * zipped}"
    path.write_bytes(gzip.compress(content) if zipped else content)
    paths.append(str(path))
    whole = list(text_files.read_lines(str(path)))
    expected += [whole[start : start + lines] for start in range(0, len(whole), lines)]
  cut = line_spans.cut(paths, lines, copies=str(tmp_path / "copies"))
  assert [span.read() for span in cut.spans] == expected
  assert cut.lines == sum(map(len, expected))
  firsts = {span.name: span.first for span in reversed(cut.spans)}
  assert set(firsts.values()) == {1}
  joined = b"\n".join(content.removesuffix(b"\n") for content in TEXTS if content) + b""
  assert cut.digest == hashlib.blake2b(joined, digest_size=16).hexdigest()
  if zipped:
    assert len(list((tmp_path / "copies").iterdir())) == len(TEXTS)
    line_spans.remove_copies(str(tmp_path / "copies"))
    assert not list((tmp_path / "copies").iterdir())


def test_equal_lines_have_equal_digests(tmp_path):
  for name, content in (("a", b"1\n2\n3\n4\n"), ("b", b"0\n0\n1\n2\n")):
    (tmp_path / name).write_bytes(content)
  cut = line_spans.cut([str(tmp_path / "a"), str(tmp_path / "b")], 2)
  digests = [span.digest for span in cut.spans]
  assert digests[0] == digests[3]
  assert len(set(digests)) == 3


def test_changed_and_broken_lines_are_named(tmp_path):
  path = tmp_path / "x.txt"
  path.write_bytes(b"a\nb\nc\xff\n")
  first, second = line_spans.cut([str(path)], 2).spans
  assert str(second) == f"{path}, lines 3 to 3"
  with pytest.raises(errors.InputError, match=r"x\.txt:3: not UTF-8"):
    second.read()
  path.write_bytes(b"a\nB\nc\n")
  with pytest.raises(errors.InputError, match=r"x\.txt has changed"):
    first.read()
  path.unlink()
  with pytest.raises(errors.InputError, match=r"x\.txt: cannot be opened"):
    first.read()


def test_a_line_without_an_end_is_refused_before_it_is_all_read(tmp_path, monkeypatch):
  monkeypatch.setattr(text_files, "LINE_BYTES", 1 << 20)
  (tmp_path / "endless").symlink_to("/dev/zero")
  with pytest.raises(errors.InputError, match=r"endless:1: line longer than 1 MB: not a text file"):
    line_spans.cut([str(tmp_path / "endless")], 2, copies=str(tmp_path / "copies"))
