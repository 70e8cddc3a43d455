"""`vmsst eval` as a job: the results of each benchmark are a part of its output folder.

So are, until the job is finished, the vectors that other processes compute, and what each span of a
knowledge base has for the queries.
"""

import contextlib
import functools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from vmsst import errors, languages, storage
from vmsst.encoder import encoding
from vmsst.evaluation import embedder, results_files, suite
from vmsst.io import checksums, input_files, manifest
from vmsst.jobs import engines, job


class Data:
  """The files of benchmarks, which several encoders share: read and hashed at most once.

  Attributes:
    benchmarks: The benchmarks by name.
    tasks: Returns the tasks of a benchmark, given by name, or why it is absent.
    identity: Returns what identifies the files of a benchmark, given by name.
  """

  def __init__(self, benchmarks: Iterable[suite.Benchmark], root: str | None):
    """Raises InputError if there is no such root, or all benchmarks are absent."""
    self.benchmarks = {benchmark.name: benchmark for benchmark in benchmarks}
    self._root = storage.path(root or "")
    self._checksum = functools.cache(checksums.of_file)
    self.tasks = functools.cache(self._read)
    self.identity = functools.cache(self._identity)
    with storage.explained(self._root, "read"):
      if not self._root.is_dir():
        raise errors.InputError(f"{root}: not a folder; give one with a folder per benchmark")
      absent = {name: x.files.absence(self._root) for name, x in self.benchmarks.items()}
      suite.check_present({x: y for x, y in absent.items() if y}, len(absent))
      self._versions = {name: self._version(name) for name, reason in absent.items() if not reason}

  def _read(self, name: str) -> Sequence[suite.Task] | str:
    return suite.read_tasks(self.benchmarks[name], self._root)

  def _identity(self, name: str) -> results_files.Data:
    files = self.benchmarks[name].files
    digest = files.digest(self._root, self._checksum)
    return {"name": storage.absolute(files.root or self._root), "digest": digest}

  def _version(self, name: str) -> dict[storage.Path, object]:
    paths = self.benchmarks[name].files.find(self._root)
    return {path: storage.version(path) for path in paths}

  def check_unchanged(self, name: str) -> None:
    """Raises InputError if a file of a benchmark has changed since this command started."""
    if self._version(name) != self._versions[name]:
      raise errors.InputError(
        f"{name}: its files have changed since they were read; rerun the same command"
      )


class JobEmbedder(embedder.Embedder):
  """Embeds texts as an engine does, and keeps parts in the work folder of a job."""

  def __init__(
    self, work: job.Job, engine: engines.Engine, encoder: Any, name: str, **options: Any
  ):
    """Takes the options of `embedder.Embedder` too."""
    super().__init__(encoder, name, **options)
    self._job, self._engine = work, engine
    self.scratch = work.path(storage.UNFINISHED)

  def map(
    self,
    title: str,
    prepare: Callable[[Any], Any],
    compute: Callable[[Any], embedder.Arrays],
    parts: Sequence[embedder.Part],
    *,
    keep: bool = False,
  ) -> Iterator[embedder.Arrays]:
    """See `embedder.Embedder`."""
    local = self._engine.in_process
    if local and not keep:
      yield from super().map(title, prepare, compute, parts)
      return
    named = [
      job.Part(
        f"{storage.UNFINISHED}/{title}-{manifest.digest(part.key)}.npz",
        (part.content,),
        size=part.size,
        title=part.title,
      )
      for part in parts
    ]
    with encoding.using(self.source, self._encoder) if local else contextlib.nullcontext():
      self._job.run(title, functools.partial(_save, compute), named, self._engine, prepare)
    for part in named:
      with storage.open_binary(self._job.path(part.name)) as stream:
        yield dict(np.load(stream, allow_pickle=False))


def _save(compute: Callable[[Any], embedder.Arrays], path: pathlib.Path, prepared: Any) -> None:
  with path.open("wb") as stream:
    np.savez(stream, **compute(prepared))  # type: ignore[arg-type]


def evaluate(
  data: Data,
  encoder: Any,
  name: str,
  folder: str,
  *,
  seen: Iterable[languages.Language] | None,
  engine: engines.Engine,
  report: Callable[[str], None],
  **options: Any,
) -> results_files.Results:
  """Evaluates an encoder, and writes results.json.

  Benchmarks that an earlier call has finished are evaluated again only if their data or options
  have changed, or if they lack some of the dimensions.

  Args:
    data: The benchmarks.
    encoder: An object with `encode(texts)`.
    name: Its name or path.
    folder: Output folder, local or in an object store.
    seen: Languages of the training data, if known.
    engine: Where to embed texts and to search a knowledge base.
    report: Receives progress lines.
    **options: Options of `embedder.Embedder`.
  """
  record = suite.settings(encoder, name, seen)
  with job.Job(folder, inputs=record) as work:
    vectors = JobEmbedder(work, engine, encoder, name, **options)
    scored: dict[str, results_files.BenchmarkResults | str] = {**_finished(work)}
    absent, waiting = {}, []
    for key, benchmark in data.benchmarks.items():
      stored = scored.get(key)
      if stored and _is_current(stored, benchmark, data.identity(key), vectors.dimensions):
        report(f"{key}: finished before")
        continue
      tasks = data.tasks(key)
      if isinstance(tasks, str) and stored:
        report(f"{key}: finished before; its data is no longer present: {tasks}")
      elif isinstance(tasks, str):
        absent[key] = tasks
        report(f"{key}: absent: {tasks}")
      else:
        changed = ": its data, options or dimensions have changed" if scored.pop(key, None) else ""
        report(f"{key}: waiting{changed}")
        waiting.append((benchmark, tasks))
    for benchmark, outcome in suite.scores(vectors, waiting, record["seen"], report):
      scored[benchmark.name] = outcome
      if not isinstance(outcome, str):
        data.check_unchanged(benchmark.name)
        outcome["data"] = data.identity(benchmark.name)
        with work.part(f"benchmarks/{benchmark.name}.json", _key(outcome)) as (path, _):
          path.write_bytes(msgspec.json.encode(outcome))
    order = dict.fromkeys(key for key in (*data.benchmarks, *scored) if key in scored)
    results = suite.results(record, absent, {key: scored[key] for key in order})
    with work.part(results_files.NAME) as (path, _):
      path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1))
    work.finish()
  return results


def _finished(work: job.Job) -> dict[str, results_files.BenchmarkResults]:
  """Returns the results that earlier calls have written, by benchmark."""
  finished = {}
  for path in storage.find(storage.path(work.path("benchmarks")), "*.json"):
    with contextlib.suppress(ValueError):  # It was changed by others, and is written again.
      content = input_files.read_bytes(path)
      stored = msgspec.json.decode(content, type=results_files.BenchmarkResults)
      if work.done(f"benchmarks/{path.name}", _key(stored)) is not None:
        finished[path.name.removesuffix(".json")] = stored
  return finished


def _key(stored: results_files.BenchmarkResults) -> Any:
  return [stored["data"]["digest"], stored["options"]]


def _is_current(
  stored: results_files.BenchmarkResults,
  benchmark: suite.Benchmark,
  data: results_files.Data,
  dimensions: Iterable[int],
) -> bool:
  """Returns whether results are those of the data, options and dimensions."""
  cuts = {cut["dimension"] for cut in stored.get("dimensions", ())}
  return _key(stored) == [data["digest"], benchmark.options] and cuts.issuperset(dimensions)
