"""Encoders that compute a vector from each text alone, and record their calls."""

import pathlib
import zlib
from collections.abc import Iterator

import numpy as np
import tiny_encoders

from vmsst.networks import sentence_encoder


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


WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
WIDTH = 64


def make_lines(count: int) -> Iterator[str]:
  """Yields numbers spelled in words, distinct except for every 97th line, which is empty."""
  for number in range(count):
    digits = str(number * 7919)
    yield "" if number % 97 == 96 else " ".join(WORDS[int(digit)] for digit in digits)


def make_encoder(folder: pathlib.Path) -> None:
  """Writes a small encoder with random weights in the format of `vmsst export safetensors`."""
  config = tiny_encoders.t5_config(emb_dim=WIDTH, head_dim=32, mlp_dim=WIDTH)
  network = sentence_encoder.SentenceEncoder(config, WIDTH, head=False)
  tiny_encoders.save_export(folder, tiny_encoders.model_of(network, max_length=64))
