"""Distills a static encoder, trains it on bitext, and compares both with the encoder they are from.

  python benchmarks/static.py --data=DATA --encoder=multilingual-e5-small --folder=OUT

The texts for the distillation and the pairs for the training are DATA/bitext_tatoeba, bitext_news
and bitext_other. Prints one JSON line for each encoder: seconds to make it, sentences per second
(the best of 3 calls with sentences of DATA/tatoeba in many languages, from strings to vectors),
megabytes of parameters, and the results of benchmarks, x 100. The last line has the ratios of the
trained encoder to the first: of the rates, and of the F1 of mining by margin.
"""

import argparse
import gzip
import json
import pathlib
import time
from typing import Any

import encode
import measure

FOLDERS = ("bitext_tatoeba", "bitext_news", "bitext_other")
_BENCHMARKS = {"mining": "margin_f1", "tatoeba": "average", "xlsts": "average", "stsb": "average"}


def report(name: str, encoder: Any, seconds: float, options: argparse.Namespace) -> dict[str, Any]:
  """Returns rate, size and accuracy of an encoder, and prints them."""
  import jax

  import vmsst

  sentences = encode.read_sentences(options.data, options.sentences)
  times = measure.timed(lambda: encoder.encode(sentences), 3)["seconds"]
  numbers = sum(x.size for x in jax.tree.leaves(encoder._backend.params))
  found = vmsst.evaluate(encoder, vmsst.get_benchmarks(_BENCHMARKS), options.data)["benchmarks"]
  line = {
    "name": name,
    "seconds": round(seconds, 1),
    "sentences/s": round(len(sentences) / min(times)),
    "MB": round(4 * numbers / 1e6),
    **{benchmark: found[benchmark]["summary"] for benchmark in _BENCHMARKS},
  }
  print(json.dumps(line), flush=True)
  return line


def main() -> None:
  import vmsst

  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--data", type=pathlib.Path, required=True)
  parser.add_argument("--encoder", required=True)
  parser.add_argument("--folder", type=pathlib.Path, required=True)
  parser.add_argument("--sentences", type=int, default=50_000)
  parser.add_argument("--words", type=int, default=0)
  parser.add_argument("--dimensions", type=int, default=256)
  parser.add_argument("--steps", type=int, default=10_000)
  parser.add_argument("--batch_size", type=int, default=512)
  parser.add_argument("--learning_rate", type=float, default=1e-2)
  options = parser.parse_args()
  files = sorted(x for folder in FOLDERS for x in (options.data / folder).glob("*.tsv.gz"))
  texts = []
  for file in files:
    with gzip.open(file, "rt", encoding="utf-8", newline="\n") as stream:
      texts += (text for line in stream for text in line.rstrip("\n").split("\t")[:2])
  whole, start = vmsst.load(options.encoder), time.perf_counter()
  small = {"dimensions": options.dimensions, "words": options.words}
  distilled = vmsst.distill_static(whole, texts, **small)
  lines = [report("distilled", distilled, time.perf_counter() - start, options)]
  start = time.perf_counter()
  trained = vmsst.finetune(
    distilled,
    [str(file) for file in files],
    options.folder,
    steps=options.steps,
    batch_size=options.batch_size,
    learning_rate=options.learning_rate,
    eval_every=options.steps,
    max_length=64,
  )
  lines.append(report("trained", trained, time.perf_counter() - start, options))
  lines.append(report("encoder", whole, 0, options))
