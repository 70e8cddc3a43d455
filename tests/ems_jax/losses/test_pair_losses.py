"""The losses that compare the sentences of a batch, against loops over Python floats."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import test_util  # noqa: F401 (makes jax.test_util an attribute)

from ems_jax.losses import contrastive, distillation, margin, negatives
from vmsst.losses import contrastive as foundation

B, S, K = 5, 3, 2
RNG = np.random.default_rng(0)
SOURCE_BS, TARGET_BS = (RNG.normal(size=(B, S)).astype(np.float32) for _ in range(2))
NEGATIVE_BKS = RNG.normal(size=(B, K, S)).astype(np.float32)
SAME_BB = np.eye(B, dtype=bool)
SAME_BB[0, 3] = SAME_BB[3, 0] = True
PAIRS = range(B)


def cosine(x, y):
  return float(np.dot(x, y)) / (math.hypot(*x) * math.hypot(*y))


def cosines():
  return foundation.similarity(SOURCE_BS, TARGET_BS, cosine=True)


def check_grads(function, *arrays):
  jax.test_util.check_grads(
    function, arrays, order=1, modes=["rev"], atol=1e-2, rtol=1e-2, eps=1e-3
  )


def test_contrastive_loss_is_equation_8():
  temperature = 0.1
  expected_B = []
  for i in PAIRS:
    positive = math.exp(cosine(SOURCE_BS[i], TARGET_BS[i]) / temperature)
    row = sum(math.exp(cosine(SOURCE_BS[i], TARGET_BS[k]) / temperature) for k in PAIRS)
    column = sum(math.exp(cosine(SOURCE_BS[k], TARGET_BS[i]) / temperature) for k in PAIRS)
    expected_B.append(-math.log(positive / row) - math.log(positive / column))
  np.testing.assert_allclose(
    contrastive.in_batch_loss(cosines() / temperature), expected_B, rtol=1e-4
  )


def ams(source_BS, target_BS, margin_, scale, same_BB):
  losses = []
  for i in PAIRS:
    rivals = [k for k in PAIRS if k == i or not same_BB[i, k]]
    positive = math.exp(scale * (cosine(source_BS[i], target_BS[i]) - margin_))
    loss = 0.0
    for scores in (
      [scale * cosine(source_BS[i], target_BS[k]) for k in rivals if k != i],
      [scale * cosine(source_BS[k], target_BS[i]) for k in rivals if k != i],
    ):
      loss -= math.log(positive / (positive + sum(math.exp(score) for score in scores)))
    losses.append(loss)
  return losses


# EMS's and LaBSE's own.
@pytest.mark.parametrize("scale", [10.0, 100.0])
@pytest.mark.parametrize("masked", [False, True])
def test_additive_margin_softmax_equals_a_loop_in_both_directions(scale, masked):
  same_BB = SAME_BB if masked else np.eye(B, dtype=bool)
  found_B = margin.additive_margin_softmax(cosines(), margin=0.3, scale=scale, same_BB=same_BB)
  expected_B = ams(SOURCE_BS, TARGET_BS, 0.3, scale, same_BB)
  np.testing.assert_allclose(found_B, expected_B, rtol=1e-4, atol=1e-4)


def test_without_a_margin_it_is_the_contrastive_loss():
  found_B = margin.additive_margin_softmax(cosines(), margin=0.0, scale=10.0)
  np.testing.assert_allclose(found_B, contrastive.in_batch_loss(10.0 * cosines()), rtol=1e-6)


def test_margin_gradients_against_finite_differences():
  def loss(source_BS, target_BS):
    cosine_BB = foundation.similarity(source_BS, target_BS, cosine=True)
    return margin.additive_margin_softmax(cosine_BB, margin=0.3, scale=10.0).mean()

  check_grads(loss, SOURCE_BS, TARGET_BS)


@pytest.mark.parametrize("options", [{}, {"cosine": True, "scale": 10.0}])
def test_hard_negatives_equal_a_loop(options):
  scale = options.get("scale", 1.0)
  score = cosine if options else np.dot
  given_BK = np.ones((B, K), bool)
  given_BK[1, 0] = given_BK[2] = False
  expected_B = []
  for i in PAIRS:
    rivals = [TARGET_BS[j] for j in PAIRS if j == i or not SAME_BB[i, j]]
    rivals += [NEGATIVE_BKS[i, k] for k in range(K) if given_BK[i, k]]
    total = sum(math.exp(scale * score(SOURCE_BS[i], rival)) for rival in rivals)
    expected_B.append(math.log(total) - scale * score(SOURCE_BS[i], TARGET_BS[i]))
  score_BB = foundation.similarity(SOURCE_BS, TARGET_BS, **options)
  negative_BK = negatives.negative_scores(SOURCE_BS, NEGATIVE_BKS, **options)
  found_B = negatives.ranking_loss(score_BB, negative_BK, given_BK=given_BK, same_BB=SAME_BB)
  np.testing.assert_allclose(found_B, expected_B, rtol=1e-4)


def test_hard_negatives_gradients_against_finite_differences():
  given_BK = np.array([[True, False]] * B)

  def loss(source_BS, target_BS, negative_BKS):
    score_BB = foundation.similarity(source_BS, target_BS)
    negative_BK = negatives.negative_scores(source_BS, negative_BKS)
    return negatives.ranking_loss(score_BB, negative_BK, given_BK=given_BK).mean()

  check_grads(loss, SOURCE_BS, TARGET_BS, NEGATIVE_BKS)
  gradient_BKS = jax.grad(loss, 2)(SOURCE_BS, TARGET_BS, NEGATIVE_BKS)
  assert not np.any(gradient_BKS[:, 1])  # none was given


def test_without_hard_negatives_both_directions_are_the_contrastive_loss():
  score_BB = 10.0 * cosines()
  none_BK = jnp.zeros((B, 0))
  found_B = negatives.ranking_loss(score_BB, none_BK) + negatives.ranking_loss(score_BB.T, none_BK)
  np.testing.assert_allclose(found_B, contrastive.in_batch_loss(score_BB), rtol=1e-5)


def exact_ranking(score_BB, negative_BK=None):
  """Loss of each source in float64, by pairwise logaddexp."""
  rivals = score_BB if negative_BK is None else np.concatenate([score_BB, negative_BK], axis=1)
  return np.logaddexp.reduce(np.float64(rivals), axis=1) - np.diag(np.float64(score_BB))


def test_huge_scores_have_the_exact_loss_and_finite_gradients():
  score_BB, negative_BK = np.array(1e4 * cosines()), np.full((B, K), 1e4, np.float32)
  with_margin_BB = 100.0 * (np.float64(score_BB) - 0.3 * np.eye(B))
  for loss, expected_B in (
    (contrastive.in_batch_loss, exact_ranking(score_BB) + exact_ranking(score_BB.T)),
    (
      lambda x: margin.additive_margin_softmax(x, margin=0.3, scale=100.0),
      exact_ranking(with_margin_BB) + exact_ranking(with_margin_BB.T),
    ),
    (lambda x: negatives.ranking_loss(x, negative_BK), exact_ranking(score_BB, negative_BK)),
  ):
    value, gradient_BB = jax.value_and_grad(lambda x, loss=loss: loss(x).mean())(score_BB)
    assert value == pytest.approx(expected_B.mean(), rel=1e-5)
    assert np.isfinite(gradient_BB).all()


def test_distillation_equals_a_loop_and_leaves_the_teacher_alone():
  teacher_BS = RNG.normal(size=(B, S)).astype(np.float32)
  expected_B = [
    sum((x - y) ** 2 for x, y in zip(source, teacher, strict=True)) / S
    + sum((x - y) ** 2 for x, y in zip(target, teacher, strict=True)) / S
    for source, target, teacher in zip(SOURCE_BS, TARGET_BS, teacher_BS, strict=True)
  ]
  np.testing.assert_allclose(
    distillation.mse(SOURCE_BS, TARGET_BS, teacher_BS), expected_B, rtol=1e-5
  )
  gradients = jax.grad(lambda *x: distillation.mse(*x).sum(), (0, 1, 2))(
    SOURCE_BS, TARGET_BS, teacher_BS
  )
  np.testing.assert_allclose(gradients[0], 2 / S * (SOURCE_BS - teacher_BS), rtol=1e-5)
  np.testing.assert_allclose(gradients[1], 2 / S * (TARGET_BS - teacher_BS), rtol=1e-5)
  assert not np.any(gradients[2])
