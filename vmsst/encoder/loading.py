"""Finds, reads and opens encoders: in folders, object stores, and on the Hugging Face Hub.

An encoder is one of

* an export: `encoder.json`, the vocabulary's file and `model.safetensors` in one folder (in exports
  for sentence-transformers, the layers after the pooling have folders of their own);
* a checkpoint: `checkpoint_<step>` in T5X's layout, with `encoder.json` and the vocabulary in it or
  next to it;
* a training run: the folder of its checkpoints, for the one in `best.json` or else the latest;
* a folder of transformers or sentence-transformers on this machine, with one of the encoders in
  `vmsst.formats.transformers`, or of LASER2 or LASER3.

The required files of a remote encoder (`gs://`, `s3://`) are copied to this machine. A name such as
"sentence-transformers/LaBSE" is looked up on the Hugging Face Hub if there is no such folder.

Neither TensorFlow nor seqio nor gin is needed.

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

CHECKPOINT = "checkpoint_0"
"""The checkpoint that `write` makes."""
_EXPORT = {transformers.WEIGHTS_FILE, encoder_json.ENCODER_FILE}
_ASSETS = {encoder_json.ENCODER_FILE, encoder_json.VOCABULARY_FILE, tokenizers.TOKENIZER_FILE}
# Files of released encoders; exports for sentence-transformers have them, too.
_RELEASED = {transformers.CONFIG_FILE, sentence_transformers.MODULES_FILE}
# Name of a given prompt in an encoder of sentence-transformers.
_PROMPT = "given"


# --------------------------------------------------------------------------------------------
# Reading


def lacks_checkpoint(path: str | os.PathLike[str]) -> bool:
  """Returns whether a path is an encoder without a T5X checkpoint.

  Such an encoder is a name on the Hugging Face Hub, an export, or a folder of transformers.
  """
  names = storage.names(path)
  is_released = not storage.is_url(path) and bool(
    names & _RELEASED or laser.files(pathlib.Path(path))
  )
  return names >= _EXPORT or is_released or hub.is_name(path)


def read(path: str | os.PathLike[str], *, generator: bool = False) -> SavedEncoder:
  """Reads the parts of an encoder.

  Args:
    path: As in `load`.
    generator: Whether to read the whole network of a run that trained a decoder too, instead of the
      encoder alone.

  Raises:
    InputError: as in `load`.
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
        f"{path} has no decoder to generate text with; pass a run of VMSST, BITRANSLATION or VMSST "
        "CONTRASTIVE"
      )
    params = restore_params(parameters, network)
    own = os.fspath(parameters if parameters.is_dir() else folder)
  return SavedEncoder(name or own, assets, network, params)


def read_arrays(path: str | os.PathLike[str]) -> Mapping[str, Any]:
  """Returns the parameters of an encoder by name, float32; a vocabulary is not needed.

  mT5 has all parameters that training can start from. Arguments and errors are as in `read`.
  """
  with _open_source(path, whole=True) as (_, _, released):
    if released is not None:
      return released.params()
  return read(path).arrays


def read_assets(path: str | os.PathLike[str]) -> EncoderAssets:
  """Returns what describes an encoder, without its parameters.

  Arguments and errors are as in `read`.
  """
  with _open_source(path) as (_, folder, released):
    return _run_assets(folder)[0] if released is None else cast(EncoderAssets, released.assets)


def convert(
  folder: pathlib.Path,
  *,
  prefix: str | None = None,
  vocabulary: pathlib.Path | None = None,
  whole: bool = True,
) -> Converted:
  """Returns a released encoder: LaBSE, XLM-R, E5, Qwen3-Embedding, mT5, VMSST, LASER and others.

  Args:
    folder: As in `sentence_transformers.read`; or mT5, VMSST or LASER in the layout of its release
      (`mt5.convert`, `laser.convert`).
    prefix: As in `sentence_transformers.read`.
    vocabulary: SentencePiece model of an mT5 or VMSST whose folder lacks it.
    whole: Whether to return the decoder of mT5, too.

  Raises:
    InputError: the folder cannot be used; the message names the file.
  """
  has_modules = (folder / sentence_transformers.MODULES_FILE).is_file()
  is_laser, record = not has_modules and bool(laser.files(folder)), {}
  if not has_modules and not is_laser:
    record = transformers.read_object(folder / transformers.CONFIG_FILE)
  is_mt5 = record.get("model_type") in mt5.TYPES and record.get("feed_forward_proj") == "gated-gelu"
  if is_laser or is_mt5:
    errors.check(not prefix, f"the prefix of {folder}", prefix, "None: such a model has no prefix")
  errors.check(is_mt5 or vocabulary is None, "vocabulary", vocabulary, f"None: {folder} has one")
  if is_laser:
    return laser.convert(folder)
  if is_mt5:
    return mt5.convert(folder, vocabulary=vocabulary, whole=whole)
  return sentence_transformers.read(folder, prefix=prefix)


@contextlib.contextmanager
def _open_source(
  path: str | os.PathLike[str], *, whole: bool = False
) -> Iterator[tuple[str | None, pathlib.Path, Converted | None]]:
  """Yields an encoder's name, its folder on this machine, and what it is if it is a released one.

  The name is None for the path of its parameters. Only with `whole`, a released encoder can be
  without a vocabulary. After the context, parameters copied from a store
  are deleted.
  """
  name, folder = None, pathlib.Path(os.path.abspath(os.path.expanduser(path)))
  if not os.fspath(path) or folder.is_file():
    raise errors.InputError(
      f"{os.fspath(path)!r} is no folder; give a training run, one of its checkpoint_<step> "
      "folders, an imported encoder or an export"
    )
  if not folder.is_dir() and storage.is_url(path):
    url = os.fspath(path).rstrip("/")
    # The vocabulary's file is read as long as the process lives.
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
    released = convert(folder, whole=whole)
    if released.assets is None and not whole:
      raise errors.InputError(
        f"{folder} has no {tokenizers.TOKENIZER_FILE}, or {mt5.VOCABULARY_FILE} of T5, to encode "
        "texts with: save one with transformers' AutoTokenizer. Only training can start from it as "
        "it is"
      )
  yield name, folder, released


def _copy(url: str, target: pathlib.Path) -> tuple[str, str]:
  """Copies an encoder from a store into a folder; returns the paths of its parameters and there."""

  def copy(folder: str, names: set[str], to: pathlib.Path) -> None:
    to.mkdir(exist_ok=True)
    for name in names:
      storage.download(f"{folder}/{name}", to / name)

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
  """Returns what describes an export or a run, and its `model.safetensors` or its checkpoint."""
  if storage.names(folder) >= _EXPORT:
    assets = encoder_json.load_encoder_assets(folder)
    return assets, epath.Path(folder / transformers.WEIGHTS_FILE)
  from vmsst.formats import t5x  # imports Orbax

  checkpoint = t5x.find_checkpoint(epath.Path(folder))
  inside = (checkpoint / encoder_json.ENCODER_FILE).is_file()
  return encoder_json.load_encoder_assets(checkpoint if inside else checkpoint.parent), checkpoint


def restore_params(parameters: epath.Path, network: Any) -> Any:
  """Reads only the network's parameters, in float32, onto the default device.

  Layers may be scanned in the network and separate in the file, or the other way around.

  Args:
    parameters: A `checkpoint_<step>` folder; or the `model.safetensors` of an export, with a tensor
      for each parameter, or with the tensors of transformers in an export for
      sentence-transformers.
    network: The network.

  Returns:
    The parameters as a tree.

  Raises:
    InputError: a parameter is missing, has another shape or cannot be read.
  """
  is_export = parameters.name.endswith(".safetensors")
  stored: Any
  if not is_export:
    from vmsst.formats import t5x  # imports Orbax

    stored = t5x.open_params(parameters)
  elif (parameters.parent / sentence_transformers.MODULES_FILE).is_file():
    stored = sentence_transformers.read_params(pathlib.Path(parameters.parent), network)
  else:
    opened = tensors.open_file(pathlib.Path(parameters))
    stored = {name: tensor.read() for name, tensor in opened.items()}
  tokens_BT = jnp.zeros((1, 1), jnp.int32)
  shapes = jax.eval_shape(network.init, jax.random.key(0), tokens_BT)["params"]
  sources = {}
  for name, leaf in traverse_util.flatten_dict(shapes, sep="/").items():
    source = tensors.find(name, leaf.shape, stored)
    if source is None or source.shape(stored) != leaf.shape:
      shape = "is missing" if source is None else f"has shape {source.shape(stored)}"
      raise errors.InputError(
        f"{parameters}: the parameter {name} {shape}, but encoder.json requires {leaf.shape}; it "
        "was trained with another network or another config (number of layers)"
      )
    sources[name] = source
  parts = {part: stored[part] for source in sources.values() for part in source.names}
  if is_export:
    # One by one: at most one is in memory twice. A CPU uses mapped arrays where they are.
    arrays = {
      name: jax.block_until_ready(jax.device_put(part, may_alias=True))
      for name, part in parts.items()
    }
  else:
    arrays = t5x.read_params(parameters, parts)
  return traverse_util.unflatten_dict(
    {name: source.make(arrays) for name, source in sources.items()}, sep="/"
  )


def write(
  params: Mapping[str, np.ndarray], assets: EncoderAssets | None, folder: pathlib.Path
) -> str | None:
  """Writes a released encoder into a folder that training starts from and that `load` opens.

  Args:
    params: Its parameters by name.
    assets: What else describes it, if it has a vocabulary.
    folder: A folder on this machine. It gets `checkpoint_0` and, with `assets`, `encoder.json` and
      the vocabulary's file.

  Returns:
    The name of the vocabulary's file, if there is one.
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
  """Returns the encoder in a folder, on all devices of this process.

  Args:
    path: A name on the Hugging Face Hub, such as "sentence-transformers/LaBSE" or "owner/name@tag";
      or a folder of sentence-transformers, transformers or LASER (see docs/models.md), which is
      read as it is; or a training run, for the checkpoint that its `best.json` names or else the
      latest; or one of its `checkpoint_<step>` folders, an imported encoder or an export. All but
      the second may be in an object store (`gs://` needs gcsfs, `s3://` s3fs). Parameters may have
      been saved from any number of devices.
    dtype: Compute dtype: "float32", or "bfloat16", which is faster on accelerators and keeps two or
      three digits; None: as in training. Vectors are float32 in any case.
    max_length: Tokens of a sentence, EOS included; longer texts are cut. None: as saved, which is
      the length in training for runs.
    backend: "jax"; or "onnx" (ONNX Runtime, `vmsst[onnx]`), which is faster on CPUs. It computes in
      float32; its vectors are those of JAX, up to rounding error. "auto" is JAX on accelerators and
      for bfloat16, and ONNX Runtime on CPUs if it is installed.

  Raises:
    InputError: there is no encoder, it does not fit its `encoder.json`, `dtype` or `backend` is
      unknown, they exclude each other, `max_length` exceeds its position table, or the package that
      reads the store or computes is not installed.
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


def load_translator(path: str | os.PathLike[str]) -> "Translator":
  """Returns encoder and decoder of a training run, on this process's default device.

  Args:
    path: A run's MODEL_DIR or one of its `checkpoint_<step>` folders, of VMSST, BITRANSLATION or
      VMSST CONTRASTIVE; local or remote, as in `load`.

  Raises:
    InputError: there is no checkpoint, it does not fit the run's `encoder.json`, or the run has no
      decoder.
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
  """Opens an encoder of this library or of sentence-transformers.

  Args:
    path: A path that `load` opens, or another folder of sentence-transformers, which that package
      opens. Code in the folder is not run.
    dtype: Compute dtype; see `load`. sentence-transformers does not support it.
    max_length: Tokens of a sentence; see `load`. An encoder of sentence-transformers can have its
      own maximum at most.
    backend: Backend; see `load`. sentence-transformers has its own in a folder that was exported
      for one.
    prompt: Text before every sentence; None: as the encoder has it.

  Returns:
    The absolute path of its parameters, and an object with `encode(texts)` and the attribute
    `digest`, which identifies it by content.

  Raises:
    InputError: there is no encoder, or the package that opens it is not installed.
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
      f"{folder}: versions of sentence-transformers before 6 run code that a folder names; pip "
      "install -U 'vmsst[sentence-transformers]'"
    )
  try:
    theirs = package.SentenceTransformer(str(folder), local_files_only=True)
  except Exception as error:  # torch and other packages raise it
    # The message may advise to trust code in the folder.
    raise errors.InputError(
      f"{folder}: sentence-transformers cannot open it ({type(error).__name__}); export it again"
    ) from error
  theirs.dimension = theirs.get_embedding_dimension()
  if max_length is not None:
    limit = theirs.max_seq_length
    theirs.max_seq_length = errors.as_integer("max_length", max_length, maximum=limit)
  files = sorted(below for below in folder.rglob("*") if below.is_file())
  lines = [f"{input_files.sha256(x)}  {x.relative_to(folder)}\n" for x in files]
  lines += [] if max_length is None else [f"max_length {max_length}\n"]
  theirs.digest = hashlib.sha256("".join(lines).encode()).hexdigest()
  return str(folder.resolve()), with_prompt(theirs, prompt)


def with_prompt(encoder: Any, prompt: str | None) -> Any:
  """Returns what `open_encoder` has opened with another text before every sentence.

  Its attribute `prompt` is that text, and not part of its `digest`. None, or the text that it has
  already: no change.

  Raises:
    InputError: the vocabulary takes no prompts.
  """
  if prompt is None or isinstance(encoder, Encoder):
    return encoder if prompt is None else encoder.with_prompt(prompt)
  if prompt == encoder.prompts.get(encoder.default_prompt_name, ""):
    return encoder
  encoder.prompt, encoder.default_prompt_name = prompt, _PROMPT
  encoder.prompts = {**encoder.prompts, _PROMPT: prompt}
  return encoder
