"""Global state of the process that belongs to the program that uses this library."""

import contextlib
import logging
import random
import sys
from collections.abc import Iterator

import numpy as np


@contextlib.contextmanager
def preserve() -> Iterator[None]:
  """Restores the global random states, if modules are imported, and the root logger's handlers.

  Imports change them: JAX draws from NumPy's generator, and rich (for Flax) from Python's. absl,
  which Orbax logs with, adds a handler, after which `logging.basicConfig` has no effect.
  """
  python_state, handlers, modules = random.getstate(), logging.root.handlers[:], len(sys.modules)
  numpy_state = np.random.get_state()  # noqa: NPY002 - the global generator is meant
  try:
    yield
  finally:
    if len(sys.modules) > modules:
      random.setstate(python_state)
      np.random.set_state(numpy_state)  # noqa: NPY002
    logging.root.handlers[:] = handlers
