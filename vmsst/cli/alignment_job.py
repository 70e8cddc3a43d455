"""The job of `vmsst align`, whose parts are pairs of documents."""

import functools
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
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
  *,
  form: alignment_files.Format = "tsv",
  marker: str | None = None,
  lists: bool = False,
  split: tuple[str, str] | None = None,
  options: Mapping[str, Any],
  batch_size: int = 128,
  engine: engines.Engine | None = None,
) -> tuple[int, int]:
  """Writes the alignments of documents; returns the numbers of documents and of aligned pairs.

  Args:
    source: A text; with `lists`, a text with a path per line; or a folder of texts.
    target: The same for the other side; the files of folders have the same names.
    out: A file, or for lists and folders a folder with a file for each pair of documents.
    encoder: The encoder.
    form: Format of the output.
    marker: Line between the documents of a text.
    lists: Whether the files list documents.
    split: Codes of both languages, to split lines into sentences.
    options: Options of `document_alignment.align`, with the languages.
    batch_size: Texts per batch; a job may resume with another one.
    engine: Where to compute.

  Raises:
    InputError: a text cannot be read, or the sides have different documents.
  """
  is_folder = lists or storage.path(source).is_dir()
  documents, names = [], []
  for side in (source, target):
    if lists:
      paths = [*filter(None, text_files.read_lines(side))]
      names.append([f"{n:05d}-{os.path.basename(path)}" for n, path in enumerate(paths, 1)])
    elif is_folder:
      names.append(sorted(x for x in storage.names(side) if not x.startswith(".")))
      paths = [os.path.join(side, name) for name in names[-1]]
      if difference := {*names[0]} ^ {*names[-1]}:
        raise errors.InputError(
          f"{source} and {target} have different files: {min(difference)} is in one folder only"
        )
    else:
      paths = [side]
    documents.append([span for path in paths for span in _documents(path, marker)])
  if len(documents[0]) != len(documents[1]):
    raise errors.InputError(
      f"{source} has {len(documents[0]):,} documents and {target} {len(documents[1]):,}; align one "
      "document with one"
    )
  inputs = {
    "encoder": encoder.identity,
    **{
      name: {"name": path, "digest": manifest.digest([span.digest for span in spans])}
      for name, path, spans in zip(("source", "target"), (source, target), documents, strict=True)
    },
  }
  codes = options["languages"]
  frame = alignment_files.frame(form, codes)
  settings = {**options, "format": form, "split": split}
  around = frame if is_folder else ([], [])
  write = functools.partial(_write, encoder, form, around, split, batch_size, options)
  with job.Job(out, inputs=inputs, options=settings, is_folder=is_folder) as work:
    if work.finished:
      return work.facts["documents"], work.facts["pairs"]
    copies = [text_files.unpack(x, work.path(storage.UNFINISHED)) for x in documents]
    parts = [
      job.Part(
        f"{names[0][number]}.{form}" if is_folder else f"{number:06d}.{form}",
        pair,
        key=[[span.digest, span.first] for span in pair],
        size=sum(span.lines for span in pair),
        title=" and ".join(map(str, pair)),
      )
      for number, pair in enumerate(zip(*copies, strict=True))
    ]
    facts = work.run("align", write, parts, engine)
    counts = len(parts), sum(fact["pairs"] for fact in facts)
    if is_folder:
      work.finish(documents=counts[0], pairs=counts[1])
      return counts
    with work.output() as path, path.open("w", encoding="utf-8", newline="\n") as stream:
      stream.writelines(frame[0])
      for part in parts:
        stream.writelines(f"{line}\n" for line in text_files.read_lines(work.path(part.name)))
      stream.writelines(frame[1])
  return counts


def _documents(path: str, marker: str | None) -> Iterator[text_files.Span]:
  """Yields the documents of a text as spans of lines without the marker; a span can be empty."""
  number = first = offset = start = 0
  digest = text_files.new_digest()

  def document() -> text_files.Span:
    place = storage.absolute(path)
    return text_files.Span(path, first + 1, number - first, place, start, digest.hexdigest())

  for raw in text_files.read_chunks(path, lines=True):
    offset += len(raw)
    if marker is not None and raw.rstrip(b"\r\n") == marker.encode():
      yield document()
      first, start, digest = number + 1, offset, text_files.new_digest()
    else:
      digest.update(raw)
    number += 1
  yield document()


def _write(
  encoder: encoding.EncoderSource,
  form: alignment_files.Format,
  frame: tuple[Sequence[str], Sequence[str]],
  split: tuple[str, str] | None,
  batch_size: int,
  options: Mapping[str, Any],
  path: pathlib.Path,
  *documents: text_files.Span,
) -> dict[str, Any]:
  """Aligns a pair of documents and writes the lines; returns the number of aligned pairs."""
  source, target = (span.read() for span in documents)
  if split:
    with errors.requires("align", "--split"):
      import sentencex
    # The package knows two-letter codes.
    codes = (languages.language(code).iso639_1 or code for code in split)
    source, target = (
      [sentence.strip() for line in lines for sentence in sentencex.segment(code, line)]
      for lines, code in zip((source, target), codes, strict=True)
    )
  alignments = document_alignment.align(
    source, target, encoder.open(), **options, batch_size=batch_size
  )
  pairs = sum(1 for x in alignments if x.source and x.target)
  if form == "vecalign":  # Numbers count the lines of the file.
    first_i, first_j = (span.first - 1 for span in documents)
    alignments = [
      x._replace(source=[i + first_i for i in x.source], target=[j + first_j for j in x.target])
      for x in alignments
    ]
  lines = alignment_files.lines(source, target, alignments, form, options["languages"])
  with path.open("w", encoding="utf-8", newline="\n") as stream:
    stream.writelines(frame[0])
    stream.writelines(f"{line}\n" for line in lines)
    stream.writelines(frame[1])
  return {"pairs": pairs}
