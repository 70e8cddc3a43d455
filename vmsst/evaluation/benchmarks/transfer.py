"""Results of classifiers that are trained in one language and tested in another."""

from collections.abc import Sequence

import numpy as np

from vmsst import languages
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import averages


def is_english(code: str) -> bool:
  """Whether a code is one of English."""
  return languages.language(code) == languages.language("en")


def result(pair: tuple[str, str], accuracy_S: np.ndarray, prefix: str = "") -> suite.Result:
  """Returns the result `en->xx`: `accuracy`, the mean over seeds, and `deviation`, their std.

  Args:
    pair: Codes of the training language and the test language.
    accuracy_S: Accuracy of every seed, 0 to 1.
    prefix: Prefix of the result's name.
  """
  metrics = {"accuracy": 100 * float(accuracy_S.mean()), "deviation": 100 * float(accuracy_S.std())}
  return suite.Result(f"{prefix}{pair[0]}->{pair[1]}", pair, metrics)


def means(results: Sequence[suite.Result], seen: suite.Seen, complete: bool) -> suite.Numbers:
  """Returns means of `accuracy` over the results between two languages.

  Over all results; over those `from English` and `into English`, if both exist; and over those with
  languages seen in training and the others, if known.

  Args:
    results: Made by `result`.
    seen: Tests which languages were seen in training.
    complete: Whether all results of the benchmark exist.
  """
  between = [x for x in results if x.languages[0] != x.languages[1]]
  parts = {"accuracy": between}
  outward = [x for x in between if is_english(x.languages[0])]
  inward = [x for x in between if is_english(x.languages[1])]
  if outward and inward:
    parts |= {"accuracy from English": outward, "accuracy into English": inward}
  found: suite.Numbers = {}
  for name, part in parts.items():
    found |= averages.mean(name, (x.metrics["accuracy"] for x in part), complete=complete)
  return found | averages.by_seen("accuracy", between, "accuracy", seen, complete=complete)
