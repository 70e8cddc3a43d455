"""The job of `vmsst embed`: each span of lines is a part."""

import functools
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from vmsst import errors, storage
from vmsst.encoder import encoding
from vmsst.io import line_spans, npy_files, text_fields
from vmsst.jobs import engines, job
from vmsst.search import vector_store

_SPAN_LINES = 1 << 14  # An interruption costs at most one span of each process.


def embed(
  encoder: Any,
  paths: Sequence[str],
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
  method: str = "encode",
) -> tuple[int, int]:
  """Writes one vector per line of text files, empty lines included.

  Args:
    encoder: An object with `encode(texts)` that returns an array [N, D]; see `encoding.encode`.
    paths: UTF-8 texts, plain or gzipped, whose lines follow each other.
    folder: Output folder; see `vector_store`.
    name: Name or path of the encoder. Its digest identifies it, or this name if it has none.
    field: Column or key of the text in a line, as in `text_fields.read_texts`; None: the line.
    language: Code of the text's language, for encoders that need it.
    dtype: float32, or float16 for half the space.
    dimensions: Store the first dimensions only, which encoders with Matryoshka losses are trained
      for; None: all.
    batch_size: Lines per batch. It changes only rounding, and a job may resume with another one.
    engine: Where to compute; None: in this process.
    load: Returns name and encoder in other processes; must be picklable. Needed if the engine has
      any.
    method: Method of the encoder; see `encoding.encode`.

  Returns:
    Number and width of the vectors.

  Raises:
    InputError: a text cannot be read or changes while it is read, the folder has other vectors or
      files or is being written, or a value is not finite in this dtype.
    ValueError: the encoder returns arrays of another shape.
  """
  engine = engine or engines.Local()
  width = getattr(encoder, "dimension", None) or encoding.encode(encoder, [""]).shape[1]
  if dimensions is not None and dimensions > width:
    raise errors.InputError(
      f"dimensions is {dimensions}: the encoder's vectors have {width}; give 1 to {width}"
    )
  cut = line_spans.cut(paths, _SPAN_LINES)
  source = encoding.EncoderSource(encoder, name, load)
  inputs = {"encoder": source.identity, "text": cut.identity}
  options = {"field": field, "language": language, "dimensions": dimensions, "dtype": dtype}
  width = dimensions or width
  write = functools.partial(_embed_span, source, method, language, batch_size, width, dtype)
  with job.Job(folder, inputs=inputs, options=options) as work:
    if work.finished:
      return cut.lines, width
    parts = [
      job.Part(
        vector_store.shard_name(number),
        (span,),
        key=[span.digest, span.first],
        size=span.lines,
        title=str(span),
      )
      for number, span in enumerate(line_spans.unpack(cut.spans, work.path(storage.UNFINISHED)))
    ]
    prepare = functools.partial(_prepare_span, source, method, field, language)
    facts = work.run("embed", write, parts, engine, prepare)
    encoding.log_all_cut([count for each in facts for count in each["cut"]], cut.lines)
    work.finish(dimension=width, dtype=dtype)
  return cut.lines, width


def _prepare_span(
  source: encoding.EncoderSource,
  method: str,
  field: str | None,
  language: str | None,
  span: line_spans.Span,
) -> Any:
  """Returns the texts of a span, tokenized if the encoder supports it for the method."""
  texts = list(text_fields.texts(span.read(), span.name, field, span.first))
  return encoding.prepare(source.open(), texts, language) if method == "encode" else texts


def _embed_span(
  source: encoding.EncoderSource,
  method: str,
  language: str | None,
  batch_size: int,
  width: int,
  dtype: str,
  path: pathlib.Path,
  prepared: Any,
) -> dict[str, Any]:
  """Writes the vectors of a span; returns their number, and how many texts were cut."""
  vectors_ND, cut = source.encode(prepared, method=method, language=language, batch_size=batch_size)
  npy_files.write(path, (len(vectors_ND), width), [vectors_ND[:, :width]], dtype)
  return {"rows": len(vectors_ND), "cut": cut}
