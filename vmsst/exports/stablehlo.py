"""Encoders as StableHLO: a function from token ids to vectors that is called without this library.

The function takes the parameters as they are in the safetensors file beside it, and token ids of
any number of sentences of any length; one file serves CPUs, NVIDIA GPUs and TPUs.
"""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import traverse_util
from jax import export
from jaxtyping import Array, Float

from vmsst.checkpoints import hugging_face, imports
from vmsst.exports import safetensors_folder, saved_encoder
from vmsst.files import atomic_files
from vmsst.networks import bert, sentence_encoder, t5

FUNCTION_FILE = "encoder.stablehlo"
PLATFORMS = ("cpu", "cuda", "tpu")


@dataclasses.dataclass(frozen=True)
class Exported:
  """What an export has done.

  Attributes:
    folder: The folder written.
    max_length: Tokens of a sentence, end mark included.
    dimension: Width of a vector.
    end_id: Id of the end mark, or None.
  """

  folder: pathlib.Path
  max_length: int
  dimension: int
  end_id: int | None


def export_stablehlo(path: str | os.PathLike[str], output: str | os.PathLike[str]) -> Exported:
  """Writes an encoder as a serialized function (`jax.export`), its parameters and its vocabulary.

  The folder has `encoder.stablehlo`, which `jax.export.deserialize` reads, and what
  `export_safetensors` writes. `call(params, tokens)` of the function gives the vectors, float32
  [B, D]: `params` is the dictionary of arrays in `model.safetensors`, `tokens` are int32 [B, T],
  each sentence's ids followed by zeros. T has no limit but that of a BERT's table of positions. A
  later version of JAX reads the file for six months at least.

  Args:
    path: What `vmsst.load` opens.
    output: Folder to make.

  Raises:
    InputError: there is no encoder, or `output` exists; nothing has been written then.
  """
  target = imports.free_folder(output)
  saved = saved_encoder.read(path)
  found = saved.assets
  content = _serialized(found.network, saved.params)
  with atomic_files.atomic_folder(target) as partial:
    safetensors_folder.write(saved, partial)
    (partial / FUNCTION_FILE).write_bytes(content)
  return Exported(target, found.max_length, found.network.latent_dim, found.vocabulary.eos_id)


def describe(exported: Exported) -> str:
  """What was written, and the lines of Python that call it."""
  end = "" if exported.end_id is None else f", id {exported.end_id} behind it"
  return "\n".join(
    [
      f"{exported.folder}: vectors of {exported.dimension} numbers for token ids int32 [B, T]: a "
      f"sentence has at most {exported.max_length}{end}, and then zeros",
      "  from jax import export",
      "  from safetensors.numpy import load_file",
      f"  folder = {str(exported.folder)!r}",
      f"  encoder = export.deserialize(open(folder + '/{FUNCTION_FILE}', 'rb').read())",
      f"  vectors = encoder.call(load_file(folder + '/{hugging_face.WEIGHTS_FILE}'), tokens)",
    ]
  )


def _serialized(network: sentence_encoder.SentenceEncoder, params: Mapping[str, Any]) -> bytes:
  """The function of flat parameters and tokens, for sizes that are not known yet."""

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
  """Looks T5's position biases up by distance; its own table of all pairs asks for the length."""
  if isinstance(context.module, t5.RelativePositionBias) and context.method_name == "__call__":
    return _position_bias(context.module, *args)
  return next_method(*args, **kwargs)


def _position_bias(module: t5.RelativePositionBias, length: Any) -> Float[Array, "1 H T T"]:
  """What `module` gives, for a length that need not be known."""
  reach = module.max_distance  # from which on all share a bucket
  buckets = t5.relative_position_buckets(
    2 * reach + 1,
    buckets=module.buckets,
    max_distance=reach,
    bidirectional=module.bidirectional,
  )[reach]
  position_T = jnp.arange(length)
  offset_TT = jnp.clip(position_T[None, :] - position_T[:, None], -reach, reach)
  table_HR: jax.Array = module.get_variable("params", "rel_embedding")
  return jnp.take(table_HR, jnp.asarray(buckets)[offset_TT + reach], axis=1)[None]
