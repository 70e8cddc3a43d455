"""Trains all models of a table on the same data with several seeds, and writes the table.

  python benchmarks/compare.py objectives --data_root DATA --output_dir DIR
  python benchmarks/compare.py soft_contrastive --data_root DATA --output_dir DIR --teacher RUN

`COMPARISONS` lists the gin files to train. They must set the same data, sizes and steps. To change
these settings in all rows, use `--gin TRAIN_STEPS=8000 BATCH_SIZE=256`. DATA contains the folders
of the training files and of the evaluation sets (`comparison_tasks.SUITES`). Rerun an interrupted
command to resume it. It reuses the vocabulary, checkpoints and evaluations in DIR, and reports an
error if they were made with different settings, training files or teachers.

Runs are in DIR/<row>/seed_<n>. DIR/table.md and DIR/table.json are updated after each run. Scores
are multiplied by 100. Each score is a mean over the evaluation sets in languages seen in training,
except in the column "Tatoeba unseen", which uses the remaining sets. Intervals come from a paired
bootstrap over sentences. The row `untrained` is a baseline: the encoder of the first row with
random parameters. It can only match names, numbers and words shared between languages. The
comparison trains a vocabulary, unless the gin files set one.

If a comparison has a teacher, all models start from the teacher's parameters and use its
vocabulary. The teacher also mines the hard negatives for the rows that need them. The rows
`pretrained` and `released` are the teacher itself.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import comparison_tasks
import jax
import jax.numpy as jnp
from gin import config_parser

import vmsst
from vmsst import errors
from vmsst.data import readers, vocabularies
from vmsst.evaluation import suite
from vmsst.formats import encoder_json
from vmsst.formats import t5x as t5x_checkpoints
from vmsst.io import input_files
from vmsst.jobs import outputs

Bindings = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Row:
  """A row of the table.

  Attributes:
    label: Name in the table.
    gin_files: The gin files to train with, in order.
    variant: A gin file that includes a base file. The row adds the settings in which this file
      differs from the base file.
    bindings: Additional settings.
    baseline: Label of an extra row with the encoder before training (default: no extra row).
    teacher: Whether the model learns from the teacher's vectors.
    negatives: Whether the teacher mines hard negatives for the training pairs.
  """

  label: str
  gin_files: tuple[str, ...]
  variant: str | None = None
  bindings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  baseline: str | None = None
  teacher: bool = False
  negatives: bool = False


@dataclasses.dataclass(frozen=True)
class Comparison:
  """The rows and columns of a table.

  Attributes:
    rows: Rows by the name of their folder.
    suite: The columns, as a name in `comparison_tasks.SUITES`.
    same: Settings that must be equal in all rows.
    from_teacher: Gin macro that is set to the teacher, the encoder from which runs start (default:
      no teacher). Use INITIAL_CHECKPOINT_PATH if the teacher is a run, and ENCODER if it is a
      released encoder.
  """

  rows: Mapping[str, Row]
  suite: str
  same: tuple[str, ...] = (
    "PATTERNS",
    "VOCAB_SIZE",
    "MAX_LENGTH",
    "EMBED_DIM",
    "BATCH_SIZE",
    "TRAIN_STEPS",
  )
  from_teacher: str | None = None


_DEEPER = {"t5.T5Config.num_encoder_layers": 3}


def _ems_row(label: str, variant: str | None = None, **bindings: Any) -> Row:
  """Returns a row with the data, sizes and optimizer of EMS."""
  model = {"laser": "models/laser.gin", "bitranslation": "models/bitranslation.gin"}.get(variant)
  return Row(
    label,
    ("ems_small.gin", model) if model else ("ems_small.gin",),
    f"ems/{variant}.gin" if variant and not model else None,
    bindings={"EVAL_PERIOD": "%TRAIN_STEPS"} | bindings,
    baseline=None if variant else "untrained",
  )


_EMS_T5 = {
  "t5.T5Config.num_encoder_layers": "%NUM_LAYERS",
  "t5.T5Config.num_heads": 4,
  "t5.T5Config.head_dim": 64,
  "t5.T5Config.mlp_dim": 512,
}
_EMS_LASER = {
  "ENCODER": "@transformer.TransformerConfig()",
  "TRANSFORMER_DECODER": "@decoder/transformer.TransformerConfig()",
  "decoder/transformer.TransformerConfig.emb_dim": 608,  # 320 + 32 + 256
}


def _batches_row(label: str, *, grouped: bool) -> Row:
  steps = {"TRAIN_STEPS": 500, "EVAL_PERIOD": "%TRAIN_STEPS"}
  return Row(label, ("contrastive_small.gin",), bindings={"GROUP_BY_LENGTH": grouped, **steps})


def _objective(
  label: str, model: str, *, baseline: str | None = None, layer: str | None = None, **bindings: Any
) -> Row:
  objective_bindings: Bindings = {}
  if model == "contrastive":
    objective_bindings["DROPOUT_RATE"] = 0.0  # only two passes over the data
  elif model.startswith("vmsst"):
    objective_bindings["KL_ANNEAL_STEPS"] = 20000  # ten times the steps, as in section 6.4
  files = (f"models/{model}.gin", "runs/comparison.gin", *([layer] if layer else []))
  return Row(label, files, bindings=objective_bindings | bindings, baseline=baseline)


def _ablation(label: str, model: str = "vmsst", **bindings: Any) -> Row:
  """Returns a row as in the comparison "objectives", with a quarter of the steps."""
  annealing = {"KL_ANNEAL_STEPS": 5000} if model == "vmsst" else {}
  steps = {"TRAIN_STEPS": 500, "EVAL_PERIOD": "%TRAIN_STEPS"}
  return _objective(label, model, **steps, **annealing, **bindings)


def _four_languages(label: str, model: str, **bindings: Any) -> Row:
  patterns = [f"bitext_tatoeba/{code}-eng.tsv.gz" for code in ("ara", "spa", "tur")]
  return _ablation(label, model, PATTERNS=patterns, **bindings)


_FOUR_ENCODERS = ("ar", "de", "en", "es", "fr", "it", "pt", "ru", "tr")
_FULL = ("es", "en", "ar", "tr")


def _students() -> Iterator[tuple[str, Row]]:
  """Yields one row per loss and language pair, as in Table 2 of the soft contrastive paper."""
  hard = {"LABELS": "hard", "TCM": False, "TEACHER_DIM": None}
  muse = {
    "ENCODER": "@transformer.TransformerConfig()",
    "sentence_encoder.SentenceEncoder.head": False,
  }
  for code, name in {"fra": "en-fr", "rus": "en-ru", "deu": "en-de", "spa": "en-es"}.items():
    files = {"PATTERNS": [f"bitext_tatoeba/{code}-eng.tsv.gz"]}
    for key, label, model, features, bindings in (
      ("soft", "soft contrastive", "soft_contrastive", "teacher", {}),
      ("hard", "hard contrastive", "soft_contrastive", "teacher", hard),
      ("mse", "MSE", "distillation", "teacher", {}),
      ("muse", "mUSE", "hard_negatives", "hard_negatives", muse),
    ):
      yield (
        f"{name}/{key}",
        Row(
          f"{name}, {label}",
          (f"models/{model}.gin", "runs/student_comparison.gin", f"runs/{features}.gin"),
          bindings=files | bindings,
          baseline=f"{name}, pretrained" if key == "soft" else None,
          teacher=key in ("soft", "mse"),
          negatives=key == "muse",
        ),
      )


def _released() -> Iterator[tuple[str, Row]]:
  """Yields one row per loss and language pair. Training starts from a released encoder."""
  setting = {
    "starting_encoders.max_length.limit": 64,
    "BATCH_SIZE": 32,  # section 4.1
    "SCALE": 10.0,
    "LEARNING_RATE": 3e-5,  # as in the released code
    "EVAL_PERIOD": "%TRAIN_STEPS",
    "CHECKPOINT_PERIOD": "%TRAIN_STEPS",
    "KEEP_CHECKPOINTS": 1,
    "train.run_eval_before_training": False,
  }
  soft = {"OBJECTIVE": "soft_contrastive"}
  without_monolingual = {**soft, "finetuning.model.monolingual": False}
  for name, path in {
    "en-ko": "bitext_other/kor-eng.park_jhe.tsv.gz",
    "en-fr": "bitext_tatoeba/fra-eng.tsv.gz",
  }.items():
    for key, label, bindings in (
      ("soft", "soft, Priority + TCM", soft),
      ("priority", "soft, Priority", without_monolingual),
      ("average", "soft, Average", {**without_monolingual, "finetuning.model.labels": "average"}),
      ("hard", "hard contrastive", {}),
      ("mse", "MSE", {"OBJECTIVE": "distillation"}),
      ("muse", "mUSE", {"NUM_NEGATIVES": 3}),
    ):
      yield (
        f"{name}/{key}",
        Row(
          f"{name}, {label}",
          ("finetune.gin",),
          bindings={"PAIRS": [path], **setting, **bindings},
          baseline=f"{name}, released" if key == "soft" else None,
          teacher=key not in ("hard", "muse"),
          negatives=key == "muse",
        ),
      )


COMPARISONS = {
  # Table 1 of the VMSST paper.
  "objectives": Comparison(
    {
      "contrastive": _objective("CONTRASTIVE", "contrastive", baseline="untrained"),
      "bitranslation": _objective("BITRANSLATION", "bitranslation"),
      "vmsst_contrastive": _objective("VMSST CONTRASTIVE", "vmsst_contrastive"),
      "vmsst": _objective("VMSST", "vmsst"),
    },
    suite="objectives",
  ),
  # Table XIV of the EMS paper.
  "ems": Comparison(
    {
      "ems": _ems_row("EMS"),
      "no_contrastive": _ems_row("- L_cntrs", "no_contrastive"),
      "no_xtr": _ems_row("- L_XTR", "no_xtr"),
      "no_mlp": _ems_row("- L_cntrs_mlp", "no_mlp"),
      "labse_vanilla": _ems_row("LaBSE-EMS-vanilla", "labse_vanilla"),
      "labse_mlp": _ems_row("LaBSE-EMS-MLP", "labse_mlp"),
      "labse_joint": _ems_row("LaBSE-EMS-joint", "labse_joint"),
      "no_language_token": _ems_row("- langs tok", "no_language_token"),
      "shared_embedding": _ems_row("share L_emb params", "shared_embedding"),
      "ugt": _ems_row("UGT for XTR", "ugt", MASK_ID=2),  # a rare token: the unknown piece
      "laser": _ems_row("LASER (transformer)", "laser", **_EMS_LASER),
      "bitranslation": _ems_row("BITRANSLATION", "bitranslation", **_EMS_T5),
    },
    suite="ems",
  ),
  # Tables 4 and 6 of the VMSST paper, and variants between VMSST and BITRANSLATION.
  "ablations": Comparison(
    {
      "vmsst": _ablation("VMSST"),
      "factorized": _ablation("VMSST (fact.)", FACTORIZED=True),
      "4_encoders": _ablation(
        "VMSST (4 enc.)", layer="models/random_groups.gin", GROUP_CODES=_FOUR_ENCODERS
      ),
      "no_kl": _ablation("VMSST (no KL)", KL_WEIGHT=0.0),
      "1_encoder": _ablation("VMSST (1 enc.)", SINGLE_ENCODER=True),
      "no_encoder_language": _ablation("VMSST (no enc. l.e.)", ENCODER_LANGUAGE_EMBEDDING=False),
      "no_decoder_language": _ablation("VMSST (no dec. l.e.)", DECODER_LANGUAGE_EMBEDDING=False),
      "bitranslation": _ablation("BITRANSLATION", "bitranslation"),
      "no_elbo": _ablation("VMSST, no ELBO", ELBO_WEIGHT=0.0),
      "means": _ablation("VMSST, means for samples", ELBO_SAMPLE=False),
      "means_no_kl": _ablation("VMSST, means for samples, no KL", ELBO_SAMPLE=False, KL_WEIGHT=0.0),
      "3_layers/vmsst": _ablation("3 layers: VMSST", **_DEEPER),
      "3_layers/1_decoder_layer": _ablation("3 layers: 1L dec.", NUM_DECODER_LAYERS=1, **_DEEPER),
      "4_languages/contrastive": _four_languages("4 lang.: CONTRASTIVE", "contrastive"),
      "4_languages/bitranslation": _four_languages("4 lang.: BITRANSLATION", "bitranslation"),
      "4_languages/vmsst": _four_languages("4 lang.: VMSST", "vmsst"),
      "4_languages/full": _four_languages(
        "4 lang.: VMSST (full enc., full dec.)",
        "vmsst",
        layer="models/own_groups.gin",
        GROUP_CODES=_FULL,
      ),
    },
    suite="objectives",
    same=("VOCAB_SIZE", "MAX_LENGTH", "EMBED_DIM", "BATCH_SIZE", "TRAIN_STEPS"),
  ),
  # Table 2 of the soft contrastive paper.
  "soft_contrastive": Comparison(
    dict(_students()),
    suite="soft_contrastive",
    same=("VOCAB_SIZE", "MAX_LENGTH", "EMBED_DIM", "BATCH_SIZE", "TRAIN_STEPS", "LEARNING_RATE"),
    from_teacher="INITIAL_CHECKPOINT_PATH",
  ),
  # Tables 2, 4 and 5 of the soft contrastive paper, from a released encoder.
  "released": Comparison(
    dict(_released()),
    suite="soft_contrastive",
    same=("BATCH_SIZE", "TRAIN_STEPS", "LEARNING_RATE"),
    from_teacher="ENCODER",
  ),
  # Compares random batches, as in the papers, with batches of sentences of similar length.
  "batches": Comparison(
    {
      "random": _batches_row("CONTRASTIVE, random batches", grouped=False),
      "grouped": _batches_row("CONTRASTIVE, batches of similar length", grouped=True),
    },
    suite="batches",
  ),
}

Results = dict[str, dict[int, dict[str, Any]]]  # evaluations by table row and seed


# --------------------------------------------------------------------------------------------
# Gin files, read without executing them


class _AsText(config_parser.ParserDelegate):
  """Keeps references and macros as text."""

  def configurable_reference(self, name: str, evaluate: bool) -> str:
    return f"@{name}{'()' if evaluate else ''}"

  def macro(self, name: str) -> str:
    return f"%{name}"


def read_gin(path: pathlib.Path) -> Bindings:
  """Returns the bindings of a gin file and its includes; later bindings override earlier ones."""
  if not path.is_file():
    raise errors.InputError(f"gin file {path} does not exist")
  return parse_gin(path.read_text(encoding="utf-8"))


def parse_gin(text: str) -> Bindings:
  """Returns the bindings of gin text and its includes; later bindings override earlier ones."""
  bindings: Bindings = {}
  for statement in config_parser.ConfigParser(text, _AsText()):
    if isinstance(statement, config_parser.IncludeStatement):
      bindings |= read_gin(vmsst.gin_dir() / statement.filename)
    elif isinstance(statement, config_parser.BindingStatement):
      scoped = "/".join(filter(None, (statement.scope, statement.selector)))
      bindings[".".join(filter(None, (scoped, statement.arg_name)))] = statement.value
  return bindings


def read_row(row: Row, overrides: Bindings) -> Bindings:
  """Returns all bindings of a row: gin files, the row's settings and the command line."""
  bindings: Bindings = {}
  for name in row.gin_files:
    bindings |= read_gin(vmsst.gin_dir() / name)
  return bindings | row_overrides(row) | overrides


def row_overrides(row: Row) -> Bindings:
  """Returns the settings of a row in addition to its gin files."""
  if row.variant is None:
    return dict(row.bindings)
  path = vmsst.gin_dir() / row.variant
  base = next(
    statement.filename
    for statement in config_parser.ConfigParser(path.read_text(encoding="utf-8"), _AsText())
    if isinstance(statement, config_parser.IncludeStatement)
  )
  before = read_gin(vmsst.gin_dir() / base)
  changed = {x: y for x, y in read_gin(path).items() if x not in before or before[x] != y}
  return changed | dict(row.bindings)


def read_rows(comparison: Comparison, overrides: Bindings) -> dict[str, Bindings]:
  """Returns the bindings of all rows; raises InputError if the rows are not comparable."""
  bindings = {key: read_row(row, overrides) for key, row in comparison.rows.items()}
  for name in comparison.same:
    values = {key: row_bindings.get(name) for key, row_bindings in bindings.items()}
    if len({repr(value) for value in values.values()}) > 1:
      raise errors.InputError(
        f"the gin files differ in {name}: {values}; set the same value in all files"
      )
  return bindings


def training_files(bindings: Bindings, data_root: str) -> list[readers.BitextFile]:
  patterns = bindings.get("PATTERNS")
  if patterns == "%PAIRS":
    patterns = bindings["PAIRS"]
  if not isinstance(patterns, (list, tuple)):
    raise errors.InputError(f"the gin files set PATTERNS = {patterns!r}; it must be a list")
  return readers.find_bitext([os.path.join(data_root, pattern) for pattern in patterns])


# --------------------------------------------------------------------------------------------
# One run


def evaluate_run(
  run: pathlib.Path, data_root: str, columns: Mapping[str, comparison_tasks.Column], encoder: str
) -> dict[str, Any]:
  """Returns an encoder's scores, its scores for each sentence, and the run's times and settings.

  Args:
    run: Folder of a run, whose training files determine which languages were seen in training.
    data_root: Folder of the data.
    columns: The columns to compute.
    encoder: "trained" (the run's latest checkpoint), "untrained", or another encoder to load.
  """
  start = time.perf_counter()
  bindings = read_gin(run / "config.gin")
  training_languages = {
    x for file in training_files(bindings, data_root) for x in (file.source, file.target)
  }
  seen = suite.seen_test(training_languages)
  if encoder == "untrained":
    loaded = random_encoder(run, bindings["RANDOM_SEED"])
  else:
    loaded = vmsst.load(run if encoder == "trained" else encoder)
  sentences: comparison_tasks.Sentences = {}
  benchmarks = [
    comparison_tasks.recording(benchmark, seen, sentences)
    for benchmark in comparison_tasks.benchmarks_of(columns, seen)
  ]
  # The data of every benchmark must exist, even if the benchmark has no task in these languages.
  root = pathlib.Path(data_root)
  if absent := list(filter(None, (x.files.absence(root) for x in benchmarks))):
    raise errors.InputError("; ".join(absent))
  evaluation = suite.evaluate(loaded, benchmarks, root, name=encoder, seen=training_languages)
  results = {key: suite.collect_results(x) for key, x in evaluation["benchmarks"].items()}
  training = uptime(run) if encoder == "trained" else 0.0
  return {
    "scores": comparison_tasks.scores(columns, results, seen),
    "sentences": sentences,
    "seconds": {"training": training, "evaluation": time.perf_counter() - start},
    "settings": read_json(run / "settings.json"),
  }


def random_encoder(run: pathlib.Path, seed: int) -> Any:
  """Returns a run's encoder with newly initialized parameters."""
  loaded = encoder_json.load_encoder_assets(run)
  params = loaded.network.init(jax.random.key(seed), jnp.zeros((1, 1), jnp.int32))["params"]
  return vmsst.Encoder(loaded.network, params, loaded.vocabulary, max_length=loaded.max_length)


def uptime(run: pathlib.Path) -> float:
  """Returns the total wall time of all training processes, each until it last logged metrics."""
  total = last = 0.0
  for line in (run / "train" / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
    now = json.loads(line).get("timing/uptime", last)
    total += now - last if now >= last else now
    last = now
  return total


def check_settings(run: pathlib.Path, settings: dict[str, str]) -> None:
  """Saves the settings of a new run; raises InputError if an old run has different settings."""
  before = read_json(run / "settings.json")
  if before is None:
    outputs.write_json(run / "settings.json", settings)
  elif before != settings:
    names = sorted(x for x in {*before, *settings} if before.get(x) != settings.get(x))
    changes = "; ".join(f"{x} was {before.get(x)}, is {settings.get(x)}" for x in names[:5])
    raise errors.InputError(
      f"{run} has different settings ({len(names)} differ): {changes}; choose another "
      "--output_dir or delete that folder"
    )


def read_json(path: pathlib.Path) -> dict[str, Any] | None:
  return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


# --------------------------------------------------------------------------------------------
# All runs


def run_command(what: str, *command: str) -> None:
  environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": ""}  # Times include compilation.
  if code := subprocess.run([sys.executable, *command], env=environment, check=False).returncode:
    raise SystemExit(f"{what} failed (exit code {code}); rerun the same command to resume")


def make_vocabulary(path: pathlib.Path, bindings: Bindings, data_root: str) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  vocabularies.train_vocabulary(
    [name for file in training_files(bindings, data_root) for name in file.paths],
    str(path),
    size=bindings["VOCAB_SIZE"],
    lowercase=bindings.get("vocabularies.SentencePieceVocabulary.lowercase", False),
  )
  print(f"{path}: {bindings['VOCAB_SIZE']} pieces", flush=True)


def mine_negatives(teacher: str, folder: pathlib.Path, bindings: Bindings, data_root: str) -> str:
  """Mines hard negatives for the training pairs of a row; returns the output file."""
  (file,) = training_files(bindings, data_root)
  languages = [readers.language_code(language) for language in (file.source, file.target)]
  mined = str(folder / f"negatives.{'-'.join(languages)}.tsv")
  command = ["data", "mine-negatives", teacher, file.paths[0], mined, "--languages", *languages]
  if not os.path.exists(mined):  # All seeds share the file.
    run_command(f"mining of {folder}", "-m", "vmsst.cli", *command)
  return mined


def embed(teacher: str, folder: pathlib.Path, bindings: Bindings, data_root: str) -> str:
  """Embeds the training pairs of a row with the teacher; returns the output folder."""
  paths = [path for file in training_files(bindings, data_root) for path in file.paths]
  vectors = str(folder / "vectors")
  run_command(f"vectors of {folder}", "-m", "vmsst.cli", "data", "embed", teacher, vectors, *paths)
  return vectors


def train(gin_files: Iterable[str], run: pathlib.Path, overrides: Bindings) -> None:
  arguments = [f"--gin_file={name}" for name in gin_files]
  arguments += [f"--gin.{name}={as_gin(value)}" for name, value in overrides.items()]
  run_command(f"training of {run}", "-m", "vmsst.launch.main", "train", *arguments)


def as_gin(value: Any) -> str:
  """Returns a value in gin syntax; macros and references stay unchanged."""
  is_reference = isinstance(value, str) and value.startswith(("%", "@"))
  return value if is_reference else repr(value)


def compare(options: argparse.Namespace) -> None:
  """Runs all missing training runs and evaluations, and writes the table after each run."""
  output, data_root = pathlib.Path(options.output_dir).resolve(), os.path.abspath(options.data_root)
  comparison = COMPARISONS[options.comparison]
  keys = options.rows or [*comparison.rows]
  if unknown := set(keys) - set(comparison.rows):
    raise errors.InputError(
      f"unknown rows {sorted(unknown)}; choose from {', '.join(comparison.rows)}"
    )
  if (comparison.from_teacher is None) != (options.teacher is None):
    need = "requires" if comparison.from_teacher else "does not use"
    raise errors.InputError(f"{options.comparison} {need} --teacher")
  overrides = parse_gin("\n".join(options.gin))
  bindings_by_key = read_rows(comparison, overrides)
  locations: Bindings = {"DATA_ROOT": data_root}
  pieces = None
  if comparison.from_teacher == "ENCODER":
    locations["ENCODER"] = teacher = options.teacher
  elif comparison.from_teacher:
    teacher = os.path.abspath(options.teacher)
    locations["INITIAL_CHECKPOINT_PATH"] = str(t5x_checkpoints.find_checkpoint(teacher))
    pieces = pathlib.Path(teacher) / encoder_json.VOCABULARY_FILE
  elif "VOCABULARY_PATH" in (first := bindings_by_key[keys[0]]):
    pieces = output / "vocabulary.model"
    if not pieces.is_file():
      make_vocabulary(pieces, first, data_root)
    elif vocabularies.SentencePieceVocabulary(str(pieces)).size != first["VOCAB_SIZE"]:
      raise errors.InputError(f"{pieces} has a different VOCAB_SIZE; delete it")
  required = comparison_tasks.benchmarks_of(
    comparison_tasks.SUITES[comparison.suite], lambda x: True
  )
  root = pathlib.Path(data_root)
  inputs = {"evaluation data": ", ".join(x.files.digest(root) for x in required)}
  if comparison.from_teacher:
    jax.config.update("jax_platforms", "cpu")  # Leave the accelerator to subprocesses.
    inputs["teacher"] = vmsst.load(teacher).digest
  if pieces is not None:
    locations["VOCABULARY_PATH"] = str(pieces)
    inputs["vocabulary"] = input_files.sha256(pieces)
  results: Results = {}
  runs = [(seed, key) for seed in options.seeds for key in keys]
  for number, (seed, key) in enumerate(runs, 1):
    row, run = comparison.rows[key], output / key / f"seed_{seed}"
    print(f"[{number}/{len(runs)}] {row.label}, seed {seed}", flush=True)
    run_bindings = row_overrides(row)
    if row.teacher:
      run_bindings["TEACHER_VECTORS"] = embed(
        teacher, output / key, bindings_by_key[key], data_root
      )
    if row.negatives:
      run_bindings["PATTERNS"] = [
        mine_negatives(teacher, output / key, bindings_by_key[key], data_root)
      ]
    run_bindings |= overrides
    bindings = bindings_by_key[key] | run_bindings | {"RANDOM_SEED": seed}
    paths = [x for file in training_files(bindings_by_key[key], data_root) for x in file.paths]
    inputs["training files"] = ", ".join(map(input_files.sha256, paths))
    check_settings(run, {name: repr(x) for name, x in bindings.items()} | inputs)
    last = run / f"checkpoint_{bindings['TRAIN_STEPS']}" / "state"
    if not last.is_dir():
      run_bindings |= {name: bindings[name] for name in ("TRAIN_STEPS", "RANDOM_SEED")}
      train(row.gin_files, run, {"MODEL_DIR": str(run), **locations, **run_bindings})
      if not last.is_dir():  # Training exits with status 0 on SIGTERM.
        raise SystemExit(f"training of {run} was stopped; rerun the same command to resume")
    encoders = {"evaluation": "trained"}
    if row.baseline and (not comparison.from_teacher or seed == options.seeds[0]):
      encoders = {"baseline": teacher if comparison.from_teacher else "untrained", **encoders}
    for name, encoder in encoders.items():
      if not (run / f"{name}.json").is_file():
        arguments = [f"--data_root={data_root}", f"--evaluate={run}", f"--encoder={encoder}"]
        arguments.append(f"--result={name}.json")
        run_command(f"{name} of {run}", __file__, options.comparison, *arguments)
      label = row.label if name == "evaluation" else row.baseline
      results.setdefault(str(label), {})[seed] = read_json(run / f"{name}.json") or {}
    outputs.write_text(output / "table.md", markdown(results))
    outputs.write_json(output / "table.json", results)
  print(markdown(results))


def markdown(results: Results) -> str:
  """Returns tables of scores, differences and times: mean ± standard deviation over seeds.

  "-" marks a missing score, for example if no evaluation set is in the row's languages.
  """
  all_runs = [run for runs in results.values() for run in runs.values()]
  columns = [*dict.fromkeys(name for run in all_runs for name in run["scores"])]
  scores = [["x 100", "seeds", *columns]]
  seconds = [["seconds per run", "training", "evaluation"]]
  for label, runs in results.items():
    row_runs = list(runs.values())
    cells = (cell([run["scores"].get(name) for run in row_runs]) for name in columns)
    scores.append([label, ", ".join(map(str, runs)), *cells])
    seconds.append([label, *(cell([x["seconds"][y] for x in row_runs], 0) for y in seconds[0][1:])])
  tables = (x for x in (scores, differences(results), seconds) if len(x) > 1)
  return "\n\n".join(map(markdown_table, tables)) + "\n"


def differences(results: Results) -> list[list[str]]:
  """Returns differences from the first row that scored the same sentences, with 95% intervals."""
  scores = {
    label: [run["sentences"] for run in runs.values()]
    for label, runs in results.items()
    if all(run["seconds"]["training"] for run in runs.values())  # skips baselines
  }
  names = [*dict.fromkeys(name for seeds in scores.values() for name in seeds[0])]
  rows, firsts = [["difference", "from", *names]], {}
  for label, seeds in scores.items():
    first = firsts.setdefault(repr([(x, [*y]) for x, y in seeds[0].items()]), label)
    if label != first:
      pairs = (([x[name] for x in y] for y in (seeds, scores[first])) for name in names)
      cells = ("{:+.2f} [{:+.2f}, {:+.2f}]".format(*comparison_tasks.interval(*x)) for x in pairs)
      rows.append([label, first, *cells])
  return rows


def cell(values: Iterable[float | None], digits: int = 2) -> str:
  numbers = [value for value in values if value is not None]
  if not numbers:
    return "-"
  mean = f"{statistics.fmean(numbers):.{digits}f}"
  return mean if len(numbers) == 1 else f"{mean} ± {statistics.stdev(numbers):.{digits}f}"


def markdown_table(rows: list[list[str]]) -> str:
  head, *body = (f"| {' | '.join(row)} |" for row in rows)
  return "\n".join([head, "|---" * len(rows[0]) + "|", *body])


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("comparison", choices=COMPARISONS, help="table to write")
  parser.add_argument("--data_root", required=True, help="data folder")
  what = parser.add_mutually_exclusive_group(required=True)
  what.add_argument("--output_dir", help="output folder for runs and tables")
  what.add_argument("--evaluate", metavar="RUN", help="only evaluate this run")
  parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="default: 0 1 2")
  parser.add_argument("--rows", nargs="+", help="rows to train (default: all)")
  parser.add_argument(
    "--gin", nargs="+", default=[], metavar="NAME=VALUE", help="settings for all rows"
  )
  parser.add_argument("--teacher", metavar="ENCODER", help="encoder that students start from")
  parser.add_argument(
    "--encoder", default="trained", help="for --evaluate: trained, untrained or a run"
  )
  parser.add_argument("--result", default="evaluation.json", help="output file in RUN")
  options = parser.parse_args()
  try:
    if options.evaluate is None:
      compare(options)
      return
    run = pathlib.Path(options.evaluate)
    columns = comparison_tasks.SUITES[COMPARISONS[options.comparison].suite]
    result = evaluate_run(run, options.data_root, columns, options.encoder)
    outputs.write_json(run / options.result, result)
    print(json.dumps({name: result[name] for name in ("scores", "seconds")}))
  except errors.InputError as error:
    raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
  main()
