"""`vmsst import`, `export` and `push`: encoders from and for other libraries and people."""

import dataclasses
from typing import Annotated, Literal

from vmsst.cli.command import (
  Argument,
  Command,
  Encoder,
  InputFile,
  InputFolder,
  OutputFolder,
  Positive,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tokenizer:
  """Text splitting in the export.

  Attributes:
    pretokenized: Texts will be split into words before they are encoded; required for a
      tokenizer.json if the vocabulary splits them by the rules of their language (EMS), which it
      cannot do.
  """

  pretokenized: bool = False


def import_encoder(
  folder: InputFolder,
  output: OutputFolder,
  *,
  prefix: str | None = None,
  vocabulary: InputFile | None = None,
) -> None:
  """Import a released encoder as a checkpoint, for upstream T5X or to keep.

  Args:
    folder: Hugging Face folder (config.json, weights and tokenizer.json or spiece.model), of mT5
      and VMSST, too, or the files of LASER.
    output: Folder to make, for vmsst.load and for training to start from.
    prefix: Text before every sentence (default: the model's prompt, or 'query: ' for an E5
      without).
    vocabulary: SentencePiece model of an mT5 or VMSST whose folder lacks it.
  """
  from vmsst.formats import encoders, weight_tables

  imported = encoders.import_encoder(folder, output, prefix=prefix, vocabulary=vocabulary)
  print(weight_tables.describe(imported))


def import_ems(
  file: InputFile, output: OutputFolder, *, vocabulary: InputFile, heads: int | None = None
) -> None:
  """Import the released EMS as an encoder, to use or to train further.

  Args:
    file: EMS_model.pt, or its state dict as .safetensors.
    output: Folder to make, for vmsst.load and for training to start from.
    vocabulary: SentencePiece model of the release (62languages_bpe_60000.model).
    heads: Attention heads (default: width / 64).
  """
  from vmsst.formats import ems, weight_tables

  target = outputs.new_folder(output)
  with storage.local_copy(file) as path:
    converted = ems.convert(path, vocabulary=vocabulary, num_heads=heads)
    imported = weight_tables.save(converted, target)
  print(weight_tables.describe(imported))


def export_sentence_transformers(
  encoder: Encoder, output: OutputFolder, *, tokenizer: Tokenizer
) -> None:
  """Export an encoder as a folder that SentenceTransformer opens.

  Args:
    output: Folder to make.
  """
  from vmsst.formats import sentence_transformers_folder as export

  exported = export.export_sentence_transformers(
    encoder, output, pretokenized=tokenizer.pretokenized
  )
  print(export.describe(exported))


def export_safetensors(encoder: Encoder, output: OutputFolder) -> None:
  """Export an encoder alone, as plain files that vmsst.load opens.

  Args:
    output: Folder to make.
  """
  from vmsst.formats import safetensors_folder

  folder = safetensors_folder.export_safetensors(encoder, output)
  print(f"vmsst.load({str(folder)!r}) opens it")


def export_onnx(encoder: Encoder, output: OutputFolder, *, tokenizer: Tokenizer) -> None:
  """Export an encoder as an ONNX model with its tokenizer, for ONNX Runtime and OpenVINO.

  Args:
    output: Folder to make.
  """
  from vmsst.formats import onnx as export

  exported = export.export_onnx(encoder, output, pretokenized=tokenizer.pretokenized)
  print(export.describe(exported))


def push(
  encoder: Encoder,
  repository: Annotated[str, Argument("OWNER/NAME")],
  *,
  public: bool = False,
  revision: Annotated[str, Argument("BRANCH")] | None = None,
  license: Annotated[str, Argument("ID")] | None = None,
  results: InputFolder | None = None,
  tokenizer: Tokenizer,
) -> None:
  """Upload an encoder to the Hugging Face Hub, for vmsst.load and sentence-transformers.

  Args:
    repository: Repository (OWNER/NAME), made if it is new.
    public: Let everyone see a new repository, or upload to a public one (default: private).
    revision: Branch, made if it is new (default: main).
    license: License in the model card, such as apache-2.0.
    results: Output folder of `vmsst eval`; the model card shows its averages.
  """
  from vmsst.formats import hub_upload

  uploaded = hub_upload.push(
    encoder,
    repository,
    public=public,
    revision=revision,
    license_id=license,
    results=results,
    pretokenized=tokenizer.pretokenized,
  )
  print(hub_upload.describe(uploaded))


def finetune(
  encoder: Encoder,
  pairs: InputFile,
  output: OutputFolder,
  *,
  dev: InputFile | None = None,
  objective: Literal["contrastive", "distillation", "soft_contrastive", "ems"] = "contrastive",
  negatives: int = 0,
  teacher: Encoder | None = None,
  steps: Positive = 500,
  batch_size: Positive = 64,
  learning_rate: float = 2e-5,
  max_length: Positive | None = None,
  eval_every: Positive = 100,
  patience: Positive | None = None,
  slices: Positive = 1,
  freeze_tokens: bool = False,
  seed: int = 0,
) -> None:
  """Fine-tune an encoder on pairs of texts, such as translations.

  Args:
    pairs: TSV file of pairs, with hard negatives in further columns; or JSONL with such fields, of
      any name, as in datasets of sentence-transformers; or the output of `vmsst mine`.
    output: Folder of the run, for vmsst.load; rerun the command to resume.
    dev: Held-out pairs, for evaluation and to choose the best checkpoint.
    objective: Loss: contrastive; with a teacher, distillation or soft_contrastive; or ems, which
      also predicts the tokens of translations (default: contrastive).
    negatives: Hard negatives of each pair (default: 0).
    teacher: Encoder to learn from, or vectors of the pairs (`vmsst data embed`).
    steps: Training steps (default: 500).
    batch_size: Pairs in a batch (default: 64).
    learning_rate: Highest learning rate (default: 2e-5).
    max_length: Tokens of a text, in training and later (default: at most 128).
    eval_every: Steps between evaluations and checkpoints (default: 100).
    patience: Stop after this many evaluations without improvement (default: never).
    slices: Slices of a batch, for batches that do not fit (gradient caching).
    freeze_tokens: Freeze the token table, most of a multilingual encoder's parameters.
    seed: Seed of dropout and of the order of the pairs (default: 0).
  """
  options = locals()
  from vmsst.launch import finetuning

  finetuning.finetune(**options)
  print(f"vmsst.load({output!r}) opens the encoder; {output}/report.md has the results")


COMMANDS: dict[tuple[str, ...], Command] = {
  ("finetune",): Command(finetune, resumable=True),
  ("import", "encoder"): Command(import_encoder, atomic=True),
  ("import", "ems"): Command(import_ems, atomic=True),
  ("export", "sentence-transformers"): Command(export_sentence_transformers, atomic=True),
  ("export", "safetensors"): Command(export_safetensors, atomic=True),
  ("export", "onnx"): Command(export_onnx, atomic=True),
  ("push",): Command(push, resumable=True),
}
