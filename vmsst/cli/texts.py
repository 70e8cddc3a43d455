"""Commands that use an encoder or its vectors: `vmsst embed`, `index`, `mine` and others."""

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
  encoding: Batches,
  workers: GpuWorkers,
) -> None:
  """Embed text files, with one vector per line.

  Args:
    file: One or more UTF-8 text files with one sentence per line, plain or gzipped, read in order.
      - is standard input.
    out: Output folder for the vectors, one per line. Empty lines get vectors too.
    field: Column in TSV files, counted from 1, or key in JSON Lines (default: column 1 of .tsv
      files, or column 2 if column 1 contains numbers; the key "text" in .jsonl files; otherwise the
      whole line).
    language: Language of the text, for encoders that require it.
    dtype: Data type of the vectors in the folder.
    dimensions: Store only the first N dimensions (default: all).
  """
  from vmsst.cli import vector_jobs

  engine = workers.create()
  fields = {field or text_files.default_field(path) for path in file}
  if len(fields) > 1:
    raise errors.InputError(
      f"{file[0]} and the other files have texts in different fields; give --field"
    )
  source = encoding.open(encoder, role="document")
  with contextlib.ExitStack() as stack:
    count, width = vector_jobs.embed(
      source,
      [stack.enter_context(local_file(path)) for path in file],
      out,
      field=fields.pop(),
      language=language,
      dtype=dtype,
      dimensions=dimensions,
      engine=engine,
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
  encoding: Batches,
) -> None:
  """Score pairs of aligned lines by cosine or likelihood.

  Args:
    target: Text file aligned with SOURCE line by line (default: SOURCE contains both texts).
    output: Output file, one line per pair (default: standard output).
    by: cosine compares the vectors; likelihood needs a run with a decoder, and writes three
      log-likelihoods: the mean of both directions, TARGET given SOURCE, and SOURCE given TARGET.
    per_token: Divide log-likelihoods by the number of tokens (default: sum over tokens).
    fields: Columns that contain source and target in TSV files, counted from 1, or keys in JSON
      Lines. The default for one file is columns 1 and 2 (2 and 3 if column 1 contains numbers,
      as in the output of `vmsst mine`) or, in .jsonl files, the keys "source" and "target". The
      default for two files is column 1 of .tsv files, the key "text" of .jsonl files, and otherwise
      the whole line.
    languages: Languages of both texts, for encoders that require them.
  """
  from vmsst.cli import vector_jobs
  from vmsst.encoder import loading
  from vmsst.mining import bitext_mining

  has_prompt = encoding.prompt is not None or encoding.prompt_name is not None
  if by == "likelihood" and (has_prompt or encoding.compute_dtype or encoding.backend != "auto"):
    raise errors.InputError("prompts, --compute-dtype and --backend need --by cosine; omit them")
  if by == "cosine" and per_token:
    raise errors.InputError("--per-token needs --by likelihood; omit it")
  # Standard input can be read only once, and it can contain both texts.
  with local_file(outputs.STANDARD if outputs.STANDARD in (source, target) else "") as temporary:
    paths = [temporary if x == outputs.STANDARD else x for x in (source, target or source)]
    numbers = (0, 0) if target else (1, 2)  # A single file contains both texts of a pair.
    path_fields = fields or [*map(text_files.default_field, paths, numbers)]
    if by == "cosine":
      opener = encoding.open(encoder)
      name = opener.identity["name"]
      scorer = bitext_mining.by_cosine(opener.open(), name, encoding.batch_size)
    else:
      translator = loading.load_translator(encoder)
      scorer = bitext_mining.by_likelihood(translator, per_token, encoding.batch_size)
    columns = [*map(bitext_mining.TextColumn, paths, path_fields, languages or (None, None))]
    with file_to_write(output) as output_path:
      count = vector_jobs.score(scorer, columns[0], columns[1], output_path)
  if output != outputs.STANDARD:
    print(f"{output}: scores of {count:,} pairs by {by}")


def index(
  vectors: Vectors, index: OutputFolder, *, factory: str | None = None, workers: GpuWorkers
) -> None:
  """Build a FAISS index of vectors, for approximate search and mining.

  Args:
    vectors: Vectors written by `vmsst embed`, or a .npy file.
    index: Output folder.
    factory: FAISS factory string, such as OPQ64,IVF65536,PQ64 or IVF4096,SQ8 or RaBitQ. The default
      is Flat, an exact index, below 20,000 vectors; RR<width>,IVF<lists>,RaBitQ below 10 million
      vectors with at least 256 dimensions; and otherwise OPQ64,IVF<lists>,PQ64. A million vectors
      get 4,096 lists.
  """
  from vmsst.cli import vector_jobs

  built = vector_jobs.build_index(vectors, index, factory=factory, engine=workers.create())
  print(f"{index}: {built.factory} with {built.shape[0]:,} vectors")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pairs:
  """Pair selection.

  Attributes:
    neighbors: Number of nearest neighbors in the margin score.
    margin: Score of a pair. ratio divides its cosine by the mean cosine of the nearest neighbors,
      distance subtracts the mean, and absolute is the cosine alone.
    retrieval: Pairs to select. forward takes the best target for each source, backward takes the
      best source for each target, and intersection takes the pairs that both of these select. max
      takes pairs from the best to the worst and uses each sentence at most once.
    threshold: Minimum score of a pair; cannot be used with --gold.
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
  encoding: Batches,
  workers: GpuWorkers,
) -> None:
  """Find translations among the lines of two text files.

  Args:
    source: Text file, one sentence per line, UTF-8, plain or gzipped. In .tsv files, the text is
      column 1, or column 2 if column 1 contains numbers; in .jsonl files, it is the value of the
      key "text".
    target: Text file in the other language.
    out: Output file with score TAB source TAB target per line, best first.
    vectors: Vectors of both texts, written by `vmsst embed`, or .npy files (default:
      OUT.source.vectors and OUT.target.vectors).
    index: Indexes of the vectors of both texts, written by `vmsst index`, for an approximate search
      (default: exact search).
    encoder: Encoder to compute missing vectors, as for `vmsst embed`.
    languages: Languages of both texts, for encoders that require them.
    gold: File with known translations, used to choose the threshold with the best F1. Each line
      contains a source line number, a tab and a target line number, counted from 1.
  """
  from vmsst.cli import vector_jobs
  from vmsst.jobs import job
  from vmsst.mining import bitext_mining
  from vmsst.search import faiss_index, vector_store

  paths = source, target
  folders = vectors or (f"{out}.source.vectors", f"{out}.target.vectors")
  if outputs.is_stream(out):
    raise errors.InputError(
      f"{out} is not a regular file; give a regular file as OUT, because unfinished work is kept "
      "next to it"
    )
  engine = workers.create()
  if gold:
    bitext_mining.read_gold(gold)  # Report errors in the gold file before the search.
  if encoder:
    opener = encoding.open(encoder)
    for path, folder, language in zip(paths, folders, languages or (None, None), strict=True):
      vector_jobs.embed(
        opener,
        [path],
        folder,
        field=text_files.default_field(path),
        language=language,
        engine=engine,
      )
  elif not vectors and not all(map(storage.names, folders)):
    raise errors.InputError(
      "SOURCE and TARGET have no vectors; give --encoder to compute them, or --vectors"
    )
  texts = vector_store.open_text(source, folders[0]), vector_store.open_text(target, folders[1])
  indexes = [
    faiss_index.open_index(folder, text.vectors)
    for folder, text in zip(index or (), texts, strict=False)
  ]
  inputs = dict(zip(("source", "target"), map(vector_jobs.describe, texts), strict=True))
  # Of the pair options, only `neighbors` affects the search. If another option changes, a rerun
  # reuses the finished blocks of the search.
  options = {"neighbors": pairs.neighbors}
  with job.Job(out, inputs=inputs, options=options, is_folder=False) as mine_job:
    search = vector_jobs.resumable_search(mine_job, engine)
    if not all(index.exact for index in indexes):
      search = faiss_index.index_search(*indexes)
    mined = bitext_mining.mine(*texts, gold=gold, search=search, **vars(pairs))
    with mine_job.output() as file, file.open("w", encoding="utf-8", newline="\n") as stream:
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
  encoding: Batches,
  workers: GpuWorkers,
) -> None:
  """Align the sentences in documents and their translations.

  Args:
    source: Text file, one sentence per line, UTF-8, plain or gzipped; or a folder of such files.
    target: Translation of SOURCE. In a folder, a document and its translation have the same name.
    out: Output file. If SOURCE is a folder, an output folder that gets one file per document pair.
    format: tsv writes score TAB source TAB target. vecalign writes line numbers from 0, as in
      [3]:[3, 4]:0.81, with [] for sentences without a translation. tmx writes translation memories.
    marker: Line that separates the documents in a file.
    lists: SOURCE and TARGET contain paths of documents, one per line, and OUT is a folder.
    split: Languages of both texts. If given, each line is split into sentences.
    max_size: Maximum number of sentences in an aligned pair, source and target together.
    deletion: Cost of a sentence without a translation. 0 is the cost of a typical translation, 1
      the cost of a random pair.
    summed: Sum sentence vectors instead of encoding joined sentences. This is faster but less
      accurate.
    languages: Languages of both texts, for tmx and for encoders that require them (default: as in
      --split).
  """
  names = ("format", "split", "max_size", "deletion", "summed")
  options = {name: value for name, value in locals().items() if name in names}
  from vmsst.cli import alignment_job

  if split and format == "vecalign":
    raise errors.InputError(
      "--format vecalign writes line numbers, so it cannot be used with --split; split the files "
      "first"
    )
  is_folder = lists or storage.path(source).is_dir()
  outputs.check([source, target], **{"folder" if is_folder else "file": out})
  engine = workers.create()
  options["languages"] = languages or split or (None, None)
  documents, pairs = alignment_job.align(
    source, target, out, encoding.open(encoder), options, marker=marker, lists=lists, engine=engine
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
  encoding: Batches,
  workers: GpuWorkers,
) -> None:
  """Find the lines of a text file that are nearest to each query, in any language.

  Args:
    queries: Text file, one query per line; - is standard input.
    corpus: Text file with the lines to search, UTF-8, plain or gzipped.
    vectors: Vectors of CORPUS, written by `vmsst embed`, or a .npy file.
    index: Index of VECTORS, written by `vmsst index`, for an approximate search (default: exact
      search).
    encoder: Encoder of the queries (default: the encoder that computed VECTORS).
    count: Number of lines per query.
    output: Output file, JSON Lines with one object per query (default: standard output).
    language: Language of the queries, for encoders that require it.
  """
  from vmsst.cli import vector_jobs
  from vmsst.mining import text_search
  from vmsst.search import faiss_index, vector_store

  engine = workers.create()
  corpus_text = vector_store.open_text(corpus, vectors)
  path = encoder or corpus_text.encoder.get("name")
  if path is None:
    raise errors.InputError(f"{vectors} does not name its encoder; give --encoder")
  outputs.check([path], file=output)
  corpus_index = faiss_index.open_index(index, corpus_text.vectors) if index else None
  source = encoding.open(path, role="query")
  if differences := text_search.other_encoder(corpus_text, source.identity):
    if not encoder:
      raise errors.InputError(
        f"the encoder {path} has changed since it computed {vectors}: {differences}; embed "
        f"{corpus} again, or give the original encoder with --encoder"
      )
    logging.getLogger(__name__).warning("%s: %s", corpus_text.vectors.folder, differences)
  with local_file(queries) as path, file_to_write(output) as output_path:
    vector_jobs.search(
      source,
      path,
      corpus_text,
      output_path,
      count,
      index=corpus_index,
      language=language,
      engine=engine,
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
  """Translate lines with a run's decoder. The decoder sees only the vector of each line.

  Args:
    run: A training run's MODEL_DIR, or one of its checkpoint_<step> folders.
    to: Target language.
    input: Input file, one sentence per line (default: standard input).
    output: Output file, one translation per line (default: standard output).
    max_length: Maximum tokens per sentence (default: as in training).
    batch_size: Sentences per batch.
  """
  from vmsst.encoder import loading

  with local_file(input) as path:
    text_files.check_not_empty(path)  # `Command` checks files, but cannot check standard input.
    sentences = list(text_files.read_lines(path))
  translator = loading.load_translator(run)
  translations = translator.translate(sentences, to, max_length=max_length, batch_size=batch_size)
  # A generated line break would add a line to the output.
  lines = (f"{' '.join(text.splitlines())}\n" for text in translations)
  with file_to_write(output) as output_path:
    outputs.write_text(output_path, "".join(lines))


COMMANDS: dict[tuple[str, ...], Command] = {
  ("embed",): Command(embed, resumable=True),
  ("score",): Command(score, resumable=True),
  ("index",): Command(index, resumable=True),
  ("mine",): Command(mine, resumable=True),
  ("align",): Command(align, resumable=True),
  ("search",): Command(search),
  ("translate",): Command(translate),
}
