"""`vmsst finetune`, `distill`, `import`, `export` and `push`: commands that write encoders."""

import pathlib
import tempfile
from typing import TYPE_CHECKING, Annotated

from vmsst import errors, finetuning, storage
from vmsst.cli.command import (
  Argument,
  Command,
  Encoder,
  InputFile,
  InputFolder,
  OutputFolder,
  Positive,
  Role,
  Text,
)
from vmsst.jobs import outputs

if TYPE_CHECKING:
  from vmsst.formats import encoder_json


def import_encoder(
  folder: InputFolder,
  output: OutputFolder,
  *,
  prefix: str | None = None,
  vocabulary: InputFile | None = None,
) -> None:
  """Import a released encoder as a T5X checkpoint.

  Args:
    folder: Hugging Face folder with config.json, weights and tokenizer.json or spiece.model, such
      as an mT5 or VMSST folder; or a folder with LASER's files.
    output: New folder, which vmsst.load opens and from which training can start.
    prefix: Text to put before every sentence (default: the model's prompt; 'query: ' for E5 models
      without a prompt).
    vocabulary: SentencePiece model, for mT5 and VMSST folders that do not contain it.
  """
  from vmsst.encoder import loading

  with storage.local_copy(folder) as path:
    model = None if vocabulary is None else pathlib.Path(vocabulary)
    _save(loading.convert(path, prefix=prefix, vocabulary=model), output)


def import_ems(
  file: InputFile, output: OutputFolder, *, vocabulary: InputFile, heads: int | None = None
) -> None:
  """Import the released EMS model, to use it or to train it further.

  Args:
    file: EMS_model.pt, or its state dict as .safetensors.
    output: New folder, which vmsst.load opens and from which training can start.
    vocabulary: SentencePiece model of the release (62languages_bpe_60000.model).
    heads: Number of attention heads (default: width / 64).
  """
  from vmsst.formats import ems

  with storage.local_copy(file) as path:
    _save(ems.convert(path, vocabulary=vocabulary, num_heads=heads), output)


def _save(converted: "encoder_json.Converted", output: str) -> None:
  """Writes an imported encoder; prints skipped tensors, model sizes and how to use the encoder."""
  from vmsst.encoder import loading

  target = outputs.new_folder(output)
  with outputs.atomic_folder(target) as folder:
    params = converted.params()
    vocabulary = loading.write(params, converted.assets, folder)
  reasons: dict[str, list[str]] = {}
  for name, reason in converted.left_out.items():
    reasons.setdefault(reason, []).append(name)
  for reason, names in reasons.items():
    print(f"left out, {reason}: {errors.some(names)}")
  count = sum(array.size for array in params.values())
  sizes = ", ".join(f"{key}={value!r}" for key, value in converted.sizes.items())
  print(f"{count:,} parameters in {len(params)} arrays", f"Sizes: {sizes}", sep="\n")
  for note in converted.notes:
    print(note)
  if vocabulary is not None:
    print(f"vmsst.load({str(target)!r}) opens the encoder")
    print(f"VOCABULARY_PATH = {str(target / vocabulary)!r}")
  print(f"INITIAL_CHECKPOINT_PATH = {str(target / loading.CHECKPOINT)!r}")


def export_sentence_transformers(
  encoder: Encoder, output: OutputFolder, *, pretokenized: bool = False
) -> None:
  """Export an encoder as a sentence-transformers folder.

  Args:
    output: New folder.
    pretokenized: Export the encoder although its vocabulary splits text into words by
      language-specific rules (EMS). The exported encoder cannot do this, so split your texts into
      words before you encode them.
  """
  from vmsst.formats import sentence_transformers, tokenizers

  saved, target = _read(encoder, output)
  with outputs.atomic_folder(target) as folder:
    sentence_transformers.write(saved, folder, pretokenized=pretokenized)
  if storage.is_url(target):  # Other libraries can read only local files.
    print(f"Copy {target} to this machine first, and give the path of the copy:")
  print(
    f"sentence_transformers.SentenceTransformer({str(target)!r}) opens the encoder, and so does "
    f"vmsst.load({str(target)!r})",
    *tokenizers.limits(saved.assets),
    sep="\n",
  )


def export_safetensors(encoder: Encoder, output: OutputFolder) -> None:
  """Export an encoder without its training state, as safetensors for vmsst.load.

  Args:
    output: New folder.
  """
  from vmsst.formats import encoder_json

  saved, target = _read(encoder, output)
  with outputs.atomic_folder(target) as folder:
    encoder_json.write(saved, folder)
  print(f"vmsst.load({str(target)!r}) opens the encoder")


def export_onnx(encoder: Encoder, output: OutputFolder, *, pretokenized: bool = False) -> None:
  """Export an encoder as an ONNX model with its tokenizer, for ONNX Runtime and OpenVINO.

  Args:
    output: New folder.
    pretokenized: As in `vmsst export sentence-transformers`.
  """
  from vmsst.formats import onnx

  saved, target = _read(encoder, output)
  with outputs.atomic_folder(target) as folder:
    onnx.write(saved, folder, pretokenized=pretokenized)
  print(f"{target / onnx.MODEL_FILE}: for ONNX Runtime and OpenVINO", *onnx.usage(saved), sep="\n")


def _read(encoder: str, output: str) -> "tuple[encoder_json.SavedEncoder, storage.Path]":
  """Returns the encoder to export and the path of the new folder."""
  from vmsst.encoder import loading

  target = outputs.new_folder(output)
  return loading.read(encoder), target


def push(
  encoder: Encoder,
  repository: Annotated[str, Argument("OWNER/NAME")],
  *,
  public: bool = False,
  revision: Annotated[str, Argument("BRANCH")] | None = None,
  license: Annotated[str, Argument("ID")] | None = None,
  results: InputFolder | None = None,
  pretokenized: bool = False,
) -> None:
  """Upload an encoder to the Hugging Face Hub, for vmsst.load and sentence-transformers.

  Args:
    repository: Repository, which is created if it does not exist.
    public: Upload to a public repository, new or existing (default: to a private repository).
    revision: Branch, which is created if it does not exist (default: main).
    license: License in the model card, such as apache-2.0.
    results: Output folder of `vmsst eval`, with the averages to show in the model card.
    pretokenized: As in `vmsst export sentence-transformers`.
  """
  from vmsst.encoder import loading
  from vmsst.evaluation import results_files
  from vmsst.formats import hub, sentence_transformers, tokenizers

  hub.check_upload(repository)
  name = f"{repository}@{revision}" if revision else repository
  summary = None
  if results is not None:
    record = results_files.read_results(storage.path(results) / "results.json")
    loaded = loading.load(encoder, max_length=record.get("max_length"))
    if record["encoder"].get("digest") != loaded.digest:
      raise errors.InputError(
        f"{results} contains results for {record['encoder']['name']}. {encoder} is a different "
        f"encoder, has changed since, or was opened with different options; run `vmsst eval "
        f"{encoder}` again"
      )
    summary = results_files.markdown(record)
  saved = loading.read(encoder)
  card = hub.card(saved, name, license_id=license, results=summary)
  with tempfile.TemporaryDirectory(prefix="vmsst-") as temporary:
    folder = pathlib.Path(temporary)
    sentence_transformers.write(saved, folder, pretokenized=pretokenized)
    (folder / hub.CARD_FILE).write_text(card, encoding="utf-8")
    print(hub.upload(folder, repository, public=public, revision=revision))
  print(
    f"vmsst.load({name!r}) opens the encoder, and so does sentence-transformers",
    *tokenizers.limits(saved.assets),
    sep="\n",
  )


def distill(
  encoder: Encoder,
  output: OutputFolder,
  *,
  texts: Text | None = None,
  dimensions: Positive = 256,
  words: int = 0,
  trim: bool = False,
) -> None:
  """Distill a static encoder, a table of token vectors that encodes text much faster.

  Args:
    output: New folder, for vmsst.load, finetune, sentence-transformers and Model2Vec.
    texts: Text file in which to count tokens (default: token frequencies are assumed to follow
      Zipf's law in the order of the tokenizer's vocabulary).
    dimensions: Width of the vectors, at most the encoder's width.
    words: Number of words to add to the vocabulary. The text's most frequent words that consist of
      several tokens are added.
    trim: Drop tokens that do not occur in the text, except for single characters.
  """
  from vmsst.encoder import loading, static

  target = outputs.new_folder(output)
  corpus = None if texts is None else storage.path(texts)
  distilled = static.distill_static(
    loading.load(encoder), corpus, dimensions=dimensions, words=words, trim=trim
  )
  with outputs.atomic_folder(target) as folder:
    distilled.save(folder)
  print(f"vmsst.load({str(target)!r}) opens the encoder; train it with `vmsst finetune`")


COMMANDS: dict[tuple[str, ...], Command] = {
  ("finetune",): Command(
    finetuning.finetune,
    resumable=True,
    types={
      "encoder": Encoder,
      "pairs": InputFile,
      "output": OutputFolder,
      "dev": InputFile | None,
      "teacher": Encoder | None,
      "roles": tuple[Role, Role] | None,
    },
    message="vmsst.load({output!r}) opens the encoder; {output}/report.md has the results",
  ),
  ("distill",): Command(distill, atomic=True),
  ("import", "encoder"): Command(import_encoder, atomic=True),
  ("import", "ems"): Command(import_ems, atomic=True),
  ("export", "sentence-transformers"): Command(export_sentence_transformers, atomic=True),
  ("export", "safetensors"): Command(export_safetensors, atomic=True),
  ("export", "onnx"): Command(export_onnx, atomic=True),
  ("push",): Command(push, resumable=True),
}
