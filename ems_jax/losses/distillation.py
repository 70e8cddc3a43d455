"""Distillation of sentence vectors: a student learns to reproduce the teacher's vectors.

Reference: Reimers and Gurevych 2020, Making Monolingual Sentence Embeddings Multilingual.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def mse(
  source_BS: Float[Array, "B S"], target_BS: Float[Array, "B S"], teacher_BS: Float[Array, "B S"]
) -> Float[Array, "B"]:
  """Returns the squared error of both sides of each pair to the teacher's vector of the source.

  loss_i = 1/S |teacher(s_i) - student(s_i)|^2 + 1/S |teacher(s_i) - student(t_i)|^2

  It is a sum over both sides as in the paper, and a mean over dimensions as in its code.

  Args:
    source_BS: The student's vectors of the sources.
    target_BS: The student's vectors of their translations.
    teacher_BS: The teacher's vectors of the sources, of the same width; they get no gradient.
  """
  teacher_BS = jax.lax.stop_gradient(teacher_BS.astype(jnp.float32))
  return _squared_error(source_BS, teacher_BS) + _squared_error(target_BS, teacher_BS)


def _squared_error(x_BS: Float[Array, "B S"], y_BS: Float[Array, "B S"]) -> Float[Array, "B"]:
  return jnp.mean(jnp.square(x_BS.astype(jnp.float32) - y_BS), axis=-1)
