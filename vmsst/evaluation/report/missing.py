"""What the evaluations of a report lack: benchmarks, sets, languages and the overall Score."""

from collections.abc import Iterable, Mapping
from typing import Any

from vmsst import errors, languages
from vmsst.evaluation.metrics import scores

SETS = "Sets without results"


def lines(evaluated: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
  """Returns what is missing, as lines by title; nothing that is complete.

  Args:
    evaluated: What `suite.evaluate` returns, by encoder.

  Raises:
    InputError: a language is unknown.
  """
  found = {
    "Benchmarks that failed": _merged({x: y.get("failed", {}) for x, y in evaluated.items()}),
    "Benchmarks that were not run": [
      *_merged({x: y["absent"] for x, y in evaluated.items()}),
      *_lacking(evaluated),
    ],
    SETS: _merged({x: _sets(y) for x, y in evaluated.items()}),
    "Languages that were not in the training data": [
      line for encoder, results in evaluated.items() for line in _unseen(encoder, results)
    ],
    "Parts of the overall Score": [
      f"{encoder}: {'; '.join(dict.fromkeys(score.missing.values()))}"
      for encoder, results in evaluated.items()
      if (score := scores.overall(results)).missing
    ],
  }
  return {title: each for title, each in found.items() if each}


def _merged(facts: Mapping[str, Mapping[str, str]]) -> list[str]:
  """Returns facts about benchmarks, given by encoder; names encoders if it is not all of them."""
  found: dict[tuple[str, str], list[str]] = {}
  for encoder, of_encoder in facts.items():
    for each in of_encoder.items():
      found.setdefault(each, []).append(encoder)
  return [
    f"{benchmark}: {fact}"
    if len(encoders) == len(facts)
    else f"{benchmark} ({', '.join(encoders)}): {fact}"
    for (benchmark, fact), encoders in found.items()
  ]


def _sets(results: Mapping[str, Any]) -> dict[str, str]:
  """Returns the sets without results by the title of their benchmark."""
  found = results["benchmarks"].values()
  return {each["title"]: ", ".join(each["missing"]) for each in found if each["missing"]}


def _lacking(evaluated: Mapping[str, Mapping[str, Any]]) -> list[str]:
  """Returns the benchmarks that only other encoders were evaluated on."""
  names = dict.fromkeys(name for each in evaluated.values() for name in each["benchmarks"])
  found = {
    name: [
      encoder
      for encoder, results in evaluated.items()
      if not any(name in results.get(key, {}) for key in ("benchmarks", "absent", "failed"))
    ]
    for name in names
  }
  return [f"{name} ({', '.join(x)}): not evaluated" for name, x in found.items() if x]


def _unseen(encoder: str, results: Mapping[str, Any]) -> list[str]:
  """Returns a line on the evaluated languages that the encoder was not trained on, if any."""
  if results.get("seen") is None:
    return [f"{encoder}: its training languages are unknown; give them to `vmsst eval --seen`"]
  try:
    seen = _languages(results["seen"])
    codes = (x["languages"] for each in results["benchmarks"].values() for x in each["results"])
    evaluated = _languages(code for each in codes for code in each)
  except errors.InputError as error:
    raise errors.InputError(f"{encoder}: {error}") from None
  unseen = sorted(each.name for each in evaluated - seen)
  return [f"{encoder}: {len(unseen)} of {len(evaluated)}: {', '.join(unseen)}"] if unseen else []


def _languages(codes: Iterable[str]) -> set[languages.Language]:
  return set(map(languages.language, codes))
