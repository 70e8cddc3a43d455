"""Compares approximate search in FAISS indexes with exact search.

  python benchmarks/index_search.py --data=../shared/data --sizes 100000           # needs faiss-cpu
  python benchmarks/index_search.py --data=../shared/data --sizes 100000 1000000 --plot=indexes.svg

The vectors represent real sentences, the sources and targets of the training bitexts in `--data`,
in random order. If more vectors are needed, the benchmark makes new sentences from the first half
of one sentence and the second half of the next. The encoder is latent semantic analysis. It hashes
byte 4-grams, weights their counts by inverse document frequency, and projects them on the leading
directions of 50,000 sentences. This encoder trains in seconds, and the spectrum of its vectors
decays as in neural encoders. Half of the queries are indexed sentences with one word dropped and
two words swapped. The other half are not in the index.

The benchmark compares exact search (`exact_search`) with indexes. Each index is measured twice:
with its own ranking, and with its candidates ranked by exact similarity ("rescored"). Exact search
and the index take turns.

Prints a JSON line per variant, a Markdown table and a last JSON line. `ratio` is the query rate of
the default index with rescoring, divided by the query rate of exact search. `memory_ratio` is the
size of the vectors divided by the size of the index. `gflops` is the current rate of NumPy's
float32 matmuls, which drops if other programs slow down the machine.
"""

import argparse
import gzip
import json
import pathlib
import random
import re
import tempfile
from collections.abc import Iterator
from typing import Any

import measure
import numpy as np
import scipy.sparse

from vmsst.cli import vector_jobs
from vmsst.io import array_files
from vmsst.jobs import job
from vmsst.search import exact_search, faiss_index, vector_store

_BUCKETS, _GRAM = 1 << 17, 4
_SAMPLE, _WINDOW = 50_000, 20_000
EXACT, DEFAULT, PQ = "exact", "1 bit", "IVF-PQ"
INDEXES = (DEFAULT, "int8", PQ)


# --------------------------------------------------------------------------------------------
# Sentences and vectors


def read_sentences(data: pathlib.Path) -> list[str]:
  """Returns the distinct sentences of the training bitexts, shuffled."""
  distinct: dict[str, None] = {}
  for path in sorted(data.glob("bitext_*/*.tsv.gz")):
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as stream:
      for line in stream:
        distinct |= dict.fromkeys(line.rstrip("\n").split("\t")[:2])
  if not distinct:
    raise SystemExit(f"{data}: no bitext_*/*.tsv.gz")
  sentences = list(distinct)
  random.Random(0).shuffle(sentences)
  return sentences


def extended(sentences: list[str], count: int) -> list[str]:
  """Returns `count` sentences: first `sentences`, then combinations of two of them."""
  result = sentences[:count]
  step = 1
  while len(result) < count:
    for row in range(min(len(sentences), count - len(result))):
      first, second = sentences[row].split(), sentences[row - step].split()
      result.append(" ".join(first[: (len(first) + 1) // 2] + second[len(second) // 2 :]))
    step += 1
  return result


def edited(sentence: str, rng: random.Random) -> str:
  """Swaps two neighboring words of a sentence and drops one word (short sentences: characters)."""
  words = sentence.split()
  glue = " " if len(words) > 3 else ""
  units = words if glue else list(sentence)
  if len(units) > 3:
    position = rng.randrange(len(units) - 1)
    units[position], units[position + 1] = units[position + 1], units[position]
    del units[rng.randrange(len(units))]
  return glue.join(units)


class GramEncoder:
  """Latent semantic analysis of hashed byte 4-grams."""

  def __init__(self, sample: list[str], width: int):
    """Trains on a sample with two rounds of subspace iteration."""
    counts = gram_counts(sample)
    seen = np.bincount(counts.indices, minlength=_BUCKETS)
    self._weight = np.log((1 + len(sample)) / (1 + seen)).astype(np.float32)
    weighted = self._weighted(counts)
    basis = np.random.default_rng(0).standard_normal((_BUCKETS, width), np.float32)
    for _ in range(2):
      basis, _ = np.linalg.qr(weighted.T @ (weighted @ basis))
    self._basis = np.ascontiguousarray(basis, np.float32)

  def __call__(self, texts: list[str]) -> np.ndarray:
    """Returns unit vectors."""
    return exact_search.unit_rows(self._weighted(gram_counts(texts)) @ self._basis)

  def _weighted(self, counts: Any) -> Any:
    counts = counts.copy()
    counts.data = np.sqrt(counts.data) * self._weight[counts.indices]
    return counts


def gram_counts(texts: list[str]) -> Any:
  """Returns the counts of hashed 4-grams in texts, as a sparse matrix."""
  content = "".join(f"  {text.lower()} \n" for text in texts).encode()
  byte_P = np.frombuffer(content, np.uint8).astype(np.uint64)
  row_P = np.cumsum(byte_P == 10) - (byte_P == 10)
  count = len(byte_P) - _GRAM + 1
  gram_P = sum(byte_P[i : count + i] << np.uint64(8 * i) for i in range(_GRAM))
  inside_P = row_P[:count] == row_P[_GRAM - 1 :]
  bucket_P = (gram_P * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - 17)
  entries = np.ones(int(inside_P.sum()), np.float32)
  positions = row_P[:count][inside_P], bucket_P[inside_P].astype(np.int64)
  matrix = scipy.sparse.csr_matrix((entries, positions), shape=(len(texts), _BUCKETS))
  matrix.sum_duplicates()
  return matrix


def store(encoder: GramEncoder, texts: list[str], folder: pathlib.Path, width: int) -> Any:
  """Writes text vectors to a folder, as `vmsst embed` does."""
  with job.Job(folder, inputs={}) as vectors_job:
    for number, start in enumerate(range(0, len(texts), _WINDOW)):
      vectors_ND = encoder(texts[start : start + _WINDOW])
      with vectors_job.part(vector_store.shard_name(number)) as (path, facts):
        array_files.write(path, vectors_ND.shape, [vectors_ND])
        facts["rows"] = len(vectors_ND)
    vectors_job.finish(dimension=width, dtype="float32")
  return vector_store.open_vectors(folder)


# --------------------------------------------------------------------------------------------
# Measurements


def factories(size: int, dimension: int) -> dict[str, str]:
  """Returns the FAISS factory strings of the indexes, by name."""
  default = faiss_index.default_factory(size, dimension)
  lists = max(64, int((re.search(r"IVF(\d+)", default) or [0, 0])[1]))
  alternatives = f"IVF{lists},SQ8", f"OPQ64,IVF{lists},PQ64"
  return dict(zip(INDEXES, (default, *alternatives), strict=True))


def recall(result_NK: np.ndarray, exact_NK: np.ndarray, k: int) -> float:
  """Returns the share of the k nearest neighbors that are among the first k results."""
  hits = (result_NK[:, :k, None] == exact_NK[:, None, :k]).any(axis=1)
  return round(float(hits.mean()), 4)


def search_lines(
  size: int, sentences: list[str], held_out: list[str], options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
  """Yields the results of all variants for one size."""
  rng = random.Random(1)
  base = extended(sentences, size)
  encoder = GramEncoder(sentences[:_SAMPLE], options.width)
  half = options.queries // 2
  texts = [edited(x, rng) for x in rng.sample(base, half)] + held_out[:half]
  query_ND = encoder(texts)
  with tempfile.TemporaryDirectory(dir=options.folder) as folder:
    vectors = store(encoder, base, pathlib.Path(folder, "vectors"), options.width)
    exact = exact_search.top_k(query_ND, vectors, 4)
    common = {"benchmark": "index_search", "size": size, "width": options.width}
    exact_times: list[float] = []
    lines = []
    for name, factory in factories(size, options.width).items():
      if name not in options.indexes:
        continue
      index_folder = pathlib.Path(folder, name)
      built = measure.timed(
        lambda index_folder=index_folder, factory=factory: vector_jobs.build_index(
          vectors, index_folder, factory=factory
        ),
        1,
        warm_up=0,
      )
      index = faiss_index.open_index(index_folder, vectors)
      results: dict[bool, Any] = {}

      def rescored(index=index, results=results):
        results[True] = index.nearest(query_ND, 4).index_NK

      def unrescored(index=index, results=results):
        results[False] = index.candidates(query_ND, 4)

      for run, is_rescored in ((rescored, True), (unrescored, False)):
        exact_times += measure.timed(
          lambda: exact_search.top_k(query_ND, vectors, 4), 1, warm_up=0
        )["seconds"]
        seconds = min(measure.timed(run, 3)["seconds"])
        near_NK = results[is_rescored]
        lines.append(
          {
            **common,
            "variant": name,
            "factory": factory,
            "rescored": is_rescored,
            "recall@1": recall(near_NK, exact.index_NK, 1),
            "recall@1_held_out": recall(near_NK[half:], exact.index_NK[half:], 1),
            "recall@4": recall(near_NK, exact.index_NK, 4),
            "queries_per_s": round(len(query_ND) / seconds, 1),
            "build_s": round(built["seconds"][0], 1),
            "build_cpu_s": round(built["cpu_seconds"][0], 1),
            "bytes": (index_folder / "index.faiss").stat().st_size,
          }
        )
      (index_folder / "index.faiss").unlink()
    yield {
      **common,
      "variant": EXACT,
      "factory": "",
      "rescored": False,
      "recall@1": 1.0,
      "recall@1_held_out": 1.0,
      "recall@4": 1.0,
      "queries_per_s": round(len(query_ND) / min(exact_times), 1),
      "build_s": 0.0,
      "build_cpu_s": 0.0,
      "bytes": 4 * size * options.width,
    }
    yield from lines


def table(lines: list[dict[str, Any]]) -> str:
  """Returns a Markdown table; docs/performance.md shows some of its rows."""
  head = "| vectors | index | rescored | recall@1 | recall@4 | queries/s | GB | build, s |"
  rows = [head, "|---|---|---|---|---|---|---|---|"]
  for line in lines:
    name = line["variant"] + (f", `{line['factory']}`" if line["factory"] else "")
    rows.append(
      f"| {line['size']:,} | {name} | {'yes' if line['rescored'] else 'no'} | "
      f"{line['recall@1']:.3f} | {line['recall@4']:.3f} | {line['queries_per_s']:,.0f} | "
      f"{line['bytes'] / 1e9:.3f} | {line['build_s']:.0f} |"
    )
  return "\n".join(rows)


def plot(lines: list[dict[str, Any]], path: str) -> None:
  import matplotlib

  matplotlib.use("Agg")
  from matplotlib import pyplot

  sizes = sorted({line["size"] for line in lines})
  figure, axes = pyplot.subplots(1, len(sizes), figsize=(5 * len(sizes), 4), squeeze=False)
  for axes_of_size, size in zip(axes[0], sizes, strict=True):
    for line in (line for line in lines if line["size"] == size):
      label = line["variant"] + (", rescored" if line["rescored"] else "")
      axes_of_size.plot(line["queries_per_s"], line["recall@1"], "o", label=label)
    axes_of_size.set(title=f"{size:,} vectors", xscale="log", xlabel="queries/s", ylabel="recall@1")
    axes_of_size.grid(alpha=0.3)
  axes[0][0].legend()
  figure.tight_layout()
  figure.savefig(path)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  add = parser.add_argument
  add("--data", type=pathlib.Path, required=True, help="folder with bitext_*/*.tsv.gz")
  add("--sizes", type=int, nargs="+", default=[100_000], help="vectors (default: 100000)")
  add("--width", type=int, default=512, help="vector width (default: 512)")
  add("--queries", type=int, default=1000, help="queries (default: 1000)")
  add("--indexes", nargs="+", default=INDEXES, choices=INDEXES, help="indexes to compare with")
  add("--folder", help="folder for vectors and indexes (default: a temporary folder)")
  add("--plot", help="output file for a figure of recall by queries/s")
  options = parser.parse_args()
  sentences = read_sentences(options.data)
  print(json.dumps({"sentences": len(sentences), **measure.machine("faiss-cpu", "numpy")}))
  held_out, sentences = sentences[: options.queries], sentences[options.queries :]
  lines = []
  for size in sorted(options.sizes):
    for line in search_lines(size, sentences, held_out, options):
      print(json.dumps(line), flush=True)
      lines.append(line)
  print(table(lines))
  if options.plot:
    plot(lines, options.plot)
  final_lines = [line for line in lines if line["size"] == max(options.sizes)]
  exact, default = final_lines[0], final_lines[1]
  result = {
    "benchmark": "index_search",
    "size": default["size"],
    "factory": default["factory"],
    "ratio": round(default["queries_per_s"] / exact["queries_per_s"], 2),
    "memory_ratio": round(exact["bytes"] / default["bytes"], 2),
    "recall@1": default["recall@1"],
    "recall@4": default["recall@4"],
    "gflops": measure.numpy_gflops(),
  }
  print(json.dumps(result))


if __name__ == "__main__":
  main()
