"""Texts longer than an encoder reads: cut them, or split them into pieces that fit."""

import logging
from collections.abc import Callable, Sequence

from vmsst.text import sentence_splitting, vocabularies
from vmsst.text.vocabularies import Vocabulary
from vmsst.text.word_splitting import Languages

_log = logging.getLogger(__name__)


def log_cut(count: int, total: int, max_length: int) -> None:
  """Logs a warning that `count` of `total` texts were cut to `max_length` tokens."""
  _log.warning(
    "%s of %s texts have more than the %s tokens that the encoder reads and were cut "
    "(long_texts='split' averages the vectors of their parts)",
    *(f"{number:,}" for number in (count, total, max_length)),
  )


def log_all_cut(counts: Sequence[Sequence[int]], total: int) -> None:
  """Logs one warning for several calls of `encode`, if any has cut texts.

  Args:
    counts: What `on_cut` received in each call that cut texts: their number, the number of all
      texts of the call, and the maximum tokens.
    total: Number of texts of all calls.
  """
  if counts:
    log_cut(sum(each[0] for each in counts), total, counts[0][2])


def cut(
  vocabulary: Vocabulary, texts: Sequence[str], max_length: int, language: Languages
) -> tuple[list[list[int]], list[int]]:
  """Returns at most `max_length` ids per text, EOS token included, and the indices of cut texts."""
  ids = vocabulary.encode(texts, max_length + 1, language)
  long = [index for index, own in enumerate(ids) if len(own) > max_length]
  for index in long:
    ids[index] = vocabularies.cut_with_eos(ids[index], max_length, vocabulary.eos_id)
  return ids, long


def split(text: str, fits: Callable[[Sequence[str]], Sequence[bool]]) -> list[str]:
  """Returns the pieces of a text, in order: its sentences, halved at white space until they fit.

  Args:
    text: A text that is too long.
    fits: Returns whether pieces are short enough; a piece of one character is never split.
  """
  pieces = sentence_splitting.sentences(text)
  while True:
    parts = [
      [piece] if fit or len(piece) < 2 else _halves(piece)
      for piece, fit in zip(pieces, fits(pieces), strict=True)
    ]
    if len(parts) == sum(map(len, parts)):
      return pieces
    pieces = [piece for own in parts for piece in own]


def _halves(text: str) -> list[str]:
  """Returns both halves of a text, split at the white space nearest to its middle, if any."""
  middle = len(text) // 2
  before, after = text.rfind(" ", 1, middle + 1), text.find(" ", middle, len(text) - 1)
  places = [place for place in (before, after) if place > 0]
  place = min(places, key=lambda place: abs(place - middle), default=middle)
  return [text[:place], text[place:].lstrip(" ")]
