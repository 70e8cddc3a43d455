"""Compares document alignments with gold alignments, and with Vecalign on the same vectors.

  python benchmarks/alignment.py --data=DATA --encoder=intfloat/multilingual-e5-small \
    --vecalign=VECALIGN

DATA/alignment contains the texts `dev.de` and `dev.fr`, their gold alignment `dev.defr`, and
optionally more texts (--texts). If you omit --encoder, the vectors are counts of hashed character
4-grams. VECALIGN is a checkout of thompsonb/vecalign after `python setup.py build_ext --inplace`.
Variants:

* joined: the vector of a group of sentences is the encoder's vector of the joined sentences;
* summed: the vector of a group is the sum of the sentence vectors;
* vecalign: Vecalign with its defaults and the vectors of joined.

With --sentences, time and memory are measured for the variant summed, on two documents with this
number of sentences and random vectors [N, 384].

Prints one JSON line per length (--sentences) and per variant. `seconds` is the time of the
alignment, without encoding. Scores are computed over all texts together. In the last line, `ratio`
is the strict F1 of joined divided by the strict F1 of vecalign, and `speed_ratio` is the time of
vecalign divided by the time of joined. Without --vecalign, both ratios compare joined with summed.
"""

import argparse
import functools
import json
import pathlib
import random
import sys
import time
import zlib

import measure
import numpy as np

import vmsst
from vmsst.encoder import loading
from vmsst.evaluation.metrics import alignment
from vmsst.io import text_files
from vmsst.mining import alignment_files, document_alignment


class Hashing:
  """Maps texts to counts of character 4-grams."""

  def encode(self, texts):  # noqa: D102
    counts_ND = np.zeros((len(texts), 512), np.float32)
    for row, text in zip(counts_ND, texts, strict=True):
      for start in range(len(text) - 1):
        row[zlib.crc32(f" {text.lower()} "[start : start + 4].encode()) % 512] += 1
    return np.sqrt(counts_ND)


class Noisy:
  """Maps a number to a random vector, with new noise at each call."""

  def __init__(self, count):
    self.rng = np.random.default_rng(0)
    self.vector_ND = self.rng.standard_normal((count, 384), np.float32)

  def encode(self, texts):  # noqa: D102
    vectors_ND = self.vector_ND[[int(text) for text in texts]]
    return vectors_ND + self.rng.standard_normal(vectors_ND.shape, np.float32)


def measure_length(count):
  """Returns time and peak memory for two documents that each lack a tenth of the sentences."""
  encoder, is_present = Noisy(count), np.random.default_rng(1).random((2, count)) > 0.1
  numbers = [[str(n) for n in np.flatnonzero(present)] for present in is_present]
  groups = [document_alignment.group_vectors(texts, encoder, 7, summed=True) for texts in numbers]
  start = time.perf_counter()
  with_vmsst(groups, 8)
  return {
    "sentences": [*map(len, numbers)],
    "seconds": round(time.perf_counter() - start, 2),
    "peak_gb": round(measure.resident_bytes(peak=True) / 1e9, 3),
  }


def copies(groups):
  return [group._replace(vector_FD=group.vector_FD.copy()) for group in groups]


def with_vmsst(groups, max_size):
  document_alignment.center(*groups)
  return document_alignment.align_groups(*groups, max_size=max_size)


def with_vecalign(groups, max_size):
  from vecalign import dp_utils

  random.seed(42)
  np.random.seed(42)  # noqa: NPY002  # Vecalign uses the global generator.
  stack = dp_utils.vecalign(
    *(group.vector_FD[group.row_GN] for group in groups),
    dp_utils.make_alignment_types(max_size),
    del_percentile_frac=0.2,
    width_over2=-(-max_size // 2) + 5,
    max_size_full_dp=300,
    costs_sample_size=20_000,
    num_samps_for_norm=100,
  )
  return stack[0]["final_alignments"]


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--data", required=True, help="folder with the folder alignment")
  parser.add_argument("--texts", nargs="+", default=["dev"], help="names of texts, such as test0")
  parser.add_argument("--languages", nargs=2, default=["de", "fr"], help="source and target")
  parser.add_argument("--encoder", help="encoder (default: character 4-grams)")
  parser.add_argument("--prompt", help="prompt before texts (default: the encoder's prompt)")
  parser.add_argument("--vecalign", help="folder of Vecalign")
  parser.add_argument(
    "--max_size", type=int, default=8, help="maximum sentences of an aligned pair"
  )
  parser.add_argument("--repeats", type=int, default=3, help="repeats of each measurement")
  parser.add_argument("--sentences", type=int, nargs="*", default=[], help="lengths to measure")
  options = parser.parse_args()
  for count in options.sentences:
    print(json.dumps({"benchmark": "alignment", **measure_length(count)}), flush=True)
  encoder = Hashing()
  if options.encoder:
    encoder = loading.with_prompt(vmsst.load(options.encoder), options.prompt)
  variants = {"joined": with_vmsst, "summed": with_vmsst}
  if options.vecalign:
    sys.path.insert(0, options.vecalign)
    variants["vecalign"] = with_vecalign
  texts, gold = [], []
  for name in options.texts:
    path = pathlib.Path(options.data, "alignment", name)
    texts.append([[*text_files.read_lines(f"{path}.{code}")] for code in options.languages])
    gold.append(alignment_files.read_line_numbers(f"{path}.{''.join(options.languages)}"))
  groups = {
    summed: [
      [
        document_alignment.group_vectors(lines, encoder, options.max_size - 1, summed=summed)
        for lines in pair
      ]
      for pair in texts
    ]
    for summed in (False, True)
  }
  lines = {}
  for variant, align in variants.items():
    results, seconds = [], 0.0
    for pair_groups in groups[variant == "summed"]:
      run = functools.partial(align, max_size=options.max_size)
      times = measure.timed(
        lambda run=run, pair_groups=pair_groups: run(copies(pair_groups)), options.repeats
      )
      seconds += min(times["seconds"])
      results.append(run(copies(pair_groups)))
    scores = alignment.alignment_scores(gold, results)
    lines[variant] = {
      "benchmark": "alignment",
      "variant": variant,
      "encoder": options.encoder or "character 4-grams",
      "texts": options.texts,
      "sentences": [sum(len(pair[column]) for pair in texts) for column in (0, 1)],
      **measure.machine("numpy"),
      "seconds": round(seconds, 4),
      **{name: round(value, 4) for name, value in scores.items()},
    }
    print(json.dumps(lines[variant]), flush=True)
  joined, baseline = lines["joined"], lines["vecalign" if options.vecalign else "summed"]
  ratios = {
    "ratio": joined["strict_f1"] / baseline["strict_f1"],
    "speed_ratio": baseline["seconds"] / joined["seconds"],
  }
  rounded = {name: round(value, 3) for name, value in ratios.items()}
  print(json.dumps({"benchmark": "alignment", **rounded}))


if __name__ == "__main__":
  main()
