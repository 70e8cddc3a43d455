"""Encoders for units of work: what identifies one, and how any process gets it."""

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from vmsst import errors
from vmsst.units import kept_values
from vmsst.vectors import encoding


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
    return _encoders.get(self, self._load)

  def _load(self) -> Any:
    if self.load is None:
      raise errors.InputError(
        f"{self.name} cannot be loaded in other processes; use one local process"
      )
    _, encoder = self.load()
    if of(encoder, self.name) != self:
      raise errors.InputError(f"{self.name} has changed since the work on it started; start over")
    return encoder


_encoders: kept_values.LastOpened[EncoderSource, Any] = kept_values.LastOpened()


def of(encoder: Any, name: str, load: Callable[[], tuple[str, Any]] | None = None) -> EncoderSource:
  """Returns the source of an encoder; see `EncoderSource`."""
  return EncoderSource(name, encoding.identity(encoder, name).get("digest", ""), load)


def using(source: EncoderSource, encoder: Any) -> AbstractContextManager[None]:
  """Lets `source.open()` return this encoder in this process."""
  return _encoders.using(source, encoder)
