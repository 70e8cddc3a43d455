"""Document vectors from a sentence encoder: split, embed, average.

A document may be longer than the encoder's maximum length. As LASER does for MLDoc, every document,
whatever its length, is split into sentences, and its vector is the mean of the sentence vectors.
"""

from collections.abc import Sequence

import numpy as np

from vmsst.evaluation import suite
from vmsst.text import sentence_splitting

BLOCK_DOCUMENTS = 4096  # Documents whose sentence vectors are in memory at once.


def mean_vectors(embed: suite.Embed, language: str, texts: Sequence[str]) -> np.ndarray:
  """The vector of every document [N, D], float32: the mean of those of its sentences.

  The vectors of sentences are averaged as the encoder gives them, not at length 1. Those of
  `BLOCK_DOCUMENTS` documents are held at once.

  Args:
    embed: What embeds sentences.
    language: Code of the documents' language.
    texts: The documents, at least one.
  """
  return np.concatenate(
    [
      _block_means(embed, language, texts[start : start + BLOCK_DOCUMENTS])
      for start in range(0, len(texts), BLOCK_DOCUMENTS)
    ]
  )


def _block_means(embed: suite.Embed, language: str, texts: Sequence[str]) -> np.ndarray:
  split = [sentence_splitting.sentences(text) for text in texts]
  count_N = np.array([len(pieces) for pieces in split])
  vectors_SD = embed(suite.Side(language, [piece for pieces in split for piece in pieces]))
  sum_ND = np.add.reduceat(vectors_SD, np.cumsum(count_N) - count_N, axis=0, dtype=np.float32)
  return sum_ND / count_N[:, None].astype(np.float32)
