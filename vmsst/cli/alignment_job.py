"""The job of `vmsst align`. A task aligns one pair of documents."""

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
  """Writes document alignments; returns the number of documents and the number of aligned pairs.

  Args:
    source: A text file; a folder of text files; or, with `lists`, a file that contains one path per
      line.
    target: Translation of the source. In a folder, a document and its translation have the same
      name.
    out: Output file. If the source is a list or a folder, an output folder that gets one file per
      document pair.
    encoder: The encoder.
    options: "format" (see `alignment_files.lines`); "split", a pair of language codes for splitting
      lines into sentences, or None for no splitting; and the options of `document_alignment.align`.
    marker: Line that separates the documents in a text file.
    lists: Whether source and target contain paths of documents, one per line.
    engine: Where to align (default: in this process).

  Raises:
    InputError: If a text cannot be read, or the documents in source and target do not match.
  """
  is_folder = lists or storage.path(source).is_dir()
  names, documents, inputs = [], [], {"encoder": encoder.identity}
  for title, root in (("source", source), ("target", target)):
    paths = [root]
    if lists:
      paths = [*filter(None, text_files.read_lines(root))]
      names = [f"{n:05d}-{os.path.basename(path)}" for n, path in enumerate(paths, 1)]
    elif is_folder:
      source_names, names = names, sorted(x for x in storage.names(root) if not x.startswith("."))
      if title == "target" and (differences := {*source_names} ^ {*names}):
        raise errors.InputError(f"{min(differences)} must be in both {source} and {target}")
      paths = [os.path.join(root, name) for name in names]
    spans = [span for path in paths for span in _documents(path, marker)]
    documents.append(spans)
    inputs[title] = {"name": root, "digest": manifest.digest([x.digest for x in spans])}
  if len(documents[0]) != len(documents[1]):
    raise errors.InputError(
      f"{source} has {len(documents[0]):,} documents and {target} has {len(documents[1]):,}; give "
      "one translation for each document"
    )
  start, end = alignment_files.frame(options["format"], options["languages"])
  # A single output file has one header and one footer for all documents.
  frame = (start, end) if is_folder else ("", "")
  align_documents = functools.partial(_align_documents, encoder, options, frame)
  with job.Job(out, inputs=inputs, options=options, is_folder=is_folder) as align_job:
    if align_job.finished:
      return align_job.facts["documents"], align_job.facts["pairs"]
    copies = [text_files.unpack(x, align_job.path(storage.UNFINISHED)) for x in documents]
    tasks = [
      job.Task(
        f"{names[number] if is_folder else f'{number:06d}'}.{options['format']}",
        pair,
        key=[[span.digest, span.first] for span in pair],
        size=sum(span.lines for span in pair),
        title=" and ".join(map(str, pair)),
      )
      for number, pair in enumerate(zip(*copies, strict=True))
    ]
    facts = align_job.run("align", align_documents, tasks, engine)
    pairs = sum(document["pairs"] for document in facts)
    if is_folder:
      align_job.finish(documents=len(tasks), pairs=pairs)
      return len(tasks), pairs
    with align_job.output() as path, path.open("w", encoding="utf-8", newline="\n") as stream:
      stream.write(start)
      for task in tasks:
        stream.writelines(f"{line}\n" for line in text_files.read_lines(align_job.path(task.name)))
      stream.write(end)
  return len(tasks), pairs


def _documents(path: str, marker: str | None) -> Iterator[text_files.Span]:
  """Yields the documents of a text file as spans of lines, without the markers between them."""
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


def _align_documents(
  encoder: encoding.EncoderSource,
  options: Mapping[str, Any],
  frame: tuple[str, str],
  path: pathlib.Path,
  *documents: text_files.Span,
) -> dict[str, Any]:
  """Aligns a pair of documents and writes a file; returns the number of aligned pairs."""
  align_options = {**encoder.options, **options}
  file_format, split = align_options.pop("format"), align_options.pop("split")
  texts = [span.read() for span in documents]
  if split:
    with errors.requires("align", "--split"):
      import sentencex
    # The package sentencex requires a two-letter code if the language has one.
    codes = (languages.language(code).iso639_1 or code for code in split)
    texts = [
      [sentence.strip() for line in lines for sentence in sentencex.segment(code, line)]
      for lines, code in zip(texts, codes, strict=True)
    ]
  source, target = texts
  alignments = document_alignment.align(source, target, encoder.open(), **align_options)
  pairs = sum(1 for x in alignments if x.source and x.target)
  if file_format == "vecalign":  # Line numbers are relative to the file, not to the document.
    i, j = (span.first - 1 for span in documents)
    alignments = [
      x._replace(source=[n + i for n in x.source], target=[n + j for n in x.target])
      for x in alignments
    ]
  lines = alignment_files.lines(source, target, alignments, file_format, options["languages"])
  with path.open("w", encoding="utf-8", newline="\n") as stream:
    stream.write(frame[0])
    stream.writelines(f"{line}\n" for line in lines)
    stream.write(frame[1])
  return {"pairs": pairs}
