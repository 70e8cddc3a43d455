"""Properties that a run inherits from the encoder that it starts from, to be called from gin.

    sentence_encoder.SentenceEncoder:
      pooling = @starting_encoders.pooling()
      normalize = @starting_encoders.normalize()
    starting_encoders.pooling.checkpoint = %INITIAL_CHECKPOINT_PATH
    starting_encoders.normalize.checkpoint = %INITIAL_CHECKPOINT_PATH

Without them, a run that starts from LaBSE would pool by the mean instead of LaBSE's pooler.
"""

import os

from vmsst import errors
from vmsst.checkpoints import encoder_json, t5x
from vmsst.networks import sentence_encoder


def pooling(checkpoint: str | os.PathLike[str] | None) -> str:
  """Returns how the encoder of a checkpoint pools token states, as `SentenceEncoder.pooling`.

  Args:
    checkpoint: A `checkpoint_<step>` folder of a run or of an import. None: the mean, for a dry run
      without a checkpoint.

  Raises:
    InputError: there is no such checkpoint, or no `encoder.json` next to it.
  """
  return "mean" if checkpoint is None else _network(checkpoint).pooling


def normalize(checkpoint: str | os.PathLike[str] | None) -> bool:
  """Returns whether the encoder of a checkpoint scales its vectors to length 1.

  Arguments and errors are those of `pooling`.
  """
  return False if checkpoint is None else _network(checkpoint).normalize


def _network(checkpoint: str | os.PathLike[str]) -> sentence_encoder.SentenceEncoder:
  try:
    return encoder_json.load_network(t5x.find_checkpoint(checkpoint).parent)
  except errors.InputError as error:
    raise errors.InputError(
      f"{error}; it would tell the pooling of the encoder to start from. Set "
      "sentence_encoder.SentenceEncoder.pooling and .normalize if you know them"
    ) from None
