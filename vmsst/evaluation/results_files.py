"""The content of results.json, the results of one encoder, as types that msgspec checks."""

import re
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec

from vmsst import errors, storage
from vmsst.io import input_files

NAME = "results.json"

Numbers = dict[str, float]
"""Metrics or averages by name, times 100."""


class Encoder(TypedDict):
  """What identifies an encoder: its digest, with the prompt, or its name if it has no digest."""

  name: str
  digest: NotRequired[str]
  prompt: NotRequired[str]


class ResultRecord(TypedDict):
  """A `suite.Result`."""

  name: str
  languages: list[str]
  metrics: Numbers
  arrays: NotRequired[dict[str, Any]]


class Cut(TypedDict):
  """Averages of vectors that are cut to their first dimensions, or of whole vectors."""

  dimension: Annotated[int, msgspec.Meta(gt=0)]
  summary: Numbers


class BenchmarkResults(TypedDict):
  """Results of one benchmark.

  Attributes:
    title: Title for people.
    summary: Averages by name.
    missing: Names of the results and languages that are missing.
    results: All results.
    digest: Digest of its files; `vmsst eval` adds it.
    dimensions: Averages for each number of dimensions, if several were requested.
  """

  title: str
  summary: Numbers
  missing: list[str]
  results: list[ResultRecord]
  digest: NotRequired[str]
  dimensions: NotRequired[list[Cut]]


class Results(TypedDict):
  """Results of one encoder.

  Attributes:
    encoder: The encoder.
    max_length: Maximum tokens per text, if known; longer ones were cut.
    seen: Names of the languages of its training data, if known.
    absent: Why benchmarks are absent, by benchmark.
    failed: Why benchmarks failed, by benchmark.
    benchmarks: Results by benchmark.
  """

  encoder: Encoder
  max_length: NotRequired[Annotated[int, msgspec.Meta(gt=0)]]
  seen: list[str] | None
  absent: dict[str, str]
  failed: dict[str, str]
  benchmarks: dict[str, BenchmarkResults]


def read_results(path: storage.Path) -> Results:
  """Returns the content of results.json; raises InputError if it is not by `vmsst eval`."""
  try:
    return msgspec.json.decode(input_files.read_bytes(path), type=Results)
  except (ValueError, RecursionError) as error:
    raise errors.InputError(f"{path}: {error}; give a file of `vmsst eval`") from None


def markdown(results: Results) -> str:
  """Returns all averages as a Markdown list, for model cards."""
  return "\n".join(
    f"- {_escape(scored['title'])}, {_escape(name)}: {value:.2f}"
    for scored in results["benchmarks"].values()
    for name, value in scored["summary"].items()
  )


def _escape(text: str) -> str:
  """Escapes Markdown and HTML, on one line."""
  return re.sub(r"([\\`*_\[\]|#~$!<>&])", r"\\\1", " ".join(text.split()))
