"""Computes the vectors of the lines of text files of any length, with any encoder."""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vmsst import errors, storage
from vmsst.encoder import batching, encoding
from vmsst.io import line_spans, npy_files, text_fields
from vmsst.jobs import base, engines, work_folders
from vmsst.search import embedded_text, vector_store

# Lines of a shard. An interruption costs at most the shards in work, which are in memory.
_SHARD_LINES = 1 << 14
_FORMAT = 3
"""Version of the shards; increase it if the same lines get other vectors or facts."""


@dataclasses.dataclass(frozen=True)
class EmbedShard(base.StagedUnit):
  """Writes the vectors of a span of lines.

  Attributes:
    encoder: The encoder.
    span: The lines.
    field: See `embed_file`.
    language: See `embed_file`.
    batch_size: See `embed_file`. The key does not contain it, so that a job that ran out of memory
      resumes with a smaller one; it changes rounding only.
    dimension: How many dimensions to store; an encoder's further ones are left out.
    dtype: See `embed_file`.
    path: Output file.
  """

  encoder: encoding.EncoderSource
  span: line_spans.Span
  field: str | None
  language: str | None
  batch_size: int
  dimension: int
  dtype: str
  path: str

  @functools.cached_property
  def key(self) -> str:
    """Hash of everything that the output depends on."""
    return base.digest(
      "embed",
      _FORMAT,
      self.encoder.identity,
      self.span.digest,
      self.span.first == 1,  # A byte order mark is removed there.
      self.field,
      self.language,
      self.dimension,
      self.dtype,
    )

  @property
  def size(self) -> int:
    """Number of lines."""
    return self.span.lines

  def __str__(self) -> str:
    return str(self.span)

  def read(self) -> Any:
    """Returns the texts, tokenized if the encoder supports it."""
    texts = text_fields.texts(self.span.read(), self.span.name, self.field, self.span.first)
    return encoding.prepare(self.encoder.open(), list(texts), self.language)

  def compute(self, prepared: Any) -> tuple[np.ndarray, list[tuple[int, int, int]]]:
    """Returns the vectors, and how many texts were cut."""
    options = {"language": self.language, "batch_size": self.batch_size}
    vectors_ND, cut = self.encoder.encode(prepared, **options)
    return vectors_ND[:, : self.dimension], cut

  def write(self, computed: Any) -> dict[str, Any]:
    """Writes the file; returns its checksum and how many texts were cut."""
    vectors_ND, cut = computed
    try:
      sha256 = npy_files.write_shard(self.path, vectors_ND, self.dimension, self.dtype)
    except ValueError as error:
      raise errors.InputError(f"{error} (vector 0 is line {self.span.first})") from None
    return {"cut": cut, "sha256": sha256}


def embed_file(
  encoder: Any,
  path: str | Sequence[str],
  folder: str | os.PathLike[str],
  *,
  name: str,
  field: str | None = None,
  language: str | None = None,
  dtype: str = "float32",
  dimensions: int | None = None,
  batch_size: int = 128,
  engine: engines.Engine | None = None,
  load: Callable[[], tuple[str, Any]] | None = None,
) -> tuple[int, int]:
  """Writes one vector per line of text files, empty lines included; resumes after interruption.

  Args:
    encoder: An object with `encode(texts)` that returns an array [N, D]; see `encoding.encode`.
    path: UTF-8 text, plain or gzipped; or several, whose lines follow each other.
    folder: Output folder, a `vector_store`. While the work lasts, its work folder has uncompressed
      copies of gzipped texts.
    name: Name or path of the encoder. Its digest identifies it, or this name if it has none.
    field: Column or key of the text in a line, as in `text_fields.read_texts`; None: the line.
    language: Code of the text's language, for encoders that need it.
    dtype: float32, or float16 for half the space.
    dimensions: Store the first dimensions only, which encoders with Matryoshka losses are trained
      for; None: all.
    batch_size: Lines per batch.
    engine: Where to compute; None: in this process.
    load: Returns name and encoder in other processes; must be picklable. Needed if the engine has
      any.

  Returns:
    Number and width of the vectors.

  Raises:
    InputError: a text cannot be read or changes while it is read, the folder has other vectors or
      files or is being written, or a value is not finite in this dtype.
    ValueError: the encoder returns arrays of another shape.
  """
  paths = [path] if isinstance(path, str) else list(path)
  engine = engine or engines.Local()
  target = storage.absolute(folder)
  embed = encoding.embedder(encoder, language=language)
  errors.check_choice("dtype", dtype, vector_store.DTYPES)
  width = getattr(encoder, "dimension", None) or embed([""]).shape[1]
  if dimensions is not None and not 1 <= dimensions <= width:
    raise errors.InputError(
      f"dimensions is {dimensions}: the encoder's vectors have {width}; give 1 to {width}"
    )
  source = encoding.source_of(encoder, name, load)
  given = {"field": field, "dimensions": dimensions}
  with contextlib.ExitStack() as stack:
    stack.callback(work_folders.remove_if_empty, target)
    stack.enter_context(work_folders.owned(folder, is_folder=True))
    work = work_folders.work_path(folder, is_folder=True)
    stack.callback(work_folders.remove_if_empty, work)
    stack.callback(line_spans.remove_copies, work)
    cut = line_spans.cut(paths, _SHARD_LINES, copies=work)
    settings = {
      "encoder": encoding.identity(encoder, name),
      "language": language,
      "text": embedded_text.describe(paths, cut),
      **{key: value for key, value in given.items() if value is not None},
    }
    vector_store.check_free(target)
    rows = [span.lines for span in cut.spans]
    state = vector_store.State(dimensions or width, dtype, rows, settings)
    if vector_store.start(target, state):
      return cut.lines, state.dimension
    units = [
      EmbedShard(
        encoder=source,
        span=span,
        field=field,
        language=language,
        batch_size=batch_size,
        dimension=state.dimension,
        dtype=dtype,
        path=vector_store.shard_path(target, number),
      )
      for number, span in enumerate(cut.spans)
    ]
    if engine.in_process:
      stack.enter_context(encoding.using(source, encoder))
    try:
      made = engines.run("embed", units, engine)
    except Exception:
      # Not after Ctrl-C: a thread may still write a shard, which the next run continues from.
      vector_store.abandon(target)
      raise
    batching.log_all_cut([count for result in made for count in result["cut"]], cut.lines)
    vector_store.finish(target, [result["sha256"] for result in made])
  return cut.lines, state.dimension
