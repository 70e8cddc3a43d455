"""The parts of an encoder, read from any folder, store or name that has one.

`vmsst.load` puts them together, exports write them in other formats, and training starts from them.
"""

import dataclasses
import functools
import operator
import os
import pathlib
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from vmsst import errors
from vmsst.checkpoints import encoder_folders, encoder_json, restoring
from vmsst.checkpoints.importers import encoders, weight_tables
from vmsst.io import storage


@dataclasses.dataclass(frozen=True)
class SavedEncoder:
  """The parts of an encoder, as saved.

  Attributes:
    name: Path of its parameters.
    assets: Networks, vocabulary, maximum length and languages.
    network: The network that was read.
    params: Its parameters, float32, as a tree.
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
  with encoder_folders.opened(path) as folder:
    if folder.released:
      converted, assets = _released(pathlib.Path(folder.assets))
      network = select_network(assets)
      unused = () if assets.network.pooling == "pooler" else ("pooler/",)
      arrays = {
        name: jax.device_put(array, may_alias=True)
        for name, array in converted.params.items()
        if not name.startswith(unused)
      }
      params = traverse_util.unflatten_dict(arrays, sep="/")
    else:
      assets = encoder_json.load_encoder_assets(folder.assets)
      network = select_network(assets)
      params = restoring.restore_params(folder.parameters, network)
  return SavedEncoder(folder.name, assets, network, params)


def read_arrays(path: str | os.PathLike[str]) -> Mapping[str, Any]:
  """Returns the parameters of an encoder by name, float32; a vocabulary is not needed.

  Arguments and errors are those of `read`.
  """
  with encoder_folders.opened(path) as folder:
    if folder.released:
      return encoders.convert(pathlib.Path(folder.assets)).params
  return read(path).arrays


def read_assets(path: str | os.PathLike[str]) -> encoder_json.EncoderAssets:
  """Returns what describes an encoder, without reading its parameters.

  Arguments and errors are those of `read`.
  """
  with encoder_folders.opened(path) as folder:
    if folder.released:
      return _released(pathlib.Path(folder.assets))[1]
    return encoder_json.load_encoder_assets(folder.assets)


def _released(
  folder: pathlib.Path,
) -> tuple[weight_tables.Converted, encoder_json.EncoderAssets]:
  converted = encoders.convert(folder)
  if converted.assets is None:
    raise errors.InputError(
      f"{folder} has no {encoders.TOKENIZER_FILE} to encode texts with: save one with "
      "transformers' AutoTokenizer"
    )
  # The vocabulary's file is read as long as the process lives.
  return converted, converted.assets(pathlib.Path(tempfile.mkdtemp(dir=storage.process_folder())))
