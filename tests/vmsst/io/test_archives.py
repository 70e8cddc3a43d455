import functools
import io
import os
import tarfile
import zipfile
import zlib

import line_files
import pytest

from vmsst import errors
from vmsst.io import archives

MOST = 1 << 20

ARCHIVES = ("a.zip", "a.tgz", "a.tar.xz")


def write(path, members, kind=tarfile.REGTYPE, headers=None):
  """Writes an archive. `members` are pairs of a name and content; `kind` is for tar archives."""
  if path.suffix == ".zip":
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
      for name, content in members:
        out.writestr(name, content)
    return path
  mode = {"gz": "w:gz", "tgz": "w:gz", "bz2": "w:bz2", "xz": "w:xz"}.get(path.suffix[1:], "w")
  with tarfile.open(path, mode, format=tarfile.PAX_FORMAT) as out:
    for name, content in members:
      info = tarfile.TarInfo(name)
      info.size, info.type, info.linkname = len(content), kind, "/etc/passwd"
      info.pax_headers = headers or {}
      out.addfile(info, io.BytesIO(content))
  return path


def everything(folder):
  """Returns the paths of all files below a folder's parent, relative to the folder."""
  return sorted(
    os.path.relpath(os.path.join(place, name), folder)
    for place, _, names in os.walk(folder.parent)
    for name in names
  )


@pytest.mark.parametrize("name", ARCHIVES)
def test_chosen_members_arrive_and_broken_archives_leave_nothing(tmp_path, name):
  noise = zlib.compress(bytes(range(256)) * 500, 0)
  members = [("./top/x.txt", noise), ("top/deep/y.txt", b"y"), ("top/z.bin", b"z")]
  archive = write(tmp_path / name, members)
  folder = tmp_path / "b" / "out"

  def choose(member):
    assert not member.startswith("./")
    return member.removeprefix("top/") if member.endswith(".txt") else None

  content = archive.read_bytes()
  for broken in (b"", b"<html>Not found</html>" * 90, content[: len(content) // 2]):
    archive.write_bytes(broken)
    with pytest.raises(errors.InputError, match=r"cannot be unpacked|none of the expected"):
      archives.unpack(archive, folder, choose, MOST)
    assert everything(folder) == []
  archive.write_bytes(content)
  found = archives.unpack(archive, folder, choose, MOST)
  assert found == [folder / "x.txt", folder / "deep" / "y.txt"]
  assert found[0].read_bytes() == noise
  assert everything(folder) == sorted(["x.txt", "deep/y.txt"])


def of(*members, **options):
  return functools.partial(write, members=members, **options)


NONE, BROKEN, UNTRUSTED = (
  "none of the expected files",
  "cannot be unpacked",
  "not safe to unpack: .*nothing was",
)
HOSTILE = {
  "link.tar": (of(("link", b""), kind=tarfile.SYMTYPE), NONE),
  "pipe.tar": (of(("link", b""), kind=tarfile.FIFOTYPE), NONE),
  "two.tar": (of(("x", b"1"), ("x", b"2")), BROKEN),
  "long.tar.gz": (of(("a", b""), headers={"path": "x" * (2 << 20)}), BROKEN),
  "bomb.zip": (of(("small", b"1"), ("bomb", bytes(4 << 20))), UNTRUSTED),
  "bomb.tar.xz": (of(("small", b"1"), ("bomb", bytes(4 << 20))), UNTRUSTED),
}
HOSTILE |= {
  f"{n}.{end}": (of(("good", b"1"), (name, b"evil")), UNTRUSTED)
  for n, name in enumerate(("/evil", "a/../../evil"))
  for end in ("zip", "tar.gz")
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archives_are_refused_as_a_whole(tmp_path, name):
  make, message = HOSTILE[name]
  make(tmp_path / name)
  folder = tmp_path / "deep" / "out"
  with pytest.raises(errors.InputError, match=message):
    archives.unpack(tmp_path / name, folder, str, MOST)
  assert everything(folder) == []


def test_a_disk_that_is_full(tmp_path):
  archive = write(tmp_path / "a.zip", [("x", bytes(900_000))])
  message = r"\(File too large\); fix this"
  with line_files.largest_file(400_000), pytest.raises(errors.InputError, match=message):
    archives.unpack(archive, tmp_path / "out", str, MOST)
  assert everything(tmp_path / "out") == ["../a.zip"]
