"""Precision, recall and F1 of sentence alignments.

The strict and the lax measure are equal to Vecalign's `score.py` (Thompson and Koehn, 2019).
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

Pairs = Sequence[Sequence[Any]]
"""Alignments of a document: source numbers, target numbers, and what is not compared."""


def alignment_scores(gold: Iterable[Pairs], predicted: Iterable[Pairs]) -> dict[str, float]:
  """Returns precision, recall and F1 over all documents, 0 to 1.

  In the strict measure, an alignment is right if the gold alignments contain it. In the lax
  measure, it is right, too, if one of its sources and one of its targets are in the same gold
  alignment. Precision counts deletions, which have an empty side; recall does not.

  Args:
    gold: Gold alignments of each document.
    predicted: Alignments to evaluate, in the order of `gold`.

  Returns:
    The keys are "strict" and "lax", followed by "_precision", "_recall" and "_f1".

  Examples:
    >>> gold, predicted = [([0], [0, 1]), ([], [2])], [([0], [0]), ([], [1]), ([], [2])]
    >>> scores = alignment_scores([gold], [predicted])
    >>> {name: round(value, 2) for name, value in scores.items() if name.endswith("precision")}
    {'strict_precision': 0.33, 'lax_precision': 0.67}
  """
  counts = {"precision": [0, 0, 0], "recall": [0, 0, 0]}
  for pairs in zip(gold, predicted, strict=True):
    truth, test = ({(tuple(x[0]), tuple(x[1])) for x in side if x[0] or x[1]} for side in pairs)
    aligned_truth, aligned_test = ({pair for pair in side if all(pair)} for side in (truth, test))
    for name, reference, tested in (
      ("precision", truth, test),
      ("recall", aligned_test, aligned_truth),
    ):
      links = {link for pair in reference for link in itertools.product(*pair)}
      strict = tested & reference
      lax = sum(not links.isdisjoint(itertools.product(*pair)) for pair in tested - strict)
      for place, count in enumerate((len(strict), len(strict) + lax, len(tested))):
        counts[name][place] += count
  scores: dict[str, float] = {}
  for place, measure in enumerate(("strict", "lax")):
    rates = {name: count[place] / max(count[2], 1) for name, count in counts.items()}
    total = sum(rates.values())
    rates["f1"] = 2 * rates["precision"] * rates["recall"] / total if total else 0.0
    scores |= {f"{measure}_{name}": rate for name, rate in rates.items()}
  return scores
