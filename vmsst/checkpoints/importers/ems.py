"""Imports the released EMS: the encoder and both heads.

The parameters are those of an `EmsNetwork` with `xtr_layer_norm`, as the release was trained. Next
to the table, two parameters change: positions lose their first row, which stands for padding, and
the rows of languages move from the order of the vocabulary's symbols (<2en>, <2af> ...) to that of
`vmsst.languages`. Languages that EMS was not trained on get rows of zeros.
"""

import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from vmsst import errors, languages
from vmsst.checkpoints import encoder_json, output_folders, tensors, torch_files
from vmsst.checkpoints.importers import bert, weight_tables
from vmsst.checkpoints.importers.weight_tables import Rule, dense, norm
from vmsst.files import storage, work_folders
from vmsst.text import vocabularies

_PARALLEL = "module."
_LANGUAGES = "model.la_tag_linear.embedding.weight"
_LOGITS = "model.decoder.decoder.weight"
# There only if the token table is the XTR head's vocabulary projection too.
_SHARED = "model.target_embedding.weight"
# The XTR head's first layer had another name in older versions.
_OLD_TRANSFORM, _TRANSFORM = "model.decoder.transform.", "model.transform."
_POSITION_TABLE = "encoder/position_embedding"
_LANGUAGE_TABLE = "language_embedder/embedding"
_HEAD_DIM = 64
_EXPECTED = "EMS_model.pt of the release, or its state dict as .safetensors"
_UNUSED = "EmsNetwork has no such parameter"
_COPY = "a copy of the token table"

_ENCODER = (
  Rule(
    "model.bert.embedding.word_embedding.embedding.weight",
    weight_tables.TOKEN_TABLE,
    ("vocab_size", "emb_dim"),
  ),
  Rule(
    "model.bert.embedding.position_embedding.position_embeddings.weight",
    _POSITION_TABLE,
    ("position_rows", "emb_dim"),
  ),
  *norm("model.bert.embedding.layer_norm", "encoder/embedding_layer_norm"),
  *bert.layers("model.bert.encoder.layer", "self_attention"),
)
_LANGUAGE = (
  Rule(_LANGUAGES, _LANGUAGE_TABLE, ("num_source_languages", "language_dim")),
  *norm("model.la_tag_linear.layer_norm", "language_layer_norm", "language_dim"),
)
_XTR = (
  *dense(f"{_TRANSFORM}dense", "xtr_transform", "xtr_dim", "xtr_inputs"),
  *norm(f"{_TRANSFORM}LayerNorm", "xtr_norm", "xtr_dim"),
)
_XTR_LOGITS = (Rule(_LOGITS, "xtr_logits/kernel", ("vocab_size", "xtr_dim"), transposed=True),)
_PROJECTION = (
  *dense("alignproj.0", "projection_hidden"),
  *dense("alignproj.3", "projection", "projection_dim"),
)


def import_ems(
  file: str | os.PathLike[str],
  output: str | os.PathLike[str],
  *,
  vocabulary: str | os.PathLike[str],
  num_heads: int | None = None,
) -> weight_tables.Imported:
  """Writes EMS as a folder that `vmsst.load` opens and that training runs start from.

  As in the release, text is lowercased and split into words by the rules of its language, so
  `encode` needs the language.

  Args:
    file: The released `EMS_model.pt` or another file of that training code; nothing in the pickle
      is run. Or its state dict as a `.safetensors` file. One in an object store is copied to this
      machine.
    output: Folder to make, local or in an object store. It gets `checkpoint_0`,
      `encoder.json` and the vocabulary.
    vocabulary: The release's SentencePiece model, `62languages_bpe_60000.model`.
    num_heads: Attention heads, which the file does not show; None: one for each 64 dimensions (16
      in the release).

  Raises:
    InputError: the source cannot be used, or `output` exists. Nothing is written then.
  """
  target = output_folders.new_folder(output)
  with storage.local_copy(storage.absolute(file)) as path:
    stored = _open(path)
    config, heads, rows = _match(path, stored, num_heads)
    pieces = vocabularies.SentencePieceVocabulary(
      storage.absolute(vocabulary), lowercase=True, pretokenize=True
    )
    if pieces.size != config["vocab_size"]:
      raise errors.InputError(
        f"{vocabulary} has {pieces.size} pieces, but the token table of {path} has "
        f"{config['vocab_size']} rows; pass the vocabulary of this model"
      )
    rows_of_languages: list[int] = []
    if heads["num_source_languages"]:
      rows_of_languages = _language_rows(pieces, heads["num_source_languages"])
    with work_folders.atomic_folder(target) as partial:
      params = weight_tables.to_parameters(rows, stored)
      params[_POSITION_TABLE] = params[_POSITION_TABLE][1:]
      if rows_of_languages:
        table = np.zeros((languages.NUM_LANGUAGES, heads["language_dim"]), np.float32)
        table[rows_of_languages] = params[_LANGUAGE_TABLE]
        params[_LANGUAGE_TABLE] = table
      weight_tables.write_checkpoint(partial, params)
      encoder_json.save_imported_encoder(
        partial,
        network={
          "class": "SentenceEncoder",
          "config_class": "BertConfig",
          "config": config,
          "latent_dim": config["emb_dim"],
          "head": False,
        },
        vocabulary=pieces,
        max_length=config["max_positions"],
      )
  return weight_tables.Imported(
    checkpoint=target / weight_tables.CHECKPOINT,
    sizes=config | heads,
    rows=tuple(rows),
    vocabulary=target / encoder_json.VOCABULARY_FILE,
    notes=(f"vmsst.load({str(target)!r}).encode(sentences, language='en') returns its vectors",),
  )


def rows(config: Mapping[str, Any], heads: Mapping[str, Any]) -> list[weight_tables.Row]:
  """Returns the tensors of the release that become parameters.

  Args:
    config: Attributes of a BertConfig.
    heads: Attributes of the EmsNetwork (`language_dim`, `share_embedding`, `projection_dim`), and
      `num_source_languages`, the rows of the release's language table. None or 0: that part is
      missing.
  """
  language_dim = heads["language_dim"] or 0
  xtr_inputs = config["emb_dim"] + language_dim
  table = (
    *_ENCODER,
    *(_LANGUAGE if language_dim else ()),
    *_XTR,
    *(() if heads["share_embedding"] else _XTR_LOGITS),
    *(_PROJECTION if heads["projection_dim"] else ()),
  )
  derived = {
    "position_rows": config["max_positions"] + 1,
    "xtr_inputs": xtr_inputs,
    "xtr_dim": config["emb_dim"] if heads["share_embedding"] else xtr_inputs,
  }
  return weight_tables.expand(table, {**config, **heads, **derived})


def _match(
  path: pathlib.Path, stored: Mapping[str, tensors.StoredTensor], num_heads: int | None
) -> tuple[dict[str, Any], dict[str, Any], list[weight_tables.Row]]:
  """Returns the encoder's config, the sizes of the heads, and what each tensor becomes."""
  table = (
    *_ENCODER,
    *(_LANGUAGE if _LANGUAGES in stored else ()),
    *(_PROJECTION if _PROJECTION[-2].source in stored else ()),
  )
  why = "it is not an EMS in the names of its release"
  sizes = weight_tables.infer_sizes(table, stored, str(path), otherwise=why)
  width = sizes["emb_dim"]
  if num_heads is None:
    num_heads = max(1, width // _HEAD_DIM)
  if num_heads < 1 or width % num_heads:
    raise errors.InputError(
      f"{path} has hidden size {width}, not a multiple of {num_heads} attention heads; pass their "
      "number (--heads)"
    )
  config = {
    "vocab_size": sizes["vocab_size"],
    "emb_dim": width,
    "num_heads": num_heads,
    "mlp_dim": sizes["mlp_dim"],
    "num_layers": sizes["num_layers"],
    "max_positions": sizes["position_rows"] - 1,
    "activation": "swish",
    "layer_norm_eps": 1e-12,
  }
  heads = {
    "language_dim": sizes.get("language_dim"),
    "num_source_languages": sizes.get("num_source_languages", 0),
    "share_embedding": _SHARED in stored,
    "projection_dim": sizes.get("projection_dim"),
  }
  used = rows(config, heads)
  names = {row.source for row in used}
  known = {name: tensor for name, tensor in stored.items() if name in names}
  weight_tables.check(used, known, str(path))
  copies = {_SHARED, _LOGITS} if heads["share_embedding"] else set()
  unused = [
    weight_tables.Row(name, stored[name].shape, note=_COPY if name in copies else _UNUSED)
    for name in sorted(stored.keys() - names)
  ]
  return config, heads, used + unused


def _language_rows(
  vocabulary: vocabularies.SentencePieceVocabulary, num_source_languages: int
) -> list[int]:
  """Returns the row of `vmsst.languages` of each row of the release's language table.

  The release's rows are in the order of the ids of the languages' symbols.
  """
  import sentencepiece

  processor = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.model_bytes)
  pieces = (processor.id_to_piece(i) for i in range(vocabulary.size) if processor.is_control(i))
  codes = [found.group(1) for piece in pieces if (found := re.fullmatch(r"<2([a-z]+)>", piece))]
  if len(codes) != num_source_languages:
    raise errors.InputError(
      f"{vocabulary.path} has symbols <2xx> for {len(codes)} languages, but the model's language "
      f"table has {num_source_languages} rows; pass the vocabulary of this model"
    )
  indices = [languages.language(code).index for code in codes]
  if len(set(indices)) < len(indices):
    raise errors.InputError(f"{vocabulary.path} has two symbols <2xx> for one language")
  return indices


def _open(path: pathlib.Path) -> dict[str, tensors.StoredTensor]:
  """Returns the state dict's tensors by their current names."""
  if path.is_dir():
    raise errors.InputError(f"{path} is a folder; give {_EXPECTED}")
  if not path.is_file():
    raise errors.InputError(f"no file {path}; give {_EXPECTED}")
  found: dict[str, tensors.StoredTensor] = {}
  for source, tensor in torch_files.open_state_dict(path, expected=_EXPECTED).items():
    name = source.removeprefix(_PARALLEL)
    if name.startswith(_OLD_TRANSFORM):
      name = _TRANSFORM + name.removeprefix(_OLD_TRANSFORM)
    if name in found:
      raise errors.InputError(f"{path} holds {name} twice")
    found[name] = tensor
  return found
