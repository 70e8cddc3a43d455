"""Measures how costs grow with size, in six parts of the library, and draws them.

  python benchmarks/growth.py --data=../shared/data --plot=docs/figures/growth.svg

* input: one pass over N pairs of the sample corpus in training batches, streamed or in memory;
* opus: a dataset of `vmsst data build` from releases with N pairs, with a worker per core;
* embed: `vmsst embed` of N lines with a small encoder, including its start;
* search: 1,000 queries among N sentences, by exact search and in a default index (rescored), and
  building this index;
* mining: margin mining of N x N vectors;
* evaluation: `vmsst.evaluation.suite` on Tatoeba, N sentences, with the encoder of `embed`.

The parts are those of input_pipeline.py, opus_build.py, embed_lines.py, index_search.py, mining.py
and Tatoeba's files below `--data`. Each measurement runs in its own process. With `--results`, they
are also written to a file, and those in the file are not repeated.

Prints a JSON line per part and size, and one per curve: `slope` is the slope of a line through the
logarithms of sizes and seconds (1: linear), `last_slope` that between the two largest sizes, where
fixed costs count least, `expected` the slope by design and `reason` its reason. The last line has
all `slopes`; `ratio` is the smallest `expected` over `last_slope`: below 1, costs grow faster than
by design. `gflops` is the rate of NumPy's float32 matmuls now.
"""

import argparse
import dataclasses
import functools
import json
import math
import os
import pathlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import embed_lines
import index_search
import input_pipeline
import measure
import mining
import numpy as np
import opus_build

_BATCH, _LENGTH = 256, 32
_QUERIES, _WIDTH, _MINING_WIDTH, _NEIGHBORS = 1000, 256, 1024, 4
_TATOEBA = 1000  # Sentences per language of the sizes of `evaluation`.

Seconds = dict[str, float]
"""Seconds by name of the curve."""


def _timed(run: Callable[[], Any]) -> float:
  return measure.timed(run, 1, warm_up=0)["seconds"][0]


# --------------------------------------------------------------------------------------------
# The parts: functions of a size and a data folder


def training_input(size: int, _: pathlib.Path) -> Seconds:
  """Measures a pass over pairs of the sample corpus."""
  from vmsst.tasks import bitext, datasets, sample  # noqa: F401  # TensorFlow is not timed.

  seconds = {}
  with tempfile.TemporaryDirectory() as folder:
    options = argparse.Namespace(
      patterns=input_pipeline.write_sample(pathlib.Path(folder), size // len(input_pipeline.CODES)),
      vocabulary=sample.vocabulary_path(),
      lowercase=False,
      batch=_BATCH,
      length=_LENGTH,
    )
    for curve, name in (("streamed", "stream"), ("in memory", "memory")):

      def run(name: str = name) -> None:
        batches = input_pipeline.batches(name, options)
        for _ in range(size // _BATCH):
          next(batches)

      seconds[curve] = _timed(run)
  return seconds


def opus_dataset(size: int, _: pathlib.Path) -> Seconds:
  """Measures a dataset build."""
  with tempfile.TemporaryDirectory() as folder:
    held_out = opus_build.make_releases(pathlib.Path(folder, "opus"), size)
    pathlib.Path(folder, "held_out.txt").write_text("\n".join(held_out), encoding="utf-8")
    found = opus_build.measure_build(folder, os.cpu_count() or 1)
  return {"build": found["seconds"]}


def embedding(size: int, _: pathlib.Path) -> Seconds:
  """Measures `vmsst embed`."""
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    with (folder / "text.txt").open("w", encoding="utf-8") as stream:
      stream.writelines(f"{line}\n" for line in embed_lines.make_lines(size))
    embed_lines.make_encoder(folder / "encoder")
    return {"embed": embed_lines.embed(folder, folder / "text.txt", size, 0)[1]}


def search(size: int, data: pathlib.Path) -> Seconds:
  """Measures exact search, search in a default index and building it."""
  options = argparse.Namespace(
    width=_WIDTH, queries=_QUERIES, folder=None, indexes=[index_search.DEFAULT]
  )
  sentences = index_search.read_sentences(data)
  held_out, sentences = sentences[:_QUERIES], sentences[_QUERIES:]
  exact, rescored, *_ = index_search.search_lines(size, sentences, held_out, options)
  return {
    "exact": _QUERIES / exact["queries_per_s"],
    "index": _QUERIES / rescored["queries_per_s"],
    "building the index": rescored["build_s"],
  }


def mined(size: int, _: pathlib.Path) -> Seconds:
  """Measures exact mining."""
  sides = mining.make_sides(size, _MINING_WIDTH)
  return {"exact": _timed(lambda: mining.with_search(*sides, _NEIGHBORS))}


def evaluation(size: int, data: pathlib.Path) -> Seconds:
  """Measures the evaluation of Tatoeba, on the first languages with 1,000 sentences."""
  import vmsst
  from vmsst.evaluation import suite
  from vmsst.evaluation.benchmarks import tatoeba

  def read(root: pathlib.Path) -> list[suite.Task]:
    tasks = [task for task in tatoeba.read(root) if len(task.sides[0].texts) == _TATOEBA]
    return tasks[: size // (2 * _TATOEBA)]

  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    (folder / "encoder").mkdir()
    embed_lines.make_encoder(folder / "encoder")
    run = functools.partial(
      suite.evaluate,
      vmsst.load(folder / "encoder"),
      [dataclasses.replace(tatoeba.BENCHMARK, read=read)],
      data,
      folder / "out",
      name="small",
    )
    return {"Tatoeba": _timed(run)}


# --------------------------------------------------------------------------------------------
# All of them


@dataclasses.dataclass(frozen=True)
class Part:
  """A part whose cost is measured.

  Attributes:
    title: Title of its panel.
    unit: What its sizes count.
    sizes: The sizes.
    run: Maps a size and the data folder to seconds by curve.
    growth: Slope by design and its reason, by curve.
  """

  title: str
  unit: str
  sizes: tuple[int, ...]
  run: Callable[[int, pathlib.Path], Seconds]
  growth: Mapping[str, tuple[float, str]]


PARTS = {
  "input": Part(
    "Training input",
    "pairs",
    (35_000, 70_000, 140_000, 280_000),
    training_input,
    {
      "streamed": (1, "each pair is read and tokenized once"),
      "in memory": (1, "each pair is read and tokenized once"),
    },
  ),
  "opus": Part(
    "OPUS build",
    "pairs",
    (62_500, 125_000, 250_000, 500_000),
    opus_dataset,
    {"build": (1, "pairs are cleaned one by one and merged in sorted files")},
  ),
  "embed": Part(
    "Embedding",
    "lines",
    (25_000, 50_000, 100_000, 200_000),
    embedding,
    {"embed": (1, "lines are sorted by length within windows of constant size")},
  ),
  "search": Part(
    f"Search, {_QUERIES:,} queries",
    "sentences",
    (25_000, 50_000, 100_000),
    search,
    {
      "exact": (1, "each query is compared with all sentences"),
      "index": (0.75, "of 4 sqrt(N) lists, the square root of their number is searched"),
      "building the index": (1.5, "each sentence is compared with all of 4 sqrt(N) lists"),
    },
  ),
  "mining": Part(
    "Mining",
    "sentences per side",
    (6_250, 12_500, 25_000, 50_000),
    mined,
    {"exact": (2, "all sentences are compared with all others; indexes avoid this")},
  ),
  "evaluation": Part(
    "Evaluation",
    "sentences",
    (16_000, 32_000, 64_000, 128_000),
    evaluation,
    {"Tatoeba": (1, "sentences are embedded once; each language is scored alone")},
  ),
}


def slope(sizes: Sequence[int], seconds: Sequence[float]) -> float:
  """Returns the slope of a line through the logarithms."""
  return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def curves(
  lines: Sequence[Mapping[str, Any]],
) -> dict[tuple[str, str], tuple[list[int], list[float]]]:
  """Returns sizes and seconds of each part and curve, by size."""
  found: dict[tuple[str, str], tuple[list[int], list[float]]] = {}
  for line in sorted(lines, key=lambda line: line["size"]):
    for curve, seconds in line["seconds"].items():
      sizes, own = found.setdefault((line["part"], curve), ([], []))
      sizes.append(line["size"])
      own.append(seconds)
  return found


def fits(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
  """Returns the line of each curve with two or more sizes."""
  return [
    {
      "benchmark": "growth",
      "part": part,
      "curve": curve,
      "slope": round(slope(sizes, seconds), 2),
      "last_slope": round(slope(sizes[-2:], seconds[-2:]), 2),
      "expected": PARTS[part].growth[curve][0],
      "reason": PARTS[part].growth[curve][1],
    }
    for (part, curve), (sizes, seconds) in curves(lines).items()
    if len(sizes) > 1
  ]


def plot(lines: Sequence[Mapping[str, Any]], path: str) -> None:
  """Draws one panel per part."""
  import matplotlib

  matplotlib.use("Agg")
  from matplotlib import pyplot

  found = curves(lines)
  parts = [name for name in PARTS if any(name == part for part, _ in found)]
  shape = math.ceil(len(parts) / 3), min(3, len(parts))
  figure, panels = pyplot.subplots(*shape, figsize=(4.2 * shape[1], 3.4 * shape[0]), squeeze=False)
  for place, axes in enumerate(panels.flat):
    axes.set_visible(place < len(parts))
  for name, axes in zip(parts, panels.flat, strict=False):
    for (part, curve), (sizes, seconds) in found.items():
      if part == name:
        label = f"{curve}: slope {slope(sizes, seconds):.2f}" if len(sizes) > 1 else curve
        axes.plot(sizes, seconds, "o-", label=label)
    axes.set(
      title=PARTS[name].title,
      xlabel=PARTS[name].unit,
      ylabel="seconds",
      xscale="log",
      yscale="log",
    )
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
  figure.tight_layout()
  figure.savefig(path)


def measured(part: str, size: int, data: pathlib.Path) -> dict[str, Any]:
  """Returns the line of a part and size."""
  arguments = [f"--data={data}", f"--measure={part}", f"--sizes={size}"]
  seconds = measure.in_own_process(__file__, arguments, f"{part} at {size}")
  rounded = {curve: round(each, 3) for curve, each in seconds.items()}
  return {
    "benchmark": "growth",
    "part": part,
    "size": size,
    "unit": PARTS[part].unit,
    "seconds": rounded,
    "gflops": measure.numpy_gflops(),
  }


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  add = parser.add_argument
  add("--data", type=pathlib.Path, required=True, help="folder with bitext_*/*.tsv.gz and tatoeba/")
  add("--parts", nargs="+", default=list(PARTS), choices=PARTS, help="parts (default: all)")
  add(
    "--sizes", type=int, nargs="+", help="sizes of every part (default: three or four of its own)"
  )
  add("--results", type=pathlib.Path, help="file of measurements, which are not repeated")
  add("--plot", help="output file of the figure")
  add("--measure", choices=PARTS, help=argparse.SUPPRESS)
  options = parser.parse_args()
  if options.measure:
    print(json.dumps(PARTS[options.measure].run(*options.sizes, options.data)))
    return
  lines = []
  if options.results and options.results.exists():
    lines = [json.loads(line) for line in options.results.read_text("utf-8").splitlines()]
  for part in options.parts:
    for size in options.sizes or PARTS[part].sizes:
      if any((line["part"], line["size"]) == (part, size) for line in lines):
        continue
      lines.append(measured(part, size, options.data))
      print(json.dumps(lines[-1]), flush=True)
      if options.results:
        with options.results.open("a", encoding="utf-8") as stream:
          stream.write(json.dumps(lines[-1]) + "\n")
  found = fits(lines)
  for fit in found:
    print(json.dumps(fit))
  if options.plot:
    plot(lines, options.plot)
  result: dict[str, Any] = {
    "benchmark": "growth",
    "slopes": {f"{fit['part']}: {fit['curve']}": fit["slope"] for fit in found},
    "gflops": measure.numpy_gflops(),
    **measure.machine("numpy"),
  }
  if found:
    result["ratio"] = round(min(fit["expected"] / fit["last_slope"] for fit in found), 2)
  print(json.dumps(result))


if __name__ == "__main__":
  main()
