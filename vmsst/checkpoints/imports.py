"""What imports of other models share: the record of every tensor, and where they may write."""

import dataclasses
import os
import pathlib

import numpy as np

from vmsst import errors

CHECKPOINT = "checkpoint_0"


@dataclasses.dataclass(frozen=True)
class Row:
  """What became of a tensor.

  Attributes:
    source: Its name in the checkpoint read.
    shape: Its shape there.
    targets: Parameters that it became.
    note: Why there are none.
  """

  source: str
  shape: tuple[int, ...]
  targets: tuple[str, ...] = ()
  note: str = ""

  @property
  def size(self) -> int:
    """Numbers in it."""
    return int(np.prod(self.shape))


def describe_rows(rows: tuple[Row, ...]) -> list[str]:
  """A line for every tensor: name, shape, and what became of it."""
  wide = max(len(row.source) for row in rows)
  return [
    f"{row.source:{wide}}  {'x'.join(map(str, row.shape)):>12}  "
    + (" and ".join(row.targets) if row.targets else f"left out: {row.note}")
    for row in rows
  ]


def free_folder(output: str | os.PathLike[str]) -> pathlib.Path:
  """Returns the absolute path of a folder that an import may make.

  Raises:
    InputError: it exists and is not an empty folder.
  """
  target = pathlib.Path(os.path.abspath(output))
  if target.exists() and not (target.is_dir() and not any(target.iterdir())):
    raise errors.InputError(f"{target} exists already: choose another folder or delete it")
  return target
