"""Imports the released VMSST: an mT5 encoder and the projection after its mean.

In the release for transformers (`jwieting/vmsst`), the encoder's names start with `mt5_encoder.`
and the projection is `projection.weight`. The names of other parameters (language encoder, decoder)
are not published.
"""

import pathlib

from vmsst import errors
from vmsst.data import vocabularies
from vmsst.formats import hugging_face, mt5, tensors, weight_tables
from vmsst.formats.weight_tables import Converted, Row

ENCODER = "mt5_encoder."
"""Start of the names of the encoder's tensors."""
_PROJECTION = "projection.weight"


def convert(source: pathlib.Path, *, vocabulary: pathlib.Path | None = None) -> Converted:
  """Returns VMSST.

  As in the released code, it reads 512 tokens of a sentence, though it was trained on 32; see
  `max_length` of `vmsst.load`.

  Args:
    source: The Hugging Face folder: `config.json` and weights.
    vocabulary: mT5's SentencePiece model; None: `spiece.model` in the folder.

  Raises:
    InputError: the source cannot be used.
  """
  sizes = mt5.read_config(source) | {"num_decoder_layers": 0}
  stored = hugging_face.open_tensors(source)
  if _PROJECTION not in stored:
    raise errors.InputError(f"{source} lacks {_PROJECTION}: it holds {tensors.some(stored)}")
  encoder = {x.removeprefix(ENCODER): y for x, y in stored.items() if x.startswith(ENCODER)}
  table, copies = mt5.match(encoder, sizes, source)
  head = stored[_PROJECTION]
  if len(head.shape) != 2 or head.shape[1] != sizes["emb_dim"]:
    raise errors.InputError(
      f"{head.where} has shape {head.shape}, not {sizes['emb_dim']} inputs as the encoder's width"
    )
  vocabulary = vocabulary or source / mt5.VOCABULARY_FILE
  if not vocabulary.is_file():
    raise errors.InputError(
      f"{vocabulary} does not exist; pass that of google/mt5-large (--vocabulary)"
    )
  pieces = vocabularies.SentencePieceVocabulary(str(vocabulary))
  used = {ENCODER + name for name in encoder} | {_PROJECTION}
  table.append(Row(_PROJECTION, head.shape, ("mean/kernel",), transposed=True))
  tensors_by_name = {**encoder, _PROJECTION: head}
  return Converted(
    convert=lambda: weight_tables.to_parameters(table, tensors_by_name),
    sizes=sizes,
    left_out={ENCODER + name: reason for name, reason in copies.items()}
    | dict.fromkeys(sorted(stored.keys() - used), "the sentence encoder has no such parameter"),
    assets=lambda _: mt5.encoder_assets(sizes, pieces, head.shape[0], head=True),
  )
