"""Distillation of sentence vectors: a student learns a teacher's vectors or similarities.

Teacher and student scores are cosines divided by the same temperature tau. Callers compute these
scores with `vmsst.losses.contrastive.similarity`, using `cosine=True` and `scale=1 / tau`.

In the soft contrastive paper, the label w(i, n) is the weight of target n as the answer to source
i. The labels of each source sum to 1 (equations 2, 4 and 6). For the direction from targets to
sources, the paper uses the same labels, so the labels of a target may not sum to 1. By default,
this module normalizes the labels for each direction, as the released code does.
`row_normalized=True` uses the paper's labels instead.

References: Reimers and Gurevych 2020, Making Monolingual Sentence Embeddings Multilingual
(`mse`); Park et al. 2024, Improving Multi-lingual Alignment Through Soft Contrastive Learning.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def mse(
  source_BS: Float[Array, "B S"], target_BS: Float[Array, "B S"], teacher_BS: Float[Array, "B S"]
) -> Float[Array, "B"]:
  """Returns each pair's squared error between both student vectors and the teacher's source vector.

  loss_i = 1/S |teacher(s_i) - student(s_i)|^2 + 1/S |teacher(s_i) - student(t_i)|^2

  The loss is a sum over both sides, as in the paper, and a mean over dimensions, as in the paper's
  code.

  Args:
    source_BS: The student's vectors for the sources.
    target_BS: The student's vectors for the translations of the sources.
    teacher_BS: The teacher's vectors for the sources, with the same width; they receive no
      gradient.
  """
  teacher_BS = jax.lax.stop_gradient(teacher_BS.astype(jnp.float32))
  return _squared_error(source_BS, teacher_BS) + _squared_error(target_BS, teacher_BS)


def _squared_error(x_BS: Float[Array, "B S"], y_BS: Float[Array, "B S"]) -> Float[Array, "B"]:
  return jnp.mean(jnp.square(x_BS.astype(jnp.float32) - y_BS), axis=-1)


class Labels(NamedTuple):
  """Target distributions: for each query, the weight of each candidate answer.

  Attributes:
    row_BB: Weights if rows (sources) are the queries.
    column_BB: Weights if columns (targets) are the queries.
  """

  row_BB: Float[Array, "B B"]
  column_BB: Float[Array, "B B"]


def hard_labels(batch: int) -> Labels:
  """Returns labels that put all weight on the translations (equation 3)."""
  return Labels(jnp.eye(batch), jnp.eye(batch))


def soft_labels(score_BB: Float[Array, "B B"], *, row_normalized: bool = False) -> Labels:
  """Returns labels computed from a teacher's scores (equations 4 and 5), without gradient.

  Args:
    score_BB: The teacher's score between every two pairs: either the score between their sides in
      the higher-priority language, or the mean of the scores on both sides.
    row_normalized: Whether both directions use the labels that sum to 1 over each source's targets,
      as in the paper.
  """
  score_BB = jax.lax.stop_gradient(score_BB.astype(jnp.float32))
  row_BB = jax.nn.softmax(score_BB, axis=1)
  if row_normalized:
    return Labels(row_BB, row_BB)
  return Labels(row_BB, jax.nn.softmax(score_BB, axis=0))


def cross_lingual_loss(score_BB: Float[Array, "B B"], labels: Labels) -> Float[Array, "B"]:
  """Returns each pair's loss, summed over both directions, in nats; equation 2 averages over pairs.

  loss_k = -sum_j row_kj log softmax_n(score_kn)_j - sum_i column_ik log softmax_n(score_nk)_i

  Args:
    score_BB: The student's scores between sources (rows) and targets (columns).
    labels: The target distributions.
  """
  row_B = -jnp.sum(labels.row_BB * jax.nn.log_softmax(score_BB, axis=1), axis=1)
  return row_B + _column_loss(score_BB, labels)


def monolingual_loss(
  source_BB: Float[Array, "B B"], target_BB: Float[Array, "B B"], labels: Labels
) -> Float[Array, "B"]:
  """Returns the monolingual loss of each pair, summed over its two sides, in nats (equation 6).

  loss_k = -sum_i column_ik (log softmax_n(source_nk)_i + log softmax_n(target_nk)_i)

  As in equation 6, the loss has only one direction per side, and the candidates for each sentence
  include the sentence itself. The paper's TCM loss is lambda times `cross_lingual_loss` plus this
  loss (equation 7).

  Args:
    source_BB: The student's scores between every two sources.
    target_BB: The student's scores between every two targets.
    labels: The target distributions.
  """
  return _column_loss(source_BB, labels) + _column_loss(target_BB, labels)


def _column_loss(score_BB: Float[Array, "B B"], labels: Labels) -> Float[Array, "B"]:
  return -jnp.sum(labels.column_BB * jax.nn.log_softmax(score_BB, axis=0), axis=0)
