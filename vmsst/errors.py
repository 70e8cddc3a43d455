"""The exception for errors that a user can fix."""

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
