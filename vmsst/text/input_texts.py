"""Texts as callers pass them: lists, iterators or files."""

import io
import os
from collections.abc import Iterable

from vmsst.files import input_files, text_files

Texts = Iterable[str] | os.PathLike[str]
"""Texts, or the path of a file with one text per line."""


def as_list(texts: Texts) -> list[str]:
  """Returns the texts; half of a surrogate pair, which UTF-8 cannot encode, becomes U+FFFD.

  Args:
    texts: Strings; an iterator is read to its end, an open file line by line without line ends. A
      path (not a string) is that of a UTF-8 file, plain or gzipped, with one text per line.

  Raises:
    TypeError: an item is not a string (None, NaN, bytes), or `texts` is one string or no
      collection; the message names the item.
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
  try:
    items = iter(texts)
  except TypeError:  # also an array without axes
    raise TypeError(
      f"sentences are {texts!r} of type {type(texts).__name__}; pass a list of strings, or the "
      "pathlib.Path of a file"
    ) from None
  found = list(items)
  for index, text in enumerate(found):
    if not isinstance(text, str):
      raise TypeError(f"sentence {index} is of type {type(text).__name__}, not str")
    if not input_files.is_text(text):
      found[index] = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
  return found
