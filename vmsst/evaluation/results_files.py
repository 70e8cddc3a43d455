"""Types with which msgspec validates results.json, the evaluation results of one encoder."""

import re
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec

from vmsst import errors, storage
from vmsst.io import input_files

NAME = "results.json"

Numbers = dict[str, float]  # metrics or averages by name, times 100


class Encoder(TypedDict):
  """Identifies an encoder by digest and prompt, or only by name if there is no digest."""

  name: str
  digest: NotRequired[str]
  prompt: NotRequired[str]


class ResultRecord(TypedDict):
  """A `suite.Result` as JSON."""

  name: str
  languages: list[str]
  metrics: Numbers
  arrays: NotRequired[dict[str, Any]]


class Cut(TypedDict):
  """Averages for vectors truncated to their first `dimension` values."""

  dimension: Annotated[int, msgspec.Meta(gt=0)]
  summary: Numbers


class BenchmarkResults(TypedDict):
  """Results of one benchmark.

  Attributes:
    title: Title for reports.
    summary: Averages by name.
    missing: Names of missing results and missing languages.
    results: All results.
    digest: Digest of the benchmark's files, added by `vmsst eval`.
    dimensions: Averages by vector size, if several sizes were requested; full vectors come last.
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
    max_length: Maximum tokens per text, if known; longer texts were truncated.
    seen: Names of the languages in the training data, or None if the languages are unknown.
    absent: Why each absent benchmark was not run, by benchmark.
    failed: Why each failed benchmark could not be scored, by benchmark.
    benchmarks: Results by benchmark.
  """

  encoder: Encoder
  max_length: NotRequired[Annotated[int, msgspec.Meta(gt=0)]]
  seen: list[str] | None
  absent: dict[str, str]
  failed: dict[str, str]
  benchmarks: dict[str, BenchmarkResults]


def read_results(path: storage.Path) -> Results:
  """Reads a results.json; raises InputError if `vmsst eval` did not write it."""
  try:
    return msgspec.json.decode(input_files.read_bytes(path), type=Results)
  except (ValueError, RecursionError) as error:
    raise errors.InputError(f"{path}: {error}; pass a results.json from `vmsst eval`") from None


def markdown(results: Results) -> str:
  """Returns all averages as a Markdown list, for model cards."""
  return "\n".join(
    f"- {_escape(scored['title'])}, {_escape(name)}: {value:.2f}"
    for scored in results["benchmarks"].values()
    for name, value in scored["summary"].items()
  )


def _escape(text: str) -> str:
  """Escapes Markdown and HTML, and joins all lines into one."""
  return re.sub(r"([\\`*_\[\]|#~$!<>&])", r"\\\1", " ".join(text.split()))
