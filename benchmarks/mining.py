"""Compares margin mining of N x N unit vectors with a typical FAISS script.

  python benchmarks/mining.py                                   # requires faiss-cpu
  python benchmarks/mining.py --sizes 10000 20000 50000 100000 --plot=mining.svg  # and matplotlib

Half of the source vectors have a similar target vector. Variants:

* faiss: two searches in an exact index (IndexFlatIP), one per direction, on all GPUs if FAISS
  supports them (package faiss-gpu-cu12); a Python loop that scores the neighbors, and a second loop
  that selects the best free pairs;
* search: `vmsst.search.margins.margin_pairs`, which computes each similarity once;
* devices: as search, but with `vmsst.search.device_search` (only if requested);
* matmul: only the matmul of all sources with all targets, in blocks; a lower bound of the time.

Each measurement runs in its own process, and the variants take turns. Memory is the peak memory of
the process (Linux), including the results but not the vectors.

Prints one JSON line per variant and size, and a last line for the largest size. `ratio` is the
median time of faiss divided by the median time of search, and `memory_ratio` is the same ratio for
memory. Both are above 1 if search is better. `ratio_of_devices` is the time of faiss divided by the
time of devices. `agreement` is the share of faiss's pairs that search also selects.
`share_of_lower_bound` is the time of matmul divided by the time of search. `gflops` is the current
rate of NumPy's float32 matmuls. On a shared machine, `ratio_of_cpu_seconds` is more reliable than
`ratio`.
"""

import argparse
import importlib.metadata
import json
import pathlib
import platform
import re
import tempfile
from collections.abc import Callable
from typing import Any

import measure
import numpy as np

from vmsst.search import margins

BASELINE, OURS, LOWER_BOUND, DEVICES = "faiss", "search", "matmul", "devices"
FAISS_ON_GPUS = "faiss-gpu-cu12"
_BLOCK = 2048
_WARM_UP = 300


# --------------------------------------------------------------------------------------------
# The variants: functions of sources, targets and k that return the rows of the pairs, [2, P].


def with_faiss(source_ND, target_ND, k):
  import faiss

  def search(query_ND, base_ND):
    index = faiss.IndexFlatIP(base_ND.shape[1])
    if getattr(faiss, "get_num_gpus", int)():
      index = faiss.index_cpu_to_all_gpus(index)
    index.add(base_ND)
    return index.search(query_ND, k)

  score_NK, target_NK = search(source_ND, target_ND)
  mean_N = score_NK.mean(axis=1)
  score_MK, source_MK = search(target_ND, source_ND)
  mean_M = score_MK.mean(axis=1)

  def margins(vectors_ND, candidates_MD, neighbor_NK, mean_vectors, mean_candidates):
    scores = np.empty(neighbor_NK.shape)
    for i in range(neighbor_NK.shape[0]):
      for rank in range(neighbor_NK.shape[1]):
        j = neighbor_NK[i, rank]
        scores[i, rank] = vectors_ND[i].dot(candidates_MD[j]) / (
          (mean_vectors[i] + mean_candidates[j]) / 2
        )
    return scores

  margin_NK = margins(source_ND, target_ND, target_NK, mean_N, mean_M)
  margin_MK = margins(target_ND, source_ND, source_MK, mean_M, mean_N)
  row_N = np.arange(len(source_ND))
  best_N, best_M = margin_NK.argmax(axis=1), margin_MK.argmax(axis=1)
  sources = np.concatenate([row_N, source_MK[row_N, best_M]])
  targets = np.concatenate([target_NK[row_N, best_N], row_N])
  scores = np.concatenate([margin_NK.max(axis=1), margin_MK.max(axis=1)])
  used_sources, used_targets, pairs = set(), set(), []
  for row in np.argsort(-scores):
    source, target = sources[row], targets[row]
    if source not in used_sources and target not in used_targets:
      used_sources.add(source)
      used_targets.add(target)
      pairs.append((source, target))
  return np.array(pairs).T


def with_search(source_ND, target_ND, k):
  pairs = margins.margin_pairs(source_ND, target_ND, neighbors=k)
  return np.stack([pairs.source_P, pairs.target_P])


def with_devices(source_ND, target_ND, k):
  from vmsst.search import device_search

  pairs = margins.margin_pairs(
    source_ND, target_ND, neighbors=k, search=device_search.search_on_devices
  )
  return np.stack([pairs.source_P, pairs.target_P])


def matmul(source_ND, target_ND, _):
  buffer = np.empty(_BLOCK * _BLOCK, np.float32)
  for start in range(0, len(source_ND), _BLOCK):
    source_BD = source_ND[start : start + _BLOCK]
    for first in range(0, len(target_ND), _BLOCK):
      target_CD = target_ND[first : first + _BLOCK]
      size = len(source_BD) * len(target_CD)
      out = buffer[:size].reshape(len(source_BD), len(target_CD))
      np.matmul(source_BD, target_CD.T, out=out)
  return np.empty((2, 0), np.int64)


VARIANTS: dict[str, Callable[..., np.ndarray]] = {
  BASELINE: with_faiss,
  OURS: with_search,
  LOWER_BOUND: matmul,
  DEVICES: with_devices,
}


# --------------------------------------------------------------------------------------------
# One measurement


def make_sides(count: int, width: int) -> list[np.ndarray]:
  """Returns unit vectors. Each source in an even row has a similar target in a random row."""
  rng = np.random.default_rng(0)
  source_ND = rng.standard_normal((count, width), np.float32)
  target_ND = rng.standard_normal((count, width), np.float32)
  place_N = rng.permutation(count)
  target_ND[place_N[::2]] += source_ND[::2]
  for side_ND in (source_ND, target_ND):
    for start in range(0, count, _BLOCK):
      block_BD = side_ND[start : start + _BLOCK]
      block_BD /= np.linalg.norm(block_BD, axis=1, keepdims=True)
  return [source_ND, target_ND]


def measure_variant(options: argparse.Namespace) -> dict[str, Any]:
  """Returns the time and memory of a variant after a small warm-up run."""
  run = VARIANTS[options.measure]
  run(*make_sides(_WARM_UP, options.width), options.neighbors)
  vectors = make_sides(*options.sizes, options.width)
  measure.reset_peak()
  before = measure.resident_bytes()

  pairs = []
  times = measure.timed(lambda: pairs.append(run(*vectors, options.neighbors)), 1, warm_up=0)
  used = measure.resident_bytes(peak=True) - before
  np.save(options.pairs, pairs[0])
  device = f"cpu {processor()}"
  if options.measure == DEVICES:
    import jax

    device = f"{jax.device_count()} x {jax.devices()[0].device_kind}"
  return {**times, "bytes": used, "device": device}


def processor() -> str:
  with open("/proc/cpuinfo", encoding="utf-8") as file:
    match = re.search(r"model name\s*: (.*)", file.read())
  return match.group(1) if match else platform.machine()


# --------------------------------------------------------------------------------------------
# All measurements


def packages(variants: list[str]) -> list[str]:
  installed = {distribution.name for distribution in importlib.metadata.distributions()}
  faiss = FAISS_ON_GPUS if FAISS_ON_GPUS in installed else "faiss-cpu"
  return ["numpy"] + [faiss] * (BASELINE in variants) + ["jax"] * (DEVICES in variants)


def report(
  variant: str, size: int, runs: list[dict], lower_bound: float, options: argparse.Namespace
) -> dict[str, Any]:
  """Returns the result for a variant and size, for one JSON line."""
  seconds = measure.all_of(runs, "seconds")
  flops = 2 * size**2 * options.width * (2 if variant == BASELINE else 1)
  return {
    "benchmark": "mining",
    "variant": variant,
    "size": size,
    "width": options.width,
    "neighbors": options.neighbors,
    "device": runs[0]["device"],
    **measure.machine(*packages(options.variants)),
    "runs": len(runs),
    "seconds": measure.summary(seconds),
    "cpu_seconds": measure.summary(measure.all_of(runs, "cpu_seconds")),
    "additional_gb": round(max(run["bytes"] for run in runs) / 1e9, 3),
    "tflop": round(flops / 1e12, 3),
    "share_of_lower_bound": round(lower_bound / min(seconds), 3),
  }


def plot(lines: list[dict[str, Any]], path: str) -> None:
  import matplotlib

  matplotlib.use("Agg")
  from matplotlib import pyplot

  labels = {
    BASELINE: "two FAISS searches and a Python loop",
    OURS: "vmsst",
    LOWER_BOUND: "one matmul (lower bound)",
    DEVICES: "vmsst on devices",
  }
  figure, (time_axes, memory_axes) = pyplot.subplots(1, 2, figsize=(10, 4))
  for variant in dict.fromkeys(line["variant"] for line in lines):
    variant_lines = [line for line in lines if line["variant"] == variant]
    sizes = [line["size"] for line in variant_lines]
    seconds = [line["seconds"]["median"] for line in variant_lines]
    time_axes.plot(sizes, seconds, "o-", label=labels[variant])
    memory_axes.plot(
      sizes, [line["additional_gb"] for line in variant_lines], "o-", label=labels[variant]
    )
  time_axes.set(xscale="log", yscale="log", xlabel="vectors on each side", ylabel="seconds")
  memory_axes.set(xscale="log", xlabel="vectors on each side", ylabel="GB beyond the vectors")
  time_axes.legend()
  figure.suptitle(f"Margin mining, width {lines[0]['width']}, {lines[0]['cpus']} CPUs")
  figure.tight_layout()
  figure.savefig(path)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument(
    "--sizes", type=int, nargs="+", default=[50000], help="number of sources, and of targets"
  )
  parser.add_argument("--width", type=int, default=1024, help="vector width")
  parser.add_argument("--neighbors", type=int, default=4, help="neighbors per vector")
  parser.add_argument(
    "--variants", nargs="+", default=[BASELINE, OURS, LOWER_BOUND], choices=list(VARIANTS)
  )
  parser.add_argument("--rounds", type=int, default=3, help="processes per variant and size")
  parser.add_argument("--plot", help="output file for a figure of time and memory by size")
  parser.add_argument("--measure", choices=list(VARIANTS), help=argparse.SUPPRESS)
  parser.add_argument("--pairs", help=argparse.SUPPRESS)
  options = parser.parse_args()
  if options.measure:
    print(json.dumps(measure_variant(options)))
    return
  if options.rounds < 1 or min(options.sizes) < options.neighbors:
    parser.error("--rounds must be at least 1, and --sizes at least --neighbors")
  if missing := {BASELINE, OURS, LOWER_BOUND} - set(options.variants):
    parser.error(f"add {', '.join(sorted(missing))} to --variants; the report needs them")
  try:
    measure.machine(*packages(options.variants))
  except importlib.metadata.PackageNotFoundError as error:
    raise SystemExit(f"{error.name} is not installed; run pip install {error.name}") from None

  all_lines = []
  for size in sorted(options.sizes):
    common = [f"--sizes={size}", f"--width={options.width}", f"--neighbors={options.neighbors}"]
    with tempfile.TemporaryDirectory() as folder:
      paths = {variant: pathlib.Path(folder, f"{variant}.npy") for variant in options.variants}

      def run(variant: str, common=common, paths=paths) -> dict[str, Any]:
        arguments = [*common, f"--measure={variant}", f"--pairs={paths[variant]}"]
        return measure.in_own_process(__file__, arguments, variant)

      runs = measure.in_turns(options.variants, options.rounds, run)
      pairs = {
        variant: set(map(tuple, np.load(path).T.tolist())) for variant, path in paths.items()
      }
    bound = min(measure.all_of(runs[LOWER_BOUND], "seconds"))
    lines = {variant: report(variant, size, runs[variant], bound, options) for variant in runs}
    for line in lines.values():
      print(json.dumps(line), flush=True)
    all_lines += lines.values()
  if options.plot:
    plot(all_lines, options.plot)
  search, baseline = lines[OURS], lines[BASELINE]
  ratios = {
    "ratio": baseline["seconds"]["median"] / search["seconds"]["median"],
    "ratio_of_minima": baseline["seconds"]["min"] / search["seconds"]["min"],
    "ratio_of_cpu_seconds": baseline["cpu_seconds"]["median"] / search["cpu_seconds"]["median"],
    "memory_ratio": baseline["additional_gb"] / max(search["additional_gb"], 1e-3),
    "agreement": len(pairs[OURS] & pairs[BASELINE]) / len(pairs[BASELINE]),
  }
  if DEVICES in lines:
    ratios["ratio_of_devices"] = baseline["seconds"]["median"] / lines[DEVICES]["seconds"]["median"]
  rounded = {name: round(value, 4) for name, value in ratios.items()}
  rounded |= {"share_of_lower_bound": search["share_of_lower_bound"]}
  rounded |= {"gflops": measure.numpy_gflops()}
  print(json.dumps({"benchmark": "mining", "size": size, **rounded}))


if __name__ == "__main__":
  main()
