"""Properties that a run inherits from the encoder that it starts from, to be called from gin.

    sentence_encoder.SentenceEncoder:
      pooling = @starting_encoders.pooling()
      normalize = @starting_encoders.normalize()
    starting_encoders.pooling.checkpoint = %INITIAL_CHECKPOINT_PATH
    starting_encoders.normalize.checkpoint = %INITIAL_CHECKPOINT_PATH

Without them, a run that starts from LaBSE would pool by the mean instead of LaBSE's pooler, and one
that starts from E5 would lose its prompts.
"""

import os

from vmsst import errors
from vmsst.checkpoints import encoder_json, hub_models, t5x
from vmsst.data import hugging_face_vocabulary


def pooling(checkpoint: str | os.PathLike[str] | None) -> str:
  """Returns how the encoder of a checkpoint pools token states, as `SentenceEncoder.pooling`.

  Args:
    checkpoint: A `checkpoint_<step>` folder of a run or of an import, or a name on the Hugging Face
      Hub. None: the mean, for a dry run without a checkpoint.

  Raises:
    InputError: there is no such checkpoint, or no `encoder.json` next to it.
  """
  return "mean" if checkpoint is None else _assets(checkpoint).network.pooling


def normalize(checkpoint: str | os.PathLike[str] | None) -> bool:
  """Returns whether the encoder of a checkpoint scales its vectors to length 1.

  Arguments and errors are those of `pooling`.
  """
  return False if checkpoint is None else _assets(checkpoint).network.normalize


def prefix(checkpoint: str | os.PathLike[str] | None) -> str:
  """Returns the text that the encoder of a checkpoint puts before every text; None: no text.

  Arguments and errors are those of `pooling`.
  """
  return "" if checkpoint is None else getattr(_assets(checkpoint).vocabulary, "prefix", "")


def prompts(checkpoint: str | os.PathLike[str] | None) -> dict[str, str]:
  """Returns the prompts of the encoder of a checkpoint by name, for `encode_query` and others.

  Arguments and errors are those of `pooling`.
  """
  return {} if checkpoint is None else dict(getattr(_assets(checkpoint).vocabulary, "prompts", {}))


def max_length(checkpoint: str | os.PathLike[str] | None) -> int:
  """Returns the most tokens of a text that the encoder of a checkpoint reads; 512 for None.

  Arguments and errors are those of `pooling`.
  """
  return 512 if checkpoint is None else _assets(checkpoint).max_length


def tokenizer(checkpoint: str | os.PathLike[str]) -> str:
  """Returns the path of the `tokenizer.json` next to the checkpoint of an imported encoder.

  Args:
    checkpoint: Its path, or a name on the Hugging Face Hub.

  Raises:
    InputError: there is no such checkpoint, or no tokenizer next to it.
  """
  return _next_to(checkpoint, hugging_face_vocabulary.TOKENIZER_FILE)


def sentencepiece_model(checkpoint: str | os.PathLike[str]) -> str:
  """Returns the path of the SentencePiece model next to the checkpoint of an imported mT5.

  Arguments and errors are those of `tokenizer`.
  """
  return _next_to(checkpoint, encoder_json.VOCABULARY_FILE)


def _next_to(checkpoint: str | os.PathLike[str], name: str) -> str:
  folder = t5x.find_checkpoint(hub_models.checkpoint(checkpoint))
  path = folder.parent / name
  if not path.is_file():
    raise errors.InputError(f"no {name} next to {folder}; set VOCABULARY_PATH")
  return os.fspath(path)


def _assets(checkpoint: str | os.PathLike[str]) -> encoder_json.EncoderAssets:
  try:
    folder = t5x.find_checkpoint(hub_models.checkpoint(checkpoint))
    return encoder_json.load_encoder_assets(folder.parent)
  except errors.InputError as error:
    raise errors.InputError(
      f"{error}; it would describe the encoder to start from. Set "
      "sentence_encoder.SentenceEncoder.pooling and .normalize, and with runs/from_bert.gin "
      "VOCABULARY_PREFIX, VOCABULARY_PROMPTS and MAX_LENGTH, if you know them"
    ) from None
