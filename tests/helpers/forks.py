"""Calls functions in forked child processes."""

import os
import select
import signal
import warnings


def error_in_fork(function, *, seconds=30):
  """Returns type and message of the error that `function` raises in a forked child.

  Returns "" if there is no error; kills the child and fails if it does not end in time.
  """
  reading, writing = os.pipe()
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # JAX warns of every fork
    child = os.fork()
  if not child:
    try:
      function()
      message = "none"
    except BaseException as error:
      message = f"{type(error).__name__}: {error}"
    os.write(writing, message.encode())
    os._exit(0)  # without the cleanup of the tests' process
  ready, _, _ = select.select([reading], [], [], seconds)
  if not ready:
    os.kill(child, signal.SIGKILL)
  os.waitpid(child, 0)
  assert ready, f"the child did not end within {seconds} seconds"
  message = os.read(reading, 1 << 16).decode()
  os.close(reading)
  os.close(writing)
  return "" if message == "none" else message
