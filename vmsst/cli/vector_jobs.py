"""Jobs of `vmsst embed`, `index`, `search`, `mine` and `score`.

Parts are spans of lines, shards of an index, blocks of a search and windows of pairs.
"""

import functools
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vmsst import errors, storage
from vmsst.encoder import encoding
from vmsst.io import array_files, manifest, text_files
from vmsst.jobs import engines, job
from vmsst.search import device_search, exact_search, faiss_index, vector_store
from vmsst.search.vector_store import EmbeddedText

if TYPE_CHECKING:
  from vmsst.mining import bitext_mining

_SPAN_LINES = 1 << 14  # An interruption costs at most one span of each process.
_ARRAYS = ("forward_index", "forward_score", "backward_index", "backward_score")


def embed(
  source: encoding.EncoderSource,
  paths: Sequence[str],
  folder: str | os.PathLike[str],
  *,
  field: str | None = None,
  language: str | None = None,
  dtype: str = "float32",
  dimensions: int | None = None,
  engine: engines.Engine | None = None,
  method: str = "encode",
) -> tuple[int, int]:
  """Writes one vector per line of text files, empty lines included.

  Args:
    source: The encoder.
    paths: UTF-8 texts, plain or gzipped, whose lines follow each other.
    folder: Output folder; see `vector_store`.
    field: Column or key of the text in a line, as in `text_files.read_texts`; None: the line.
    language: Code of the text's language, for encoders that need it.
    dtype: float32, or float16 for half the space.
    dimensions: Store the first dimensions only, which encoders with Matryoshka losses are trained
      for; None: all.
    engine: Where to compute; None: in this process.
    method: Method of the encoder; see `encoding.encode`.

  Returns:
    Number and width of the vectors.

  Raises:
    InputError: a text cannot be read or changes while it is read, the folder has other vectors or
      files or is being written, or a value is not finite in this dtype.
    ValueError: the encoder returns arrays of another shape.
  """
  encoder = source.open()
  width = getattr(encoder, "dimension", None) or encoding.encode(encoder, [""]).shape[1]
  if dimensions is not None and dimensions > width:
    raise errors.InputError(
      f"dimensions is {dimensions}: the encoder's vectors have {width}; give 1 to {width}"
    )
  cut = text_files.cut(paths, _SPAN_LINES)
  inputs = {"encoder": source.identity, "text": cut.identity}
  options = {"field": field, "language": language, "dimensions": dimensions, "dtype": dtype}
  width = dimensions or width
  write = functools.partial(_embed_span, source, method, field, language, width, dtype)
  with job.Job(folder, inputs=inputs, options=options) as work:
    if work.finished:
      return cut.identity["lines"], width
    parts = [
      job.Task(
        vector_store.shard_name(number),
        (span,),
        key=[span.digest, span.first],
        size=span.lines,
        title=str(span),
      )
      for number, span in enumerate(text_files.unpack(cut.spans, work.path(storage.UNFINISHED)))
    ]
    facts = work.run("embed", write, parts, engine)
    encoding.log_all_cut([count for each in facts for count in each["cut"]], cut.identity["lines"])
    work.finish(dimension=width, dtype=dtype)
  return cut.identity["lines"], width


def _embed_span(
  source: encoding.EncoderSource,
  method: str,
  field: str | None,
  language: str | None,
  width: int,
  dtype: str,
  path: pathlib.Path,
  span: text_files.Span,
) -> dict[str, Any]:
  """Writes the vectors of a span; returns their number, and how many texts were cut."""
  texts = list(text_files.texts(span.read(), span.name, field, span.first))
  vectors_ND, cut = source.encode(texts, method=method, language=language)
  with path.open("wb") as stream:
    np.save(stream, array_files.checked_rows(vectors_ND[:, :width], width, dtype))
  return {"rows": len(vectors_ND), "cut": cut}


def build_index(
  vectors: Any,
  folder: str | os.PathLike[str],
  *,
  factory: str | None = None,
  engine: engines.Engine | None = None,
) -> faiss_index.Index:
  """Writes an index of vectors, filled in shards, and opens it.

  Args:
    vectors: As in `vector_store.open_vectors`.
    folder: Output folder, local or in an object store.
    factory: As in `faiss_index.build_index`.
    engine: Where to fill shards; None: in this process.

  Raises:
    InputError: as `faiss_index.build_index` does, the vectors are missing, incomplete or broken, or
      the folder has another index or other files.
  """
  rows = vector_store.open_vectors(vectors)
  factory = faiss_index.check(rows, factory)
  inputs = {"vectors": {"name": rows.folder, "digest": rows.digest}}
  with job.Job(folder, inputs=inputs, options={"factory": factory}) as work:
    if not work.finished:
      trained = f"{storage.UNFINISHED}/trained.faiss"
      work.run("train", functools.partial(_train, rows, factory), [job.Task(trained)])
      shards = [
        job.Task(
          f"{storage.UNFINISHED}/shard-{number:05d}.faiss",
          (span.start, span.stop),
          key=[span.start, span.stop],
          size=span.stop - span.start,
        )
        for number, span in enumerate(exact_search.blocks(len(rows), faiss_index.SHARD_ROWS))
      ]
      work.run("index", functools.partial(_fill, rows, work.path(trained)), shards, engine)
      index = faiss_index.read(work.path(trained))
      for shard in shards:
        index.merge_from(faiss_index.read(work.path(shard.name)), 0)
      with work.part(faiss_index.FILE) as (path, _):
        faiss_index.write(index, path)
      work.finish()
  return faiss_index.open_index(folder, rows)


def _train(rows: vector_store.Vectors, factory: str, path: pathlib.Path) -> None:
  faiss_index.write(faiss_index.train(factory, faiss_index.sample(rows, factory)), path)


def _fill(
  rows: vector_store.Vectors, trained: str, path: pathlib.Path, start: int, stop: int
) -> None:
  index = faiss_index.read(trained)
  faiss_index.fill(index, rows, slice(start, stop))
  faiss_index.write(index, path)


def resumable_search(work: job.Job, engine: engines.Engine | None) -> exact_search.Search:
  """Returns an exact search in blocks; each block is a part of a job."""

  def run_blocks(
    find: exact_search.Search, blocks: Sequence[exact_search.Block]
  ) -> Iterator[exact_search.Both]:
    parts = []
    for number, block in enumerate(blocks):
      spans = [[int(side.row_N[0]), int(side.row_N[-1]) + 1] for side in block[:2]]
      parts.append(job.Task(f"block-{number:05d}.npz", block, key=spans))
    work.run("search", functools.partial(_write_block, find), parts, engine)
    for part in parts:
      arrays = array_files.read(work.path(part.name))
      forward, backward = (
        exact_search.Neighbors(arrays[f"{name}_index"].astype(np.int64), arrays[f"{name}_score"])
        for name in ("forward", "backward")
      )
      yield forward, backward

  return functools.partial(
    exact_search.search_blocks, search=device_search.search, run_blocks=run_blocks
  )


def _write_block(
  find: exact_search.Search,
  path: pathlib.Path,
  source: exact_search.Selection,
  target: exact_search.Selection,
  k_source: int,
  k_target: int | None,
) -> None:
  forward, backward = find(source, target, k_source, k_target)
  backward = backward or exact_search.no_neighbors(0, 0)  # not requested, and not read
  arrays = (x for near in (forward, backward) for x in (near.index_NK.astype("i4"), near.score_NK))
  with path.open("wb") as stream:
    np.savez(stream, **dict(zip(_ARRAYS, arrays, strict=True)))  # type: ignore[arg-type]


def describe(text: EmbeddedText) -> dict[str, Any]:
  """Returns what identifies a text and its vectors, as inputs of a job."""
  name = f"{text.path} with {text.vectors.folder}"
  return {"name": name, "digest": manifest.digest(text.digest, text.vectors.digest)}


def stored_array(
  work: job.Job, part: str, key: str, compute: Callable[[], np.ndarray]
) -> np.ndarray:
  """Returns the array of a part, which is computed and written unless it is done."""
  if work.done(part, key) is None:
    with work.part(part, key) as (path, _), path.open("wb") as stream:
      np.save(stream, compute())
  return array_files.read(work.path(part))


def search(
  source: encoding.EncoderSource,
  queries: str,
  corpus: EmbeddedText,
  output: str | os.PathLike[str],
  count: int,
  *,
  language: str | None = None,
  index: faiss_index.Index | None = None,
  engine: engines.Engine | None = None,
) -> None:
  """Writes the lines nearest to each query as `text_search.as_line`.

  Args:
    source: The encoder of the vectors.
    queries: Text file, one query per line.
    corpus: The text to search.
    output: Output file, local or in an object store.
    count: Lines per query, a small number; all lines, if there are fewer.
    language: Code of the queries' language, for encoders that need it.
    index: An index of the vectors, for an approximate search in this process.
    engine: Where to compute; None: in this process.

  Raises:
    InputError: as in `text_search.Searcher`, `text_search.Searcher.search` and `embed`.
  """
  from vmsst.mining import text_search

  row_M = corpus.visible_rows()
  inputs = {
    "encoder": source.identity,
    "queries": vector_store.fingerprint(queries),
    "corpus": describe(corpus),
  }
  options = {"count": count, "language": language}
  with job.Job(output, inputs=inputs, options=options, is_folder=False) as work:
    folder = work.path("queries")
    embed(
      source,
      [queries],
      folder,
      language=language,
      dimensions=corpus.dimensions,
      engine=engine,
      method="encode_query",
    )
    embedded = vector_store.open_text(queries, folder)
    text_search.check_width(corpus, embedded.vectors.shape[1])
    find = resumable_search(work, engine)
    if index is not None and not index.exact:
      find = faiss_index.index_search(index, index)
    near = text_search.nearest_lines(embedded.vectors, corpus, row_M, count, find)
    read_text, texts = corpus.reader(), embedded.texts()
    with work.output() as path, path.open("w", encoding="utf-8", newline="\n") as stream:
      for rows in exact_search.blocks(len(near.index_NK)):
        block = exact_search.Neighbors(*(x[rows] for x in near))
        hits = text_search.hits(block, read_text)
        for query_hits, query in zip(hits, texts, strict=False):
          stream.write(f"{text_search.as_line(query, query_hits)}\n")
      for _ in texts:  # The digest is compared at the end of the file.
        pass


def score(
  scorer: "bitext_mining.Scorer",
  source: "bitext_mining.TextColumn",
  target: "bitext_mining.TextColumn",
  output: str | os.PathLike[str],
) -> int:
  """Writes the scores of each pair of texts to a line of its own; returns the number of pairs.

  Args:
    scorer: Scores the pairs.
    source: The sources.
    target: The targets.
    output: Output file.

  Raises:
    InputError: as in `bitext_mining.pair_scores`, or another process writes the output.
  """
  from vmsst.mining import bitext_mining

  texts = [vector_store.fingerprint(side.path) for side in (source, target)]
  sides = [
    {**text, "field": side.field, "language": side.language}
    for text, side in zip(texts, (source, target), strict=True)
  ]
  inputs = {"source": sides[0], "target": sides[1], **scorer.settings}
  with job.Job(output, inputs=inputs, is_folder=False) as work:

    def run_windows(
      scores: Callable[..., np.ndarray], *columns: Iterable[list[str]]
    ) -> Iterator[np.ndarray]:
      for number, window in enumerate(zip(*columns, strict=True)):
        # A text that changes during the work may have its old content again when it resumes.
        part, key = f"scores-{number:06d}.npy", manifest.digest(window)
        yield stored_array(work, part, key, functools.partial(scores, *window))

    blocks = bitext_mining.pair_scores(scorer, source, target, texts=texts, run_windows=run_windows)
    with work.output() as path, path.open("w", encoding="utf-8", newline="\n") as stream:
      for score_BC in blocks:
        lines = ("\t".join(f"{score:.6f}" for score in scores) for scores in score_BC)
        stream.writelines(f"{line}\n" for line in lines)
  return int(texts[0]["lines"])
