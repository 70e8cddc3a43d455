import io
import os
import tarfile
import zipfile
import zlib

import pytest

from vmsst import errors
from vmsst.downloads import archives

MOST = 1 << 20
TARS = ("a.tar", "a.tar.gz", "a.tgz", "a.tar.bz2", "a.tar.xz")


def write_zip(path, members, **options):
  with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, **options) as out:
    for name, content in members:
      out.writestr(name, content)
  return path


def write_tar(path, members, kind=tarfile.REGTYPE, link="", **options):
  mode = {"gz": "w:gz", "tgz": "w:gz", "bz2": "w:bz2", "xz": "w:xz"}.get(path.suffix[1:], "w")
  with tarfile.open(path, mode, **options) as out:
    for name, content in members:
      info = tarfile.TarInfo(name)
      info.size, info.type, info.linkname = len(content), kind, link
      out.addfile(info, io.BytesIO(content))
  return path


def write_archive(path, members):
  return (write_zip if path.suffix == ".zip" else write_tar)(path, members)


def everything(folder):
  """Names of all files in the parent of a folder, relative to the folder."""
  return sorted(
    os.path.relpath(os.path.join(place, name), folder)
    for place, _, names in os.walk(folder.parent)
    for name in names
  )


@pytest.mark.parametrize("name", ["a.zip", *TARS])
def test_chosen_members_arrive(tmp_path, name):
  members = [("./top/x.txt", b"x" * 70_000), ("top/deep/y.txt", b"y"), ("top/z.bin", b"z")]
  archive = write_archive(tmp_path / name, members)
  folder = tmp_path / "out"

  def choose(member):
    assert not member.startswith("./")
    return member.removeprefix("top/") if member.endswith(".txt") else None

  found = archives.unpack(archive, folder, choose, MOST)
  assert found == [folder / "x.txt", folder / "deep" / "y.txt"]
  assert found[0].read_bytes() == b"x" * 70_000
  assert everything(folder) == sorted(["../" + name, "x.txt", "deep/y.txt"])


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz"])
@pytest.mark.parametrize(
  "hostile",
  ["../evil", "/evil", "a/../../evil", "..", "..\\evil", "C:evil", "\\\\host\\evil", "a\nb"],
)
def test_members_outside_are_refused(tmp_path, name, hostile):
  archive = write_archive(tmp_path / name, [("good", b"1"), (hostile, b"evil")])
  folder = tmp_path / "deep" / "out"
  with pytest.raises(errors.InputError, match=r"outside of itself.*nothing was unpacked"):
    archives.unpack(archive, folder, str, MOST)
  assert everything(folder) == []


@pytest.mark.parametrize(
  "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
)
def test_links_and_devices_of_tar_are_refused(tmp_path, kind):
  secret = tmp_path / "secret"
  secret.write_text("secret")
  archive = write_tar(tmp_path / "a.tar", [("link", b"")], kind, str(secret))
  folder = tmp_path / "b" / "out"
  with pytest.raises(errors.InputError, match="'link' is a link"):
    archives.unpack(archive, folder, str, MOST)
  assert everything(folder) == []


def test_links_and_encrypted_members_of_zip_are_refused(tmp_path):
  link = zipfile.ZipInfo("link")
  link.external_attr = 0o120777 << 16
  locked = zipfile.ZipInfo("locked")
  for info in (link, locked):
    path = write_zip(tmp_path / "a.zip", [(info, b"/etc/passwd")])
    if info is locked:  # Set the flag for encryption in the central directory.
      content = bytearray(path.read_bytes())
      content[content.index(b"PK\x01\x02") + 8] |= 1
      path.write_bytes(content)
    with pytest.raises(errors.InputError, match="link, encrypted"):
      archives.unpack(path, tmp_path / "b" / "out", str, MOST)
    assert everything(tmp_path / "b" / "out") == []


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz", "a.tar.bz2", "a.tar.xz"])
def test_bombs_are_stopped(tmp_path, name):
  path, bomb = tmp_path / name, bytes(4 << 20)
  write_archive(path, [("small", b"1"), ("bomb", bomb)])
  with pytest.raises(errors.InputError, match="more bytes than expected"):
    archives.unpack(path, tmp_path / "b" / "out", str, MOST)
  assert everything(tmp_path / "b" / "out") == []


def test_a_zip_that_understates_a_size_is_stopped(tmp_path):
  path = write_zip(tmp_path / "a.zip", [("bomb", bytes(4 << 20))])
  size = (4 << 20).to_bytes(4, "little")
  path.write_bytes(path.read_bytes().replace(size, (1000).to_bytes(4, "little")))
  with pytest.raises(errors.InputError, match=r"cannot be unpacked.*CRC"):
    archives.unpack(path, tmp_path / "b" / "out", str, MOST)
  assert everything(tmp_path / "b" / "out") == []


def test_a_bomb_in_the_header_of_a_tar_is_stopped(tmp_path):
  header = {"path": "x" * (2 << 20)}
  with tarfile.open(tmp_path / "a.tar.gz", "w:gz", format=tarfile.PAX_FORMAT) as out:
    info = tarfile.TarInfo("a")
    info.pax_headers = header
    out.addfile(info)
  with pytest.raises(errors.InputError, match="a header of 2,097,"):
    archives.unpack(tmp_path / "a.tar.gz", tmp_path / "out", str, MOST)


@pytest.mark.parametrize("name", ["a.zip", *TARS])
def test_broken_archives_leave_nothing(tmp_path, name):
  path = tmp_path / name
  noise = zlib.compress(bytes(range(256)) * 500, 0)
  write_archive(path, [("one", noise), ("two", noise[::-1])])
  content = path.read_bytes()
  for broken in (b"", b"<html>Not found</html>" * 90, content[: len(content) * 2 // 3]):
    path.write_bytes(broken)
    with pytest.raises(errors.InputError, match=r"cannot be unpacked|none of the expected"):
      archives.unpack(path, tmp_path / "b" / "out", str, MOST)
    assert everything(tmp_path / "b" / "out") == []


def test_two_members_of_one_name_or_none(tmp_path):
  archive = write_tar(tmp_path / "a.tar", [("a/x", b"1"), ("b/x", b"2")])
  with pytest.raises(errors.InputError, match="two members are x"):
    archives.unpack(archive, tmp_path / "out", lambda name: name[-1], MOST)
  with pytest.raises(errors.InputError, match="none of the expected"):
    archives.unpack(archive, tmp_path / "out", lambda name: None, MOST)
  assert everything(tmp_path / "out") == ["../a.tar"]


def test_a_disk_that_is_full(tmp_path):
  import resource

  archive = write_zip(tmp_path / "a.zip", [("x", bytes(900_000))])
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, limits[1]))
  try:
    with pytest.raises(errors.InputError, match=r"\(File too large\); fix this"):
      archives.unpack(archive, tmp_path / "out", str, MOST)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
  assert everything(tmp_path / "out") == ["../a.zip"]
