"""A search for neighbors that shows progress and resumes after interruption."""

import json
import pathlib
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from vmsst import errors
from vmsst.files import atomic_files, progress_bar
from vmsst.search import exact_search

# Between two writes of the neighbors found so far.
_SECONDS = 300.0

_Blocks = Iterator[tuple[int, np.ndarray]]


def resumable(
  engine: exact_search.Engine,
  path: pathlib.Path,
  identity: Mapping[str, Any],
  *,
  progress: bool | None = None,
) -> exact_search.Engine:
  """Returns an engine for one search of both directions that saves its state in a file.

  A resumed search finds what an uninterrupted one finds.

  Args:
    engine: Compares vectors.
    path: The file, written every five minutes; it stays after the search.
    identity: What is searched, as for JSON.
    progress: Show a progress bar; None: on a terminal only.

  Returns:
    The engine. It raises InputError if the file is broken, or from another search.
  """
  wanted = json.dumps(identity, sort_keys=True)

  def compare(
    source: exact_search.DistinctVectors,
    target: exact_search.DistinctVectors,
    forward: exact_search.Neighbors,
    backward: exact_search.Neighbors | None,
    /,
  ) -> None:
    if backward is None:
      raise ValueError("a search in one direction cannot be resumed")
    own = _arrays(forward, backward)
    done, found = load_state(path, wanted)
    for name in found:
      own[name][:] = found[name]
    height, saved = 0, time.monotonic()

    def sources(blocks: _Blocks) -> _Blocks:
      nonlocal height, saved
      for number, block_BD in blocks:
        new_BD = block_BD[max(0, done - number) :]
        if not len(new_BD):
          continue
        end = number + len(block_BD)
        height = len(new_BD)
        yield end - height, new_BD
        # The engine is done with these, and has not started others.
        if time.monotonic() - saved >= _SECONDS:
          save_state(path, wanted, end, **own)
          saved = time.monotonic()

    def targets(blocks: _Blocks) -> _Blocks:
      for number, block_CD in blocks:
        yield number, block_CD
        bar.update(height * len(block_CD))

    with progress_bar.Bar(
      total=len(source) * len(target),
      initial=done * len(target),
      unit=" comparisons",
      unit_scale=True,
      disable=None if progress is None else not progress,
    ) as bar:
      engine(_Watched(source, sources), _Watched(target, targets), forward, backward)

  return compare


class _Watched(exact_search.DistinctVectors):
  """Vectors whose blocks pass through a function."""

  def __init__(self, side: exact_search.DistinctVectors, watch: Callable[[_Blocks], _Blocks]):
    vars(self).update(vars(side))
    self._watch = watch

  def unit_blocks(self, height: int) -> _Blocks:
    return self._watch(super().unit_blocks(height))


def save_state(path: pathlib.Path, identity: str, done: int, **arrays: np.ndarray) -> None:
  """Writes what an unfinished search has found, atomically.

  Args:
    path: The file, .npz.
    identity: What is searched, and how.
    done: Number of vectors searched so far.
    **arrays: What was found.
  """
  content: dict[str, Any] = {"identity": identity, "done": done, **arrays}
  with atomic_files.atomic_file(path) as stream:
    np.savez(stream, **content)


def load_state(path: pathlib.Path, identity: str) -> tuple[int, dict[str, np.ndarray]]:
  """Returns `done` and the arrays of `save_state`; 0 and {} if there is no file.

  Raises:
    InputError: the file is broken, or from another search.
  """
  if not path.exists():
    return 0, {}
  try:
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as content:
      found = dict(content)
  except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
    raise errors.InputError(f"{path}: broken ({error}): delete it to start over") from None
  if str(found.pop("identity", None)) != identity:
    raise errors.InputError(
      f"{path} is from an unfinished search with other vectors or settings: delete it to start over"
    )
  return int(found.pop("done")), found


def _arrays(
  forward: exact_search.Neighbors, backward: exact_search.Neighbors
) -> dict[str, np.ndarray]:
  return {
    "forward_index": forward.index_NK,
    "forward_score": forward.score_NK,
    "backward_index": backward.index_NK,
    "backward_score": backward.score_NK,
  }
