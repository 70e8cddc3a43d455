"""The exception for what a user can put right."""

_LONGEST = 3000


class InputError(ValueError):
  """Something given from outside (a file, flag, key or checkpoint) cannot be used.

  The message names it and says what to do; of what is quoted in it from outside, however long, the
  middle is left out. Commands print the message alone, without a stack trace, and exit with
  status 1.
  """

  def __init__(self, message: str):
    """Takes the message, of which at most some thousand letters are kept."""
    if len(message) > _LONGEST:
      half = _LONGEST // 2
      message = f"{message[:half]} [...] {message[-half:]}"
    super().__init__(message)
