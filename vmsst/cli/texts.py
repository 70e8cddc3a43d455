"""Commands that use a trained encoder or its vectors: `vmsst embed`, `index`, `mine` and others."""

import argparse
import functools
import sys
from typing import Any

from vmsst.cli import engines
from vmsst.cli.command import (
  ENCODER_HELP,
  Command,
  at_least_1,
  backend_argument,
  finite_number,
  local_file,
  read_lines,
)

_TEXT_HELP = "text file, one sentence per line, UTF-8, plain or gzipped"
_PLACES = "(local, gs:// or s3://)"


def _batch_size_argument(parser: argparse.ArgumentParser) -> None:
  parser.add_argument(
    "--batch-size",
    type=at_least_1,
    default=128,
    metavar="N",
    help="sentences per batch (default: %(default)s)",
  )


def _languages_argument(parser: argparse.ArgumentParser) -> None:
  parser.add_argument(
    "--languages",
    nargs=2,
    default=(None, None),
    metavar="CODE",
    help="languages of both texts, for encoders that require them",
  )


def _computing_arguments(parser: argparse.ArgumentParser) -> None:
  parser.add_argument(
    "--long-texts",
    choices=("cut", "split"),
    default="cut",
    help="how to read texts above the encoder's maximum length: cut the end, or split them and "
    "average the vectors of the parts (default: %(default)s)",
  )
  parser.add_argument(
    "--compute-dtype",
    choices=("float32", "bfloat16"),
    help="compute dtype (default: as in training)",
  )
  backend_argument(parser)
  _batch_size_argument(parser)


def _embed_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add("encoder", metavar="ENCODER", help=ENCODER_HELP)
  add(
    "file",
    nargs="+",
    metavar="FILE",
    help=f"{_TEXT_HELP}, or several, whose lines follow each other; - is standard input",
  )
  add(
    "out",
    metavar="OUT",
    help="output folder, with one vector per line, including empty lines; - writes a single file "
    "to standard output",
  )
  add(
    "--field",
    metavar="NUMBER|KEY",
    help="column of a TSV file, from 1, or key of JSON Lines (default: 1 for .tsv, text for "
    ".jsonl, else the whole line)",
  )
  add("--language", metavar="CODE", help="language of the text, for encoders that require it")
  add(
    "--dtype",
    choices=("float32", "float16", "int8", "binary"),
    default="float32",
    help="numbers of the vectors; int8 has a byte per dimension, with the ranges of a sample, and "
    "binary a bit (default: %(default)s)",
  )
  add(
    "--dimensions",
    type=at_least_1,
    metavar="D",
    help="store the first D dimensions only (default: all)",
  )
  _computing_arguments(parser)
  engines.add_arguments(parser)


def _embed(args: argparse.Namespace) -> None:
  from vmsst import errors
  from vmsst.files import outputs, text_fields
  from vmsst.inference import loading
  from vmsst.vectors import file_embedding, vector_store

  engine = engines.chosen(args)
  single = outputs.STANDARD in (args.out, *args.file)
  if single and (len(args.file) > 1 or not engine.this_machine):
    raise errors.InputError(
      f"{outputs.STANDARD} needs a single FILE, and an engine on this machine; give files and a "
      "folder"
    )
  fields = {args.field or text_fields.default_field(path) for path in args.file}
  if len(fields) > 1:
    raise errors.InputError(
      f"{args.file[0]} and the other files have texts in different fields; give --field"
    )
  engines.leave_accelerators(engine)
  how = {"dtype": args.compute_dtype, "backend": args.backend}
  name, encoder = loading.open_encoder(args.encoder, **how)
  options = {
    "field": fields.pop(),
    "language": args.language,
    "dtype": args.dtype,
    "dimensions": args.dimensions,
    "long_texts": args.long_texts,
    "batch_size": args.batch_size,
  }
  with local_file(args.file[0]) as first:
    paths = [first, *args.file[1:]]
    if args.out == outputs.STANDARD:
      if not engine.in_process:
        raise errors.InputError(f"{args.out} as OUT needs one local worker; give a folder")
      file_embedding.embed_to_stream(encoder, paths[0], sys.stdout.buffer, **options)
      return
    load = functools.partial(loading.open_encoder, name, **how)
    file_embedding.embed_file(
      encoder, paths, args.out, name=name, engine=engine, load=load, **options
    )
  count, width = vector_store.shape(args.out)
  print(f"{args.out}: {count:,} vectors of width {width}")


def _score_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add("encoder", metavar="ENCODER", help=ENCODER_HELP)
  add("source", metavar="SOURCE", help=f"{_TEXT_HELP}; - is standard input")
  add(
    "target",
    nargs="?",
    metavar="TARGET",
    help="aligned text in another language (default: SOURCE has both)",
  )
  add(
    "--output",
    default="-",
    metavar="FILE",
    help=f"output file {_PLACES}, one line per pair (default: stdout)",
  )
  add(
    "--by",
    choices=("cosine", "likelihood"),
    default="cosine",
    help="score: cosine of the vectors; or, with a run's decoder, the mean log-likelihood of each "
    "text given the other's vector, followed by target given source and source given target "
    "(default: %(default)s)",
  )
  add(
    "--per-token",
    action="store_true",
    help="divide log-likelihoods by the number of tokens (default: sum over tokens)",
  )
  add(
    "--fields",
    nargs=2,
    metavar="NUMBER|KEY",
    help="columns of source and target in TSV files, from 1, or keys of JSON Lines (default: for "
    "one file 1 and 2, or source and target in .jsonl; for two files whole lines, 1 for .tsv, text "
    "for .jsonl)",
  )
  _languages_argument(parser)
  _computing_arguments(parser)


def _score(args: argparse.Namespace) -> None:
  from vmsst.files import text_fields
  from vmsst.mining import pair_scoring

  paths = [args.source, args.target or args.source]
  fields = args.fields
  if not fields and args.target:
    fields = [text_fields.default_field(path) for path in paths]
  elif not fields:
    fields = [text_fields.default_field(args.source, side) or str(side) for side in (1, 2)]
  scorer = _scorer(args)
  # Standard input is read once, even if it contains both sides.
  with local_file("-" if "-" in paths else "") as standard_input:
    source, target = (
      pair_scoring.TextColumn(standard_input if path == "-" else path, field, language)
      for path, field, language in zip(paths, fields, args.languages, strict=True)
    )
    if args.output != "-":
      count = pair_scoring.score_file(scorer, source, target, args.output)
      print(f"{args.output}: scores of {count:,} pairs by {args.by}")
      return
    for score_BC in pair_scoring.pair_scores(scorer, source, target):
      lines = "".join(f"{pair_scoring.as_line(scores)}\n" for scores in score_BC)
      sys.stdout.buffer.write(lines.encode())
    sys.stdout.buffer.flush()


def _scorer(args: argparse.Namespace) -> Any:
  """Returns the scorer of `vmsst score`."""
  from vmsst import errors
  from vmsst.inference import loading
  from vmsst.mining import pair_scoring

  of_cosines = {
    "--long-texts": args.long_texts != "cut",
    "--compute-dtype": args.compute_dtype,
    "--backend": args.backend != "jax",
  }
  of_likelihoods = {"--per-token": args.per_token}
  for flag, given in (of_likelihoods if args.by == "cosine" else of_cosines).items():
    if given:
      raise errors.InputError(f"{flag} does not apply to --by {args.by}; omit it")
  if args.by == "cosine":
    name, encoder = loading.open_encoder(args.encoder, args.compute_dtype, backend=args.backend)
    return pair_scoring.ByCosine(encoder, name, args.long_texts, args.batch_size)
  translator = loading.load_translator(args.encoder)
  name = str(translator.encoder.path)
  return pair_scoring.ByLikelihood(translator, name, args.per_token, args.batch_size)


def _index_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add("vectors", metavar="VECTORS", help="vectors, as `vmsst embed` writes them")
  add("index", metavar="INDEX", help="output folder")
  add(
    "--factory",
    metavar="STRING",
    help="FAISS factory string, such as OPQ64,IVF65536,PQ64 or IVF4096,SQ8 or RaBitQ (default: "
    "Flat, which is exact, below 20,000 vectors, RR<width>,IVF<lists>,RaBitQ below 10 million, "
    "else OPQ64,IVF<lists>,PQ64; 4,096 lists at a million vectors)",
  )
  engines.add_arguments(parser)


def _index(args: argparse.Namespace) -> None:
  from vmsst.vectors import vector_indexes

  engine = engines.chosen(args)
  settings = vector_indexes.build_index(
    args.vectors, args.index, factory=args.factory, engine=engine
  )
  print(f"{args.index}: {settings.factory} of {settings.vectors['count']:,} vectors")


def _mine_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add("source", metavar="SOURCE", help=_TEXT_HELP)
  add("target", metavar="TARGET", help="text file in the other language")
  add("out", metavar="OUT", help=f"output file {_PLACES}: score TAB source TAB target, best first")
  add(
    "--vectors",
    nargs=2,
    metavar="FOLDER",
    help="vectors of both texts, as `vmsst embed` writes them "
    "(default: OUT.source.vectors and OUT.target.vectors)",
  )
  add(
    "--index",
    nargs=2,
    metavar="FOLDER",
    help="indexes of both texts' vectors, as `vmsst index` writes them, for an approximate search "
    "(default: exact search)",
  )
  add(
    "--encoder",
    metavar="PATH",
    help=f"encoder to compute missing vectors: {ENCODER_HELP}",
  )
  _languages_argument(parser)
  backend_argument(parser)
  _batch_size_argument(parser)
  add(
    "--neighbors",
    type=at_least_1,
    default=4,
    metavar="K",
    help="nearest neighbors to compare a pair with (default: %(default)s)",
  )
  add(
    "--margin",
    choices=("ratio", "distance", "absolute"),
    default="ratio",
    help="score: cosine / mean of the neighbors, cosine - mean, or the cosine alone "
    "(default: %(default)s)",
  )
  add(
    "--retrieval",
    choices=("max", "forward", "backward", "intersection"),
    default="max",
    help="pairs to keep: greedily the best with both sentences unused; the best of each source; "
    "the best of each target; those in both (default: %(default)s)",
  )
  threshold = parser.add_mutually_exclusive_group()
  threshold.add_argument(
    "--threshold", type=finite_number, metavar="X", help="minimum score of pairs to write"
  )
  threshold.add_argument(
    "--gold",
    metavar="FILE",
    help="known translations (source line TAB target line, numbers from 1), to choose the "
    "threshold with the best F1",
  )
  add("--min-cosine", type=finite_number, metavar="X", help="minimum cosine of pairs to write")
  add(
    "--keep-duplicates",
    action="store_true",
    help="compare every line (default: only the first of lines that differ in white space only)",
  )
  engines.add_arguments(parser)


def _mine(args: argparse.Namespace) -> None:
  from vmsst import errors
  from vmsst.files import atomic_files, outputs, storage
  from vmsst.inference import loading
  from vmsst.mining import bitext_mining
  from vmsst.search import device_search
  from vmsst.vectors import embedded_text, file_embedding

  paths = args.source, args.target
  folders = args.vectors or [f"{args.out}.{side}.vectors" for side in ("source", "target")]
  if args.out == outputs.STANDARD or atomic_files.is_stream(args.out):
    raise errors.InputError(
      f"{args.out} is not a file; give a file as OUT: unfinished work is kept next to it"
    )
  engine = engines.chosen(args)
  if args.index and not engine.in_process:
    raise errors.InputError(
      "--index is searched in one local process; omit --engine and --workers (`vmsst embed` and "
      "`vmsst index` have them)"
    )
  for path in paths:
    bitext_mining.check_sentences(path)
  engines.leave_accelerators(engine)
  if args.encoder:
    name, encoder = loading.open_encoder(args.encoder, backend=args.backend)
    for path, folder, language in zip(paths, folders, args.languages, strict=True):
      file_embedding.embed_file(
        encoder,
        path,
        folder,
        name=name,
        language=language,
        batch_size=args.batch_size,
        engine=engine,
        load=functools.partial(loading.open_encoder, name, backend=args.backend),
      )
  elif not args.vectors and not all(map(storage.names, folders)):
    raise errors.InputError(
      "there are no vectors of SOURCE and TARGET: give --encoder to compute them, or --vectors"
    )
  source, target = map(embedded_text.open_text, paths, folders)
  indexes = args.index and tuple(
    text.open_index(folder) for text, folder in zip((source, target), args.index, strict=True)
  )
  found = bitext_mining.mine(
    source,
    target,
    args.out,
    neighbors=args.neighbors,
    margin=args.margin,
    retrieval=args.retrieval,
    threshold=args.threshold,
    gold=args.gold,
    min_cosine=args.min_cosine,
    keep_duplicates=args.keep_duplicates,
    indexes=indexes,
    compare=device_search.anywhere,
    engine=engine,
  )
  if found.best:
    f1, precision, recall = (
      f"{100 * x:.2f}" for x in (found.best.f1, found.best.precision, found.best.recall)
    )
    print(f"threshold {found.best.threshold!r}: F1 {f1}, precision {precision}, recall {recall}")
  print(
    f"{args.out}: {found.kept:,} of {found.candidates:,} pairs found among {found.source:,} and "
    f"{found.target:,} sentences"
  )


def _search_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add("queries", metavar="QUERIES", help="text file, one query per line; - is standard input")
  add("corpus", metavar="CORPUS", help=f"{_TEXT_HELP}: the lines to search")
  add("vectors", metavar="VECTORS", help="vectors of CORPUS, as `vmsst embed` writes them")
  add(
    "--index",
    metavar="FOLDER",
    help="index of VECTORS, as `vmsst index` writes it, for an approximate search (default: exact "
    "search)",
  )
  add("--encoder", metavar="PATH", help="encoder of the queries (default: that of the vectors)")
  add("--count", type=at_least_1, default=10, metavar="K", help="lines per query (default: 10)")
  add(
    "--output",
    default="-",
    metavar="FILE",
    help=f"output file {_PLACES}, JSON Lines with one object per query (default: stdout)",
  )
  add("--language", metavar="CODE", help="language of the queries, for encoders that require it")
  backend_argument(parser)
  _batch_size_argument(parser)
  engines.add_arguments(parser)


def _search(args: argparse.Namespace) -> None:
  from vmsst import errors
  from vmsst.files import atomic_files, outputs, stored_settings
  from vmsst.inference import loading
  from vmsst.mining import search_units, text_search
  from vmsst.search import device_search
  from vmsst.vectors import embedded_text, encoder_sources, encoding

  engine = engines.chosen(args)
  if not engine.in_process and args.output == outputs.STANDARD:
    raise errors.InputError("several processes need a file; give --output, or omit --workers")
  engines.leave_accelerators(engine)
  corpus = embedded_text.open_text(args.corpus, args.vectors)
  queries = read_lines(args.queries)
  path = args.encoder or corpus.encoder.get("name")
  if path is None:
    raise errors.InputError(f"{args.vectors} does not name its encoder: give --encoder")
  name, encoder = loading.open_encoder(path, backend=args.backend)
  differences = corpus.encoder and stored_settings.differences(
    {"encoder": corpus.encoder}, {"encoder": encoding.identity(encoder, name)}
  )
  if differences and not args.encoder:
    raise errors.InputError(
      f"{path} has changed since it computed {args.vectors}: {differences}; embed {args.corpus} "
      "again, or give the original encoder with --encoder"
    )
  if differences:
    print(f"vmsst: note: {args.vectors}: {differences}", file=sys.stderr)
  index = corpus.open_index(args.index) if args.index else None
  options = {"index": index, "language": args.language, "batch_size": args.batch_size}
  if not engine.in_process:
    load = functools.partial(loading.open_encoder, name, backend=args.backend)
    source = search_units.source(
      encoder_sources.of(encoder, name, load), corpus, compare=device_search.anywhere, **options
    )
    search_units.search_file(source, corpus, queries, args.output, args.count, engine=engine)
    return
  searcher = text_search.Searcher(encoder, corpus, engine=device_search.engine(), **options)
  lines = (search_units.as_line(*found) for found in searcher.stream(queries, args.count))
  if args.output == "-":
    for line in lines:
      sys.stdout.buffer.write(f"{line}\n".encode())
    sys.stdout.buffer.flush()
    return
  with atomic_files.atomic_text(args.output) as stream:
    stream.writelines(f"{line}\n" for line in lines)


def _translate_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add("folder", metavar="RUN", help="a run's MODEL_DIR, or one of its checkpoint_<step>")
  add("--to", required=True, metavar="CODE", help="target language")
  add(
    "--input",
    default="-",
    metavar="FILE",
    help="input file, one sentence per line (default: stdin)",
  )
  add(
    "--output",
    default="-",
    metavar="FILE",
    help=f"output file {_PLACES}, one translation per line (default: stdout)",
  )
  add(
    "--temperature",
    type=finite_number,
    default=0.0,
    metavar="X",
    help="sample tokens from the softmax of logits / X; 0 takes the likeliest (default: 0)",
  )
  add("--seed", type=int, default=0, metavar="N", help="sampling seed (default: %(default)s)")
  add(
    "--max-length", type=int, metavar="N", help="maximum tokens per sentence (default: training's)"
  )
  add(
    "--batch-size",
    type=int,
    default=64,
    metavar="N",
    help="sentences per batch (default: %(default)s)",
  )


def _translate(args: argparse.Namespace) -> None:
  from vmsst.files import atomic_files, outputs
  from vmsst.inference import loading

  sentences = read_lines(args.input)
  translations = loading.load_translator(args.folder).translate(
    sentences,
    args.to,
    temperature=args.temperature,
    seed=args.seed,
    max_length=args.max_length,
    batch_size=args.batch_size,
  )
  # One line per translation, whatever the model generates.
  content = "".join(f"{' '.join(text.splitlines())}\n" for text in translations)
  if args.output == outputs.STANDARD:
    sys.stdout.buffer.write(content.encode())
    sys.stdout.buffer.flush()
  else:
    atomic_files.write_text(args.output, content)


COMMANDS: dict[tuple[str, ...], Command] = {
  ("embed",): Command(
    "write an encoder's vectors of a text file, one per line",
    _embed_arguments,
    _embed,
    resumable=True,
    inputs=("encoder", "file"),
    output_folder="out",
    urls=("encoder", "file", "out"),
  ),
  ("score",): Command(
    "score each pair of two aligned texts by cosine or likelihood",
    _score_arguments,
    _score,
    resumable=True,
    inputs=("encoder", "source", "target"),
    output_file="output",
    urls=("encoder", "source", "target", "output"),
  ),
  ("index",): Command(
    "build a FAISS index of vectors, for approximate search and mining",
    _index_arguments,
    _index,
    resumable=True,
    inputs=("vectors",),
    output_folder="index",
    urls=("vectors", "index"),
  ),
  ("mine",): Command(
    "find translations among the lines of two text files",
    _mine_arguments,
    _mine,
    resumable=True,
    inputs=("source", "target", "gold", "encoder", "vectors", "index"),
    urls=("source", "target", "gold", "encoder", "vectors", "index", "out"),
    output_file="out",
  ),
  ("search",): Command(
    "search the lines of a text file for queries, in any language",
    _search_arguments,
    _search,
    inputs=("queries", "corpus", "vectors", "index", "encoder"),
    urls=("queries", "corpus", "vectors", "index", "encoder", "output"),
    output_file="output",
  ),
  ("translate",): Command(
    "translate lines from their vectors alone, with a run's decoder",
    _translate_arguments,
    _translate,
    inputs=("folder", "input"),
    output_file="output",
    urls=("folder", "input", "output"),
  ),
}
