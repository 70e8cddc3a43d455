"""The files next to a checkpoint that make it usable without gin: `encoder.json` and a vocabulary.

`encoder.json` names networks from a fixed table, their attributes, the vocabulary's kind and the
training length. It is data: reading it never imports or runs anything that it names.
"""

import dataclasses
import functools
import hashlib
import json
import os
import typing
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import msgspec
import numpy as np
from etils import epath
from flax import traverse_util

from vmsst import errors, storage
from vmsst import languages as languages_lib
from vmsst.data import vocabularies
from vmsst.formats import hugging_face, hugging_face_vocabulary
from vmsst.io import checksums, input_files
from vmsst.jobs import atomic_files
from vmsst.networks import sentence_encoder
from vmsst.networks import vmsst as vmsst_networks

FORMAT = 1
ENCODER_FILE = "encoder.json"
VOCABULARY_FILE = "vocabulary.model"

# Networks that encoder.json may name: for inference, and as trained with a decoder.
NETWORKS: dict[str, type] = {"SentenceEncoder": sentence_encoder.SentenceEncoder}
GENERATORS: dict[str, type] = {
  "BitranslationNetwork": vmsst_networks.BitranslationNetwork,
  "VmsstNetwork": vmsst_networks.VmsstNetwork,
}
# Vocabularies by the kind that encoder.json has for them.
VOCABULARIES: dict[str, type[vocabularies.Vocabulary]] = {
  "byte": vocabularies.ByteVocabulary,
  "laser": vocabularies.LaserVocabulary,  # is a SentencePieceVocabulary, too
  "sentencepiece": vocabularies.SentencePieceVocabulary,
  "hugging_face": hugging_face_vocabulary.HuggingFaceVocabulary,
}
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
"""How sentence-transformers compares vectors: the first is the default."""
# Attributes of every Flax module, which the file leaves out.
_OF_EVERY_MODULE = {"parent", "name"}
# Keys of a network that are read before its other attributes.
_READ_FIRST = {"class", "config_class", "config"}


@dataclasses.dataclass(frozen=True)
class EncoderAssets:
  """Everything that inference needs except parameters.

  Attributes:
    network: Maps token ids to sentence vectors.
    vocabulary: Maps sentences to token ids.
    max_length: Tokens of a sentence in training, EOS included. Longer sentences are cut.
    generator: The whole network of a run that trained a decoder too, or None.
    languages: Codes of the languages in the training data, or None if unknown.
    similarity_fn_name: How vectors are compared, one of `SIMILARITIES`.
  """

  network: sentence_encoder.SentenceEncoder
  vocabulary: vocabularies.Vocabulary
  max_length: int
  generator: vmsst_networks.BitranslationNetwork | None = None
  languages: tuple[str, ...] | None = None
  similarity_fn_name: str = SIMILARITIES[0]


@dataclasses.dataclass(frozen=True)
class SavedEncoder:
  """The parts of an encoder, as saved.

  Attributes:
    name: Path of its parameters.
    assets: Networks, vocabulary, maximum length and languages.
    network: The network that was read.
    params: Its parameters, float32, as a tree of arrays of JAX or NumPy.
  """

  name: str
  assets: EncoderAssets
  network: Any
  params: Any

  @functools.cached_property
  def arrays(self) -> dict[str, np.ndarray]:
    """The parameters by name; `/` joins the parts of a name."""
    return traverse_util.flatten_dict(jax.tree.map(np.asarray, self.params), sep="/")


def save_encoder_assets(
  model: Any, directory: str | os.PathLike[str], languages: Iterable[str] | None = None
) -> None:
  """Writes `encoder.json` and the vocabulary's file of a model into `directory`, each atomically.

  Args:
    model: A `BitextModel`. Its `sentence_encoder`, `vocabulary` and `max_length` are saved, and its
      `network` if that has a decoder.
    directory: Folder to write to; made if missing.
    languages: Codes of the training languages, if known.

  Raises:
    InputError: as `save_assets`.
  """
  assets = EncoderAssets(
    network=model.sentence_encoder,
    vocabulary=model.vocabulary,
    max_length=model.max_length,
    generator=model.network if type(model.network).__name__ in GENERATORS else None,
    languages=None if languages is None else tuple(sorted(languages)),
  )
  save_assets(assets, directory)


def save_assets(
  assets: EncoderAssets, directory: str | os.PathLike[str], weights: Sequence[str] = ()
) -> str | None:
  """Writes `encoder.json` and the vocabulary's file into `directory`, each atomically.

  Args:
    assets: What they describe.
    directory: Folder to write to; made if missing.
    weights: Names of the safetensors files of an export, whose checksums are saved. None of
      them: the parameters are in a checkpoint, which has checksums of its own.

  Returns:
    The name of the vocabulary's file, if it has one.

  Raises:
    InputError: the vocabulary's file cannot be read, or has more pieces than the network's token
      table has rows.
  """
  folder, vocabulary = epath.Path(storage.path(directory)), assets.vocabulary
  _check_vocabulary_fits(vocabulary, assets.network, "the model")
  record: dict[str, Any] = {
    "format": FORMAT,
    "network": describe(assets.network),
    "max_length": assets.max_length,
  }
  if assets.languages is not None:
    record["languages"] = assets.languages
  if assets.similarity_fn_name != SIMILARITIES[0]:
    record["similarity_fn_name"] = assets.similarity_fn_name
  if assets.generator is not None:
    record["generator"] = describe(assets.generator)
  if weights:
    record["weights"] = {name: checksums.of_file(folder / name) for name in weights}
  record["vocabulary"] = _describe_vocabulary(vocabulary)
  name, content = _vocabulary_file(vocabulary)
  if name is not None:
    record["vocabulary"]["sha256"] = hashlib.sha256(content).hexdigest()
    atomic_files.write_bytes(folder / name, content)
  atomic_files.write_bytes(folder / ENCODER_FILE, (json.dumps(record, indent=2) + "\n").encode())
  return name


def digest(network: Any, vocabulary: vocabularies.Vocabulary, max_length: int) -> str:
  """Returns a SHA-256 of everything that an encoder's vectors depend on except its parameters."""
  record = {
    "network": describe(network),
    "max_length": max_length,
    "vocabulary": _describe_vocabulary(vocabulary),
    "file": vocabulary_digest(vocabulary),
  }
  return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def vocabulary_digest(vocabulary: vocabularies.Vocabulary) -> str:
  """Returns a SHA-256 of the content of a vocabulary's file."""
  return hashlib.sha256(_vocabulary_file(vocabulary)[1]).hexdigest()


def load_encoder_assets(directory: str | os.PathLike[str]) -> EncoderAssets:
  """Returns the assets that `save_encoder_assets` has written.

  If they have checksums of safetensors files in the folder, these files are checked.

  Raises:
    InputError: a file is missing, damaged or of another format; the message names it.
  """
  folder = epath.Path(storage.path(directory))
  path = folder / ENCODER_FILE
  if not path.exists():
    raise errors.InputError(
      f"{path} does not exist: no training run of vmsst wrote the folder, or its gin file does not "
      "bind train_script.train.summarize_config_fn to run_summary.summarize_run"
    )
  record = hugging_face.read_object(path)
  if record.get("format") != FORMAT:
    raise errors.InputError(
      f"{path}: format {record.get('format')!r}; this version of vmsst reads format {FORMAT}"
    )
  network = _network(_get(record, "network", dict, path), NETWORKS, path)
  generator = None
  if "generator" in record:
    generator = _network(_get(record, "generator", dict, path), GENERATORS, path)
  vocabulary = _vocabulary(_get(record, "vocabulary", dict, path), folder)
  codes = None
  if "languages" in record:
    codes = tuple(_get(record, "languages", list, path))
    for code in codes:
      try:
        languages_lib.language(str(code))
      except errors.InputError as error:
        raise errors.InputError(f"{path}: 'languages': {error}") from None
  max_length = _get(record, "max_length", int, path)
  if max_length < 1:
    raise errors.InputError(f"{path}: max_length is {max_length}; it must be at least 1")
  similarity = record.get("similarity_fn_name", SIMILARITIES[0])
  errors.check_choice(f"{path}: 'similarity_fn_name'", similarity, SIMILARITIES)
  for found_network in (network, generator or network):
    _check_vocabulary_fits(vocabulary, found_network, str(path))
  for name, expected in _get({"weights": {}, **record}, "weights", dict, path).items():
    weights = folder / name
    if weights.is_file() and checksums.of_file(weights) != expected:
      raise errors.InputError(
        f"{weights} is damaged: it has changed since the export (its SHA-256 differs from that in "
        f"{path}); copy or export it again"
      )
  return EncoderAssets(network, vocabulary, max_length, generator, codes, similarity)


def _describe_vocabulary(vocabulary: Any) -> dict[str, Any]:
  """Returns the kind and attributes of a vocabulary for JSON."""
  kind = next(kind for kind, cls in VOCABULARIES.items() if isinstance(vocabulary, cls))
  described = {"kind": kind, **{x: getattr(vocabulary, x) for x in _attributes(type(vocabulary))}}
  if isinstance(vocabulary, hugging_face_vocabulary.HuggingFaceVocabulary):
    described["padding_id"] = vocabulary.padding_id
    described["prompts"] = dict(vocabulary.prompts)
    if not vocabulary.prompts:
      del described["prompts"]
  return described


def _attributes(cls: Any) -> list[str]:
  """Returns the names of the attributes of a vocabulary, except its path."""
  return [field.name for field in dataclasses.fields(cls) if field.init and field.name != "path"]


def _vocabulary_file(vocabulary: Any) -> tuple[str | None, bytes]:
  """Returns name and content of the file of a vocabulary; bytes have none."""
  if isinstance(vocabulary, hugging_face_vocabulary.HuggingFaceVocabulary):
    return hugging_face_vocabulary.TOKENIZER_FILE, vocabulary.content
  if isinstance(vocabulary, vocabularies.SentencePieceVocabulary):
    return VOCABULARY_FILE, vocabulary.model_bytes
  return None, b""


def _get(record: dict[str, Any], key: str, kind: type, path: epath.Path) -> Any:
  """Returns `record[key]`, which must be of the given JSON type."""
  value = record.get(key)
  if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
    raise errors.InputError(f"{path}: {key!r} is {value!r}, not of type {kind.__name__}")
  return value


def describe(network: Any) -> dict[str, Any]:
  """Returns the class and attributes of a network for JSON."""
  attributes = {
    name: msgspec.to_builtins(getattr(network, name))
    for name in _attribute_types(type(network))
    if name != "config"
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
  """Returns the network that `describe` described; missing attributes have their defaults."""
  name = _get(entry, "class", str, path)
  if name not in known:
    raise errors.InputError(f"{path}: unknown network {name!r}; known: {', '.join(known)}")
  config_name = _get(entry, "config_class", str, path)
  hint = _attribute_types(known[name])["config"]
  if hint is sentence_encoder.EncoderConfig:
    configs = sentence_encoder.CONFIGS
  else:
    configs = {hint.__name__: hint}
  if config_name not in configs:
    raise errors.InputError(
      f"{path}: {name} has no config {config_name!r}; known: {', '.join(configs)}"
    )
  values = _get(entry, "config", dict, path)
  entry = {key: value for key, value in entry.items() if key not in _READ_FIRST}
  config = _made(configs[config_name], values, "the network's config", path)
  return _made(known[name], entry, "the network", path, config=config)


def _made(cls: type, values: dict[str, Any], what: str, path: epath.Path, /, **given: Any) -> Any:
  """Returns an instance of a dataclass from a file's values, whose types are checked."""
  wanted = _attribute_types(cls)
  if unknown := sorted(set(values) - set(wanted)):
    raise errors.InputError(f"{path}: unknown keys in {what}: {', '.join(unknown)}")
  for key, value in values.items():
    try:
      given[key] = msgspec.convert(value, wanted[key])
    except msgspec.ValidationError as error:
      raise errors.InputError(f"{path}: {key!r} of {what}: {error}") from None
  try:
    return cls(**given)
  except (TypeError, ValueError) as error:
    raise errors.InputError(f"{path}: {error}") from None


def _vocabulary(entry: dict[str, Any], folder: epath.Path) -> vocabularies.Vocabulary:
  path, given = folder / ENCODER_FILE, {}
  kind = _get(entry, "kind", str, path)
  if kind not in VOCABULARIES:
    raise errors.InputError(
      f"{path}: unknown vocabulary {kind!r}; known: {', '.join(VOCABULARIES)}"
    )
  if kind == "hugging_face":
    given["path"] = _checked_file(entry, folder, hugging_face_vocabulary.TOKENIZER_FILE)
  elif kind != "byte":
    given["path"] = _checked_file(entry, folder, VOCABULARY_FILE)
  names = _attributes(VOCABULARIES[kind])
  if missing := sorted({*names} - entry.keys() - {"prompts"}):
    raise errors.InputError(f"{path}: the vocabulary lacks {', '.join(missing)}")
  values = {name: entry[name] for name in names if name in entry}
  vocabulary = _made(VOCABULARIES[kind], values, "the vocabulary", path, **given)
  if kind == "hugging_face" and vocabulary.padding_id != _get(entry, "padding_id", int, path):
    raise errors.InputError(
      f"{path}: padding_id is {entry['padding_id']}, but {vocabulary.path} pads with "
      f"{vocabulary.padding_id}"
    )
  return vocabulary


def _checked_file(entry: dict[str, Any], folder: epath.Path, name: str) -> str:
  """Returns the path of the vocabulary's file, which must have the checksum in `encoder.json`."""
  path, file = folder / ENCODER_FILE, folder / name
  if not file.exists():
    raise errors.InputError(f"{file} does not exist, but {path} requires it")
  digest = hashlib.sha256(input_files.read_bytes(file)).hexdigest()
  if digest != _get(entry, "sha256", str, path):
    raise errors.InputError(
      f"{file} is not the vocabulary that the encoder was trained with "
      f"(its SHA-256 differs from that in {path})"
    )
  return os.fspath(file)


def _check_vocabulary_fits(vocabulary: vocabularies.Vocabulary, network: Any, where: str) -> None:
  rows = network.config.vocab_size
  if vocabulary.size > rows:
    raise errors.InputError(
      f"{where}: the vocabulary has {vocabulary.size} pieces, but the network's token table only "
      f"{rows} rows ({type(network.config).__name__}.vocab_size)"
    )
