"""Defines benchmarks of sentence encoders and evaluates encoders on them.

`vmsst.evaluation.benchmarks` has the benchmarks. All numbers are as papers print them: shares,
accuracies and correlations times 100.
"""

import dataclasses
import itertools
import json
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from vmsst import errors, languages
from vmsst.files import atomic_files
from vmsst.search import exact_search
from vmsst.vectors import encoding

Numbers = dict[str, float]
RESULTS_FILE = "results.json"
_NAMED = 5  # Missing sets named in a table.


@dataclasses.dataclass(frozen=True)
class Side:
  """Texts of one language.

  Attributes:
    language: Language code in the benchmark's files; `vmsst.languages.language` accepts it.
    texts: The texts, in file order.
  """

  language: str
  texts: Sequence[str]


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


Embed = Callable[[Side], np.ndarray]
"""Maps texts to their vectors, [N, D]."""


@dataclasses.dataclass(frozen=True)
class Tools:
  """Tools for a `LargeTask`.

  Attributes:
    embed: Maps texts to vectors.
    folder: For unfinished work; may not exist yet.
    report: Receives progress lines.
    engine: Compares vectors.
  """

  embed: Embed
  folder: pathlib.Path
  report: Callable[[str], None] = lambda line: None
  engine: exact_search.Engine = exact_search.compare


@dataclasses.dataclass(frozen=True)
class LargeTask:
  """Texts whose vectors exceed memory, or exist only while the task runs.

  Attributes:
    name: Unique in the benchmark.
    measure: Maps tools to results.
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
    summarize: Maps all results to the benchmark's own averages by name. Sets named by `missing`
      mark an average as incomplete.
    missing: Returns the names of the benchmark's sets without results.
    files: Files under the data root, plain or gzipped, that must be present too, because their
      folder is shared.
  """

  name: str
  title: str
  folders: tuple[str, ...]
  layout: str
  source: str
  read: Callable[[pathlib.Path], Sequence[Task | LargeTask]]
  summarize: Callable[[Sequence[Result], Seen], Numbers]
  missing: Callable[[Sequence[Result]], list[str]] = lambda results: []
  files: tuple[str, ...] = ()


def absence(benchmark: Benchmark, root: pathlib.Path) -> str | None:
  """Returns why a benchmark cannot run, for people; None if its folders and files exist."""
  folders = [str(root / name) for name in benchmark.folders if not (root / name).is_dir()]
  lone = [
    str(root / name)
    for name in benchmark.files
    if not any((root / each).is_file() for each in (name, f"{name}.gz"))
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
  """Formats what `evaluate` returns: all averages, and which sets are absent or missing."""
  rows = []
  for name, found in results["benchmarks"].items():
    rows += [f"{name:24}{key:48}{value:8.2f}" for key, value in found["summary"].items()]
    if lacking := found["missing"]:
      more = f" and {len(lacking) - _NAMED} more" if len(lacking) > _NAMED else ""
      rows.append(f"{name:24}missing: {', '.join(lacking[:_NAMED])}{more}")
  rows += [f"{name:24}absent: {reason}" for name, reason in results["absent"].items()]
  return "\n".join(rows)


def seen_test(seen: Iterable[languages.Language]) -> SeenTest:
  """Returns a test whether languages, given by codes, are all among those seen in training."""
  known = frozenset(seen)
  return lambda codes: all(languages.language(code) in known for code in codes)


def results_of(found: Mapping[str, Any]) -> list[Result]:
  """Returns the results of one benchmark from what `evaluate` returns."""
  return [Result(x["name"], tuple(x["languages"]), x["metrics"]) for x in found["results"]]


def evaluate(
  encoder: Any,
  benchmarks: Iterable[Benchmark],
  data_root: str | pathlib.Path,
  output: str | pathlib.Path,
  *,
  name: str,
  seen: Iterable[languages.Language] | None = None,
  report: Callable[[str], None] = lambda line: None,
  engine: exact_search.Engine = exact_search.compare,
) -> dict[str, Any]:
  """Evaluates an encoder on benchmarks and writes `output`/results.json.

  All files are read before anything is embedded. Each text is embedded once, even if it occurs in
  several tasks and benchmarks. Results are kept in `output`/benchmarks: a second call runs only
  missing benchmarks.

  Args:
    encoder: An object with `encode(texts)` that returns an array [N, D]. If `encode` has the option
      `language`, it receives one code per text.
    benchmarks: The benchmarks, as `vmsst.get_benchmarks` returns them; those without folders are
      listed as absent.
    data_root: Data folder, with one folder per benchmark.
    output: Output folder.
    name: Name of the encoder; `output` must not have results of another one.
    seen: Languages of the training data, if known.
    report: Receives progress lines.
    engine: Compares the vectors of large benchmarks.

  Returns:
    The content of results.json: `encoder`, `seen` (names of languages or None), `absent` (reasons
    by benchmark) and `benchmarks`: for each `title`, `summary`, `missing`, `results` (a list of
    `Result` as dicts) and `seconds` (`embedding`, `scoring`).

  Raises:
    InputError: files are broken, or `output` has another encoder's results.
    ValueError: `encode` returns arrays of another shape, or values that are not finite.
  """
  root, output = pathlib.Path(data_root), pathlib.Path(output)
  known = None if seen is None else seen_test(seen)
  codes = None if seen is None else sorted({each.name for each in seen})
  settings = {"encoder": name, "seen": codes}
  _check_settings(output / "settings.json", settings)
  absent, waiting = {}, {}
  done: dict[str, Any] = {}
  benchmarks = list(benchmarks)
  for benchmark in benchmarks:
    kept = output / "benchmarks" / f"{benchmark.name}.json"
    if kept.is_file():
      done[benchmark.name] = json.loads(kept.read_text(encoding="utf-8"))
    elif reason := absence(benchmark, root):
      absent[benchmark.name] = reason
      report(f"{benchmark.name}: absent: {reason}")
    else:
      report(f"{benchmark.name}: reading")
      waiting[benchmark.name] = benchmark, benchmark.read(root)
  vectors = SharedVectors(_held_sides(tasks) for _, tasks in waiting.values())
  for key, (benchmark, tasks) in waiting.items():
    done[key] = _run_one(encoder, vectors, benchmark, tasks, known, output, report, engine)
    atomic_files.write_json(output / "benchmarks" / f"{key}.json", done[key])
  ordered = {each.name: done[each.name] for each in benchmarks if each.name in done}
  results = {**settings, "absent": absent, "benchmarks": ordered}
  atomic_files.write_json(output / RESULTS_FILE, results)
  return results


def _held_sides(tasks: Iterable[Task | LargeTask]) -> Iterator[Side]:
  return itertools.chain.from_iterable(task.sides for task in tasks if isinstance(task, Task))


def _run_one(
  encoder: Any,
  shared: "SharedVectors",
  benchmark: Benchmark,
  tasks: Sequence[Task | LargeTask],
  known: Seen,
  output: pathlib.Path,
  report: Callable[[str], None],
  engine: exact_search.Engine,
) -> dict[str, Any]:
  start = time.perf_counter()
  embed = Embedder(encoder)
  vectors = shared.of_next(embed, _held_sides(tasks), report)
  results: list[Result] = []
  for task in tasks:
    if isinstance(task, Task):
      results += task.score(*(vectors(side) for side in task.sides))
    else:
      folder = output / "unfinished" / benchmark.name / task.name
      results += task.measure(Tools(embed, folder, report, engine))
  summary = benchmark.summarize(results, known)
  total = time.perf_counter() - start
  headline = ", ".join(f"{x} {y:.2f}" for x, y in itertools.islice(summary.items(), 4))
  report(f"{benchmark.name}: {headline} ({total:.0f} s, embedding {embed.seconds:.0f} s)")
  return {
    "title": benchmark.title,
    "summary": summary,
    "missing": benchmark.missing(results),
    "results": [
      {"name": x.name, "languages": list(x.languages), "metrics": x.metrics} for x in results
    ],
    "seconds": {"embedding": embed.seconds, "scoring": total - embed.seconds},
  }


class Embedder:
  """Calls an encoder, checks its vectors, and measures the time.

  Attributes:
    seconds: Time in the encoder so far.
  """

  def __init__(self, encoder: Any):
    self.seconds = 0.0
    self._encoder = encoder

  def __call__(self, side: Side) -> np.ndarray:
    """Returns the vectors of texts in one language, [N, D]."""
    return self.many(list(side.texts), [side.language] * len(side.texts))

  def many(self, texts: list[str], codes: list[str]) -> np.ndarray:
    """Returns the vectors of texts with a language each, float32 [N, D]."""
    start = time.perf_counter()
    vectors_ND = encoding.encode(self._encoder, texts, language=codes)
    self.seconds += time.perf_counter() - start
    if not np.isfinite(vectors_ND).all():
      row = int(np.argmin(np.isfinite(vectors_ND).all(axis=1)))
      raise ValueError(
        f"the encoder's vector of {texts[row]!r} contains a value that is not finite"
      )
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
    self._row_of: dict[tuple[str, str], int] = {}
    self._vectors_ND: np.ndarray | None = None

  def of_next(
    self, embed: Embedder, sides: Iterable[Side], report: Callable[[str], None]
  ) -> Callable[[Side], np.ndarray]:
    """Embeds the new texts of the next group; returns a function from its sides to vectors."""
    row_of, vectors_ND = dict(self._row_of), self._vectors_ND
    self._number += 1
    for key in itertools.chain.from_iterable(map(_keys, sides)):
      row_of.setdefault(key, len(row_of))
    new = list(itertools.islice(row_of, len(self._row_of), None))
    if new:
      report(f"embedding {len(new):,} texts")
      new_ND = embed.many([text for _, text in new], [code for code, _ in new])
      vectors_ND = new_ND if vectors_ND is None else np.concatenate([vectors_ND, new_ND])
    if vectors_ND is None:
      return embed
    kept = [key for key in row_of if self._last[key] > self._number]
    self._vectors_ND = vectors_ND[[row_of[key] for key in kept]]
    self._row_of = {key: row for row, key in enumerate(kept)}
    return lambda side: vectors_ND[[row_of[key] for key in _keys(side)]]


def _keys(side: Side) -> Iterator[tuple[str, str]]:
  return ((side.language, text) for text in side.texts)


def _check_settings(path: pathlib.Path, settings: Mapping[str, Any]) -> None:
  if not path.is_file():
    atomic_files.write_json(path, settings)
    return
  before = json.loads(path.read_text(encoding="utf-8"))
  for key, value in settings.items():
    if before.get(key) != value:
      raise errors.InputError(
        f"{path.parent} has results with {key} = {before.get(key)!r}, not {value!r}: give "
        "another folder, or delete that one"
      )
