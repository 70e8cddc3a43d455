"""`InputError`, the exception for errors that users can fix, and checks that raise it."""

import contextlib
import dataclasses
import math
import numbers
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

# Matches `user:password@` in an address (but not the port in `http://host:9000/`), secret query
# parameters, and Hugging Face Hub tokens.
_CREDENTIALS = re.compile(
  r"(?<=://)[^\s/?#'\"]*:(?!\d+/)[^\s?#'\"]+(?=@)"
  r"|(?:(?<=https://)|(?<=http://))[^\s/?#'\"]+(?=@)"
  r"|(?P<name>[?&#;][\w.%-]*(?:token|key|secret|sig|pass|pwd|credential|auth)[\w.%-]*=)"
  r"[^\s&#;'\"]+"
  r"|\bhf_[a-z0-9]{20,}",
  re.IGNORECASE,
)
MOST_LAYERS = 1000
"""Maximum number of layers in a network. A damaged file may specify so many that loading hangs."""
_LONGEST = 3000
_LONGEST_VALUE = 200
_NAMED = 5


class InputError(ValueError):
  """Raised when a user's file, flag, key or checkpoint cannot be used.

  The message states the problem and the fix. Commands print the message without a stack trace and
  exit with status 1.
  """

  def __init__(self, message: str):
    """Removes credentials from the message, and shortens messages longer than 3000 characters."""
    message = without_credentials(message)
    if len(message) > _LONGEST:
      half = _LONGEST // 2
      message = f"{message[:half]} [...] {message[-half:]}"
    super().__init__(message)


def without_credentials(text: str) -> str:
  """Replaces URL credentials and Hugging Face Hub tokens with asterisks.

  >>> without_credentials("s3://key:secret@host/x and https://host/y?part=1&X-Amz-Signature=ab")
  's3://***@host/x and https://host/y?part=1&X-Amz-Signature=***'
  """
  return _CREDENTIALS.sub(lambda match: f"{match['name'] or ''}***", text)


@contextlib.contextmanager
def requires(extra: str, what: str) -> Iterator[None]:
  """Converts an ImportError for an optional package to an InputError with installation advice.

  Args:
    extra: The vmsst extra that installs the package.
    what: The feature that needs the package; the message starts with this text.
  """
  try:
    yield
  except ImportError as error:
    raise InputError(
      f"{what} needs the package {error.name or error}, which is not installed: pip install "
      f"'vmsst[{extra}]'"
    ) from None


def check(valid: bool, name: str, value: Any, required: str) -> None:
  """Raises InputError if not `valid`. The message asks the user to set `name` to `required`."""
  if not valid:
    text = " ".join(repr(value).split())
    text = text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}[...]"
    raise InputError(f"{name} is {text}; set it to {required}")


def check_number(name: str, value: Any, interval: str = "(-inf, inf)") -> None:
  """Raises InputError unless `value` is in the half-open or open `interval`, such as "[0, 1)"."""
  low, high = map(float, interval[1:-1].split(","))
  is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
  valid = is_number and low <= value < high and (interval[0] == "[" or value > low)
  check(valid, name, value, f"a number in {interval}")


def as_integer(name: str, value: Any, *, minimum: int = 1, maximum: int | None = None) -> int:
  """Converts a Python or NumPy integer to a Python int.

  Raises:
    InputError: If the value is out of range or not an integer. A boolean is not an integer.
  """
  allowed = f"of {minimum} or more" if maximum is None else f"from {minimum} to {maximum}"
  is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
  top = math.inf if maximum is None else maximum
  check(is_integer and minimum <= value <= top, name, value, f"an integer {allowed}")
  return int(value)


def check_sizes(settings: Any, may_be_zero: Collection[str] = ()) -> None:
  """Raises InputError unless all integer fields in a dataclass are at least 1.

  Fields of type `int | None` may also be None.

  Args:
    settings: An instance of the dataclass.
    may_be_zero: Names of fields that may also be 0.
  """
  for field in dataclasses.fields(settings):
    optional = field.type == int | None and getattr(settings, field.name) is None
    if field.type in (int, int | None) and not optional:
      name, minimum = f"{type(settings).__name__}.{field.name}", int(field.name not in may_be_zero)
      maximum = MOST_LAYERS if field.name.endswith("_layers") else None
      as_integer(name, getattr(settings, field.name), minimum=minimum, maximum=maximum)


def check_choice(name: str, value: Any, choices: Collection[str]) -> None:
  """Raises InputError unless `value` is one of `choices`."""
  if value not in choices:
    raise InputError(f"{name} is {value!r}; known: {', '.join(choices)}")


def some(names: Iterable[str]) -> str:
  """Joins the first five names in alphabetical order, and appends the number of remaining names."""
  names = sorted(names)
  remainder = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
  return ", ".join(names[:_NAMED]) + remainder or "nothing"
