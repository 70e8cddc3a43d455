"""Measures dataset builds from OPUS releases: pairs per second of each stage, and memory.

  python benchmarks/opus_build.py                                  # 100,000 and 1,000,000 pairs
  python benchmarks/opus_build.py --sizes 10000000 --workers 1 2 4

The benchmark generates the releases: four corpora of German and English, in Moses zips, of made-up
words with the frequencies and sentence lengths of real text. One pair in five is in two corpora,
and one in a thousand is an evaluation sentence to exclude. Nothing is sampled: all remaining pairs
are written.

Prints one JSON line per size and number of workers. Each stage has `seconds`, `cpu_seconds` of all
processes, and input pairs per second of both. `process_mb` is the peak memory of the main process,
`worker_mb` that of any worker, and `content` the hash of the data, which does not depend on the
number of workers. Each build starts from nothing in its own process. The last line has the growth
of seconds and memory from the smallest to the largest size.
"""

import argparse
import json
import os
import pathlib
import resource
import tempfile
import time
import zipfile
from typing import Any

import measure
import numpy as np

CORPORA = ("Europarl", "GlobalVoices", "OpenSubtitles", "Tanzil")
STAGES = ("clean", "merge", "write")
_WORDS = 50_000
_PARTS = 5
_LETTERS = {"de": "eeenniisrrtahduläöüß", "en": "eeettaaooinnsshrdluy"}


def words(code: str, rng: np.random.Generator) -> np.ndarray:
  """Returns made-up words; frequent ones are short."""
  lengths = 2 + rng.poisson(np.linspace(1, 6, _WORDS))
  letters = rng.choice(list(_LETTERS[code]), lengths.sum())
  bounds = np.cumsum(lengths)[:-1]
  return np.array(["".join(word) for word in np.split(letters, bounds)], object)


def lines(vocabulary: np.ndarray, lengths: np.ndarray, rng: np.random.Generator) -> list[str]:
  """Returns sentences of the given lengths, with frequent words more often."""
  ranks = (_WORDS ** rng.random(lengths.sum())).astype(np.int64) - 1
  parts = np.split(vocabulary[ranks], np.cumsum(lengths)[:-1])
  return [" ".join(part) for part in parts]


def make_releases(root: pathlib.Path, pairs: int) -> list[str]:
  """Writes the releases to a folder and returns some of their sentences."""
  vocabularies = {code: words(code, np.random.default_rng(i)) for i, code in enumerate(_LETTERS)}
  held_out = []
  for place, corpus in enumerate(CORPORA):
    path = root / corpus / "v1" / "moses" / "de-en.txt.zip"
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
      for code, vocabulary in vocabularies.items():
        with archive.open(f"{corpus}.de-en.{code}", "w", force_zip64=True) as stream:
          for part in range(_PARTS):
            # The first part equals the second part of the previous corpus.
            rng = np.random.default_rng([place, part] if part else [(place - 1) % len(CORPORA), 1])
            count = pairs // len(CORPORA) // _PARTS
            lengths = 1 + rng.poisson(11, count)
            texts = lines(vocabulary, lengths, rng)
            stream.write("".join(f"{text}\n" for text in texts).encode())
            if code == "en":
              held_out += texts[::1000]
      archive.writestr("LICENSE", "not required: made-up words\n")
  return held_out


def cpu_seconds() -> float:
  """Returns the CPU seconds of this process and its finished children."""
  usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
  return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def measure_build(root: str, workers: int) -> dict[str, Any]:
  """Builds from the releases in a folder and returns times and memory."""
  from vmsst.opus import cleaning, decontamination, pipeline, recipes
  from vmsst.units import engines

  texts = pathlib.Path(root, "held_out.txt").read_text(encoding="utf-8").splitlines()
  held = decontamination.EvaluationSentences.of(("made-up", text) for text in texts)
  stages = {}

  class Timed(engines.Local):
    def work(self, title: str, units: Any) -> Any:
      start, cpu_start = time.perf_counter(), cpu_seconds()
      yield from super().work(title, units)
      stages[title] = {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": cpu_seconds() - cpu_start,
        "units": len(units),
      }

  recipe = recipes.Recipe(
    "made_up", unlisted=True, cleaning=cleaning.Cleaning(), validation=recipes.Validation(0.001)
  )
  with tempfile.TemporaryDirectory() as work:
    start = time.perf_counter()
    report = pipeline.build(recipe, os.path.join(root, "opus"), held, work, Timed(workers))
    seconds = time.perf_counter() - start
    work_bytes = sum(path.stat().st_size for path in pathlib.Path(work).rglob("*.*"))
  usage = {
    # Not from `resource`, whose peak includes the process before exec.
    "process_mb": measure.resident_bytes(peak=True) / 2**20,
    "worker_mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024,
  }
  return {
    "seconds": seconds,
    "stages": stages,
    "kept": sum(counts["kept"] for counts in report.merged.values()),
    **{name: round(value) for name, value in usage.items()},
    "work_mb": round(work_bytes / 1e6),
    "content": report.content,
  }


def line(pairs: int, workers: int, found: dict[str, Any]) -> dict[str, Any]:
  for stage in found["stages"].values():
    stage["pairs_per_second"] = round(pairs / stage["seconds"])
    stage["pairs_per_cpu_second"] = round(pairs / stage["cpu_seconds"])
    for name in ("seconds", "cpu_seconds"):
      stage[name] = round(stage[name], 2)
  found["seconds"] = round(found["seconds"], 2)
  head = {"benchmark": "opus_build", "pairs": pairs, "workers": workers, "cpus": os.cpu_count()}
  return {**head, **found}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument(
    "--sizes", type=int, nargs="+", default=[100_000, 1_000_000], help="pair counts"
  )
  parser.add_argument("--workers", type=int, nargs="+", default=[2], help="numbers of workers")
  parser.add_argument("--measure", help=argparse.SUPPRESS)
  options = parser.parse_args()
  if options.measure:
    print(json.dumps(measure_build(options.measure, *options.workers)))
    return
  all_lines = []
  for pairs in sorted(options.sizes):
    with tempfile.TemporaryDirectory() as root:
      held_out = make_releases(pathlib.Path(root, "opus"), pairs)
      pathlib.Path(root, "held_out.txt").write_text("\n".join(held_out), encoding="utf-8")
      for workers in options.workers:
        arguments = [f"--measure={root}", f"--workers={workers}"]
        found = measure.in_own_process(__file__, arguments, "the build")
        all_lines.append(line(pairs, workers, found))
        print(json.dumps(all_lines[-1]), flush=True)
  comparable = [found for found in all_lines if found["workers"] == options.workers[0]]
  first, last = comparable[0], comparable[-1]
  growth = {name: last[name] / first[name] for name in ("pairs", "seconds", "process_mb")}
  for stage in STAGES:
    spent = [found["stages"][stage]["cpu_seconds"] for found in (first, last)]
    growth[f"{stage}_cpu_seconds"] = spent[1] / spent[0]
  rounded = {name: round(value, 2) for name, value in growth.items()}
  print(json.dumps({"benchmark": "opus_build", "workers": first["workers"], "growth": rounded}))


if __name__ == "__main__":
  main()
