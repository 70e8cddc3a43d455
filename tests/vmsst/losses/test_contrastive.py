import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vmsst.losses import contrastive

SOURCE_BS, TARGET_BS = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)


def contrastive_loss(source_BS, target_BS, *, same_BB=None, **options):
  score_BB = contrastive.similarity(source_BS, target_BS, **options)
  return contrastive.contrastive_loss(score_BB, same_BB=same_BB)


def test_huge_vectors_have_the_exact_contrastive_loss_and_gradient():
  huge_BS = 1e4 * SOURCE_BS
  value, grad_BS = jax.value_and_grad(lambda s: contrastive_loss(s, TARGET_BS).mean())(huge_BS)
  score_BB = np.float64(huge_BS) @ np.float64(TARGET_BS).T
  total, slope_BB = 0.0, -np.eye(5)
  for axis in (0, 1):
    norm = np.logaddexp.reduce(score_BB, axis=axis, keepdims=True)
    total += 0.5 * np.mean(norm.ravel() - np.diag(score_BB))
    slope_BB += 0.5 * np.exp(score_BB - norm)
  assert value == pytest.approx(total, rel=1e-5)
  np.testing.assert_allclose(grad_BS, slope_BB @ TARGET_BS / 5, rtol=1e-4, atol=1e-6)


def test_zero_and_bfloat16_vectors():
  loss = functools.partial(contrastive_loss, cosine=True)
  grad_BS = jax.grad(lambda s: loss(s, TARGET_BS).mean())(jnp.zeros((5, 3)))
  assert np.isfinite(grad_BS).all()
  vector_BS = jnp.ones((2, 3), jnp.bfloat16)
  assert contrastive.similarity(vector_BS, vector_BS).dtype == jnp.float32


def test_a_tie_is_wrong():
  assert not np.any(contrastive.in_batch_accuracy(jnp.zeros((3, 3))))
