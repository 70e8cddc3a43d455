"""Compares `vmsst.finetune` with the trainer of sentence-transformers.

  python benchmarks/finetune.py --data=DATA --encoders all-MiniLM-L6-v2 multilingual-e5-small

An encoder is a folder of sentence-transformers; without --encoders, it is a BERT of random weights
with 2 layers of width 256. Both are trained on the same pairs of DATA/bitext_tatoeba (English with
German, French, Russian, Turkish and Japanese), with the in-batch softmax of both directions, scale
20, AdamW (weight decay 0.01, norms of gradients up to 1), a learning rate that rises for a tenth of
the steps and falls along a cosine, dropout 0.1 and at most 128 tokens. The order of the pairs is
not the same.

Each training runs in its own process, in turns. Prints one JSON line for each, and a last one with
the ratios of steps per second and the accuracies: those of retrieval among 1,000 other pairs in
both directions, before and after. Steps per second exclude the first --warm_up steps, a multiple of
10; shapes that are compiled later are included. `whole` are the seconds of the whole process,
imports included.
"""

import argparse
import gzip
import itertools
import json
import pathlib
import statistics
import tempfile
import time
from typing import Any

import encode
import measure

LANGUAGES = ("deu", "fra", "rus", "tur", "jpn")
_SCALE = 20.0  # as vmsst.finetune


def read_pairs(data: pathlib.Path, first: int, last: int) -> list[list[str]]:
  """Returns pairs of rows `first` to `last` of each language, in turns."""
  columns = []
  for code in LANGUAGES:
    path = data / "bitext_tatoeba" / f"{code}-eng.tsv.gz"
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as stream:
      rows = itertools.islice(stream, first, last)
      columns.append([row.rstrip("\n").split("\t")[:2] for row in rows])
  return [pair for row in zip(*columns, strict=False) for pair in row]


def accuracy(encoder: Any, pairs: list[list[str]]) -> float:
  """Returns the mean accuracy of both directions, in percent."""
  import vmsst

  sources, targets = (encoder.encode(list(side)) for side in zip(*pairs, strict=True))
  return round(100 * vmsst.translation_accuracy(sources, targets)["average"], 2)


def train_ours(folder: pathlib.Path, pairs: list[list[str]], options: argparse.Namespace) -> Any:
  """Returns the tuned encoder and the seconds at which steps were finished."""
  import vmsst

  tuned = vmsst.finetune(
    options.encoders[0],
    pairs,
    output=folder,
    steps=options.steps,
    batch_size=options.batch_size,
    learning_rate=options.learning_rate,
    eval_every=options.steps,
  )
  rows = map(json.loads, (folder / "train" / "metrics.jsonl").read_text().splitlines())
  times = {row["step"]: row["timing/uptime"] for row in rows if "timing/uptime" in row}
  return tuned, times


def train_theirs(folder: pathlib.Path, pairs: list[list[str]], options: argparse.Namespace) -> Any:
  """Returns the tuned encoder and the seconds at which steps were finished."""
  import datasets
  import sentence_transformers as st
  import transformers
  from sentence_transformers import losses

  class Clock(transformers.TrainerCallback):
    def __init__(self) -> None:
      self.times: dict[int, float] = {}

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
      self.times[state.global_step] = time.perf_counter()

  model, clock = st.SentenceTransformer(options.encoders[0], device="cpu"), Clock()
  model.max_seq_length = min(128, model.max_seq_length)
  sources, targets = zip(*pairs, strict=True)
  arguments = st.SentenceTransformerTrainingArguments(
    output_dir=str(folder),
    max_steps=options.steps,
    per_device_train_batch_size=options.batch_size,
    learning_rate=options.learning_rate,
    lr_scheduler_type="cosine",
    warmup_steps=options.steps // 10,
    weight_decay=0.01,
    max_grad_norm=1.0,
    use_cpu=True,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
  )
  trainer = st.SentenceTransformerTrainer(
    model,
    arguments,
    train_dataset=datasets.Dataset.from_dict({"anchor": sources, "positive": targets}),
    loss=losses.MultipleNegativesSymmetricRankingLoss(model, scale=_SCALE),
    callbacks=[clock],
  )
  trainer.train()
  return model, clock.times


VARIANTS = {"vmsst": train_ours, "sentence_transformers": train_theirs}


def measure_variant(options: argparse.Namespace) -> dict[str, Any]:
  """Returns rate and accuracy of one training."""
  start = time.perf_counter()
  count = options.steps * options.batch_size // len(LANGUAGES) + 1
  pairs = read_pairs(options.data, 200, 200 + count)
  with tempfile.TemporaryDirectory() as folder:
    tuned, times = VARIANTS[options.variant](pathlib.Path(folder) / "run", pairs, options)
    first, last = options.warm_up, max(times)
    rate = (last - first) / (times[last] - times[first])
    whole = time.perf_counter() - start
    found = accuracy(tuned, read_pairs(options.data, 0, 200))
  return {"steps_per_second": round(rate, 4), "accuracy": found, "whole": round(whole, 1)}


def compare(encoder: str, options: argparse.Namespace) -> dict[str, Any]:
  """Trains an encoder with both in turns, and returns their ratio and accuracies."""
  import vmsst

  before = accuracy(vmsst.load(encoder), read_pairs(options.data, 0, 200))
  names = ("data", "steps", "batch_size", "learning_rate", "warm_up")
  shared = [f"--encoders={encoder}", *(f"--{name}={getattr(options, name)}" for name in names)]

  def run(variant: str) -> dict[str, Any]:
    arguments = [*shared, f"--variant={variant}"]
    found = measure.in_own_process(__file__, arguments, variant, measure.HUGE_PAGES)
    print(json.dumps({"encoder": pathlib.Path(encoder).name, "variant": variant, **found}))
    return found

  runs = measure.in_turns(VARIANTS, options.rounds, run)
  ours, theirs = (
    {key: statistics.median(each[key] for each in own) for key in own[0]} for own in runs.values()
  )
  return {
    "ratio": round(ours["steps_per_second"] / theirs["steps_per_second"], 3),
    "ratio_of_whole": round(theirs["whole"] / ours["whole"], 3),
    "accuracy": {"before": before, "ours": ours["accuracy"], "theirs": theirs["accuracy"]},
    "gflops": measure.numpy_gflops(),
  }


def main() -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--data", type=pathlib.Path, required=True, help="with bitext_tatoeba/")
  parser.add_argument("--encoders", nargs="+", help="folders of sentence-transformers")
  parser.add_argument("--steps", type=int, default=200)
  parser.add_argument("--warm_up", type=int, default=10, help="steps that are not counted")
  parser.add_argument("--batch_size", type=int, default=32)
  parser.add_argument("--learning_rate", type=float, default=2e-5)
  parser.add_argument("--rounds", type=int, default=1)
  parser.add_argument("--variant", choices=VARIANTS, help=argparse.SUPPRESS)
  parser.set_defaults(layers=2, width=256)
  options = parser.parse_args()
  if options.variant:
    print(json.dumps(measure_variant(options)))
    return
  with tempfile.TemporaryDirectory() as temporary:
    encoders = encode.given_encoders(options, pathlib.Path(temporary))
    ratios = {pathlib.Path(encoder).name: compare(encoder, options) for encoder in encoders}
  print(json.dumps({"benchmark": "finetune", "encoders": ratios}))


if __name__ == "__main__":
  main()
