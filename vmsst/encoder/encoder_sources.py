"""Encoders for units of work: what identifies one, and how any process gets it."""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator
from typing import Any

from vmsst import errors
from vmsst.encoder import encoding


@dataclasses.dataclass(frozen=True)
class EncoderSource:
  """Opens an encoder in any process, which keeps it until it opens another.

  Attributes:
    name: Name or path of the encoder.
    digest: Hash of its content; "": its name identifies it.
    load: Returns name and encoder, as `loading.open_encoder` does; must be picklable. None: only
      processes that are `using` the encoder have it.
  """

  name: str
  digest: str
  load: Callable[[], tuple[str, Any]] | None = dataclasses.field(default=None, compare=False)

  @property
  def identity(self) -> str:
    """What identifies the encoder, for the keys of units."""
    return self.digest or self.name

  def open(self) -> Any:
    """Returns the encoder.

    Raises:
      InputError: it cannot be loaded in this process, or has changed.
    """
    with _lock:
      if self not in _opened:
        _opened.clear()  # before the next encoder takes memory
        _opened[self] = self._load()
      return _opened[self]

  def _load(self) -> Any:
    if self.load is None:
      raise errors.InputError(
        f"{self.name} cannot be loaded in other processes; use one local process"
      )
    _, encoder = self.load()
    if of(encoder, self.name) != self:
      raise errors.InputError(f"{self.name} has changed since the work on it started; start over")
    return encoder


_lock = threading.Lock()
_opened: dict[EncoderSource, Any] = {}  # The one that was opened last.


def of(encoder: Any, name: str, load: Callable[[], tuple[str, Any]] | None = None) -> EncoderSource:
  """Returns the source of an encoder; see `EncoderSource`."""
  return EncoderSource(name, encoding.identity(encoder, name).get("digest", ""), load)


@contextlib.contextmanager
def using(source: EncoderSource, encoder: Any) -> Iterator[None]:
  """Lets `source.open()` return this encoder in this process while the context lasts."""
  with _lock:
    _opened.clear()
    _opened[source] = encoder
  try:
    yield
  finally:
    with _lock:
      _opened.clear()
