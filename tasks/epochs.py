"""Training steps of a number of epochs, for gin: `TRAIN_STEPS = @epochs.steps()`.

`runs/soft_contrastive.gin` is an example.
"""

import math

import seqio

from vmsst import errors


def steps(
  mixture_or_task_name: str, *, epochs: float, batch_size: int, split: str = "train"
) -> int:
  """Returns the number of batches in epochs of a mixture's data, rounded up.

  An epoch is as many pairs as the mixture has, before those that are too long are dropped.

  Args:
    mixture_or_task_name: A SeqIO mixture or task.
    epochs: Number of epochs.
    batch_size: Pairs of a batch.
    split: The training split.

  Raises:
    InputError: an argument is invalid, or the data does not count its pairs.
  """
  errors.check_positive("epochs", epochs)
  errors.check_integer("batch_size", batch_size)
  pairs = seqio.get_mixture_or_task(mixture_or_task_name).num_input_examples(split)
  if not pairs:
    raise errors.InputError(
      f"the number of pairs of {mixture_or_task_name} ({split}) is unknown, so epochs have no "
      "number of steps; set TRAIN_STEPS, EVAL_PERIOD and CHECKPOINT_PERIOD"
    )
  return math.ceil(epochs * pairs / batch_size)
