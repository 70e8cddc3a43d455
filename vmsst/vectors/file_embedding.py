"""Computes the vectors of the lines of text files of any length, with any encoder."""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

import numpy as np

from vmsst import errors
from vmsst.files import line_spans, text_fields
from vmsst.text import length_limits
from vmsst.units import base, engines, local
from vmsst.vectors import embedded_text, encoder_sources, encoding, npy_files, vector_store

# Lines of a shard. An interruption costs at most the shards in work, which are in memory.
_SHARD_LINES = 1 << 14
_FORMAT = 1
"""Version of the shards; increase it if the same lines get other vectors."""


@dataclasses.dataclass(frozen=True)
class EmbedShard(base.StagedUnit):
  """Writes the vectors of a span of lines.

  Attributes:
    encoder: The encoder.
    span: The lines.
    field: See `embed_file`.
    language: See `embed_file`.
    long_texts: See `embed_file`.
    batch_size: See `embed_file`. The key does not contain it, so that a job that ran out of memory
      resumes with a smaller one; it changes rounding only.
    kind: What the vectors are.
    path: Output file.
  """

  encoder: encoder_sources.EncoderSource
  span: line_spans.Span
  field: str | None
  language: str | None
  long_texts: str
  batch_size: int
  kind: vector_store.Kind
  path: str

  @functools.cached_property
  def key(self) -> str:
    """Hash of everything that the output depends on."""
    return base.digest(
      "embed",
      _FORMAT,
      self.encoder.digest or self.encoder.name,
      self.span.digest,
      self.span.first == 1,  # A byte order mark is removed there.
      self.field,
      self.language,
      self.long_texts,
      dataclasses.astuple(self.kind),
    )

  def __str__(self) -> str:
    return str(self.span)

  def read(self) -> Any:
    """Returns the texts, tokenized if the encoder supports it."""
    lines = self.span.read()
    texts = list(text_fields.texts(lines, self.span.name, self.field, self.span.first))
    return encoding.prepare(self.encoder.open(), texts, self.language)

  def compute(self, prepared: Any) -> tuple[np.ndarray, list[tuple[int, int, int]]]:
    """Returns the vectors, and how many texts were cut."""
    cut: list[tuple[int, int, int]] = []
    embed = encoding.embedder(
      self.encoder.open(),
      language=self.language,
      long_texts=self.long_texts,
      batch_size=self.batch_size,
      on_cut=lambda *counts: cut.append(counts),
    )
    return embed(prepared), cut

  def write(self, computed: Any) -> dict[str, Any]:
    """Writes the file; returns how many texts were cut."""
    vectors_ND, cut = computed
    try:
      vector_store.write_shard(self.path, vectors_ND, self.kind)
    except ValueError as error:
      raise errors.InputError(f"{error} (vector 0 is line {self.span.first})") from None
    return {"cut": cut}


def embed_file(
  encoder: Any,
  path: str | Sequence[str],
  folder: str | os.PathLike[str],
  *,
  name: str,
  field: str | None = None,
  language: str | None = None,
  dtype: str = "float32",
  file_format: str = "npy",
  long_texts: str = "cut",
  batch_size: int = 128,
  engine: engines.Engine | None = None,
  load: Callable[[], tuple[str, Any]] | None = None,
  progress: bool | None = None,
) -> int:
  """Writes one vector per line of text files, empty lines included; resumes after interruption.

  Args:
    encoder: An object with `encode(texts)` that returns an array [N, D]; see `encoding.encode`.
    path: UTF-8 text, plain or gzipped; or several, whose lines follow each other.
    folder: Output folder, a `vector_store`. While the work lasts, it has uncompressed copies of
      gzipped texts.
    name: Name or path of the encoder. Its digest identifies it, or this name if it has none.
    field: Column or key of the text in a line, as in `text_fields.read_texts`; None: the line.
    language: Code of the text's language, for encoders that need it.
    dtype: float32, or float16 for half the space.
    file_format: Format of the files: npy, safetensors or parquet.
    long_texts: "cut", or "split" to average the vectors of a long text's parts, for encoders that
      support it.
    batch_size: Lines per batch.
    engine: Where to compute; None: in this process.
    load: Returns name and encoder in other processes; must be picklable. Needed if the engine has
      any.
    progress: Show a progress bar; None: on a terminal only.

  Returns:
    Number of lines.

  Raises:
    InputError: a text cannot be read or changes while it is read, the folder has other vectors, a
      value is not finite in this dtype, or the encoder does not support this `long_texts`.
    ValueError: the encoder returns arrays of another shape.
  """
  paths = [path] if isinstance(path, str) else list(path)
  engine = engine or local.Local()
  place = os.path.abspath(folder)
  embed = encoding.embedder(encoder, language=language, long_texts=long_texts)
  kind = vector_store.Kind(_width(encoder, embed), dtype, file_format)
  source = encoder_sources.of(encoder, name, load)
  special = {"field": field, "long_texts": None if long_texts == "cut" else long_texts}
  with contextlib.ExitStack() as stack:
    stack.callback(_remove_copies, place)
    cut = line_spans.cut(paths, _SHARD_LINES, copies=place)
    settings = {
      "encoder": encoding.identity(encoder, name),
      "language": language,
      "text": embedded_text.describe(paths, cut),
      **{key: value for key, value in special.items() if value is not None},
    }
    if vector_store.start(place, kind, [span.lines for span in cut.spans], settings):
      return cut.lines
    units = [
      EmbedShard(
        encoder=source,
        span=span,
        field=field,
        language=language,
        long_texts=long_texts,
        batch_size=batch_size,
        kind=kind,
        path=vector_store.shard_path(place, kind, number),
      )
      for number, span in enumerate(cut.spans)
    ]
    if engine.in_process:
      stack.enter_context(encoder_sources.using(source, encoder))
    try:
      engines.run("embed", units, engine, progress=progress)
    except BaseException:
      vector_store.abandon(place)
      raise
    _warn_of_cut(units, cut.lines)
    vector_store.finish(place)
  return cut.lines


def _warn_of_cut(units: Sequence[EmbedShard], lines: int) -> None:
  counts = [count for unit in units for count in (base.result(unit) or {"cut": []})["cut"]]
  if counts:
    length_limits.log_cut(sum(cut for cut, _, _ in counts), lines, counts[0][2])


def _remove_copies(folder: str) -> None:
  line_spans.remove_copies(folder)
  with contextlib.suppress(OSError):  # not empty
    os.rmdir(folder)


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
  for vectors_BD in _windows_of_vectors(embed, path, field, count, progress):
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
  embed: Any, path: str, field: str | None, lines: int, progress: bool | None
) -> Iterator[np.ndarray]:
  with encoding.one_cut_warning(lines) as on_cut:
    yield from encoding.encode_windows(
      functools.partial(embed, on_cut=on_cut),
      text_fields.read_texts(path, field),
      _SHARD_LINES,
      total=lines,
      unit=" lines",
      title=path,
      progress=progress,
    )
