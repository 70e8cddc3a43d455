"""Jobs of `vmsst embed`, `index`, `search`, `mine` and `score`.

A task embeds a span of lines, fills a shard of an index, searches a block of vectors, or scores a
window of pairs.
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

_SPAN_LINES = 1 << 14  # Lines per span. An interruption loses at most one span per process.
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
  """Writes one vector for each line of the text files. Empty lines get vectors too.

  Args:
    source: The encoder.
    paths: UTF-8 text files, plain or gzipped, read in order.
    folder: Output folder; see `vector_store`.
    field: Column or key that contains the text, as in `text_files.read_texts` (default: the whole
      line).
    language: Language code of the text, for encoders that require it.
    dtype: float32, or float16 for half the space.
    dimensions: Number of leading dimensions to store, for encoders trained with Matryoshka losses
      (default: all).
    engine: Where to embed (default: in this process).
    method: Method of the encoder; see `encoding.encode`.

  Returns:
    Number and width of the vectors.

  Raises:
    InputError: If a text cannot be read, a text changes while it is read, a value is not finite in
      this dtype, the folder contains vectors or files from a different job, or another process is
      writing the folder.
    ValueError: If the encoder returns an array with an unexpected shape.
  """
  encoder = source.open()
  width = getattr(encoder, "dimension", None) or encoding.encode(encoder, [""]).shape[1]
  if dimensions is not None and dimensions > width:
    raise errors.InputError(
      f"dimensions is {dimensions}, but vectors have {width} dimensions; give 1 to {width}"
    )
  cut = text_files.cut(paths, _SPAN_LINES)
  lines = cut.identity["lines"]
  inputs = {"encoder": source.identity, "text": cut.identity}
  options = {"field": field, "language": language, "dimensions": dimensions, "dtype": dtype}
  width = dimensions or width
  embed_span = functools.partial(_embed_span, source, method, field, language, width, dtype)
  with job.Job(folder, inputs=inputs, options=options) as embed_job:
    if not embed_job.finished:
      spans = text_files.unpack(cut.spans, embed_job.path(storage.UNFINISHED))
      tasks = [
        job.Task(
          vector_store.shard_name(number),
          (span,),
          key=[span.digest, span.first],
          size=span.lines,
          title=str(span),
        )
        for number, span in enumerate(spans)
      ]
      shards = embed_job.run("embed", embed_span, tasks, engine)
      encoding.log_all_cut([count for shard in shards for count in shard["cut"]], lines)
      embed_job.finish(dimension=width, dtype=dtype)
  return lines, width


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
  """Writes the vectors of a span; returns the vector count and the counts of truncated texts."""
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
  """Builds an index of vectors in shards, writes it and opens it.

  Args:
    vectors: As in `vector_store.open_vectors`.
    folder: Output folder, local or in an object store.
    factory: As in `faiss_index.build_index`.
    engine: Where to fill the shards (default: in this process).

  Raises:
    InputError: As in `faiss_index.build_index`, or if the vectors are missing, incomplete or
      damaged, or if the folder contains a different index or unrelated files.
  """
  rows = vector_store.open_vectors(vectors)
  factory = faiss_index.check(rows, factory)
  inputs = {"vectors": {"name": rows.folder, "digest": rows.digest}}
  with job.Job(folder, inputs=inputs, options={"factory": factory}) as index_job:
    if not index_job.finished:
      trained = f"{storage.UNFINISHED}/trained.faiss"
      index_job.run("train", functools.partial(_train, rows, factory), [job.Task(trained)])
      shards = [
        job.Task(
          f"{storage.UNFINISHED}/shard-{number:05d}.faiss",
          (span.start, span.stop),
          key=[span.start, span.stop],
          size=span.stop - span.start,
        )
        for number, span in enumerate(exact_search.blocks(len(rows), faiss_index.SHARD_ROWS))
      ]
      fill_shard = functools.partial(_fill_shard, rows, index_job.path(trained))
      index_job.run("index", fill_shard, shards, engine)
      index = faiss_index.read(index_job.path(trained))
      for shard in shards:
        index.merge_from(faiss_index.read(index_job.path(shard.name)), 0)
      with index_job.part(faiss_index.FILE) as (path, _):
        faiss_index.write(index, path)
      index_job.finish()
  return faiss_index.open_index(folder, rows)


def _train(rows: vector_store.Vectors, factory: str, path: pathlib.Path) -> None:
  faiss_index.write(faiss_index.train(factory, faiss_index.sample(rows, factory)), path)


def _fill_shard(
  rows: vector_store.Vectors, trained: str, path: pathlib.Path, start: int, stop: int
) -> None:
  index = faiss_index.read(trained)
  faiss_index.fill(index, rows, slice(start, stop))
  faiss_index.write(index, path)


def resumable_search(search_job: job.Job, engine: engines.Engine | None) -> exact_search.Search:
  """Returns an exact search in blocks. Each block is a task of the job."""

  def run_blocks(
    find: exact_search.Search, blocks: Sequence[exact_search.Block]
  ) -> Iterator[exact_search.Both]:
    tasks = []
    for number, block in enumerate(blocks):
      spans = [[int(selection.row_N[0]), int(selection.row_N[-1]) + 1] for selection in block[:2]]
      tasks.append(job.Task(f"block-{number:05d}.npz", block, key=spans))
    search_job.run("search", functools.partial(_search_block, find), tasks, engine)
    for task in tasks:
      arrays = array_files.read(search_job.path(task.name))
      forward, backward = (
        exact_search.Neighbors(arrays[f"{name}_index"].astype(np.int64), arrays[f"{name}_score"])
        for name in ("forward", "backward")
      )
      yield forward, backward

  return functools.partial(
    exact_search.search_blocks, search=device_search.search, run_blocks=run_blocks
  )


def _search_block(
  find: exact_search.Search,
  path: pathlib.Path,
  source: exact_search.Selection,
  target: exact_search.Selection,
  k_source: int,
  k_target: int | None,
) -> None:
  forward, backward = find(source, target, k_source, k_target)
  # If `k_target` is None, store empty arrays instead of the targets' neighbors.
  directions = forward, backward or exact_search.no_neighbors(0, 0)
  arrays = (
    x for neighbors in directions for x in (neighbors.index_NK.astype("i4"), neighbors.score_NK)
  )
  with path.open("wb") as stream:
    np.savez(stream, **dict(zip(_ARRAYS, arrays, strict=True)))  # type: ignore[arg-type]


def describe(text: EmbeddedText) -> dict[str, Any]:
  """Returns the identity of a text and its vectors, to record among a job's inputs."""
  name = f"{text.path} with {text.vectors.folder}"
  return {"name": name, "digest": manifest.digest(text.digest, text.vectors.digest)}


def cached_array(
  array_job: job.Job, name: str, key: str, compute: Callable[[], np.ndarray]
) -> np.ndarray:
  """Returns an array from a job's file; computes and writes the array if the file is missing."""
  if array_job.done(name, key) is None:
    with array_job.part(name, key) as (path, _), path.open("wb") as stream:
      np.save(stream, compute())
  return array_files.read(array_job.path(name))


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
  """Writes the lines nearest to each query; see `text_search.as_line` for the format.

  Args:
    source: The encoder that computed the vectors.
    queries: Text file, one query per line.
    corpus: The text to search.
    output: Output file, local or in an object store.
    count: Maximum number of lines per query. Use a small number.
    language: Language code of the queries, for encoders that require it.
    index: Index of the vectors, for an approximate search in this process (default: exact search).
    engine: Where to embed and search (default: in this process).

  Raises:
    InputError: As in `text_search.Searcher`, `text_search.Searcher.search` and `embed`.
  """
  from vmsst.mining import text_search

  row_M = corpus.visible_rows()
  inputs = {
    "encoder": source.identity,
    "queries": vector_store.fingerprint(queries),
    "corpus": describe(corpus),
  }
  options = {"count": count, "language": language}
  with job.Job(output, inputs=inputs, options=options, is_folder=False) as search_job:
    folder = search_job.path("queries")
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
    find = resumable_search(search_job, engine)
    if index is not None and not index.exact:
      find = faiss_index.index_search(index, index)
    neighbors = text_search.nearest_lines(embedded.vectors, corpus, row_M, count, find)
    read_text, texts = corpus.reader(), embedded.texts()
    with search_job.output() as path, path.open("w", encoding="utf-8", newline="\n") as stream:
      for rows in exact_search.blocks(len(neighbors.index_NK)):
        block = exact_search.Neighbors(*(x[rows] for x in neighbors))
        hits = text_search.hits(block, read_text)
        for query_hits, query in zip(hits, texts, strict=False):
          stream.write(f"{text_search.as_line(query, query_hits)}\n")
      for _ in texts:  # Read to the end, where the reader raises an error if the file has changed.
        pass


def score(
  scorer: "bitext_mining.Scorer",
  source: "bitext_mining.TextColumn",
  target: "bitext_mining.TextColumn",
  output: str | os.PathLike[str],
) -> int:
  """Writes one score line per text pair; returns the number of pairs.

  Args:
    scorer: The scorer.
    source: The sources.
    target: The targets.
    output: Output file.

  Raises:
    InputError: As in `bitext_mining.pair_scores`, or if another process is writing the output.
  """
  from vmsst.mining import bitext_mining

  columns = {"source": source, "target": target}
  texts = [vector_store.fingerprint(column.path) for column in columns.values()]
  inputs = {
    name: {**text, "field": column.field, "language": column.language}
    for (name, column), text in zip(columns.items(), texts, strict=True)
  }
  with job.Job(output, inputs={**inputs, **scorer.settings}, is_folder=False) as score_job:

    def run_windows(
      scores: Callable[..., np.ndarray], *columns: Iterable[list[str]]
    ) -> Iterator[np.ndarray]:
      for number, window in enumerate(zip(*columns, strict=True)):
        # The key of a window's scores is the digest of the window. The digest of the files would
        # not be enough, because a file can change while it is read and have its old content again
        # when the command resumes.
        name, key = f"scores-{number:06d}.npy", manifest.digest(window)
        yield cached_array(score_job, name, key, functools.partial(scores, *window))

    blocks = bitext_mining.pair_scores(scorer, source, target, texts=texts, run_windows=run_windows)
    with score_job.output() as path, path.open("w", encoding="utf-8", newline="\n") as stream:
      for score_BC in blocks:
        lines = ("\t".join(f"{score:.6f}" for score in scores) for scores in score_BC)
        stream.writelines(f"{line}\n" for line in lines)
  return int(texts[0]["lines"])
