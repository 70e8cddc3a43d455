"""What a benchmark of sentence encoders is, and how an encoder goes through several of them.

`vmsst.evaluation.benchmarks` holds the benchmarks. All numbers here are as papers print them:
shares, accuracies and correlations times 100.
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
_NAMED = 5  # Missing sets that are named in a table of text.


@dataclasses.dataclass(frozen=True)
class Side:
  """Texts of one language.

  Attributes:
    language: Code of it, as the benchmark's files have it; `vmsst.languages.language` knows it.
    texts: In the order of the files.
  """

  language: str
  texts: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Result:
  """What one language, pair of languages or file scored.

  Attributes:
    name: Unique in its benchmark.
    languages: Codes of all languages in it.
    metrics: Values x 100 by name.
  """

  name: str
  languages: tuple[str, ...]
  metrics: Numbers


@dataclasses.dataclass(frozen=True)
class Task:
  """Texts whose vectors are in memory at once and judged together.

  Attributes:
    name: Unique in its benchmark.
    sides: The texts.
    score: Maps the vectors of all sides, an array [N, D] each, to results.
    judged: The texts that training data must not have, where others are there to learn from; None
      is those of all sides.
  """

  name: str
  sides: tuple[Side, ...]
  score: Callable[..., list[Result]]
  judged: tuple[Side, ...] | None = None

  def texts(self) -> Iterator[str]:
    """The texts that training data must not have."""
    sides = self.sides if self.judged is None else self.judged
    return itertools.chain.from_iterable(side.texts for side in sides)


Embed = Callable[[Side], np.ndarray]
"""Maps texts to their vectors, [N, D]."""


@dataclasses.dataclass(frozen=True)
class Tools:
  """What a streamed task works with.

  Attributes:
    embed: What embeds texts.
    folder: To keep unfinished work in; it need not be there.
    report: Gets a line on what is being done.
    engine: What compares vectors.
  """

  embed: Embed
  folder: pathlib.Path
  report: Callable[[str], None] = lambda line: None
  engine: exact_search.Engine = exact_search.compare


@dataclasses.dataclass(frozen=True)
class StreamedTask:
  """Texts that are too many to have the vectors of the whole benchmark in memory.

  Attributes:
    name: Unique in its benchmark.
    run: Gives the results.
    texts: Gives the texts that training data must not have, as they are embedded.
  """

  name: str
  run: Callable[[Tools], list[Result]]
  texts: Callable[[], Iterable[str]]


SeenTest = Callable[[Iterable[str]], bool]
"""Whether languages, given by codes, were all seen in training."""
Seen = SeenTest | None
"""The same; None where that is not known."""


@dataclasses.dataclass(frozen=True)
class Benchmark:
  """A benchmark: its files and its protocol.

  Attributes:
    name: By which it is asked for, and under which its results are kept.
    title: For people.
    folders: Those under the data root that it reads; where one is missing it is absent.
    layout: The files that lie there, for people.
    source: Where they come from, for people.
    read: Reads them, given the data root. Raises InputError, with file and line, where they are
      broken.
    summarize: The benchmark's own averages, by name, out of all results. A set that is not there is
      named in the result of `missing` and not averaged over as if it were.
    missing: Names of sets that belong to the benchmark and are not among the results.
    files: Those under the data root, plain or gzipped, without which it is absent too, because
      something else lies in their folder.
  """

  name: str
  title: str
  folders: tuple[str, ...]
  layout: str
  source: str
  read: Callable[[pathlib.Path], Sequence[Task | StreamedTask]]
  summarize: Callable[[Sequence[Result], Seen], Numbers]
  missing: Callable[[Sequence[Result]], list[str]] = lambda results: []
  files: tuple[str, ...] = ()


def absence(benchmark: Benchmark, root: pathlib.Path) -> str | None:
  """Why a benchmark cannot be run, for people; None if its folders and files are there."""
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


def describe(benchmark: Benchmark) -> str:
  """Some lines for people: what a benchmark is, and where its files have to lie."""
  folders = ", ".join(f"ROOT/{folder}" for folder in benchmark.folders)
  lines = [f"{benchmark.name}: {benchmark.title}", f"{folders}: {benchmark.layout}"]
  return "\n  ".join([*lines, benchmark.source])


def table(results: Mapping[str, Any]) -> str:
  """What `evaluate` returns, as lines of text: all averages, and what is absent or missing."""
  rows = []
  for name, found in results["benchmarks"].items():
    rows += [f"{name:24}{key:48}{value:8.2f}" for key, value in found["summary"].items()]
    if lacking := found["missing"]:
      more = f" and {len(lacking) - _NAMED} more" if len(lacking) > _NAMED else ""
      rows.append(f"{name:24}missing: {', '.join(lacking[:_NAMED])}{more}")
  rows += [f"{name:24}absent: {reason}" for name, reason in results["absent"].items()]
  return "\n".join(rows)


def seen_test(seen: Iterable[languages.Language]) -> SeenTest:
  """The test of codes for languages that were seen in training."""
  known = frozenset(seen)
  return lambda codes: all(languages.language(code) in known for code in codes)


def results_of(found: Mapping[str, Any]) -> list[Result]:
  """The results of one benchmark out of what `evaluate` returns."""
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
  """Takes an encoder through benchmarks, and writes `output`/results.json.

  All files are read before anything is embedded. Each text of a task is embedded once, whatever the
  number of tasks and benchmarks that it occurs in. What a benchmark gave is kept in
  `output`/benchmarks: called again, only those are run that are not there.

  Args:
    encoder: Has `encode(texts)`, which gives an array [N, D]. If `encode` has an argument
      `language` it gets a list of codes, one a text.
    benchmarks: Which ones; those whose folders are absent are listed as absent.
    data_root: Folder of the folders of data.
    output: Folder to write to.
    name: Of the encoder; another one's results in `output` are an error.
    seen: Languages that it was trained on, if known.
    report: Gets a line on what is being done.
    engine: What compares the vectors of large benchmarks.

  Returns:
    What is in results.json: `encoder`, `seen` (names of languages or None), `absent` (reasons by
    benchmark) and `benchmarks`: for each `title`, `summary`, `missing`, `results` (a list of
    `Result` as dicts) and `seconds` (`embedding`, `scoring`).

  Raises:
    InputError: files are broken, or `output` holds another encoder's results.
    ValueError: `encode` gives arrays of another shape, or values that are not finite.
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


def _held_sides(tasks: Iterable[Task | StreamedTask]) -> Iterator[Side]:
  return itertools.chain.from_iterable(task.sides for task in tasks if isinstance(task, Task))


def _run_one(
  encoder: Any,
  shared: "SharedVectors",
  benchmark: Benchmark,
  tasks: Sequence[Task | StreamedTask],
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
      results += task.run(Tools(embed, folder, report, engine))
  summary = benchmark.summarize(results, known)
  total = time.perf_counter() - start
  headline = ", ".join(f"{x} {y:.2f}" for x, y in itertools.islice(summary.items(), 4))
  report(f"{benchmark.name}: {headline} ({total:.0f} s, {embed.seconds:.0f} s of it embedding)")
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
  """Calls an encoder, checks what comes back, and counts the seconds.

  Attributes:
    seconds: Spent in the encoder so far.
  """

  def __init__(self, encoder: Any):
    self.seconds = 0.0
    self._encoder = encoder

  def __call__(self, side: Side) -> np.ndarray:
    """The vectors of texts in one language, [N, D]."""
    return self.many(list(side.texts), [side.language] * len(side.texts))

  def many(self, texts: list[str], codes: list[str]) -> np.ndarray:
    """The vectors of texts, [N, D], float32, given the language of each."""
    start = time.perf_counter()
    vectors_ND = encoding.encode(self._encoder, texts, language=codes)
    self.seconds += time.perf_counter() - start
    if not np.isfinite(vectors_ND).all():
      row = int(np.argmin(np.isfinite(vectors_ND).all(axis=1)))
      raise ValueError(f"the encoder's vector of {texts[row]!r} holds a value that is not finite")
    return vectors_ND


class SharedVectors:
  """Vectors of texts in groups, each text embedded once; kept while a later group has it too.

  Args:
    groups: The sides of all groups, in the order in which `of_next` is called for them.
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
    """Embeds what is new in the next group; returns what gives the vectors of a side of it."""
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
        f"{path.parent} holds results with {key} = {before.get(key)!r}, not {value!r}: give "
        "another folder, or delete that one"
      )
