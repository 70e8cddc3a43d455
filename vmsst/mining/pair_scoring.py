"""Cosines of the pairs in text files of any length, by any encoder."""

import contextlib
import dataclasses
import functools
import itertools
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import tqdm

from vmsst import errors
from vmsst.files import resumable_lines, text_fields
from vmsst.search import exact_search
from vmsst.text import length_limits
from vmsst.vectors import embedded_text, encoding, file_embedding

# Pairs that are in memory at once, and what an interruption costs at most.
_WINDOW = 1 << 13


@dataclasses.dataclass(frozen=True)
class Side:
  """Sources or targets.

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
  source: Side,
  target: Side,
  *,
  start: int = 0,
  long_texts: str = "cut",
  batch_size: int = 128,
  progress: bool | None = None,
) -> Iterator[np.ndarray]:
  """Yields the cosines of line i of one side with line i of the other, float32, some at a time.

  Args:
    encoder: Has `encode(texts)`; see `encoding.encode`.
    source: One side.
    target: The other; both may be in one file.
    start: Lines to leave out.
    long_texts: "cut", or "split" for the mean of the vectors of a long text's parts, with encoders
      that know it.
    batch_size: Texts computed at once.
    progress: Show a progress bar; None: on a terminal only.

  Raises:
    InputError: a file cannot be read, one has more lines than the other, the encoder gives values
      that are not finite, or knows no `long_texts`.
  """
  count, other = (embedded_text.describe(side.path)["lines"] for side in (source, target))
  if count != other:
    raise errors.InputError(
      f"{source.path} has {count:,} lines and {target.path} {other:,}: line i of one is scored "
      "with line i of the other"
    )
  if long_texts != "cut":
    encoding.require_option(encoder, "long_texts")
  cut: list[tuple[int, int]] = []
  embed = functools.partial(
    encoding.encode,
    encoder,
    long_texts=long_texts,
    batch_size=batch_size,
    progress=False,
    on_cut=lambda found, _, most: cut.append((found, most)),
  )
  texts = [
    itertools.islice(text_fields.read_texts(side.path, side.field), start, None)
    for side in (source, target)
  ]
  windows = zip(*(file_embedding.windows(each, _WINDOW) for each in texts), strict=True)
  disable = None if progress is None else not progress
  with tqdm.tqdm(total=count, initial=start, unit=" pairs", disable=disable) as bar:
    for number, window in enumerate(windows):
      units = []
      for side, own in zip((source, target), window, strict=True):
        vectors_BD = embed(own, language=side.language)
        finite_B = np.isfinite(vectors_BD).all(axis=1)
        if not finite_B.all():
          line = start + number * _WINDOW + int(np.argmin(finite_B)) + 1
          raise errors.InputError(
            f"{side.path}:{line}: its vector holds a value that is not finite"
          )
        units.append(exact_search.unit_rows(vectors_BD))
      yield np.einsum("nd,nd->n", *units)
      bar.update(len(window[0]))
  if cut:
    length_limits.log_cut(sum(found for found, _ in cut), 2 * (count - start), cut[0][1])


def score_file(
  encoder: Any,
  source: Side,
  target: Side,
  output: str | os.PathLike[str],
  *,
  name: str,
  long_texts: str = "cut",
  batch_size: int = 128,
  progress: bool | None = None,
) -> int:
  """Writes the cosine of each pair on a line of its own; what an interruption left is gone on with.

  Args:
    encoder: As in `pair_cosines`.
    source: One side.
    target: The other.
    output: The file to write.
    name: Of the encoder, unique.
    long_texts: As in `pair_cosines`.
    batch_size: Texts computed at once.
    progress: Show a progress bar; None: on a terminal only.

  Returns:
    Number of pairs.

  Raises:
    InputError: as in `pair_cosines`, or what was left is of something else.
  """
  settings = {
    "encoder": name,
    "long_texts": long_texts,
    "sides": [
      {"field": side.field, "language": side.language, **embedded_text.describe(side.path)}
      for side in (source, target)
    ],
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
  """A cosine as text."""
  return f"{cosine:.6f}"
