"""Random batches of sentence pairs."""

import numpy as np


def random_batch(seed, pairs, lengths, ids, *, eos=None, languages=None):
  """Returns tokens of both sides, padded with 0, and language ids if there are any.

  Args:
    seed: Seed of the random numbers.
    pairs: Number of pairs.
    lengths: Lengths of "inputs" and "targets"; sentences have from 2 tokens to all.
    ids: Least token id, and the first that is too large.
    eos: Last token of every sentence; None: any.
    languages: Language ids to choose from, for each sentence; None: the batch has none.
  """
  rng = np.random.default_rng(seed)
  batch = {}
  for name, length in zip(("inputs", "targets"), lengths, strict=True):
    tokens_BT = rng.integers(*ids, size=(pairs, length), dtype=np.int32)
    count_B1 = rng.integers(2, length + 1, size=(pairs, 1))
    tokens_BT[np.arange(length) >= count_B1] = 0
    if eos is not None:
      tokens_BT[np.arange(length) == count_B1 - 1] = eos
    batch[name] = tokens_BT
  if languages is not None:
    for name in ("input_language", "target_language"):
      batch[name] = rng.choice(np.asarray(languages, np.int32), size=(pairs, 1))
  return batch
