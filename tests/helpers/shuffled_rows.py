"""A dataset whose order depends on hidden state, and its batches as numbers."""

import numpy as np
import tensorflow as tf


def shuffled_dataset():
  """Returns an endless dataset of {inputs: [2, 16]} whose order depends on hidden state."""
  return (
    tf.data.Dataset.range(50)
    .shuffle(50, seed=3)
    .repeat()
    .map(lambda i: {"inputs": tf.fill([16], tf.cast(i + 1, tf.int32))})
    .batch(2, drop_remainder=True)
  )


def take(iterator, count):
  """Returns the next `count` batches: for each, the number that fills each row."""
  return [np.asarray(next(iterator)["inputs"])[:, 0].tolist() for _ in range(count)]


def expected(start, count):
  """Returns what `take` returns of batches `start` to `start + count` of the dataset."""
  rows = list(shuffled_dataset().take(start + count).as_numpy_iterator())
  return [row["inputs"][:, 0].tolist() for row in rows[start:]]
