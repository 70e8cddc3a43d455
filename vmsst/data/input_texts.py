"""Texts as callers pass them: lists, iterators or files."""

import io
import logging
import os
from collections.abc import Iterable, Mapping

from vmsst.io import input_files, text_files

Texts = Iterable[str] | os.PathLike[str]
"""Texts, or the path of a file with one text per line."""


def as_list(texts: Texts) -> list[str]:
  """Returns the texts; half of a surrogate pair, which UTF-8 cannot encode, becomes U+FFFD.

  Args:
    texts: Strings; an iterator is read to its end, an open file line by line without line ends. A
      path (not a string) is that of a UTF-8 file, plain or gzipped, with one text per line.

  Raises:
    TypeError: an item is not a string (None, NaN, bytes), or `check` refuses the texts; the message
      names the item.
    InputError: the file cannot be read.
  """
  if isinstance(texts, os.PathLike):
    return list(text_files.read_lines(os.fspath(texts)))
  check(texts)
  if isinstance(texts, io.TextIOBase):
    texts = (line.removesuffix("\n") for line in texts)
  listed = list(texts)
  for index, text in enumerate(listed):
    if not isinstance(text, str):
      raise TypeError(f"sentence {index} is of type {type(text).__name__}, not str")
    if not input_files.is_text(text):
      listed[index] = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
  return listed


def check(texts: Iterable[str]) -> None:
  """Raises TypeError if iterating over an object does not give one text after the other.

  It is one string; a set, which has no order; a dictionary or a data frame, which give their keys;
  an array with other than one axis; or no collection.
  """
  if isinstance(texts, (str, bytes)):
    raise TypeError(
      "sentences are one string; pass a list of sentences, for one sentence a list of one, for the "
      "lines of a file a pathlib.Path"
    )
  is_collection = hasattr(texts, "__iter__") or hasattr(texts, "__getitem__")
  gives_keys = isinstance(texts, (Mapping, set, frozenset)) or getattr(texts, "ndim", 1) != 1
  if gives_keys or not is_collection:
    raise TypeError(
      f"sentences are of type {type(texts).__name__}; pass a list of strings (one column of a "
      "table, the values of a dictionary), or the pathlib.Path of a file"
    )


_log = logging.getLogger(__name__)
