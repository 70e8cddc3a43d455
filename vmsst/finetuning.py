"""Fine-tunes an encoder on pairs of texts: builds a model, batches and an optimizer, and trains.

`gin/finetune.gin` builds its objects with the same functions. Fine-tuning imports neither
TensorFlow nor seqio nor gin. All functions import what they need when they are called, because the
command line reads the signature and the docstring of `finetune` for `--help`.
"""

import functools
import json
import os
import pathlib
import signal
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from vmsst import errors, storage

if TYPE_CHECKING:
  from vmsst.data.readers import BitextFile
  from vmsst.encoder.encoder import Encoder

Objective = Literal[
  "contrastive", "similarity", "score_distillation", "distillation", "soft_contrastive", "ems"
]
File = str | os.PathLike[str]
Pairs = File | Sequence[File] | Iterable[Sequence[str] | Mapping[str, str]]

_TASK = "retrieval"


def finetune(
  encoder: "str | os.PathLike[str] | Encoder",
  pairs: Pairs,
  output: str | os.PathLike[str],
  *,
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
) -> "Encoder":
  """Fine-tune an encoder on pairs of texts, such as translations.

  Trains with AdamW and a learning rate that rises for a tenth of the steps and falls to 0. Repeat
  an interrupted call to resume it; steps, patience and slices may then differ. `t5x train
  --gin_file=finetune.gin` trains the same models with more options.

  Args:
    encoder: Run, export, folder of sentence-transformers or name on the Hugging Face Hub; in
      Python, also an encoder that `vmsst.load` or `Encoder.trim` returned.
    pairs: TSV file of pairs, with hard negatives in further columns; or JSONL with such fields, of
      any name, as in datasets of sentence-transformers; or the output of `vmsst mine`. In Python,
      also a list of files, or pairs of texts, such as a Hugging Face dataset. The first JSON object
      or dictionary sets the order of the fields, unless `languages` names them.
    output: Folder of the run, for vmsst.load, vmsst export and vmsst eval; report.md has the
      results.
    dev: Held-out pairs, to evaluate retrieval in both directions, first before training, and to
      keep the best checkpoint; if omitted, the last checkpoint is the result.
    objective: Loss: contrastive compares a text with the other texts of the batch; distillation
      and soft_contrastive match the vectors or the similarities of a teacher (Reimers and Gurevych
      2020, Park et al. 2024); ems also predicts the tokens of the translation (Mao et al. 2024),
      for encoders with mean pooling.
    negatives: Hard negatives of each pair, for contrastive only.
    teacher: Encoder to learn from, whose vectors of the pairs are written to OUTPUT/teacher; or a
      folder of vectors that `vmsst data embed` has written.
    languages: Codes of the two sides, which name the metrics. If omitted, a file name such as
      dev.de-en.tsv names them.
    steps: Training steps.
    batch_size: Pairs in a batch.
    learning_rate: Highest learning rate.
    max_length: Tokens of a text, in training and later (default: the encoder's, at most 128).
    eval_every: Steps between evaluations and checkpoints.
    patience: Stop after this many evaluations without improvement (default: never).
    matryoshka_dims: Also train vectors cut to these dimensions.
    slices: Slices of a batch, for batches that do not fit (gradient caching).
    freeze_tokens: Freeze the token table, most of a multilingual encoder's parameters.
    seed: Seed of dropout and of the order of the pairs.

  Returns:
    The tuned encoder.

  Raises:
    InputError: a file, an option or the encoder cannot be used, or `output` is in use, has files
      of something else, or is a run with other arguments.
    SystemExit: SIGTERM stopped the training, which has written a checkpoint.
  """
  options = dict(locals())
  with errors.requires("train", "fine-tuning"):
    import jax

    from ems_jax import teachers
    from vmsst.data import batches, readers, tables
    from vmsst.encoder import encoding, loading, starting_encoders
    from vmsst.encoder.encoder import Encoder
    from vmsst.formats import encoder_json
    from vmsst.jobs import job, outputs
    from vmsst.train import (
      actions,
      checkpoints,
      input_pipeline,
      optimizers,
      partitioning,
      trainer,
    )
    from vmsst.train import train as train_lib

  for name in ("steps", "batch_size", "eval_every", "slices", "max_length", "patience"):
    if options[name] is not None:
      errors.as_integer(name, options[name])
  errors.check_number("learning_rate", learning_rate, "(0, inf)")
  errors.check(batch_size % slices == 0, "slices", slices, f"a divisor of batch_size={batch_size}")
  errors.check_choice("objective", objective, get_args(Objective))
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
  start, changed = os.path.join(outputs.work_path(folder, is_folder=True), "start"), None
  if not isinstance(encoder, Encoder):
    start = os.fspath(encoder)
    encoder = loading.load(start)
  elif encoder.path is not None and encoder.prompt is None:
    start = encoder.path
  else:  # Its folder lacks what was trimmed, or the prompt of `with_prompt`.
    changed = encoder
  max_length = max_length or min(encoder.max_length, 128)
  inputs: dict[str, Any] = {"encoder": encoding.identity(encoder, start)}
  del encoder  # frees the memory of its parameters
  bitexts: dict[str, list[BitextFile]] = {}
  contents: dict[str, str] = {}  # of files to write, by path
  for role in ("pairs", "dev"):
    if options[role] is not None:
      source = _source(role, options[role], folder, languages, negatives)
      inputs[role], bitexts[role], content = source
      if content is not None:
        contents[bitexts[role][0].paths[0]] = content
  vectors = None  # folder of the teacher's vectors
  if teacher is not None:
    inputs["teacher"], vectors = _teacher(os.fspath(teacher))
  free = ("output", "steps", "patience", "slices")
  fixed = {k: v for k, v in options.items() if k not in {*inputs, *free}}
  with job.Job(folder, inputs=inputs, options=fixed) as run:
    if changed is not None and not os.path.exists(start):
      changed.save(start)
    vocabulary = starting_encoders.vocabulary(start)
    schedule = optimizers.one_cycle_schedule(steps, learning_rate, warmup=0.1)
    trained = model(
      objective,
      starting_encoders.network(start, dropout_rate=0.1, dtype="float32", scan_layers=True),
      vocabulary,
      optimizer(schedule, ("token_embedder/.*",) if freeze_tokens else ()),
      negatives=negatives,
      matryoshka_dims=tuple(matryoshka_dims),
      max_length=max_length,
      embedding_slices=slices,
    )
    for file, content in contents.items():
      outputs.write_text(file, content)
    if teacher is not None and vectors is None:
      vectors = str(folder / "teacher")
      _write_vectors(teacher, bitexts["pairs"], vectors, inputs["teacher"])
    width = None
    if vectors is not None:
      width = tables.open_vectors(vectors, bitexts["pairs"][0]).shape[2]
    lengths = teachers.feature_lengths(max_length=max_length, dimension=width, negatives=negatives)
    known = (x for bitext in bitexts["pairs"] for x in (bitext.source, bitext.target))
    codes = readers.language_codes(known) or None
    partitioner = partitioning.PjitPartitioner(num_partitions=1)
    evaluation, of_evaluation = None, []
    if dev is not None:
      evaluation = Retrieval(bitexts["dev"], trained, partitioner, folder)
      watched: dict[str, Any] = {"metric": (_TASK, "accuracy/average"), "mode": "max"}
      of_evaluation = [
        actions.KeepBestAction(str(folder), **watched),
        actions.EarlyStoppingAction(patience=patience or steps, **watched),
      ]

    def get_batches(cfg: Any, shard_id: int, num_shards: int, _: Any) -> batches.BatchIterator:
      tokenizer = batches.Tokenizer(vocabulary, max_length=None, keep_all=False)
      by_pair = readers.by_pair(bitexts["pairs"])
      texts = []
      for name, files in sorted((readers.pair_name(*pair), by_pair[pair]) for pair in by_pair):
        table = tables.open_files(name, files, negatives=negatives, teacher=vectors)
        texts.append(batches.Texts(name, table, tokenizer))
      batches.check_texts(texts, lengths)
      rates = [len(part.table) for part in texts]
      shard, size, spec = (shard_id, num_shards), batch_size // num_shards, texts[0].spec(lengths)
      chunks = batches.read_rows(texts, rates, lengths, shuffle=True, seed=seed, shard=shard)
      return batches.BatchIterator(
        batches.length_batches(chunks, size, lengths, seed=seed % 2**63),
        {x: jax.ShapeDtypeStruct((size, *spec[x].shape), spec[x].dtype) for x in lengths},
        shard,
      )

    train_lib.train(
      model=trained,
      train_dataset_cfg=input_pipeline.DatasetConfig(
        _TASK, lengths, "train", batch_size, True, seed
      ),
      train_eval_dataset_cfg=None,
      infer_eval_dataset_cfg=None,
      get_dataset_fn=get_batches,
      evaluator=evaluation,
      checkpoint_cfg=checkpoints.CheckpointConfig(
        save=checkpoints.SaveCheckpointConfig(
          period=eval_every, keep=1 if dev is not None else None, save_dataset=True
        ),
        restore=checkpoints.RestoreCheckpointConfig(
          start, "specific", assignment_map(), fallback_to_scratch=True
        ),
      ),
      partitioner=partitioner,
      trainer_cls=functools.partial(
        trainer.Trainer, learning_rate_fn=schedule, num_microbatches=None
      ),
      model_dir=str(folder),
      total_steps=steps,
      eval_steps=1,
      eval_period=eval_every,
      stats_period=10,
      random_seed=seed,
      run_eval_before_training=True,
      actions={"TRAIN": [actions.TerminateOnNanAction("train")], "INFER_EVAL": of_evaluation},
      summarize_config_fn=lambda *_: encoder_json.save_encoder_assets(trained, folder, codes),
      on_sigterm=lambda: sys.exit(128 + signal.SIGTERM),
    )
    outputs.write_text(folder / "report.md", _report(folder))
    run.finish()
  return loading.load(folder)


def model(
  objective: Objective,
  network: Any,
  vocabulary: Any,
  optimizer: Any,
  *,
  negatives: int = 0,
  scale: float = 20.0,
  matryoshka_dims: Sequence[int] = (),
  teacher: Any = None,
  **options: Any,
) -> Any:
  """Returns the model that fine-tunes an encoder.

  Args:
    objective: See `finetune`. Batches need hard negatives and `teacher_scores` for
      "score_distillation", and a `score` for "similarity"; see `vmsst.models.scores`.
    network: The encoder, a `SentenceEncoder`.
    vocabulary: Vocabulary of the encoder.
    optimizer: An optimizer of `vmsst.train`.
    negatives: Number of hard negatives of each pair, for "contrastive" and "score_distillation".
      With them, sources are compared with targets and not the other way around, unless the option
      `symmetric` is True.
    scale: Factor on every cosine; "distillation" has none.
    matryoshka_dims: Also train vectors cut to these dimensions; "distillation" does not.
    teacher: An `ems_jax.teachers.Teacher` for "distillation" and "soft_contrastive"; if omitted,
      batches contain its vectors.
    **options: Further options of the model, such as `max_length` and `embedding_slices`.

  Raises:
    InputError: the objective does not suit the encoder.
  """
  from ems_jax.models import distillation, ems, soft_contrastive
  from ems_jax.networks import ems as ems_network
  from vmsst.models import contrastive, scores

  options |= {"network": network, "vocabulary": vocabulary, "optimizer_def": optimizer}
  if objective == "distillation":
    return distillation.DistillationModel(teacher=teacher, **options)
  options |= {"scale": scale, "matryoshka_dims": matryoshka_dims}
  if objective == "soft_contrastive":
    return soft_contrastive.SoftContrastiveModel(teacher=teacher, **options)
  if objective == "ems":
    if network.pooling != "mean" or network.head or network.pooler_dim is not None:
      raise errors.InputError(
        f"EMS trains the mean of token states; this encoder has the pooling {network.pooling!r}, "
        f"head {network.head} and pooler_dim {network.pooler_dim}: choose another encoder or "
        "objective"
      )
    options["network"] = ems_network.EmsNetwork(config=network.config, share_embedding=True)
    return ems.EmsModel(normalize=network.normalize, **options)
  if objective == "similarity":
    return scores.SimilarityModel(**options)
  options = {"symmetric": not negatives, **options}
  distils = objective == "score_distillation"
  kind = scores.ScoreDistillationModel if distils else contrastive.ContrastiveModel
  return kind(similarity="cosine", mask_duplicates=True, **options)


def optimizer(
  schedule: Any,
  frozen: Sequence[str] = (),
  *,
  lora_rank: int | None = None,
  lora_alpha: float | None = None,
  lora_targets: Sequence[str] = (".*kernel",),
) -> Any:
  """Returns AdamW with clipped gradients.

  Args:
    schedule: Learning rate, a function of the step.
    frozen: Regular expressions of the names of parameters that are not trained.
    lora_rank: Rank of the changes of kernels by LoRA, which freezes all other parameters (default:
      no LoRA).
    lora_alpha: Alpha of LoRA (default: twice the rank).
    lora_targets: Regular expressions of the names of the kernels that LoRA changes.
  """
  import optax

  from vmsst.train import lora, optimizers

  transformations = [optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.01)]
  if lora_rank is None:
    return optimizers.chain(transformations, frozen)
  alpha = lora_alpha or 2.0 * lora_rank
  return lora.Lora(optimizers.chain(transformations), lora_rank, alpha, lora_targets)


def assignment_map() -> list[tuple[str, str | None]]:
  """Returns what a run reads from the encoder to start from: all but the heads of EMS."""
  return [
    ("state/.*|target/(xtr_|language_embedder|projection).*", None),
    ("target/.*", "\\g<0>"),
  ]


class Retrieval:
  """Evaluates retrieval among held-out pairs in both directions, as the `evaluator` of `train`.

  Metrics are percentages, by language pair and averaged: `to_target`, `from_target` and their mean,
  `accuracy`. They are also appended to `inference_eval/retrieval-metrics.jsonl` of the run.

  Args:
    bitexts: The pairs.
    model: The model.
    partitioner: The mesh.
    folder: Folder of the run.
  """

  def __init__(
    self, bitexts: "Sequence[BitextFile]", model: Any, partitioner: Any, folder: pathlib.Path
  ):
    import numpy as np

    from vmsst.data import batches, readers

    self._model, self._partitioner = model, partitioner
    self._path = folder / "inference_eval" / f"{_TASK}-metrics.jsonl"
    self._embed: Any = None
    groups: dict[str, list[BitextFile]] = {}
    for bitext in bitexts:
      groups.setdefault(readers.shown_pair(bitext), []).append(bitext)
    self._sides: dict[str, tuple[Sequence[str], ...]] = {}
    texts: list[str] = []
    language_ids: list[int] = []
    for name, files in groups.items():
      pairs = (pair for file in files for pair in readers.read_pairs(file))
      self._sides[name] = tuple(zip(*pairs, strict=True))
      for side, language in zip(self._sides[name], (files[0].source, files[0].target), strict=True):
        texts += side
        language_ids += [language.index] * len(side)
    tokenizer = batches.Tokenizer(model.vocabulary, max_length=None, keep_all=True)
    columns = {"inputs": texts, "input_language": np.array(language_ids)[:, None]}
    self._tokens = tokenizer(columns, {"inputs": model.max_length})

  def evaluate(self, train_state: Any, train_state_axes: Any) -> dict[str, dict[str, float]]:
    """Returns the metrics of the model, by the name of the task."""
    import numpy as np

    from vmsst.evaluation.metrics import retrieval
    from vmsst.train import inference

    if self._embed is None:
      self._embed = inference.get_array_fn(
        self._model.score_batch, 512, train_state_axes, self._partitioner
      )
    vectors_ND = self._embed(self._tokens, train_state)
    by_pair: dict[str, dict[str, float]] = {}
    for name, sides in self._sides.items():
      source_ND, target_ND, vectors_ND = np.split(vectors_ND, np.cumsum([*map(len, sides)]))
      shares = retrieval.translation_accuracy(source_ND, target_ND, texts=sides)
      to_target, from_target = 100 * shares["forward"], 100 * shares["backward"]
      accuracy = (to_target + from_target) / 2
      by_pair[name] = {"to_target": to_target, "from_target": from_target, "accuracy": accuracy}
    keys = ("to_target", "from_target", "accuracy")
    by_pair["average"] = {key: statistics.fmean(x[key] for x in by_pair.values()) for key in keys}
    metrics = {f"{key}/{name}": by_pair[name][key] for key in keys for name in by_pair}
    self._path.parent.mkdir(exist_ok=True)
    with self._path.open("a", encoding="utf-8") as stream:
      stream.write(json.dumps({"step": int(train_state.step), **metrics}) + "\n")
    return {_TASK: metrics}


def _teacher(teacher: str) -> tuple[Any, str | None]:
  """Returns what identifies a teacher, and the folder of its vectors if `teacher` is one."""
  from vmsst.encoder import encoding, loading
  from vmsst.formats import encoder_json
  from vmsst.io import manifest

  folder = os.path.abspath(os.path.expanduser(teacher))
  record = os.path.join(folder, manifest.NAME)
  description = os.path.join(folder, encoder_json.ENCODER_FILE)
  if os.path.isfile(record) and not os.path.isfile(description):  # A run has both.
    return manifest.read(folder).inputs.get("encoder"), folder
  return encoding.identity(loading.load(teacher), teacher), None


def _write_vectors(
  teacher: str | os.PathLike[str], bitexts: "Sequence[BitextFile]", folder: str, identity: Any
) -> None:
  """Writes a teacher's vectors of pairs to a folder, as `vmsst data embed` does."""
  from vmsst.data import readers, tables
  from vmsst.encoder import encoding, loading
  from vmsst.jobs import job

  encoder = loading.load(teacher)
  with job.Job(folder, inputs={"encoder": identity}) as work:
    for bitext in bitexts:
      name, digest = tables.vectors_name(bitext), readers.digest(bitext)
      if work.done(name, digest) is None:
        with work.part(name, digest) as (path, facts):
          facts.update(encoding.write_bitext_vectors(encoder, bitext, path), bitext=digest)
    work.finish()


def _source(
  role: str, pairs: Pairs, folder: pathlib.Path, languages: tuple[str, str], negatives: int
) -> "tuple[dict[str, Any], list[BitextFile], str | None]":
  """Returns what identifies pairs, their files, and the content of the file if it must be written.

  Raises:
    InputError: a pair is not one of texts, or has other texts than the pair and its hard negatives,
      such as scores; those of `dev` may have hard negatives too, which do not count.
  """
  from absl import logging

  from vmsst import languages as languages_lib
  from vmsst.data import formats, readers
  from vmsst.io import manifest

  counts = {2 + negatives, 2} if role == "dev" else {2 + negatives}

  def check_count(where: str, count: int) -> None:
    if count not in counts:
      raise errors.InputError(
        f"{where} has {count} texts, not {2 + negatives}; give the number of hard negatives after "
        "the pair (negatives), and remove scores, labels and ids"
      )

  paths = [pairs] if isinstance(pairs, str | os.PathLike) else pairs
  if isinstance(paths, list | tuple) and paths and isinstance(paths[0], str | os.PathLike):
    for path in paths:
      storage.check_local(path, "a file of pairs")
    names = [os.path.abspath(os.path.expanduser(path)) for path in paths]
    bitexts = readers.find_bitext(names, languages)
    for bitext in bitexts:
      row = next(readers.read_rows(bitext))
      check_count(f"{bitext}:1", 2 + row.further)
      if row.grade is not None and not row.further:
        logging.warning("%s: numbers in column 1 do not count; all pairs are positive", bitext)
    digest = manifest.digest(*map(readers.digest, bitexts))
    return {"name": names, "digest": digest}, bitexts, None
  source, target = map(languages_lib.language, languages)
  rows: list[Any] = [*cast(Any, pairs)]
  if rows and isinstance(rows[0], Mapping):  # by the names of the fields, as in JSONL
    records = ((f"pair {number} of {role}", record) for number, record in enumerate(rows))
    count = 0 if role == "dev" else negatives
    items = formats.record_rows(records, source, target, negatives=count)
    parsed = list(formats.checked(items))
    check_count(f"pair 0 of {role}", len(parsed[0].texts) + parsed[0].further)
    rows = [row.texts for row in parsed]
  lines = []
  for number, texts in enumerate(rows):
    where = f"pair {number} of {role}"
    if isinstance(texts, str | Set) or not all(isinstance(text, str) for text in texts):
      raise errors.InputError(f"{where} is {texts!r}; give two texts, or more")
    check_count(where, len(texts))
    lines.append("\t".join(" ".join(text.split()) for text in texts) + "\n")
  if not lines:
    raise errors.InputError(f"{role} is empty; give pairs of texts")
  content, file = "".join(lines), str(folder / f"{role}.tsv")
  identity = {"name": [file], "digest": manifest.digest(content)}
  return identity, [readers.BitextFile((file,), "tsv", source, target)], content


def _report(folder: pathlib.Path) -> str:
  """Returns the results of a run as a table in Markdown."""
  from vmsst.formats import t5x

  losses, accuracies = _metric(folder / "train" / "metrics.jsonl", "loss"), {}
  best = t5x.read_best(folder)
  lines = ["# Fine-tuning", ""]
  if best is not None:
    task, _, metric = best["metric"].partition("/")
    accuracies = _metric(folder / "inference_eval" / f"{task}-metrics.jsonl", metric)
    lines += [f"Best: {best['checkpoint']}, accuracy {best['value']:.2f}.", ""]
  lines += ["| step | loss | accuracy (dev) |", "|---|---|---|"]
  for step in sorted(accuracies or losses):
    loss = f"{losses[step]:.4f}" if step in losses else ""
    accuracy = f"{accuracies[step]:.2f}" if step in accuracies else ""
    lines.append(f"| {step} | {loss} | {accuracy} |")
  return "\n".join([*lines, ""])


def _metric(path: pathlib.Path, name: str) -> dict[int, float]:
  """Returns the values of a metric by step."""
  if not path.is_file():
    return {}
  records = map(json.loads, path.read_text().splitlines())
  return {record["step"]: float(record[name]) for record in records if name in record}  # "nan"
