"""mT5's parameters as the start of our models: which weight goes where (VMSST paper, section 6.4).

Both encoders start as mT5's encoder. The decoder takes over self-attention, feed-forward layers and
norms; the norm before cross-attention becomes the one before what stands in its place. The rows of
the vocabulary projection that hidden states meet are mT5's `lm_head`. Cross-attention has no
place; heads, language tables, injections and the latents' rows of the projection start fresh.

One import serves every model: each reads the parameters that it has.
"""

import dataclasses
import os
import pathlib
import re
import shutil
from collections.abc import Mapping
from typing import Any

import numpy as np

from vmsst import errors
from vmsst.checkpoints import hugging_face, imports, t5x, t5x_legacy, tensors
from vmsst.files import atomic_files

VOCABULARY_FILE = "spiece.model"

# Parts of an attention in T5X and in transformers.
_ATTENTION = {"query": "q", "key": "k", "value": "v", "out": "o"}
# Places of a layer's parts in transformers: index in the layer and name there.
_PLACES = {
  "encoder": {
    "pre_attention_layer_norm": "0.layer_norm",
    "attention": "0.SelfAttention",
    "pre_mlp_layer_norm": "1.layer_norm",
    "mlp": "1.DenseReluDense",
  },
  "decoder": {
    "pre_self_attention_layer_norm": "0.layer_norm",
    "self_attention": "0.SelfAttention",
    "pre_cross_attention_layer_norm": "1.layer_norm",
    "encoder_decoder_attention": "1.EncDecAttention",
    "pre_mlp_layer_norm": "2.layer_norm",
    "mlp": "2.DenseReluDense",
  },
}
# What folders of transformers hold besides: copies of the token table, and a table never used.
_COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
_UNUSED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Sizes of an mT5, under the names of our T5Config.

  Attributes:
    vocab_size: Rows of the token table.
    emb_dim: Width of hidden states.
    num_heads: Attention heads.
    head_dim: Width of one head.
    mlp_dim: Width of the feed-forward layers.
    num_encoder_layers: Layers of the encoder.
    num_decoder_layers: Layers of the decoder; 0: there is none.
    relpos_buckets: Buckets of relative distance.
    relpos_max_distance: Distance from which all share a bucket; mT5's unless something else is
      written in the checkpoint.
  """

  vocab_size: int
  emb_dim: int
  num_heads: int
  head_dim: int
  mlp_dim: int
  num_encoder_layers: int
  num_decoder_layers: int
  relpos_buckets: int = 32
  relpos_max_distance: int = 128


@dataclasses.dataclass(frozen=True)
class Imported:
  """What an import has done.

  Attributes:
    checkpoint: The checkpoint written.
    vocabulary: The SentencePiece model copied beside it, if there was one.
    sizes: Sizes of the mT5.
    rows: Every tensor of the source.
  """

  checkpoint: pathlib.Path
  vocabulary: pathlib.Path | None
  sizes: Sizes
  rows: tuple[imports.Row, ...]


def import_mt5(folder: str | os.PathLike[str], output: str | os.PathLike[str]) -> Imported:
  """Writes the parameters of an mT5 as a T5X checkpoint that training runs start from.

  Args:
    folder: A Hugging Face folder (`config.json` and safetensors), or a T5X checkpoint of either
      layout, or the folder that it is in.
    output: Folder to make. It gets `checkpoint_0` and, where the source has one, `spiece.model`.

  Raises:
    InputError: the source cannot be used, or `output` exists; nothing has been written then.
  """
  target = imports.free_folder(output)
  found = _open(pathlib.Path(os.path.abspath(folder)))
  with atomic_files.atomic_folder(target) as partial:
    params = {}
    for row in found.rows:
      if row.targets:
        array = found.tensors[row.source].read()
        array = np.ascontiguousarray(array.T) if row.source in found.transposed else array
        params.update(dict.fromkeys(row.targets, array))
    t5x.write_params(t5x.epath.Path(partial / imports.CHECKPOINT), params)
    if found.vocabulary is not None:
      shutil.copyfile(found.vocabulary, partial / VOCABULARY_FILE)
  copied = target / VOCABULARY_FILE
  return Imported(
    target / imports.CHECKPOINT, copied if copied.exists() else None, found.sizes, tuple(found.rows)
  )


def describe(imported: Imported) -> str:
  """A table of every tensor and what became of it, totals, and how to start a run from them."""
  lines = imports.describe_rows(imported.rows)
  used = [row for row in imported.rows if row.targets]
  unused = [row for row in imported.rows if not row.targets]
  written = sum(len(row.targets) for row in used)
  lines += [
    f"{len(used)} tensors ({sum(row.size for row in used):,} numbers) became {written} parameters "
    f"({sum(row.size * len(row.targets) for row in used):,} numbers)",
    f"{len(unused)} tensors ({sum(row.size for row in unused):,} numbers) were left out",
  ]
  if not imported.sizes.num_decoder_layers:
    lines.append("There is no decoder in it: only CONTRASTIVE can start from this checkpoint.")
  sizes = ", ".join(f"{key}={value}" for key, value in dataclasses.asdict(imported.sizes).items())
  lines += [
    f"Sizes: {sizes}",
    f"INITIAL_CHECKPOINT_PATH = '{imported.checkpoint}'",
  ]
  if imported.vocabulary is not None:
    lines.append(f"VOCABULARY_PATH = '{imported.vocabulary}'")
  return "\n".join(lines)


def shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
  """Shape of every parameter of an mT5, by its name in T5X."""
  width, joined = sizes.emb_dim, sizes.num_heads * sizes.head_dim
  part_shapes: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("query/kernel", "key/kernel", "value/kernel"), (width, joined)),
    "out/kernel": (joined, width),
    **dict.fromkeys(("wi_0/kernel", "wi_1/kernel"), (width, sizes.mlp_dim)),
    "wo/kernel": (sizes.mlp_dim, width),
    "scale": (width,),
  }

  def parts(name: str) -> tuple[str, ...]:
    if name.endswith("norm"):
      return ("scale",)
    if name == "mlp":
      return ("wi_0/kernel", "wi_1/kernel", "wo/kernel")
    return tuple(f"{part}/kernel" for part in _ATTENTION)

  found: dict[str, tuple[int, ...]] = {"token_embedder/embedding": (sizes.vocab_size, width)}
  for stack, layers in (
    ("encoder", sizes.num_encoder_layers),
    ("decoder", sizes.num_decoder_layers),
  ):
    if not layers:
      continue
    found[f"{stack}/relpos_bias/rel_embedding"] = (sizes.num_heads, sizes.relpos_buckets)
    for layer in range(layers):
      for name in _PLACES[stack]:
        for part in parts(name):
          found[f"{stack}/layers_{layer}/{name}/{part}"] = part_shapes[part]
    found[f"{stack}/{stack}_norm/scale"] = (width,)
  if sizes.num_decoder_layers:
    found["decoder/logits_dense/kernel"] = (width, sizes.vocab_size)
  return found


def targets(name: str) -> tuple[str, ...]:
  """Our parameters that an mT5's parameter becomes, by its name in T5X.

  None for cross-attention.
  """
  if "/encoder_decoder_attention/" in name:
    return ()
  if name.startswith("encoder/"):
    return (name, f"language_{name}")
  if name == "decoder/logits_dense/kernel":
    return ("logits_hidden/kernel",)
  return (name.replace("/pre_cross_attention_layer_norm/", "/pre_injection_layer_norm/"),)


def hugging_face_name(name: str) -> str:
  """A parameter's name in transformers, by its name in T5X."""
  if name == "token_embedder/embedding":
    return "shared.weight"
  if name == "decoder/logits_dense/kernel":
    return "lm_head.weight"
  stack, *rest = name.split("/")
  if rest[0] == "relpos_bias":
    return f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
  if rest[0] == f"{stack}_norm":
    return f"{stack}.final_layer_norm.weight"
  layer, place = rest[0].removeprefix("layers_"), _PLACES[stack][rest[1]]
  part = f".{_ATTENTION.get(rest[2], rest[2])}" if rest[2] != "scale" else ""
  return f"{stack}.block.{layer}.layer.{place}{part}.weight"


@dataclasses.dataclass(frozen=True)
class _Source:
  tensors: Mapping[str, tensors.StoredTensor]
  rows: list[imports.Row]
  transposed: frozenset[str]
  sizes: Sizes
  vocabulary: pathlib.Path | None


def _open(folder: pathlib.Path) -> _Source:
  if not folder.is_dir():
    raise errors.InputError(f"no folder {folder}")
  if (folder / hugging_face.CONFIG_FILE).exists():
    return _open_hugging_face(folder)
  checkpoint = open_t5x_params(folder)
  if checkpoint is not None:
    return _open_t5x(*checkpoint)
  inside = ", ".join(sorted(path.name for path in folder.iterdir())[:20]) or "nothing"
  raise errors.InputError(
    f"{folder} is neither a Hugging Face folder (config.json and model.safetensors) nor a T5X "
    f"checkpoint: it holds {inside}"
  )


def open_t5x_params(
  folder: pathlib.Path,
) -> tuple[pathlib.Path, dict[str, tensors.StoredTensor]] | None:
  """Returns the T5X checkpoint meant by a folder, and its parameters by name; None: there is none.

  Args:
    folder: A checkpoint of either layout, or what holds some, of which the latest is meant.

  Raises:
    InputError: it cannot be read.
  """
  newest = _newest_checkpoint(folder)
  if (newest / t5x_legacy.INDEX_FILE).is_file():
    return newest, t5x_legacy.open_params(newest)
  if (newest / "state").is_dir():
    return newest, t5x.open_params(t5x.epath.Path(newest))
  return None


def _newest_checkpoint(folder: pathlib.Path) -> pathlib.Path:
  """The checkpoint of most steps in `folder`; itself where there is none in it."""
  steps = {
    int(match.group(1)): path
    for path in folder.iterdir()
    if (match := re.fullmatch(r"checkpoint_(\d+)", path.name)) and path.is_dir()
  }
  return steps[max(steps)] if steps else folder


def _open_hugging_face(folder: pathlib.Path) -> _Source:
  found = hugging_face.open_tensors(folder)
  has_decoder = any(name.startswith("decoder.") for name in found)
  sizes = _sizes_of_config(folder / hugging_face.CONFIG_FILE, hugging_face.read_config(folder))
  if not has_decoder:
    sizes = dataclasses.replace(sizes, num_decoder_layers=0)
  for layers in (sizes.num_encoder_layers, sizes.num_decoder_layers):
    tensors.check_layers(layers, found, str(folder))
  wanted = shapes(sizes)
  names = {hugging_face_name(name): name for name in wanted}
  if has_decoder and "lm_head.weight" not in found:
    raise errors.InputError(
      f"{folder} has a decoder but no lm_head.weight: mT5's output table is one of its own. Save "
      "the whole model (MT5ForConditionalGeneration) with it, or the encoder alone"
    )
  notes = {name: "a copy of the token table" for name in _COPIES} | {
    _UNUSED: "no T5 of this kind reads it"
  }
  transposed = frozenset(name for name in names if len(wanted[names[name]]) == 2) - {
    "shared.weight"
  }
  tensors.check_names_and_shapes(
    {name: tensor for name, tensor in found.items() if name not in notes},
    {
      name: wanted[ours][::-1] if name in transposed else wanted[ours]
      for name, ours in names.items()
    },
    str(folder),
  )
  for name in found.keys() & set(_COPIES):
    if not np.array_equal(found[name].read(), found["shared.weight"].read()):
      raise errors.InputError(
        f"{found[name].where} differs from shared.weight: in mT5 one token table serves both stacks"
      )
  rows = [
    imports.Row(name, found[name].shape, note=notes[name])
    if name in notes
    else _row(name, names[name], found[name])
    for name in sorted(found, key=_natural)
  ]
  vocabulary = folder / VOCABULARY_FILE
  return _Source(found, rows, transposed, sizes, vocabulary if vocabulary.is_file() else None)


def _open_t5x(checkpoint: pathlib.Path, found: dict[str, tensors.StoredTensor]) -> _Source:
  sizes = sizes_of_shapes(checkpoint, found)
  tensors.check_names_and_shapes(found, shapes(sizes), str(checkpoint))
  rows = [_row(name, name, found[name]) for name in sorted(found, key=_natural)]
  return _Source(found, rows, frozenset(), sizes, None)


def _row(source: str, name: str, tensor: tensors.StoredTensor) -> imports.Row:
  places = targets(name)
  return imports.Row(source, tensor.shape, places, "" if places else "cross-attention")


def _natural(name: str) -> list[Any]:
  """Sorts layer 10 behind layer 9."""
  return [part.zfill(6) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _sizes_of_config(path: pathlib.Path, config: dict[str, Any]) -> Sizes:
  def number(key: str, default: int | None = None) -> int:
    return hugging_face.positive_integer(path, config, key, default)

  # T5 1.1 has the same parameters and function; umT5 has a bias table in every layer.
  choices: tuple[tuple[str, Any, tuple[Any, ...]], ...] = (
    ("model_type", None, ("mt5", "t5")),
    ("feed_forward_proj", None, ("gated-gelu",)),
    ("layer_norm_epsilon", 1e-6, (1e-6,)),
  )
  for key, default, known in choices:
    hugging_face.check_choice(path, config, key, default, known)
  layers = number("num_layers")
  return Sizes(
    vocab_size=number("vocab_size"),
    emb_dim=number("d_model"),
    num_heads=number("num_heads"),
    head_dim=number("d_kv"),
    mlp_dim=number("d_ff"),
    num_encoder_layers=layers,
    num_decoder_layers=number("num_decoder_layers", layers),
    relpos_buckets=number("relative_attention_num_buckets", 32),
    relpos_max_distance=number("relative_attention_max_distance", 128),
  )


def sizes_of_shapes(checkpoint: pathlib.Path, found: Mapping[str, tensors.StoredTensor]) -> Sizes:
  """Sizes told by a few tensors in T5X's names; whether the others agree is to be checked.

  Raises:
    InputError: one of these is missing or no matrix.
  """

  def matrix(name: str) -> tuple[int, ...]:
    if name not in found:
      raise errors.InputError(
        f"{checkpoint} lacks {name}: it is no mT5 in T5X's names, or its layers are scanned, which "
        "are not imported"
      )
    if len(found[name].shape) != 2 or 0 in found[name].shape:
      raise errors.InputError(f"{name} of {checkpoint} has shape {found[name].shape}, no matrix's")
    return found[name].shape

  vocab_size, emb_dim = matrix("token_embedder/embedding")
  num_heads, relpos_buckets = matrix("encoder/relpos_bias/rel_embedding")
  _, joined = matrix("encoder/layers_0/attention/query/kernel")
  _, mlp_dim = matrix("encoder/layers_0/mlp/wi_0/kernel")

  def layers(stack: str) -> int:
    return len({name.split("/")[1] for name in found if name.startswith(f"{stack}/layers_")})

  return Sizes(
    vocab_size=vocab_size,
    emb_dim=emb_dim,
    num_heads=num_heads,
    head_dim=joined // num_heads,
    mlp_dim=mlp_dim,
    num_encoder_layers=layers("encoder"),
    num_decoder_layers=layers("decoder"),
    relpos_buckets=relpos_buckets,
  )
