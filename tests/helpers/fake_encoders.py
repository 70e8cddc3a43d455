"""Encoders that compute a vector from each text alone, and record their calls."""

import zlib

import numpy as np


class FakeEncoder:
  """Returns `vector_of(text)` of each text.

  Attributes:
    calls: The texts of each finished call.
    fail_at: How many calls are finished when Ctrl-C interrupts the next, once; None for never.
  """

  def __init__(self, vector_of, fail_at=None):
    self.vector_of, self.fail_at = vector_of, fail_at
    self.calls = []

  def encode(self, texts):
    if len(self.calls) == self.fail_at:
      self.fail_at = None
      raise KeyboardInterrupt
    self.calls.append(list(texts))
    return np.array([self.vector_of(text) for text in texts], float)

  @property
  def sizes(self):
    """Number of texts of each call."""
    return [len(texts) for texts in self.calls]


class PolyglotEncoder(FakeEncoder):
  """A `FakeEncoder` that takes the language of each text.

  Attributes:
    languages: The last language of each text.
  """

  def __init__(self, vector_of):
    super().__init__(vector_of)
    self.languages = {}

  def encode(self, texts, language):
    self.languages |= dict(zip(texts, language, strict=True))
    return super().encode(texts)


def table_encoder(vectors):
  """Returns an encoder of the texts that are the keys of `vectors`."""
  return FakeEncoder(vectors.__getitem__)


def angle_vector(text):
  """Returns the point of the unit circle at the angle, in radians, that ends `text`."""
  angle = float(text.split()[-1])
  return [np.cos(angle), np.sin(angle)]


def random_vector(text):
  """Returns a normal vector of 6 dimensions, seeded with `text`."""
  return np.random.default_rng(zlib.crc32(text.encode())).normal(size=6)
