"""Vectors of the lines of text files of any length, by any encoder."""

import functools
import itertools
import os
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
import tqdm

from vmsst import errors
from vmsst.files import text_fields
from vmsst.text import length_limits
from vmsst.vectors import embedded_text, encoding, vector_store

# Lines that are in memory at once, and what an interruption costs at most.
_WINDOW = 1 << 14


def embed_file(
  encoder: Any,
  path: str,
  folder: str | os.PathLike[str],
  *,
  name: str,
  field: str | None = None,
  language: str | None = None,
  dtype: str = "float32",
  file_format: str = "npy",
  long_texts: str = "cut",
  batch_size: int = 128,
  part: tuple[int, int] = (1, 1),
  progress: bool | None = None,
) -> int:
  """Writes one vector for each line of a text file, empty ones too, behind those that are there.

  Args:
    encoder: Has `encode(texts)`, which gives an array [N, D]; see `encoding.encode`.
    path: UTF-8 text, plain or gzipped.
    folder: Where `vector_files` puts the vectors. What an interruption has left is gone on with.
    name: Of the encoder, unique; with the text and its language it says what the vectors are of.
    field: Column or key of the text in a line, as in `text_fields.read_texts`; None: the line.
    language: Code of the lines' language, for encoders that need it.
    dtype: float32, or float16, which takes half the space.
    file_format: Of the files: npy, safetensors or parquet.
    long_texts: "cut", or "split" for the mean of the vectors of a long text's parts, with encoders
      that know it.
    batch_size: Lines computed at once.
    part: Which part of the lines, and of how many, that lie in a row: (2, 4) is the second quarter.
      Several processes, each with a part, fill one folder.
    progress: Show a progress bar; None: on a terminal only.

  Returns:
    Number of lines of the part.

  Raises:
    InputError: the text cannot be read or changes meanwhile, there is no such part, the folder has
      other vectors, or the encoder gives values that are not finite in this dtype, or knows no
      `long_texts`.
    ValueError: the encoder gives arrays of another shape.
  """
  number, parts = part
  if not 1 <= number <= parts:
    raise errors.InputError(f"part {number} of {parts}: there is none")
  if parts > 1:
    folder = vector_store.part_folder(folder, number, parts)
  text = embedded_text.describe(path)
  first, last = (text["lines"] * i // parts for i in (number - 1, number))
  embed = _embedder(encoder, language, long_texts, batch_size)
  special = {"field": field, "long_texts": None if long_texts == "cut" else long_texts}
  writer = vector_store.Writer(
    folder,
    _width(encoder, embed),
    dtype=dtype,
    file_format=file_format,
    settings={
      "encoder": name,
      "language": language,
      **text,
      **{key: value for key, value in special.items() if value is not None},
    },
  )
  if writer.finished:
    return writer.done
  rows = range(first + writer.done, last)
  for vectors_BD in _windows_of_vectors(embed, path, field, rows, first, progress):
    try:
      writer.append(vectors_BD)
    except ValueError as error:
      raise errors.InputError(f"{path}: {error} (vector 0 is that of line {first + 1})") from None
  if writer.done != last - first or embedded_text.describe(path) != text:
    raise errors.InputError(f"{path} was changed meanwhile: delete {folder} and embed again")
  writer.finish()
  return writer.done


def embed_to_stream(
  encoder: Any,
  path: str,
  stream: IO[bytes],
  *,
  field: str | None = None,
  language: str | None = None,
  dtype: str = "float32",
  file_format: str = "npy",
  long_texts: str = "cut",
  batch_size: int = 128,
  progress: bool | None = None,
) -> int:
  """Writes what `embed_file` puts into shards as one file into a stream, such as a pipe.

  Args and errors are those of `embed_file`; the format is npy or safetensors.

  Returns:
    Number of lines.
  """
  headers = {"npy": vector_store.npy_header, "safetensors": vector_store.safetensors_header}
  if file_format not in headers:
    raise errors.InputError(f"{file_format} cannot go into a pipe: {' and '.join(headers)} can")
  count = embedded_text.describe(path)["lines"]
  embed = _embedder(encoder, language, long_texts, batch_size)
  width, done = _width(encoder, embed), 0
  stream.write(headers[file_format](count, width, dtype))
  for vectors_BD in _windows_of_vectors(embed, path, field, range(count), 0, progress):
    try:
      rows_BD = vector_store.checked_rows(vectors_BD, width, dtype, done)
    except ValueError as error:
      raise errors.InputError(f"{path}: {error} (vector 0 is that of line 1)") from None
    stream.write(rows_BD.tobytes())
    done += len(rows_BD)
  stream.flush()
  return done


def windows(texts: Iterator[str], size: int) -> Iterator[list[str]]:
  """The texts, `size` of them at a time."""
  while window := list(itertools.islice(texts, size)):
    yield window


def _embedder(encoder: Any, language: str | None, long_texts: str, batch_size: int) -> Any:
  """What maps texts to vectors."""
  if long_texts != "cut":
    encoding.require_option(encoder, "long_texts")
  return functools.partial(
    encoding.encode,
    encoder,
    language=language,
    long_texts=long_texts,
    batch_size=batch_size,
    progress=False,
  )


def _width(encoder: Any, embed: Any) -> int:
  return getattr(encoder, "dimension", None) or embed([""]).shape[1]


def _windows_of_vectors(
  embed: Any, path: str, field: str | None, rows: range, first: int, progress: bool | None
) -> Iterator[np.ndarray]:
  """The vectors of the lines `rows`, from 0; says once how many texts were cut.

  Progress counts from the line `first`.
  """
  cut: list[tuple[int, int]] = []
  texts = itertools.islice(text_fields.read_texts(path, field), rows.start, rows.stop)
  disable = None if progress is None else not progress
  total, done = rows.stop - first, rows.start - first
  with tqdm.tqdm(total=total, initial=done, unit=" lines", desc=path, disable=disable) as bar:
    for window in windows(texts, _WINDOW):
      yield embed(window, on_cut=lambda count, _, most: cut.append((count, most)))
      bar.update(len(window))
  if cut:
    length_limits.log_cut(sum(count for count, _ in cut), len(rows), cut[0][1])
