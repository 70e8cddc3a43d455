"""Reads and writes `encoder.json` and the vocabulary file next to a checkpoint.

With these files, `vmsst.load` opens a checkpoint without gin. `encoder.json` contains the class and
attributes of each network, the kind of vocabulary and the maximum length. Classes are looked up in
a fixed table, so the file cannot make the reader import or run arbitrary code.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

import jax
import msgspec
import numpy as np
from etils import epath
from flax import traverse_util

from vmsst import errors, storage
from vmsst.data import vocabularies
from vmsst.formats import tensors
from vmsst.formats.tokenizers import TOKENIZER_FILE, HuggingFaceVocabulary
from vmsst.io import input_files
from vmsst.networks import sentence_encoder

if typing.TYPE_CHECKING:
  from vmsst.networks.vmsst import BitranslationNetwork

FORMAT: Literal[1] = 1
ENCODER_FILE = "encoder.json"
VOCABULARY_FILE = "vocabulary.model"
WEIGHTS_FILE = "model.safetensors"

# Networks allowed in encoder.json: networks for inference, and networks with a decoder.
NETWORKS: dict[str, type] = {"SentenceEncoder": sentence_encoder.SentenceEncoder}
GENERATORS = ("BitranslationNetwork", "VmsstNetwork")
# Vocabularies by their `kind` in encoder.json.
VOCABULARIES: dict[str, type[vocabularies.Vocabulary]] = {
  "byte": vocabularies.ByteVocabulary,
  "laser": vocabularies.LaserVocabulary,  # LaserVocabulary must precede its base class.
  "sentencepiece": vocabularies.SentencePieceVocabulary,
  "hugging_face": HuggingFaceVocabulary,
}
Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]
SIMILARITIES: tuple[Similarity, ...] = get_args(Similarity)
"""Similarity functions of sentence-transformers. The first is the default."""
# Attributes common to all Flax modules. They are not saved.
_OF_EVERY_MODULE = {"parent", "name"}
# Vocabulary attributes that are not saved (`path`, `tokenizer`), and saved keys that are not
# vocabulary attributes (the rest).
_NO_OPTIONS = {"path", "tokenizer", "kind", "padding_id", "sha256"}


class EncoderAssets(msgspec.Struct, frozen=True):
  """Everything that inference needs except the parameters.

  Attributes:
    network: Maps token ids to sentence vectors.
    vocabulary: Maps sentences to token ids.
    max_length: Maximum number of tokens per sentence, including EOS. Longer sentences are
      truncated.
    generator: The network with its decoder, if the run trained a decoder.
    languages: Language codes in the training data, if known.
    similarity_fn_name: Name of the similarity function, one of `SIMILARITIES`.
  """

  network: sentence_encoder.SentenceEncoder
  vocabulary: vocabularies.Vocabulary
  max_length: int
  generator: "BitranslationNetwork | None" = None
  languages: tuple[str, ...] | None = None
  similarity_fn_name: Similarity = SIMILARITIES[0]


class SavedEncoder(msgspec.Struct, frozen=True):
  """An encoder with its parameters.

  Attributes:
    name: Path of the parameters.
    assets: Networks, vocabulary, maximum length and languages.
    network: The network that the parameters belong to, either the encoder alone or the encoder with
      its decoder.
    params: Float32 parameters, as a tree of JAX or NumPy arrays.
  """

  name: str
  assets: EncoderAssets
  network: Any
  params: Any

  @property
  def arrays(self) -> dict[str, np.ndarray]:
    """The parameters by name, such as "encoder/layers_0/mlp/wi/kernel"."""
    return traverse_util.flatten_dict(jax.tree.map(np.asarray, self.params), sep="/")


class Converted(msgspec.Struct, frozen=True, kw_only=True):
  """A model converted from another library.

  Attributes:
    params: Reads the parameters by name.
    sizes: Sizes of the model, as config attributes.
    left_out: Reasons for skipping tensors, by tensor name.
    assets: Everything that `vmsst.load` needs besides the parameters; None if the source has no
      vocabulary.
    notes: Notes for the user, one sentence each.
  """

  params: Callable[[], Mapping[str, np.ndarray]]
  sizes: Mapping[str, Any]
  left_out: Mapping[str, str]
  assets: EncoderAssets | None
  notes: tuple[str, ...] = ()


class _Record(msgspec.Struct, omit_defaults=True):
  """The content of `encoder.json`."""

  format: Literal[1]
  network: dict[str, Any]
  vocabulary: dict[str, Any]
  max_length: Annotated[int, msgspec.Meta(ge=1)]
  generator: dict[str, Any] | None = None
  languages: tuple[str, ...] | None = None
  similarity_fn_name: Similarity = SIMILARITIES[0]
  weights: dict[str, str] = {}


def save_encoder_assets(
  model: Any, directory: str | os.PathLike[str], languages: Iterable[str] | None = None
) -> None:
  """Writes `encoder.json` and a model's vocabulary into a folder.

  Args:
    model: A `BitextModel`. The model's `sentence_encoder`, `vocabulary` and `max_length` are saved.
      Its `network` is saved too if it has a decoder.
    directory: The folder. It is created if missing.
    languages: Language codes of the training data, if known.

  Raises:
    InputError: See `save_assets`.
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
  """Writes `encoder.json` and the vocabulary into a folder.

  Args:
    assets: The assets.
    directory: The folder. It is created if missing.
    weights: Names of safetensors files in the folder. Their checksums are saved in `encoder.json`.
      Omit this argument if the parameters are in a checkpoint, because a checkpoint contains its
      own checksums.

  Returns:
    The name of the vocabulary file, or None if the vocabulary needs no file.

  Raises:
    InputError: If the vocabulary file cannot be read, or the number of vocabulary pieces exceeds
      the number of rows in the network's token table.
  """
  folder, vocabulary = epath.Path(storage.path(directory)), assets.vocabulary
  rows = assets.network.config.vocab_size
  if vocabulary.size > rows:
    raise errors.InputError(
      f"the model: the vocabulary has {vocabulary.size} pieces, but the network's token table has "
      f"only {rows} rows ({type(assets.network.config).__name__}.vocab_size)"
    )
  entry, name, content = _describe_vocabulary(vocabulary)
  record = _Record(
    FORMAT,
    describe(assets.network),
    entry,
    assets.max_length,
    None if assets.generator is None else describe(assets.generator),
    assets.languages,
    assets.similarity_fn_name,
    {name: input_files.sha256(folder / name) for name in weights},
  )
  if name is not None:
    entry["sha256"] = hashlib.sha256(content).hexdigest()
    _write(folder / name, content)
  _write(folder / ENCODER_FILE, msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
  return name


def _write(path: epath.Path, content: bytes) -> None:
  """Writes a file atomically, because a user may load the run while the file is being written."""
  if storage.is_url(path):
    path.write_bytes(content)
    return
  path.parent.mkdir(parents=True, exist_ok=True)
  partial = path.with_name(f"{path.name}.partial")
  partial.write_bytes(content)
  partial.replace(path)


def write(saved: SavedEncoder, folder: pathlib.Path) -> None:
  """Writes an encoder into a folder that `vmsst.load` opens.

  `model.safetensors` contains the parameters in float32, with names such as `encoder/layers_0/...`.
  If the network has `scan_layers`, the names are `encoder/layers/...`, and these parameters have a
  leading layer axis. `encoder.json` contains the SHA-256 of `model.safetensors`, and `vmsst.load`
  verifies this checksum.
  """
  tensors.write_file(folder / WEIGHTS_FILE, saved.arrays)
  save_assets(saved.assets, folder, [WEIGHTS_FILE])


def digest(network: Any, vocabulary: vocabularies.Vocabulary, max_length: int) -> str:
  """Returns a SHA-256 of everything that determines an encoder's vectors, except the parameters."""
  entry, _, content = _describe_vocabulary(vocabulary)
  record = {
    "network": describe(network),
    "max_length": max_length,
    "vocabulary": entry,
    "file": hashlib.sha256(content).hexdigest(),
  }
  return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def vocabulary_digest(vocabulary: vocabularies.Vocabulary) -> str:
  """Returns the SHA-256 of a vocabulary file's content."""
  return hashlib.sha256(_describe_vocabulary(vocabulary)[2]).hexdigest()


def load_encoder_assets(directory: str | os.PathLike[str]) -> EncoderAssets:
  """Reads the assets written by `save_encoder_assets` or `write`.

  If `encoder.json` contains checksums of safetensors files, the checksums are verified.

  Raises:
    InputError: If a file is missing, is damaged or has an unknown format.
  """
  folder = epath.Path(storage.path(directory))
  path = folder / ENCODER_FILE
  if not path.exists():
    raise errors.InputError(
      f"{path} does not exist: either the folder was not written by a vmsst training run, or the "
      "run's gin file does not bind train_script.train.summarize_config_fn to "
      "model_dir.summarize_run"
    )
  try:
    record = msgspec.json.decode(input_files.read_bytes(path), type=_Record)
    network = _network(record.network, NETWORKS)
    generator = None
    if record.generator is not None:
      from vmsst.networks import vmsst as generators

      generator = _network(record.generator, {x: getattr(generators, x) for x in GENERATORS})
    entry, cls = record.vocabulary, _lookup(record.vocabulary["kind"], VOCABULARIES)
    values = {name: x for name, x in entry.items() if name not in _NO_OPTIONS}
    location: dict[str, str] = {}
    if cls is not vocabularies.ByteVocabulary:
      file = folder / (TOKENIZER_FILE if cls is HuggingFaceVocabulary else VOCABULARY_FILE)
      if hashlib.sha256(input_files.read_bytes(file)).hexdigest() != entry["sha256"]:
        raise errors.InputError(
          f"{file} is not the vocabulary that the encoder was trained with (its SHA-256 differs)"
        )
      location = {"path": os.fspath(file)}
    vocabulary = _instance(cls, values, **location)
  except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
    raise errors.InputError(
      f"{path}: {error}; the file is damaged, or another version of vmsst wrote it"
    ) from None
  for name, expected in record.weights.items():
    weights = folder / name
    if weights.is_file() and input_files.sha256(weights) != expected:
      raise errors.InputError(
        f"{weights} is damaged: its SHA-256 does not match {path}; copy or export it again"
      )
  return EncoderAssets(
    network, vocabulary, record.max_length, generator, record.languages, record.similarity_fn_name
  )


def _describe_vocabulary(vocabulary: Any) -> tuple[dict[str, Any], str | None, bytes]:
  """Returns the JSON entry for a vocabulary, and the name and content of its file, if any."""
  kind = next(kind for kind, cls in VOCABULARIES.items() if isinstance(vocabulary, cls))
  described: dict[str, Any] = {"kind": kind}
  for field in dataclasses.fields(vocabulary):
    if field.init and field.name not in _NO_OPTIONS:
      described[field.name] = getattr(vocabulary, field.name)
  if isinstance(vocabulary, HuggingFaceVocabulary):
    described["padding_id"] = vocabulary.padding_id
    if prompts := described.pop("prompts"):
      described["prompts"] = dict(prompts)
    if not vocabulary.skips_unknown:
      del described["skips_unknown"]  # Omit False, because older digests lack this key.
    return described, TOKENIZER_FILE, vocabulary.content
  if isinstance(vocabulary, vocabularies.SentencePieceVocabulary):
    return described, VOCABULARY_FILE, vocabulary.model_bytes
  return described, None, b""


def describe(network: Any) -> dict[str, Any]:
  """Returns the JSON entry for a network: its class and attributes."""
  attributes = {
    field.name: msgspec.to_builtins(getattr(network, field.name))
    for field in dataclasses.fields(network)
    if field.name not in ("config", *_OF_EVERY_MODULE)
  }
  return {
    "class": type(network).__name__,
    "config_class": type(network.config).__name__,
    "config": dataclasses.asdict(network.config),
    **attributes,
  }


def _attribute_types(cls: type) -> dict[str, Any]:
  """Returns the types of a class's attributes by name, except attributes of all Flax modules."""
  types_by_name = typing.get_type_hints(cls)
  names = (field.name for field in dataclasses.fields(cls))
  return {name: types_by_name[name] for name in names if name not in _OF_EVERY_MODULE}


def _network(entry: dict[str, Any], networks: dict[str, type]) -> Any:
  """Creates a network from its JSON entry. Missing attributes get their default values."""
  attributes = dict(entry)
  cls = _lookup(attributes.pop("class"), networks)
  hint = _attribute_types(cls)["config"]
  configs = {hint.__name__: hint}
  if hint is sentence_encoder.EncoderConfig:
    from vmsst.networks import lstm

    configs = {**sentence_encoder.CONFIGS, "LstmConfig": lstm.LstmConfig}
  config = _instance(_lookup(attributes.pop("config_class"), configs), attributes.pop("config"))
  return _instance(cls, attributes, config=config)


def _lookup(name: str, types: dict[str, type]) -> type:
  if name not in types:
    raise ValueError(f"{name!r} is not one of {', '.join(types)}")
  return types[name]


def _instance(cls: type, values: dict[str, Any], /, **arguments: Any) -> Any:
  """Creates a dataclass instance from the values in a file, and checks the types of the values."""
  types = _attribute_types(cls)
  if unknown := sorted(set(values) - set(types)):
    raise ValueError(f"unknown attributes for {cls.__name__}: {', '.join(unknown)}")
  for key, value in values.items():
    try:
      arguments[key] = msgspec.convert(value, types[key])
    except msgspec.ValidationError as error:
      raise ValueError(f"{key!r} of {cls.__name__}: {error}") from None
  return cls(**arguments)
