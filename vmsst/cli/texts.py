"""`vmsst embed`, `score`, `mine`, `search`, `translate`: what a trained encoder does with texts."""

import argparse
import json
import pathlib
import re
import sys

from vmsst.cli.command import ENCODER_HELP, Command, at_least_1, local_file, read_lines

_TEXT_HELP = "one sentence a line, UTF-8, plain or gzipped"


def _batch_size_argument(parser: argparse.ArgumentParser) -> None:
  parser.add_argument(
    "--batch-size", type=at_least_1, default=128, metavar="N", help="default %(default)s"
  )


def _computing_arguments(parser: argparse.ArgumentParser) -> None:
  parser.add_argument(
    "--long-texts",
    choices=("cut", "split"),
    default="cut",
    help="longer than the encoder reads: read their beginning, or take the mean of the vectors of "
    "their parts (default %(default)s)",
  )
  parser.add_argument(
    "--compute-dtype",
    choices=("float32", "bfloat16"),
    help="what is computed in (default: as in training)",
  )
  _batch_size_argument(parser)


def _embed_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add("encoder", metavar="ENCODER", help=ENCODER_HELP)
  add("file", metavar="FILE", help=f"{_TEXT_HELP}; - is standard input")
  add(
    "out",
    metavar="OUT",
    help="folder to write to: one vector for each line, empty ones too; - writes one file to "
    "standard output",
  )
  add(
    "--field",
    metavar="NUMBER|KEY",
    help="column of a TSV, from 1, or key of JSON Lines (default: 1 for .tsv, text for .jsonl, "
    "else the whole line)",
  )
  add("--language", metavar="CODE", help="of the lines, for encoders that split text by its rules")
  add("--dtype", choices=("float32", "float16"), default="float32", help="default %(default)s")
  add(
    "--format",
    choices=("npy", "safetensors", "parquet"),
    default="npy",
    help="of the files (default %(default)s); parquet needs pyarrow and is not memory-mapped",
  )
  add(
    "--part",
    type=_part,
    default=(1, 1),
    metavar="I/N",
    help="embed the I-th of N parts of the lines, such as 2/4: N processes, on any machines, fill "
    "OUT together",
  )
  _computing_arguments(parser)


def _part(text: str) -> tuple[int, int]:
  found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
  if not found or not 1 <= int(found[1]) <= int(found[2]):
    raise argparse.ArgumentTypeError(f"{text!r} is no part such as 2/4")
  return int(found[1]), int(found[2])


def _embed(args: argparse.Namespace) -> None:
  from vmsst import errors
  from vmsst.files import text_fields
  from vmsst.inference import loading
  from vmsst.vectors import file_embedding, vector_store

  name, encoder = loading.open_encoder(args.encoder, args.compute_dtype)
  options = {
    "field": args.field or text_fields.default_field(args.file),
    "language": args.language,
    "dtype": args.dtype,
    "file_format": args.format,
    "long_texts": args.long_texts,
    "batch_size": args.batch_size,
  }
  with local_file(args.file) as path:
    if args.out == "-":
      if args.part[1] > 1:
        raise errors.InputError("--part is for folders: give OUT")
      file_embedding.embed_to_stream(encoder, path, sys.stdout.buffer, **options)
      return
    count = file_embedding.embed_file(encoder, path, args.out, name=name, part=args.part, **options)
  if args.part[1] > 1:
    print(f"{args.out}: part {args.part[0]} of {args.part[1]}, {count:,} vectors")
    return
  count, width = vector_store.open_vectors(args.out).shape
  print(f"{args.out}: {count:,} vectors, {width} wide")


def _score_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add("encoder", metavar="ENCODER", help=ENCODER_HELP)
  add("source", metavar="SOURCE", help=f"{_TEXT_HELP}; - is standard input")
  add(
    "target",
    nargs="?",
    metavar="TARGET",
    help="the same in another language, line by line (default: SOURCE has both)",
  )
  add("--output", default="-", metavar="FILE", help="a cosine for each line (default: stdout)")
  add(
    "--fields",
    nargs=2,
    metavar="NUMBER|KEY",
    help="of source and target: columns of a TSV, from 1, or keys of JSON Lines (default: of one "
    "file 1 and 2, for .jsonl source and target; of two the whole lines, 1 for .tsv, text for "
    ".jsonl)",
  )
  add(
    "--languages",
    nargs=2,
    default=(None, None),
    metavar="CODE",
    help="of both sides, for encoders that split text by its rules",
  )
  _computing_arguments(parser)


def _score(args: argparse.Namespace) -> None:
  from vmsst.files import text_fields
  from vmsst.inference import loading
  from vmsst.mining import pair_scoring

  paths = [args.source, args.target or args.source]
  fields = args.fields
  if not fields and args.target:
    fields = [text_fields.default_field(path) for path in paths]
  elif not fields:
    fields = [text_fields.default_field(args.source, side) or str(side) for side in (1, 2)]
  name, encoder = loading.open_encoder(args.encoder, args.compute_dtype)
  options = {"long_texts": args.long_texts, "batch_size": args.batch_size}
  # What comes from standard input is read once, also where it has both sides.
  with local_file("-" if "-" in paths else "") as standard_input:
    source, target = (
      pair_scoring.TextColumn(standard_input if path == "-" else path, field, language)
      for path, field, language in zip(paths, fields, args.languages, strict=True)
    )
    if args.output != "-":
      count = pair_scoring.score_file(encoder, source, target, args.output, name=name, **options)
      print(f"{args.output}: cosines of {count:,} pairs")
      return
    for cosine_B in pair_scoring.pair_cosines(encoder, source, target, **options):
      lines = "".join(f"{pair_scoring.as_line(cosine)}\n" for cosine in cosine_B)
      sys.stdout.buffer.write(lines.encode())
    sys.stdout.buffer.flush()


def _mine_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add("source", metavar="SOURCE", help=_TEXT_HELP)
  add("target", metavar="TARGET", help="the same in another language")
  add("out", metavar="OUT", help="file to write: score TAB source TAB target, the best first")
  add(
    "--vectors",
    nargs=2,
    metavar="FOLDER",
    help="vectors of both texts, as `vmsst embed` writes them "
    "(default: OUT.source.vectors and OUT.target.vectors)",
  )
  add(
    "--encoder",
    metavar="PATH",
    help=f"makes the vectors that are not there yet: {ENCODER_HELP}",
  )
  add(
    "--languages",
    nargs=2,
    metavar="CODE",
    help="of both texts, for encoders that split text by its rules",
  )
  _batch_size_argument(parser)
  add(
    "--neighbors",
    type=at_least_1,
    default=4,
    metavar="K",
    help="with which a pair is compared (default %(default)s)",
  )
  add(
    "--margin",
    choices=("ratio", "distance", "absolute"),
    default="ratio",
    help="how: cosine / mean, cosine - mean, or the cosine alone (default %(default)s)",
  )
  add(
    "--retrieval",
    choices=("max", "forward", "backward", "intersection"),
    default="max",
    help="which pairs: the best with both sentences free, again and again; the best of each source "
    "sentence; of each target sentence; those that are both (default %(default)s)",
  )
  threshold = parser.add_mutually_exclusive_group()
  threshold.add_argument(
    "--threshold", type=float, metavar="X", help="leave out pairs with a lower score"
  )
  threshold.add_argument(
    "--gold",
    metavar="FILE",
    help="find the threshold of the best F1 by known translations: source line TAB target line, "
    "numbers from 1",
  )
  add("--min-cosine", type=float, metavar="X", help="leave out pairs with a lower cosine")
  add(
    "--keep-duplicates",
    action="store_true",
    help="compare every line (default: of lines that are the same but for white space the first)",
  )


def _mine(args: argparse.Namespace) -> None:
  from vmsst.inference import loading
  from vmsst.mining import bitext_mining
  from vmsst.search import device_search
  from vmsst.vectors import embedded_text, file_embedding

  paths = args.source, args.target
  folders = args.vectors or [f"{args.out}.{side}.vectors" for side in ("source", "target")]
  if args.encoder:
    name, encoder = loading.open_encoder(args.encoder)
    for path, folder, language in zip(paths, folders, args.languages or (None, None), strict=True):
      file_embedding.embed_file(
        encoder, path, folder, name=name, language=language, batch_size=args.batch_size
      )
  source, target = map(embedded_text.open_text, paths, folders)
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
    engine=device_search.engine(),
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
  add("queries", metavar="QUERIES", help="one a line; - is standard input")
  add("base", metavar="BASE", help=f"what they are looked up in: {_TEXT_HELP}")
  add("vectors", metavar="VECTORS", help="vectors of BASE, as `vmsst embed` writes them")
  add("--encoder", metavar="PATH", help="default: the one that made the vectors, where it was then")
  add("--count", type=at_least_1, default=10, metavar="K", help="lines for each (default 10)")
  add("--output", default="-", metavar="FILE", help="JSON Lines, one a query (default: stdout)")
  add(
    "--language", metavar="CODE", help="of the queries, for encoders that split text by its rules"
  )
  _batch_size_argument(parser)


def _search(args: argparse.Namespace) -> None:
  from vmsst import errors
  from vmsst.files import atomic_files
  from vmsst.inference import loading
  from vmsst.mining import text_search
  from vmsst.search import device_search
  from vmsst.vectors import embedded_text

  base = embedded_text.open_text(args.base, args.vectors)
  queries = read_lines(args.queries)
  made_by = base.vectors.settings.get("encoder")
  path = args.encoder or made_by
  if path is None:
    raise errors.InputError(f"{args.vectors} does not say what made it: give --encoder")
  name, encoder = loading.open_encoder(path)
  if made_by not in (None, name):
    print(f"vmsst: note: {args.vectors} was made by {made_by}, not by {name}", file=sys.stderr)
  found = text_search.nearest_lines(
    encoder,
    queries,
    base,
    args.count,
    language=args.language,
    batch_size=args.batch_size,
    engine=device_search.engine(),
  )
  lines = (
    json.dumps({"query": query, "results": [hit.as_json() for hit in hits]}, ensure_ascii=False)
    for query, hits in found
  )
  if args.output == "-":
    for line in lines:
      sys.stdout.buffer.write(f"{line}\n".encode())
    sys.stdout.buffer.flush()
    return
  with atomic_files.atomic_text(args.output) as stream:
    stream.writelines(f"{line}\n" for line in lines)


def _translate_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add("folder", metavar="RUN", help="a run's MODEL_DIR or one checkpoint_<step> of it")
  add("--to", required=True, metavar="CODE", help="language to translate into")
  add("--input", default="-", metavar="FILE", help="sentences, one a line (default: stdin)")
  add("--output", default="-", metavar="FILE", help="a line for each of them (default: stdout)")
  add(
    "--temperature",
    type=float,
    default=0.0,
    metavar="X",
    help="draw tokens from the softmax of logits / X; 0 takes the likeliest (default)",
  )
  add("--seed", type=int, default=0, metavar="N", help="of the draws (default %(default)s)")
  add("--max-length", type=int, metavar="N", help="most tokens of a sentence (default: training's)")
  add("--batch-size", type=int, default=64, metavar="N", help="default %(default)s")


def _translate(args: argparse.Namespace) -> None:
  from vmsst.inference import loading

  sentences = read_lines(args.input)
  translations = loading.load_translator(args.folder).translate(
    sentences,
    args.to,
    temperature=args.temperature,
    seed=args.seed,
    max_length=args.max_length,
    batch_size=args.batch_size,
    progress=True,
  )
  # One line each, whatever the model writes.
  content = "".join(f"{' '.join(text.splitlines())}\n" for text in translations).encode()
  if args.output == "-":
    sys.stdout.buffer.write(content)
  else:
    pathlib.Path(args.output).write_bytes(content)


COMMANDS: dict[tuple[str, ...], Command] = {
  ("embed",): Command(
    "write an encoder's vectors of a text file, one for each line",
    _embed_arguments,
    _embed,
    resumable=True,
  ),
  ("score",): Command(
    "write the cosine of each pair of two texts, line by line",
    _score_arguments,
    _score,
    resumable=True,
  ),
  ("mine",): Command(
    "find translations among the lines of two text files",
    _mine_arguments,
    _mine,
    resumable=True,
  ),
  ("search",): Command(
    "look texts up among the lines of a text file, in any language", _search_arguments, _search
  ),
  ("translate",): Command(
    "translate lines with a run's decoder, from their vectors alone",
    _translate_arguments,
    _translate,
  ),
}
