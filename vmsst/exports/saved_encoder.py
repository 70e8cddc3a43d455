"""An encoder as exports read it: what it is, and its parameters as arrays."""

import dataclasses
import os

import jax
import numpy as np
from flax import traverse_util

from vmsst.checkpoints import encoder_json, restoring
from vmsst.inference import encoder_folders


@dataclasses.dataclass(frozen=True)
class SavedEncoder:
  """An encoder.

  Attributes:
    name: Path of its parameters.
    assets: Network, vocabulary, length and languages.
    params: Parameters of the network in float32, by names whose parts are joined by `/`.
  """

  name: str
  assets: encoder_json.EncoderAssets
  params: dict[str, np.ndarray]


def read(path: str | os.PathLike[str]) -> SavedEncoder:
  """Reads what `vmsst.load` opens.

  Args:
    path: A training run, one `checkpoint_<step>` of it, an imported encoder or an export.

  Raises:
    InputError: no encoder there, or one that does not fit its `encoder.json`.
  """
  with encoder_folders.opened(path) as found:
    loaded = encoder_json.load_encoder_assets(found.assets)
    restored = restoring.restore_params(found.parameters, loaded.network)
    flat = traverse_util.flatten_dict(jax.tree.map(np.asarray, restored), sep="/")
  return SavedEncoder(found.name, loaded, flat)
