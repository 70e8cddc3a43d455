"""Loads encoders and translators from runs, checkpoints and exports, local or remote.

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
from typing import Any

import jax
import jax.numpy as jnp

from vmsst import errors, storage
from vmsst.checkpoints import saved_encoders
from vmsst.encoder import backends
from vmsst.encoder.encoder import Encoder
from vmsst.encoder.translation import Translator
from vmsst.formats import encoder_json, hub_models, sentence_transformers_files
from vmsst.io import checksums

# Name of a given prompt in an encoder of sentence-transformers.
_PROMPT = "given"


def _new_encoder(saved: encoder_json.SavedEncoder, network: Any, **options: Any) -> Encoder:
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
  device: None = None,
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
    device: Not supported; set JAX_PLATFORMS or CUDA_VISIBLE_DEVICES before Python starts.

  Raises:
    InputError: `device` is set, there is no encoder, it does not fit its `encoder.json`, `dtype` or
      `backend` is unknown, they exclude each other, `max_length` exceeds its position table, or the
      package that reads the store or computes is not installed.
  """
  errors.check(device is None, "device", device, backends.DEVICES)
  errors.check_choice("backend", backend, (backends.AUTO, *backends.BACKENDS))
  errors.check(dtype in (None, "float32", "bfloat16"), "dtype", dtype, "'float32' or 'bfloat16'")
  on_host: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
  if backend not in (backends.AUTO, backends.JAX):
    if dtype not in (None, "float32"):
      raise errors.InputError(f"the backend {backend!r} computes in float32; omit dtype {dtype!r}")
    dtype = "float32"
    on_host = jax.default_device(jax.local_devices(backend="cpu")[0])

  def in_dtype(assets: encoder_json.EncoderAssets) -> Any:
    network = assets.network
    if dtype is None:
      return network
    config = dataclasses.replace(network.config, dtype=dtype)
    return dataclasses.replace(network, config=config, parent=None)

  with on_host:
    saved = saved_encoders.read(path, in_dtype)
  if backend == backends.AUTO:
    backend = backends.fastest(saved.network)
  encoder = _new_encoder(saved, saved.network, backend=backend)
  if max_length is not None:
    encoder.max_length = max_length
  return encoder


def load_translator(path: str | os.PathLike[str]) -> Translator:
  """Returns encoder and decoder of a training run, on this process's default device.

  Args:
    path: A run's MODEL_DIR or one of its `checkpoint_<step>` folders, of VMSST, BITRANSLATION or
      VMSST CONTRASTIVE; local or remote, as in `load`.

  Raises:
    InputError: there is no checkpoint, it does not fit the run's `encoder.json`, or the run has no
      decoder.
  """

  def generator(assets: encoder_json.EncoderAssets) -> Any:
    if assets.generator is None:
      raise errors.InputError(
        f"{path} has no decoder to generate text with; pass a run of VMSST, BITRANSLATION or VMSST "
        "CONTRASTIVE"
      )
    return assets.generator

  saved = saved_encoders.read(path, generator)
  decoder_device = jnp.zeros(()).device
  encoder = _new_encoder(saved, saved.assets.network, devices=[decoder_device])
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
  is_ours = (
    not path
    or storage.is_url(path)
    or not (folder / sentence_transformers_files.MODULES_FILE).is_file()
    or (folder / encoder_json.ENCODER_FILE).is_file()
  )
  is_automatic = backend in (backends.AUTO, backends.JAX)
  if is_ours or hub_models.is_released(folder):
    try:
      encoder = load(path, dtype=dtype, max_length=max_length, backend=backend)
      return str(encoder.path), with_prompt(encoder, prompt)
    except errors.InputError as error:
      if is_ours or dtype is not None or not is_automatic:
        raise
      logging.getLogger(__name__).warning("%s; sentence-transformers opens it instead", error)
  if dtype is not None:
    raise errors.InputError(f"{folder} is of sentence-transformers, which has no dtype; omit it")
  if not is_automatic:
    raise errors.InputError(
      f"{folder} is of sentence-transformers, which runs it; omit the backend {backend!r}, or try "
      "`vmsst import encoder`"
    )
  with errors.requires("sentence-transformers", str(folder)):
    import sentence_transformers
  if int(sentence_transformers.__version__.partition(".")[0]) < 6:
    raise errors.InputError(
      f"{folder}: versions of sentence-transformers before 6 run code that a folder names; pip "
      "install -U 'vmsst[sentence-transformers]'"
    )
  sentence_transformers_files.check_layers(folder)
  try:
    theirs = sentence_transformers.SentenceTransformer(str(folder), local_files_only=True)
  except Exception as error:  # torch and other packages raise it
    # The message may advise to trust code in the folder.
    raise errors.InputError(
      f"{folder}: sentence-transformers cannot open it ({type(error).__name__}); export it again, "
      "or try `vmsst import encoder`"
    ) from error
  names_and_contents = hashlib.sha256()
  for below in sorted(below for below in folder.rglob("*") if below.is_file()):
    line = f"{checksums.of_file(below)}  {below.relative_to(folder)}\n"
    names_and_contents.update(line.encode())
  theirs.digest = names_and_contents.hexdigest()
  theirs.dimension = theirs.get_embedding_dimension()
  if max_length is not None:
    theirs.max_seq_length = errors.as_integer(
      f"max_length of {path}", max_length, maximum=theirs.max_seq_length
    )
    theirs.digest = hashlib.sha256(f"{theirs.digest} {max_length}".encode()).hexdigest()
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
