"""Published averages over the languages of an evaluation, from published numbers per language.

Averages over seen and unseen languages depend on which languages were seen. The VMSST paper's Table
8 splits Tatoeba's into 93 and 19, but does not name them, and its training data (Table 15) has 82
of them. So that only models differ, averages of published systems are computed here over the
languages of each evaluation.
"""

import dataclasses
import statistics
from collections.abc import Mapping
from typing import Any

from vmsst import languages
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import averages, tatoeba
from vmsst.evaluation.report import published

_PARTS = {"seen": "seen (93)", "unseen": "unseen (19)"}  # In Table 8.


def seen_and_unseen(
  name: str, of_encoder: Mapping[str, Mapping[str, Any]]
) -> dict[str, list[published.Published]]:
  """Returns published averages over the seen and unseen languages of Tatoeba, by average.

  Systems without a published number for each of the languages are left out. Names of systems say
  whose languages they are: those of the first encoder with the same ones.

  Args:
    name: Name of the benchmark; others than Tatoeba have no such averages.
    of_encoder: What `suite.evaluate` returns of it, by encoder, with `seen`.

  Raises:
    InputError: a language is unknown.
  """
  numbers: dict[str, list[published.Published]] = {}
  done = set()
  for encoder, scored in of_encoder.items():
    if name != tatoeba.BENCHMARK.name or scored["seen"] is None:
      continue
    seen = suite.seen_test(map(languages.language, scored["seen"]))
    split = averages.split_by_seen(tatoeba.without_english(suite.collect_results(scored)), seen)
    for part, results in zip(_PARTS, (split[True], split[False]), strict=True):
      codes = frozenset(x.name for x in results)
      average = next((x for x in scored["summary"] if x.startswith(f"average {part}")), "")
      if not average or (average, codes) in done:
        continue
      done.add((average, codes))
      numbers[_PARTS[part]] = published.for_average(name, _PARTS[part])
      of_system: dict[tuple[str, str], dict[str, published.Published]] = {}
      for code in codes:
        for number in published.for_result(name, code, (code, "eng"), "average"):
          of_system.setdefault((number.paper, number.system), {}).setdefault(code, number)
      numbers.setdefault(average, []).extend(
        dataclasses.replace(
          next(iter(values.values())),
          system=f"{system} on the {part} languages of {encoder}",
          table=", ".join(dict.fromkeys(number.table for number in values.values())),
          of=None,
          value=statistics.fmean(number.value for number in values.values()),
          note="",
        )
        for (_, system), values in of_system.items()
        if len(values) == len(codes)
      )
  return numbers
