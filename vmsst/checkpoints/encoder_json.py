"""The files next to a checkpoint that make it usable without gin: `encoder.json` and a vocabulary.

`encoder.json` names networks from a fixed table, their attributes, the vocabulary's kind and the
training length. It is data: reading it never imports or runs anything that it names.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from etils import epath

from vmsst import errors
from vmsst import languages as languages_lib
from vmsst.checkpoints import hugging_face
from vmsst.files import atomic_files, checksums, input_files, storage
from vmsst.networks import sentence_encoder, t5
from vmsst.networks import vmsst as vmsst_networks
from vmsst.text import hugging_face_vocabulary, vocabularies

FORMAT = 1
ENCODER_FILE = "encoder.json"
VOCABULARY_FILE = "vocabulary.model"

# Networks that encoder.json may name: for inference, and as trained with a decoder.
NETWORKS: dict[str, type] = {"SentenceEncoder": sentence_encoder.SentenceEncoder}
GENERATORS: dict[str, type] = {
  "BitranslationNetwork": vmsst_networks.BitranslationNetwork,
  "VmsstNetwork": vmsst_networks.VmsstNetwork,
}
# Attributes of every Flax module, which the file leaves out.
_OF_EVERY_MODULE = {"parent", "name"}
# Keys of a network that are read before its other attributes.
_READ_FIRST = {"class", "config_class", "config"}
# Attributes by their names in older files.
_RENAMED = {"factorised": "factorized"}


@dataclasses.dataclass(frozen=True)
class EncoderAssets:
  """Everything that inference needs except parameters.

  Attributes:
    network: Maps token ids to sentence vectors.
    vocabulary: Maps sentences to token ids.
    max_length: Tokens of a sentence in training, EOS included. Longer sentences are cut.
    generator: The whole network of a run that trained a decoder too, or None.
    languages: Codes of the languages in the training data, or None if unknown.
  """

  network: sentence_encoder.SentenceEncoder
  vocabulary: vocabularies.Vocabulary
  max_length: int
  generator: vmsst_networks.BitranslationNetwork | None = None
  languages: tuple[str, ...] | None = None


def save_encoder_assets(
  model: Any,
  directory: str | os.PathLike[str],
  languages: Iterable[str] | None = None,
  weights: Sequence[str] = (),
) -> None:
  """Writes `encoder.json` and the vocabulary's file into `directory`, each atomically.

  Args:
    model: A `BitextModel`. Its `sentence_encoder`, `vocabulary` and `max_length` are saved, and its
      `network` if that has a decoder.
    directory: Folder to write to; made if missing.
    languages: Codes of the training languages, if known.
    weights: Names of the safetensors files of an export, whose checksums are saved. None of
      them: the parameters are in a checkpoint, which has checksums of its own.

  Raises:
    InputError: the vocabulary's file cannot be read, or has more pieces than the network's token
      table has rows.
  """
  network, vocabulary = model.sentence_encoder, model.vocabulary
  _check_vocabulary_fits(vocabulary, network, "the model")
  record = {"network": _describe(network), "max_length": model.max_length}
  if languages is not None:
    record["languages"] = sorted(languages)
  if type(model.network).__name__ in GENERATORS:
    record["generator"] = _describe(model.network)
  if weights:
    folder = pathlib.Path(directory)
    sums = {name: checksums.of_file(folder / name) for name in weights}
    record["weights"] = {"sha256": sums.pop(hugging_face.WEIGHTS_FILE)}
    if sums:
      record["weights"]["others"] = sums
  _save(record, vocabulary, epath.Path(storage.path(directory)))


def save_assets(
  assets: EncoderAssets, directory: str | os.PathLike[str], weights: Sequence[str] = ()
) -> None:
  """Writes the files of `save_encoder_assets` for an encoder without the decoder of its run.

  Args:
    assets: The encoder.
    directory: Folder to write to.
    weights: As in `save_encoder_assets`.
  """
  alone = types.SimpleNamespace(
    network=assets.network,
    sentence_encoder=assets.network,
    vocabulary=assets.vocabulary,
    max_length=assets.max_length,
  )
  save_encoder_assets(alone, directory, assets.languages, weights)


def save_imported_encoder(
  directory: str | os.PathLike[str],
  *,
  network: Mapping[str, Any],
  vocabulary: vocabularies.Vocabulary,
  max_length: int,
) -> None:
  """Writes the files of `save_encoder_assets` for an encoder that another library has trained.

  Args:
    directory: Folder to write to; made if missing.
    network: Entry of the network in `encoder.json`: its class, its config's, and their attributes.
    vocabulary: Maps sentences to token ids.
    max_length: Tokens of a sentence, EOS included. Longer sentences are cut.

  Raises:
    InputError: the network is unknown, or does not fit the vocabulary.
  """
  folder = epath.Path(storage.path(directory))
  made = _network(dict(network), NETWORKS, folder / ENCODER_FILE)
  _check_vocabulary_fits(vocabulary, made, "the import")
  _save({"network": dict(network), "max_length": max_length}, vocabulary, folder)


def digest(network: Any, vocabulary: vocabularies.Vocabulary, max_length: int) -> str:
  """Returns a SHA-256 of everything that an encoder's vectors depend on except its parameters."""
  files = _vocabulary_files(vocabulary).values()
  described = _describe_vocabulary(vocabulary)
  described.pop("prompts", None)  # They are not used by default.
  record = {
    "network": _describe(network),
    "max_length": max_length,
    "vocabulary": described,
    "files": [hashlib.sha256(content).hexdigest() for content in files],
  }
  return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def load_encoder_assets(directory: str | os.PathLike[str]) -> EncoderAssets:
  """Returns the assets that `save_encoder_assets` has written.

  If they have checksums of safetensors files in the folder, these files are checked. Exports of
  older versions have none.

  Raises:
    InputError: a file is missing, damaged or of another format; the message names it.
  """
  folder = epath.Path(storage.path(directory))
  path = folder / ENCODER_FILE
  record = _read(path)
  network = _network(_get(record, "network", dict, path), NETWORKS, path)
  generator = None
  if "generator" in record:
    generator = _network(_get(record, "generator", dict, path), GENERATORS, path)
  vocabulary = _vocabulary(_get(record, "vocabulary", dict, path), folder)
  codes = None
  if "languages" in record:
    codes = tuple(_get(record, "languages", list, path))
    for code in codes:
      _check_language(code, path)
  max_length = _get(record, "max_length", int, path)
  if max_length < 1:
    raise errors.InputError(f"{path}: max_length is {max_length}; it must be at least 1")
  for found_network in (network, generator or network):
    _check_vocabulary_fits(vocabulary, found_network, str(path))
  if "weights" in record:
    _check_weights(_get(record, "weights", dict, path), folder)
  return EncoderAssets(network, vocabulary, max_length, generator, codes)


def _save(record: dict[str, Any], vocabulary: Any, folder: epath.Path) -> None:
  """Writes the vocabulary's file, if it has one, and then `encoder.json`."""
  entry = _describe_vocabulary(vocabulary)
  for name, content in _vocabulary_files(vocabulary).items():
    atomic_files.write_bytes(folder / name, content)
    entry["sha256"] = hashlib.sha256(content).hexdigest()
  record = {"format": FORMAT, **record, "vocabulary": entry}
  atomic_files.write_bytes(folder / ENCODER_FILE, (json.dumps(record, indent=2) + "\n").encode())


def _describe_vocabulary(vocabulary: Any) -> dict[str, Any]:
  """Returns the kind and attributes of a vocabulary for JSON."""
  if isinstance(vocabulary, hugging_face_vocabulary.HuggingFaceVocabulary):
    return {
      "kind": "hugging_face",
      "padding_id": vocabulary.padding_id,
      "prefix": vocabulary.prefix,
      **({"prompts": dict(vocabulary.prompts)} if vocabulary.prompts else {}),
    }
  if isinstance(vocabulary, vocabularies.SentencePieceVocabulary):
    return {
      "kind": "sentencepiece",
      "lowercase": vocabulary.lowercase,
      "pretokenize": vocabulary.pretokenize,
    }
  return {"kind": "byte", "lowercase": vocabulary.lowercase}


def _vocabulary_files(vocabulary: Any) -> dict[str, bytes]:
  """Returns the file of a vocabulary by name; bytes have none."""
  if isinstance(vocabulary, hugging_face_vocabulary.HuggingFaceVocabulary):
    return {hugging_face_vocabulary.TOKENIZER_FILE: vocabulary.content}
  if isinstance(vocabulary, vocabularies.SentencePieceVocabulary):
    return {VOCABULARY_FILE: vocabulary.model_bytes}
  return {}


def _read(path: epath.Path) -> dict[str, Any]:
  """Returns the content of an `encoder.json` of this format."""
  record = _read_json(path)
  found = record.get("format")
  if found != FORMAT:
    raise errors.InputError(
      f"{path}: format {found!r}; this version of vmsst reads format {FORMAT}"
    )
  return record


def _read_json(path: epath.Path) -> dict[str, Any]:
  if not path.exists():
    raise errors.InputError(
      f"{path} does not exist: no training run of vmsst wrote the folder, or its gin file does not "
      "bind train_script.train.summarize_config_fn to run_summary.summarize_run"
    )
  record = input_files.read_json(path)
  if not isinstance(record, dict):
    raise errors.InputError(f"{path} holds a JSON {type(record).__name__}, not an object")
  return record


def _get(record: dict[str, Any], key: str, kind: type, path: epath.Path) -> Any:
  """Returns `record[key]`, which must be of the given JSON type."""
  value = record.get(key)
  if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
    raise errors.InputError(f"{path}: {key!r} is {value!r}, not of type {kind.__name__}")
  return value


def _describe(network: Any) -> dict[str, Any]:
  """Returns the class and attributes of a network for JSON."""
  attributes = {
    name: getattr(network, name) for name in _attribute_types(type(network)) if name != "config"
  }
  return {
    "class": type(network).__name__,
    "config_class": type(network.config).__name__,
    "config": dataclasses.asdict(network.config),
    **attributes,
  }


def _attribute_types(cls: type) -> dict[str, Any]:
  """Returns the types of a dataclass's own attributes by name."""
  types_by_name = typing.get_type_hints(cls)
  names = (field.name for field in dataclasses.fields(cls))
  return {name: types_by_name[name] for name in names if name not in _OF_EVERY_MODULE}


def _network(entry: dict[str, Any], known: dict[str, type], path: epath.Path) -> Any:
  """Returns the network that `_describe` described; missing attributes have their defaults."""
  name = _get(entry, "class", str, path)
  if name not in known:
    raise errors.InputError(f"{path}: unknown network {name!r}; known: {', '.join(known)}")
  # Older files, all of T5 encoders, do not name the config's class.
  config_name = _get({"config_class": t5.T5Config.__name__, **entry}, "config_class", str, path)
  hint = _attribute_types(known[name])["config"]
  configs = {cls.__name__: cls for cls in typing.get_args(hint) or (hint,)}
  if config_name not in configs:
    raise errors.InputError(
      f"{path}: {name} has no config {config_name!r}; known: {', '.join(configs)}"
    )
  values = _get(entry, "config", dict, path)
  entry = {_RENAMED.get(key, key): value for key, value in entry.items() if key not in _READ_FIRST}
  config = _made(configs[config_name], values, "the network's config", path)
  latent_dim = _get(entry, "latent_dim", int, path)
  if latent_dim < 1:
    raise errors.InputError(f"{path}: latent_dim is {latent_dim}; it must be at least 1")
  return _made(known[name], entry, "the network", path, config=config)


def _made(cls: type, values: dict[str, Any], what: str, path: epath.Path, **given: Any) -> Any:
  """Returns an instance of a dataclass from a file's values, whose types are checked."""
  wanted = _attribute_types(cls)
  if unknown := sorted(set(values) - set(wanted)):
    raise errors.InputError(f"{path}: unknown keys in {what}: {', '.join(unknown)}")
  for key, value in values.items():
    if not _is_of_type(value, wanted[key]):
      raise errors.InputError(f"{path}: {key!r} of {what} is {value!r}")
  values = {
    key: tuple(value) if isinstance(value, list) else value for key, value in values.items()
  }
  try:
    return cls(**values, **given)
  except (TypeError, ValueError) as error:
    raise errors.InputError(f"{path}: {error}") from None


def _is_of_type(value: Any, wanted: Any) -> bool:
  """Whether a value from JSON has an attribute's type; lists stand for tuples."""
  if isinstance(wanted, types.UnionType):
    return any(_is_of_type(value, option) for option in typing.get_args(wanted))
  if typing.get_origin(wanted) is tuple:
    item, _ = typing.get_args(wanted)
    return isinstance(value, list) and all(_is_of_type(x, item) for x in value)
  # A float may be written as an integer; true is not an integer.
  return type(value) is wanted or (wanted is float and type(value) is int)


def _vocabulary(entry: dict[str, Any], folder: epath.Path) -> vocabularies.Vocabulary:
  path = folder / ENCODER_FILE
  kind = _get(entry, "kind", str, path)
  if kind == "hugging_face":
    return _hugging_face_vocabulary(entry, folder)
  if kind not in ("byte", "sentencepiece"):
    raise errors.InputError(
      f"{path}: unknown kind of vocabulary {kind!r}; known: byte, sentencepiece, hugging_face"
    )
  lowercase = _get(entry, "lowercase", bool, path)
  if kind == "byte":
    return vocabularies.ByteVocabulary(lowercase=lowercase)
  model_path = _checked_file(entry, folder, VOCABULARY_FILE)
  # Older files, of vocabularies that do not split text into words, lack this key.
  pretokenize = _get({"pretokenize": False, **entry}, "pretokenize", bool, path)
  return vocabularies.SentencePieceVocabulary(model_path, lowercase, pretokenize)


def _hugging_face_vocabulary(entry: dict[str, Any], folder: epath.Path) -> vocabularies.Vocabulary:
  path = folder / ENCODER_FILE
  prefix, padding_id = _get(entry, "prefix", str, path), _get(entry, "padding_id", int, path)
  tokenizer_path = _checked_file(entry, folder, hugging_face_vocabulary.TOKENIZER_FILE)
  prompts = _get({"prompts": {}, **entry}, "prompts", dict, path)
  if not all(isinstance(prompt, str) for prompt in prompts.values()):
    raise errors.InputError(f"{path}: 'prompts' is {prompts!r}; all prompts must be strings")
  vocabulary = hugging_face_vocabulary.HuggingFaceVocabulary(tokenizer_path, prefix, prompts)
  if vocabulary.padding_id != padding_id:
    raise errors.InputError(
      f"{path}: padding_id is {padding_id}, but {tokenizer_path} pads with {vocabulary.padding_id}"
    )
  return vocabulary


def _checked_file(entry: dict[str, Any], folder: epath.Path, name: str) -> str:
  """Returns the path of the vocabulary's file, which must have the checksum in `encoder.json`."""
  path, found = folder / ENCODER_FILE, folder / name
  if not found.exists():
    raise errors.InputError(f"{found} does not exist, but {path} requires it")
  digest = hashlib.sha256(input_files.read_bytes(found)).hexdigest()
  if digest != _get(entry, "sha256", str, path):
    raise errors.InputError(
      f"{found} is not the vocabulary that the encoder was trained with "
      f"(its SHA-256 differs from that in {path})"
    )
  return os.fspath(found)


def _check_weights(entry: dict[str, Any], folder: epath.Path) -> None:
  """Raises InputError if a safetensors file of an export does not have the saved checksum."""
  path = folder / ENCODER_FILE
  sums = {hugging_face.WEIGHTS_FILE: _get(entry, "sha256", str, path)}
  for name, expected in (sums | _get({"others": {}, **entry}, "others", dict, path)).items():
    found = folder / name
    if found.is_file() and checksums.of_file(found) != expected:
      raise errors.InputError(
        f"{found} is damaged: it has changed since the export (its SHA-256 differs from that in "
        f"{path}); copy or export it again"
      )


def _check_language(code: Any, path: epath.Path) -> None:
  try:
    languages_lib.language(str(code))
  except errors.InputError as error:
    raise errors.InputError(f"{path}: 'languages': {error}") from None


def _check_vocabulary_fits(vocabulary: vocabularies.Vocabulary, network: Any, where: str) -> None:
  rows = network.config.vocab_size
  if vocabulary.size > rows:
    raise errors.InputError(
      f"{where}: the vocabulary has {vocabulary.size} pieces, but the network's token table only "
      f"{rows} rows ({type(network.config).__name__}.vocab_size)"
    )
