import collections

import numpy as np

from ems_jax.losses import token_targets

SENTENCES = [[3, 3, 4, 5], [7], [2, 5, 2, 2, 6, 1], []]  # an unknown word (1) is a token
TOKENS_BT = np.array([sentence + [0] * (6 - len(sentence)) for sentence in SENTENCES], np.int32)


def dense_rows(targets):
  """The distributions as rows of vocabulary size."""
  found_BV = np.zeros((len(targets.tokens_BT), 9))
  for b, (tokens_T, share_T) in enumerate(zip(*map(np.asarray, targets), strict=True)):
    for token, share in zip(tokens_T, share_T, strict=True):
      found_BV[b, token] += share
  return found_BV


def equation_7(sentence):
  counts = collections.Counter(sentence)
  return [counts[w] / len(sentence) if w in counts else 0.0 for w in range(9)]


def test_targets_are_equation_7():
  found_BV = dense_rows(token_targets.xtr_targets(TOKENS_BT))
  np.testing.assert_allclose(found_BV, [equation_7(s) for s in SENTENCES], rtol=1e-6)
  np.testing.assert_allclose(found_BV.sum(axis=1), [1, 1, 1, 0], rtol=1e-6)
  # The release counts repeated tokens once.
  found_BV = dense_rows(token_targets.xtr_targets(TOKENS_BT, count_repeats=False))
  np.testing.assert_allclose(found_BV[0], [0, 0, 0, 1 / 4, 1 / 4, 1 / 4, 0, 0, 0])
  np.testing.assert_allclose(found_BV.sum(axis=1), [3 / 4, 1, 4 / 6, 0], rtol=1e-6)
  # Special ids are not part of a sentence.
  tokens_BT = np.array([[8, 3, 3, 4, 5, 1], [8, 7, 1, 0, 0, 0]])
  found_BV = dense_rows(token_targets.xtr_targets(tokens_BT, special_ids=(1, 8)))
  np.testing.assert_allclose(found_BV, [equation_7(s) for s in SENTENCES[:2]], rtol=1e-6)
