"""Fine-tunes an encoder on pairs: `gin/finetune.gin` from Python and the command line."""

import contextlib
import json
import os
import pathlib
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Literal, cast

from absl import logging

from vmsst import errors, storage
from vmsst import languages as languages_lib
from vmsst.checkpoints import t5x
from vmsst.data import derived_files, formats, readers, teacher_vectors
from vmsst.encoder import encoding, file_embedding, loading
from vmsst.encoder.encoder import Encoder
from vmsst.io import checksums, input_files, stored_settings
from vmsst.jobs import atomic_files, base, work_folders
from vmsst.launch import main

Objective = Literal["contrastive", "distillation", "soft_contrastive", "ems"]
File = str | os.PathLike[str]
Pairs = File | Sequence[File] | Iterable[Sequence[str] | Mapping[str, str]]

_MODELS = {
  "contrastive": "@contrastive.ContrastiveModel()",
  "hard_negatives": "@hard_negatives.HardNegativesModel()",
  "distillation": "@distillation.DistillationModel()",
  "soft_contrastive": "@soft_contrastive.SoftContrastiveModel()",
  "ems": "@ems.EmsModel()",
}
_SETTINGS = "finetune.json"
_FREE = {"output", "steps", "patience", "slices"}
"""Arguments that may change when a run resumes."""
_LONGEST = 128  # as in finetune.gin
_TOKEN_TABLE = "token_embedder/.*"


def finetune(
  encoder: str | os.PathLike[str] | Encoder,
  pairs: Pairs,
  *,
  output: str | os.PathLike[str],
  dev: Pairs | None = None,
  objective: Objective = "contrastive",
  negatives: int = 0,
  teacher: str | os.PathLike[str] | None = None,
  languages: tuple[str, str] = ("und", "und"),
  steps: int = 500,
  batch_size: int = 64,
  learning_rate: float = 2e-5,
  max_length: int | None = None,
  eval_every: int = 100,
  patience: int | None = None,
  matryoshka_dims: Sequence[int] = (),
  slices: int = 1,
  freeze_tokens: bool = False,
  seed: int = 0,
  gin: Mapping[str, Any] | None = None,
) -> Encoder:
  """Fine-tunes an encoder on pairs of texts; returns the tuned encoder.

  The training is that of `t5x train --gin_file=finetune.gin`, which has more options: AdamW, with
  a learning rate that rises for a tenth of the steps and falls to 0. Repeat an interrupted call to
  resume it; `steps`, `patience` and `slices` may then differ. A call clears the program's own Gin
  configuration.

  Args:
    encoder: What `vmsst.load` opens, or an encoder that it or `Encoder.trim` has returned.
    pairs: A TSV or JSONL file, a list of files, or pairs of texts, such as a Hugging Face dataset.
      A pair may have hard negatives as further texts. The fields of JSONL and of dictionaries may
      have any names; the first pair sets their order. If `languages` are given, their codes are the
      names. Scores that `vmsst mine` writes before each pair are skipped.
    output: Folder of the run, new or of an earlier call, for `vmsst.load`, `vmsst export` and
      `vmsst eval`. `report.md` has its results, `config.gin` all options.
    dev: Other pairs, as `pairs`. The accuracy of retrieval among them, in both directions, is
      shown before the first step and every `eval_every` steps, and the checkpoint with the best is
      kept. None: the last checkpoint is the result.
    objective: "contrastive": a text must be more similar to its own partner than to those of the
      batch; "soft_contrastive": similarities must match the teacher's (Park et al. 2024);
      "distillation": the vectors of both sides must match the teacher's vector of the first
      (Reimers and Gurevych 2020); "ems": the vector of a text must also predict the tokens of its
      translation (Mao et al. 2024), for encoders with mean pooling.
    negatives: Number of hard negatives of each pair; for "contrastive" only.
    teacher: What `vmsst.load` opens, to embed the texts of all pairs first, into
      `output`/teacher; or a folder of vectors that `vmsst data embed` has written.
    languages: Codes of the two sides; they name the metrics. If omitted, the name of the file of
      `dev` does (`dev.de-en.tsv`).
    steps: Training steps.
    batch_size: Pairs in a batch.
    learning_rate: The highest learning rate.
    max_length: Tokens of a text in training and later; None: at most 128.
    eval_every: Steps between evaluations and checkpoints.
    patience: Stop after this many evaluations without improvement; None: never.
    matryoshka_dims: Also train vectors cut to these dimensions.
    slices: Slices of a batch, for gradient caching: the memory of one slice, the same gradient.
    freeze_tokens: Whether to keep the token table, most of a multilingual encoder's parameters.
    seed: Seed of dropout and of the order of the pairs.
    gin: Further macros of `finetune.gin`, such as {"SCALE": 50.0}.

  Raises:
    InputError: a file, an option or the encoder cannot be used, or `output` is in use, has files
      that are not of a run, or is a run with other arguments.
    SystemExit: SIGTERM stopped the training, which has written a checkpoint.
  """
  given = dict(locals())
  for name in ("steps", "batch_size", "eval_every", "slices", "max_length", "patience"):
    if given[name] is not None:
      errors.as_integer(name, given[name])
  errors.check_positive("learning_rate", learning_rate)
  errors.check(batch_size % slices == 0, "slices", slices, f"a divisor of batch_size={batch_size}")
  errors.check_choice("objective", objective, [x for x in _MODELS if x != "hard_negatives"])
  if (teacher is not None) != (objective in ("distillation", "soft_contrastive")):
    raise errors.InputError(
      f"the objective {objective!r} {'requires a' if teacher is None else 'has no'} teacher; give "
      "one for distillation and soft_contrastive, and only for them"
    )
  if negatives and objective != "contrastive":
    raise errors.InputError(f"the objective {objective!r} has no hard negatives; omit negatives")
  if patience is not None and dev is None:
    raise errors.InputError("patience needs pairs to evaluate on; give dev")
  storage.check_local(output, "the folder of a fine-tuning")
  folder = pathlib.Path(output).expanduser().absolute()
  if isinstance(encoder, Encoder):  # Its folder lacks a prompt that `with_prompt` has set.
    path = encoder.path if encoder.prompt is None else None
  else:
    path = os.fspath(encoder)
  start = path or str(folder / "start")
  sources = {
    name: _source(name, given[name], folder, languages, negatives)
    for name in ("pairs", "dev")
    if given[name] is not None
  }
  settings = {name: value for name, value in given.items() if name not in _FREE}
  settings |= {name: identity for name, (identity, _) in sources.items()}
  settings["encoder"] = encoding.identity(encoder if path is None else loading.load(path), start)
  if teacher is not None:
    settings["teacher"] = _teacher(os.fspath(teacher))
  files, model = ["finetune.gin"], str(objective)
  macros: dict[str, Any] = {
    "MODEL_DIR": str(folder),
    "ENCODER": start,
    "PAIRS": settings["pairs"]["name"],
    "LANGUAGES": languages,
    "TRAIN_STEPS": steps,
    "BATCH_SIZE": batch_size,
    "LEARNING_RATE": learning_rate,
    "EVAL_PERIOD": eval_every,
    "CHECKPOINT_PERIOD": eval_every,
    "MATRYOSHKA_DIMS": tuple(matryoshka_dims),
    "EMBEDDING_SLICES": slices,
    "FROZEN": (_TOKEN_TABLE,) if freeze_tokens else (),
    "RANDOM_SEED": seed,
  }
  if max_length is None and isinstance(encoder, Encoder):
    max_length = min(encoder.max_length, _LONGEST)
  if max_length is not None:
    macros["MAX_LENGTH"] = max_length
  if negatives:
    files.append("runs/hard_negatives.gin")
    model, macros["NUM_NEGATIVES"] = "hard_negatives", negatives
  if dev is not None:
    files += ["eval/files.gin", "runs/early_stopping.gin"]
    macros["VALIDATION_PATTERNS"] = settings["dev"]["name"]
    macros["PATIENCE"] = steps if patience is None else patience
  errors.as_integer("CHECKPOINT_PERIOD", {**macros, **(gin or {})}["CHECKPOINT_PERIOD"])
  with work_folders.owned(folder, is_folder=True):
    _claim(folder, settings)
    if isinstance(encoder, Encoder) and path is None and not os.path.exists(start):
      encoder.save(start)
    for identity, content in sources.values():
      if content is not None:
        atomic_files.write_text(identity["name"][0], content)
    if teacher is not None:
      files.append("runs/teacher.gin")
      bitexts = [*macros["PAIRS"], *macros.get("VALIDATION_PATTERNS", ())]
      macros |= _teacher_vectors(os.fspath(teacher), bitexts, languages, folder / "teacher")
    arguments = ["train", *(f"--gin_file={file}" for file in files)]
    arguments += [f"--gin.{name}={value!r}" for name, value in {**macros, **(gin or {})}.items()]
    arguments.append(f"--gin.MODEL={_MODELS[model]}")
    main.run(arguments, on_sigterm=lambda: sys.exit(128 + signal.SIGTERM))
    atomic_files.write_text(folder / "report.md", _report(folder))
  return loading.load(folder)


def _claim(folder: pathlib.Path, settings: dict[str, Any]) -> None:
  """Writes the settings of a run into its folder, or compares them with those that it began with.

  Raises:
    InputError: they differ, or the folder has files that are not of a run.
  """
  names = storage.names(folder) - {storage.UNFINISHED}
  if names and _SETTINGS not in names:
    raise errors.InputError(
      f"{folder} is not a run of `vmsst finetune`, but has files ({input_files.listed(names)}); "
      "give another output"
    )
  settings = json.loads(json.dumps(settings, default=repr))
  if not names & {"config.gin", "start"}:  # It has not begun.
    atomic_files.write_json(folder / _SETTINGS, settings)
  elif changes := stored_settings.differences(input_files.read_json(folder / _SETTINGS), settings):
    raise errors.InputError(f"{folder} is another run: {changes}; give another output")


def _teacher(teacher: str) -> Any:
  """Returns what identifies a teacher, given itself or by its vectors."""
  description = pathlib.Path(teacher).expanduser() / derived_files.DESCRIPTION
  if description.is_file():
    return input_files.read_json(description).get("encoder")
  return encoding.identity(loading.load(teacher), teacher)


def _teacher_vectors(
  teacher: str, bitexts: list[str], languages: tuple[str, str], folder: pathlib.Path
) -> dict[str, Any]:
  """Returns the macros of a teacher's vectors, which are computed unless the teacher has them."""
  vectors = os.path.abspath(os.path.expanduser(teacher))
  if not os.path.isfile(os.path.join(vectors, derived_files.DESCRIPTION)):
    vectors = str(folder)
    file_embedding.embed_files(teacher, bitexts, vectors, languages=languages)
  first = readers.find_bitext(bitexts, languages)[0]
  width = teacher_vectors.open_vectors(vectors, first).shape[2]
  return {"TEACHER": None, "TEACHER_VECTORS": vectors, "TEACHER_DIM": width}


def _report(folder: pathlib.Path) -> str:
  """Returns the results of a run as a table in Markdown; draws them if matplotlib is installed."""
  losses, accuracies = _metric(folder / "train" / "metrics.jsonl", "loss"), {}
  best = t5x.read_best(folder)
  lines = ["# Fine-tuning", ""]
  if best is not None:
    task, _, metric = best["metric"].partition("/")
    accuracies = _metric(folder / "inference_eval" / f"{task}-metrics.jsonl", metric)
    lines += [f"Best: {best['checkpoint']}, accuracy {best['value']:.2f}.", ""]
  lines += ["| step | loss | accuracy (dev) |", "|---|---|---|"]
  for step in sorted({*accuracies, *([] if accuracies else losses)}):
    cells = (f"{losses[step]:.4f}" if step in losses else "",
             f"{accuracies[step]:.2f}" if step in accuracies else "")  # fmt: skip
    lines.append(f"| {step} | {cells[0]} | {cells[1]} |")
  with contextlib.suppress(ImportError):
    from matplotlib import figure

    drawn = figure.Figure(figsize=(8, 3), layout="constrained")
    for axes, name, values in zip(
      drawn.subplots(1, 2), ("loss", "accuracy (dev)"), (losses, accuracies), strict=True
    ):
      axes.plot(list(values), list(values.values()))
      axes.set(xlabel="step", title=name)
    drawn.savefig(folder / "curves.svg")
    lines += ["", "![curves](curves.svg)"]
  return "\n".join([*lines, ""])


def _metric(path: pathlib.Path, name: str) -> dict[int, float]:
  """Returns the values of a metric by step."""
  if not path.is_file():
    return {}
  records = map(json.loads, path.read_text().splitlines())
  return {record["step"]: float(record[name]) for record in records if name in record}  # "nan"


def _source(
  role: str, pairs: Pairs, folder: pathlib.Path, languages: tuple[str, str], negatives: int
) -> tuple[dict[str, Any], str | None]:
  """Returns what identifies the files of pairs, and the content of the file if it must be written.

  Raises:
    InputError: a pair is not one of texts, or has other texts than the pair and its hard negatives,
      such as scores; those of `dev` may have hard negatives too, which do not count.
  """
  counts = {2 + negatives, 2} if role == "dev" else {2 + negatives}
  paths = [pairs] if isinstance(pairs, str | os.PathLike) else pairs
  if isinstance(paths, list | tuple) and paths and isinstance(paths[0], str | os.PathLike):
    for path in paths:
      storage.check_local(path, "a file of pairs")
    names = [os.path.abspath(os.path.expanduser(path)) for path in paths]
    bitexts = readers.find_bitext(names, languages)
    for bitext in bitexts:
      row = next(readers.parsed_rows(bitext))
      _check_count(f"{bitext}:1", 2 + row.further, counts)
      if row.grade is not None and not row.further:
        logging.warning("%s: numbers in column 1 do not count; all pairs are positive", bitext)
    files = [file for bitext in bitexts for file in bitext.paths]
    return {"name": names, "digest": base.digest(*map(checksums.of_file, files))}, None
  rows: list[Any] = [*cast(Any, pairs)]
  if rows and isinstance(rows[0], Mapping):  # by the names of the fields, as in JSONL
    records = ((f"pair {number} of {role}", record) for number, record in enumerate(rows))
    source, target = map(languages_lib.language, languages)
    count = 0 if role == "dev" else negatives
    parsed = list(formats.record_rows(records, source, target, negatives=count))
    _check_count(f"pair 0 of {role}", len(parsed[0].texts) + parsed[0].further, counts)
    rows = [row.texts for row in parsed]
  lines = []
  for number, texts in enumerate(rows):
    where = f"pair {number} of {role}"
    if isinstance(texts, str | Set) or not all(isinstance(text, str) for text in texts):
      raise errors.InputError(f"{where} is {texts!r}; give two texts, or more")
    _check_count(where, len(texts), counts)
    lines.append("\t".join(" ".join(text.split()) for text in texts))
  if not lines:
    raise errors.InputError(f"{role} is empty; give pairs of texts")
  content = "".join(f"{line}\n" for line in lines)
  return {"name": [str(folder / f"{role}.tsv")], "digest": base.digest(content)}, content


def _check_count(where: str, count: int, counts: set[int]) -> None:
  """Raises InputError unless the number of a pair's texts is among `counts`."""
  if count not in counts:
    raise errors.InputError(
      f"{where} has {count} texts, not {max(counts)}; give the number of hard negatives after the "
      "pair (negatives), and remove scores, labels and ids"
    )
