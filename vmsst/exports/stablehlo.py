"""Exports encoders as StableHLO: a function from token ids to vectors, without this library.

The function takes the parameters in the safetensors file next to it, and token ids of any number of
sentences of any length. One file serves CPUs, NVIDIA GPUs and TPUs.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import traverse_util
from jax import export
from jaxtyping import Array, Float

from vmsst.checkpoints import hugging_face, output_folders
from vmsst.exports import safetensors_folder
from vmsst.files import storage, work_folders
from vmsst.inference import loading
from vmsst.networks import bert, sentence_encoder, t5

FUNCTION_FILE = "encoder.stablehlo"
PLATFORMS = ("cpu", "cuda", "tpu")


@dataclasses.dataclass(frozen=True)
class Exported:
  """The result of an export.

  Attributes:
    folder: The new folder.
    max_length: Tokens of a sentence, EOS included.
    dimension: Dimensions of a vector.
    eos_id: Id of the EOS token, or None.
  """

  folder: storage.Path
  max_length: int
  dimension: int
  eos_id: int | None


def export_stablehlo(path: str | os.PathLike[str], output: str | os.PathLike[str]) -> Exported:
  """Writes an encoder as a serialized function (`jax.export`), its parameters and its vocabulary.

  The folder has `encoder.stablehlo`, which `jax.export.deserialize` reads, and the files of
  `export_safetensors`. `call(params, tokens)` of the function returns the vectors, float32 [B, D]:
  `params` is the dictionary of arrays in `model.safetensors`, `tokens` are int32 [B, T], each
  sentence's ids followed by zeros. Only a BERT's position table limits T. Later versions of JAX
  read the file for at least six months.

  Args:
    path: A path that `vmsst.load` opens.
    output: Folder to make, local or in an object store.

  Raises:
    InputError: there is no encoder, or `output` exists. Nothing is written then.
  """
  target = output_folders.new_folder(output)
  saved = loading.read(path)
  found = saved.assets
  content = _serialized(found.network, saved.arrays)
  with work_folders.atomic_folder(target) as partial:
    safetensors_folder.write(saved, partial)
    (partial / FUNCTION_FILE).write_bytes(content)
  return Exported(target, found.max_length, found.network.latent_dim, found.vocabulary.eos_id)


def describe(exported: Exported) -> str:
  """Returns what was written, and the lines of Python that call it."""
  end = "" if exported.eos_id is None else f" with EOS (id {exported.eos_id})"
  return "\n".join(
    [
      f"{exported.folder}: {exported.dimension}-dimensional vectors of token ids int32 [B, T]; a "
      f"sentence has at most {exported.max_length} ids{end}, followed by zeros",
      *output_folders.local_only(exported.folder),
      "  from jax import export",
      "  from safetensors.numpy import load_file",
      f"  folder = {str(exported.folder)!r}",
      f"  encoder = export.deserialize(open(folder + '/{FUNCTION_FILE}', 'rb').read())",
      f"  vectors = encoder.call(load_file(folder + '/{hugging_face.WEIGHTS_FILE}'), tokens)",
    ]
  )


def _serialized(network: sentence_encoder.SentenceEncoder, params: Mapping[str, Any]) -> bytes:
  """Returns the function of flat parameters and tokens, for any B and T."""

  def call(flat: Mapping[str, Any], tokens_BT: jax.Array) -> jax.Array:
    with nn.intercept_methods(_with_positions_of_any_length):
      return sentence_encoder.embed(network, traverse_util.unflatten_dict(flat, sep="/"), tokens_BT)

  limits = []
  if isinstance(network.config, bert.BertConfig):
    limits.append(f"T <= {network.config.max_positions - network.config.position_offset}")
  batch, length = export.symbolic_shape("B, T", constraints=limits)
  shapes = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in params.items()}
  tokens = jax.ShapeDtypeStruct((batch, length), jnp.int32)
  return bytes(export.export(jax.jit(call), platforms=PLATFORMS)(shapes, tokens).serialize())


def _with_positions_of_any_length(
  next_method: Callable[..., Any],
  args: tuple[Any, ...],
  kwargs: dict[str, Any],
  context: nn.module.InterceptorContext,
) -> Any:
  """Looks up T5's position biases by distance; the module's own table needs a known length."""
  if isinstance(context.module, t5.RelativePositionBias) and context.method_name == "__call__":
    return _position_bias(context.module, *args)
  return next_method(*args, **kwargs)


def _position_bias(module: t5.RelativePositionBias, length: Any) -> Float[Array, "1 H T T"]:
  """Returns the bias of `module` for a length that need not be known."""
  reach = module.max_distance  # greater distances share a bucket
  buckets = t5.buckets_by_offset(
    buckets=module.buckets, max_distance=reach, bidirectional=module.bidirectional
  )
  position_T = jnp.arange(length)
  offset_TT = jnp.clip(position_T[None, :] - position_T[:, None], -reach, reach)
  table_HR: jax.Array = module.get_variable("params", "rel_embedding")
  return jnp.take(table_HR, jnp.asarray(buckets)[offset_TT + reach], axis=1)[None]
