"""Defines benchmarks of sentence encoders and evaluates encoders on them.

`vmsst.evaluation.benchmarks` has the benchmarks. All numbers are as papers print them: shares,
accuracies and correlations times 100.
"""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from vmsst import errors, languages, storage
from vmsst.encoder import encoding
from vmsst.evaluation import results_files
from vmsst.jobs import engines, work_folders
from vmsst.search import exact_search

Numbers = dict[str, float]
RESULTS_FILE = "results.json"
_NAMED = 5  # Missing sets that are named.
# The work folder has a folder for each benchmark, and this one for vectors of texts.
_TEXTS = "texts.vectors"


@dataclasses.dataclass(frozen=True)
class Side:
  """Texts of one language.

  Attributes:
    language: Language code in the benchmark's files; `vmsst.languages.language` accepts it.
    texts: The texts, in file order.
    method: Method of the encoder, if it has it. Others than `encode` are for `LargeTask`s.
  """

  language: str
  texts: Sequence[str]
  method: str = "encode"


@dataclasses.dataclass(frozen=True)
class Result:
  """Scores of one language, language pair or file.

  Attributes:
    name: Unique in the benchmark.
    languages: Codes of all its languages.
    metrics: Values by name, times 100.
  """

  name: str
  languages: tuple[str, ...]
  metrics: Numbers


@dataclasses.dataclass(frozen=True)
class Task:
  """Texts whose vectors are in memory at once and scored together.

  Attributes:
    name: Unique in the benchmark.
    sides: The texts.
    score: Maps the vectors of all sides, an array [N, D] each, to results.
    held_out: Texts to exclude from training data, if not those of all sides (such as test splits).
  """

  name: str
  sides: tuple[Side, ...]
  score: Callable[..., list[Result]]
  held_out: tuple[Side, ...] | None = None

  def texts(self) -> Iterator[str]:
    """Yields the texts to exclude from training data."""
    sides = self.sides if self.held_out is None else self.held_out
    return itertools.chain.from_iterable(side.texts for side in sides)

  def streamed(self) -> "LargeTask":
    """Returns the same task with vectors that exist only while it runs."""
    return LargeTask(self.name, lambda tools: self.score(*map(tools.embed, self.sides)), self.texts)


Embed = Callable[[Side], np.ndarray]
"""Maps texts to their vectors, [N, D]."""


@dataclasses.dataclass(frozen=True)
class Tools:
  """Tools for a `LargeTask`.

  Attributes:
    embedder: Maps texts to whole vectors; has the encoder and the engine for other units of work.
    folder: For unfinished work, local or in an object store; may not exist yet.
    report: Receives progress lines.
    search: Finds the nearest vectors.
    dimensions: How many of the first dimensions to measure; None: all.
  """

  embedder: "Embedder"
  folder: storage.Path
  report: Callable[[str], None] = lambda line: None
  search: exact_search.Search = exact_search.search
  dimensions: int | None = None

  def embed(self, side: Side) -> np.ndarray:
    """Returns the vectors to measure, of texts in one language, float32 [N, D]."""
    return self.embedder(side)[:, : self.dimensions]


@dataclasses.dataclass(frozen=True)
class LargeTask:
  """Texts whose vectors exceed memory, or exist only while the task runs.

  Attributes:
    name: Unique in the benchmark.
    measure: Maps tools to results; called once for each number of dimensions.
    texts: Returns the texts to exclude from training data, as they are embedded.
  """

  name: str
  measure: Callable[[Tools], list[Result]]
  texts: Callable[[], Iterable[str]]


SeenTest = Callable[[Iterable[str]], bool]
"""Whether languages, given by codes, were all seen in training."""
Seen = SeenTest | None
"""The same, or None if unknown."""


@dataclasses.dataclass(frozen=True)
class Benchmark:
  """A benchmark: its files and its protocol.

  Attributes:
    name: Unique name, also that of its results file.
    title: Title for people.
    folders: Folders under the data root that it reads; if one is missing, the benchmark is absent.
    layout: Expected files, for people.
    source: Source of the files, for people.
    read: Reads the files under the data root. Raises InputError with file and line if they are
      broken.
    averages: Maps all results, the test of seen languages and whether all sets have results to the
      benchmark's own averages by name.
    sets: Names of all results that the benchmark should have, if they are known.
    codes: Codes of all languages that it should have, in any standard.
    files: Files under the data root, plain or gzipped, that must be present too, because their
      folder is shared.
    more_files: Glob patterns under the data root, of files in other folders that it reads if they
      are present.
    options: Choices in its protocol, by name, for results and reports. Results with other choices
      are replaced.
    root: Its own data root, if that is not the common one.
  """

  name: str
  title: str
  folders: tuple[str, ...]
  layout: str
  source: str
  read: Callable[[storage.Path], Sequence[Task | LargeTask]]
  averages: Callable[[Sequence[Result], Seen, bool], Numbers]
  sets: Sequence[str] = ()
  codes: Sequence[str] = ()
  files: tuple[str, ...] = ()
  more_files: tuple[str, ...] = ()
  options: Mapping[str, str] = dataclasses.field(default_factory=dict)
  root: storage.Path | None = None

  def missing(self, results: Iterable[Result]) -> list[str]:
    """Returns the sets and the languages without results."""
    results = list(results)
    names = {result.name for result in results}
    known = {languages.language(code) for result in results for code in result.languages}
    return [
      *(name for name in self.sets if name not in names),
      *(code for code in self.codes if languages.language(code) not in known),
    ]

  def summarize(self, results: Sequence[Result], seen: Seen) -> Numbers:
    """Returns the averages; names of those that lack sets are marked."""
    return self.averages(results, seen, not self.missing(results))


def absence(benchmark: Benchmark, root: storage.Path) -> str | None:
  """Returns why a benchmark cannot run, for people; None if its folders and files exist."""
  folders = [str(root / name) for name in benchmark.folders if not (root / name).is_dir()]
  lone = [
    str(root / name)
    for name in benchmark.files
    if not any(storage.is_file(root / candidate) for candidate in (name, f"{name}.gz"))
  ]
  if not folders and not lone:
    return None
  lacking = f"folder {', '.join(folders)}" if folders else f"file {', '.join(lone)}"
  return f"no {lacking} ({benchmark.layout}); {benchmark.source}"


def describe_benchmark(benchmark: Benchmark) -> str:
  """Describes a benchmark and the place of its files, for people."""
  folders = ", ".join(f"ROOT/{folder}" for folder in benchmark.folders)
  lines = [f"{benchmark.name}: {benchmark.title}", f"{folders}: {benchmark.layout}"]
  return "\n  ".join([*lines, benchmark.source])


def format_table(results: Mapping[str, Any]) -> str:
  """Formats what `evaluate` returns: all averages, and what failed, is absent or missing.

  "first 64" follows the names of averages of vectors cut to 64 dimensions.
  """
  rows = []
  for name, scored in results["benchmarks"].items():
    rows += [f"{name:23} {key:48}{value:8.2f}" for key, value in scored["summary"].items()]
    for cut in (scored.get("dimensions") or [])[:-1]:  # The last has whole vectors.
      title = f"first {cut['dimension']}"
      rows += [f"{name:23} {f'{key}, {title}':48}{x:8.2f}" for key, x in cut["summary"].items()]
    if lacking := scored["missing"]:
      rows.append(f"{name:23} missing: {shortened(lacking)}")
  for key in ("failed", "absent"):
    rows += [f"{name:23} {key}: {reason}" for name, reason in results[key].items()]
  return "\n".join(rows)


def shortened(names: Sequence[str]) -> str:
  """Returns the first of many names and the number of others, for people."""
  more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
  return f"{', '.join(names[:_NAMED])}{more}"


def seen_test(seen: Iterable[languages.Language]) -> SeenTest:
  """Returns a test whether languages, given by codes, are all among those seen in training."""
  known = frozenset(seen)
  return lambda codes: all(languages.language(code) in known for code in codes)


def collect_results(scored: Mapping[str, Any]) -> list[Result]:
  """Returns the results of one benchmark from what `evaluate` returns."""
  return [Result(x["name"], tuple(x["languages"]), x["metrics"]) for x in scored["results"]]


def evaluate(
  encoder: Any,
  benchmarks: Iterable[Benchmark],
  data_root: str | os.PathLike[str] | None,
  output: str | os.PathLike[str],
  *,
  name: str,
  seen: Iterable[languages.Language] | None = None,
  report: Callable[[str], None] = lambda line: None,
  search: exact_search.Search = exact_search.search,
  engine: engines.Engine | None = None,
  load: Callable[[], tuple[str, Any]] | None = None,
  dimensions: Iterable[int] = (),
) -> dict[str, Any]:
  """Evaluates an encoder on benchmarks and writes `output`/results.json.

  All files are read before anything is embedded. Each text is embedded once, even if it occurs in
  several tasks and benchmarks. Results are kept in `output`/benchmarks: a second call runs only
  missing benchmarks, those that failed, those whose data or options have changed, and those that
  lack some of `dimensions`. If one fails because its vectors cannot be scored, the others are still
  run.

  Args:
    encoder: An object with `encode(texts)` that returns an array [N, D]. If `encode` has the option
      `language`, it receives one code per text. Its attribute `digest`, if it has one, identifies
      it; else `name` does.
    benchmarks: The benchmarks, as `vmsst.get_benchmarks` returns them; those without folders are
      listed as absent.
    data_root: Data folder, local or in an object store, with one folder per benchmark; None: each
      benchmark has its own root.
    output: Output folder, local or in an object store. Other processes and the search in a
      knowledge base keep unfinished work in it, from which a second call resumes; else nothing is
      written before the first result.
    name: Name of the encoder; `output` must not have results of another one.
    seen: Languages of the training data, if known.
    report: Receives progress lines.
    search: Searches the vectors of large benchmarks; must be picklable if the engine has other
      processes.
    engine: Where to embed texts and to search knowledge bases; None: in this process. The results
      are the same.
    load: Returns name and encoder in other processes; must be picklable. Needed if the engine has
      any.
    dimensions: Also evaluate vectors cut to their first dimensions, these many each time, as
      `encode(truncate_dim=)` cuts them. Each text is still embedded once: vectors of texts that
      benchmarks do not hold in memory are kept in `output` until the benchmark is finished.

  Returns:
    The content of results.json: `encoder` (`name` and `digest`), `max_length` (tokens at which it
    cuts texts, if known), `seen` (names of languages or None), `absent` and `failed` (reasons by
    benchmark) and `benchmarks`, all in `output`: for each `title`, `summary`, `missing`, `results`
    (a list of `Result` as dicts), `seconds` (`embedding`, `scoring`; the search in a knowledge
    base counts as scoring, with its embedding), `data` (`name` of the folder,
    `digest` of the files), `options` (choices in its protocol) and, if `dimensions` are given,
    `dimensions` (a list of the `summary` of each `dimension`, that of whole vectors included).

  Raises:
    InputError: files are broken, no benchmark has data, all have failed, the encoder's vectors are
      not finite or have fewer dimensions than asked for, or `output` has another encoder's results
      or a broken file.
  """
  sizes = sorted({errors.as_integer("dimensions", item) for item in dimensions})
  _check_width(getattr(encoder, "dimension", None), sizes)
  common = storage.path(data_root or "")
  with storage.explained(common, "read"):
    is_folder = common.is_dir()
  if not is_folder:
    raise errors.InputError(f"{common}: not a folder; give the data folder, with one per benchmark")
  known = None if seen is None else seen_test(seen)
  codes = None if seen is None else sorted({item.name for item in seen})
  made_by = encoding.identity(encoder, name)
  length = encoding.max_length(encoder)
  settings = {"encoder": made_by, "seen": codes} | ({"max_length": length} if length else {})
  folder = results_files.Folder(output, settings)
  benchmarks = list(benchmarks)
  names = [benchmark.name for benchmark in benchmarks]
  absent: dict[str, str] = {}
  waiting: dict[str, _Waiting] = {}
  done = folder.stored

  def leave_out(key: str, reason: str) -> None:
    if key in done:
      report(f"{key}: finished before; its data is no longer present: {reason}")
    else:
      absent[key] = reason
      report(f"{key}: absent: {reason}")

  for benchmark in benchmarks:
    key, root = benchmark.name, benchmark.root or common
    if reason := absence(benchmark, root):
      leave_out(key, reason)
      continue
    identity = functools.partial(_data_identity, benchmark, root, output)
    data = identity()
    again = ""
    if key in done:
      record = done[key]
      cuts = {cut["dimension"] for cut in record.get("dimensions") or []}
      same = {
        "data": record["data"]["digest"] == data["digest"],
        "options": record.get("options", {}) == benchmark.options,
        "dimensions": cuts >= set(sizes),
      }
      other = " and ".join(what for what, equal in same.items() if not equal)
      if not other:
        report(f"{key}: finished before")
        continue
      again = f"; it was finished with other {other} and is evaluated again"
    report(f"{key}: reading{again}")
    tasks = benchmark.read(root)
    if not tasks:
      leave_out(key, f"no file of it in {root} ({benchmark.layout})")
      continue
    done.pop(key, None)
    waiting[key] = _Waiting(benchmark, tasks, data, identity)
  if absent and not waiting and not set(names) & set(done):
    if len(absent) == 1:
      raise errors.InputError("; ".join(f"{key} is absent: {absent[key]}" for key in absent))
    expected = dict.fromkeys(folder for benchmark in benchmarks for folder in benchmark.folders)
    raise errors.InputError(
      f"{common} has no data of the chosen benchmarks: expected folders {', '.join(expected)} "
      "(see `vmsst eval --list`)"
    )
  failed: dict[str, str] = {}

  def results() -> dict[str, Any]:
    order = [*(key for key in names if key in done), *(key for key in done if key not in names)]
    record = {key: done[key] for key in order}
    return {**settings, "absent": absent, "failed": failed, "benchmarks": record}

  vectors = SharedVectors(_held_sides(item.tasks) for item in waiting.values())
  # Other processes may have another working directory.
  unfinished = storage.path(work_folders.work_path(output, is_folder=True))
  embed = Embedder(
    encoder, name, engine=engine, load=load, folder=unfinished / _TEXTS, dimensions=sizes
  )
  for key, work in waiting.items():
    inputs = [made_by.get("digest", name), work.data["digest"], work.benchmark.options]
    digest = hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:16]
    tools = Tools(embed, unfinished / key / digest, report, search)
    try:
      record = _run_one(tools, embed, vectors, work, known)
    except UnusableEncoderError:
      raise
    except ValueError as error:
      failed[key] = " ".join(str(error).split()) or type(error).__name__
      report(f"{key}: failed: {failed[key]}")
      continue
    done[key] = record
    folder.save(key, record)
    folder.write_results(results())
    for unused in (key, _TEXTS):
      storage.remove(unfinished / unused)
    work_folders.remove_if_empty(os.fspath(unfinished))
  if failed and not set(names) & set(done):
    reasons = "; ".join(f"{key}: {reason}" for key, reason in failed.items())
    raise errors.InputError(f"no benchmark could be evaluated: {reasons}")
  folder.write_results(results())
  return results()


@dataclasses.dataclass(frozen=True)
class _Waiting:
  """A benchmark to evaluate: its tasks, what identifies its data, and a function to compare it."""

  benchmark: Benchmark
  tasks: Sequence[Task | LargeTask]
  data: dict[str, str]
  identity: Callable[[], dict[str, str]]


def _data_identity(
  benchmark: Benchmark, root: storage.Path, output: str | os.PathLike[str]
) -> dict[str, str]:
  lone = (name + end for name in benchmark.files for end in ("", ".gz"))
  patterns = (*lone, *benchmark.more_files)
  return results_files.data_identity(root, benchmark.folders, patterns, leave_out=output)


def _held_sides(tasks: Iterable[Task | LargeTask]) -> Iterator[Side]:
  return itertools.chain.from_iterable(task.sides for task in tasks if isinstance(task, Task))


def _run_one(
  tools: Tools, embed: "Embedder", shared: "SharedVectors", work: _Waiting, known: Seen
) -> dict[str, Any]:
  start, before = time.perf_counter(), embed.seconds
  benchmark = work.benchmark
  vectors = shared.of_next(embed, _held_sides(work.tasks), tools.report)
  results, summary = _measured(tools, vectors, work, known)
  by_size = []
  for size in embed.dimensions:
    record = summary
    if size < embed.width:
      try:
        _, record = _measured(dataclasses.replace(tools, dimensions=size), vectors, work, known)
      except ValueError as error:
        raise ValueError(f"of the first {size} dimensions: {error}") from error
    by_size.append({"dimension": size, "summary": record})
  if embed.dimensions and embed.width not in embed.dimensions:
    by_size.append({"dimension": embed.width, "summary": summary})
  if work.identity() != work.data:  # A large task may just have read them.
    raise errors.InputError("its files have changed since they were read; rerun the same command")
  total, embedding = time.perf_counter() - start, embed.seconds - before
  headline = ", ".join(f"{x} {y:.2f}" for x, y in itertools.islice(summary.items(), 4))
  tools.report(f"{benchmark.name}: {headline} ({total:.0f} s, embedding {embedding:.0f} s)")
  return {
    "title": benchmark.title,
    "summary": summary,
    "missing": benchmark.missing(results),
    "results": [
      {"name": x.name, "languages": list(x.languages), "metrics": x.metrics} for x in results
    ],
    "seconds": {"embedding": embedding, "scoring": total - embedding},
    "data": work.data,
    "options": dict(benchmark.options),
  } | ({"dimensions": by_size} if by_size else {})


def _measured(
  tools: Tools, vectors: Callable[[Side], np.ndarray], work: _Waiting, known: Seen
) -> tuple[list[Result], Numbers]:
  """Returns the results and averages of a benchmark for one number of dimensions."""
  results: list[Result] = []
  for task in work.tasks:
    if isinstance(task, Task):
      results += task.score(*(vectors(side)[:, : tools.dimensions] for side in task.sides))
    else:
      results += task.measure(dataclasses.replace(tools, folder=tools.folder / task.name))
  summary = work.benchmark.summarize(results, known)
  for name, numbers in (*((x.name, x.metrics) for x in results), ("summary", summary)):
    for metric, value in numbers.items():
      if not math.isfinite(value):
        raise ValueError(f"{metric} of {name} is not a finite number but {value}")
  return results, summary


class UnusableEncoderError(errors.InputError):
  """No vector of the encoder can be used, so that every benchmark would fail."""


def _check_width(width: int | None, sizes: Sequence[int]) -> None:
  """Raises UnusableEncoderError if vectors are narrower than they are to be cut to."""
  if width is not None and sizes and max(sizes) > width:
    raise UnusableEncoderError(
      f"dimensions is {max(sizes)}: the encoder's vectors have {width}; give 1 to {width}"
    )


class Embedder:
  """Embeds texts, checks their vectors, and measures the time.

  Args:
    encoder: An object with `encode(texts)`.
    name: Its name or path.
    engine: Where to embed; None: in this process.
    load: Returns name and encoder in other processes.
    folder: Folder for the vectors of other processes, and for those of large tasks if there are
      `dimensions`.
    dimensions: To how many dimensions vectors are cut, each time; none: they are used whole.

  Attributes:
    source: Opens the encoder in any process.
    engine: The engine.
    seconds: Time of embedding so far.
    dimensions: As above.
    width: Width of the vectors; 0 if there are none yet.
  """

  def __init__(
    self,
    encoder: Any,
    name: str = "",
    *,
    engine: engines.Engine | None = None,
    load: Callable[[], tuple[str, Any]] | None = None,
    folder: str | os.PathLike[str] = "",
    dimensions: Sequence[int] = (),
  ):
    self.source = encoding.source_of(encoder, name, load)
    self.engine = engine or engines.Local()
    self.seconds = 0.0
    self._encoder = encoder
    self._folder = os.fspath(folder)
    self.dimensions = tuple(dimensions)
    self.width = 0

  def opened(self) -> contextlib.AbstractContextManager[None]:
    """Lets units use the encoder if they are made in this process."""
    if not self.engine.in_process:
      return contextlib.nullcontext()
    return encoding.using(self.source, self._encoder)

  def __call__(self, side: Side) -> np.ndarray:
    """Returns the vectors of texts in one language, [N, D].

    If they are needed for several numbers of dimensions, they are kept in the folder, from which
    further calls with the same texts read them.
    """
    codes = [side.language] * len(side.texts)
    return self.many(list(side.texts), codes, method=side.method, keep=bool(self.dimensions))

  def many(self, texts: list[str], codes: list[str], **options: Any) -> np.ndarray:
    """Returns the vectors of texts with a language each, float32 [N, D].

    Args:
      texts: The texts.
      codes: Code of each text's language.
      **options: `method` and `keep` of `encoding.embed`.

    Raises:
      UnusableEncoderError: no vector is finite, in this call and all before it, or the vectors have
        fewer dimensions than they are to be cut to.
      ValueError: some are not finite, or the array has another shape.
    """
    start = time.perf_counter()
    try:
      with self.opened():
        vectors_ND = encoding.embed(self.source, texts, codes, self._folder, self.engine, **options)
    except encoding.NotFiniteError as error:
      if self.width or not error.every:
        raise
      raise UnusableEncoderError(f"{error}, as do all others: its training has diverged?") from None
    self.seconds += time.perf_counter() - start
    width = vectors_ND.shape[1]
    if not width or width != (self.width or width):
      before = f" after those of width {self.width}" if self.width else ""
      raise ValueError(f"the encoder returned vectors of width {width}{before}")
    _check_width(width, self.dimensions)
    self.width = width
    return vectors_ND


class SharedVectors:
  """Vectors of groups of texts; each text is embedded once and kept while later groups need it.

  Args:
    groups: The sides of each group, in the order of the calls of `of_next`.
  """

  def __init__(self, groups: Iterable[Iterable[Side]]):
    self._last = {
      key: number
      for number, sides in enumerate(groups)
      for key in itertools.chain.from_iterable(map(_keys, sides))
    }
    self._number = -1
    self._row_by_text: dict[tuple[str, str], int] = {}
    self._vectors_ND: np.ndarray | None = None

  def of_next(
    self, embed: Embedder, sides: Iterable[Side], report: Callable[[str], None]
  ) -> Callable[[Side], np.ndarray]:
    """Embeds the new texts of the next group; returns a function from its sides to vectors."""
    row_by_text, vectors_ND = dict(self._row_by_text), self._vectors_ND
    self._number += 1
    for key in itertools.chain.from_iterable(map(_keys, sides)):
      row_by_text.setdefault(key, len(row_by_text))
    new = list(itertools.islice(row_by_text, len(self._row_by_text), None))
    if new:
      report(f"embedding {len(new):,} texts")
      new_ND = embed.many([text for _, text in new], [code for code, _ in new])
      vectors_ND = new_ND if vectors_ND is None else np.concatenate([vectors_ND, new_ND])
    if vectors_ND is None:
      return embed
    kept = [key for key in row_by_text if self._last[key] > self._number]
    self._vectors_ND = vectors_ND[[row_by_text[key] for key in kept]]
    self._row_by_text = {key: row for row, key in enumerate(kept)}
    return lambda side: vectors_ND[[row_by_text[key] for key in _keys(side)]]


def _keys(side: Side) -> Iterator[tuple[str, str]]:
  return ((side.language, text) for text in side.texts)
