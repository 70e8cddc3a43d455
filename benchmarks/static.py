"""Compares an encoder with a static encoder distilled from it, before and after training on bitext.

  python benchmarks/static.py --data=DATA --encoder=multilingual-e5-small --folder=OUT

The texts for distillation and the pairs for training come from DATA/bitext_tatoeba, bitext_news and
bitext_other. Each batch comes from the files of one language. Rerun an interrupted command to
resume it.

Prints one JSON line per encoder:

* `seconds`: time of distillation or training, compilation included;
* `rate`: sentences per second from strings to vectors, the best of 3 calls with Tatoeba sentences
  in many languages;
* `megabytes`: size of the parameters;
* `averages`: averages of the benchmarks, x 100;
* `pairs`: F1 of margin mining, by language pair.

In the last line, the rate and the F1 of the trained encoder are divided by the rate and the F1 of
the original encoder.
"""

import argparse
import gzip
import json
import pathlib
import time
from typing import Any

import encode
import jax
import measure

import vmsst

FOLDERS = ("bitext_tatoeba", "bitext_news", "bitext_other")


def report(name: str, encoder: Any, seconds: float, options: argparse.Namespace) -> dict[str, Any]:
  """Prints and returns an encoder's rate, size and accuracy."""
  sentences = encode.read_sentences(options.data, options.sentences)
  times = measure.timed(lambda: encoder.encode(sentences), 3)["seconds"]
  numbers = sum(x.size for x in jax.tree.leaves(encoder._backend.params))
  results = vmsst.evaluate(encoder, vmsst.get_benchmarks(options.benchmarks), options.data)
  scores = results["benchmarks"]
  line = {
    "name": name,
    "seconds": round(seconds, 1),
    "rate": round(len(sentences) / min(times)),
    "megabytes": round(4 * numbers / 1e6),
    "averages": {benchmark: scores[benchmark]["summary"] for benchmark in scores},
    "pairs": {x["name"]: x["metrics"]["margin_f1"] for x in scores["mining"]["results"]},
  }
  print(json.dumps(line), flush=True)
  return line


def main() -> None:
  """Runs the comparison."""
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--data", type=pathlib.Path, required=True)
  parser.add_argument("--encoder", required=True)
  parser.add_argument("--folder", type=pathlib.Path, required=True)
  parser.add_argument("--benchmarks", nargs="+", default=["mining", "tatoeba", "stsb"])
  parser.add_argument("--sentences", type=int, default=20_000)
  parser.add_argument("--dimensions", type=int, default=256)
  parser.add_argument("--words", type=int, default=0)
  parser.add_argument("--steps", type=int, default=3_000)
  parser.add_argument("--batch_size", type=int, default=512)
  parser.add_argument("--learning_rate", type=float, default=1e-2)
  options = parser.parse_args()
  files: dict[str, list[pathlib.Path]] = {}
  for folder in FOLDERS:
    for file in sorted((options.data / folder).glob("*.tsv.gz")):
      files.setdefault(file.name[:3], []).append(file)
  first, start = vmsst.load(options.encoder), time.perf_counter()
  if not (options.folder / "distilled").exists():
    texts: list[str] = []
    for file in (file for of_language in files.values() for file in of_language):
      with gzip.open(file, "rt", encoding="utf-8", newline="\n") as stream:
        texts += (text for line in stream for text in line.rstrip("\n").split("\t")[:2])
    distilled = vmsst.distill_static(
      first, texts, dimensions=options.dimensions, words=options.words
    )
    distilled.save(options.folder / "distilled")
  distilled_time = time.perf_counter()
  report("distilled", vmsst.load(options.folder / "distilled"), distilled_time - start, options)
  start = time.perf_counter()
  encoder = vmsst.finetune(
    options.folder / "distilled",
    {code: vmsst.TrainingSet(of_language) for code, of_language in files.items()},
    options.folder / "trained",
    steps=options.steps,
    batch_size=options.batch_size,
    learning_rate=options.learning_rate,
    sampling_power=0.7,
    max_length=64,
    eval_every=options.steps,
  )
  trained = report("trained", encoder, time.perf_counter() - start, options)
  reference = report("first", first, 0.0, options)
  ratios = {pair: round(f1 / reference["pairs"][pair], 3) for pair, f1 in trained["pairs"].items()}
  print(json.dumps({"rate": round(trained["rate"] / reference["rate"], 1), "mining": ratios}))


if __name__ == "__main__":
  main()
