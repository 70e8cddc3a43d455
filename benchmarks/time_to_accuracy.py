"""Compares how long vmsst and sentence-transformers train until they reach a Tatoeba accuracy.

  python benchmarks/time_to_accuracy.py --data=../shared/data --folder=/runs/time_to_accuracy

The thresholds are accuracies of 60, 65 and 72 percent. Both libraries train an encoder with one
layer, width 512 and a vocabulary of 60,000 pieces. The data are the pairs in
`gin/contrastive_small.gin` (German, Spanish, French, Russian and Turkish with English), in batches
of 256 pairs of at most 32 tokens. Accuracy is the mean over these languages and both directions.

* ours: `t5x train` with a gin file (--gin_file), which drops pairs with more than 32 tokens;
* theirs: SentenceTransformerTrainer with MultipleNegativesRankingLoss (scale 20) on a new
  `transformers.BertModel`, with AdamW, a learning rate of 1e-3 and default options. It uses the
  same tokenizer and cuts sentences at 32 tokens.

The reported time is the training time since the first step, compilation included. It is
interpolated between the evaluations before and after the threshold is reached. Startup and
evaluation times are reported separately.

A variant stops after --minutes, or when it has passed all thresholds. Rerun an interrupted command
to resume it. Variants that have passed all thresholds are not repeated.

Prints one JSON line per variant. In the last line, `ratios` contains the time of theirs divided by
the time of ours for each threshold, and `ratio` is the smallest of these. `gflops` contains the
rates of NumPy's float32 matmuls, measured before each run.
"""

import argparse
import itertools
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import measure
import numpy as np

from vmsst.train import trainer

OURS, THEIRS = "ours", "theirs"
THRESHOLDS = (60.0, 65.0, 72.0)
LANGUAGES = ("deu", "spa", "fra", "rus", "tur")
PATTERNS = [
  f"bitext_{kind}/{code}-eng.tsv.gz" for kind in ("tatoeba", "news") for code in LANGUAGES
]
VOCABULARY = "vocab/ems_62languages_bpe_60000.model"
_LENGTH, _LAYERS, _WIDTH, _HEADS = 32, 1, 512, 8
_BATCH, _SCALE, _LEARNING_RATE = 256, 20.0, 1e-3
_BENCHMARKS = pathlib.Path(__file__).resolve().parent

Line = dict[str, Any]


def read_log(folder: pathlib.Path) -> list[Line]:
  path = folder / "log.jsonl"
  return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def add_line(folder: pathlib.Path, line: Line) -> None:
  with (folder / "log.jsonl").open("a", encoding="utf-8") as stream:
    stream.write(json.dumps(line) + "\n")


# --------------------------------------------------------------------------------------------
# Ours


class TimedTrainer(trainer.Trainer):
  """Appends `{"step", "seconds"}` to a file whenever training pauses.

  Args:
    *args: Arguments of `Trainer`.
    log: The file.
    limit: Seconds of training after which the run stops. A rerun resumes it.
    **kwargs: Options of `Trainer`.
  """

  def __init__(self, *args: Any, log: str, limit: float, **kwargs: Any):
    super().__init__(*args, **kwargs)
    self._log, self._limit, self._spent = pathlib.Path(log), limit, 0.0
    self._write({"started": time.time()})

  def train(self, batches: Any, num_steps: int, start_step: int, **kwargs: Any) -> Any:
    """Trains like `Trainer`, waits for the last step and logs the time."""
    began = time.perf_counter()
    done, metrics = super().train(batches, num_steps, start_step, **kwargs)
    seconds = time.perf_counter() - began
    self._spent += seconds
    self._write({"step": start_step + done, "seconds": seconds})
    self.stop_training |= self._spent > self._limit
    return done, metrics

  def _write(self, values: Mapping[str, float]) -> None:
    with self._log.open("a", encoding="utf-8") as stream:
      stream.write(json.dumps(values) + "\n")


class Reached(trainer.BaseAction):
  """Stops a run when its accuracy reaches a target.

  Args:
    target: Accuracy in percent.
  """

  def __init__(self, target: float):
    self._target = target

  def run(self, train_state: Any, metrics_by_task: Mapping[str, Mapping[str, Any]]) -> bool:
    """Returns whether the run should stop."""
    return any(float(x["accuracy/average"]) >= self._target for x in metrics_by_task.values())


GIN = """
from __gin__ import dynamic_registration
import __main__ as train_script
from t5x import trainer
from t5x import utils
import time_to_accuracy
ACTIONS = {{
    'TRAIN': [@trainer.TerminateOnNanAction()],
    'INFER_EVAL': [@time_to_accuracy.Reached()],
}}
time_to_accuracy.Reached.target = {target}
train_script.train.trainer_cls = @time_to_accuracy.TimedTrainer
time_to_accuracy.TimedTrainer:
  num_microbatches = %NUM_MICROBATCHES
  learning_rate_fn = @utils.create_learning_rate_scheduler()
  log = {log!r}
  limit = {limit}
"""


def run_ours(folder: pathlib.Path, options: argparse.Namespace) -> None:
  """Trains with `t5x train` for a number of minutes."""
  gin = folder / "timed.gin"
  limit = 60 * options.minutes
  gin.write_text(
    GIN.format(target=max(options.thresholds), log=str(folder / "log.jsonl"), limit=limit)
  )
  bindings = {
    "MODEL_DIR": str(folder / "run"),
    "DATA_ROOT": str(options.data.resolve()),
    "EVAL_PERIOD": options.period,
    "STATS_PERIOD": options.period,
  }
  command = [sys.executable, "-m", "vmsst.launch.main", "train", f"--gin_file={options.gin_file}"]
  command += [f"--gin_file={gin}", *(f"--gin.{name}={x!r}" for name, x in bindings.items())]
  folders = [str(_BENCHMARKS), *filter(None, [os.environ.get("PYTHONPATH")])]
  variables = {"PYTHONPATH": os.pathsep.join(folders), "JAX_COMPILATION_CACHE_DIR": ""}
  # Progress goes to stderr, because stdout contains the JSON lines.
  subprocess.run(command, env={**os.environ, **variables}, stdout=sys.__stderr__, check=True)


def evaluations_of_ours(folder: pathlib.Path) -> dict[int, Line]:
  """Returns the accuracy and duration of each evaluation, by step."""
  evaluations: dict[int, Line] = {}
  for path in (folder / "run" / "inference_eval").glob("*-metrics.jsonl"):
    for line in map(json.loads, path.read_text().splitlines()):
      evaluations[line["step"]] = {"accuracy": line["accuracy/average"]}
  for line in map(json.loads, (folder / "run/train/metrics.jsonl").read_text().splitlines()):
    if line["step"] in evaluations and "timing/evaluate_seconds" in line:
      evaluations[line["step"]]["evaluation"] = line["timing/evaluate_seconds"]
  return evaluations


# --------------------------------------------------------------------------------------------
# Theirs


def read_pairs(data: pathlib.Path) -> Iterator[tuple[str, str]]:
  """Yields the training pairs."""
  from vmsst.data import readers

  for bitext in readers.find_bitext([str(data / pattern) for pattern in PATTERNS]):
    yield from readers.read_pairs(bitext)


def tatoeba_accuracy(model: Any, data: pathlib.Path) -> float:
  """Returns the mean accuracy over languages and directions, in percent."""
  from vmsst.evaluation.benchmarks import bitext_retrieval

  accuracies = []
  paths = bitext_retrieval.tatoeba_files(data / "tatoeba")
  for code in LANGUAGES:
    task = bitext_retrieval.tatoeba_task(code, *paths[code])
    vectors = [model.encode(list(texts.texts), batch_size=_BATCH) for texts in task.text_sets]
    accuracies += [result.metrics["average"] for result in task.score(*vectors)]
  return float(np.mean(accuracies))


def make_their_model(folder: pathlib.Path, data: pathlib.Path) -> Any:
  """Returns a new SentenceTransformer; writes its tokenizer and BERT to a folder."""
  import sentence_transformers
  import tokenizers
  import torch
  import transformers
  from sentence_transformers.sentence_transformer import modules

  from vmsst.data import vocabularies
  from vmsst.formats import tokenizers as formats

  vocabulary = vocabularies.SentencePieceVocabulary(str(data / VOCABULARY), lowercase=True)
  exported = formats.export(vocabulary)
  transformers.PreTrainedTokenizerFast(
    tokenizer_object=tokenizers.Tokenizer.from_str(exported.content.decode()),
    model_max_length=_LENGTH,
    pad_token=exported.padding,
    unk_token=exported.unknown,
    eos_token=exported.eos,
  ).save_pretrained(folder)
  torch.manual_seed(0)
  config = transformers.BertConfig(
    vocab_size=vocabulary.size,
    hidden_size=_WIDTH,
    num_hidden_layers=_LAYERS,
    num_attention_heads=_HEADS,
    intermediate_size=4 * _WIDTH,
    max_position_embeddings=_LENGTH,
    pad_token_id=exported.padding_id,
  )
  transformers.BertModel(config).save_pretrained(folder)
  encoder = modules.Transformer(str(folder), max_seq_length=_LENGTH)
  return sentence_transformers.SentenceTransformer(
    modules=[encoder, modules.Pooling(_WIDTH, "mean")], device="cpu"
  )


def train_theirs(folder: pathlib.Path, options: argparse.Namespace) -> None:
  """Trains with SentenceTransformerTrainer for a number of minutes."""
  import datasets
  import sentence_transformers as st
  import torch
  import transformers
  from sentence_transformers.sentence_transformer import losses

  torch.set_num_threads(len(os.sched_getaffinity(0)))
  model = make_their_model(folder / "model", options.data)
  columns = zip(*read_pairs(options.data), strict=True)
  pairs = dict(zip(("anchor", "positive"), map(list, columns), strict=True))

  class Clock(transformers.TrainerCallback):
    """Evaluates periodically, and logs the training seconds between evaluations."""

    spent = 0.0

    def on_train_begin(self, args, state, control, **kwargs):
      add_line(folder, {"started": time.time()})
      self.began = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
      if state.global_step % options.period:
        return
      seconds = time.perf_counter() - self.began
      self.spent += seconds
      line = {"step": state.global_step, "seconds": seconds}
      began = time.perf_counter()
      model.eval()
      line["accuracy"] = tatoeba_accuracy(model, options.data)
      model.train()
      add_line(folder, {**line, "evaluation": time.perf_counter() - began})
      reached = line["accuracy"] >= max(options.thresholds)
      if reached or self.spent > 60 * options.minutes:
        control.should_training_stop = True
        control.should_save = not reached
      self.began = time.perf_counter()

  trainer = st.SentenceTransformerTrainer(
    model=model,
    args=st.SentenceTransformerTrainingArguments(
      output_dir=str(folder / "run"),
      per_device_train_batch_size=_BATCH,
      learning_rate=_LEARNING_RATE,
      logging_strategy="no",
      save_strategy="no",
      report_to="none",
      disable_tqdm=True,
      use_cpu=True,
      seed=0,
    ),
    train_dataset=datasets.Dataset.from_dict(pairs),
    loss=losses.MultipleNegativesRankingLoss(model, scale=_SCALE),
    callbacks=[Clock()],
  )
  trainer.train(resume_from_checkpoint=any((folder / "run").glob("checkpoint-*")))


def run_theirs(folder: pathlib.Path, options: argparse.Namespace) -> None:
  """Trains in a separate process."""
  arguments = [f"--data={options.data}", f"--folder={options.folder}", f"--measure={THEIRS}"]
  arguments += [f"--minutes={options.minutes}", f"--period={options.period}", "--thresholds"]
  arguments += [str(threshold) for threshold in options.thresholds]
  subprocess.run([sys.executable, __file__, *arguments], stdout=sys.__stderr__, check=True)


# --------------------------------------------------------------------------------------------
# Both


def history(variant: str, folder: pathlib.Path) -> list[Line]:
  """Returns each evaluation's step, training time so far, accuracy and duration."""
  lines = [line for line in read_log(folder) if "step" in line]
  if lines and variant == OURS:
    evaluated = evaluations_of_ours(folder)
    lines = [{**line, **evaluated.get(line["step"], {})} for line in lines]
  spent = itertools.accumulate(line["seconds"] for line in lines)
  both = zip(lines, spent, strict=True)
  return [{**line, "seconds": total} for line, total in both if "accuracy" in line]


def seconds_to(threshold: float, points: Sequence[Line]) -> float | None:
  """Returns the interpolated training seconds until an accuracy is reached, or None."""
  before = {"seconds": 0.0, "accuracy": 0.0}
  for point in points:
    if point["accuracy"] >= threshold:
      share = (threshold - before["accuracy"]) / (point["accuracy"] - before["accuracy"])
      return before["seconds"] + share * (point["seconds"] - before["seconds"])
    before = point
  return None


def report(variant: str, folder: pathlib.Path, options: argparse.Namespace) -> Line:
  """Returns the result of a variant for one JSON line."""
  points, log = history(variant, folder), read_log(folder)
  began = [line["began"] for line in log if "began" in line]
  started = [line["started"] for line in log if "started" in line]
  reached = {str(x): seconds_to(x, points) for x in options.thresholds}
  return {
    "benchmark": "time_to_accuracy",
    "variant": variant,
    "seconds": {name: x if x is None else round(x, 3) for name, x in reached.items()},
    "seconds_per_step": round(points[-1]["seconds"] / points[-1]["step"], 3) if points else None,
    "startup": round(started[0] - began[0], 1) if started else None,
    "evaluation": round(sum(point.get("evaluation", 0.0) for point in points), 1),
    "accuracy": {str(point["step"]): round(point["accuracy"], 2) for point in points},
    "gflops": [line["gflops"] for line in log if "gflops" in line],
  }


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  add = parser.add_argument
  add("--data", type=pathlib.Path, required=True, help="folder with bitext_*/, tatoeba/ and vocab/")
  add(
    "--folder",
    type=pathlib.Path,
    required=True,
    help="folder of the runs; existing runs are resumed",
  )
  add("--variants", nargs="+", default=[OURS, THEIRS], choices=[OURS, THEIRS], help="what to run")
  add("--gin_file", default="contrastive_short.gin", help="gin file for ours")
  add("--thresholds", type=float, nargs="+", default=THRESHOLDS, help="accuracies in percent")
  add("--period", type=int, default=20, help="steps between evaluations")
  add("--minutes", type=float, default=30.0, help="minutes of training per variant now")
  add("--measure", choices=[THEIRS], help=argparse.SUPPRESS)
  options = parser.parse_args()
  options.folder = options.folder.absolute()
  if options.measure:
    train_theirs(options.folder / THEIRS, options)
    return
  lines = {}
  for variant in options.variants:
    folder = options.folder / variant
    folder.mkdir(parents=True, exist_ok=True)
    if seconds_to(max(options.thresholds), history(variant, folder)) is None:
      add_line(folder, {"gflops": measure.numpy_gflops(), "began": time.time()})
      {OURS: run_ours, THEIRS: run_theirs}[variant](folder, options)
    lines[variant] = report(variant, folder, options)
    print(json.dumps(lines[variant]), flush=True)
  result: Line = {"benchmark": "time_to_accuracy", **measure.machine("jax")}
  if {OURS, THEIRS} <= lines.keys():
    ratios = {}
    for name, seconds in lines[OURS]["seconds"].items():
      peer_seconds = lines[THEIRS]["seconds"][name]
      ratios[name] = round(peer_seconds / seconds, 2) if seconds and peer_seconds else None
    result |= {"ratios": ratios, "ratio": None if None in ratios.values() else min(ratios.values())}
  print(json.dumps({**result, "gflops": measure.numpy_gflops()}))


if __name__ == "__main__":
  main()
