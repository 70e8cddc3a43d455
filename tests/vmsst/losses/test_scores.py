"""Losses of scores, against loops; tests/vmsst/models/test_scores.py has sentence-transformers'."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vmsst.losses import scores

B, C = 6, 4
RNG = np.random.default_rng(0)
SCORE_BC, TEACHER_BC = RNG.normal(size=(2, B, C)).astype(np.float32)
EXISTS_BC = np.ones((B, C), bool)
EXISTS_BC[1, 2] = EXISTS_BC[2, 1:] = False
GRADE_B = np.array([3, 1, 2, 3, 0, 1], np.float32)


def cosent(cosine_B, grade_B, scale):
  terms = [
    np.exp(scale * (cosine_B[j] - cosine_B[i]))
    for i in range(len(grade_B))
    for j in range(len(grade_B))
    if grade_B[i] > grade_B[j]
  ]
  return np.log(1 + np.sum(terms))


def kl_divergence(score_C, teacher_C, temperature):
  p_C, q_C = np.exp(teacher_C / temperature), np.exp(score_C)
  p_C, q_C = p_C / p_C.sum(), q_C / q_C.sum()
  return sum(p * np.log(p / q) for p, q in zip(p_C, q_C, strict=True))


def margin_mse(score_C, teacher_C):
  errors = [
    ((score_C[0] - score_C[c]) - (teacher_C[0] - teacher_C[c])) ** 2 for c in range(1, len(score_C))
  ]
  return np.mean(errors) if errors else 0.0


def test_losses_are_those_of_loops_over_the_candidates_that_exist():
  found = scores.cosent(SCORE_BC[:, 0], GRADE_B, scale=7.0)
  assert found == pytest.approx(cosent(np.float64(SCORE_BC[:, 0]), GRADE_B, 7.0), rel=1e-5)
  divergence_B = scores.kl_divergence(SCORE_BC, TEACHER_BC, EXISTS_BC, temperature=0.5)
  error_B = scores.margin_mse(SCORE_BC, TEACHER_BC, EXISTS_BC)
  for i, exists_C in enumerate(EXISTS_BC):
    own = np.float64(SCORE_BC[i, exists_C]), np.float64(TEACHER_BC[i, exists_C])
    assert divergence_B[i] == pytest.approx(kl_divergence(*own, 0.5), rel=1e-4, abs=1e-6)
    assert error_B[i] == pytest.approx(margin_mse(*own), rel=1e-5)


def test_candidates_that_do_not_exist_have_no_gradient_and_spoil_none():
  score_BC = np.where(EXISTS_BC, SCORE_BC, -np.inf)
  for loss in (scores.kl_divergence, scores.margin_mse):
    gradient_BC = jax.grad(lambda x, loss=loss: loss(x, TEACHER_BC, EXISTS_BC).mean())(score_BC)
    assert np.isfinite(gradient_BC).all()
    assert not gradient_BC[~EXISTS_BC].any()
    assert gradient_BC[0].all()


def test_equal_grades_cost_nothing_and_a_large_scale_is_safe():
  run = jax.value_and_grad(scores.cosent)
  loss, gradient_B = run(jnp.array(SCORE_BC[:, 0]), jnp.ones(B))
  assert loss == 0
  assert not gradient_B.any()
  loss, gradient_B = run(jnp.array([-1.0, 1.0]), jnp.array([1.0, 0.0]), scale=1e4)
  assert loss == pytest.approx(2e4)
  assert gradient_B.tolist() == [-1e4, 1e4]
