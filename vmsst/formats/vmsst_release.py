"""Imports the released VMSST: an mT5 encoder and the projection after its mean.

In the release for transformers (`jwieting/vmsst`), the encoder's names start with `mt5_encoder.`
and the projection is `projection.weight`. The names of other parameters (language encoder, decoder)
are not published.
"""

import pathlib

from vmsst import errors
from vmsst.data import vocabularies
from vmsst.formats import mt5, tensors, transformers
from vmsst.formats.encoder_json import Converted
from vmsst.formats.tensors import Row

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
  stored = transformers.open_tensors(source)
  own = {x: y for x, y in stored.items() if x.startswith(ENCODER) or x == _PROJECTION}
  tensors_by_name = {name.removeprefix(ENCODER): tensor for name, tensor in own.items()}
  dimension = own[_PROJECTION].shape[0] if _PROJECTION in own else 0
  shape = (dimension, sizes["emb_dim"])
  head = Row(_PROJECTION, shape, ("mean/kernel",), transposed=True)
  table, copies = mt5.match(tensors_by_name, sizes, source, head)
  vocabulary = vocabulary or source / mt5.VOCABULARY_FILE
  if not vocabulary.is_file():
    raise errors.InputError(
      f"{vocabulary} does not exist; pass that of google/mt5-large (--vocabulary)"
    )
  pieces = vocabularies.SentencePieceVocabulary(str(vocabulary))
  return Converted(
    params=lambda: tensors.to_parameters(table, tensors_by_name),
    sizes=sizes,
    left_out={
      **{ENCODER + name: reason for name, reason in copies.items()},
      **dict.fromkeys(stored.keys() - own.keys(), "the sentence encoder has no such parameter"),
    },
    assets=mt5.encoder_assets(sizes, pieces, dimension, head=True),
  )
