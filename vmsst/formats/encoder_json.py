"""The files next to a checkpoint that make it usable without gin: `encoder.json` and a vocabulary.

`encoder.json` names networks from a fixed table, their attributes, the vocabulary's kind and the
training length. It is data: reading it never imports or runs anything that it names.
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

# Networks that encoder.json may name: for inference, and as trained with a decoder.
NETWORKS: dict[str, type] = {"SentenceEncoder": sentence_encoder.SentenceEncoder}
GENERATORS = ("BitranslationNetwork", "VmsstNetwork")
# Vocabularies by the kind that encoder.json has for them.
VOCABULARIES: dict[str, type[vocabularies.Vocabulary]] = {
  "byte": vocabularies.ByteVocabulary,
  "laser": vocabularies.LaserVocabulary,  # is a SentencePieceVocabulary, too
  "sentencepiece": vocabularies.SentencePieceVocabulary,
  "hugging_face": HuggingFaceVocabulary,
}
Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]
SIMILARITIES: tuple[Similarity, ...] = get_args(Similarity)
"""How sentence-transformers compares vectors: the first is the default."""
# Attributes of every Flax module, which the file leaves out.
_OF_EVERY_MODULE = {"parent", "name"}
# Attributes of a vocabulary that depend on its file, and keys of its entry that are no attributes.
_NO_OPTIONS = {"path", "tokenizer", "kind", "padding_id", "sha256"}


class EncoderAssets(msgspec.Struct, frozen=True):
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
  generator: "BitranslationNetwork | None" = None
  languages: tuple[str, ...] | None = None
  similarity_fn_name: Similarity = SIMILARITIES[0]


class SavedEncoder(msgspec.Struct, frozen=True):
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

  @property
  def arrays(self) -> dict[str, np.ndarray]:
    """The parameters by name; `/` joins the parts of a name."""
    return traverse_util.flatten_dict(jax.tree.map(np.asarray, self.params), sep="/")


class Converted(msgspec.Struct, frozen=True, kw_only=True):
  """A model of another library, converted.

  Attributes:
    params: Returns the parameters by name.
    sizes: Sizes of the model by the attributes of its config.
    left_out: By the name of each tensor that became no parameter, the reason.
    assets: What `vmsst.load` needs next to the parameters. None: the source has no vocabulary.
    notes: What to know before using the result, one sentence each.
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
  rows = assets.network.config.vocab_size
  if vocabulary.size > rows:
    raise errors.InputError(
      f"the model: the vocabulary has {vocabulary.size} pieces, but the network's token table only "
      f"{rows} rows ({type(assets.network.config).__name__}.vocab_size)"
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
  """Writes a file, which appears as a whole: a run may be loaded while it starts."""
  if storage.is_url(path):
    path.write_bytes(content)
    return
  path.parent.mkdir(parents=True, exist_ok=True)
  partial = path.with_name(f"{path.name}.partial")
  partial.write_bytes(content)
  partial.replace(path)


def write(saved: SavedEncoder, folder: pathlib.Path) -> None:
  """Writes an encoder, without the rest of its run, into a folder that `vmsst.load` opens.

  `model.safetensors` has the parameters in float32 by name (`encoder/layers_0/...`, or
  `encoder/layers/...` with an axis of layers if the run scanned them). `encoder.json` has its
  SHA-256, which `vmsst.load` checks.
  """
  tensors.write_file(folder / WEIGHTS_FILE, saved.arrays)
  save_assets(saved.assets, folder, [WEIGHTS_FILE])


def digest(network: Any, vocabulary: vocabularies.Vocabulary, max_length: int) -> str:
  """Returns a SHA-256 of everything that an encoder's vectors depend on except its parameters."""
  entry, _, content = _describe_vocabulary(vocabulary)
  record = {
    "network": describe(network),
    "max_length": max_length,
    "vocabulary": entry,
    "file": hashlib.sha256(content).hexdigest(),
  }
  return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def vocabulary_digest(vocabulary: vocabularies.Vocabulary) -> str:
  """Returns a SHA-256 of the content of a vocabulary's file."""
  return hashlib.sha256(_describe_vocabulary(vocabulary)[2]).hexdigest()


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
      "bind train_script.train.summarize_config_fn to model_dir.summarize_run"
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
      f"{path}: {error}; the file is damaged, or another version of vmsst has written it"
    ) from None
  for name, expected in record.weights.items():
    weights = folder / name
    if weights.is_file() and input_files.sha256(weights) != expected:
      raise errors.InputError(
        f"{weights} is damaged: it has changed since the export (its SHA-256 differs from that in "
        f"{path}); copy or export it again"
      )
  return EncoderAssets(
    network,
    vocabulary,
    record.max_length,
    generator,
    record.languages,
    record.similarity_fn_name,
  )


def _describe_vocabulary(vocabulary: Any) -> tuple[dict[str, Any], str | None, bytes]:
  """Returns kind and options of a vocabulary for JSON, and its file's name and content, if any."""
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
      del described["skips_unknown"]  # so that digests of other encoders stay the same
    return described, TOKENIZER_FILE, vocabulary.content
  if isinstance(vocabulary, vocabularies.SentencePieceVocabulary):
    return described, VOCABULARY_FILE, vocabulary.model_bytes
  return described, None, b""


def describe(network: Any) -> dict[str, Any]:
  """Returns the class and attributes of a network for JSON."""
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
  """Returns the types of a dataclass's own attributes by name."""
  types_by_name = typing.get_type_hints(cls)
  names = (field.name for field in dataclasses.fields(cls))
  return {name: types_by_name[name] for name in names if name not in _OF_EVERY_MODULE}


def _network(entry: dict[str, Any], networks: dict[str, type]) -> Any:
  """Returns the network that `describe` described; missing attributes have their defaults."""
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
  """Returns an instance of a dataclass from a file's values, whose types are checked."""
  types = _attribute_types(cls)
  if unknown := sorted(set(values) - set(types)):
    raise ValueError(f"unknown attributes of {cls.__name__}: {', '.join(unknown)}")
  for key, value in values.items():
    try:
      arguments[key] = msgspec.convert(value, types[key])
    except msgspec.ValidationError as error:
      raise ValueError(f"{key!r} of {cls.__name__}: {error}") from None
  return cls(**arguments)
