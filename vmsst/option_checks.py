"""Checks of option values from gin files; each raises `InputError` naming the option."""

import math
from collections.abc import Collection
from typing import Any

from vmsst import errors


def integer(name: str, value: Any, *, minimum: int = 1) -> None:
  """Raises InputError unless `value` is an integer of at least `minimum`."""
  if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
    raise errors.InputError(f"{name} is {value!r}; it must be an integer of {minimum} or more")


def choice(name: str, value: Any, choices: Collection[str]) -> None:
  """Raises InputError unless `value` is one of `choices`."""
  if value not in choices:
    raise errors.InputError(f"{name} is {value!r}; known: {', '.join(choices)}")


def positive(name: str, value: float) -> None:
  """Raises InputError unless `value` is a finite number above 0."""
  if not 0 < value < math.inf:
    raise errors.InputError(f"{name} is {value!r}; it must be a positive number")


def not_negative(name: str, value: float) -> None:
  """Raises InputError if `value` is below 0."""
  if not value >= 0:
    raise errors.InputError(f"{name} is {value!r}; it must not be negative")


def rate(name: str, value: float) -> None:
  """Raises InputError unless `value` is a probability below 1."""
  if not 0 <= value < 1:
    raise errors.InputError(f"{name} is {value!r}; it must be in [0, 1)")
