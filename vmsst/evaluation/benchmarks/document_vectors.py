"""Computes document vectors with a sentence encoder: split, embed, average.

Documents may exceed the encoder's maximum length. As in LASER's MLDoc evaluation, every document is
split into sentences, and its vector is the mean of their vectors.
"""

from collections.abc import Sequence

import numpy as np

from vmsst.data import sentence_splitting
from vmsst.evaluation import suite

BLOCK_DOCUMENTS = 4096  # Documents whose sentence vectors are in memory at once.


def mean_vectors(embed: suite.Embed, language: str, texts: Sequence[str]) -> np.ndarray:
  """Returns the vector of every document, float32 [N, D]: the mean of its sentence vectors.

  Sentence vectors are averaged without normalization. Those of `BLOCK_DOCUMENTS` documents are in
  memory at once.

  Args:
    embed: Embeds sentences.
    language: Language code of the documents.
    texts: The documents, at least one.
  """
  means = []
  for start in range(0, len(texts), BLOCK_DOCUMENTS):
    block = texts[start : start + BLOCK_DOCUMENTS]
    split = [sentence_splitting.sentences(text) for text in block]
    count_N = np.array([len(pieces) for pieces in split])
    vectors_SD = embed(suite.Side(language, [piece for pieces in split for piece in pieces]))
    sum_ND = np.add.reduceat(vectors_SD, np.cumsum(count_N) - count_N, axis=0, dtype=np.float32)
    means.append(sum_ND / count_N[:, None].astype(np.float32))
  return np.concatenate(means)
