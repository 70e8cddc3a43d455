"""The job of `vmsst align`, whose parts are pairs of documents."""

import functools
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from vmsst import errors, languages, storage
from vmsst.encoder import encoding
from vmsst.io import manifest, text_files
from vmsst.jobs import engines, job
from vmsst.mining import alignment_files, document_alignment


def align(
  source: str,
  target: str,
  out: str,
  encoder: encoding.EncoderSource,
  options: Mapping[str, Any],
  *,
  marker: str | None = None,
  lists: bool = False,
  engine: engines.Engine | None = None,
) -> tuple[int, int]:
  """Writes the alignments of documents; returns the numbers of documents and of aligned pairs.

  Args:
    source: A text; with `lists`, a text with a path per line; or a folder of texts.
    target: The same for the other side; the files of folders have the same names.
    out: A file, or for lists and folders a folder with a file for each pair of documents.
    encoder: The encoder.
    options: "format" (see `alignment_files.lines`); "split", None or codes of both languages, to
      split lines into sentences; and options of `document_alignment.align`.
    marker: Line between the documents of a text.
    lists: Whether the files list documents.
    engine: Where to compute.

  Raises:
    InputError: a text cannot be read, or the sides have different documents.
  """
  is_folder = lists or storage.path(source).is_dir()
  names, documents, inputs = [], [], {"encoder": encoder.identity}
  for title, side in (("source", source), ("target", target)):
    paths = [side]
    if lists:
      paths = [*filter(None, text_files.read_lines(side))]
      names = [f"{n:05d}-{os.path.basename(path)}" for n, path in enumerate(paths, 1)]
    elif is_folder:
      before, names = names, sorted(x for x in storage.names(side) if not x.startswith("."))
      if title == "target" and (differences := {*before} ^ {*names}):
        raise errors.InputError(f"{min(differences)} is in one of {source} and {target} only")
      paths = [os.path.join(side, name) for name in names]
    spans = [span for path in paths for span in _documents(path, marker)]
    documents.append(spans)
    inputs[title] = {"name": side, "digest": manifest.digest([x.digest for x in spans])}
  if len(documents[0]) != len(documents[1]):
    raise errors.InputError(
      f"{source} has {len(documents[0]):,} documents and {target} {len(documents[1]):,}; align one "
      "document with one"
    )
  start, end = alignment_files.frame(options["format"], options["languages"])
  frame = (start, end) if is_folder else ("", "")
  write = functools.partial(_write, encoder, options, frame)
  with job.Job(out, inputs=inputs, options=options, is_folder=is_folder) as work:
    if work.finished:
      return work.facts["documents"], work.facts["pairs"]
    copies = [text_files.unpack(x, work.path(storage.UNFINISHED)) for x in documents]
    parts = [
      job.Task(
        f"{names[number] if is_folder else f'{number:06d}'}.{options['format']}",
        pair,
        key=[[span.digest, span.first] for span in pair],
        size=sum(span.lines for span in pair),
        title=" and ".join(map(str, pair)),
      )
      for number, pair in enumerate(zip(*copies, strict=True))
    ]
    pairs = sum(facts["pairs"] for facts in work.run("align", write, parts, engine))
    if is_folder:
      work.finish(documents=len(parts), pairs=pairs)
      return len(parts), pairs
    with work.output() as path, path.open("w", encoding="utf-8", newline="\n") as stream:
      stream.write(start)
      for part in parts:
        stream.writelines(f"{line}\n" for line in text_files.read_lines(work.path(part.name)))
      stream.write(end)
  return len(parts), pairs


def _documents(path: str, marker: str | None) -> Iterator[text_files.Span]:
  """Yields the documents of a text as spans of lines without the marker; a span can be empty."""
  lines: list[bytes] = []
  first, start = 1, 0

  def document() -> text_files.Span:
    digest = text_files.new_digest(b"".join(lines)).hexdigest()
    return text_files.Span(path, first, len(lines), storage.absolute(path), start, digest)

  for line in text_files.read_chunks(path, lines=True):
    if marker is not None and line.rstrip(b"\r\n") == marker.encode():
      yield document()
      first, start = first + len(lines) + 1, start + sum(map(len, lines)) + len(line)
      lines = []
    else:
      lines.append(line)
  yield document()


def _write(
  encoder: encoding.EncoderSource,
  options: Mapping[str, Any],
  frame: tuple[str, str],
  path: pathlib.Path,
  *documents: text_files.Span,
) -> dict[str, Any]:
  """Aligns a pair of documents and writes the lines; returns the number of aligned pairs."""
  how = {**encoder.options, **options}
  form, split = how.pop("format"), how.pop("split")
  texts = [span.read() for span in documents]
  if split:
    with errors.requires("align", "--split"):
      import sentencex
    # The package knows two-letter codes.
    codes = (languages.language(code).iso639_1 or code for code in split)
    texts = [
      [sentence.strip() for line in lines for sentence in sentencex.segment(code, line)]
      for lines, code in zip(texts, codes, strict=True)
    ]
  source, target = texts
  alignments = document_alignment.align(source, target, encoder.open(), **how)
  pairs = sum(1 for x in alignments if x.source and x.target)
  if form == "vecalign":  # Numbers count the lines of the file.
    i, j = (span.first - 1 for span in documents)
    alignments = [
      x._replace(source=[n + i for n in x.source], target=[n + j for n in x.target])
      for x in alignments
    ]
  lines = alignment_files.lines(source, target, alignments, form, options["languages"])
  with path.open("w", encoding="utf-8", newline="\n") as stream:
    stream.write(frame[0])
    stream.writelines(f"{line}\n" for line in lines)
    stream.write(frame[1])
  return {"pairs": pairs}
