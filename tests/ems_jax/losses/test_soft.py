import math

import jax
import numpy as np
import pytest
from jax import test_util  # noqa: F401 (makes jax.test_util an attribute)

from ems_jax.losses import contrastive, soft
from vmsst.losses import contrastive as foundation

N, S = 4, 3
TAU = 0.5  # warm enough for the two normalizations to differ
RNG = np.random.default_rng(0)
SOURCES_NS, TARGETS_NS, TEACHER_SOURCES_NS, TEACHER_TARGETS_NS = (
  RNG.normal(size=(N, S)).astype(np.float32) for _ in range(4)
)


def sim(x, y):
  return float(np.dot(x, y)) / (math.hypot(*x) * math.hypot(*y)) / TAU


def scores(x_NS, y_NS):
  return foundation.similarity(x_NS, y_NS, cosine=True, scale=1 / TAU)


def loop_weights(kind, per_query):
  """w(i, j) of equations 3 to 5 for the losses over rows and over columns."""

  def teacher(i, j):
    source = sim(TEACHER_SOURCES_NS[i], TEACHER_SOURCES_NS[j])
    if kind == "priority":
      return source
    return (source + sim(TEACHER_TARGETS_NS[i], TEACHER_TARGETS_NS[j])) / 2

  row, column = {}, {}
  for i in range(N):
    for j in range(N):
      over_j = sum(math.exp(teacher(i, n)) for n in range(N))
      over_i = sum(math.exp(teacher(n, j)) for n in range(N))
      row[i, j] = math.exp(teacher(i, j)) / over_j
      column[i, j] = math.exp(teacher(i, j)) / over_i if per_query else row[i, j]
  if kind == "hard":
    row = column = {(i, j): float(i == j) for i in range(N) for j in range(N)}
  return row, column


def loop_column_loss(weights, x_NS, y_NS):
  """-1/N sum_ij w(i, j) log softmax over n of sim(x_n, y_j), at i."""
  loss = 0.0
  for i in range(N):
    for j in range(N):
      total = sum(math.exp(sim(x_NS[n], y_NS[j])) for n in range(N))
      loss -= weights[i, j] * math.log(math.exp(sim(x_NS[i], y_NS[j])) / total) / N
  return loss


def labels_of(kind, per_query):
  source_NN = scores(TEACHER_SOURCES_NS, TEACHER_SOURCES_NS)
  if kind == "hard":
    return soft.hard_labels(N)
  if kind == "priority":
    return soft.priority_labels(source_NN, row_normalized=not per_query)
  target_NN = scores(TEACHER_TARGETS_NS, TEACHER_TARGETS_NS)
  return soft.average_labels(source_NN, target_NN, row_normalized=not per_query)


@pytest.mark.parametrize("kind", ["hard", "priority", "average"])
@pytest.mark.parametrize("per_query", [True, False])
def test_losses_equal_loops_over_the_equations(kind, per_query):
  row, column = loop_weights(kind, per_query)
  labels = labels_of(kind, per_query)

  row_loss = loop_column_loss({(j, i): w for (i, j), w in row.items()}, TARGETS_NS, SOURCES_NS)
  expected = row_loss + loop_column_loss(column, SOURCES_NS, TARGETS_NS)
  found_N = soft.cross_lingual_loss(scores(SOURCES_NS, TARGETS_NS), labels)
  np.testing.assert_allclose(found_N.mean(), expected, rtol=1e-4)

  expected = loop_column_loss(column, SOURCES_NS, SOURCES_NS)
  expected += loop_column_loss(column, TARGETS_NS, TARGETS_NS)
  found_N = soft.monolingual_loss(
    scores(SOURCES_NS, SOURCES_NS), scores(TARGETS_NS, TARGETS_NS), labels
  )
  np.testing.assert_allclose(found_N.mean(), expected, rtol=1e-4)


@pytest.mark.parametrize("kind", ["priority", "average"])
def test_every_query_has_a_distribution(kind):
  labels = labels_of(kind, per_query=True)
  np.testing.assert_allclose(labels.row_BB.sum(axis=1), 1, rtol=1e-5)
  np.testing.assert_allclose(labels.column_BB.sum(axis=0), 1, rtol=1e-5)
  # The paper's labels of the second direction are not distributions.
  assert abs(labels_of(kind, per_query=False).column_BB.sum(axis=0) - 1).max() > 0.01


def test_hard_labels_give_the_contrastive_loss():
  score_NN = scores(SOURCES_NS, TARGETS_NS)
  found_N = soft.cross_lingual_loss(score_NN, soft.hard_labels(N))
  np.testing.assert_allclose(found_N, contrastive.in_batch_loss(score_NN), rtol=1e-5, atol=1e-5)


def test_gradients_reach_only_the_student():
  def loss(source_NS, target_NS, teacher_source_NS, teacher_target_NS):
    labels = soft.average_labels(
      scores(teacher_source_NS, teacher_source_NS), scores(teacher_target_NS, teacher_target_NS)
    )
    cross_N = soft.cross_lingual_loss(scores(source_NS, target_NS), labels)
    source_NN, target_NN = scores(source_NS, source_NS), scores(target_NS, target_NS)
    return (0.1 * cross_N + soft.monolingual_loss(source_NN, target_NN, labels)).mean()

  teachers = (TEACHER_SOURCES_NS, TEACHER_TARGETS_NS)
  jax.test_util.check_grads(
    lambda s, t: loss(s, t, *teachers),
    (SOURCES_NS, TARGETS_NS),
    order=1,
    modes=["rev"],
    atol=1e-2,
    rtol=1e-2,
    eps=1e-3,
  )
  for gradient_NS in jax.grad(loss, (2, 3))(SOURCES_NS, TARGETS_NS, *teachers):
    assert not np.any(gradient_NS)


def test_a_student_like_its_teacher_is_at_the_minimum():
  score_NN = scores(SOURCES_NS, SOURCES_NS)
  labels = soft.priority_labels(score_NN)
  gradient_NN = jax.grad(lambda x: soft.cross_lingual_loss(x, labels).sum())(score_NN)
  np.testing.assert_allclose(gradient_NN, 0, atol=1e-6)
