"""Building a dataset from OPUS releases: pairs per second of each stage, and memory.

  python benchmarks/opus_build.py                                  # 100,000 and 1,000,000 pairs
  python benchmarks/opus_build.py --sizes 10000000 --workers 1 2 4

The releases are made for it: four corpora of German and English, in Moses zips, of made-up words
whose frequencies and sentence lengths are those of text, with one pair in five in two corpora. A
thousandth of the pairs is held out. Nothing is sampled: all that is left is written.

Prints a JSON line for each size and number of workers: for each stage `seconds`, `cpu_seconds` of
all processes, and input pairs per second of both; `process_mb`, the most memory of the process that
leads, and `worker_mb`, that of any worker; `content`, the hash of the data, which does not depend
on the number of workers. Each build is a process of its own and starts from nothing. The last line
is how seconds and memory grow from the smallest size to the largest.
"""

import argparse
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import time
import zipfile
from typing import Any

import numpy as np

CORPORA = ("Europarl", "GlobalVoices", "OpenSubtitles", "Tanzil")
STAGES = ("clean", "merge", "write")
_WORDS = 50_000
_PARTS = 5
_LETTERS = {"de": "eeenniisrrtahduläöüß", "en": "eeettaaooinnsshrdluy"}


def words(code: str, rng: np.random.Generator) -> np.ndarray:
  """Made-up words; the frequent ones are short."""
  lengths = 2 + rng.poisson(np.linspace(1, 6, _WORDS))
  letters = rng.choice(list(_LETTERS[code]), lengths.sum())
  bounds = np.cumsum(lengths)[:-1]
  return np.array(["".join(word) for word in np.split(letters, bounds)], object)


def lines(vocabulary: np.ndarray, lengths: np.ndarray, rng: np.random.Generator) -> list[str]:
  """Sentences of so many words, frequent words more often."""
  ranks = (_WORDS ** rng.random(lengths.sum())).astype(np.int64) - 1
  parts = np.split(vocabulary[ranks], np.cumsum(lengths)[:-1])
  return [" ".join(part) for part in parts]


def make_releases(root: pathlib.Path, pairs: int) -> list[str]:
  """Writes the releases below a folder; returns some of their sentences."""
  vocabularies = {code: words(code, np.random.default_rng(i)) for i, code in enumerate(_LETTERS)}
  held_out = []
  for place, corpus in enumerate(CORPORA):
    path = root / corpus / "v1" / "moses" / "de-en.txt.zip"
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
      for code, vocabulary in vocabularies.items():
        with archive.open(f"{corpus}.de-en.{code}", "w", force_zip64=True) as stream:
          for part in range(_PARTS):
            # The first part is the second of the corpus before.
            rng = np.random.default_rng([place, part] if part else [(place - 1) % len(CORPORA), 1])
            count = pairs // len(CORPORA) // _PARTS
            lengths = 1 + rng.poisson(11, count)
            texts = lines(vocabulary, lengths, rng)
            stream.write("".join(f"{text}\n" for text in texts).encode())
            if code == "en":
              held_out += texts[::1000]
      archive.writestr("LICENSE", "none needed: made-up words\n")
  return held_out


def cpu_seconds() -> float:
  """Of this process and of those that have ended."""
  usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
  return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def peak_mb() -> float:
  """Most memory of this process; resource's number starts from that of the process before."""
  with open("/proc/self/status", encoding="ascii") as file:
    return int(re.search(r"VmHWM:\s+(\d+) kB", file.read()).group(1)) / 1024


def measure(root: str, workers: int) -> dict[str, Any]:
  """Builds from the releases in a folder."""
  from vmsst.tasks.opus import cleaning, decontamination, pipeline, recipes, runner

  texts = pathlib.Path(root, "held_out.txt").read_text(encoding="utf-8").splitlines()
  held = decontamination.EvaluationSentences.of(("made-up", text) for text in texts)
  local = runner.local(workers, progress=False)
  stages = {}

  def timed(title: str, units: Any) -> None:
    start, cpu_start = time.perf_counter(), cpu_seconds()
    local(title, units)
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
    report = pipeline.build(recipe, os.path.join(root, "opus"), held, work, timed)
    seconds = time.perf_counter() - start
    work_bytes = sum(path.stat().st_size for path in pathlib.Path(work).rglob("*.*"))
  usage = {
    "process_mb": peak_mb(),
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
  parser.add_argument("--sizes", type=int, nargs="+", default=[100_000, 1_000_000], help="pairs")
  parser.add_argument("--workers", type=int, nargs="+", default=[2])
  parser.add_argument("--measure", help=argparse.SUPPRESS)
  options = parser.parse_args()
  if options.measure:
    print(json.dumps(measure(options.measure, *options.workers)))
    return
  all_lines = []
  for pairs in sorted(options.sizes):
    with tempfile.TemporaryDirectory() as root:
      held_out = make_releases(pathlib.Path(root, "opus"), pairs)
      pathlib.Path(root, "held_out.txt").write_text("\n".join(held_out), encoding="utf-8")
      for workers in options.workers:
        command = [sys.executable, __file__, f"--measure={root}", f"--workers={workers}"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
          raise SystemExit(f"the build failed (exit code {done.returncode})")
        all_lines.append(line(pairs, workers, json.loads(done.stdout.splitlines()[-1])))
        print(json.dumps(all_lines[-1]), flush=True)
  alike = [found for found in all_lines if found["workers"] == options.workers[0]]
  first, last = alike[0], alike[-1]
  growth = {name: last[name] / first[name] for name in ("pairs", "seconds", "process_mb")}
  for stage in STAGES:
    spent = [found["stages"][stage]["cpu_seconds"] for found in (first, last)]
    growth[f"{stage}_cpu_seconds"] = spent[1] / spent[0]
  rounded = {name: round(value, 2) for name, value in growth.items()}
  print(json.dumps({"benchmark": "opus_build", "workers": first["workers"], "growth": rounded}))


if __name__ == "__main__":
  main()
