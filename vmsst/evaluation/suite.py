"""Defines benchmarks for sentence encoders, and runs them with `evaluate`.

A benchmark reads tasks from its files, and a task scores the vectors of its texts. The benchmarks
themselves are in `vmsst.evaluation.benchmarks`. Accuracies, correlations and error rates are
multiplied by 100, as in most papers.
"""

import dataclasses
import functools
import hashlib
import math
import os
import statistics
import time
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from vmsst import errors, languages, storage
from vmsst.encoder import encoding
from vmsst.evaluation import embedder
from vmsst.evaluation.embedder import TextSet
from vmsst.evaluation.results_files import BenchmarkResults, Numbers, Results
from vmsst.io import input_files

INCOMPLETE = " (incomplete)"  # suffix for the names of averages with missing results


@dataclasses.dataclass(frozen=True)
class Result:
  """Scores for one language, language pair or file.

  Attributes:
    name: Name, unique within the benchmark.
    languages: Language codes.
    metrics: Metrics by name, times 100.
    arrays: Additional data for reports, by name, such as a matrix (as nested lists) and its labels.
  """

  name: str
  languages: tuple[str, ...]
  metrics: Numbers
  arrays: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Task:
  """Text sets that are scored together.

  Attributes:
    name: Name, unique within the benchmark.
    text_sets: The texts to embed.
    score: Function that takes the vectors [N, D] of each text set and returns the results.
    held_out: Text sets to exclude from training data, such as test splits (default: all).
    large: Whether to embed this task's texts separately and free the vectors after scoring. For the
      other tasks in a benchmark, the vectors of all distinct texts stay in memory together.
  """

  name: str
  text_sets: tuple[TextSet, ...]
  score: Callable[..., list[Result]]
  held_out: tuple[TextSet, ...] | None = None
  large: bool = False

  def held_out_texts(self) -> Iterator[str]:
    """Yields the texts to exclude from training data; split texts are yielded in pieces."""
    for text_set in self.text_sets if self.held_out is None else self.held_out:
      for text in text_set.texts:
        yield from [text] if text_set.split is None else text_set.split(text)

  def results(
    self, vectors: embedder.Embedder, sizes: Sequence[int | None]
  ) -> dict[int | None, list[Result]]:
    """Returns the results for each vector size.

    Args:
      vectors: Embeds the texts.
      sizes: Numbers of leading dimensions to keep. None keeps all dimensions.
    """
    arrays = [vectors(text_set) for text_set in self.text_sets]
    return {size: self.score(*(array_ND[:, :size] for array_ND in arrays)) for size in sizes}


def pair_task(
  name: str, codes: Iterable[str], texts: Iterable[Sequence[str]], score: Callable[..., Numbers]
) -> Task:
  """Returns a task with texts in two languages and a single result.

  Args:
    name: Name of the task and of the result.
    codes: Codes of the two languages.
    texts: The texts in each language.
    score: Function that computes metrics from the vectors of both text sets.
  """
  text_sets = tuple(map(TextSet, codes, texts))
  pair = tuple(text_set.language for text_set in text_sets)
  return Task(name, text_sets, lambda *vectors: [Result(name, pair, score(*vectors))])


SeenTest = Callable[[Iterable[str]], bool]
"""Function that returns whether all languages, given as codes, are in the training data."""
Seen = SeenTest | None  # a `SeenTest`, or None if the languages of the training data are unknown


@dataclasses.dataclass(frozen=True)
class Files:
  """The files of a benchmark.

  Attributes:
    folders: Required folders under the data root. If a folder is missing, the benchmark is absent.
    layout: Description of the expected files, for messages.
    optional: Glob patterns for optional files outside these folders, relative to the data root.
    root: Data root for this benchmark (default: the data root passed to `evaluate`).
  """

  folders: tuple[str, ...]
  layout: str = ""
  optional: tuple[str, ...] = ()
  root: storage.Path | None = None

  def absence(self, root: storage.Path) -> str | None:
    """Returns a message with the missing folders, or None if all folders exist."""
    missing = [str(root / name) for name in self.folders if not (root / name).is_dir()]
    return f"no folder {', '.join(missing)} (expected files: {self.layout})" if missing else None

  def find(self, root: storage.Path) -> list[storage.Path]:
    """Returns all files except hidden files; follows links to folders."""
    root = self.root or root
    folders = [root / name for name in self.folders if (root / name).is_dir()]
    inside = (x / name for x in folders for name in storage.files_below(x, through_links=True))
    outside = (path for pattern in self.optional for path in storage.find(root, pattern))
    return sorted(
      path
      for path in {*inside, *outside}
      if storage.is_file(path)
      and not any(name.startswith(".") for name in path.relative_to(root).parts)
    )

  def digest(self, root: storage.Path) -> str:
    """Returns the SHA-256 digest of the names and contents of all files."""
    total = hashlib.sha256()
    for path in self.find(root):
      checksum = _checksum(path, storage.version(path))
      total.update(f"{checksum}  {path.relative_to(self.root or root)}\n".encode())
    return total.hexdigest()


# Checksums are cached because several benchmarks read the same files.
@functools.cache
def _checksum(path: storage.Path, version: object) -> str:
  del version  # The version is part of the cache key, so changed files are read again.
  return input_files.sha256(path)


@dataclasses.dataclass(frozen=True)
class Benchmark:
  """The files and the protocol of a benchmark.

  Attributes:
    name: Unique name.
    title: Title for reports.
    files: The files.
    read: Function that reads the tasks from a data root. For a malformed file, it raises an
      InputError with the file and the line.
    averages: Function that computes the averages by name. Its arguments are all results, a
      `SeenTest` or None, and whether the results are complete.
    sets: Names of the expected results, or expected languages. If empty, the results always count
      as complete.
  """

  name: str
  title: str
  files: Files
  read: Callable[[storage.Path], Sequence[Task]]
  averages: Callable[[Sequence[Result], Seen, bool], Numbers]
  sets: Sequence[str | languages.Language] = ()

  def gaps(self, results: Iterable[Result]) -> list[str]:
    """Returns the names of missing results and missing languages."""
    results = list(results)
    present: set[str | languages.Language] = {result.name for result in results}
    present |= {languages.language(code) for result in results for code in result.languages}
    return [str(getattr(item, "name", item)) for item in self.sets if item not in present]

  def summarize(self, results: Sequence[Result], seen: Seen) -> Numbers:
    """Returns the averages; the names of incomplete averages end in `INCOMPLETE`."""
    return self.averages(results, seen, not self.gaps(results))


def seen_test(seen: Iterable[languages.Language]) -> SeenTest:
  """Returns the `SeenTest` for the languages in the training data."""
  training_languages = frozenset(seen)
  return lambda codes: all(languages.language(code) in training_languages for code in codes)


def mean(name: str, values: Iterable[float], *, complete: bool) -> Numbers:
  """Returns {name: mean}, or {} without values; adds `INCOMPLETE` to the name unless `complete`."""
  values = list(values)
  if not values:
    return {}
  return {name if complete else name + INCOMPLETE: statistics.fmean(values)}


def group_means(
  results: Iterable[Result], metric: str, groups: Mapping[str, Collection[str]]
) -> Numbers:
  """Returns the mean of a metric over each group; `groups` lists result names by group."""
  value_by_name = {
    result.name: result.metrics[metric] for result in results if metric in result.metrics
  }
  means: Numbers = {}
  for name, group in groups.items():
    values = [value_by_name[key] for key in group if key in value_by_name]
    means |= mean(name, values, complete=len(values) == len(group))
  return means


def seen_means(
  name: str, results: Sequence[Result], metric: str, seen: Seen, *, complete: bool
) -> Numbers:
  """Returns separate means for seen and unseen languages; {} if `seen` is None.

  A result counts as seen if all its languages are in the training data, and otherwise as unseen.
  """
  means: Numbers = {}
  if seen is not None:
    for suffix, is_seen in (("seen", True), ("unseen", False)):
      values = [x.metrics[metric] for x in results if seen(x.languages) == is_seen]
      means |= mean(f"{name} {suffix}", values, complete=complete)
  return means


def metric_means(*metrics: str) -> Callable[[Sequence[Result], Seen, bool], Numbers]:
  """Returns a `Benchmark.averages` function for the mean and the `seen_means` of each metric."""

  def summarize(results: Sequence[Result], seen: Seen, complete: bool) -> Numbers:
    means: Numbers = {}
    for metric in metrics:
      means |= mean(metric, (x.metrics[metric] for x in results), complete=complete)
      means |= seen_means(metric, results, metric, seen, complete=complete)
    return means

  return summarize


def collect_results(scored: BenchmarkResults) -> list[Result]:
  """Converts the results of one benchmark, as `evaluate` returns them, to `Result` objects."""
  return msgspec.convert(scored["results"], list[Result])


def settings(encoder: Any, name: str, seen: Iterable[languages.Language] | None) -> dict[str, Any]:
  """Returns the settings that affect all results, for results.json.

  The settings are the encoder's identity, its maximum length and its training languages.
  """
  length = getattr(encoder, "max_seq_length", None)
  names = None if seen is None else sorted({language.name for language in seen})
  record = {"encoder": encoding.identity(encoder, name), "seen": names}
  return record | ({"max_length": length} if isinstance(length, int) else {})


def evaluate(
  encoder: Any,
  benchmarks: Iterable[Benchmark],
  data_root: str | os.PathLike[str] | None = None,
  *,
  name: str = "encoder",
  seen: Iterable[languages.Language] | None = None,
  dimensions: Iterable[int] = (),
  report: Callable[[str], None] = lambda line: None,
  vectors: embedder.Embedder | None = None,
  finished: Mapping[str, BenchmarkResults] = types.MappingProxyType({}),
  save: Callable[[Benchmark, BenchmarkResults], None] = lambda benchmark, results: None,
) -> Results:
  """Evaluates an encoder on benchmarks.

  All files are read before the first text is embedded. Each text of a benchmark is embedded once.
  If the vectors of a benchmark cannot be scored, the benchmark is reported as failed and the next
  benchmark runs.

  Args:
    encoder: An object with `encode(texts)` that returns an array [N, D]. If `encode` has the option
      `language`, one language code per text is passed.
    benchmarks: Benchmarks, for example from `vmsst.get_benchmarks`. Benchmarks without files are
      reported as absent.
    data_root: Data folder with one folder per benchmark, local or in an object store. Optional if
      every benchmark has its own root.
    name: Name of the encoder.
    seen: Languages in the training data, if known.
    dimensions: Sizes of truncated vectors to evaluate as well, as with `encode(truncate_dim=)`.
    report: Function that receives progress lines.
    vectors: Embedder for the texts (default: an embedder in this process). Its `dimensions` replace
      the argument `dimensions`.
    finished: Results by benchmark from an earlier run. These benchmarks are not run again.
    save: Function that receives each benchmark and its results as soon as the benchmark is
      finished.

  Returns:
    The content of a results.json; see `results_files.Results`.

  Raises:
    InputError: If a file is malformed, or all benchmarks are absent.
  """
  root = storage.path(data_root or "")
  seen = None if seen is None else [*seen]
  by_name = {benchmark.name: benchmark for benchmark in benchmarks}
  tasks: dict[str, Sequence[Task]] = {}
  absent: dict[str, str] = {}
  for key, benchmark in by_name.items():
    if key not in finished:
      benchmark_root = benchmark.files.root or root
      reason = benchmark.files.absence(benchmark_root)
      tasks[key] = [] if reason else benchmark.read(benchmark_root)
      if not tasks[key]:
        absent[key] = reason or f"no files in {benchmark_root} (expected: {benchmark.files.layout})"
      report(f"{key}: absent: {absent[key]}" if key in absent else f"{key}: waiting")
  if absent and len(absent) == len(by_name):
    reasons = "; ".join(f"{key} is absent: {reason}" for key, reason in absent.items())
    raise errors.InputError(f"no benchmark has data (see `vmsst eval --list`): {reasons}")
  vectors = vectors or embedder.Embedder(encoder, name, dimensions=dimensions)
  results, failed = {**finished}, {}
  for key in (key for key in tasks if key not in absent):
    start = time.perf_counter()
    try:
      vectors.share([x for task in tasks[key] if not task.large for x in task.text_sets], report)
      results[key] = _score(by_name[key], tasks[key], vectors, seen)
    except ValueError as error:
      failed[key] = " ".join(str(error).split()) or type(error).__name__
      report(f"{key}: failed: {failed[key]}")
      continue
    report(f"{key}: finished in {time.perf_counter() - start:.0f} s")
    save(by_name[key], results[key])
  ordered = {key: results[key] for key in dict.fromkeys((*by_name, *results)) if key in results}
  record = settings(encoder, name, seen)
  return {**record, "absent": absent, "failed": failed, "benchmarks": ordered}  # type: ignore


def _score(
  benchmark: Benchmark,
  tasks: Sequence[Task],
  vectors: embedder.Embedder,
  seen: Iterable[languages.Language] | None,
) -> BenchmarkResults:
  """Returns the results of a benchmark; raises ValueError if its vectors cannot be scored."""
  is_seen = None if seen is None else seen_test(seen)
  by_size: dict[int | None, list[Result]] = {size: [] for size in (None, *vectors.dimensions)}
  for task in tasks:
    for size, task_results in task.results(vectors, [*by_size]).items():
      by_size[size] += task_results
  summaries = {size: benchmark.summarize(x, is_seen) for size, x in by_size.items()}
  numbers = [(x.name, x.metrics) for task_results in by_size.values() for x in task_results]
  numbers += [("summary", summary) for summary in summaries.values()]
  for name, metrics in numbers:
    for metric, value in metrics.items():
      if not math.isfinite(value):
        raise ValueError(f"{metric} of {name} is {value}, not a finite number")
  summary = summaries.pop(None)
  results: BenchmarkResults = {
    "title": benchmark.title,
    "summary": summary,
    "missing": benchmark.gaps(by_size[None]),
    "results": [
      {"name": x.name, "languages": [*x.languages], "metrics": x.metrics}
      | ({"arrays": x.arrays} if x.arrays else {})  # type: ignore[misc]
      for x in by_size[None]
    ],
  }
  if summaries:
    cuts = {size or vectors.width: x for size, x in (*summaries.items(), (None, summary))}
    results["dimensions"] = [{"dimension": x, "summary": y} for x, y in cuts.items()]
  return results
