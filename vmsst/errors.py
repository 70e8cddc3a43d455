"""The exception for errors a user can fix, and checks of option values that raise it."""

import math
import numbers
from collections.abc import Collection
from typing import Any

_LONGEST = 3000


class InputError(ValueError):
  """A file, flag, key or checkpoint of the user cannot be used.

  The message names it and the fix. Commands print the message without a stack trace and exit with
  status 1.
  """

  def __init__(self, message: str):
    """Takes the message; the middle of one with more than 3000 characters is omitted."""
    if len(message) > _LONGEST:
      half = _LONGEST // 2
      message = f"{message[:half]} [...] {message[-half:]}"
    super().__init__(message)


def check_integer(name: str, value: Any, *, minimum: int = 1) -> None:
  """Raises InputError unless `value` is an integer of at least `minimum`."""
  if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
    raise InputError(f"{name} is {value!r}; it must be an integer of {minimum} or more")


def as_integer(name: str, value: Any, *, minimum: int = 1, maximum: int | None = None) -> int:
  """Returns an integer of Python or NumPy as Python's.

  Raises:
    InputError: it is not an integer (True is not) or out of range.
  """
  is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
  if not is_integer or value < minimum or (maximum is not None and value > maximum):
    allowed = f"of {minimum} or more" if maximum is None else f"from {minimum} to {maximum}"
    raise InputError(f"{name} is {value!r}; it must be an integer {allowed}")
  return int(value)


def check_choice(name: str, value: Any, choices: Collection[str]) -> None:
  """Raises InputError unless `value` is one of `choices`."""
  if value not in choices:
    raise InputError(f"{name} is {value!r}; known: {', '.join(choices)}")


def check_positive(name: str, value: float) -> None:
  """Raises InputError unless `value` is a finite number above 0."""
  if not 0 < value < math.inf:
    raise InputError(f"{name} is {value!r}; it must be a positive number")


def check_not_negative(name: str, value: float) -> None:
  """Raises InputError if `value` is below 0."""
  if not value >= 0:
    raise InputError(f"{name} is {value!r}; it must not be negative")


def check_rate(name: str, value: float) -> None:
  """Raises InputError unless `value` is a probability below 1."""
  if not 0 <= value < 1:
    raise InputError(f"{name} is {value!r}; it must be in [0, 1)")
