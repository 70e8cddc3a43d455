"""Evaluation sentences to exclude from training.

    sentences = EvaluationSentences.of(evaluation_texts.of(BENCHMARKS.values(), "/data"))
    sentences.sets(cleaning.sentence_key("Hello, world!"))  # ("tatoeba",), or () if in no set

Sentences are compared without case, punctuation and spaces (`cleaning.text_key`). Texts without
letters and digits are never excluded.
"""

import array
import bisect
import hashlib
import os
from collections.abc import Iterable, Sequence

import numpy as np

from vmsst.opus import cleaning


class EvaluationSentences:
  """The keys of sentences, with the evaluation sets that contain them.

  A sentence takes 16 bytes. With 10 million sentences, about one in 2 trillion other texts has the
  key of one of them by chance.

  Attributes:
    names: Names of the evaluation sets, sorted; some may have no sentences.
    keys_K: `cleaning.sentence_key` of each sentence, ascending, uint64.
    sets_K: Bit i tells whether `names[i]` contains the sentence, uint64.
  """

  def __init__(self, names: Sequence[str], keys_K: np.ndarray, sets_K: np.ndarray):
    self.names = tuple(names)
    self.keys_K = np.ascontiguousarray(keys_K, np.uint64)
    self.sets_K = np.ascontiguousarray(sets_K, np.uint64)
    # Python's own bisection of one key is several times faster than NumPy's.
    self._keys = self.keys_K.data

  @classmethod
  def of(cls, sentences: Iterable[tuple[str, str]]) -> "EvaluationSentences":
    """Returns the sentences of pairs (name of the set, text); OverflowError above 64 sets."""
    keys: dict[str, array.array] = {}
    for name, text in sentences:
      hashes = keys.setdefault(name, array.array("Q"))
      text = cleaning.normalize(text)
      if any(map(str.isalnum, text)):
        hashes.append(cleaning.sentence_key(text))
    names = sorted(keys)
    unique = [np.unique(np.frombuffer(keys[name], np.uint64)) for name in names]
    keys_K = np.unique(np.concatenate([np.empty(0, np.uint64), *unique]))
    sets_K = np.zeros(len(keys_K), np.uint64)
    for bit, own_N in enumerate(unique):
      sets_K[np.searchsorted(keys_K, own_N)] |= np.uint64(1 << bit)
    return cls(names, keys_K, sets_K)

  def sets(self, key: int) -> tuple[str, ...]:
    """Returns the names of the evaluation sets with the sentence of a `cleaning.sentence_key`."""
    row = bisect.bisect_left(self._keys, key)
    if row == len(self._keys) or self._keys[row] != key:
      return ()
    bits = int(self.sets_K[row])
    return tuple(name for i, name in enumerate(self.names) if bits >> i & 1)

  @property
  def counts(self) -> dict[str, int]:
    """Number of different sentences of each set; those in several sets count in each."""
    return {
      name: int(np.count_nonzero(self.sets_K & np.uint64(1 << bit)))
      for bit, name in enumerate(self.names)
    }

  @property
  def digest(self) -> str:
    """Hash of the sentences and the sets, in hexadecimal digits."""
    hashed = hashlib.sha256("\n".join(self.names).encode())
    for values in (self.keys_K, self.sets_K):
      hashed.update(values.astype("<u8").tobytes())
    return hashed.hexdigest()

  def save(self, path: str | os.PathLike) -> None:
    """Writes an .npz file."""
    with open(path, "wb") as stream:
      np.savez(stream, names=np.array(self.names, "U"), keys=self.keys_K, sets=self.sets_K)

  @classmethod
  def load(cls, path: str | os.PathLike) -> "EvaluationSentences":
    """Returns what `save` wrote."""
    with np.load(path) as arrays:
      return cls(arrays["names"].tolist(), arrays["keys"], arrays["sets"])
