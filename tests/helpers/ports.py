"""TCP ports for servers whose port must be known before they start."""

import contextlib
import socket


@contextlib.contextmanager
def reserved():
  """Yields a free port that no other process gets meanwhile, except by asking for this one.

  A socket that does not listen stays bound to it. With SO_REUSEADDR, which servers set, a server
  can bind it as well.
  """
  with socket.socket() as held:
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    yield held.getsockname()[1]
