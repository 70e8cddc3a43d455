"""Published averages over the languages of an evaluation, from published numbers per language.

Averages over seen and unseen languages depend on which languages were seen. The VMSST paper's Table
8 splits Tatoeba's into 93 and 19, but does not name them, and its training data (Table 15) has 82
of them. So that only models differ, averages of published systems are computed here over the
languages of each evaluation.
"""

import collections
import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from vmsst import errors, languages
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import averages, tatoeba
from vmsst.evaluation.report import published

Numbers = dict[str, list[published.Published]]

_METRIC = "average"
_KEYS = {True: f"{_METRIC} seen", False: f"{_METRIC} unseen"}
_TABLE_8 = ("seen (93)", "unseen (19)")


def seen_and_unseen(
  benchmark: str, evaluated: Mapping[str, Mapping[str, Any]]
) -> tuple[Numbers, list[str]]:
  """Returns published averages over seen and unseen languages, by column, and notes on them.

  Systems without a published number for each of the languages are left out. If encoders were
  evaluated on different splits, each split has its own systems, named after the first encoder.

  Args:
    benchmark: Name of the benchmark; only Tatoeba has such averages.
    evaluated: What `suite.evaluate` returns, by encoder.

  Raises:
    InputError: a language is unknown.
  """
  splits = _splits(evaluated) if benchmark == tatoeba.BENCHMARK.name else {}
  if not splits:
    return {}, []
  numbers: Numbers = {key: [] for key in _KEYS.values()}
  notes = []
  for split, encoder in splits.items():
    suffix = f" (languages of {encoder})" if len(splits) > 1 else ""
    for seen, codes in zip(_KEYS, split, strict=True):
      numbers[_KEYS[seen]] += [
        dataclasses.replace(each, system=each.system + suffix) for each in _averages(codes)
      ]
    sizes = " and ".join(str(len(codes)) for codes in split)
    notes.append(
      f"{' and '.join(_KEYS.values())} of published systems{suffix} are means over the {sizes} "
      f"languages of {encoder}, computed from the published numbers of each language."
    )
  for part in _TABLE_8:
    numbers[part] = published.find(benchmark, "accuracy", part=part)
  return numbers, notes


_Split = tuple[tuple[str, ...], ...]
"""Codes of seen and of unseen languages."""


def _splits(evaluated: Mapping[str, Mapping[str, Any]]) -> dict[_Split, str]:
  """Returns the different splits, and the first encoder of each."""
  splits: dict[_Split, str] = {}
  for encoder, results in evaluated.items():
    found = results["benchmarks"].get(tatoeba.BENCHMARK.name)
    if found is None or results.get("seen") is None:
      continue
    try:
      known = suite.seen_test(map(languages.language, results["seen"]))
      parts = averages.split_by_seen(tatoeba.without_english(suite.results_of(found)), known)
    except errors.InputError as error:
      raise errors.InputError(f"{encoder}: {error}") from None
    split = tuple(tuple(sorted(x.languages[0] for x in parts[seen])) for seen in _KEYS)
    splits.setdefault(split, encoder)
  return splits


def _averages(codes: Sequence[str]) -> list[published.Published]:
  """Returns the mean of each system with a number for each of these languages."""
  of_system = collections.defaultdict[tuple[str, str], dict[str, published.Published]](dict)
  for code in codes:
    for number in published.for_result(tatoeba.BENCHMARK.name, code, (code, "eng"), _METRIC):
      of_system[number.paper, number.system].setdefault(code, number)
  return [
    dataclasses.replace(
      next(iter(found.values())),
      table=", ".join(dict.fromkeys(number.table for number in found.values())),
      language=None,
      value=statistics.fmean(number.value for number in found.values()),
      note="",
    )
    for found in of_system.values()
    if len(found) == len(codes)
  ]
