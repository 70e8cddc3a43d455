"""What a run inherits from the encoder that it starts from, to be called from gin.

    sentence_encoder.SentenceEncoder:
      pooling = @starting_encoders.pooling()
      normalize = @starting_encoders.normalize()
    starting_encoders.pooling.checkpoint = %INITIAL_CHECKPOINT_PATH
    starting_encoders.normalize.checkpoint = %INITIAL_CHECKPOINT_PATH

Without them, a run that starts from LaBSE would pool by the mean instead of the first token, and
one that starts from E5 would lose its prompts.
"""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from vmsst import errors, storage
from vmsst.data import vocabularies
from vmsst.encoder import loading
from vmsst.formats import encoder_json
from vmsst.networks import sentence_encoder, static

_OF_LAYERS = ("dropout_rate", "remat", "scan_layers")


def network(
  checkpoint: str | os.PathLike[str] | None, **options: Any
) -> sentence_encoder.SentenceEncoder:
  """Returns the network of an encoder: sizes, pooling, head and normalization.

  Args:
    checkpoint: A path that `vmsst.load` opens: a folder of sentence-transformers or transformers, a
      name on the Hugging Face Hub, a run, an export. None, in a dry run without it, is an error.
    **options: Changes of its config, such as `dropout_rate`, `dtype`, `remat` and `scan_layers`. A
      network without layers ignores the options of layers.

  Raises:
    InputError: there is no such encoder.
    TypeError: its config has no option of this name.
  """
  saved = _assets(checkpoint).network
  if isinstance(saved.config, static.StaticConfig):
    options = {name: x for name, x in options.items() if name not in _OF_LAYERS}
  config = dataclasses.replace(saved.config, **options)  # type: ignore[type-var]
  return dataclasses.replace(saved, config=config, parent=None)


def pooling(checkpoint: str | os.PathLike[str] | None) -> str:
  """Returns how the encoder of a checkpoint pools token states, as `SentenceEncoder.pooling`.

  Args:
    checkpoint: A `checkpoint_<step>` folder of a run or of an import, or a name on the Hugging Face
      Hub. None: the mean, for a dry run without a checkpoint.

  Raises:
    InputError: there is no such checkpoint, or no `encoder.json` next to it.
  """
  return "mean" if checkpoint is None else _assets(checkpoint).network.pooling


def pooler_dim(checkpoint: str | os.PathLike[str] | None) -> int | None:
  """Returns the width of the pooler of the encoder of a checkpoint; None: it has none.

  Arguments and errors are those of `pooling`.
  """
  return None if checkpoint is None else _assets(checkpoint).network.pooler_dim


def normalize(checkpoint: str | os.PathLike[str] | None) -> bool:
  """Returns whether the encoder of a checkpoint scales its vectors to length 1.

  Arguments and errors are those of `pooling`.
  """
  return False if checkpoint is None else _assets(checkpoint).network.normalize


def vocabulary(
  checkpoint: str | os.PathLike[str] | None,
  path: str = "",
  prefix: str | None = None,
  prompts: Mapping[str, str] | None = None,
) -> vocabularies.Vocabulary:
  """Returns the vocabulary of an encoder, by default with its own file and prompts.

  Args:
    checkpoint: A path that `vmsst.load` opens.
    path: Another file of the vocabulary.
    prefix: Another text before every text, in training and in `encode`.
    prompts: Other texts before queries, documents and others, by name.

  Raises:
    InputError: there is no such encoder, or its vocabulary cannot be changed in this way.
  """
  found = _assets(checkpoint).vocabulary
  given = {"path": path or None, "prefix": prefix, "prompts": prompts}
  changes: dict[str, Any] = {name: x for name, x in given.items() if x is not None}
  for name in [name for name in changes if not hasattr(found, name)]:
    macro, value = f"VOCABULARY_{name.upper()}", changes.pop(name)
    errors.check(not value, macro, value, f"None: {checkpoint} has a vocabulary without {name}")
  return dataclasses.replace(found, **changes)  # type: ignore[type-var]


def max_length(checkpoint: str | os.PathLike[str] | None, limit: int = 512) -> int:
  """Returns the most tokens of a text that the encoder of a checkpoint reads, at most a limit.

  The other argument and errors are those of `pooling`.
  """
  return limit if checkpoint is None else min(limit, _assets(checkpoint).max_length)


def sentencepiece_model(checkpoint: str | os.PathLike[str]) -> str:
  """Returns the path of the SentencePiece model of an encoder, such as mT5's.

  Args:
    checkpoint: A path that `vmsst.load` opens.

  Raises:
    InputError: there is no such encoder, or it has another vocabulary.
  """
  vocabulary = _assets(checkpoint).vocabulary
  if not isinstance(vocabulary, vocabularies.SentencePieceVocabulary):
    raise errors.InputError(f"{checkpoint} has no SentencePiece model; set VOCABULARY_PATH")
  return vocabulary.path


def _assets(checkpoint: str | os.PathLike[str] | None) -> encoder_json.EncoderAssets:
  if checkpoint is None:
    raise errors.InputError(
      "ENCODER: no value, but a dry run needs the encoder to start from; set --gin.ENCODER or, in "
      "other runs, --gin.INITIAL_CHECKPOINT_PATH"
    )
  folder = pathlib.Path(checkpoint).expanduser()
  files = [] if storage.is_url(checkpoint) else sorted(folder.glob("*"))
  version = tuple((path, storage.version(path)) for path in files)
  return _read(os.fspath(checkpoint), version)


# Several values of a gin file ask for it.
@functools.lru_cache(maxsize=4)
def _read(checkpoint: str, version: object) -> encoder_json.EncoderAssets:
  del version  # Another encoder may be at the same path by the next run.
  return loading.read_assets(checkpoint)
