import collections
import math

import numpy as np

from ems_jax.losses import token_targets

SENTENCES = [[3, 3, 4, 5], [7], [2, 5, 2, 2, 6, 1], []]  # an unknown word (1) is a token
TOKENS_BT = np.array([sentence + [0] * (6 - len(sentence)) for sentence in SENTENCES], np.int32)
V = 9


def dense(targets):
  """The distributions as rows of vocabulary size."""
  found_BV = np.zeros((len(targets.tokens_BT), V))
  for b, (tokens_T, share_T) in enumerate(zip(*map(np.asarray, targets), strict=True)):
    for token, share in zip(tokens_T, share_T, strict=True):
      found_BV[b, token] += share
  return found_BV


def equation_7(sentence):
  counts = collections.Counter(sentence)
  return [counts[w] / len(sentence) if w in counts else 0.0 for w in range(V)]


def test_targets_are_equation_7():
  found_BV = dense(token_targets.xtr_targets(TOKENS_BT))
  np.testing.assert_allclose(found_BV, [equation_7(s) for s in SENTENCES], rtol=1e-6)
  np.testing.assert_allclose(found_BV.sum(axis=1), [1, 1, 1, 0], rtol=1e-6)
  # The release counts repeated tokens once.
  found_BV = dense(token_targets.xtr_targets(TOKENS_BT, count_repeats=False))
  np.testing.assert_allclose(found_BV[0], [0, 0, 0, 1 / 4, 1 / 4, 1 / 4, 0, 0, 0])
  np.testing.assert_allclose(found_BV.sum(axis=1), [3 / 4, 1, 4 / 6, 0], rtol=1e-6)
  # Special ids are not part of a sentence.
  tokens_BT = np.array([[8, 3, 3, 4, 5, 1], [8, 7, 1, 0, 0, 0]])
  found_BV = dense(token_targets.xtr_targets(tokens_BT, special_ids=(1, 8)))
  np.testing.assert_allclose(found_BV, [equation_7(s) for s in SENTENCES[:2]], rtol=1e-6)


def test_ugt_is_half_translation_and_half_masked_token():
  xtr = token_targets.xtr_targets(TOKENS_BT)
  # A masked word that the other sentence has too, no mask, one that it does not have.
  found_BV, xtr_BV = dense(token_targets.ugt_targets(xtr, np.array([4, 0, 8, 6]))), dense(xtr)
  expected_BV = np.array([0.5, 1, 0.5, 0.5])[:, None] * xtr_BV
  expected_BV[[0, 2, 3], [4, 8, 6]] += 0.5
  np.testing.assert_allclose(found_BV, expected_BV, rtol=1e-6)


def test_entropy_adds_up_the_shares_of_a_token():
  once = token_targets.xtr_targets(TOKENS_BT, count_repeats=False)
  masked = token_targets.ugt_targets(token_targets.xtr_targets(TOKENS_BT), np.array([4, 0, 8, 6]))
  for targets in (token_targets.xtr_targets(TOKENS_BT), once, masked):
    expected_B = [sum(p * math.log(p) for p in row if p > 0) for row in dense(targets)]
    found_B = token_targets.negative_entropy(targets)
    np.testing.assert_allclose(found_B, expected_B, rtol=1e-6, atol=1e-7)
