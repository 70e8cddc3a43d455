"""Values that a process opens once for many units of work, such as an encoder."""

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class LastOpened(Generic[Key, Value]):
  """Keeps the value that was opened last, and no other, since values may be large."""

  def __init__(self) -> None:
    self._lock = threading.Lock()
    self._held: dict[Key, Value] = {}

  def get(self, key: Key, make: Callable[[], Value]) -> Value:
    """Returns the value of a key, which `make` opens unless it is the one that is kept."""
    with self._lock:
      if key not in self._held:
        self._held.clear()  # before the next value takes memory
        self._held[key] = make()
      return self._held[key]

  def forget(self) -> None:
    """Frees the value that is kept."""
    with self._lock:
      self._held.clear()

  @contextlib.contextmanager
  def using(self, key: Key, value: Value) -> Iterator[None]:
    """Keeps a value that is already open while the context lasts."""
    with self._lock:
      self._held = {key: value}
    try:
      yield
    finally:
      with self._lock:
        self._held = {}
