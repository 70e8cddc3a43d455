"""LoRA: trains low-rank updates of kernels and freezes all other parameters.

A kernel W of shape [M, N] becomes W + alpha / rank * A B, where A is a matrix [M, rank] and B is a
matrix [rank, N]. In this implementation, the model's parameters are the updated kernels, and the
optimizer state contains A and B. Networks, checkpoints, `vmsst.load` and exports therefore need no
support for LoRA. The optimizer computes the gradients of A and B from the gradient of the kernel,
by the chain rule. A resumed run continues with exactly the same A and B.

LoRA saves memory because the optimizer stores moments only for A and B, and because XLA does not
compute the gradients of frozen parameters. However, each kernel that LoRA updates still has a
full-size gradient within a step.

Reference: Hu et al. 2022, LoRA: Low-Rank Adaptation of Large Language Models.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import msgspec
from flax import traverse_util

from vmsst.errors import InputError
from vmsst.train import optimizers

PyTree = Any


class Lora(optimizers.OptimizerDef):
  """Trains low-rank updates of kernels with any optimizer.

  Args:
    optimizer: Optimizer for the matrices A and B of all kernels. Their names end with `/kernel/a`
      and `/kernel/b`.
    rank: Number of columns of A and rows of B.
    alpha: The factor alpha in the update, alpha / rank * A B.
    targets: Regular expressions for the names of the kernels to train, such as
      ".*/attention/.*/kernel". An expression that matches no parameter raises InputError when the
      state is initialized.
    seed: Random seed for A. Initially, A [M, rank] is uniform in ±1 / sqrt(M), and B is zero.
  """

  def __init__(
    self,
    optimizer: optimizers.OptimizerDef,
    rank: Annotated[int, msgspec.Meta(ge=1)] = 16,
    alpha: Annotated[float, msgspec.Meta(gt=0)] = 32.0,
    targets: Sequence[str] = (".*kernel",),
    seed: int = 0,
  ):
    self._optimizer = optimizer
    self._rank = rank
    self._scale = alpha / rank
    self._targets = targets
    self._seed = seed

  def init_state(self, params: PyTree) -> PyTree:
    """Returns the state before the first step."""
    shapes = {name: x.shape for name, x in traverse_util.flatten_dict(params, sep="/").items()}
    factors = {}
    for number, name in enumerate(sorted(optimizers.matching("targets", self._targets, shapes))):
      if len(shapes[name]) < 2:
        raise InputError(f"targets: {name} has shape {shapes[name]}; LoRA only trains matrices")
      *stack, rows, columns = shapes[name]  # Scanned layers store a stack of matrices.
      key = jax.random.fold_in(jax.random.key(self._seed), number)
      limit = rows**-0.5
      a = jax.random.uniform(key, (*stack, rows, self._rank), minval=-limit, maxval=limit)
      factors[f"{name}/a"], factors[f"{name}/b"] = a, jnp.zeros((*stack, self._rank, columns))
    nested = traverse_util.unflatten_dict(factors, sep="/")
    return {"factors": nested, "optimizer": self._optimizer.init_state(nested)}

  def apply_gradient(
    self, params: PyTree, state: PyTree, grads: PyTree, *, step: jax.Array, learning_rate: Any
  ) -> tuple[PyTree, PyTree]:
    """Returns the parameters and the state after one more step."""
    params, grads, before = (
      traverse_util.flatten_dict(tree, sep="/") for tree in (params, grads, state["factors"])
    )
    names = [name.removesuffix("/a") for name in before if name.endswith("/a")]
    gradients = {}
    for name in names:
      a, b, gradient = before[f"{name}/a"], before[f"{name}/b"], grads[name]
      gradients[f"{name}/a"] = self._scale * _product(gradient, b.mT)
      gradients[f"{name}/b"] = self._scale * _product(a.mT, gradient)
    factors, optimizer_state = self._optimizer.apply_gradient(
      state["factors"],
      state["optimizer"],
      traverse_util.unflatten_dict(gradients, sep="/"),
      step=step,
      learning_rate=learning_rate,
    )
    after = traverse_util.flatten_dict(factors, sep="/")
    for name in names:
      a, b, new_a, new_b = (x[f"{name}/{factor}"] for x in (before, after) for factor in "ab")
      # Compute new_a @ new_b - a @ b without the cancellation error of subtracting two products.
      change = _product(new_a - a, new_b) + _product(a, new_b - b)
      params[name] += self._scale * change
    state = {"factors": factors, "optimizer": optimizer_state}
    return traverse_util.unflatten_dict(params, sep="/"), state

  def logical_axes(self, params: PyTree, state: PyTree, param_axes: PyTree) -> PyTree:
    """Returns `state` with None (replicated) for every array, because all arrays are small."""
    return jax.tree.map(lambda _: None, state)


def _product(x: jax.Array, y: jax.Array) -> jax.Array:
  # At JAX's default precision, bfloat16 rounding errors would accumulate over the steps.
  return jnp.matmul(x, y, precision=jax.lax.Precision.HIGHEST)
