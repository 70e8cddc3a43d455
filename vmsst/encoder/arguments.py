"""Checks of the arguments of encoders and translators; each message names argument and value."""

from collections.abc import Collection, Mapping, Sequence, Set
from typing import Any


def languages(value: Any, count: int) -> list[str]:
  """Returns the language code of each of `count` sentences.

  Args:
    value: One code, or one for each sentence.
    count: Number of sentences.

  Raises:
    TypeError: a code is not a string.
    ValueError: there are more or fewer codes than sentences.
  """
  if isinstance(value, str):
    return [value] * count
  if not isinstance(value, Collection) or isinstance(value, (bytes, Mapping, Set)):
    raise TypeError(
      f"language is {value!r}; it must be a language code, such as 'de', or a list of one code for "
      "each sentence"
    )
  codes = list(value)
  if len(codes) != count:
    raise ValueError(f"{len(codes)} languages for {count} sentences")
  for index, code in enumerate(codes):
    if not isinstance(code, str):
      raise TypeError(f"the language of sentence {index} is {code!r}, not a string")
  return codes


def of_both_sides(languages: Any) -> tuple[Any, Any]:
  """Returns the languages of sources and of targets.

  Raises:
    ValueError: there are not two values.
  """
  if isinstance(languages, str) or not isinstance(languages, Sequence) or len(languages) != 2:
    raise ValueError(
      f"languages is {languages!r}; it must be two values, for sources and targets, such as "
      "('de', 'en')"
    )
  return languages[0], languages[1]
