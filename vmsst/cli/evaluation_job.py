"""The job of `vmsst eval`. It writes one file of results per benchmark.

Intermediate files contain the vectors that worker processes compute, and the best answers from each
span of a knowledge base.
"""

import contextlib
import functools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from vmsst import errors, languages, storage
from vmsst.evaluation import embedder, results_files, suite
from vmsst.io import input_files, manifest
from vmsst.jobs import engines, job, outputs


class JobEmbedder(embedder.Embedder):
  """Embeds texts on an engine, and writes vectors to the work folder of a job.

  Args:
    eval_job: The job.
    engine: Where to embed.
    encoder: As in `embedder.Embedder`.
    name: As in `embedder.Embedder`.
    **options: Further options of `embedder.Embedder`.
  """

  def __init__(
    self, eval_job: job.Job, engine: engines.Engine, encoder: Any, name: str, **options: Any
  ):
    super().__init__(encoder, name, **options)
    self._job, self._engine = eval_job, engine
    self.scratch = eval_job.path(storage.UNFINISHED)

  def map(
    self,
    title: str,
    compute: Callable[[Any], embedder.Arrays],
    chunks: Sequence[embedder.Chunk],
    *,
    keep: bool = False,
  ) -> Iterator[embedder.Arrays]:
    """See `embedder.Embedder`."""
    if self._engine.in_process and not keep:
      yield from super().map(title, compute, chunks)
      return
    tasks = [
      job.Task(
        f"{storage.UNFINISHED}/{title}-{manifest.digest(chunk.key)}.npz",
        (chunk.content,),
        size=chunk.size,
        title=chunk.title,
      )
      for chunk in chunks
    ]
    self._job.run(title, functools.partial(_save, compute), tasks, self._engine)
    for task in tasks:
      with storage.open_binary(self._job.path(task.name)) as stream:
        yield dict(np.load(stream, allow_pickle=False))


def _save(compute: Callable[[Any], embedder.Arrays], path: pathlib.Path, content: Any) -> None:
  with path.open("wb") as stream:
    np.savez(stream, **compute(content))  # type: ignore[arg-type]


def evaluate(
  benchmarks: Sequence[suite.Benchmark],
  root: storage.Path,
  digests: Mapping[str, str],
  encoder: Any,
  name: str,
  folder: str,
  *,
  seen: Iterable[languages.Language] | None,
  engine: engines.Engine,
  report: Callable[[str], None],
  **options: Any,
) -> results_files.Results:
  """Evaluates an encoder and writes results.json.

  A benchmark that an earlier call finished is evaluated again only if its data has changed or its
  results lack one of the requested vector sizes.

  Args:
    benchmarks: The benchmarks.
    root: The data root.
    digests: Digest of each benchmark's files, by benchmark name. Compute the digests before the
      files are read.
    encoder: An object with `encode(texts)`.
    name: Name or path of the encoder.
    folder: Output folder, local or in an object store.
    seen: Languages of the training data, or None if they are unknown.
    engine: Where to embed texts and search knowledge bases.
    report: Function that receives progress messages.
    **options: Options of `embedder.Embedder`.
  """
  with job.Job(folder, inputs=suite.settings(encoder, name, seen)) as eval_job:
    vectors = JobEmbedder(eval_job, engine, encoder, name, **options)
    finished = {}
    for path in storage.find(storage.path(eval_job.path("benchmarks")), "*.json"):
      with contextlib.suppress(ValueError, KeyError):  # A damaged results file counts as missing.
        content = input_files.read_bytes(path)
        record = msgspec.json.decode(content, type=results_files.BenchmarkResults)
        if eval_job.done(f"benchmarks/{path.name}", record["digest"]) is not None:
          finished[path.name.removesuffix(".json")] = record
    for benchmark in benchmarks:
      key, digest = benchmark.name, digests[benchmark.name]
      if previous := finished.get(key):
        cuts = {cut["dimension"] for cut in previous.get("dimensions", ())}
        if previous["digest"] == digest and cuts.issuperset(vectors.dimensions):
          report(f"{key}: finished before")
        elif reason := benchmark.files.absence(root):
          report(f"{key}: finished before; its data is no longer present: {reason}")
        else:
          report(f"{key}: its data or dimensions have changed, so it runs again")
          del finished[key]

    def save(benchmark: suite.Benchmark, results: results_files.BenchmarkResults) -> None:
      results["digest"] = digests[benchmark.name]
      if benchmark.files.digest(root) != results["digest"]:
        raise errors.InputError(
          f"{benchmark.name}: its files have changed since they were read; rerun the same command"
        )
      with eval_job.part(f"benchmarks/{benchmark.name}.json", results["digest"]) as (path, _):
        path.write_bytes(msgspec.json.encode(results))

    results = suite.evaluate(
      encoder,
      benchmarks,
      root,
      name=name,
      seen=seen,
      report=report,
      vectors=vectors,
      finished=finished,
      save=save,
    )
    # The job does not record this file, because its content depends on the name of the encoder.
    content = msgspec.json.format(msgspec.json.encode(results), indent=1)
    outputs.write_bytes(eval_job.path(results_files.NAME), content)
    eval_job.finish()
  return results
