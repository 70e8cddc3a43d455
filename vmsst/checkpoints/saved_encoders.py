"""Finds and reads encoders: in folders, object stores, and on the Hugging Face Hub.

An encoder is one of

* an export: `encoder.json`, the vocabulary's file and `model.safetensors` in one folder (in exports
  for sentence-transformers, the layers after the pooling have folders of their own);
* a checkpoint: `checkpoint_<step>` in T5X's layout, with `encoder.json` and the vocabulary in it or
  next to it;
* a training run: the folder of its checkpoints, for the one in `best.json` or else the latest;
* a folder of transformers or sentence-transformers on this machine, with one of the encoders in
  `vmsst.formats.architectures`, or of LASER2 or LASER3.

The required files of a remote encoder (`gs://`, `s3://`) are copied to this machine. A name such as
"sentence-transformers/LaBSE" is looked up on the Hugging Face Hub if there is no such folder.

`vmsst.load` puts the parts together, exports write them in other formats, and training starts from
them.
"""

import contextlib
import dataclasses
import functools
import operator
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from flax import linen as nn
from flax import traverse_util

from vmsst import errors, storage
from vmsst.formats import (
  encoder_json,
  encoders,
  hub_models,
  hugging_face,
  layer_stacks,
  mt5,
  sentence_transformers_files,
  tensors,
  transformers_weights,
  weight_tables,
)
from vmsst.formats.hugging_face_vocabulary import TOKENIZER_FILE
from vmsst.io import checksums

_EXPORT = {hugging_face.WEIGHTS_FILE, encoder_json.ENCODER_FILE}
_ASSETS = {encoder_json.ENCODER_FILE, encoder_json.VOCABULARY_FILE, TOKENIZER_FILE}
# Further files of exports for sentence-transformers.
_MODULES = {hugging_face.CONFIG_FILE, sentence_transformers_files.MODULES_FILE}


@dataclasses.dataclass(frozen=True)
class _EncoderFolder:
  """Paths of an encoder's parts on this machine.

  Attributes:
    name: Unique name of the encoder: the original path of its parameters.
    parameters: A `checkpoint_<step>` folder or a `model.safetensors`.
    assets: The folder of `encoder.json`.
    released: Whether it is a folder of transformers, and both paths are it.
  """

  name: str
  parameters: epath.Path
  assets: epath.Path
  released: bool = False


def lacks_checkpoint(path: str | os.PathLike[str]) -> bool:
  """Returns whether a path is that of an encoder without a T5X checkpoint.

  That is a name on the Hugging Face Hub, an export, or a folder of transformers.
  """
  if hub_models.is_name(path):
    return True
  if storage.is_url(path):
    return storage.names(os.fspath(path)) >= _EXPORT
  folder = pathlib.Path(path)
  is_export = all((folder / name).is_file() for name in _EXPORT)
  return is_export or hub_models.is_released(folder)


@contextlib.contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[_EncoderFolder]:
  """Yields an encoder's files. After the context, parameters copied from a store are deleted.

  Args:
    path: An export, a checkpoint or a run; local, or in an object store (`gs://`, `s3://`); or a
      name on the Hugging Face Hub.

  Raises:
    TypeError: `path` is neither a string nor a path.
    InputError: there is no encoder, or the store cannot be read. The message lists what is there,
      or names the missing package.
  """
  if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
    raise TypeError(f"the path of the encoder is {path!r}; pass a string or a pathlib.Path")
  if not os.fspath(path):
    raise errors.InputError("the path of the encoder is empty; give the folder of a run or export")
  if hub_models.is_name(path):
    name, snapshot = hub_models.find(os.fspath(path))
    yield dataclasses.replace(_find(snapshot), name=name)
    return
  if not storage.is_url(path):
    yield _find(path)
    return
  url = os.fspath(path).rstrip("/")
  # The vocabulary's file is read as long as the process lives.
  target = pathlib.Path(tempfile.mkdtemp(dir=storage.process_folder()))
  with storage.explained(url, "read"):
    name, around = _copy(url, target)
  with storage.naming(str(target), around):
    folder = _find(target)
    try:
      yield dataclasses.replace(folder, name=name)
    finally:
      if folder.parameters.is_dir():
        shutil.rmtree(folder.parameters / "state")
      else:
        folder.parameters.unlink()


def _copy(url: str, target: pathlib.Path) -> tuple[str, str]:
  """Copies an encoder from a store into a folder; returns the paths of its parameters and there."""

  def copy(folder: str, names: set[str], to: pathlib.Path) -> None:
    to.mkdir(exist_ok=True)
    for name in names:
      storage.download(f"{folder}/{name}", to / name)

  names = storage.names(url)
  if names >= _EXPORT:
    layers = {name for name in names if name[:1].isdigit()}
    copy(url, names & (_EXPORT | _ASSETS | _MODULES) | layers, target)
    return url, url
  from vmsst.checkpoints import t5x  # imports Orbax

  checkpoint = os.fspath(t5x.find_checkpoint(url))
  around, _, name = checkpoint.rpartition("/")
  inside, beside = storage.names(checkpoint), storage.names(around)
  needed = _ASSETS if encoder_json.ENCODER_FILE in inside else set()
  copy(checkpoint, inside & {checksums.NAME, "state", *needed}, target / name)
  if not needed:
    copy(around, beside & _ASSETS, target)
  return checkpoint, around


def _find(path: str | os.PathLike[str]) -> _EncoderFolder:
  """Returns the files of an encoder on this machine."""
  location = os.path.abspath(os.path.expanduser(path))
  if os.path.isfile(location):
    raise errors.InputError(
      f"{location} is a file, not an encoder; give a folder: a training run, one of its "
      "checkpoint_<step> folders, an imported encoder or an export"
    )
  folder = epath.Path(location)
  if all((folder / name).is_file() for name in _EXPORT):
    return _EncoderFolder(os.fspath(folder), folder / hugging_face.WEIGHTS_FILE, folder)
  if hub_models.is_released(pathlib.Path(folder)):
    return _EncoderFolder(os.fspath(folder), folder, folder, released=True)
  if any((folder / name).is_file() for name in _MODULES):
    raise hub_models.unknown(os.fspath(folder), pathlib.Path(folder))
  from vmsst.checkpoints import t5x

  checkpoint = t5x.find_checkpoint(folder)
  inside = (checkpoint / encoder_json.ENCODER_FILE).is_file()
  return _EncoderFolder(
    os.fspath(checkpoint), checkpoint, checkpoint if inside else checkpoint.parent
  )


# --------------------------------------------------------------------------------------------
# Reading


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
  assets: encoder_json.EncoderAssets
  network: Any
  params: Any

  @functools.cached_property
  def arrays(self) -> dict[str, np.ndarray]:
    """The parameters by name; `/` joins the parts of a name."""
    return traverse_util.flatten_dict(jax.tree.map(np.asarray, self.params), sep="/")


def read(
  path: str | os.PathLike[str],
  select_network: Callable[[encoder_json.EncoderAssets], Any] = operator.attrgetter("network"),
) -> SavedEncoder:
  """Reads the parts of an encoder.

  Args:
    path: As in `vmsst.load`.
    select_network: Returns the network to read, by default the encoder alone.

  Raises:
    InputError: as in `vmsst.load`.
  """
  with _opened(path) as folder:
    if not folder.released:
      return _read_own(folder, select_network)
    converted, assets = _released(pathlib.Path(folder.assets))
    params = traverse_util.unflatten_dict(dict(converted.params), sep="/")
  return SavedEncoder(folder.name, assets, select_network(assets), params)


def _read_own(
  folder: _EncoderFolder, select_network: Callable[[encoder_json.EncoderAssets], Any]
) -> SavedEncoder:
  """Reads a run or an export."""
  assets = encoder_json.load_encoder_assets(folder.assets)
  network = select_network(assets)
  return SavedEncoder(folder.name, assets, network, restore_params(folder.parameters, network))


def read_arrays(path: str | os.PathLike[str]) -> Mapping[str, Any]:
  """Returns the parameters of an encoder by name, float32; a vocabulary is not needed.

  Arguments and errors are those of `read`.
  """
  with _opened(path) as folder:
    if folder.released:
      return encoders.convert(pathlib.Path(folder.assets)).params
    return _read_own(folder, operator.attrgetter("network")).arrays


def read_assets(path: str | os.PathLike[str]) -> encoder_json.EncoderAssets:
  """Returns what describes an encoder, without reading its parameters.

  Arguments and errors are those of `read`.
  """
  with _opened(path) as folder:
    if folder.released:
      return _released(pathlib.Path(folder.assets))[1]
    return encoder_json.load_encoder_assets(folder.assets)


def _released(
  folder: pathlib.Path,
) -> tuple[weight_tables.Converted, encoder_json.EncoderAssets]:
  converted = encoders.convert(folder, whole=False)
  if converted.assets is None:
    raise errors.InputError(
      f"{folder} has no {encoders.TOKENIZER_FILE}, or {mt5.VOCABULARY_FILE} of T5, to encode texts "
      "with: save one with transformers' AutoTokenizer. Only training can start from it as it is"
    )
  # The vocabulary's file is read as long as the process lives.
  return converted, converted.assets(pathlib.Path(tempfile.mkdtemp(dir=storage.process_folder())))


def restore_params(parameters: epath.Path, network: nn.Module) -> Any:
  """Reads only the network's parameters, in float32, onto the default device.

  Layers may be scanned in the network and separate in the file, or the other way around.

  Args:
    parameters: A `checkpoint_<step>` folder; or the `model.safetensors` of an export, with a tensor
      for each parameter, or with those of transformers in an export for sentence-transformers.
    network: The network.

  Returns:
    The parameters as a tree.

  Raises:
    InputError: a parameter is missing, has another shape or cannot be read.
  """
  is_export = parameters.name.endswith(".safetensors")
  stored: Mapping[str, tensors.StoredTensor]
  if not is_export:
    from vmsst.checkpoints import t5x  # imports Orbax

    stored = t5x.open_params(parameters)
  elif (parameters.parent / sentence_transformers_files.MODULES_FILE).is_file():
    stored = transformers_weights.open_params(pathlib.Path(parameters.parent), network)
  else:
    stored = tensors.open_file(pathlib.Path(parameters))
  shapes = traverse_util.flatten_dict(_shapes(network, parameters), sep="/")
  sources = {name: _source(name, leaf.shape, stored, parameters) for name, leaf in shapes.items()}
  parts = {part: stored[part] for source in sources.values() for part in source.names}
  if is_export:
    # One by one: at most one is in memory twice. A CPU uses mapped arrays where they are.
    arrays = {
      name: jax.block_until_ready(jax.device_put(part.read(), may_alias=True))
      for name, part in parts.items()
    }
  else:
    arrays = t5x.read_params(parameters, parts)
  return traverse_util.unflatten_dict(
    {name: source.make(arrays) for name, source in sources.items()}, sep="/"
  )


def _shapes(network: nn.Module, where: epath.Path) -> Any:
  """Returns a tree of parameter shapes of a network whose description is untrusted."""
  try:
    tokens_BT = jnp.zeros((1, 1), jnp.int32)
    return jax.eval_shape(network.init, jax.random.key(0), tokens_BT)["params"]
  except Exception as error:  # sizes that no array can have
    raise errors.InputError(f"{where}: encoder.json describes no valid network: {error}") from error


def _source(
  name: str,
  shape: tuple[int, ...],
  stored: Mapping[str, tensors.StoredTensor],
  where: epath.Path,
) -> layer_stacks.Source:
  source = layer_stacks.find(name, shape, stored)
  if source is None:
    raise errors.InputError(
      f"{where} has no parameter {name}, which encoder.json requires; it was trained with another "
      "network or another config (number of layers)"
    )
  if source.shape(stored) != shape:
    raise errors.InputError(
      f"{where}: parameter {name} has shape {source.shape(stored)}, but encoder.json requires "
      f"{shape}"
    )
  return source
