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

from vmsst import errors, languages, storage
from vmsst.data import vocabularies
from vmsst.formats import architectures, encoder_json, tensors, weight_tables
from vmsst.formats.weight_tables import Converted, Imported, Row, Rule, dense, norm
from vmsst.jobs import outputs
from vmsst.networks import sentence_encoder, transformer

_PARALLEL = "module."
_WORDS = "model.bert.embedding.word_embedding.embedding.weight"
_POSITIONS = "model.bert.embedding.position_embedding.position_embeddings.weight"
_LAYER = re.compile(r"model\.bert\.encoder\.layer\.(\d+)\.")
_LANGUAGES = "model.la_tag_linear.embedding.weight"
_LOGITS = "model.decoder.decoder.weight"
# There only if the token table is the XTR head's vocabulary projection too.
_SHARED = "model.target_embedding.weight"
# The XTR head's first layer had another name in older versions.
_OLD_TRANSFORM, _TRANSFORM = "model.decoder.transform.", "model.transform."
_POSITION_TABLE = "encoder/position_embedding"
_LANGUAGE_TABLE = "language_embedder/embedding"
_HEAD_DIM = 64
_OF_CONFIG = ("vocab_size", "emb_dim", "num_heads", "mlp_dim", "num_layers", "max_positions")
_EXPECTED = "EMS_model.pt of the release, or its state dict as .safetensors"

_ENCODER = (
  Rule(_WORDS, weight_tables.TOKEN_TABLE, ("vocab_size", "emb_dim")),
  Rule(_POSITIONS, _POSITION_TABLE, ("position_rows", "emb_dim")),
  *norm("model.bert.embedding.layer_norm", "encoder/embedding_layer_norm"),
  *architectures.bert_layers(
    "model.bert.encoder.layer", architectures.self_attention("self_attention")
  ),
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
) -> Imported:
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
  target = outputs.new_folder(output)
  with storage.local_copy(storage.absolute(file)) as path:
    stored = _open(path)
    sizes = _sizes(path, stored, num_heads)
    table = rows(sizes)
    names = {row.source for row in table}
    weight_tables.check(table, {name: x for name, x in stored.items() if name in names}, str(path))
    pieces = vocabularies.SentencePieceVocabulary(
      storage.absolute(vocabulary), lowercase=True, pretokenize=True
    )
    if pieces.size != sizes["vocab_size"]:
      raise errors.InputError(
        f"{vocabulary} has {pieces.size} pieces, but the token table of {path} has "
        f"{sizes['vocab_size']} rows; pass the vocabulary of this model"
      )
    params = weight_tables.to_parameters(table, stored)
    params[_POSITION_TABLE] = params[_POSITION_TABLE][1:]
    if sizes["language_dim"]:
      language_rows = _language_rows(pieces, sizes["num_source_languages"])
      languages_LG = np.zeros((languages.NUM_LANGUAGES, sizes["language_dim"]), np.float32)
      languages_LG[language_rows] = params[_LANGUAGE_TABLE]
      params[_LANGUAGE_TABLE] = languages_LG
    copies = {_SHARED, _LOGITS} if sizes["share_embedding"] else set()
    config = transformer.TransformerConfig(
      **{key: sizes[key] for key in _OF_CONFIG}, activation="swish", layer_norm_eps=1e-12
    )
    network = sentence_encoder.SentenceEncoder(config, sizes["emb_dim"], head=False)
    converted = Converted(
      convert=lambda: params,
      sizes=sizes,
      left_out={
        name: "a copy of the token table" if name in copies else "EmsNetwork has no such parameter"
        for name in sorted(stored.keys() - names)
      },
      assets=lambda _: encoder_json.EncoderAssets(network, pieces, sizes["max_positions"]),
      notes=("`encode` needs the language of texts: encode(sentences, language='en')",),
    )
    return weight_tables.save(converted, target)


def rows(sizes: Mapping[str, Any]) -> list[Row]:
  """Returns the tensors of the release that become parameters.

  Args:
    sizes: Attributes of a TransformerConfig and an EmsNetwork (`language_dim`, `share_embedding`,
      `projection_dim`), and `num_source_languages`, the rows of the release's language table. None
      or 0: that part is missing.
  """
  language_dim = sizes["language_dim"] or 0
  xtr_inputs = sizes["emb_dim"] + language_dim
  table = (
    *_ENCODER,
    *(_LANGUAGE if language_dim else ()),
    *_XTR,
    *(() if sizes["share_embedding"] else _XTR_LOGITS),
    *(_PROJECTION if sizes["projection_dim"] else ()),
  )
  derived = {
    "position_rows": sizes["max_positions"] + 1,
    "xtr_inputs": xtr_inputs,
    "xtr_dim": sizes["emb_dim"] if sizes["share_embedding"] else xtr_inputs,
  }
  return weight_tables.expand(table, {**sizes, **derived})


def _sizes(
  path: pathlib.Path, stored: Mapping[str, tensors.StoredTensor], num_heads: int | None
) -> dict[str, Any]:
  """Returns the sizes that tensors show, as for `rows`."""

  def shape(name: str) -> tuple[int, ...]:
    dims = stored[name].shape if name in stored else ()
    if len(dims) != 2 or 0 in dims:
      raise errors.InputError(
        f"{path}: {name} is not a matrix; give the EMS_model.pt of the release"
      )
    return dims

  vocab_size, width = shape(_WORDS)
  heads = max(1, width // _HEAD_DIM) if num_heads is None else num_heads
  if heads < 1 or width % heads:
    raise errors.InputError(
      f"{path} has hidden size {width}, not a multiple of {heads} attention heads; pass their "
      "number (--heads)"
    )
  table = shape(_LANGUAGES) if _LANGUAGES in stored else (0, None)
  projection = _PROJECTION[-2].source
  return {
    "vocab_size": vocab_size,
    "emb_dim": width,
    "num_heads": heads,
    "mlp_dim": shape("model.bert.encoder.layer.0.intermediate.dense.weight")[0],
    "num_layers": len({dims[1] for dims in map(_LAYER.match, stored) if dims}),
    "max_positions": shape(_POSITIONS)[0] - 1,
    "num_source_languages": table[0],
    "language_dim": table[1],
    "share_embedding": _SHARED in stored,
    "projection_dim": shape(projection)[0] if projection in stored else None,
  }


def _language_rows(
  vocabulary: vocabularies.SentencePieceVocabulary, num_source_languages: int
) -> list[int]:
  """Returns the row of `vmsst.languages` of each row of the release's language table.

  The release's rows are in the order of the ids of the languages' symbols.
  """
  import sentencepiece

  processor = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.model_bytes)
  pieces = (processor.id_to_piece(i) for i in range(vocabulary.size) if processor.is_control(i))
  codes = [match.group(1) for piece in pieces if (match := re.fullmatch(r"<2([a-z]+)>", piece))]
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
  if not path.is_file():
    raise errors.InputError(f"{path} is not a file; give {_EXPECTED}")
  tensors_by_name: dict[str, tensors.StoredTensor] = {}
  for source, tensor in tensors.open_file(path).items():
    name = source.removeprefix(_PARALLEL)
    if name.startswith(_OLD_TRANSFORM):
      name = _TRANSFORM + name.removeprefix(_OLD_TRANSFORM)
    if name in tensors_by_name:
      raise errors.InputError(f"{path} holds {name} twice")
    tensors_by_name[name] = tensor
  return tensors_by_name
