"""Fine-tunes an encoder on text pairs.

`finetune` builds a model, batches and an optimizer, and runs the training. `gin/finetune.gin`
builds the model and the optimizer with the same functions. Fine-tuning does not import TensorFlow,
seqio or gin. `vmsst finetune --help` shows the signature and the docstring of `finetune`. To make
this command start quickly, the functions in this module import their dependencies only when they
are called.
"""

import dataclasses
import functools
import json
import os
import pathlib
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from vmsst import errors, storage
from vmsst import languages as languages_lib
from vmsst.arrays import devices

if TYPE_CHECKING:
  from vmsst.data.training_sets import OpenSet
  from vmsst.data.vocabularies import Role
  from vmsst.encoder.encoder import Encoder

Objective = Literal[
  "contrastive",
  "similarity",
  "cosine_mse",
  "kl_divergence",
  "margin_mse",
  "distillation",
  "soft_contrastive",
  "ems",
]
_WITH_NEGATIVES = ("contrastive", "kl_divergence", "margin_mse")
_WITH_SCORES = ("similarity", "cosine_mse", "kl_divergence", "margin_mse")
_TAUGHT = ("distillation", "soft_contrastive")


def finetune(
  encoder: "str | os.PathLike[str] | Encoder",
  pairs: Any,
  output: str | os.PathLike[str],
  *,
  dev: Any = None,
  dev_metric: str | None = None,
  objective: Objective = "contrastive",
  negatives: int | None = None,
  teacher: str | os.PathLike[str] | None = None,
  languages: tuple[str, str] = ("und", "und"),
  roles: "tuple[Role, Role] | None" = None,
  prompts: tuple[str, str] | None = None,
  sampling_power: float = 1.0,
  mixed: bool = False,
  steps: int = 500,
  batch_size: int = 64,
  learning_rate: float = 2e-5,
  max_length: int | None = None,
  eval_every: int = 100,
  patience: int | None = None,
  matryoshka_dims: Sequence[int] = (),
  matryoshka_layers: Sequence[int] = (),
  slices: int = 1,
  freeze_tokens: bool = False,
  lora_rank: int | None = None,
  compute_dtype: Literal["float32", "bfloat16"] = "float32",
  average: int = 1,
  seed: int = 0,
) -> "Encoder":
  """Fine-tune an encoder on text pairs, such as translations or questions and answers.

  Trains with AdamW. The learning rate rises during the first tenth of the steps and then falls to
  0. To resume an interrupted run, repeat the call; you may change steps, patience and slices. `t5x
  train --gin_file=finetune.gin` trains the same models with more options.

  Args:
    encoder: A training run, an export, a sentence-transformers folder, or a name on the Hugging
      Face Hub. In Python, you can also pass an encoder returned by `vmsst.load` or `Encoder.trim`.
    pairs: File with text pairs: TSV or JSONL with named columns (anchor, positive, negative_1,
      score ..., as in sentence-transformers and FlagEmbedding datasets), TSV in which each line is
      a pair followed by its hard negatives, or the output of `vmsst mine`. In Python, you can also
      pass rows, such as a Hugging Face dataset, or a list or dictionary of files, rows and
      `vmsst.TrainingSet` objects. By default, all pairs in a batch come from the same set.
    output: Folder for the run. vmsst.load, vmsst export and vmsst eval can open this folder, and
      its file report.md shows the results.
    dev: Held-out pairs, or a folder in BEIR's layout, for evaluations before and during training.
      The evaluations select the best checkpoint; without them, the last checkpoint is selected.
      Pairs are evaluated by retrieval in both directions, or by rank correlation if they have
      scores. In Python, you can also pass a list or dictionary of sets, or a `vmsst.RetrievalSet`.
    dev_metric: Metric that selects the best checkpoint, named as in the report, such as
      accuracy/dev or ndcg@10/nq (default: the first metric of each set, averaged over all sets).
    objective: Training loss. contrastive: makes a text more similar to its positive than to the
      other texts and the hard negatives in the batch. similarity: makes the cosines of pairs
      follow the order of their scores (CoSENT). cosine_mse: fits the cosines to the scores.
      kl_divergence, margin_mse: match a cross-encoder's scores for each pair and its hard
      negatives. distillation: matches a teacher's vectors (Reimers and Gurevych 2020).
      soft_contrastive: matches a teacher's similarities (Park et al. 2024). ems: contrastive, and
      also predicts the translation's tokens (Mao et al. 2024); requires mean pooling.
    negatives: Maximum number of hard negatives per pair (default: all).
    teacher: Encoder to learn from, or a folder with its vectors from `vmsst data embed`. If you
      pass an encoder, its vectors for the pairs are written to OUTPUT/teacher.
    languages: Language codes for the first and the second text in each pair.
    roles: Role of each text in a pair, query or document. The roles select the encoder's prompts.
      If omitted, the column names determine the roles; texts without a role get the prompt that
      `encode` uses.
    prompts: Prompts for the first and the second text in each pair. They replace the encoder's
      prompts and are saved with the tuned encoder.
    sampling_power: Each set is sampled in proportion to its size raised to this power.
    mixed: Mix rows from all sets in each batch.
    steps: Number of training steps.
    batch_size: Pairs per batch.
    learning_rate: Peak learning rate. Static encoders need a far higher rate, such as 0.01.
    max_length: Maximum number of tokens per text, for training and for the tuned encoder (default:
      the encoder's maximum, but no more than 128).
    eval_every: Steps between evaluations and checkpoints.
    patience: Stop after this many consecutive evaluations without improvement (default: never).
    matryoshka_dims: Also train vectors truncated to these dimensions.
    matryoshka_layers: Also train the encoder truncated to these numbers of layers.
    slices: Number of slices to split each batch into (gradient caching). Use more slices if a
      batch does not fit into memory.
    freeze_tokens: Freeze the token table, which holds most of a multilingual encoder's parameters.
    lora_rank: Rank for LoRA (default: no LoRA). LoRA saves memory by training low-rank updates of
      the kernels instead of all parameters. The tuned encoder includes the updates.
    compute_dtype: Dtype of the activations during training. The parameters and the tuned encoder
      stay in float32.
    average: Number of checkpoints to average: the best checkpoints, or the last checkpoints if dev
      is omitted.
    seed: Random seed for dropout and for the order of the pairs.

  Returns:
    The tuned encoder.

  Raises:
    InputError: If a file, an option or the encoder cannot be used, or if `output` is in use,
      contains unrelated files, or contains a run with different arguments.
    SystemExit: If SIGTERM stops the training. A checkpoint is written first.
  """
  options = dict(locals())
  devices.enable_compilation_cache()
  with errors.requires("train", "fine-tuning"):
    from vmsst.data import readers, training_sets
    from vmsst.encoder import encoding, loading, starting_encoders
    from vmsst.encoder.encoder import Encoder
    from vmsst.formats import encoder_json, t5x
    from vmsst.jobs import job, outputs
    from vmsst.networks import sentence_encoder
    from vmsst.networks.static import StaticConfig
    from vmsst.train import (
      actions,
      checkpoints,
      dev_sets,
      input_pipeline,
      optimizers,
      partitioning,
      trainer,
    )
    from vmsst.train import train as train_lib

  integers = ("steps", "batch_size", "eval_every", "slices", "average")
  for name in (*integers, "lora_rank", "max_length", "patience"):
    if options[name] is not None:
      errors.as_integer(name, options[name])
  errors.check_number("learning_rate", learning_rate, "(0, inf)")
  errors.check(batch_size % slices == 0, "slices", slices, f"a divisor of batch_size={batch_size}")
  for name in ("patience", "dev_metric"):
    if options[name] is not None and dev is None:
      raise errors.InputError(f"{name} needs pairs to evaluate on; set dev")
  storage.check_local(output, "the fine-tuning output folder")
  folder = pathlib.Path(output).expanduser().absolute()
  start, unsaved = os.path.join(outputs.work_path(folder, is_folder=True), "start"), None
  if not isinstance(encoder, Encoder):
    start = os.fspath(encoder)
    encoder = loading.load(start)
  elif encoder.path is not None and encoder.prompt is None:
    start = encoder.path
  else:  # A trimmed encoder or a changed prompt is not saved yet.
    unsaved = encoder
  max_length = max_length or min(encoder.max_length, 128)
  inputs: dict[str, Any] = {"encoder": encoding.identity(encoder, start)}
  vocabulary, network = encoder.vocabulary, encoder.network
  del encoder  # Free the parameters' memory.

  fields: dict[str, Any] = {"languages": languages, "roles": roles, "prompts": prompts}
  sets = open_sets(pairs, vocabulary, objective=objective, negatives=negatives, **fields)
  objectives = tuple({entry.settings.objective or objective: None for entry in sets})
  # The sets with an objective that uses the teacher's vectors.
  students = [entry for entry in sets if entry.settings.objective in _TAUGHT]
  if (teacher is not None) != bool(students):
    raise errors.InputError(
      f"the objectives {objectives} {'require a' if students else 'do not use a'} teacher; pass "
      f"`teacher` if an objective is {' or '.join(_TAUGHT)}, and otherwise omit it"
    )
  if lora_rank is not None and "ems" in objectives:
    raise errors.InputError("LoRA does not train the EMS heads; omit lora_rank")
  inputs["pairs"] = {entry.name: {"name": entry.name, "digest": entry.digest} for entry in sets}
  held_out: dict[str, Any] = {}
  if dev is not None:
    held_out = open_dev_sets(dev, vocabulary, objective=objective, **fields)
    inputs["dev"] = {name: {"name": name, "digest": x.digest} for name, x in held_out.items()}
  vectors = None  # folder with the teacher's vectors
  if teacher is not None:
    inputs["teacher"], vectors = _teacher(os.fspath(teacher))
  # Report the loss on held-out pairs if the run can compute their objective.
  computable = {*get_args(Objective)} - {*_TAUGHT, "ems"} | {*objectives}
  if vectors is not None:  # These are vectors for the training pairs, not for held-out pairs.
    computable -= {*_TAUGHT}
  pair_sets = [entry for entry in held_out.values() if isinstance(entry, training_sets.OpenSet)]
  with_loss = [entry for entry in pair_sets if entry.settings.objective in computable]
  # Options that may change when a run is resumed, and options that the digests in `inputs` cover.
  ignored = ("output", "steps", "patience", "slices", *inputs, *fields, "objective", "negatives")
  fixed_options = {name: value for name, value in options.items() if name not in ignored}
  with job.Job(folder, inputs=inputs, options=fixed_options) as run:
    if unsaved is not None and not os.path.exists(start):
      unsaved.save(start)
    if students:
      students += [
        dataclasses.replace(entry, name=f"dev.{entry.name}")
        for entry in with_loss
        if entry.settings.objective in _TAUGHT
      ]
      _add_teacher_vectors(students, os.fspath(teacher or ""), vectors, folder, inputs["teacher"])
    schedule = optimizers.one_cycle_schedule(steps, learning_rate, warmup=0.1)
    frozen = ("token_embedder/.*",) if freeze_tokens and lora_rank is None else ()
    # The first network is for training, in `compute_dtype`. The second network is for the saved
    # encoder, in float32.
    networks = [
      starting_encoders.with_options(network, dropout_rate=0.1, dtype=dtype, scan_layers=True)
      for dtype in (compute_dtype, "float32")
    ]
    # Do not use row-wise updates for EMS. EMS predicts tokens with the token table, so every row of
    # the table has a gradient.
    row_wise = isinstance(networks[0].config, StaticConfig) and "ems" not in objectives
    train_model, saved_model = (
      model(
        tuple({entry.settings.objective or objective: None for entry in [*sets, *with_loss]}),
        network,
        with_prompts(vocabulary, sets),
        optimizer(schedule, frozen, lora_rank=lora_rank, row_wise=row_wise),
        negatives=any("negatives" in entry.features for entry in sets),
        matryoshka_dims=tuple(matryoshka_dims),
        matryoshka_layers=tuple(matryoshka_layers),
        max_length=max_length,
        embedding_slices=slices,
      )
      for network in networks
    )
    partitioner = partitioning.PjitPartitioner(num_partitions=1)
    # On one device, pack texts into rows. EMS's network cannot encode such rows.
    can_pack = sentence_encoder.is_transformer(network.config) and "ems" not in objectives
    unprompted = without_prompt(vocabulary)
    tokens: dict[str, Any] = {"vocabulary": unprompted, "max_length": max_length}
    tokens["packed_slices"] = slices if can_pack and partitioner.mesh.size == 1 else 0
    evaluation, eval_actions = None, []
    if held_out:
      loss_sets = [entry.name for entry in with_loss]
      evaluation = dev_sets.DevSets(
        held_out, train_model, unprompted, partitioner, folder, dev_metric, loss_sets, batch_size
      )
      criterion: dict[str, Any] = {"metric": (dev_sets.TASK, "score"), "mode": "max"}
      eval_actions = [
        actions.KeepBestAction(str(folder), **criterion, count=average),
        actions.EarlyStoppingAction(patience=patience or steps, **criterion),
      ]
    train_codes = {code for entry in sets for code in entry.settings.languages} - {"und"}
    codes = readers.language_codes(map(languages_lib.language, train_codes)) or None

    step, state = train_lib.train(
      model=train_model,
      train_dataset_cfg=input_pipeline.DatasetConfig(
        "pairs", {"inputs": max_length}, "train", batch_size, True, seed
      ),
      train_eval_dataset_cfg=None,
      infer_eval_dataset_cfg=None,
      get_dataset_fn=functools.partial(
        training_sets.get_batches, sets=sets, sampling_power=sampling_power, mixed=mixed, **tokens
      ),
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
      average=average,
      actions={"TRAIN": [actions.TerminateOnNanAction("train")], "INFER_EVAL": eval_actions},
      summarize_config_fn=lambda *_: encoder_json.save_encoder_assets(saved_model, folder, codes),
      on_sigterm=lambda: sys.exit(128 + signal.SIGTERM),
    )
    selected = t5x.find_checkpoint(folder)
    if selected.name == f"checkpoint_{step}":  # Its parameters are in memory.
      tuned = loading.with_params(selected, state.params)
    else:
      tuned = loading.load(folder)
    del state  # Free the optimizer's memory.
    metrics = None
    if average > 1 and evaluation is not None:
      metrics = evaluation.evaluate_encoder(tuned)
    outputs.write_text(folder / "report.md", _report(folder, metrics))
    run.finish()
  return tuned


def open_sets(
  data: Any,
  vocabulary: Any,
  *,
  objective: str | Sequence[str] = "contrastive",
  default: str = "pairs",
  **options: Any,
) -> "list[OpenSet]":
  """Reads training sets and applies an encoder's prompts.

  Args:
    data: See `finetune`.
    vocabulary: The encoder's vocabulary.
    objective: Objective for sets that do not specify an objective. If this is a sequence, its first
      entry is used.
    default: Name for a set that consists of rows instead of a file.
    **options: `TrainingSet` fields for sets passed as files or rows.

  Raises:
    InputError: If a set cannot be read, or its columns do not match the objective.
  """
  from vmsst.data import training_sets

  first = objective if isinstance(objective, str) else objective[0]
  sets = []
  for name, settings in training_sets.by_name(data, default, **options).items():
    loss = settings.objective or first
    errors.check_choice("objective", loss, get_args(Objective))
    if loss not in _WITH_NEGATIVES and settings.negatives:
      raise errors.InputError(f"the objective {loss!r} does not use hard negatives; omit negatives")
    negatives = settings.negatives if loss in _WITH_NEGATIVES else 0
    settings = dataclasses.replace(settings, objective=loss, negatives=negatives)
    opened = training_sets.open_set(name, settings, role_prompts(vocabulary))
    if loss in _WITH_SCORES and "scores" not in opened.features:
      raise errors.InputError(f"{name}: the objective {loss!r} needs a score column; add one")
    if loss not in _WITH_SCORES and "scores" in opened.features:
      if opened.table.columns["scores"].shape[1] == 1:
        raise errors.InputError(
          f"{name}: the objective {loss!r} ignores scores and labels; use 'similarity', or "
          "remove the pairs that do not match, and then remove the column"
        )
      # There are several scores per row, for the pair and its hard negatives. These scores come
      # from a teacher, and this objective does not use them, so drop the column.
      del opened.table.columns["scores"]
    sets.append(opened)
  return sets


def open_dev_sets(
  data: Any, vocabulary: Any, *, objective: str | Sequence[str] = "contrastive", **options: Any
) -> dict[str, Any]:
  """Reads held-out sets for `vmsst.train.dev_sets.DevSets`; see `open_sets`.

  Held-out pairs need no teacher scores. If the objective in training requires teacher scores, the
  objective for held-out pairs is "contrastive" instead.
  """
  from vmsst.data import retrieval_sets, training_sets

  first = objective if isinstance(objective, str) else objective[0]
  if first in ("kl_divergence", "margin_mse"):
    first = "contrastive"
  opened: dict[str, Any] = {}
  for name, settings in training_sets.by_name(data, "dev", **options).items():
    texts: Any = settings.data
    if isinstance(texts, str | os.PathLike) and os.path.isdir(texts):
      texts = retrieval_sets.read(texts)
    if isinstance(texts, retrieval_sets.RetrievalSet):
      prompts = role_prompts(vocabulary)
      opened[name] = texts.with_prompts(
        *(settings.prompts or (prompts["query"], prompts["document"]))
      )
    else:
      (opened[name],) = open_sets({name: settings}, vocabulary, objective=first)
  return opened


def role_prompts(vocabulary: Any) -> "dict[Role | None, str]":
  """Returns an encoder's prompts by role. The key None is for texts without a role."""
  from vmsst.formats import tokenizers

  prefix = getattr(vocabulary, "prefix", "")
  by_role = tokenizers.method_prompts(prefix, getattr(vocabulary, "prompts", {}))
  return {"query": by_role["query"], "document": by_role["document"], None: prefix}


def without_prompt(vocabulary: Any) -> Any:
  """Returns a vocabulary that adds no prompt to texts."""
  return vocabulary.with_prefix("") if getattr(vocabulary, "prefix", "") else vocabulary


def with_prompts(vocabulary: Any, sets: "Sequence[OpenSet]") -> Any:
  """Returns a vocabulary with the training sets' prompts instead of the encoder's prompts.

  Raises:
    InputError: If the vocabulary does not support prompts.
  """
  for entry in sets:
    if entry.settings.prompts is None:
      continue
    if not hasattr(vocabulary, "with_prefix"):
      raise errors.InputError("the encoder does not support prompts; omit prompts")
    if entry.prompts[0] == entry.prompts[1] and not any(entry.roles):
      vocabulary = vocabulary.with_prefix(entry.prompts[0])
    else:
      roles = (entry.roles[0] or "query", entry.roles[1] or "document")
      prompts = {**vocabulary.prompts, **dict(zip(roles, entry.prompts, strict=True))}
      vocabulary = dataclasses.replace(vocabulary, prompts=prompts)
  return vocabulary


def model(
  objective: str | Sequence[str],
  network: Any,
  vocabulary: Any,
  optimizer: Any,
  *,
  negatives: bool | int = False,
  scale: float = 20.0,
  margin: float = 0.0,
  temperature: float = 1.0,
  contrastive_weight: float = 0.0,
  matryoshka_dims: Sequence[int] = (),
  matryoshka_layers: Sequence[int] = (),
  **options: Any,
) -> Any:
  """Builds the model for fine-tuning an encoder.

  Args:
    objective: See `finetune`; a sequence if sets have different objectives.
    network: The encoder, a `SentenceEncoder`.
    vocabulary: The encoder's vocabulary.
    optimizer: An optimizer from `vmsst.train`.
    negatives: Whether pairs have hard negatives. If true, the loss compares sources with targets
      and negatives, but does not compare targets with sources.
    scale: Factor for every cosine. "distillation" does not use a factor.
    margin: Margin to subtract from each pair's cosine, for "contrastive" (LaBSE's additive margin).
    temperature: Divisor for a teacher's scores, for "kl_divergence".
    contrastive_weight: Weight of an additional contrastive loss, for "kl_divergence" and
      "margin_mse".
    matryoshka_dims: Also train vectors truncated to these dimensions.
    matryoshka_layers: Also train the encoder truncated to these numbers of layers.
    **options: Further model options, such as `max_length` and `embedding_slices`.

  Raises:
    InputError: If the objective does not support this encoder.
  """
  from ems_jax.models import distillation, ems, soft_contrastive
  from ems_jax.networks import ems as ems_network
  from vmsst.losses import contrastive as contrastive_losses
  from vmsst.models import contrastive, matryoshka, scores
  from vmsst.models import objectives as objectives_model

  options |= {"network": network, "vocabulary": vocabulary, "optimizer_def": optimizer}
  shared = {name: options[name] for name in options if name != "embedding_slices"}
  options["matryoshka_dims"] = matryoshka_dims
  cosine_options = {**options, "scale": scale}
  in_batch = {**cosine_options, "similarity": "cosine", "mask_duplicates": True}

  def new(name: str) -> Any:
    match name:
      case "distillation":
        return distillation.DistillationModel(**options)
      case "soft_contrastive":
        return soft_contrastive.SoftContrastiveModel(**cosine_options)
      case "similarity":
        return scores.SimilarityModel(**cosine_options)
      case "cosine_mse":
        return scores.SimilarityModel(loss="mse", **cosine_options)
      case "kl_divergence" | "margin_mse":
        return scores.ScoreDistillationModel(
          distillation=name,
          temperature=temperature,
          contrastive_weight=contrastive_weight,
          **in_batch,
        )
      case "ems":
        if network.pooling != "mean" or network.head or network.pooler_dim is not None:
          raise errors.InputError(
            "EMS requires mean pooling without a head or pooler; this encoder has "
            f"pooling={network.pooling!r}, head={network.head} and "
            f"pooler_dim={network.pooler_dim}; choose another encoder or objective"
          )
        ems_net = ems_network.EmsNetwork(config=network.config, share_embedding=True)
        return ems.EmsModel(**{**cosine_options, "network": ems_net}, normalize=network.normalize)
      case _:
        loss = functools.partial(contrastive_losses.contrastive_loss, margin=scale * margin)
        return contrastive.ContrastiveModel(symmetric=not negatives, pair_loss=loss, **in_batch)

  models = {name: new(name) for name in ([objective] if isinstance(objective, str) else objective)}
  if matryoshka_layers:
    models = {
      name: matryoshka.LayersModel(model=base, layers=matryoshka_layers, **shared)
      for name, base in models.items()
    }
  if len(models) == 1:
    return next(iter(models.values()))
  return objectives_model.ObjectivesModel(models=models, **shared)


def optimizer(
  schedule: Any,
  frozen: Sequence[str] = (),
  *,
  lora_rank: int | None = None,
  lora_alpha: float | None = None,
  lora_targets: Sequence[str] = (".*kernel",),
  row_wise: bool = False,
) -> Any:
  """Builds AdamW with gradient clipping.

  Args:
    schedule: Function that takes a step and returns its learning rate.
    frozen: Regular expressions for the names of frozen parameters.
    lora_rank: Rank of the LoRA updates (default: no LoRA). LoRA changes only the kernels that
      `lora_targets` matches.
    lora_alpha: LoRA's factor alpha (default: twice the rank).
    lora_targets: Regular expressions for the names of the kernels to train with LoRA.
    row_wise: Whether to update only the token table rows that a batch uses; see
      `vmsst.train.row_wise.RowWise`.
  """
  import optax

  from vmsst.train import lora, optimizers
  from vmsst.train import row_wise as row_wise_lib

  transformations = [optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.01)]
  if lora_rank is None:
    chained = optimizers.chain(transformations, frozen)
    return row_wise_lib.RowWise(chained) if row_wise else chained
  alpha = lora_alpha or 2.0 * lora_rank
  return lora.Lora(optimizers.chain(transformations), lora_rank, alpha, lora_targets)


def assignment_map() -> list[tuple[str, str | None]]:
  """Returns a map that reads all parameters except EMS's heads from the starting encoder."""
  return [("state/.*|target/(xtr_|language_embedder|projection).*", None), ("target/.*", "\\g<0>")]


def _teacher(teacher: str) -> tuple[Any, str | None]:
  """Returns a teacher's identity, and the vector folder if `teacher` is a folder with vectors."""
  from vmsst.encoder import encoding, loading
  from vmsst.formats import encoder_json
  from vmsst.io import manifest

  folder = os.path.abspath(os.path.expanduser(teacher))
  record = os.path.join(folder, manifest.NAME)
  description = os.path.join(folder, encoder_json.ENCODER_FILE)
  # A training run contains job.json and encoder.json. A folder with vectors contains only job.json.
  if os.path.isfile(record) and not os.path.isfile(description):
    return manifest.read(folder).inputs.get("encoder"), folder
  return encoding.identity(loading.load(teacher), teacher), None


def _add_teacher_vectors(
  sets: "Sequence[OpenSet]", teacher: str, vectors: str | None, folder: pathlib.Path, identity: Any
) -> None:
  """Adds a teacher's vectors to training sets. If `vectors` is None, computes the vectors first.

  Raises:
    InputError: If the vectors were not computed from the training sets' files.
  """
  from vmsst.data import training_sets
  from vmsst.encoder import encoding, loading
  from vmsst.io import array_files
  from vmsst.jobs import job

  if vectors is None:
    encoder = loading.load(teacher)
    with job.Job(folder / "teacher", inputs={"encoder": identity}) as teacher_job:
      for entry in sets:
        name = f"{entry.name}.npy"
        if teacher_job.done(name, entry.digest) is None:
          with teacher_job.part(name, entry.digest) as (path, facts):
            facts |= encoding.write_pair_vectors(
              encoder,
              entry.table.pairs(),
              path,
              count=len(entry.table),
              languages=entry.settings.languages,
              title=entry.name,
            )
      teacher_job.finish()
    for entry in sets:
      mapped = array_files.open_mapped(folder / "teacher" / f"{entry.name}.npy", ("N", 2, "width"))
      training_sets.add_vectors(entry, [mapped])
    return
  for entry in sets:
    training_sets.add_file_vectors(entry, vectors)


def _report(folder: pathlib.Path, averaged: dict[str, float] | None) -> str:
  """Formats the results of a run as Markdown. `averaged` holds the averaged encoder's metrics."""
  from vmsst.formats import t5x
  from vmsst.train import dev_sets

  columns = {"loss": _metrics(folder / "train" / "metrics.jsonl").get("loss", {})}
  held_out = _metrics(folder / "inference_eval" / f"{dev_sets.TASK}-metrics.jsonl")
  columns |= {name: values for name, values in held_out.items() if name != "step"}
  lines = ["# Fine-tuning", ""]
  if (best := t5x.read_best(folder)) is not None:
    lines += [f"Best: {best['checkpoint']}, score {best['value']:.2f} on the held-out sets.", ""]
  lines += [f"| step | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
  for step in sorted(held_out.get("score") or columns["loss"]):
    cells = [f"{x[step]:.4g}" if step in x else "" for x in columns.values()]
    lines.append(f"| {step} | {' | '.join(cells)} |")
  if averaged is not None:
    cells = [f"{averaged[name]:.4g}" if name in averaged else "" for name in columns]
    lines.append(f"| average | {' | '.join(cells)} |")
  return "\n".join([*lines, ""])


def _metrics(path: pathlib.Path) -> dict[str, dict[int, float]]:
  """Reads the values of each metric from a file, by step."""
  values: dict[str, dict[int, float]] = {}
  for record in map(json.loads, path.read_text().splitlines() if path.is_file() else []):
    for name, value in record.items():
      values.setdefault(name, {})[record["step"]] = float(value)  # The value may be "nan".
  return values
