"""Reads and writes document alignments as text pairs, line numbers or TMX."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal
from xml.sax import saxutils

from vmsst import errors
from vmsst.io import text_files
from vmsst.mining.document_alignment import Alignment

Format = Literal["tsv", "vecalign", "tmx"]

# Control characters that XML cannot contain.
_NOT_XML = dict.fromkeys((*range(32), 0xFFFE, 0xFFFF))


def frame(file_format: Format, languages: tuple[str | None, str | None]) -> tuple[str, str]:
  """Returns the header and the footer of a file; both are empty except for TMX."""
  if file_format != "tmx":
    return "", ""
  header = (
    '<header creationtool="vmsst" creationtoolversion="1" segtype="block" o-tmf="plain" '
    f'adminlang="en" srclang={saxutils.quoteattr(languages[0] or "und")} datatype="plaintext"/>'
  )
  start = f'<?xml version="1.0" encoding="UTF-8"?>\n<tmx version="1.4">\n{header}\n<body>\n'
  return start, "</body>\n</tmx>\n"


def lines(
  source: Sequence[str],
  target: Sequence[str],
  alignments: Iterable[Alignment],
  file_format: Format,
  languages: tuple[str | None, str | None] = (None, None),
) -> Iterator[str]:
  """Yields the output lines for a pair of documents, without newlines.

  Args:
    source: Source sentences.
    target: Target sentences.
    alignments: Sentence alignments.
    file_format: "tsv" for lines of score TAB source TAB target; "tmx"; or "vecalign" for lines
      such as `[3]:[3, 4]:0.810000`, in which sentence numbers start at 0. "tsv" and "tmx" omit
      untranslated sentences.
    languages: Language codes for the source and the target, for "tmx".
  """
  for x in alignments:
    if file_format == "vecalign":
      yield f"{x.source}:{x.target}:{x.score:.6f}"
    elif x.source and x.target:
      texts = " ".join(source[n] for n in x.source), " ".join(target[n] for n in x.target)
      fields = [text.translate(text_files.SEPARATORS) for text in texts]
      if file_format == "tsv":
        yield "\t".join((f"{x.score:.6f}", *fields))
      else:
        variants = "".join(
          f"<tuv xml:lang={saxutils.quoteattr(code or 'und')}>"
          f"<seg>{saxutils.escape(text.translate(_NOT_XML))}</seg></tuv>"
          for code, text in zip(languages, fields, strict=True)
        )
        yield f'<tu><prop type="score">{x.score:.6f}</prop>{variants}</tu>'


def read_line_numbers(path: str) -> list[Alignment]:
  """Reads alignments from a file in the format that Vecalign and Bleualign write.

  Raises:
    InputError: If the file cannot be read, or if a line is not an alignment.
  """
  alignments = []
  for number, line in enumerate(text_files.read_lines(path), 1):
    try:
      first, second, *score = line.split(":")
      source, target = ([*map(int, json.loads(field))] for field in (first, second))
      alignments.append(Alignment(source, target, float(score[0]) if score else 0.0))
    except (ValueError, TypeError, RecursionError):
      raise errors.InputError(
        f"{path}:{number}: {line!r} is not an alignment such as [3]:[3, 4] or [3]:[3, 4]:0.81"
      ) from None
  return alignments
