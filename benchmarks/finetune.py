"""Compares `vmsst.finetune` with the sentence-transformers trainer.

  python benchmarks/finetune.py --data=DATA --encoders all-MiniLM-L6-v2 multilingual-e5-small
  python benchmarks/finetune.py --data=DATA --encoders all-MiniLM-L6-v2 --objective=negatives

The encoders are sentence-transformers folders. If you omit --encoders, the encoder is a BERT with
random weights, 2 layers and width 256. Both trainers use the same rows in different orders, and the
same prompts and batch size. Texts have at most 128 tokens, and dropout is 0.1. The optimizer is
AdamW (weight decay 0.01, gradients clipped to norm 1); its learning rate rises for a tenth of the
steps and then falls along a cosine. --objective selects the rows and the loss, which has scale 20:

* `pairs`: translations from DATA/bitext_tatoeba between English and German, French, Russian,
  Turkish and Japanese, with the prompts "query: " and "passage: ". The loss is the in-batch softmax
  in both directions. The accuracy is the retrieval accuracy among 1,000 held-out pairs in both
  directions;
* `negatives`: the same pairs with three hard negatives each, mined by the encoder itself
  (`vmsst.hard_negatives`). The loss is the softmax over the texts and negatives of the batch;
* `scores`: the scored English and German pairs in DATA/stsb, with the CoSENT loss. The accuracy is
  Spearman's rank correlation on the dev pairs, times 100.

Each training run has its own process. The trainers take turns, with one round per seed. Prints one
JSON line per run, and a last line with the ratios of the medians, each trainer's mean accuracy and
its standard error over the seeds. Each run reports:

* `steps_per_second`: rate after the first --warm_up steps, including the compilation of batch
  shapes that occur later;
* `whole`: run time of the process in seconds, imports included; `first_step`: seconds until the
  first step is complete;
* `compile`: seconds that JAX spends on tracing, compiling and reading compiled programs;
* `evaluate`: seconds that vmsst spends on evaluating --evaluated held-out rows, before the first
  step and after the last step, compilation included;
* `peak_gb`: peak resident memory.
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
PROMPTS = ("query: ", "passage: ")
_SCALE = 20.0  # as in vmsst.finetune
_DEV = 200  # held-out pairs per language

Rows = list[dict[str, Any]]


def read_pairs(data: pathlib.Path, first: int, last: int) -> list[list[str]]:
  """Returns the pairs in rows `first` to `last` of each language, alternating the languages."""
  columns = []
  for code in LANGUAGES:
    path = data / "bitext_tatoeba" / f"{code}-eng.tsv.gz"
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as stream:
      rows = itertools.islice(stream, first, last)
      columns.append([row.rstrip("\n").split("\t")[:2] for row in rows])
  return [pair for row in zip(*columns, strict=False) for pair in row]


def read_scores(data: pathlib.Path, split: str) -> Rows:
  """Returns the pairs of an STS-B split, alternating English and German; scores are from 0 to 1."""
  rows = []
  for name in ("eng", "de.mt"):
    with gzip.open(data / "stsb" / f"stsb.{name}.tsv.gz", "rt", encoding="utf-8") as stream:
      fields = [line.rstrip("\n").split("\t") for line in stream]
    names = ("score", "sentence1", "sentence2")
    rows.append([dict(zip(names, row[4:], strict=True)) for row in fields if row[0] == split])
  return [
    {**row, "score": float(row["score"]) / 5} for pair in zip(*rows, strict=True) for row in pair
  ]


def training_rows(encoder: str, options: argparse.Namespace) -> tuple[Rows, Rows]:
  """Returns training rows and held-out rows."""
  if options.objective == "scores":
    return read_scores(options.data, "train"), read_scores(options.data, "dev")
  import vmsst

  count = options.steps * options.batch_size // len(LANGUAGES) + 1
  names = ("anchor", "positive")
  rows: Rows
  pairs, held_out = (read_pairs(options.data, *span) for span in ((_DEV, _DEV + count), (0, _DEV)))
  rows = [dict(zip(names, pair, strict=True)) for pair in pairs]
  if options.objective == "negatives":
    mined = vmsst.hard_negatives(vmsst.load(encoder), pairs, count=3)
    rows = [
      {
        "anchor": row["query"],
        "positive": row["pos"][0],
        **{f"negative_{number}": text for number, text in enumerate(row["neg"], 1)},
      }
      for row in mined
      if len(row["neg"]) == 3
    ]
  return rows, [dict(zip(names, pair, strict=True)) for pair in held_out]


def accuracy(encoder: Any, rows: Rows, objective: str) -> float:
  """Returns the retrieval accuracy in both directions, or the rank correlation, in percent."""
  import scipy.stats

  import vmsst

  *scores, sources, targets = zip(*(row.values() for row in rows), strict=True)
  if scores:
    vectors = [
      encoder.encode(list(texts), normalize_embeddings=True) for texts in (sources, targets)
    ]
    return 100 * scipy.stats.spearmanr((vectors[0] * vectors[1]).sum(-1), scores[0]).statistic
  vectors = [
    encoder.encode(list(texts), prompt=prompt)
    for texts, prompt in zip((sources, targets), PROMPTS, strict=True)
  ]
  return 100 * vmsst.translation_accuracy(*vectors)["average"]


def train_ours(folder: pathlib.Path, rows: Rows, dev: Rows, options: argparse.Namespace) -> Any:
  """Returns the tuned encoder, the step times, and the seconds of compilation and evaluation."""
  import jax

  import vmsst
  from vmsst.train import summaries

  times: dict[int, float] = {}
  compiling = [0.0]

  class Progress(summaries.Progress):
    def show(self, step: int, metrics: Any) -> None:
      times[step] = time.perf_counter()
      super().show(step, metrics)

  def listen(event: str, seconds: float, **labels: Any) -> None:
    if event.startswith("/jax/core/compile/"):
      compiling[0] += seconds

  summaries.Progress = Progress  # type: ignore[misc]
  jax.monitoring.register_event_duration_secs_listener(listen)
  tuned = vmsst.finetune(
    options.encoders[0],
    rows,
    output=folder,
    dev=dev[: options.evaluated] or None,
    objective="similarity" if options.objective == "scores" else "contrastive",
    prompts=None if options.objective == "scores" else PROMPTS,
    steps=options.steps,
    batch_size=options.batch_size,
    learning_rate=options.learning_rate,
    eval_every=options.steps,
    seed=options.seed,
  )
  metrics = map(json.loads, (folder / "train" / "metrics.jsonl").read_text().splitlines())
  evaluating = sum(row.get("timing/evaluate_seconds", 0) for row in metrics)
  return tuned, times, {"compile": round(compiling[0], 1), "evaluate": round(evaluating, 1)}


def train_theirs(folder: pathlib.Path, rows: Rows, dev: Rows, options: argparse.Namespace) -> Any:
  """Returns the tuned encoder, the step times, and {} for the other times in `train_ours`."""
  import datasets
  import sentence_transformers as st
  import transformers
  from sentence_transformers.sentence_transformer import losses

  del dev
  times: dict[int, float] = {}

  class Clock(transformers.TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
      times[state.global_step] = time.perf_counter()

  model = st.SentenceTransformer(options.encoders[0], device="cpu")
  model.max_seq_length = min(128, model.max_seq_length)
  loss = {
    "pairs": losses.MultipleNegativesSymmetricRankingLoss,
    "negatives": losses.MultipleNegativesRankingLoss,
    "scores": losses.CoSENTLoss,
  }[options.objective](model, scale=_SCALE)
  data = datasets.Dataset.from_list(rows)
  prompts = {}
  if options.objective != "scores":
    prompts = {name: PROMPTS[name != "anchor"] for name in data.column_names}
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
    prompts=prompts or None,
    seed=options.seed,
  )
  trainer = st.SentenceTransformerTrainer(
    model, arguments, train_dataset=data, loss=loss, callbacks=[Clock()]
  )
  trainer.train()
  return model, times, {}


VARIANTS = {"vmsst": train_ours, "sentence_transformers": train_theirs}


def measure_variant(options: argparse.Namespace) -> dict[str, Any]:
  """Returns the rate, times, memory and accuracy of one training run."""
  start = time.perf_counter()
  rows, dev = json.loads(options.rows.read_text(encoding="utf-8"))
  with tempfile.TemporaryDirectory() as folder:
    run = pathlib.Path(folder) / "run"
    tuned, times, phases = VARIANTS[options.variant](run, rows, dev, options)
    process_seconds, last = time.perf_counter() - start, max(times)
    peak = measure.resident_bytes(peak=True)
    score = accuracy(tuned, dev, options.objective)
  rate = (last - options.warm_up) / (times[last] - times[options.warm_up])
  return {
    "steps_per_second": round(rate, 4),
    "accuracy": round(score, 2),
    "whole": round(process_seconds, 1),
    "first_step": round(times[1] - start, 1),
    **phases,
    "peak_gb": round(peak / 1e9, 2),
  }


def compare(encoder: str, options: argparse.Namespace) -> dict[str, Any]:
  """Trains an encoder with both trainers in turns; returns ratios and accuracies."""
  import vmsst

  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "rows.json"
    rows = training_rows(encoder, options)
    path.write_text(json.dumps(rows), encoding="utf-8")
    before = accuracy(vmsst.load(encoder), rows[1], options.objective)
    names = (
      "data",
      "objective",
      "steps",
      "batch_size",
      "learning_rate",
      "warm_up",
      "evaluated",
    )
    shared = [f"--encoders={encoder}", *(f"--{name}={getattr(options, name)}" for name in names)]
    runs: dict[str, list[dict[str, Any]]] = {variant: [] for variant in VARIANTS}
    for seed in range(options.seeds):
      for variant, results in runs.items():
        arguments = [*shared, f"--rows={path}", f"--seed={seed}", f"--variant={variant}"]
        results.append(measure.in_own_process(__file__, arguments, variant, measure.HUGE_PAGES))
        labels = {"encoder": pathlib.Path(encoder).name, "variant": variant, "seed": seed}
        print(json.dumps({**labels, **results[-1]}), flush=True)

  def ratio(name: str) -> float:
    medians = [statistics.median(run[name] for run in results) for results in runs.values()]
    return round(medians[0] / medians[1], 3)

  accuracies: dict[str, Any] = {"before": round(before, 2)}
  for variant, results in runs.items():
    values = [run["accuracy"] for run in results]
    accuracies[variant] = {"mean": round(statistics.fmean(values), 2)}
    if len(values) > 1:
      error = statistics.stdev(values) / len(values) ** 0.5
      accuracies[variant]["standard_error"] = round(error, 2)
  return {
    "ratio": ratio("steps_per_second"),
    "ratio_of_whole": round(1 / ratio("whole"), 3),
    "ratio_of_peak": round(1 / ratio("peak_gb"), 3),
    "accuracy": accuracies,
    "gflops": measure.numpy_gflops(),
  }


def main() -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--data", type=pathlib.Path, required=True, help="with bitext_tatoeba/")
  parser.add_argument("--encoders", nargs="+", help="sentence-transformers folders")
  parser.add_argument("--objective", choices=("pairs", "negatives", "scores"), default="pairs")
  parser.add_argument("--steps", type=int, default=200)
  parser.add_argument("--warm_up", type=int, default=10, help="first steps, which are not counted")
  parser.add_argument("--batch_size", type=int, default=32)
  parser.add_argument("--learning_rate", type=float, default=2e-5)
  parser.add_argument("--seeds", type=int, default=1)
  parser.add_argument(
    "--evaluated",
    type=int,
    default=0,
    help="number of held-out rows that vmsst evaluates, to keep the best checkpoint (default: 0)",
  )
  parser.add_argument("--variant", choices=VARIANTS, help=argparse.SUPPRESS)
  parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
  parser.add_argument("--rows", type=pathlib.Path, help=argparse.SUPPRESS)
  parser.set_defaults(layers=2, width=256)
  options = parser.parse_args()
  if options.variant:
    print(json.dumps(measure_variant(options)))
    return
  with tempfile.TemporaryDirectory() as temporary:
    encoders = encode.given_encoders(options, pathlib.Path(temporary))
    ratios = {pathlib.Path(encoder).name: compare(encoder, options) for encoder in encoders}
  first = next(iter(ratios.values()))["ratio"]
  print(json.dumps({"benchmark": "finetune", "ratio": first, "encoders": ratios}))


if __name__ == "__main__":
  main()
