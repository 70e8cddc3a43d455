"""Scores the pairs in text files of any length by cosine, with any encoder."""

import contextlib
import dataclasses
import functools
import itertools
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from vmsst import errors
from vmsst.files import resumable_lines, text_fields
from vmsst.search import exact_search
from vmsst.vectors import embedded_text, encoding

# Pairs in memory at once; an interruption costs at most these.
_WINDOW = 1 << 13


@dataclasses.dataclass(frozen=True)
class TextColumn:
  """Sources or targets: a text file, or a column or key of its lines.

  Attributes:
    path: UTF-8 text, plain or gzipped.
    field: Column or key of the text in a line, as in `text_fields.read_texts`; None: the line.
    language: Code of the texts' language, for encoders that need it.
  """

  path: str
  field: str | None = None
  language: str | None = None


def pair_cosines(
  encoder: Any,
  source: TextColumn,
  target: TextColumn,
  *,
  start: int = 0,
  long_texts: str = "cut",
  batch_size: int = 128,
  progress: bool | None = None,
) -> Iterator[np.ndarray]:
  """Yields the cosines of line i of one side with line i of the other, float32, in windows.

  Args:
    encoder: An object with `encode(texts)`; see `encoding.encode`.
    source: The sources.
    target: The targets; both sides can be in one file.
    start: Number of lines to skip.
    long_texts: "cut", or "split" to average the vectors of a long text's parts, for encoders that
      support it.
    batch_size: Texts per batch.
    progress: Show a progress bar; None: on a terminal only.

  Raises:
    InputError: a file cannot be read, the files differ in length, a vector is not finite, or the
      encoder does not support this `long_texts`.
  """
  count, other = (embedded_text.fingerprint(side.path)["lines"] for side in (source, target))
  if count != other:
    raise errors.InputError(
      f"{source.path} has {count:,} lines and {target.path} {other:,}: give files of equal length, "
      "aligned line by line"
    )
  embed = encoding.embedder(encoder, long_texts=long_texts, batch_size=batch_size)
  with encoding.one_cut_warning(2 * (count - start)) as on_cut:
    windows = [
      encoding.encode_windows(
        functools.partial(embed, language=column.language, on_cut=on_cut),
        itertools.islice(text_fields.read_texts(column.path, column.field), start, None),
        _WINDOW,
        total=count,
        done=start,
        unit=" pairs",
        progress=shown,
      )
      for column, shown in ((source, progress), (target, False))
    ]
    for vectors in zip(*windows, strict=True):
      source_BD, target_BD = (
        _unit_rows(column, vectors_BD, start)
        for column, vectors_BD in zip((source, target), vectors, strict=True)
      )
      yield np.einsum("nd,nd->n", source_BD, target_BD)
      start += len(source_BD)


def _unit_rows(column: TextColumn, vectors_BD: np.ndarray, start: int) -> np.ndarray:
  """Normalizes the vectors of a window that starts at line `start`, from 0."""
  finite_B = np.isfinite(vectors_BD).all(axis=1)
  if not finite_B.all():
    line = start + int(np.argmin(finite_B)) + 1
    raise errors.InputError(f"{column.path}:{line}: its vector contains a value that is not finite")
  return exact_search.unit_rows(vectors_BD)


def score_file(
  encoder: Any,
  source: TextColumn,
  target: TextColumn,
  output: str | os.PathLike[str],
  *,
  name: str,
  long_texts: str = "cut",
  batch_size: int = 128,
  progress: bool | None = None,
) -> int:
  """Writes the cosine of each pair to a line of its own; resumes after interruption.

  Args:
    encoder: As in `pair_cosines`.
    source: The sources.
    target: The targets.
    output: Output file.
    name: Name or path of the encoder. Its digest identifies it, or this name if it has none.
    long_texts: As in `pair_cosines`.
    batch_size: Texts per batch.
    progress: Show a progress bar; None: on a terminal only.

  Returns:
    Number of pairs.

  Raises:
    InputError: as in `pair_cosines`, or an unfinished file is from other inputs.
  """
  settings = {
    "encoder": encoding.identity(encoder, name),
    "long_texts": long_texts,
    "fields": [side.field for side in (source, target)],
    "languages": [side.language for side in (source, target)],
    "source": embedded_text.fingerprint(source.path),
    "target": embedded_text.fingerprint(target.path),
  }
  writer = resumable_lines.LineWriter(output, settings)
  with contextlib.closing(writer):
    for cosine_B in pair_cosines(
      encoder,
      source,
      target,
      start=writer.done,
      long_texts=long_texts,
      batch_size=batch_size,
      progress=progress,
    ):
      writer.append(map(as_line, cosine_B))
    writer.finish()
  return writer.done


def as_line(cosine: float) -> str:
  """Formats a cosine."""
  return f"{cosine:.6f}"
