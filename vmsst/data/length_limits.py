"""Texts longer than an encoder reads are cut."""

import logging
from collections.abc import Sequence

from vmsst.data import vocabularies
from vmsst.data.vocabularies import Vocabulary
from vmsst.data.word_splitting import Languages

_log = logging.getLogger(__name__)


def log_cut(count: int, total: int, max_length: int) -> None:
  """Logs a warning that `count` of `total` texts were cut to `max_length` tokens."""
  _log.warning(
    "%s of %s texts have more than the %s tokens that the encoder reads and were cut",
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
    log_cut(sum(count[0] for count in counts), total, counts[0][2])


def cut(
  vocabulary: Vocabulary, texts: Sequence[str], max_length: int, language: Languages
) -> tuple[list[list[int]], list[int]]:
  """Returns at most `max_length` ids per text, EOS token included, and the indices of cut texts."""
  ids = vocabulary.encode(texts, max_length + 1, language)
  long = [index for index, row in enumerate(ids) if len(row) > max_length]
  for index in long:
    ids[index] = vocabularies.cut_with_eos(ids[index], max_length, vocabulary.eos_id)
  return ids, long
