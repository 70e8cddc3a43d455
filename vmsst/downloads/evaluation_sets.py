"""Lists and downloads benchmark evaluation sets.

`catalog.json` contains the URLs and licenses of the sets. If a set consists of many files,
`files.tsv` lists these files, with the size and Git blob id of each file. `download` writes files
below a data root, in the layout that `vmsst.evaluation.benchmarks` reads. For sets that cannot be
downloaded automatically, the catalog contains instructions.
"""

import csv
import dataclasses
import fnmatch
import functools
import json
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from vmsst import errors, storage
from vmsst.downloads import fetch
from vmsst.io import archives, input_files
from vmsst.jobs import outputs

ALL = "all"
SPLIT = "@split"
"""Placeholder for a column that contains the name of the split that each row comes from."""

_CATALOG = pathlib.Path(__file__).with_name("catalog.json")
# The columns are the set name, the path, the size in bytes and the Git blob id.
_FILES = pathlib.Path(__file__).with_name("files.tsv")
_STAGE = ".downloads"
_CHECKS = {"": "length", "git": "Git ids", "sha256": "SHA-256"}


@dataclasses.dataclass(frozen=True)
class Item(fetch.File):
  """A file in a set.

  Attributes:
    to: Path below the data root; "" if the file is an archive to unpack or a table to join.
    path: Path of an archive or table in the temporary folder.
  """

  to: str = ""
  path: str = ""


@dataclasses.dataclass(frozen=True)
class Unpack:
  """How to unpack the archives in a set.

  Attributes:
    members: Glob pattern that selects the members to unpack.
    into: Target folder below the data root.
    flat: Whether to drop all folders from member names. If false, only the first folder is dropped.
    max_bytes: Maximum total size of the members unpacked from one archive, in bytes.
  """

  members: str
  into: str
  flat: bool
  max_bytes: int


@dataclasses.dataclass(frozen=True)
class Tables:
  """How to join the splits of a table (such as dev and test) into one file.

  Attributes:
    to: Path of the joined table below the data root. If the path contains the placeholder
      "{name}", one table is written for each name.
    splits: Path of each split, by split name. If `to` contains "{name}", these paths do too.
    quoted: Whether fields in the split files may be quoted.
    header: Whether to write a header line.
    columns: For each column of the joined table, the corresponding column in the split files, or
      `SPLIT` for a column with the name of the split.
  """

  to: str
  splits: Mapping[str, str]
  quoted: bool
  header: bool
  columns: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class EvaluationSet:
  """A benchmark evaluation set.

  Attributes:
    name: Unique name.
    title: Short description.
    license: Name of the license.
    page: URL of the page that publishes the set.
    folder: Folder below the data root.
    items: Files to download.
    unpack: How to unpack archives, if the set contains any.
    tables: How to join the splits of tables, if the set contains any.
    by_hand: How to download the set by hand; "" if `download` can download the set.
  """

  name: str
  title: str
  license: str
  page: str
  folder: str
  items: tuple[Item, ...] = ()
  unpack: Unpack | None = None
  tables: Tables | None = None
  by_hand: str = ""

  @property
  def table_splits(self) -> dict[str, dict[str, str]]:
    """Maps the path of each joined table to the paths of its splits."""
    if self.tables is None:
      return {}
    first = next(iter(self.tables.splits.values()))
    pattern = re.escape(first).replace(re.escape("{name}"), "(?P<name>.*)")
    matches = (re.fullmatch(pattern, item.path) for item in self.items)
    names = [match.groupdict().get("name", "") for match in matches if match]
    return {
      self.tables.to.replace("{name}", name): {
        split: path.replace("{name}", name) for split, path in self.tables.splits.items()
      }
      for name in names
    }


@functools.cache
def catalog() -> Mapping[str, EvaluationSet]:
  """Returns all sets by name."""
  entries = json.loads(_CATALOG.read_text(encoding="utf-8"))
  return {name: _entry(name, entry) for name, entry in entries.items()}


def find(names: Iterable[str]) -> list[EvaluationSet]:
  """Returns the sets with the given names, in catalog order. The name "all" selects all sets.

  Raises:
    InputError: If a name is unknown.
  """
  names_set, all_sets = set(names), catalog()
  for name in names_set:
    errors.check_choice("evaluation set", name, [*all_sets, ALL])
  return [entry for name, entry in all_sets.items() if name in names_set or ALL in names_set]


def choose(names: Iterable[str]) -> list[EvaluationSet]:
  """Like `find`, but the name "all" selects only the sets that `download` supports.

  Raises:
    InputError: If a name is unknown, or a set must be downloaded by hand. In the latter case, the
      message explains how to download the set.
  """
  names_set = set(names)
  selected = find(names_set)
  for entry in selected:
    if entry.by_hand and entry.name in names_set:
      raise errors.InputError(
        f"{entry.name} must be downloaded by hand, into {entry.folder} below the data root: "
        f"{entry.by_hand}; see {entry.page}"
      )
  return [entry for entry in selected if not entry.by_hand]


def download(
  fetcher: fetch.Fetcher,
  entry: EvaluationSet,
  root: storage.Path,
  report: Callable[[str], None] = lambda line: None,
) -> list[storage.Path]:
  """Downloads a set below a data root.

  The file `.downloads/NAME.json` below the root marks a complete set and lists the checksums of its
  files. If all files still match their checksums, nothing is downloaded. Archives to unpack and
  tables to join stay in `.downloads/NAME` until the set is complete, so the next call resumes an
  interrupted download. If the root is in an object store, files are downloaded to a temporary
  folder and then uploaded.

  Args:
    fetcher: Downloads files.
    entry: The set.
    root: The data root, local or in an object store.
    report: Called with each progress message.

  Returns:
    The paths of the files in the set.

  Raises:
    InputError: If a joined table already exists with different content. See also
      `fetch.Fetcher.fetch` and `archives.unpack`.
  """
  if storage.is_file(note := _note(entry, root)):
    digests = {root / name: digest for name, digest in input_files.read_json(note).items()}
    if all(storage.is_file(x) and input_files.sha256(x) == digests[x] for x in digests):
      report(f"{entry.name}: complete")
      return [*digests]
  if storage.is_url(root):
    with tempfile.TemporaryDirectory(prefix="vmsst-") as folder:
      local = pathlib.Path(folder)
      files = [*_download(fetcher, entry, local, report), _note(entry, local)]
      paths = [root / path.relative_to(local).as_posix() for path in files]
      # The marker is uploaded last, so if it exists, all other files exist too.
      for path, target in zip(files, paths, strict=True):
        storage.upload(path, os.fspath(target))
    paths.pop()
  else:
    paths = _download(fetcher, entry, pathlib.Path(root), report)
  report(f"{entry.name}: {len(paths):,} files in {root / entry.folder}")
  return paths


def _download(
  fetcher: fetch.Fetcher, entry: EvaluationSet, root: pathlib.Path, report: Callable[[str], None]
) -> list[pathlib.Path]:
  stage = root / _STAGE / entry.name
  paths, staged = [], {}
  for item in entry.items:
    path = root / item.to if item.to else stage / item.path
    fetcher.fetch(item, path)
    if item.to:
      paths.append(path)
    else:
      staged[item.path] = path
  if how := entry.unpack:

    def target_path(member: str) -> str | None:
      _, _, without_first_folder = member.partition("/")
      name = member.rpartition("/")[2]
      if not fnmatch.fnmatchcase(member, how.members) or name.startswith("._"):
        return None  # macOS stores metadata in files with names that start with "._".
      return name if how.flat else without_first_folder or None

    for path in staged.values():
      report(f"{entry.name}: unpacking {path.name}")
      paths += archives.unpack(path, root / how.into, target_path, how.max_bytes)
  if entry.tables is not None:
    for to, splits in entry.table_splits.items():
      joined = stage / "joined.tsv"
      _join({split: staged[path] for split, path in splits.items()}, entry.tables, joined)
      archives.check_replaceable(root / to, joined)
      (root / to).parent.mkdir(parents=True, exist_ok=True)
      os.replace(joined, root / to)
      paths.append(root / to)
  digests = {path.relative_to(root).as_posix(): input_files.sha256(path) for path in paths}
  outputs.write_json(_note(entry, root), digests)
  shutil.rmtree(stage, ignore_errors=True)
  return paths


def describe(entry: EvaluationSet) -> str:
  """Describes a set in several lines: its title, folder, license, download size and page."""
  lines = [
    f"{entry.name}: {entry.title}",
    f"  folder   {entry.folder}",
    f"  license  {entry.license}",
  ]
  if entry.by_hand:
    lines.append(f"  BY HAND  {entry.by_hand}")
  else:
    sizes = [item.size for item in entry.items]
    total = sum(size or 0 for size in sizes) / 2**20
    size = "size not published" if None in sizes else f"{total:,.1f} MiB"
    checked = dict.fromkeys(_CHECKS[x.checksum.partition(":")[0]] for x in entry.items)
    lines.append(f"  download {len(entry.items)} files, {size}, checked by {', '.join(checked)}")
  if entry.page:
    lines.append(f"  page     {entry.page}")
  return "\n".join(lines)


def _join(splits: Mapping[str, pathlib.Path], how: Tables, path: pathlib.Path) -> None:
  """Joins TAB-separated split files into one table, and normalizes white space in the fields."""
  with open(path, "w", encoding="utf-8", newline="") as out:
    if how.header:
      out.write("\t".join(how.columns) + "\n")
    for split, source in splits.items():
      with open(source, encoding="utf-8-sig", newline="") as stream:
        for row in csv.DictReader(
          stream,
          delimiter="\t",
          quoting=csv.QUOTE_MINIMAL if how.quoted else csv.QUOTE_NONE,
          strict=True,
        ):
          row[SPLIT] = split
          out.write("\t".join(" ".join(row[x].split()) for x in how.columns.values()) + "\n")


def _note(entry: EvaluationSet, root: storage.Path) -> storage.Path:
  """Returns the path of the file that marks a complete set."""
  return root / _STAGE / f"{entry.name}.json"


def _entry(name: str, entry: dict[str, Any]) -> EvaluationSet:
  items = [{"path": file["url"].rpartition("/")[2], **file} for file in entry.pop("files", ())]
  if file_list := entry.pop("list", None):
    into = file_list.get("into")
    for line in _FILES.read_text(encoding="utf-8").splitlines():
      of_set, path, size, blob = line.split("\t")
      if of_set == name:
        to = f"{into}/{path.rpartition('/')[2]}" if into else ""
        file = {"url": file_list["base"] + path, "size": int(size) if size else None}
        items.append({**file, "checksum": f"git:{blob}", "to": to, "path": path})
  return msgspec.convert({**entry, "name": name, "items": items}, EvaluationSet)
