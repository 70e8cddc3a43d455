"""The exception for what a user can put right."""


class InputError(ValueError):
  """Something given from outside (a file, flag, key or checkpoint) cannot be used.

  The message names it and says what to do. Commands print the message alone, without a stack
  trace, and exit with status 1.
  """
