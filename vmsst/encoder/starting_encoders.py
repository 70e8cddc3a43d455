"""Functions for gin files that return the settings a run inherits from its starting encoder.

For example, these lines in a gin file set the pooling and the normalization:

    sentence_encoder.SentenceEncoder:
      pooling = @starting_encoders.pooling()
      normalize = @starting_encoders.normalize()
    starting_encoders.pooling.checkpoint = %INITIAL_CHECKPOINT_PATH
    starting_encoders.normalize.checkpoint = %INITIAL_CHECKPOINT_PATH

Without `starting_encoders.pooling`, a run that starts from LaBSE would use mean pooling instead of
the first token. Without `starting_encoders.normalize`, a run that starts from E5 would not scale
its vectors to length 1.
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

_LAYER_OPTIONS = ("dropout_rate", "remat", "scan_layers")


def network(
  checkpoint: str | os.PathLike[str] | None, **options: Any
) -> sentence_encoder.SentenceEncoder:
  """Returns an encoder's network: its sizes, pooling, head and normalization.

  Args:
    checkpoint: A path that `vmsst.load` opens, such as a sentence-transformers or transformers
      folder, a Hugging Face Hub name, a run or an export. Required, even in a dry run.
    **options: Config values to override, such as `dropout_rate`, `dtype`, `remat` and
      `scan_layers`. A static encoder has no layers and ignores layer options.

  Raises:
    InputError: If no encoder exists at this path.
    TypeError: If the network's config lacks one of the options.
  """
  return with_options(_assets(checkpoint).network, **options)


def with_options(
  network: sentence_encoder.SentenceEncoder, **options: Any
) -> sentence_encoder.SentenceEncoder:
  """Returns a network with some config values replaced; see `network`."""
  if isinstance(network.config, static.StaticConfig):
    options = {name: x for name, x in options.items() if name not in _LAYER_OPTIONS}
  config = dataclasses.replace(network.config, **options)  # type: ignore[type-var]
  return dataclasses.replace(network, config=config, parent=None)


def pooling(checkpoint: str | os.PathLike[str] | None) -> str:
  """Returns an encoder's pooling, as in `SentenceEncoder.pooling`.

  Args:
    checkpoint: A `checkpoint_<step>` folder from a run or an import, or a name on the Hugging Face
      Hub. If `checkpoint` is None, as in a dry run without a checkpoint, the result is "mean".

  Raises:
    InputError: If no checkpoint exists at this path, or if it has no `encoder.json`.
  """
  return "mean" if checkpoint is None else _assets(checkpoint).network.pooling


def pooler_dim(checkpoint: str | os.PathLike[str] | None) -> int | None:
  """Returns the width of an encoder's pooler, or None if the encoder has no pooler.

  Arguments and errors are as in `pooling`.
  """
  return None if checkpoint is None else _assets(checkpoint).network.pooler_dim


def normalize(checkpoint: str | os.PathLike[str] | None) -> bool:
  """Returns whether an encoder scales its vectors to length 1.

  Arguments and errors are as in `pooling`.
  """
  return False if checkpoint is None else _assets(checkpoint).network.normalize


def vocabulary(
  checkpoint: str | os.PathLike[str] | None,
  path: str = "",
  prefix: str | None = None,
  prompts: Mapping[str, str] | None = None,
) -> vocabularies.Vocabulary:
  """Returns an encoder's vocabulary. All arguments except `checkpoint` override its settings.

  Args:
    checkpoint: A path that `vmsst.load` opens.
    path: Path to the vocabulary file (default: the encoder's vocabulary file).
    prefix: Text to prepend to every sentence, in training and in `encode` (default: the encoder's
      prefix).
    prompts: Prefixes by name, such as "query" and "document" (default: the encoder's prompts).

  Raises:
    InputError: If no encoder exists at this path, or if an argument overrides a setting that the
      vocabulary lacks.
  """
  default = _assets(checkpoint).vocabulary
  overrides = {"path": path or None, "prefix": prefix, "prompts": prompts}
  changes: dict[str, Any] = {name: x for name, x in overrides.items() if x is not None}
  for name in [name for name in changes if not hasattr(default, name)]:
    macro, value = f"VOCABULARY_{name.upper()}", changes.pop(name)
    errors.check(not value, macro, value, f"None (the vocabulary of {checkpoint} has no {name})")
  return dataclasses.replace(default, **changes)  # type: ignore[type-var]


def max_length(checkpoint: str | os.PathLike[str] | None, limit: int = 512) -> int:
  """Returns an encoder's maximum number of tokens per text, but at most `limit`.

  The argument `checkpoint` and the errors are as in `pooling`.
  """
  return limit if checkpoint is None else min(limit, _assets(checkpoint).max_length)


def sentencepiece_model(checkpoint: str | os.PathLike[str]) -> str:
  """Returns the path to an encoder's SentencePiece model, such as the model in mT5.

  Args:
    checkpoint: A path that `vmsst.load` opens.

  Raises:
    InputError: If no encoder exists at this path, or if its vocabulary is not a SentencePiece
      model.
  """
  vocabulary = _assets(checkpoint).vocabulary
  if not isinstance(vocabulary, vocabularies.SentencePieceVocabulary):
    raise errors.InputError(f"{checkpoint} has no SentencePiece model; set VOCABULARY_PATH")
  return vocabulary.path


def _assets(checkpoint: str | os.PathLike[str] | None) -> encoder_json.EncoderAssets:
  if checkpoint is None:
    raise errors.InputError(
      "ENCODER has no value, but even a dry run reads the starting encoder; set --gin.ENCODER or, "
      "in runs without ENCODER, --gin.INITIAL_CHECKPOINT_PATH"
    )
  folder = pathlib.Path(checkpoint).expanduser()
  files = [] if storage.is_url(checkpoint) else sorted(folder.glob("*"))
  version = tuple((path, storage.version(path)) for path in files)
  return _read(os.fspath(checkpoint), version)


# Cached, because several settings in a gin file read the same encoder.
@functools.lru_cache(maxsize=4)
def _read(checkpoint: str, version: object) -> encoder_json.EncoderAssets:
  del version  # only part of the cache key: the files at a path can change
  return loading.read_assets(checkpoint)
