"""Commands that use a trained encoder or its vectors: `vmsst embed`, `index`, `mine` and others."""

import contextlib
import dataclasses
import logging
import os
from typing import Annotated, Literal

from vmsst import errors, storage
from vmsst.cli.command import (
  Argument,
  Batches,
  Command,
  Encoder,
  Field,
  GpuWorkers,
  InputFile,
  InputFolder,
  Language,
  OutputFile,
  OutputFolder,
  Positive,
  Text,
  Vectors,
  file_to_write,
  local_file,
)
from vmsst.io import text_files
from vmsst.jobs import outputs


def embed(
  encoder: Encoder,
  file: list[Text],
  out: OutputFolder,
  *,
  field: Field | None = None,
  language: Language | None = None,
  dtype: Literal["float32", "float16"] = "float32",
  dimensions: Positive | None = None,
  computing: Batches,
  engine: GpuWorkers,
) -> None:
  """Write an encoder's vectors of a text file, one per line.

  Args:
    file: Text file, one sentence per line, UTF-8, plain or gzipped, or several, whose lines follow
      each other; - is standard input.
    out: Output folder, with one vector per line, including empty lines.
    field: Column of a TSV file, from 1, or key of JSON Lines (default: for .tsv 1, or 2 after a
      column of numbers, text for .jsonl, else the whole line).
    language: Language of the text, for encoders that require it.
    dtype: Storage dtype of the vectors.
    dimensions: Store the first N dimensions only (default: all).
  """
  from vmsst.cli import vector_jobs

  chosen = engine.create()
  fields = {field or text_files.default_field(path) for path in file}
  if len(fields) > 1:
    raise errors.InputError(
      f"{file[0]} and the other files have texts in different fields; give --field"
    )
  source = computing.open(encoder, role="document")
  with contextlib.ExitStack() as stack:
    count, width = vector_jobs.embed(
      source,
      [stack.enter_context(local_file(path)) for path in file],
      out,
      field=fields.pop(),
      language=language,
      dtype=dtype,
      dimensions=dimensions,
      engine=chosen,
    )
  print(f"{out}: {count:,} vectors of width {width}")


def score(
  encoder: Encoder,
  source: Text,
  target: Text | None = None,
  *,
  output: OutputFile = outputs.STANDARD,
  by: Literal["cosine", "likelihood"] = "cosine",
  per_token: bool = False,
  fields: tuple[Field, Field] | None = None,
  languages: tuple[Language, Language] | None = None,
  computing: Batches,
) -> None:
  """Score each pair of two aligned texts by cosine or likelihood.

  Args:
    target: Aligned text in another language (default: SOURCE has both).
    output: Output file, one line per pair (default: standard output).
    by: Score: cosine of the vectors; or, with a run's decoder, the mean log-likelihood of each text
      given the other's vector, followed by target given source and source given target.
    per_token: Divide log-likelihoods by the number of tokens (default: sum over tokens).
    fields: Columns of source and target in TSV files, from 1, or keys of JSON Lines (default: for
      one file 1 and 2, or 2 and 3 after a column of numbers, such as the output of `vmsst mine`, or
      source and target in .jsonl; for two files whole lines, 1 for .tsv, text for .jsonl).
    languages: Languages of both texts, for encoders that require them.
  """
  from vmsst.cli import vector_jobs
  from vmsst.encoder import loading
  from vmsst.mining import bitext_mining

  prompted = computing.prompt is not None or computing.prompt_name is not None
  if by == "likelihood" and (prompted or computing.compute_dtype or computing.backend != "auto"):
    raise errors.InputError("prompts, --compute-dtype and --backend are for --by cosine; omit them")
  if by == "cosine" and per_token:
    raise errors.InputError("--per-token is for --by likelihood; omit it")
  # Standard input is read once, even if it contains both sides.
  with local_file(outputs.STANDARD if outputs.STANDARD in (source, target) else "") as temporary:
    paths = [temporary if x == outputs.STANDARD else x for x in (source, target or source)]
    if fields:
      chosen: list[str | None] = [*fields]
    elif target:
      chosen = [text_files.default_field(path) for path in paths]
    else:
      chosen = [text_files.default_field(paths[0], side) for side in (1, 2)]
    if by == "cosine":
      opened = computing.open(encoder)
      name = opened.identity["name"]
      scorer = bitext_mining.by_cosine(opened.open(), name, computing.batch_size)
    else:
      translator = loading.load_translator(encoder)
      scorer = bitext_mining.by_likelihood(translator, per_token, computing.batch_size)
    left, right = map(bitext_mining.TextColumn, paths, chosen, languages or (None, None))
    with file_to_write(output) as place:
      count = vector_jobs.score(scorer, left, right, place)
  if output != outputs.STANDARD:
    print(f"{output}: scores of {count:,} pairs by {by}")


def index(
  vectors: Vectors,
  index: OutputFolder,
  *,
  factory: str | None = None,
  engine: GpuWorkers,
) -> None:
  """Build a FAISS index of vectors, for approximate search and mining.

  Args:
    vectors: Vectors, as `vmsst embed` writes them, or a .npy file.
    index: Output folder.
    factory: FAISS factory string, such as OPQ64,IVF65536,PQ64 or IVF4096,SQ8 or RaBitQ (default:
      Flat, which is exact, below 20,000 vectors, RR<width>,IVF<lists>,RaBitQ below 10 million,
      OPQ64,IVF<lists>,PQ64 above and for fewer than 256 dimensions; 4,096 lists at a million
      vectors).
  """
  from vmsst.cli import vector_jobs

  built = vector_jobs.build_index(vectors, index, factory=factory, engine=engine.create())
  print(f"{index}: {built.factory} of {built.shape[0]:,} vectors")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pairs:
  """Pair selection.

  Attributes:
    neighbors: Nearest neighbors to compare a pair with.
    margin: Score: cosine / mean of the neighbors, cosine - mean, or the cosine alone.
    retrieval: Pairs to keep: greedily the best with both sentences unused; the best of each source;
      the best of each target; those in both.
    threshold: Minimum score of pairs to write; excludes --gold.
  """

  neighbors: Positive = 4
  margin: Literal["ratio", "distance", "absolute"] = "ratio"
  retrieval: Literal["max", "forward", "backward", "intersection"] = "max"
  threshold: float | None = None


def mine(
  source: Text,
  target: Text,
  out: OutputFile,
  *,
  vectors: tuple[Vectors, Vectors] | None = None,
  index: tuple[InputFolder, InputFolder] | None = None,
  encoder: Encoder | None = None,
  languages: tuple[Language, Language] | None = None,
  gold: Text | None = None,
  pairs: Pairs,
  computing: Batches,
  engine: GpuWorkers,
) -> None:
  """Find translations among the lines of two text files.

  Args:
    source: Text file, one sentence per line, UTF-8, plain or gzipped; of .tsv files the first
      column, or the second after a column of numbers, of .jsonl files the key text.
    target: Text file in the other language.
    out: Output file: score TAB source TAB target, best first.
    vectors: Vectors of both texts, as `vmsst embed` writes them, or .npy files (default:
      OUT.source.vectors and OUT.target.vectors).
    index: Indexes of both texts' vectors, as `vmsst index` writes them, for an approximate search
      (default: exact search).
    encoder: Encoder to compute missing vectors, as for `vmsst embed`.
    languages: Languages of both texts, for encoders that require them.
    gold: Known translations (source line TAB target line, numbers from 1), to choose the threshold
      with the best F1.
  """
  from vmsst.cli import vector_jobs
  from vmsst.jobs import job
  from vmsst.mining import bitext_mining
  from vmsst.search import faiss_index, vector_store

  paths = source, target
  folders = vectors or (f"{out}.source.vectors", f"{out}.target.vectors")
  if outputs.is_stream(out):
    raise errors.InputError(
      f"{out} is not a file; give a file as OUT: unfinished work is kept next to it"
    )
  chosen = engine.create()
  if gold:
    bitext_mining.read_gold(gold)
  if encoder:
    opener = computing.open(encoder)
    for path, folder, language in zip(paths, folders, languages or (None, None), strict=True):
      vector_jobs.embed(
        opener,
        [path],
        folder,
        field=text_files.default_field(path),
        language=language,
        engine=chosen,
      )
  elif not vectors and not all(map(storage.names, folders)):
    raise errors.InputError(
      "there are no vectors of SOURCE and TARGET: give --encoder to compute them, or --vectors"
    )
  texts = vector_store.open_text(source, folders[0]), vector_store.open_text(target, folders[1])
  opened = [
    faiss_index.open_index(folder, text.vectors)
    for folder, text in zip(index or (), texts, strict=False)
  ]
  inputs = dict(zip(("source", "target"), map(vector_jobs.describe, texts), strict=True))
  # Finished blocks do not depend on other options.
  options = {"neighbors": pairs.neighbors}
  with job.Job(out, inputs=inputs, options=options, is_folder=False) as work:
    search = vector_jobs.resumable_search(work, chosen)
    if not all(index.exact for index in opened):
      search = faiss_index.index_search(opened[0], opened[1])
    mined = bitext_mining.mine(*texts, gold=gold, search=search, **vars(pairs))
    with work.output() as place, place.open("w", encoding="utf-8", newline="\n") as stream:
      stream.writelines(f"{line}\n" for line in bitext_mining.lines(mined.pairs, *texts))
  if best := mined.best:
    rates = f"F1 {100 * best.f1:.2f}, precision {100 * best.precision:.2f}"
    print(f"threshold {best.threshold!r}: {rates}, recall {100 * best.recall:.2f}")
  print(
    f"{out}: {len(mined.pairs):,} of {mined.candidates:,} pairs found among {mined.source:,} and "
    f"{mined.target:,} sentences"
  )


def align(
  source: InputFile,
  target: InputFile,
  out: Annotated[str, Argument("OUT", os.path.expanduser)],
  *,
  encoder: Encoder,
  format: Literal["tsv", "vecalign", "tmx"] = "tsv",
  marker: str | None = None,
  lists: bool = False,
  split: tuple[Language, Language] | None = None,
  max_size: Positive = 8,
  deletion: float = 0.4,
  summed: bool = False,
  languages: tuple[Language, Language] | None = None,
  computing: Batches,
  engine: GpuWorkers,
) -> None:
  """Align the sentences of documents that translate each other.

  Args:
    source: Text file, one sentence per line, UTF-8, plain or gzipped; or a folder of such files.
    target: Translation of SOURCE; the files of a folder have the same names.
    out: Output file; or a folder with a file for each pair of documents, if SOURCE is a folder.
    format: tsv: score TAB source TAB target; vecalign: line numbers from 0, as in
      [3]:[3, 4]:0.81, with [] for sentences without a translation; tmx.
    marker: Line between two documents of a file.
    lists: SOURCE and TARGET list documents, one path per line, and OUT is a folder.
    split: Languages of both texts, to split each line into sentences.
    max_size: Maximum number of sentences that are aligned with each other, of both sides together.
    deletion: Cost of a sentence without a translation, from 0, the cost of a typical translation,
      to 1, the cost of a random pair.
    summed: Sum the vectors of sentences instead of encoding joined sentences: faster, less
      accurate.
    languages: Languages of both texts, for tmx and for encoders that require them (default: those
      of --split).
  """
  names = ("format", "split", "max_size", "deletion", "summed")
  options = {name: value for name, value in locals().items() if name in names}
  from vmsst.cli import alignment_job

  if split and format == "vecalign":
    raise errors.InputError("--format vecalign writes numbers of lines; split the files first")
  is_folder = lists or storage.path(source).is_dir()
  outputs.check([source, target], **{"folder" if is_folder else "file": out})
  chosen = engine.create()
  options["languages"] = languages or split or (None, None)
  documents, pairs = alignment_job.align(
    source,
    target,
    out,
    computing.open(encoder),
    options,
    marker=marker,
    lists=lists,
    engine=chosen,
  )
  print(f"{out}: {pairs:,} pairs of {documents:,} document{'s' * (documents > 1)}")


def search(
  queries: Text,
  corpus: Text,
  vectors: Vectors,
  *,
  index: InputFolder | None = None,
  encoder: Encoder | None = None,
  count: Positive = 10,
  output: OutputFile = outputs.STANDARD,
  language: Language | None = None,
  computing: Batches,
  engine: GpuWorkers,
) -> None:
  """Search the lines of a text file for queries, in any language.

  Args:
    queries: Text file, one query per line; - is standard input.
    corpus: Text file with the lines to search, UTF-8, plain or gzipped.
    vectors: Vectors of CORPUS, as `vmsst embed` writes them, or a .npy file.
    index: Index of VECTORS, as `vmsst index` writes it, for an approximate search (default: exact
      search).
    encoder: Encoder of the queries (default: that of the vectors).
    count: Lines per query.
    output: Output file, JSON Lines with one object per query (default: standard output).
    language: Language of the queries, for encoders that require it.
  """
  from vmsst.cli import vector_jobs
  from vmsst.mining import text_search
  from vmsst.search import faiss_index, vector_store

  chosen = engine.create()
  searched = vector_store.open_text(corpus, vectors)
  path = encoder or searched.encoder.get("name")
  if path is None:
    raise errors.InputError(f"{vectors} does not name its encoder: give --encoder")
  outputs.check([path], file=output)
  opened = faiss_index.open_index(index, searched.vectors) if index else None
  source = computing.open(path, role="query")
  if differences := text_search.other_encoder(searched, source.identity):
    if not encoder:
      raise errors.InputError(
        f"{path} has changed since it computed {vectors}: {differences}; embed {corpus} again, or "
        "give the original encoder with --encoder"
      )
    logging.getLogger(__name__).warning("%s: %s", searched.vectors.folder, differences)
  with local_file(queries) as path, file_to_write(output) as place:
    vector_jobs.search(
      source,
      path,
      searched,
      place,
      count,
      index=opened,
      language=language,
      engine=chosen,
    )


def translate(
  run: Encoder,
  *,
  to: Language,
  input: Text = outputs.STANDARD,
  output: OutputFile = outputs.STANDARD,
  max_length: int | None = None,
  batch_size: int = 64,
) -> None:
  """Translate lines from their vectors alone, with a run's decoder.

  Args:
    run: A run's MODEL_DIR, or one of its checkpoint_<step>.
    to: Target language.
    input: Input file, one sentence per line (default: standard input).
    output: Output file, one translation per line (default: standard output).
    max_length: Maximum tokens per sentence (default: training's).
    batch_size: Sentences per batch.
  """
  from vmsst.encoder import loading

  with local_file(input) as path:
    text_files.check_not_empty(path)  # standard input, which was not read before
    sentences = list(text_files.read_lines(path))
  translator = loading.load_translator(run)
  translations = translator.translate(sentences, to, max_length=max_length, batch_size=batch_size)
  # One line per translation, whatever the model generates.
  lines = (f"{' '.join(text.splitlines())}\n" for text in translations)
  with file_to_write(output) as place:
    outputs.write_text(place, "".join(lines))


COMMANDS: dict[tuple[str, ...], Command] = {
  ("embed",): Command(embed, resumable=True),
  ("score",): Command(score, resumable=True),
  ("index",): Command(index, resumable=True),
  ("mine",): Command(mine, resumable=True),
  ("align",): Command(align, resumable=True),
  ("search",): Command(search),
  ("translate",): Command(translate),
}
