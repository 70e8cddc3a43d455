"""Checks the texts and languages that callers pass, as lists, iterators or files."""

import io
import os
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import Any

from vmsst.io import input_files, text_files

Texts = Iterable[str] | os.PathLike[str]  # texts, or the path of a file with one text per line


def as_list(texts: Texts) -> list[str]:
  """Returns the texts as a list. Lone surrogates become U+FFFD, because UTF-8 cannot encode them.

  Args:
    texts: Strings in any ordered iterable, an open text file with one text per line, or a
      `pathlib.Path` to a UTF-8 file, plain or gzipped, with one text per line.

  Raises:
    TypeError: If an item is not a string (for example None, NaN or bytes), or `check` rejects the
      texts.
    InputError: If the file cannot be read.
  """
  if isinstance(texts, os.PathLike):
    return list(text_files.read_lines(os.fspath(texts)))
  check(texts)
  if isinstance(texts, io.TextIOBase):
    texts = (line.removesuffix("\n") for line in texts)
  strings = list(texts)
  for index, text in enumerate(strings):
    if not isinstance(text, str):
      raise TypeError(f"sentence {index} has type {type(text).__name__}, not str")
    if not input_files.is_text(text):
      strings[index] = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
  return strings


def check(texts: Iterable[str]) -> None:
  """Raises TypeError unless an object is an ordered iterable of texts.

  Rejects a single string, sets (they have no order), dictionaries and data frames (iteration yields
  their keys), arrays that are not 1-D, and objects that cannot be iterated.
  """
  is_collection = hasattr(texts, "__iter__") or hasattr(texts, "__getitem__")
  is_other_type = isinstance(texts, (str, bytes, bytearray, Mapping, set, frozenset))
  if is_other_type or getattr(texts, "ndim", 1) != 1 or not is_collection:
    raise TypeError(
      f"sentences have type {type(texts).__name__}; pass a list of strings (such as "
      "[sentence], one column of a table, or the values of a dictionary), or the path of a file as "
      "a pathlib.Path"
    )


def languages(value: Any, count: int) -> list[str]:
  """Returns one language code for each of `count` sentences.

  Args:
    value: One code for all sentences, or a list with one code for each sentence.
    count: Number of sentences.

  Raises:
    TypeError: If a code is not a string.
    ValueError: If the number of codes differs from the number of sentences.
  """
  if isinstance(value, str):
    return [value] * count
  is_list = isinstance(value, Collection) and not isinstance(value, (Mapping, Set))
  if not is_list or not all(isinstance(code, str) for code in value):
    raise TypeError(
      f"language is {value!r}; pass a language code, such as 'de', or a list with one code for "
      "each sentence"
    )
  if len(value) != count:
    raise ValueError(f"{len(value)} languages for {count} sentences")
  return list(value)


def languages_by_side(languages: Sequence[Any]) -> tuple[Any, Any]:
  """Returns the source and target languages; raises ValueError unless there are exactly two."""
  if isinstance(languages, str) or len(languages) != 2:
    raise ValueError(f"languages is {languages!r}; pass two values: source and target")
  return languages[0], languages[1]
