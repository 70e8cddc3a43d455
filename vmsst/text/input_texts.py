"""Texts as callers hand them over: lists, iterators, files; and what becomes of those too long."""

import io
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from vmsst.files import text_files
from vmsst.text import sentence_splitting
from vmsst.text.vocabularies import Vocabulary

Texts = Iterable[str] | os.PathLike[str]
"""Texts, or the path of a file that has one on each line."""


_log = logging.getLogger(__name__)


def log_cut(count: int, total: int, max_length: int) -> None:
  """Logs a warning that so many of all texts were cut."""
  _log.warning(
    "%s of %s texts have more than the %s tokens that the encoder reads and were cut "
    "(long_texts='split' averages the vectors of their parts)",
    *(f"{number:,}" for number in (count, total, max_length)),
  )


def as_list(texts: Texts) -> list[str]:
  """The texts, of which half of a surrogate pair (what no UTF-8 can have) becomes U+FFFD.

  Args:
    texts: Strings; of an iterator all are read, of an open file its lines without their ends. A
      path (not a string) is that of a UTF-8 file, plain or gzipped, with one text a line.

  Raises:
    TypeError: an item is no string (None, NaN, bytes), or all is one string; the message says
      which.
    InputError: the file cannot be read.
  """
  if isinstance(texts, (str, bytes)):
    raise TypeError(
      "encode takes a list of sentences; for one sentence pass a list of one, for the lines of a "
      "file a pathlib.Path"
    )
  if isinstance(texts, os.PathLike):
    return list(text_files.read_lines(os.fspath(texts)))
  if isinstance(texts, io.TextIOBase):
    texts = (line.removesuffix("\n") for line in texts)
  found = list(texts)
  for index, text in enumerate(found):
    if not isinstance(text, str):
      raise TypeError(f"sentence {index} is of type {type(text).__name__}, not str")
    try:
      text.encode()
    except UnicodeEncodeError:
      found[index] = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
  return found


def cut(
  vocabulary: Vocabulary, texts: Sequence[str], max_length: int, language: Any
) -> tuple[list[list[int]], list[int]]:
  """At most `max_length` ids of every text, end mark included, and which texts have more."""
  ids = vocabulary.encode(texts, max_length + 1, language)
  long = [index for index, own in enumerate(ids) if len(own) > max_length]
  end = [] if vocabulary.eos_id is None else [vocabulary.eos_id]
  for index in long:
    ids[index] = ids[index][: max_length - len(end)] + end
  return ids, long


def split(text: str, fits: Callable[[Sequence[str]], Sequence[bool]]) -> list[str]:
  """The pieces of a text, in order: its sentences, halved at white space until they fit.

  Args:
    text: Is too long.
    fits: Whether pieces are short enough; one of a single character is left as it is.
  """
  pieces = sentence_splitting.sentences(text)
  while True:
    parts = [
      [piece] if fit or len(piece) < 2 else _halves(piece)
      for piece, fit in zip(pieces, fits(pieces), strict=True)
    ]
    if len(parts) == sum(map(len, parts)):
      return pieces
    pieces = [piece for own in parts for piece in own]


def _halves(text: str) -> list[str]:
  """Both halves of a text, parted at the white space nearest to its middle, if there is any."""
  middle = len(text) // 2
  before, after = text.rfind(" ", 1, middle + 1), text.find(" ", middle, len(text) - 1)
  places = [place for place in (before, after) if place > 0]
  place = min(places, key=lambda place: abs(place - middle), default=middle)
  return [text[:place], text[place:].lstrip(" ")]
