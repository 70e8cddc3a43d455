"""The sets of the benchmarks: where they are, under which license, and getting them.

`catalog/catalog.json` has all of them; lists of many files are in tables beside it, with the
size and the id in Git of each. What is fetched lies below a data root as
`vmsst.evaluation.benchmarks` reads it. Sets that nobody may or can give to a program are there with
what to do by hand.
"""

import dataclasses
import fnmatch
import functools
import json
import pathlib
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from vmsst import errors
from vmsst.downloads import archives, fetch, tables
from vmsst.files import atomic_files

ALL = "all"

_CATALOG = pathlib.Path(__file__).with_name("catalog")
_STAGE = ".downloads"
_CHECKS = {"": "the length sent", "git": "ids of Git", "sha256": "SHA-256"}


@dataclasses.dataclass(frozen=True)
class Item:
  """A file of a set.

  Attributes:
    file: What to fetch.
    to: Where it belongs below the data root; "" if something is made of it.
    path: What it is called until then.
  """

  file: fetch.File
  to: str
  path: str


@dataclasses.dataclass(frozen=True)
class Unpack:
  """How the archives of a set are unpacked.

  Attributes:
    members: Pattern of the names of members.
    into: Folder below the data root.
    flat: Whether all go right into it; else the first folder of their names is left out.
    most: Bytes that may come out of an archive.
  """

  members: str
  into: str
  flat: bool
  most: int


@dataclasses.dataclass(frozen=True)
class Tables:
  """How tables of a set are joined.

  Attributes:
    to: Where each goes below the data root; "{name}" in it stands for any name.
    parts: Its parts, with that name in them, by what to call them.
    quoted: See `tables.join`.
    header: Whether the names of the columns are written.
    columns: See `tables.join`.
  """

  to: str
  parts: Mapping[str, str]
  quoted: bool
  header: bool
  columns: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class EvaluationSet:
  """A set of a benchmark.

  Attributes:
    name: Unique.
    title: What it is.
    license: For people.
    page: Where it is published.
    folder: Where it belongs, below the data root.
    items: Its files.
    unpack: How they are unpacked, if they are archives.
    tables: How they are joined, if they are parts of tables.
    by_hand: What to do, if it cannot be fetched; else "".
  """

  name: str
  title: str
  license: str
  page: str
  folder: str
  items: tuple[Item, ...]
  unpack: Unpack | None
  tables: Tables | None
  by_hand: str

  @property
  def size(self) -> int | None:
    """Bytes to fetch, or None if some size is not published."""
    sizes = [item.file.size for item in self.items]
    return None if None in sizes else sum(size or 0 for size in sizes)

  @property
  def joined(self) -> dict[str, dict[str, str]]:
    """The tables that are made, by where they go, and the paths of their parts."""
    if self.tables is None:
      return {}
    first = next(iter(self.tables.parts.values()))
    before, _, after = first.partition("{name}")
    names = [
      item.path[len(before) : len(item.path) - len(after)]
      for item in self.items
      if item.path.startswith(before) and item.path.endswith(after)
    ]
    return {
      self.tables.to.replace("{name}", name): {
        part: path.replace("{name}", name) for part, path in self.tables.parts.items()
      }
      for name in names
    }


@functools.cache
def catalog() -> Mapping[str, EvaluationSet]:
  """All sets, by name."""
  entries = json.loads((_CATALOG / "catalog.json").read_text(encoding="utf-8"))
  return {name: _entry(name, entry) for name, entry in entries.items()}


def named(names: Iterable[str]) -> list[EvaluationSet]:
  """The sets of these names, each once, in the order of the catalog; "all" is all of them.

  Raises:
    InputError: there is no set of a name.
  """
  wanted, known = set(names), catalog()
  if unknown := sorted(wanted - {*known, ALL}):
    raise errors.InputError(
      f"no evaluation set {', '.join(unknown)}; known: {', '.join(known)}, or {ALL}"
    )
  return [each for name, each in known.items() if name in wanted or ALL in wanted]


def choose(names: Iterable[str]) -> list[EvaluationSet]:
  """As `named`, of the sets that can be fetched.

  Raises:
    InputError: there is no set of a name, or it is to be got by hand; the message says how.
  """
  wanted = set(names)
  found = named(wanted)
  for each in found:
    if each.by_hand and each.name in wanted:
      raise errors.InputError(
        f"{each.name} is to be got by hand, into {each.folder} below the data root: "
        f"{each.by_hand}; it is described at {each.page}"
      )
  return [each for each in found if not each.by_hand]


def download(
  fetcher: fetch.Fetcher,
  chosen: EvaluationSet,
  root: pathlib.Path,
  report: Callable[[str], None] = lambda line: None,
) -> list[pathlib.Path]:
  """Makes a set be there below a data root.

  What is not finished is in `.downloads/NAME` there, and is gone on with by the next call. A note
  in `.downloads/NAME.json` tells that a set is complete; its files are then left alone.

  Returns:
    Its files.

  Raises:
    InputError: as `fetch.Fetcher.fetch` and `archives.unpack`, or a file is there with and without
      ".gz".
  """
  stage, note = root / _STAGE / chosen.name, root / _STAGE / f"{chosen.name}.json"
  if (found := _complete(note, root)) is not None:
    report(f"{chosen.name}: complete")
    return found
  _refuse_twins(chosen, root)
  paths, staged = [], {}
  for item in chosen.items:
    path = root / item.to if item.to else stage / item.path
    fetcher.fetch(item.file, path)
    if item.to:
      paths.append(path)
    else:
      staged[item.path] = path
  if chosen.unpack is not None:
    for path in staged.values():
      report(f"{chosen.name}: unpacking {path.name}")
      paths += _unpack(path, chosen.unpack, root)
  if chosen.tables is not None:
    for to, parts in chosen.joined.items():
      sources = {part: staged[path] for part, path in parts.items()}
      how = chosen.tables
      tables.join(sources, how.columns, root / to, quoted=how.quoted, header=how.header)
      paths.append(root / to)
  _write_note(note, root, paths)
  shutil.rmtree(stage, ignore_errors=True)
  report(f"{chosen.name}: {len(paths):,} files in {root / chosen.folder}")
  return paths


def describe(each: EvaluationSet) -> str:
  """A set for people: its name, title, place, size, license, and what to do by hand."""
  lines = [f"{each.name}: {each.title}", f"  folder   {each.folder}", f"  license  {each.license}"]
  if each.by_hand:
    lines.append(f"  BY HAND  {each.by_hand}")
  else:
    size = "size not published" if each.size is None else f"{each.size / 2**20:,.1f} MiB"
    checked = dict.fromkeys(_CHECKS[x.file.checksum.partition(":")[0]] for x in each.items)
    lines.append(f"  fetched  {len(each.items)} files, {size}, checked by {', '.join(checked)}")
  if each.page:
    lines.append(f"  page     {each.page}")
  return "\n".join(lines)


def _unpack(path: pathlib.Path, how: Unpack, root: pathlib.Path) -> Sequence[pathlib.Path]:
  def place(name: str) -> str | None:
    parts = name.split("/")
    if not fnmatch.fnmatchcase(name, how.members) or parts[-1].startswith("._"):
      return None  # The latter are what a Mac puts beside files.
    return parts[-1] if how.flat else "/".join(parts[1:]) or None

  return archives.unpack(path, root / how.into, place, how.most)


def _refuse_twins(chosen: EvaluationSet, root: pathlib.Path) -> None:
  for to in [*(item.to for item in chosen.items if item.to), *chosen.joined]:
    twin = root / (to.removesuffix(".gz") if to.endswith(".gz") else to + ".gz")
    if twin.exists():
      raise errors.InputError(
        f"{twin} is there already: keep it and leave {chosen.name} out, or remove it"
      )


def _complete(note: pathlib.Path, root: pathlib.Path) -> list[pathlib.Path] | None:
  """The files of a set, if a note says that all were there and they still are, of that size."""
  try:
    sizes = json.loads(note.read_text(encoding="utf-8"))
    paths = {root / name: size for name, size in sizes.items()}
    if paths and all(path.stat().st_size == size for path, size in paths.items()):
      return list(paths)
  except (OSError, ValueError, AttributeError):
    pass
  return None


def _write_note(note: pathlib.Path, root: pathlib.Path, paths: Iterable[pathlib.Path]) -> None:
  sizes = {path.relative_to(root).as_posix(): path.stat().st_size for path in paths}
  atomic_files.write_json(note, sizes)


def _entry(name: str, entry: Mapping[str, Any]) -> EvaluationSet:
  items = [_item(**each) for each in entry.get("files", ())]
  if listed := entry.get("list"):
    for line in (_CATALOG / listed["files"]).read_text(encoding="utf-8").splitlines():
      path, size, blob = line.split("\t")
      into = listed.get("into")
      items.append(
        Item(
          fetch.File(listed["base"] + path, int(size) if size else None, checksum=f"git:{blob}"),
          f"{into}/{path.rpartition('/')[2]}" if into else "",
          path,
        )
      )
  return EvaluationSet(
    name=name,
    title=entry["title"],
    license=entry["license"],
    page=entry["page"],
    folder=entry["folder"],
    items=tuple(items),
    unpack=Unpack(**entry["unpack"]) if "unpack" in entry else None,
    tables=Tables(**entry["tables"]) if "tables" in entry else None,
    by_hand=entry.get("by_hand", ""),
  )


def _item(url: str, size: int | None = None, checksum: str = "", to: str = "") -> Item:
  return Item(fetch.File(url, size, checksum=checksum), to, url.rpartition("/")[2])
