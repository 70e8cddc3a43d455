"""Losses of pairs of vectors: gradients and limits. Their models are compared with equations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import test_util  # noqa: F401 (makes jax.test_util an attribute)

from ems_jax.losses import distillation, ranking
from vmsst.losses import contrastive

B, S, K = 5, 3, 2
RNG = np.random.default_rng(0)
SOURCE_BS, TARGET_BS, TEACHER_SOURCE_BS, TEACHER_TARGET_BS = (
  RNG.normal(size=(B, S)).astype(np.float32) for _ in range(4)
)
NEGATIVE_BKS = RNG.normal(size=(B, K, S)).astype(np.float32)
SAME_BB = np.eye(B, dtype=bool)
SAME_BB[0, 3] = SAME_BB[3, 0] = True
GIVEN_BK = np.ones((B, K), bool)
GIVEN_BK[1, 0] = GIVEN_BK[2] = False


def cosines(x_BS=SOURCE_BS, y_BS=TARGET_BS):
  return contrastive.similarity(x_BS, y_BS, cosine=True)


def margin_loss(source_BS, target_BS):
  return ranking.additive_margin_softmax(cosines(source_BS, target_BS), margin=0.3, scale=10.0)


def hard_negatives_loss(source_BS, target_BS, negative_BKS):
  score_BB = contrastive.similarity(source_BS, target_BS)
  negative_BK = ranking.negative_scores(source_BS, negative_BKS)
  negative_BK = jnp.where(GIVEN_BK, negative_BK, -jnp.inf)
  return ranking.ranking_loss(score_BB, negative_BK, same_BB=SAME_BB)


def soft_loss(source_BS, target_BS, teacher_source_BS, teacher_target_BS):
  labels = distillation.soft_labels(
    cosines(teacher_source_BS, teacher_source_BS) + cosines(teacher_target_BS, teacher_target_BS)
  )
  source_BB, target_BB = (2 * cosines(x, x) for x in (source_BS, target_BS))
  cross_B = distillation.cross_lingual_loss(2 * cosines(source_BS, target_BS), labels)
  return 0.1 * cross_B + distillation.monolingual_loss(source_BB, target_BB, labels)


@pytest.mark.parametrize(
  ("loss", "arrays", "constants"),
  [
    (margin_loss, (SOURCE_BS, TARGET_BS), ()),
    (hard_negatives_loss, (SOURCE_BS, TARGET_BS, NEGATIVE_BKS), ()),
    (soft_loss, (SOURCE_BS, TARGET_BS), (TEACHER_SOURCE_BS, TEACHER_TARGET_BS)),
    (distillation.mse, (SOURCE_BS, TARGET_BS), (TEACHER_SOURCE_BS,)),
  ],
)
def test_gradients_equal_finite_differences_and_a_teacher_has_none(loss, arrays, constants):
  mean = jax.jit(lambda *x: loss(*x).mean())
  jax.test_util.check_grads(
    lambda *x: mean(*x, *constants),
    arrays,
    order=1,
    modes=["rev"],
    atol=1e-2,
    rtol=1e-2,
    eps=1e-3,
  )
  for i in range(len(constants)):
    gradient = jax.grad(mean, len(arrays) + i)(*arrays, *constants)
    assert not np.any(gradient)
