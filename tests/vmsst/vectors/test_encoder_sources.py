import fake_encoders
import pytest

from vmsst import errors
from vmsst.units import kept_values
from vmsst.vectors import encoder_sources

LOADED = []


class Named(fake_encoders.FakeEncoder):
  def __init__(self, digest):
    super().__init__(fake_encoders.random_vector)
    self.digest = digest


def load(digest):
  LOADED.append(digest)
  return "name", Named(digest)


def test_a_process_loads_an_encoder_once_and_keeps_one(monkeypatch):
  monkeypatch.setattr(encoder_sources, "_encoders", kept_values.LastOpened())
  LOADED.clear()
  first, second = (
    encoder_sources.EncoderSource("name", digest, lambda digest=digest: load(digest))
    for digest in "ab"
  )
  assert first.open() is first.open()
  assert second.open().digest == "b"
  assert first.open().digest == "a"
  assert LOADED == ["a", "b", "a"]


def test_another_encoder_at_the_same_place_is_an_error(monkeypatch):
  monkeypatch.setattr(encoder_sources, "_encoders", kept_values.LastOpened())
  changed = encoder_sources.EncoderSource("name", "a", lambda: load("b"))
  with pytest.raises(errors.InputError, match="name has changed"):
    changed.open()


def test_an_encoder_in_memory_is_for_this_process_and_this_time():
  encoder = Named("a")
  source = encoder_sources.of(encoder, "name")
  assert (source.name, source.digest) == ("name", "a")
  with encoder_sources.using(source, encoder):
    assert source.open() is encoder
  with pytest.raises(errors.InputError, match="name cannot be loaded in other processes"):
    source.open()
