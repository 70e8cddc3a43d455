"""Finds, reads and opens encoders in folders, in object stores, and on the Hugging Face Hub.

An encoder is one of the following:

* an export: `encoder.json`, the vocabulary file and `model.safetensors` in one folder (a
  sentence-transformers export also has a subfolder for each layer after pooling);
* a checkpoint: `checkpoint_<step>` in T5X's layout, with `encoder.json` and the vocabulary inside
  or next to it;
* a training run: the folder with its checkpoints. `best.json` selects the checkpoint; without this
  file, the latest checkpoint is used;
* a local transformers or sentence-transformers folder, if `vmsst.formats.transformers` supports the
  model; or a LASER2 or LASER3 folder.

The required files for a remote encoder (`gs://`, `s3://`) are copied to this machine. A name such
as "sentence-transformers/LaBSE" is looked up on the Hugging Face Hub unless a local folder has this
name.

This module does not need TensorFlow, seqio or gin.

Example:
  encoder = vmsst.load("/runs/small")
  vectors = encoder.encode(["How are you?", "Wie geht's?"], normalize=True)
"""

import contextlib
import dataclasses
import hashlib
import logging
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from flax import traverse_util

from vmsst import errors, storage
from vmsst.encoder import backends
from vmsst.encoder.encoder import Encoder
from vmsst.formats import (
  encoder_json,
  hub,
  laser,
  mt5,
  sentence_transformers,
  tensors,
  tokenizers,
  transformers,
)
from vmsst.formats.encoder_json import Converted, EncoderAssets, SavedEncoder
from vmsst.io import input_files

if TYPE_CHECKING:
  from vmsst.encoder.translation import Translator

CHECKPOINT = "checkpoint_0"  # name of the checkpoint that `write` creates
_EXPORT = {transformers.WEIGHTS_FILE, encoder_json.ENCODER_FILE}
_ASSETS = {encoder_json.ENCODER_FILE, encoder_json.VOCABULARY_FILE, tokenizers.TOKENIZER_FILE}
# Files that identify a released encoder. sentence-transformers exports contain them, too.
_RELEASED = {transformers.CONFIG_FILE, sentence_transformers.MODULES_FILE}
# Name under which `with_prompt` stores a prompt in a sentence-transformers encoder.
_PROMPT = "given"


# --------------------------------------------------------------------------------------------
# Reading


def lacks_checkpoint(path: str | os.PathLike[str]) -> bool:
  """Returns whether a path refers to an encoder that is not stored as a T5X checkpoint.

  Examples are a Hugging Face Hub name, an export, and a transformers folder.
  """
  names = storage.names(path)
  is_released = not storage.is_url(path) and bool(
    names & _RELEASED or laser.files(pathlib.Path(path))
  )
  return names >= _EXPORT or is_released or hub.is_name(path)


def read(path: str | os.PathLike[str], *, generator: bool = False) -> SavedEncoder:
  """Reads an encoder's network, parameters and assets.

  Args:
    path: As in `load`.
    generator: Whether to also read the decoder that the run trained.

  Raises:
    InputError: As in `load`.
  """
  with _open_source(path) as (name, folder, released):
    if released is not None:
      assets = cast(EncoderAssets, released.assets)
      params = traverse_util.unflatten_dict(dict(released.params()), sep="/")
      return SavedEncoder(name or os.fspath(folder), assets, assets.network, params)
    assets, parameters = _run_assets(folder)
    network = assets.generator if generator else assets.network
    if network is None:
      raise errors.InputError(
        f"{path} has no decoder to generate text with; use a VMSST, BITRANSLATION or VMSST "
        "CONTRASTIVE run"
      )
    params = restore_params(parameters, network)
    location = os.fspath(parameters if parameters.is_dir() else folder)
  return SavedEncoder(name or location, assets, network, params)


def read_arrays(path: str | os.PathLike[str]) -> Mapping[str, Any]:
  """Returns an encoder's parameters by name, in float32. The encoder may lack a vocabulary.

  For mT5, the result includes the decoder's parameters, so that training can start from the whole
  model. Arguments and errors are as in `read`.
  """
  with _open_source(path, for_training=True) as (_, _, released):
    if released is not None:
      return released.params()
  return read(path).arrays


def read_assets(path: str | os.PathLike[str]) -> EncoderAssets:
  """Reads an encoder's network, vocabulary and settings, without its parameters.

  Arguments and errors are as in `read`.
  """
  with _open_source(path) as (_, folder, released):
    return _run_assets(folder)[0] if released is None else cast(EncoderAssets, released.assets)


def convert(
  folder: pathlib.Path,
  *,
  prefix: str | None = None,
  vocabulary: pathlib.Path | None = None,
  with_decoder: bool = True,
) -> Converted:
  """Converts a released encoder: LaBSE, XLM-R, E5, Qwen3-Embedding, mT5, VMSST, LASER and others.

  Args:
    folder: A folder that `sentence_transformers.read` accepts, or a folder with the released files
      of mT5, VMSST (see `mt5.convert`) or LASER (see `laser.convert`).
    prefix: As in `sentence_transformers.read`.
    vocabulary: SentencePiece model for an mT5 or VMSST folder that lacks one.
    with_decoder: Whether to include mT5's decoder.

  Raises:
    InputError: If the folder cannot be converted. The message names the file that causes the
      problem.
  """
  has_modules = (folder / sentence_transformers.MODULES_FILE).is_file()
  is_laser, config = not has_modules and bool(laser.files(folder)), {}
  if not has_modules and not is_laser:
    config = transformers.read_object(folder / transformers.CONFIG_FILE)
  is_mt5 = config.get("model_type") in mt5.TYPES and config.get("feed_forward_proj") == "gated-gelu"
  if is_laser or is_mt5:
    errors.check(not prefix, f"the prefix of {folder}", prefix, "None (such models have none)")
  errors.check(is_mt5 or vocabulary is None, "vocabulary", vocabulary, f"None ({folder} has one)")
  if is_laser:
    return laser.convert(folder)
  if is_mt5:
    return mt5.convert(folder, vocabulary=vocabulary, with_decoder=with_decoder)
  return sentence_transformers.read(folder, prefix=prefix)


@contextlib.contextmanager
def _open_source(
  path: str | os.PathLike[str], *, for_training: bool = False
) -> Iterator[tuple[str | None, pathlib.Path, Converted | None]]:
  """Yields an encoder's name, local folder and, for a released encoder, the converted encoder.

  For a local folder, the name is None, and callers use the path to the parameters as the name. With
  `for_training`, the encoder may lack a vocabulary, and mT5's decoder is read, too. On exit,
  parameters that were copied from an object store are deleted.
  """
  name, folder = None, pathlib.Path(os.path.abspath(os.path.expanduser(path)))
  if not os.fspath(path) or folder.is_file():
    raise errors.InputError(
      f"{os.fspath(path)!r} is not a folder; pass a training run, one of its checkpoint_<step> "
      "folders, an imported encoder or an export"
    )
  if not folder.is_dir() and storage.is_url(path):
    url = os.fspath(path).rstrip("/")
    # The vocabulary file must exist until the process ends, so the folder is not removed here.
    target = pathlib.Path(tempfile.mkdtemp(dir=storage.process_folder()))
    name, around = _copy(url, target)
    try:
      with storage.rename_in_errors(str(target), around):
        yield name, target, None
    finally:
      for state in target.glob("checkpoint_*/state"):
        shutil.rmtree(state)
      (target / transformers.WEIGHTS_FILE).unlink(missing_ok=True)
    return
  if not folder.is_dir() and hub.is_name(path):
    name, folder = hub.find(os.fspath(path))
  names = {*os.listdir(folder)} if folder.is_dir() else set()
  released = None
  if not names >= _EXPORT and (names & _RELEASED or any(x.endswith(".pt") for x in names)):
    released = convert(folder, with_decoder=for_training)
    if released.assets is None and not for_training:
      raise errors.InputError(
        f"{folder} has no vocabulary ({tokenizers.TOKENIZER_FILE}, or {mt5.VOCABULARY_FILE} for "
        "T5), so it cannot encode texts; save one with AutoTokenizer. Only training "
        "can start without a vocabulary"
      )
  yield name, folder, released


def _copy(url: str, target: pathlib.Path) -> tuple[str, str]:
  """Copies a stored encoder; returns the URLs of its parameters and of its top-level folder."""

  def copy(folder: str, names: set[str], destination: pathlib.Path) -> None:
    destination.mkdir(exist_ok=True)
    for name in names:
      storage.download(f"{folder}/{name}", destination / name)

  names = storage.names(url)
  if names >= _EXPORT:
    layers = {name for name in names if name[:1].isdigit()}
    copy(url, names & (_EXPORT | _ASSETS | _RELEASED) | layers, target)
    return url, url
  from vmsst.formats import t5x  # imports Orbax

  checkpoint = os.fspath(t5x.find_checkpoint(url))
  around, _, name = checkpoint.rpartition("/")
  inside, beside = storage.names(checkpoint), storage.names(around)
  needed = _ASSETS if encoder_json.ENCODER_FILE in inside else set()
  copy(checkpoint, inside & {t5x.CHECKSUMS, "state", *needed}, target / name)
  if not needed:
    copy(around, beside & _ASSETS, target)
  return checkpoint, around


def _run_assets(folder: pathlib.Path) -> tuple[EncoderAssets, epath.Path]:
  """Returns an export's assets and `model.safetensors`, or a run's assets and checkpoint."""
  if storage.names(folder) >= _EXPORT:
    assets = encoder_json.load_encoder_assets(folder)
    return assets, epath.Path(folder / transformers.WEIGHTS_FILE)
  from vmsst.formats import t5x  # imports Orbax

  checkpoint = t5x.find_checkpoint(epath.Path(folder))
  inside = (checkpoint / encoder_json.ENCODER_FILE).is_file()
  return encoder_json.load_encoder_assets(checkpoint if inside else checkpoint.parent), checkpoint


def restore_params(parameters: epath.Path, network: Any) -> Any:
  """Reads only the network's parameters, in float32, onto the default device.

  Layers may be scanned in the network and separate in the file, or vice versa.

  Args:
    parameters: A `checkpoint_<step>` folder or the `model.safetensors` of an export. In a
      sentence-transformers export, the tensors have the names that transformers uses.
    network: The network to restore.

  Returns:
    The parameters as a tree.

  Raises:
    InputError: If a parameter is missing, has an unexpected shape, or cannot be read.
  """
  is_export = parameters.name.endswith(".safetensors")
  saved: Any
  if not is_export:
    from vmsst.formats import t5x  # imports Orbax

    saved = t5x.open_params(parameters)
  elif (parameters.parent / sentence_transformers.MODULES_FILE).is_file():
    saved = sentence_transformers.read_params(pathlib.Path(parameters.parent), network)
  else:
    opened = tensors.open_file(pathlib.Path(parameters))
    saved = {name: tensor.read() for name, tensor in opened.items()}
  tokens_BT = jnp.zeros((1, 1), jnp.int32)
  shapes: Any = jax.eval_shape(network.init, jax.random.key(0), tokens_BT)
  sources = {}
  for name, leaf in traverse_util.flatten_dict(shapes["params"], sep="/").items():
    source = tensors.find(name, leaf.shape, saved)
    if source is None or source.shape(saved) != leaf.shape:
      shape = "is missing" if source is None else f"has shape {source.shape(saved)}"
      raise errors.InputError(
        f"{parameters}: the parameter {name} {shape}, but encoder.json requires {leaf.shape}; use "
        "the encoder.json that was saved with these parameters"
      )
    sources[name] = source
  inputs = {key: saved[key] for source in sources.values() for key in source.names}
  if is_export:
    # Copy tensors one by one, so that at most one tensor is in memory twice. On a CPU, nothing is
    # copied, because the arrays share memory with the mapped file.
    arrays = {
      name: jax.block_until_ready(jax.device_put(value, may_alias=True))
      for name, value in inputs.items()
    }
  else:
    arrays = t5x.read_params(parameters, inputs)
  return traverse_util.unflatten_dict(
    {name: source.make(arrays) for name, source in sources.items()}, sep="/"
  )


def write(
  params: Mapping[str, np.ndarray], assets: EncoderAssets | None, folder: pathlib.Path
) -> str | None:
  """Writes a released encoder to a folder that `load` can open and from which training can start.

  Args:
    params: The encoder's parameters by name.
    assets: The encoder's network, vocabulary and settings; None if it has no vocabulary.
    folder: A local folder. This function creates `checkpoint_0` in the folder. If `assets` is set,
      the function also writes `encoder.json` and the vocabulary file.

  Returns:
    The name of the vocabulary file, or None if `assets` is None.
  """
  from vmsst.formats import t5x  # imports Orbax

  checkpoint = epath.Path(folder / CHECKPOINT)
  t5x.write_params(checkpoint, params)
  t5x.write_checksums(checkpoint, {"state": checkpoint / "state"})
  return None if assets is None else encoder_json.save_assets(assets, folder)


# --------------------------------------------------------------------------------------------
# Opening


def _new_encoder(saved: SavedEncoder, network: Any, **options: Any) -> Encoder:
  encoder = Encoder(
    network,
    saved.params,
    saved.assets.vocabulary,
    max_length=saved.assets.max_length,
    languages=saved.assets.languages,
    path=saved.name,
    **options,
  )
  encoder.similarity_fn_name = saved.assets.similarity_fn_name
  return encoder


def load(
  path: str | os.PathLike[str],
  *,
  dtype: str | None = None,
  max_length: int | None = None,
  backend: str = backends.AUTO,
) -> Encoder:
  """Loads an encoder onto all devices in this process.

  Args:
    path: One of the following:
      a name on the Hugging Face Hub, such as "sentence-transformers/LaBSE" or "owner/name@tag";
      a local sentence-transformers, transformers or LASER folder (see docs/models.md);
      a training run (`best.json` selects the checkpoint; otherwise, the latest is used);
      a `checkpoint_<step>` folder, an imported encoder or an export.
      Runs, checkpoints, imports and exports may be in an object store (`gs://` needs gcsfs, `s3://`
      needs s3fs). The number of devices that saved the parameters does not matter.
    dtype: Compute dtype (default: as in training). "bfloat16" is faster than "float32" on
      accelerators and keeps two or three significant digits. Vectors are always float32.
    max_length: Maximum tokens per sentence, EOS included; longer texts are cut (default: the saved
      length; for a run, the length used in training).
    backend: "jax", "onnx" or "auto". ONNX Runtime (`vmsst[onnx]`) is faster on CPUs, computes in
      float32 and returns the same vectors as JAX up to rounding error. "auto" selects JAX on
      accelerators and for bfloat16, and ONNX Runtime on CPUs if it is installed.

  Raises:
    InputError: If no encoder exists at this path, its parameters do not match its `encoder.json`,
      `dtype` or `backend` is unknown, the backend does not support the dtype, `max_length` exceeds
      the encoder's position table, or a package required for the store or the backend is not
      installed.
  """
  errors.check_choice("backend", backend, (backends.AUTO, *backends.BACKENDS))
  on_host: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
  if backend == backends.ONNX:
    if dtype == "bfloat16":
      raise errors.InputError(f"the backend {backend!r} computes in float32; omit dtype {dtype!r}")
    dtype = "float32"
    on_host = jax.default_device(jax.local_devices(backend="cpu")[0])
  with on_host:
    saved = read(path)
  network = saved.network
  if dtype is not None:
    config = dataclasses.replace(network.config, dtype=dtype)
    network = dataclasses.replace(network, config=config, parent=None)
  if backend == backends.AUTO:
    backend = backends.fastest(network)
  encoder = _new_encoder(saved, network, backend=backend)
  if max_length is not None:
    encoder.max_length = max_length
  return encoder


def with_params(checkpoint: epath.Path, params: Any) -> Encoder:
  """Loads an encoder as `load(checkpoint)` does, but uses `params` instead of reading the arrays.

  `params` may also contain the parameters of additional heads.
  """
  assets, _ = _run_assets(pathlib.Path(checkpoint))
  names = {"token_embedder", "encoder", *assets.network.layers}
  params = {name: value for name, value in params.items() if name in names}
  saved = SavedEncoder(os.fspath(checkpoint), assets, assets.network, params)
  return _new_encoder(saved, assets.network, backend=backends.fastest(assets.network))


def load_translator(path: str | os.PathLike[str]) -> "Translator":
  """Loads the encoder and decoder from a training run onto this process's default device.

  Args:
    path: MODEL_DIR or a `checkpoint_<step>` folder from a VMSST, BITRANSLATION or VMSST CONTRASTIVE
      run; local or remote, as in `load`.

  Raises:
    InputError: If no checkpoint exists at this path, the checkpoint does not match the run's
      `encoder.json`, or the run has no decoder.
  """
  from vmsst.encoder.translation import Translator

  saved = read(path, generator=True)
  encoder = _new_encoder(saved, saved.assets.network, devices=[jnp.zeros(()).device])
  return Translator(saved.network, saved.params, encoder)


def open_encoder(
  path: str,
  dtype: str | None = None,
  max_length: int | None = None,
  backend: str = backends.AUTO,
  prompt: str | None = None,
) -> tuple[str, Any]:
  """Opens an encoder with `load` or, if `load` does not support it, with sentence-transformers.

  Args:
    path: A path that `load` opens, or any other sentence-transformers folder. Code in the folder is
      not run.
    dtype: Compute dtype; see `load`. Not supported for sentence-transformers.
    max_length: Maximum tokens per sentence; see `load`. For sentence-transformers, this number
      cannot exceed the encoder's saved maximum.
    backend: Backend; see `load`. sentence-transformers chooses its own backend and ignores "auto"
      and "jax".
    prompt: Text to prepend to every sentence (default: the encoder's prompt).

  Returns:
    The absolute path to the parameters, and an object with `encode(texts)` and the attribute
    `digest`, a hash of the encoder's content.

  Raises:
    InputError: If no encoder exists at this path, or if the package that opens it is not installed.
  """
  folder = pathlib.Path(path).expanduser()
  try:
    encoder = load(path, dtype=dtype, max_length=max_length, backend=backend)
    return str(encoder.path), with_prompt(encoder, prompt)
  except errors.InputError as error:
    names = storage.names(folder)
    is_theirs = (
      sentence_transformers.MODULES_FILE in names and encoder_json.ENCODER_FILE not in names
    )
    if not is_theirs or dtype is not None or backend == backends.ONNX:
      raise
    logging.getLogger(__name__).warning("%s; sentence-transformers opens it instead", error)
  with errors.requires("sentence-transformers", str(folder)):
    import sentence_transformers as package
  if int(package.__version__.partition(".")[0]) < 6:
    raise errors.InputError(
      f"{folder}: sentence-transformers before version 6 can run code from the folder; pip "
      "install -U 'vmsst[sentence-transformers]'"
    )
  try:
    model = package.SentenceTransformer(str(folder), local_files_only=True)
  except Exception as error:  # torch and other packages raise many exception types
    # The original message may advise users to trust code in the folder, so it is not shown.
    raise errors.InputError(
      f"{folder}: sentence-transformers cannot open it ({type(error).__name__}); export it again"
    ) from error
  model.dimension = model.get_embedding_dimension()
  if max_length is not None:
    limit = model.max_seq_length
    model.max_seq_length = errors.as_integer("max_length", max_length, maximum=limit)
  files = sorted(below for below in folder.rglob("*") if below.is_file())
  lines = [f"{input_files.sha256(x)}  {x.relative_to(folder)}\n" for x in files]
  lines += [] if max_length is None else [f"max_length {max_length}\n"]
  model.digest = hashlib.sha256("".join(lines).encode()).hexdigest()
  return str(folder.resolve()), with_prompt(model, prompt)


def with_prompt(encoder: Any, prompt: str | None) -> Any:
  """Takes an encoder from `open_encoder`; returns an encoder that prepends a prompt to all texts.

  The attribute `prompt` stores the prompt; `digest` does not depend on the prompt. If the prompt is
  None or is already the encoder's prompt, the encoder is returned unchanged.

  Raises:
    InputError: If the vocabulary does not support prompts.
  """
  if prompt is None or isinstance(encoder, Encoder):
    return encoder if prompt is None else encoder.with_prompt(prompt)
  if prompt == encoder.prompts.get(encoder.default_prompt_name, ""):
    return encoder
  encoder.prompt, encoder.default_prompt_name = prompt, _PROMPT
  encoder.prompts = {**encoder.prompts, _PROMPT: prompt}
  return encoder
