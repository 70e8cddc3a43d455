"""Losses that compare scores with gold similarities or with a teacher's scores.

Axes: `C` candidates per query, starting with the positive.

References: Huang et al. 2024 (CoSENT); Reimers and Gurevych 2019 (mean squared error of cosines);
Hofstaetter et al. 2020 (margin MSE); Lin et al. 2020, Wang et al. 2022 (KL divergence).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

# Score of missing candidates; finite, because infinite scores would give NaN gradients.
_MISSING = -1e9


def cosent(
  cosine_B: Float[Array, "B"], grade_B: Float[Array, "B"], *, scale: float = 20.0
) -> Float[Array, ""]:
  """Returns a loss that ranks the pairs in a batch by their gold similarities.

  loss = log(1 + sum over pairs i, j with grade_i > grade_j of exp(scale * (cos_j - cos_i)))

  Args:
    cosine_B: Cosine of each pair.
    grade_B: Gold similarity of each pair, in any range; only the order matters.
    scale: Factor applied to every cosine; the inverse of the temperature.

  Examples:
    >>> loss = cosent(jnp.array([1.0, 0.5]), jnp.array([0.0, 5.0]), scale=2.0)
    >>> round(float(loss), 5)  # log(1 + e)
    1.31326
  """
  difference_BB = scale * (cosine_B[None] - cosine_B[:, None])
  difference_BB = jnp.where(grade_B[:, None] > grade_B[None], difference_BB, -jnp.inf)
  return jax.nn.logsumexp(jnp.append(difference_BB, 0.0))


def kl_divergence(
  score_BC: Float[Array, "B C"],
  teacher_BC: Float[Array, "B C"],
  exists_BC: Bool[Array, "B C"],
  *,
  temperature: float = 1.0,
) -> Float[Array, "B"]:
  """Returns each query's KL divergence between the teacher's and the student's distributions.

  loss = sum_c p_c log(p_c / q_c) with p = softmax(teacher / temperature), q = softmax(score)

  Args:
    score_BC: The student's scores for the candidates, divided by the student's temperature.
    teacher_BC: The teacher's scores for the candidates.
    exists_BC: False at missing candidates, which are ignored.
    temperature: Divisor applied to the teacher's scores.

  Examples:
    >>> exists_BC = jnp.ones((1, 2), bool)
    >>> loss_B = kl_divergence(jnp.zeros((1, 2)), jnp.array([[99.0, 0.0]]), exists_BC)
    >>> round(float(loss_B[0]), 5)  # log(2)
    0.69315
  """
  log_q_BC, log_p_BC = (
    jax.nn.log_softmax(jnp.where(exists_BC, x_BC, _MISSING))
    for x_BC in (score_BC, teacher_BC / temperature)
  )
  return jnp.sum(jnp.exp(log_p_BC) * (log_p_BC - log_q_BC), axis=1)


def margin_mse(
  score_BC: Float[Array, "B C"], teacher_BC: Float[Array, "B C"], exists_BC: Bool[Array, "B C"]
) -> Float[Array, "B"]:
  """Returns each query's mean squared difference between the student's and the teacher's margins.

  loss = mean over negatives c of ((score_0 - score_c) - (teacher_0 - teacher_c))^2

  A margin is the score of the positive (candidate 0) minus the score of a negative. A query without
  negatives has a loss of 0. For the arguments, see `kl_divergence`.
  """
  difference_BC = jnp.where(exists_BC, score_BC - teacher_BC, 0.0)
  error_BC = jnp.square(difference_BC[:, :1] - difference_BC)
  count_B = jnp.sum(exists_BC[:, 1:], axis=1)
  return jnp.sum(jnp.where(exists_BC, error_BC, 0.0), axis=1) / jnp.maximum(count_B, 1)
