"""Results of classifiers that learn in one language and are tested in another."""

from collections.abc import Sequence

import numpy as np

from vmsst import languages
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import averages


def is_english(code: str) -> bool:
  """Whether a code is one of English."""
  return languages.language(code) == languages.language("en")


def result(pair: tuple[str, str], accuracy_S: np.ndarray, prefix: str = "") -> suite.Result:
  """`accuracy`, the mean over seeds, and `deviation`, their standard deviation, named `en->xx`.

  Args:
    pair: Codes of the languages that the classifier learned in and was tested in.
    accuracy_S: Accuracy for every seed, 0 to 1.
    prefix: Put before the languages in the name.
  """
  metrics = {"accuracy": 100 * float(accuracy_S.mean()), "deviation": 100 * float(accuracy_S.std())}
  return suite.Result(f"{prefix}{pair[0]}->{pair[1]}", pair, metrics)


def means(results: Sequence[suite.Result], seen: suite.Seen, *, complete: bool) -> suite.Numbers:
  """Means of `accuracy` over the results of two languages each, as far as there are any.

  Over all of them; `from English` and `into English`, where there are both; and over those whose
  languages were all seen in training and the others, where that is known.

  Args:
    results: Made by `result`.
    seen: Tells what was seen.
    complete: Whether all results of the benchmark are there.
  """
  between = [x for x in results if x.languages[0] != x.languages[1]]
  parts = {"accuracy": between}
  outward = [x for x in between if is_english(x.languages[0])]
  inward = [x for x in between if is_english(x.languages[1])]
  if outward and inward:
    parts |= {"accuracy from English": outward, "accuracy into English": inward}
  found: suite.Numbers = {}
  for name, part in parts.items():
    found |= averages.overall(name, part, "accuracy", complete=complete)
  return found | averages.by_seen("accuracy", between, "accuracy", seen, complete=complete)
