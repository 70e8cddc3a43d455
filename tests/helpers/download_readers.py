"""Readers of what downloads parse: partial files, notes, archives, tables and lists of OPUS."""

import bz2
import functools
import gzip
import hashlib
import http.client
import io
import json
import lzma
import pathlib
import shutil
import tarfile
import types
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trials import Reader

from vmsst import errors
from vmsst.downloads import archives, evaluation_sets, fetch, opus, tables

CONTENT = b"".join(b"%d\n" % i for i in range(900))
SHA256 = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
URL = "https://example.org/a"
_Fetcher = fetch.Fetcher  # tests replace it
_RECORDS = [
  {
    "corpus": "Europarl", "version": "v8", "preprocessing": "moses", "source": "de",
    "target": target, "url": f"https://example.org/OPUS-Europarl/v8/moses/de-{target}.txt.zip",
    "size": 7, "alignment_pairs": 100, "documents": "", "id": 1, "latest": "True",
    "source_tokens": 1, "target_tokens": 2,
  }
  for target in ("en", "fr")
]  # fmt: skip


class _Site(urllib.request.BaseHandler):
  """A web site in memory: content by the path of an address, with ranges."""

  handler_order = 1  # before that of urllib

  def __init__(self, pages: Mapping[str, bytes]):
    self._pages = pages

  def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
    """Returns the response to a request."""
    content = self._pages[urllib.parse.urlsplit(request.full_url).path]
    head, start = "HTTP/1.1 200 OK", int(request.get_header("Range", "bytes=0-")[6:-1])
    if start:
      head = "HTTP/1.1 206 OK" if start < len(content) else "HTTP/1.1 416 No"
      head += f"\r\nContent-Range: bytes {start}-{len(content) - 1}/{len(content)}"
      content = content[start:]
    head += f'\r\nETag: "1"\r\nContent-Length: {len(content)}\r\n\r\n'
    stream = io.BytesIO(head.encode() + content)
    response = http.client.HTTPResponse(types.SimpleNamespace(makefile=lambda mode: stream))
    response.begin()
    response.msg = response.reason
    return response


def fetcher_of(pages: Mapping[str, bytes]) -> fetch.Fetcher:
  """Returns a fetcher of pages in memory, by path."""
  fetcher = _Fetcher(attempts=2, pause=0)
  fetcher._opener.add_handler(_Site(pages))
  return fetcher


def _ends(work: Callable[[pathlib.Path], Any], *, kept: tuple[str, ...] = ()) -> Any:
  """Returns a reader that works in `out`.

  Args:
    work: Is called with the folder.
    kept: Names of what a refusal may leave in `out`.
  """

  def read(folder: pathlib.Path) -> None:
    out = folder / "out"
    try:
      work(folder)
    except errors.InputError:
      for path in out.iterdir() if out.exists() else ():
        if path.name in kept:
          shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
      raise
    shutil.rmtree(out)

  return read


def _resume(file: fetch.File, folder: pathlib.Path) -> None:
  path = folder / "out" / "a"
  with fetcher_of({"/a": CONTENT}) as fetcher:
    assert fetcher.fetch(file, path)
  assert [each.name for each in path.parent.iterdir()] == ["a"]
  assert path.stat().st_size == len(CONTENT)
  assert not file.checksum or path.read_bytes() == CONTENT


def _partials() -> Iterator[Reader]:
  for name, file in (
    ("with a checksum", fetch.File(URL, checksum=SHA256)),
    ("with a size", fetch.File(URL, size=len(CONTENT))),
  ):
    part = fetch.part_path(pathlib.Path("out/a"), file, '"1"', len(CONTENT))
    yield Reader(
      f"partial download {name}", {str(part): CONTENT[:2000]},
      _ends(functools.partial(_resume, file), kept=(part.name,)), writes=True,
    )  # fmt: skip
  whole = fetch.File(URL, size=len(CONTENT), checksum=SHA256)

  def present(folder: pathlib.Path) -> None:
    with fetcher_of({"/a": CONTENT}) as fetcher:
      fetcher.fetch(whole, folder / "out" / "a")
    assert (folder / "out" / "a").read_bytes() == CONTENT

  yield Reader("complete download", {"out/a": CONTENT}, _ends(present, kept=("a",)), writes=True)


def set_of(name: str, url: str, to: str, unpack: evaluation_sets.Unpack | None) -> Any:
  """Returns an evaluation set of one file."""
  item = evaluation_sets.Item(fetch.File(url), to, url.rpartition("/")[2])
  return evaluation_sets.EvaluationSet(name, "", "", "", name, (item,), unpack, None, "")


def _download(chosen: Any, pages: Mapping[str, bytes], folder: pathlib.Path) -> None:
  root = folder / "out"
  with fetcher_of(pages) as fetcher:
    found = evaluation_sets.download(fetcher, chosen, root)
  assert found
  assert all(path.is_file() and root in path.parents for path in found)
  with fetcher_of({}) as fetcher:
    assert evaluation_sets.download(fetcher, chosen, root) == found


def _sets() -> Iterator[Reader]:
  one = set_of("x", URL, "x/a", None)
  yield Reader(
    "note of an evaluation set",
    {"out/.downloads/x.json": json.dumps({"x/a": len(CONTENT)}).encode(), "out/x/a": CONTENT},
    _ends(functools.partial(_download, one, {"/a": CONTENT}), kept=(".downloads", "x")),
    hostile=("out/.downloads/x.json",), json=("out/.downloads/x.json",), writes=True,
  )  # fmt: skip
  how = evaluation_sets.Unpack("*.txt", "y", flat=True, most=1 << 20)
  zipped = set_of("y", f"{URL}.zip", "", how)
  content = _archives()["a.zip"]
  yield Reader(
    "archive of an evaluation set", {"out/.downloads/y/a.zip": content},
    _ends(functools.partial(_download, zipped, {"/a.zip": content}), kept=(".downloads",)),
    writes=True,
  )  # fmt: skip


@functools.cache
def _archives() -> dict[str, bytes]:
  members = {"top/x.txt": CONTENT, "top/deep/y.txt": b"y\n", "top/z.bin": b"z"}
  zipped, tarred = io.BytesIO(), io.BytesIO()
  with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
    for name, content in members.items():
      archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
  with tarfile.open(fileobj=tarred, mode="w", format=tarfile.PAX_FORMAT) as tar:
    for name, content in members.items():
      info = tarfile.TarInfo(name)
      info.size, info.pax_headers = len(content), {"comment": "x" * 30}
      tar.addfile(info, io.BytesIO(content))
  plain = tarred.getvalue()
  return {
    "a.zip": zipped.getvalue(),
    "a.tar": plain,
    "a.tgz": gzip.compress(plain, mtime=0),
    "a.tar.bz2": bz2.compress(plain),
    "a.tar.xz": lzma.compress(plain),
  }


def _unpack(name: str, folder: pathlib.Path) -> None:
  out = folder / "out" / "in"

  def choose(member: str) -> str | None:
    return member if member.endswith(".txt") else None

  (folder / "out").mkdir()
  found = archives.unpack(folder / name, out, choose, 1 << 20)
  assert found
  assert all(path.is_file() and out in path.parents for path in found)


def _join(name: str, folder: pathlib.Path) -> None:
  (folder / "out").mkdir()
  columns = {"who": "a", "part": tables.PART, "text": "b"}
  parts = {"train": folder / name, "test": folder / name}
  path = folder / "out" / "x.tsv"
  tables.join(parts, columns, path, quoted=name.endswith("csv"), header=True)
  assert all(line.count("\t") == 2 for line in path.read_text("utf-8").split("\n")[:-1])


def _list(folder: pathlib.Path) -> None:
  path = folder / "list.json"
  with fetcher_of({"/opusapi/": path.read_bytes() if path.is_file() else b""}) as fetcher:
    ask = opus.api(fetcher, "https://example.org/opusapi/")
    found = opus.releases(ask, [("Europarl", None)], opus.anything)
  _check_releases(found)


def _check_releases(found: list[opus.Release]) -> None:
  assert "\n".join(opus.describe(found)).isprintable() or found
  for release in found:
    assert len(release.path.parts) == 4
    assert not {"..", "."} & set(release.path.parts)
    assert len(release.path.name) < 200
    fetch.check_address(release.url)


def readers() -> list[Reader]:
  """All of them; they take milliseconds."""
  quoted = b'a,b,c\n"x, y",1,"two\nlines"\n"say ""so""",2,z\n'
  found = [*_partials(), *_sets()]
  for name, content in _archives().items():
    found.append(
      Reader(
        f"archive {name}", {name: content}, _ends(functools.partial(_unpack, name)), writes=True
      )
    )
  for name, content in (("t.csv", quoted), ("t.tsv", b"a\tb\tc\nx\ty\tz\n1\t2\t3\n")):
    work = _ends(functools.partial(_join, name))
    found.append(Reader(f"table {name}", {name: content}, work, writes=True))
  answer = json.dumps({"corpora": _RECORDS}).encode()
  found.append(Reader("list of the OPUS API", {"list.json": answer}, _list, json=("list.json",)))
  return found
