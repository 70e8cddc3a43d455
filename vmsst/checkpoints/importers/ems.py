"""Parameters of the EMS that its authors have released: the encoder and both heads.

They become those of an `EmsNetwork` with `xtr_layer_norm`, which is how the release was trained.
Three things are arranged anew: matrices are transposed; the position table loses its first row,
which stands for padding; and the rows of languages, which the release counts in the order of its
vocabulary's symbols <2en>, <2af> ..., go where `vmsst.languages` has these languages. Rows of
languages that EMS was not trained on are zeros.
"""

import dataclasses
import os
import pathlib
import re
from collections.abc import Mapping

import numpy as np

from vmsst import errors, languages
from vmsst.checkpoints import encoder_json, hugging_face, imports, t5x, tensors, torch_files
from vmsst.files import atomic_files
from vmsst.text import vocabularies

_PARALLEL = "module."
_WORDS = "model.bert.embedding.word_embedding.embedding.weight"
_POSITIONS = "model.bert.embedding.position_embedding.position_embeddings.weight"
_LANGUAGES = "model.la_tag_linear.embedding.weight"
_SHARED = "model.target_embedding.weight"
_LOGITS = "model.decoder.decoder.weight"
_LAYER = "model.bert.encoder.layer."
# The XTR head's first layer had another place in older versions.
_OLD_TRANSFORM, _TRANSFORM = "model.decoder.transform.", "model.transform."
_LAYER_PLACES = {
  "attention/query": "attention.self_attention.query",
  "attention/key": "attention.self_attention.key",
  "attention/value": "attention.self_attention.value",
  "attention/out": "attention.output.dense",
  "post_attention_layer_norm": "attention.output.LayerNorm",
  "mlp/wi": "intermediate.dense",
  "mlp/wo": "output.dense",
  "post_mlp_layer_norm": "output.LayerNorm",
}
_HEAD_WIDTH = 64
_NOT_OURS = "EmsNetwork has no such parameter"
_COPY = "a copy of the token table"


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Sizes of the network, under the names of BertConfig and EmsNetwork.

  Attributes:
    vocab_size: Rows of the token table.
    emb_dim: Width of hidden states and sentence vectors.
    num_heads: Attention heads.
    mlp_dim: Width of the feed-forward layers.
    num_layers: Layers of the encoder.
    max_positions: Tokens that a sentence may have.
    language_dim: Width of the language embedding, or None: there is none.
    num_source_languages: Rows of the release's language table; 0: there is none.
    share_embedding: Whether the token table is the vocabulary projection of the XTR head too.
    projection_dim: Width of the vectors that the contrastive loss compares, or None: there is no
      such head.
  """

  vocab_size: int
  emb_dim: int
  num_heads: int
  mlp_dim: int
  num_layers: int
  max_positions: int
  language_dim: int | None
  num_source_languages: int
  share_embedding: bool
  projection_dim: int | None


@dataclasses.dataclass(frozen=True)
class Imported:
  """What an import has done.

  Attributes:
    checkpoint: The checkpoint written.
    sizes: Sizes of the network.
    rows: Every tensor of the source.
  """

  checkpoint: pathlib.Path
  sizes: Sizes
  rows: tuple[imports.Row, ...]


def import_ems(
  file: str | os.PathLike[str],
  output: str | os.PathLike[str],
  *,
  vocabulary: str | os.PathLike[str],
  num_heads: int | None = None,
) -> Imported:
  """Writes EMS as a folder that `vmsst.load` opens and that training runs start from.

  Text is lower-cased and split into words by its language, as in the release, so `encode` asks for
  the language.

  Args:
    file: The released `EMS_model.pt` or another file of that training code, read without running
      anything that is pickled in it; or its state dict as a `.safetensors` file.
    output: Folder to make. It gets `checkpoint_0`, `encoder.json` and the vocabulary.
    vocabulary: The SentencePiece model that comes with it, `62languages_bpe_60000.model`.
    num_heads: Attention heads, of which the file does not tell; None: one for every 64 dimensions,
      the release's 16.

  Raises:
    InputError: the source cannot be used, or `output` exists; nothing has been written then.
  """
  path, target = pathlib.Path(os.path.abspath(file)), imports.free_folder(output)
  stored = _open(path)
  sizes = _sizes(path, stored, num_heads)
  pieces = vocabularies.SentencePieceVocabulary(
    os.path.abspath(vocabulary), lowercase=True, pretokenize=True
  )
  if pieces.size != sizes.vocab_size:
    raise errors.InputError(
      f"{vocabulary} has {pieces.size} pieces, but the token table of {path} has "
      f"{sizes.vocab_size} rows: it is not the vocabulary of this model"
    )
  language_rows = _language_rows(pieces, sizes) if sizes.language_dim else []
  rows = _rows(path, stored, sizes)
  with atomic_files.atomic_folder(target) as partial:
    params = {}
    for row in rows:
      for name in row.targets:
        array = stored[row.source].read()
        params[name] = _arranged(name, array, language_rows)
    t5x.write_params(t5x.epath.Path(partial / imports.CHECKPOINT), params)
    encoder_json.save_imported_encoder(
      partial,
      network={
        "class": "SentenceEncoder",
        "config_class": "BertConfig",
        "config": {
          "vocab_size": sizes.vocab_size,
          "emb_dim": sizes.emb_dim,
          "num_heads": sizes.num_heads,
          "mlp_dim": sizes.mlp_dim,
          "num_layers": sizes.num_layers,
          "max_positions": sizes.max_positions,
          "activation": "swish",
          "layer_norm_eps": 1e-12,
        },
        "latent_dim": sizes.emb_dim,
        "head": False,
      },
      vocabulary=pieces,
      max_length=sizes.max_positions,
    )
  return Imported(target / imports.CHECKPOINT, sizes, tuple(rows))


def describe(imported: Imported) -> str:
  """A table of every tensor and what became of it, totals, sizes, and how to use the output."""
  lines = imports.describe_rows(imported.rows)
  for kind, rows in (
    ("became parameters", [row for row in imported.rows if row.targets]),
    ("were left out", [row for row in imported.rows if not row.targets]),
  ):
    lines.append(f"{len(rows)} tensors ({sum(row.size for row in rows):,} numbers) {kind}")
  sizes = ", ".join(f"{key}={value!r}" for key, value in dataclasses.asdict(imported.sizes).items())
  folder = imported.checkpoint.parent
  return "\n".join(
    [
      *lines,
      f"Sizes: {sizes}",
      f"vmsst.load({str(folder)!r}).encode(sentences, language='en') gives its vectors",
      f"VOCABULARY_PATH = {str(folder / encoder_json.VOCABULARY_FILE)!r}",
      f"INITIAL_CHECKPOINT_PATH = {str(imported.checkpoint)!r}",
    ]
  )


def release_names(sizes: Sizes) -> dict[str, str]:
  """Name in the release of every parameter, by ours."""
  modules = {"encoder/embedding_layer_norm": "model.bert.embedding.layer_norm"}
  for layer in range(sizes.num_layers):
    for ours, theirs in _LAYER_PLACES.items():
      modules[f"encoder/layers_{layer}/{ours}"] = f"{_LAYER}{layer}.{theirs}"
  names = {"token_embedder/embedding": _WORDS, "encoder/position_embedding": _POSITIONS}
  if sizes.language_dim:
    names["language_embedder/embedding"] = _LANGUAGES
    modules["language_layer_norm"] = "model.la_tag_linear.layer_norm"
  modules |= {"xtr_transform": f"{_TRANSFORM}dense", "xtr_norm": f"{_TRANSFORM}LayerNorm"}
  if not sizes.share_embedding:
    names["xtr_logits/kernel"] = _LOGITS
  if sizes.projection_dim:
    modules |= {"projection_hidden": "alignproj.0", "projection": "alignproj.3"}
  for ours, theirs in modules.items():
    names[f"{ours}/{'scale' if ours.endswith('norm') else 'kernel'}"] = f"{theirs}.weight"
    names[f"{ours}/bias"] = f"{theirs}.bias"
  return names


def _shape(name: str, sizes: Sizes) -> tuple[int, ...]:
  """Shape in the release of a parameter of ours."""
  width, language_dim = sizes.emb_dim, sizes.language_dim or 0
  tables = {
    "token_embedder/embedding": (sizes.vocab_size, width),
    "encoder/position_embedding": (sizes.max_positions + 1, width),
    "language_embedder/embedding": (sizes.num_source_languages, language_dim),
  }
  if name in tables:
    return tables[name]
  head = width if sizes.share_embedding else width + language_dim
  outputs, inputs = width, width
  if "/wi/" in name:
    outputs = sizes.mlp_dim
  elif "/wo/" in name:
    inputs = sizes.mlp_dim
  elif name.startswith("language_layer_norm"):
    outputs = language_dim
  elif name.startswith("xtr_"):
    outputs, inputs = (head, width + language_dim)
    if name.startswith("xtr_logits"):
      outputs = sizes.vocab_size
  elif name.startswith("projection/"):
    outputs = sizes.projection_dim or 0
  return (outputs, inputs) if name.endswith("/kernel") else (outputs,)


def _arranged(name: str, array: np.ndarray, language_rows: list[int]) -> np.ndarray:
  """An array of the release as the parameter of ours that it becomes."""
  if name == "encoder/position_embedding":
    return array[1:]
  if name == "language_embedder/embedding":
    table = np.zeros((languages.NUM_LANGUAGES, array.shape[1]), np.float32)
    table[language_rows] = array
    return table
  return np.ascontiguousarray(array.T) if name.endswith("/kernel") else array


def _rows(
  path: pathlib.Path, stored: Mapping[str, tensors.StoredTensor], sizes: Sizes
) -> list[imports.Row]:
  """What becomes of every tensor: the parameters in our order, then what is left out."""
  names = release_names(sizes)
  known = {name: tensor for name, tensor in stored.items() if name in set(names.values())}
  tensors.check_names_and_shapes(
    known, {theirs: _shape(ours, sizes) for ours, theirs in names.items()}, str(path)
  )
  used = [imports.Row(theirs, stored[theirs].shape, (ours,)) for ours, theirs in names.items()]
  copies = {_SHARED, _LOGITS} if sizes.share_embedding else set()
  return used + [
    imports.Row(name, stored[name].shape, note=_COPY if name in copies else _NOT_OURS)
    for name in sorted(set(stored) - set(known))
  ]


def _sizes(
  path: pathlib.Path, stored: Mapping[str, tensors.StoredTensor], num_heads: int | None
) -> Sizes:
  """Sizes told by a few tensors; whether the others agree is checked afterward."""

  def matrix(name: str) -> tuple[int, ...]:
    if name not in stored:
      raise errors.InputError(f"{path} lacks {name}: it is no EMS in the names of its release")
    if len(stored[name].shape) != 2 or 0 in stored[name].shape:
      raise errors.InputError(f"{stored[name].where} has shape {stored[name].shape}, no matrix's")
    return stored[name].shape

  vocab_size, emb_dim = matrix(_WORDS)
  positions, _ = matrix(_POSITIONS)
  mlp_dim, _ = matrix(f"{_LAYER}0.intermediate.dense.weight")
  layers = {name.removeprefix(_LAYER).split(".")[0] for name in stored if name.startswith(_LAYER)}
  num_languages, language_dim = matrix(_LANGUAGES) if _LANGUAGES in stored else (0, None)
  if num_heads is None:
    num_heads = max(1, emb_dim // _HEAD_WIDTH)
  if num_heads < 1 or emb_dim % num_heads:
    raise errors.InputError(
      f"{path} is {emb_dim} wide, no multiple of {num_heads} attention heads: give their number"
    )
  return Sizes(
    vocab_size=vocab_size,
    emb_dim=emb_dim,
    num_heads=num_heads,
    mlp_dim=mlp_dim,
    num_layers=len(layers),
    max_positions=positions - 1,
    language_dim=language_dim,
    num_source_languages=num_languages,
    share_embedding=_SHARED in stored,
    projection_dim=matrix("alignproj.3.weight")[0] if "alignproj.3.weight" in stored else None,
  )


def _language_rows(vocabulary: vocabularies.SentencePieceVocabulary, sizes: Sizes) -> list[int]:
  """Row in our table of each language of the release, in its order: that of the symbols' ids."""
  import sentencepiece

  processor = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.model_bytes)
  pieces = (processor.id_to_piece(i) for i in range(vocabulary.size) if processor.is_control(i))
  codes = [found.group(1) for piece in pieces if (found := re.fullmatch(r"<2([a-z]+)>", piece))]
  if len(codes) != sizes.num_source_languages:
    raise errors.InputError(
      f"{vocabulary.path} has symbols <2xx> for {len(codes)} languages, but the model's table has "
      f"{sizes.num_source_languages} rows: it is not the vocabulary of this model"
    )
  rows = [languages.language(code).index for code in codes]
  if len(set(rows)) < len(rows):
    raise errors.InputError(f"{vocabulary.path} has two symbols <2xx> for one language")
  return rows


def _open(path: pathlib.Path) -> dict[str, tensors.StoredTensor]:
  """The state dict's tensors under their names of today."""
  if not path.is_file():
    raise errors.InputError(f"no file {path}")
  opened = (
    hugging_face.open_file(path) if path.suffix == ".safetensors" else torch_files.open_file(path)
  )
  found: dict[str, tensors.StoredTensor] = {}
  for source, tensor in opened.items():
    name = source.removeprefix(_PARALLEL)
    if name.startswith(_OLD_TRANSFORM):
      name = _TRANSFORM + name.removeprefix(_OLD_TRANSFORM)
    if name in found:
      raise errors.InputError(f"{path} holds {name} twice")
    found[name] = tensor
  return found
