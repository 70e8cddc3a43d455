"""Random access to the rows in one split of a task.

Training reads rows in random order, so a table must be able to find any row quickly. `TextTable`
copies texts from files in any format to a temporary file. `RecordTable` reads the files in a built
dataset in place. Both classes memory-map their files, so texts do not have to fit in memory.

For distillation, rows also contain vectors that a trained encoder, the teacher, computed in
advance. For each bitext of N pairs, `vmsst data embed` writes one NumPy file, float32 [N, 2, S],
with the source vector and the target vector of every pair. S is the dimension of the vectors.
"""

import abc
import array
import functools
import hashlib
import mmap
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from vmsst import errors, storage
from vmsst.data import dataset_shards, readers
from vmsst.data.readers import BitextFile
from vmsst.io import array_files, manifest

SIDES = {"inputs": "input_language", "targets": "target_language"}
"""Column names for the two texts in a pair, and for their language ids."""
OBJECTIVE = "objective/"
"""Prefix of a zero-width column's name. The rest of the name is the rows' training objective."""
TEACHER_SIDES = ("teacher_inputs", "teacher_targets")
"""Column names for the teacher's vectors of the two texts."""

Columns = Mapping[str, Any]
"""Columns by name. Texts are lists, `negatives` is a list of lists, all others are arrays [N, ...].
"""


class Table(abc.ABC):
  """A table whose rows contain texts.

  Attributes:
    dropped: Number of rows that were skipped because a text is missing.
    window: Number of neighboring rows that are shuffled together.
  """

  dropped = 0
  window = 1 << 20

  @abc.abstractmethod
  def __len__(self) -> int:
    """Number of rows."""

  @abc.abstractmethod
  def rows(self, number_N: np.ndarray) -> Columns:
    """Returns the rows with the given indices, in the order given."""

  def share(self, index: int, count: int) -> "Table | None":
    """Returns a table with one host's files, or None if the hosts cannot share the files evenly."""
    del index, count
    return None


class TextTable(Table):
  """Texts in a temporary file, with further columns in memory.

  Args:
    texts: The texts of each row: `inputs`, optionally `targets`, then any number of `negatives`.
    columns: Further columns, by name. Each column is an array [N, ...], or an object that can be
      indexed with an array of row numbers.
    prompts: The prompt to prepend to every input, and the prompt to prepend to every target and
      negative.

  Attributes:
    columns: The further columns. Callers may add columns.
    count_N: Number of texts in each row.
  """

  def __init__(
    self,
    texts: Iterable[Sequence[str]],
    columns: dict[str, Any],
    prompts: tuple[str, str] = ("", ""),
  ):
    ends, counts = array.array("q", [0]), array.array("q")
    with tempfile.TemporaryFile(prefix="vmsst-") as file:
      for row in texts:
        counts.append(len(row))
        for text in row:
          ends.append(ends[-1] + file.write(text.encode()))
      file.flush()
      self._bytes: Any = b""
      if ends[-1]:
        # The memory map keeps the file open after the `with` block.
        self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    self._ends = np.frombuffer(ends, np.int64)
    self.count_N = np.frombuffer(counts, np.int64) if counts else np.zeros(0, np.int64)
    self._starts = np.cumsum(self.count_N) - self.count_N
    self.columns = columns
    self._prompts = prompts

  def __len__(self) -> int:
    """Number of rows."""
    return len(self.count_N)

  def rows(self, number_N: np.ndarray) -> Columns:
    """Returns the rows with the given indices, in the order given. Missing negatives are ""."""
    width = self.count_N.max(initial=1)
    texts = [self._texts(number_N, column) for column in range(width)]
    columns: dict[str, Any] = dict(zip(SIDES, texts, strict=False))
    if width > len(SIDES):
      columns["negatives"] = [list(row) for row in zip(*texts[len(SIDES) :], strict=True)]
    return columns | {name: column[number_N] for name, column in self.columns.items()}

  def _texts(self, number_N: np.ndarray, column: int) -> list[str]:
    """Returns one column of the given rows, with the prompt prepended. Missing texts are ""."""
    prompt = self._prompts[min(column, 1)]
    exists_N = self.count_N[number_N] > column
    cell_N = np.where(exists_N, self._starts[number_N] + column, 0)
    bounds = zip(
      self._ends[cell_N].tolist(), self._ends[cell_N + 1].tolist(), exists_N, strict=True
    )
    return [
      prompt + self._bytes[start:end].decode() if exists and start < end else ""
      for start, end, exists in bounds
    ]

  def pairs(self) -> Iterator[tuple[str, str]]:
    """Yields the first two texts of each row, without prompts."""
    for start in self._starts.tolist():
      first, second, end = self._ends[start : start + 3].tolist()
      yield self._bytes[first:second].decode(), self._bytes[second:end].decode()

  @functools.cached_property
  def digest(self) -> str:
    """Hash of the texts and all array columns."""
    content = hashlib.sha256(self._bytes)
    arrays = {n: x for n, x in self.columns.items() if isinstance(x, np.ndarray)}
    for array_N in (self._ends, self.count_N, *(arrays[name] for name in sorted(arrays))):
      content.update(array_N.tobytes())
    return content.hexdigest()


def open_records(
  files: Sequence[BitextFile], counts: Sequence[int], teacher: str | None = None
) -> "RecordTable":
  """Opens files from a built dataset as one table.

  Args:
    files: The files for one language pair.
    counts: Number of pairs in each file.
    teacher: Folder with a teacher's vectors for the files, or None.

  Raises:
    InputError: If the vectors do not match the files.
  """
  vectors = []
  if teacher:
    vectors = [open_vectors(teacher, file) for file in files]
    check_vectors(teacher, dict(zip(files, counts, strict=True)))
  return RecordTable(files, counts, vectors)


class RecordTable(Table):
  """Pairs from `vmsst data build` files, in file order. The pairs in a file are already shuffled.

  A file is opened when one of its rows is first read. A file in an object store is first copied to
  the local disk.

  Args:
    files: The files for one language pair.
    counts: Number of pairs in each file.
    vectors: A teacher's vectors for each file. Empty if there is no teacher.
  """

  window = 10_000  # The pairs are already shuffled, and a small window keeps few files open.

  def __init__(
    self, files: Sequence[BitextFile], counts: Sequence[int], vectors: Sequence[np.ndarray] = ()
  ):
    self._files = files
    self._counts = counts
    self._vectors = vectors
    self._starts = np.cumsum([0, *counts])
    self._columns: dict[str, Any] = {
      name: np.broadcast_to(np.int32(language.index), [len(self), 1])
      for name, language in zip(SIDES.values(), (files[0].source, files[0].target), strict=True)
    }
    for index, name in enumerate(TEACHER_SIDES if vectors else ()):
      self._columns[name] = VectorColumn(vectors, index)

  def __len__(self) -> int:
    """Number of rows."""
    return int(self._starts[-1])

  def rows(self, number_N: np.ndarray) -> Columns:
    """Returns the rows with the given indices, in the order given.

    Raises:
      InputError: If a file is missing or damaged, or its number of pairs differs from `counts`.
    """
    file_N = np.searchsorted(self._starts, number_N, side="right") - 1
    record_N = number_N - self._starts[file_N]
    pairs = [
      _open_records(self._files[file].paths[0], self._counts[file]).pair(record)
      for file, record in zip(file_N.tolist(), record_N.tolist(), strict=True)
    ]
    texts = zip(SIDES, map(list, zip(*pairs, strict=True)), strict=True)
    return dict(texts) | {name: column[number_N] for name, column in self._columns.items()}

  def share(self, index: int, count: int) -> "RecordTable | None":
    """Returns a table with one host's files, or None if the hosts cannot share the files evenly."""
    if len(self._files) % count:  # A host with fewer files would repeat its rows more often.
      return None
    host_files = slice(index, None, count)
    return RecordTable(self._files[host_files], self._counts[host_files], self._vectors[host_files])


@functools.lru_cache(maxsize=256)  # Maximum number of open files.
def _open_records(path: str, count: int) -> dataset_shards.Records:
  records = dataset_shards.Records(path)
  if len(records) != count:
    raise errors.InputError(
      f"{path} has {len(records)} pairs, but the dataset's description says {count}; copy or "
      "build the dataset again"
    )
  return records


def open_vectors(folder: str, bitext: BitextFile) -> np.memmap:
  """Memory-maps a bitext's vectors, float32 [lines, 2, S].

  A file in an object store is copied to the local disk, once per process.

  Raises:
    InputError: If the file is missing or unreadable, or does not contain a float32 array with this
      shape.
  """
  path = vectors_path(folder, bitext)
  local = storage.cached_copy(path)
  with storage.rename_in_errors(local, path):
    return array_files.open_mapped(local, ("lines", 2, "width"))


def vectors_path(folder: str, bitext: BitextFile) -> str:
  """Returns the path of the vectors file for a bitext."""
  return os.path.join(folder, vectors_name(bitext))


def vectors_name(bitext: BitextFile) -> str:
  """Returns the path of the vectors file for a bitext, relative to the vectors folder.

  The path includes the name of the bitext's folder, so that bitexts with the same file name in
  different folders do not collide.
  """
  folder, name = os.path.split(bitext.paths[0])
  return os.path.join(os.path.basename(folder), f"{name}.npy")


def check_vectors(folder: str, counts: Mapping[BitextFile, int]) -> None:
  """Raises InputError unless a folder contains up-to-date vectors for bitexts.

  Args:
    folder: The vectors folder. If `vmsst data embed` wrote the folder, the bitexts must be
      unchanged since then.
    counts: The number of lines in each bitext.
  """
  paths = [os.path.join(folder, below, manifest.NAME) for below in ("", storage.UNFINISHED)]
  record = manifest.read(folder) if any(map(storage.exists, paths)) else None
  for bitext, count in counts.items():
    line_count, problem = len(open_vectors(folder, bitext)), ""
    if line_count != count:
      problem = f"has vectors for {line_count} lines, but {bitext} has {count} lines"
    elif record is not None:
      entry = record.parts.get(vectors_name(bitext))
      if entry is None or entry.facts["bitext"] != readers.digest(bitext):
        problem = f"does not match the current content of {bitext}"
    if problem:
      raise errors.InputError(
        f"{vectors_path(folder, bitext)}: {problem}; recompute the vectors with `vmsst data embed`"
      )


class VectorColumn:
  """The source vectors or the target vectors from arrays [lines, 2, S].

  Args:
    arrays: The vectors.
    index: 0 for sources, 1 for targets.
    line_N: The line number of each row, counted across all arrays (default: all lines).
  """

  def __init__(self, arrays: Sequence[np.ndarray], index: int, line_N: np.ndarray | None = None):
    self._arrays = arrays
    self._index = index
    self._line_N = line_N
    self._starts = np.cumsum([0, *map(len, arrays)])

  def __getitem__(self, number_B: np.ndarray) -> np.ndarray:
    """Returns the vectors for the rows with the given indices, float32 [B, S]."""
    line_B = number_B if self._line_N is None else self._line_N[number_B]
    array_B = np.searchsorted(self._starts, line_B, side="right") - 1
    vector_BS = np.empty([len(line_B), self._arrays[0].shape[2]], np.float32)
    for number in np.unique(array_B):
      rows = array_B == number
      vector_BS[rows] = self._arrays[number][line_B[rows] - self._starts[number], self._index]
    return vector_BS
