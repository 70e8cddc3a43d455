"""Benchmarks of sentence encoders as values, and `evaluate`, which runs them.

A benchmark reads tasks from its files; a task scores the vectors of its texts.
`vmsst.evaluation.benchmarks` has the benchmarks. All numbers are as papers print them: shares,
accuracies and correlations times 100.
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
from vmsst.evaluation.embedder import Side
from vmsst.evaluation.results_files import BenchmarkResults, Numbers, Results
from vmsst.io import input_files

INCOMPLETE = " (incomplete)"
"""End of the name of an average that lacks sets."""


@dataclasses.dataclass(frozen=True)
class Result:
  """Scores of one language, language pair or file.

  Attributes:
    name: Unique in the benchmark.
    languages: Codes of all its languages.
    metrics: Values by name, times 100.
    arrays: Values for reports by name, as nested lists, such as a matrix and its labels.
  """

  name: str
  languages: tuple[str, ...]
  metrics: Numbers
  arrays: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Task:
  """Texts whose vectors are scored together.

  Attributes:
    name: Unique in the benchmark.
    sides: The texts.
    score: Maps the vectors of all sides, an array [N, D] each, to results.
    held_out: Texts to exclude from training data (such as test splits); default: all sides.
    large: Whether the vectors exist only while the task is scored. Otherwise, all tasks of a
      benchmark are in memory at once, and equal texts share a vector.
  """

  name: str
  sides: tuple[Side, ...]
  score: Callable[..., list[Result]]
  held_out: tuple[Side, ...] | None = None
  large: bool = False

  def texts(self) -> Iterator[str]:
    """Yields the texts to exclude from training data, as they are embedded."""
    for side in self.sides if self.held_out is None else self.held_out:
      for text in side.texts:
        yield from [text] if side.split is None else side.split(text)

  def results(
    self, vectors: embedder.Embedder, sizes: Sequence[int | None]
  ) -> dict[int | None, list[Result]]:
    """Returns the results by the number of first dimensions that are scored; None: all."""
    arrays = [vectors(side) for side in self.sides]
    return {size: self.score(*(array_ND[:, :size] for array_ND in arrays)) for size in sizes}


def pair_task(
  name: str,
  codes: Iterable[str],
  texts: Iterable[Sequence[str]],
  score: Callable[..., Numbers],
  *,
  large: bool = False,
) -> Task:
  """Returns a task of texts in two languages with one result, whose metrics `score` returns."""
  sides = tuple(map(Side, codes, texts))
  both = tuple(side.language for side in sides)
  return Task(name, sides, lambda *x: [Result(name, both, score(*x))], large=large)


SeenTest = Callable[[Iterable[str]], bool]
"""Whether languages, given by codes, were all seen in training."""
Seen = SeenTest | None
"""The same, or None if unknown."""


@dataclasses.dataclass(frozen=True)
class Files:
  """The files of a benchmark.

  Attributes:
    folders: Folders under the data root, of which it reads all files; if one is missing, the
      benchmark is absent.
    layout: Expected files, for people.
    more: Glob patterns under the data root, of other files that it reads if they are present.
    root: Its own data root, if it does not have the common one.
  """

  folders: tuple[str, ...]
  layout: str = ""
  more: tuple[str, ...] = ()
  root: storage.Path | None = None

  def absence(self, root: storage.Path) -> str | None:
    """Returns why a benchmark cannot run, for people; None if its folders exist."""
    missing = [str(root / name) for name in self.folders if not (root / name).is_dir()]
    return f"no folder {', '.join(missing)} ({self.layout})" if missing else None

  def find(self, root: storage.Path) -> list[storage.Path]:
    """Returns all files, also those that folders link to; hidden files do not count."""
    root = self.root or root
    folders = [root / name for name in self.folders if (root / name).is_dir()]
    inside = (x / name for x in folders for name in storage.files_below(x, through_links=True))
    outside = (path for pattern in self.more for path in storage.find(root, pattern))
    return sorted(
      path
      for path in {*inside, *outside}
      if storage.is_file(path)
      and not any(part.startswith(".") for part in path.relative_to(root).parts)
    )

  def digest(self, root: storage.Path) -> str:
    """Returns the SHA-256 of the names and the checksums of all files."""
    total = hashlib.sha256()
    for path in self.find(root):
      checksum = _checksum(path, storage.version(path))
      total.update(f"{checksum}  {path.relative_to(self.root or root)}\n".encode())
    return total.hexdigest()


# Several encoders and benchmarks read the same files.
@functools.cache
def _checksum(path: storage.Path, version: object) -> str:
  del version  # part of the cache key: the file can change
  return input_files.sha256(path)


@dataclasses.dataclass(frozen=True)
class Benchmark:
  """A benchmark: its files and its protocol.

  Attributes:
    name: Unique name.
    title: Title for people.
    files: Its files.
    read: Reads the tasks under the data root. Raises InputError with file and line if a file is
      broken.
    averages: Maps all results, the test of seen languages and whether all sets have results to the
      benchmark's own averages by name.
    sets: The results that it should have, if they are known: names, or languages.
  """

  name: str
  title: str
  files: Files
  read: Callable[[storage.Path], Sequence[Task]]
  averages: Callable[[Sequence[Result], Seen, bool], Numbers]
  sets: Sequence[str | languages.Language] = ()

  def gaps(self, results: Iterable[Result]) -> list[str]:
    """Returns the names of the sets and the languages without results."""
    results = list(results)
    present: set[str | languages.Language] = {result.name for result in results}
    present |= {languages.language(code) for result in results for code in result.languages}
    return [str(getattr(item, "name", item)) for item in self.sets if item not in present]

  def summarize(self, results: Sequence[Result], seen: Seen) -> Numbers:
    """Returns the averages; the names of averages that lack sets are marked."""
    return self.averages(results, seen, not self.gaps(results))


def seen_test(seen: Iterable[languages.Language]) -> SeenTest:
  """Returns a test whether languages, given by codes, are all among those seen in training."""
  known = frozenset(seen)
  return lambda codes: all(languages.language(code) in known for code in codes)


def mean(name: str, values: Iterable[float], *, complete: bool) -> Numbers:
  """Returns the mean of numbers under a name that is marked if some are missing; {} if all are."""
  values = list(values)
  if not values:
    return {}
  return {name if complete else name + INCOMPLETE: statistics.fmean(values)}


def group_means(
  results: Iterable[Result], metric: str, groups: Mapping[str, Collection[str]]
) -> Numbers:
  """Returns the mean of a metric over each group of results, given by their names."""
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
  """Returns means over results whose languages were all seen in training, and over the others."""
  means: Numbers = {}
  if seen is not None:
    for part, wanted in (("seen", True), ("unseen", False)):
      values = [x.metrics[metric] for x in results if seen(x.languages) == wanted]
      means |= mean(f"{name} {part}", values, complete=complete)
  return means


def metric_means(
  *metrics: str,
) -> Callable[[Sequence[Result], Seen, bool], Numbers]:
  """Returns a benchmark's `averages`: the mean and `seen_means` of each metric over all results."""

  def summarize(results: Sequence[Result], seen: Seen, complete: bool) -> Numbers:
    means: Numbers = {}
    for metric in metrics:
      means |= mean(metric, (x.metrics[metric] for x in results), complete=complete)
      means |= seen_means(metric, results, metric, seen, complete=complete)
    return means

  return summarize


def collect_results(scored: BenchmarkResults) -> list[Result]:
  """Returns the results of one benchmark from what `evaluate` returns."""
  return msgspec.convert(scored["results"], list[Result])


def settings(encoder: Any, name: str, seen: Iterable[languages.Language] | None) -> dict[str, Any]:
  """Returns what all results of an encoder depend on, as in results.json."""
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

  All files are read before anything is embedded. Each text of a benchmark is embedded once. If a
  benchmark fails because its vectors cannot be scored, the others are still run.

  Args:
    encoder: An object with `encode(texts)` that returns an array [N, D]. If `encode` has the option
      `language`, it receives one code per text.
    benchmarks: The benchmarks, as `vmsst.get_benchmarks` returns them; those without files are
      listed as absent.
    data_root: Data folder, local or in an object store, with one folder per benchmark; None: each
      benchmark has its own root.
    name: Name of the encoder.
    seen: Languages of the training data, if known.
    dimensions: Also evaluate vectors cut to their first dimensions, these many each time, as
      `encode(truncate_dim=)` cuts them. Each text is still embedded once.
    report: Receives progress lines.
    vectors: Embeds the texts, with its own `dimensions`; default: in this process.
    finished: Results by benchmark, which are not run again.
    save: Receives the results of each benchmark when it is finished.

  Returns:
    The content of a results.json; see `results_files.Results`.

  Raises:
    InputError: files are broken, or no benchmark has any.
  """
  root = storage.path(data_root or "")
  seen = None if seen is None else [*seen]
  chosen = {benchmark.name: benchmark for benchmark in benchmarks}
  tasks: dict[str, Sequence[Task]] = {}
  absent: dict[str, str] = {}
  for key, benchmark in chosen.items():
    if key not in finished:
      own_root = benchmark.files.root or root
      reason = benchmark.files.absence(own_root)
      tasks[key] = [] if reason else benchmark.read(own_root)
      if not tasks[key]:
        absent[key] = reason or f"no file of it in {own_root} ({benchmark.files.layout})"
      report(f"{key}: absent: {absent[key]}" if key in absent else f"{key}: waiting")
  if absent and len(absent) == len(chosen):
    reasons = "; ".join(f"{key} is absent: {reason}" for key, reason in absent.items())
    raise errors.InputError(f"no benchmark has data (see `vmsst eval --list`): {reasons}")
  vectors = vectors or embedder.Embedder(encoder, name, dimensions=dimensions)
  results, failed = {**finished}, {}
  for key in (key for key in tasks if key not in absent):
    start = time.perf_counter()
    try:
      vectors.share([side for x in tasks[key] if not x.large for side in x.sides], report)
      results[key] = _score(chosen[key], tasks[key], vectors, seen)
    except ValueError as error:
      failed[key] = " ".join(str(error).split()) or type(error).__name__
      report(f"{key}: failed: {failed[key]}")
      continue
    report(f"{key}: finished in {time.perf_counter() - start:.0f} s")
    save(chosen[key], results[key])
  ordered = {key: results[key] for key in dict.fromkeys((*chosen, *results)) if key in results}
  record = settings(encoder, name, seen)
  return {**record, "absent": absent, "failed": failed, "benchmarks": ordered}  # type: ignore


def _score(
  benchmark: Benchmark,
  tasks: Sequence[Task],
  vectors: embedder.Embedder,
  seen: Iterable[languages.Language] | None,
) -> BenchmarkResults:
  """Returns the results of a benchmark; raises ValueError if its vectors cannot be scored."""
  known = None if seen is None else seen_test(seen)
  by_size: dict[int | None, list[Result]] = {size: [] for size in (None, *vectors.dimensions)}
  for task in tasks:
    for size, part in task.results(vectors, [*by_size]).items():
      by_size[size] += part
  summaries = {size: benchmark.summarize(part, known) for size, part in by_size.items()}
  named = [(x.name, x.metrics) for part in by_size.values() for x in part]
  for name, numbers in (*named, *(("summary", summary) for summary in summaries.values())):
    for metric, value in numbers.items():
      if not math.isfinite(value):
        raise ValueError(f"{metric} of {name} is not a finite number but {value}")
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
