"""The files beside a checkpoint that make it usable without gin: `encoder.json` and a vocabulary.

`encoder.json` names a network out of a fixed table, its sizes, the vocabulary's kind and the
training length. It is data: reading one never imports or runs anything that it names.
"""

import dataclasses
import hashlib
import json
import os
import typing
from typing import Any

import jax
from etils import epath

from vmsst import errors, vocabularies
from vmsst.networks import sentence_encoder, t5

FORMAT = 1
ENCODER_FILE = "encoder.json"
VOCABULARY_FILE = "vocabulary.model"

# What encoder.json may name: network class, and the dataclass of its `config`.
NETWORKS = {"SentenceEncoder": (sentence_encoder.SentenceEncoder, t5.T5Config)}


@dataclasses.dataclass(frozen=True)
class EncoderAssets:
  """What inference needs besides parameters.

  Attributes:
    network: Maps token ids to sentence vectors.
    vocabulary: Maps sentences to token ids.
    max_length: Tokens of a sentence in training, EOS included; longer ones are cut.
  """

  network: sentence_encoder.SentenceEncoder
  vocabulary: vocabularies.Vocabulary
  max_length: int


def save_encoder_assets(model: Any, directory: str | os.PathLike[str]) -> None:
  """Writes `encoder.json` and the vocabulary's file into `directory`, each one atomically.

  Args:
    model: A `BitextModel`: its `sentence_encoder`, `vocabulary` and `max_length` are saved.
    directory: Made if missing.

  Raises:
    InputError: the vocabulary's file cannot be read, or has more pieces than the network's table
      has rows.
  """
  network, vocabulary = model.sentence_encoder, model.vocabulary
  _check_vocabulary_fits(vocabulary, network, "the model")
  folder = epath.Path(directory)
  folder.mkdir(parents=True, exist_ok=True)
  entry: dict[str, Any] = {"kind": "byte", "lowercase": vocabulary.lowercase}
  if isinstance(vocabulary, vocabularies.SentencePieceVocabulary):
    content = vocabulary.model_bytes
    _write(folder / VOCABULARY_FILE, content)
    entry |= {"kind": "sentencepiece", "sha256": hashlib.sha256(content).hexdigest()}
  record = {
    "format": FORMAT,
    "network": {
      "class": type(network).__name__,
      "config": dataclasses.asdict(network.config),
      "latent_dim": network.latent_dim,
    },
    "vocabulary": entry,
    "max_length": model.max_length,
  }
  _write(folder / ENCODER_FILE, (json.dumps(record, indent=2) + "\n").encode())


def load_encoder_assets(directory: str | os.PathLike[str]) -> EncoderAssets:
  """Reads what `save_encoder_assets` has written.

  Raises:
    InputError: a file is missing, damaged or of another format; the message names it.
  """
  folder = epath.Path(directory)
  path = folder / ENCODER_FILE
  record = _read_json(path)
  found = record.get("format")
  if found != FORMAT:
    raise errors.InputError(
      f"{path}: format {found!r}; this version of vmsst reads format {FORMAT}"
    )
  network = _network(_get(record, "network", dict, path), path)
  vocabulary = _vocabulary(_get(record, "vocabulary", dict, path), folder)
  max_length = _get(record, "max_length", int, path)
  if max_length < 1:
    raise errors.InputError(f"{path}: max_length is {max_length}; it has to be at least 1")
  _check_vocabulary_fits(vocabulary, network, str(path))
  return EncoderAssets(network, vocabulary, max_length)


def summarize_run(model_dir: str, summary_writer: Any, step: int, model: Any) -> None:
  """Writes the run's `config.gin` and the encoder's assets into `model_dir`.

  For gin: `train_script.train.summarize_config_fn = @assets.summarize_run` with
  `assets.summarize_run.model = %MODEL`; it calls the running runtime's own summary first.
  """
  from t5x import gin_utils  # the runtime's: upstream's or the bundled one under that name

  gin_utils.summarize_gin_config(model_dir, summary_writer, step)
  if jax.process_index() == 0:
    save_encoder_assets(model, model_dir)


def _write(path: epath.Path, content: bytes) -> None:
  """Replaces `path` in one step: a reader finds the old content or the new one, never a part."""
  partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
  partial.write_bytes(content)
  partial.replace(path)


def _read_json(path: epath.Path) -> dict[str, Any]:
  try:
    record = json.loads(path.read_bytes())
  except FileNotFoundError:
    raise errors.InputError(
      f"{path} does not exist: the folder was not written by a training run of vmsst, or its "
      "gin file does not bind train_script.train.summarize_config_fn to assets.summarize_run"
    ) from None
  except (ValueError, RecursionError) as error:
    raise errors.InputError(f"{path} is not valid JSON: {error}") from None
  if not isinstance(record, dict):
    raise errors.InputError(f"{path} holds a JSON {type(record).__name__}, not an object")
  return record


def _get(record: dict[str, Any], key: str, kind: type, path: epath.Path) -> Any:
  """`record[key]`, which has to be of the given JSON type."""
  value = record.get(key)
  if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
    raise errors.InputError(f"{path}: {key!r} is {value!r}, not of type {kind.__name__}")
  return value


def _network(entry: dict[str, Any], path: epath.Path) -> sentence_encoder.SentenceEncoder:
  name = _get(entry, "class", str, path)
  if name not in NETWORKS:
    raise errors.InputError(f"{path}: unknown network {name!r}; known: {', '.join(NETWORKS)}")
  network_cls, config_cls = NETWORKS[name]
  values = _get(entry, "config", dict, path)
  kinds = typing.get_type_hints(config_cls)
  unknown = sorted(set(values) - set(kinds))
  if unknown:
    raise errors.InputError(f"{path}: unknown keys in the network's config: {', '.join(unknown)}")
  for key, value in values.items():
    # A whole number is a float's value too; true is not a number's.
    if type(value) is not kinds[key] and not (kinds[key] is float and type(value) is int):
      raise errors.InputError(f"{path}: {key!r} of the network's config is {value!r}")
  latent_dim = _get(entry, "latent_dim", int, path)
  if latent_dim < 1:
    raise errors.InputError(f"{path}: latent_dim is {latent_dim}; it has to be at least 1")
  try:
    return network_cls(config=config_cls(**values), latent_dim=latent_dim)
  except (TypeError, ValueError) as error:
    raise errors.InputError(f"{path}: {error}") from None


def _vocabulary(entry: dict[str, Any], folder: epath.Path) -> vocabularies.Vocabulary:
  path = folder / ENCODER_FILE
  kind, lowercase = _get(entry, "kind", str, path), _get(entry, "lowercase", bool, path)
  if kind == "byte":
    return vocabularies.ByteVocabulary(lowercase=lowercase)
  if kind != "sentencepiece":
    raise errors.InputError(
      f"{path}: unknown kind of vocabulary {kind!r}; known: byte, sentencepiece"
    )
  model_path = folder / VOCABULARY_FILE
  try:
    digest = hashlib.sha256(model_path.read_bytes()).hexdigest()
  except FileNotFoundError:
    raise errors.InputError(f"{model_path} does not exist, but {path} asks for it") from None
  if digest != _get(entry, "sha256", str, path):
    raise errors.InputError(
      f"{model_path} is not the vocabulary that the encoder was trained with "
      f"(its SHA-256 differs from the one in {path})"
    )
  return vocabularies.SentencePieceVocabulary(os.fspath(model_path), lowercase=lowercase)


def _check_vocabulary_fits(
  vocabulary: vocabularies.Vocabulary, network: sentence_encoder.SentenceEncoder, where: str
) -> None:
  rows = network.config.vocab_size
  if vocabulary.size > rows:
    raise errors.InputError(
      f"{where}: the vocabulary has {vocabulary.size} pieces but the network's token table only "
      f"{rows} rows (T5Config.vocab_size)"
    )
