"""A search for neighbors that shows how far it is and goes on where an earlier process stopped."""

import json
import pathlib
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tqdm

from vmsst import errors
from vmsst.files import atomic_files
from vmsst.search import exact_search

# Between two times that the neighbors found so far are written.
_SECONDS = 300.0

_Blocks = Iterator[tuple[int, np.ndarray]]


def resumable(
  engine: exact_search.Engine,
  path: pathlib.Path,
  identity: Mapping[str, Any],
  *,
  progress: bool | None = None,
) -> exact_search.Engine:
  """An engine for one search of both directions, which keeps what it has found so far in a file.

  What a process finds that goes on is what one would have found that was not interrupted.

  Args:
    engine: What compares.
    path: The file, written every five minutes; it stays when the search is done.
    identity: What is searched, as for JSON.
    progress: Show a progress bar; None: on a terminal only.

  Returns:
    The engine. It raises InputError if the file is broken, or that of another search.
  """
  told = json.dumps(identity, sort_keys=True)

  def compare(
    source: exact_search.DistinctVectors,
    target: exact_search.DistinctVectors,
    forward: exact_search.Neighbors,
    backward: exact_search.Neighbors | None,
    /,
  ) -> None:
    if backward is None:
      raise ValueError("a search in one direction cannot be gone on with")
    done = _load(path, told, forward, backward)
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
        # The engine is done with these, and has not begun with others.
        if time.monotonic() - saved >= _SECONDS:
          _save(path, told, end, forward, backward)
          saved = time.monotonic()

    def targets(blocks: _Blocks) -> _Blocks:
      for number, block_CD in blocks:
        yield number, block_CD
        bar.update(height * len(block_CD))

    with tqdm.tqdm(
      total=len(source) * len(target),
      initial=done * len(target),
      unit=" comparisons",
      unit_scale=True,
      disable=None if progress is None else not progress,
    ) as bar:
      engine(_Watched(source, sources), _Watched(target, targets), forward, backward)

  return compare


class _Watched(exact_search.DistinctVectors):
  """A side whose blocks pass through a function."""

  def __init__(self, side: exact_search.DistinctVectors, watch: Callable[[_Blocks], _Blocks]):
    vars(self).update(vars(side))
    self._watch = watch

  def unit_blocks(self, height: int) -> _Blocks:
    return self._watch(super().unit_blocks(height))


def _save(
  path: pathlib.Path,
  identity: str,
  done: int,
  forward: exact_search.Neighbors,
  backward: exact_search.Neighbors,
) -> None:
  content: dict[str, Any] = {"identity": identity, "done": done, **_arrays(forward, backward)}
  with atomic_files.atomic_file(path) as stream:
    np.savez(stream, **content)


def _load(
  path: pathlib.Path,
  identity: str,
  forward: exact_search.Neighbors,
  backward: exact_search.Neighbors,
) -> int:
  """Takes over what was found for the first sources; returns how many they are."""
  if not path.exists():
    return 0
  try:
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as content:
      found = dict(content)
  except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
    raise errors.InputError(f"{path}: broken ({error}): delete it to begin anew") from None
  if str(found.get("identity")) != identity:
    raise errors.InputError(
      f"{path} is of an unfinished search in other vectors or of other settings: delete it to "
      "begin anew"
    )
  for name, array_NK in _arrays(forward, backward).items():
    array_NK[:] = found[name]
  return int(found["done"])


def _arrays(
  forward: exact_search.Neighbors, backward: exact_search.Neighbors
) -> dict[str, np.ndarray]:
  return {
    "forward_index": forward.index_NK,
    "forward_score": forward.score_NK,
    "backward_index": backward.index_NK,
    "backward_score": backward.score_NK,
  }
