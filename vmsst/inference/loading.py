"""Opens encoders: runs, checkpoints and exports of this library, and folders of other ones."""

import dataclasses
import functools
import os
import pathlib
from typing import Any

import jax.numpy as jnp

from vmsst import errors
from vmsst.checkpoints import encoder_json, restoring
from vmsst.inference import encoder_folders
from vmsst.inference.encoder import Encoder
from vmsst.inference.translation import Translator

_SENTENCE_TRANSFORMERS_FILE = "modules.json"


def load(path: str | os.PathLike[str], *, dtype: str | None = None) -> Encoder:
  """Returns the encoder in a folder, on all devices of this process.

  Args:
    path: A training run (its latest checkpoint is taken), one `checkpoint_<step>` folder of it, an
      imported encoder or an export; local, or in an object store (`gs://`, `s3://`: needs gcsfs or
      s3fs). Parameters may have been saved from any number of devices.
    dtype: What is computed in: "float32", or "bfloat16", which is faster on accelerators and has
      two or three digits; None: as in training. Vectors are float32 in any case.

  Raises:
    InputError: no encoder there, one that does not fit its `encoder.json`, an unknown `dtype`, or a
      package is missing that reads the store.
  """
  with encoder_folders.opened(path) as found:
    loaded = encoder_json.load_encoder_assets(found.assets)
    network = loaded.network
    if dtype is not None:
      config = dataclasses.replace(network.config, dtype=dtype)
      network = dataclasses.replace(network, config=config, parent=None)
    params = restoring.restore_params(found.parameters, network)
  return Encoder(
    network,
    params,
    loaded.vocabulary,
    max_length=loaded.max_length,
    languages=loaded.languages,
    path=found.name,
    load_translator=functools.partial(load_translator, found.name),
  )


def load_translator(path: str | os.PathLike[str]) -> Translator:
  """Returns encoder and decoder of a training run, on this process's default device.

  Args:
    path: A run's MODEL_DIR (its latest checkpoint is taken) or one `checkpoint_<step>` folder in
      it, of VMSST, BITRANSLATION or VMSST CONTRASTIVE; local or remote, as `vmsst.load` takes it.

  Raises:
    InputError: no checkpoint there, one that does not fit the run's `encoder.json`, or a run
      without a decoder.
  """
  with encoder_folders.opened(path) as found:
    loaded = encoder_json.load_encoder_assets(found.assets)
    if loaded.generator is None:
      raise errors.InputError(
        f"{found.assets / encoder_json.ENCODER_FILE} names no network with a decoder, so there is "
        "nothing to generate text with: give a run of VMSST, BITRANSLATION or VMSST CONTRASTIVE "
        "(or start this one again: a version of vmsst that did not save the decoder's sizes wrote "
        "it)"
      )
    params = restoring.restore_params(found.parameters, loaded.generator)
  encoder = Encoder(
    loaded.network,
    params,
    loaded.vocabulary,
    max_length=loaded.max_length,
    languages=loaded.languages,
    path=found.name,
    devices=[jnp.zeros(()).device],  # where the decoder is
  )
  return Translator(loaded.generator, params, encoder)


def open_encoder(path: str, dtype: str | None = None) -> tuple[str, Any]:
  """An encoder, and a name that no other one has: the absolute path of its parameters.

  Args:
    path: What `vmsst.load` opens, or a folder that sentence-transformers has saved, which is opened
      by that package. No code in it is run.
    dtype: What our encoders compute in; see `vmsst.load`.

  Returns:
    The name, and what has `encode(texts)`.

  Raises:
    InputError: there is no encoder, or the package that opens it is not installed.
  """
  folder = pathlib.Path(path).expanduser()
  if "://" in path or not (folder / _SENTENCE_TRANSFORMERS_FILE).is_file():
    encoder = load(path, dtype=dtype)
    return str(encoder.path) + (f" ({dtype})" if dtype else ""), encoder
  if dtype is not None:
    raise errors.InputError(f"{folder} is opened by sentence-transformers, which gets no dtype")
  try:
    import sentence_transformers
  except ImportError:
    raise errors.InputError(
      f"{folder} was saved by sentence-transformers: install it (pip install 'vmsst[torch]')"
    ) from None
  try:
    theirs = sentence_transformers.SentenceTransformer(str(folder), local_files_only=True)
  except (OSError, ValueError, KeyError) as error:
    raise errors.InputError(f"{folder}: sentence-transformers cannot open it: {error}") from error
  return str(folder.resolve()), theirs
