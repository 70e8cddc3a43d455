"""Parses XML files, plain or gzipped, piece by piece; errors name the file and the line."""

from collections.abc import Iterator
from xml.parsers import expat

from vmsst import errors
from vmsst.files import text_files

PARSE_ERRORS = (expat.ExpatError, LookupError, ValueError)
"""The errors of expat: `ExpatError`; the others for encodings that it does not support."""


def feed(path: str, parser: expat.XMLParserType) -> Iterator[None]:
  """Parses a file; yields after each piece, when the handlers may have results.

  Raises:
    InputError: the file cannot be read or is not well-formed, its encoding is unknown, or a handler
      raised it.
  """
  for chunk in text_files.read_chunks(path):
    _parse(path, parser, chunk, last=False)
    yield
  _parse(path, parser, b"", last=True)
  yield


def _parse(path: str, parser: expat.XMLParserType, data: bytes, *, last: bool) -> None:
  try:
    parser.Parse(data, last)
  except errors.InputError:
    raise
  except PARSE_ERRORS as error:
    raise errors.InputError(
      f"{path}:{parser.CurrentLineNumber}: not well-formed XML: {error}; repair the file"
    ) from None
