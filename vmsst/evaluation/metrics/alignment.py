"""Precision, recall and F1 for sentence alignments.

The strict and lax scores are the same as in Vecalign's `score.py` (Thompson and Koehn, 2019).
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

Pairs = Sequence[Sequence[Any]]
"""Alignments in one document: source and target sentence numbers; further values are ignored."""


def alignment_scores(gold: Iterable[Pairs], predicted: Iterable[Pairs]) -> dict[str, float]:
  """Returns precision, recall and F1 over all documents, 0 to 1.

  In strict scores, a predicted alignment is correct if it equals a gold alignment. In lax scores, a
  predicted alignment is also correct if it shares at least one source sentence and one target
  sentence with a gold alignment. Precision includes deletions (alignments without sources or
  without targets), but recall does not.

  Args:
    gold: Gold alignments for each document.
    predicted: Predicted alignments for each document.

  Returns:
    The scores by name, such as "strict_precision", "strict_recall" or "lax_f1".

  Examples:
    >>> gold, predicted = [([0], [0, 1]), ([], [2])], [([0], [0]), ([], [1]), ([], [2])]
    >>> scores = alignment_scores([gold], [predicted])
    >>> {name: round(value, 2) for name, value in scores.items() if name.endswith("precision")}
    {'strict_precision': 0.33, 'lax_precision': 0.67}
  """
  # Numbers of strict hits, lax hits and alignments.
  counts = {name: np.zeros(3) for name in ("precision", "recall")}
  for document in zip(gold, predicted, strict=True):
    truth, test = ({(tuple(x[0]), tuple(x[1])) for x in pairs if any(x[:2])} for pairs in document)
    aligned_truth, aligned_test = ({pair for pair in pairs if all(pair)} for pairs in (truth, test))
    for name, reference, tested in (
      ("precision", truth, test),
      ("recall", aligned_test, aligned_truth),
    ):
      links = {link for pair in reference for link in itertools.product(*pair)}
      strict = tested & reference
      lax = sum(not links.isdisjoint(itertools.product(*pair)) for pair in tested - strict)
      counts[name] += (len(strict), len(strict) + lax, len(tested))
  scores: dict[str, float] = {}
  for index, measure in enumerate(("strict", "lax")):
    rates = {name: float(count[index] / max(count[2], 1)) for name, count in counts.items()}
    total = sum(rates.values())
    rates["f1"] = 2 * rates["precision"] * rates["recall"] / total if total else 0.0
    scores |= {f"{measure}_{name}": rate for name, rate in rates.items()}
  return scores
