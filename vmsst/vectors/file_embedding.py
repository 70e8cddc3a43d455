"""Computes the vectors of the lines of text files of any length, with any encoder."""

import functools
import itertools
import os
from collections.abc import Iterator
from typing import IO, Any

import numpy as np

from vmsst import errors
from vmsst.files import text_fields
from vmsst.vectors import embedded_text, encoding, npy_files, vector_store

# Lines whose vectors are in memory at once; an interruption costs at most these.
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
  """Writes one vector per line of a text file, empty lines included; resumes after interruption.

  Args:
    encoder: An object with `encode(texts)` that returns an array [N, D]; see `encoding.encode`.
    path: UTF-8 text, plain or gzipped.
    folder: Output folder, a `vector_store`.
    name: Name or path of the encoder. Its digest identifies it, or this name if it has none.
    field: Column or key of the text in a line, as in `text_fields.read_texts`; None: the line.
    language: Code of the text's language, for encoders that need it.
    dtype: float32, or float16 for half the space.
    file_format: Format of the files: npy, safetensors or parquet.
    long_texts: "cut", or "split" to average the vectors of a long text's parts, for encoders that
      support it.
    batch_size: Lines per batch.
    part: Number of a contiguous part of the lines, from 1, and number of parts: (2, 4) is the
      second quarter. Several processes fill one folder, each with one part.
    progress: Show a progress bar; None: on a terminal only.

  Returns:
    Number of lines in the part.

  Raises:
    InputError: the text cannot be read or changes while it is read, there is no such part, the
      folder has other vectors, a value is not finite in this dtype, or the encoder does not support
      this `long_texts`.
    ValueError: the encoder returns arrays of another shape.
  """
  number, parts = part
  if not 1 <= number <= parts:
    raise errors.InputError(f"no part {number} of {parts}: give one from 1 to {parts}")
  if parts > 1:
    folder = vector_store.part_folder(folder, number, parts)
  text = embedded_text.fingerprint(path)
  first, last = (text["lines"] * i // parts for i in (number - 1, number))
  embed = encoding.embedder(
    encoder, language=language, long_texts=long_texts, batch_size=batch_size
  )
  special = {"field": field, "long_texts": None if long_texts == "cut" else long_texts}
  writer = vector_store.Writer(
    folder,
    _width(encoder, embed),
    dtype=dtype,
    file_format=file_format,
    settings={
      "encoder": encoding.identity(encoder, name),
      "language": language,
      "text": text,
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
      raise errors.InputError(f"{path}: {error} (vector 0 is line {first + 1})") from None
  if writer.done != last - first or embedded_text.fingerprint(path) != text:
    raise errors.InputError(f"{path} has changed: delete {folder} and embed again")
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
  """Writes the vectors of `embed_file` as a single file into a stream, such as a pipe.

  Arguments and errors are those of `embed_file`; the format is npy or safetensors.

  Returns:
    Number of lines.
  """
  headers = {"npy": npy_files.header, "safetensors": vector_store.safetensors_header}
  if file_format not in headers:
    raise errors.InputError(
      f"format {file_format} cannot be written to a pipe: choose {' or '.join(headers)}"
    )
  count = embedded_text.fingerprint(path)["lines"]
  embed = encoding.embedder(
    encoder, language=language, long_texts=long_texts, batch_size=batch_size
  )
  width, done = _width(encoder, embed), 0
  stream.write(headers[file_format]((count, width), dtype))
  for vectors_BD in _windows_of_vectors(embed, path, field, range(count), 0, progress):
    try:
      rows_BD = npy_files.checked_rows(vectors_BD, width, dtype, done)
    except ValueError as error:
      raise errors.InputError(f"{path}: {error} (vector 0 is line 1)") from None
    stream.write(rows_BD.tobytes())
    done += len(rows_BD)
  stream.flush()
  return done


def _width(encoder: Any, embed: Any) -> int:
  return getattr(encoder, "dimension", None) or embed([""]).shape[1]


def _windows_of_vectors(
  embed: Any, path: str, field: str | None, rows: range, first: int, progress: bool | None
) -> Iterator[np.ndarray]:
  """Yields the vectors of lines `rows`, from 0; the progress bar counts from line `first`."""
  with encoding.one_cut_warning(len(rows)) as on_cut:
    yield from encoding.encode_windows(
      functools.partial(embed, on_cut=on_cut),
      itertools.islice(text_fields.read_texts(path, field), rows.start, rows.stop),
      _WINDOW,
      total=rows.stop - first,
      done=rows.start - first,
      unit=" lines",
      title=path,
      progress=progress,
    )
