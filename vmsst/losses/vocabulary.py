"""Likelihood of tokens under a projection of [sentence; hidden state] to the vocabulary.

A decoder with the logits `[z; h] W` repeats z at every position (VMSST paper, section 5: z is
[z_lang; z_sem], W is [3D, V]). Here W is two kernels, and the part of z is computed once per
sentence:

  [z; h] W = h W_h + z W_s

Logits exist for a few sentences at a time, and their gradients are computed in the forward pass
(see `fused_gradients`). The results are exact.

Axes: `C` sentences of one chunk, `N` chunks, `R` shards of the batch, `M` tokens of a chunk.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from vmsst import padding, sharding
from vmsst.losses import fused_gradients

# Tokens whose logits a device holds at a time. With fewer, reading the kernel and its gradient
# costs more than the matmuls; with more, only memory grows (benchmarks/vocab_projection.py).
DEFAULT_CHUNK = 512


class TokenAux(NamedTuple):
  """Values of each token, without gradient.

  Attributes:
    nll_BT: Negative log-likelihood in nats, unweighted; 0 at padding.
    correct_BT: Whether the token scored higher than all others; False for ties and padding.
  """

  nll_BT: Float[Array, "B T"]
  correct_BT: Bool[Array, "B T"]


def weighted_nll(
  hidden_BTD: Float[Array, "B T D"],
  sentence_BS: Float[Array, "B S"] | None,
  hidden_kernel_DV: Float[Array, "D V"],
  sentence_kernel_SV: Float[Array, "S V"] | None,
  targets_BT: Int[Array, "B T"],
  weights_BT: Float[Array, "B T"],
  *,
  chunk: int | None = None,
  dtype: str = "float32",
) -> tuple[Float[Array, ""], TokenAux]:
  """Returns sum_bt weights_bt * -log softmax(h_bt W_h + z_b W_s)[target_bt], and token values.

  The sum has reverse-mode gradients for hidden states, sentence vectors, both kernels and weights.
  They are computed together with the sum, so put masks, averages and the weights of loss terms into
  `weights_BT`.

  On a mesh (`jax.set_mesh` and logical axis rules), rows stay on the devices of "batch" and columns
  of the kernels on those of "vocab". Devices exchange vectors and numbers of tokens and, once, the
  gradients of the kernels, but never columns of a kernel or logits.

  Args:
    hidden_BTD: One vector per token.
    sentence_BS: One vector per sentence (all latents concatenated), or None if the logits have no
      such part. The factorized form adds `z F_s` to `h F_h` and passes the sum as hidden states.
    hidden_kernel_DV: Kernel of the hidden states.
    sentence_kernel_SV: Kernel of the sentence vectors; None if `sentence_BS` is None.
    targets_BT: Token ids. Padding (0) never counts, whatever its weight.
    weights_BT: Weight of each token in the sum.
    chunk: Tokens whose logits a device holds at a time, rounded to whole sentences; None: 512.
      Under a mesh entered by `with mesh:`, which hides its size, tokens of all devices together.
    dtype: Dtype of matmul operands, "float32" or "bfloat16". Accumulation and softmax are float32.

  Raises:
    ValueError: only one of `sentence_BS` and `sentence_kernel_SV` is None, or `chunk` is below 1.
  """
  if (sentence_BS is None) != (sentence_kernel_SV is None):
    raise ValueError("only one of sentence_BS and sentence_kernel_SV is None; pass both or neither")
  fused_gradients.check_chunk(chunk)
  plan = _Plan.make(*targets_BT.shape, chunk=chunk or DEFAULT_CHUNK, dtype=dtype)
  weights_BT = jnp.where(targets_BT == padding.PAD_ID, 0.0, weights_BT)
  inputs = _Inputs(hidden_BTD, sentence_BS, hidden_kernel_DV, sentence_kernel_SV, weights_BT)
  return _weighted_nll(plan, inputs, targets_BT)


class _Inputs(NamedTuple):
  """The differentiable inputs, or their gradients."""

  hidden_BTD: Any
  sentence_BS: Any
  hidden_kernel_DV: Any
  sentence_kernel_SV: Any
  weights_BT: Any


class _Plan(NamedTuple):
  """The division of a batch into `chunks` of `sentences`, the last of which may be padding.

  Each chunk has the same number of sentences from each of the `shards` of the batch.
  """

  batch: int
  sentences: int
  chunks: int
  shards: int
  dtype: str

  @classmethod
  def make(cls, batch: int, length: int, *, chunk: int, dtype: str) -> "_Plan":
    """Returns the plan with the fewest chunks of equal size."""
    (batch_axes,) = sharding.mesh_axes(batch=batch)
    mesh = jax.sharding.get_abstract_mesh().shape
    shards = math.prod(mesh[name] for name in batch_axes)
    most = max(1, chunk // length)
    chunks = math.ceil(batch / (shards * most))
    sentences = shards * math.ceil(batch / (shards * chunks))
    return cls(batch, sentences, chunks, shards, dtype)

  def constrain(self, x: jax.Array, axes: tuple[str | None, ...]) -> jax.Array:
    """Returns `x` laid out by logical axes if the batch is sharded."""
    return x if self.shards == 1 else sharding.constrain(x, axes)

  def pad(self, x: jax.Array) -> jax.Array:
    """Returns `x` with zeros for the sentences that pad the last chunk."""
    padding = self.chunks * self.sentences - self.batch
    return jnp.pad(x, ((0, padding), *[(0, 0)] * (x.ndim - 1)))

  def cut(self, x: jax.Array) -> jax.Array:
    """Returns [B, ...] reshaped to [N, C, ...].

    Chunk i has the sentences i, i + N, i + 2 N, ...: devices hold consecutive rows, so each has an
    equal part of every chunk, and no row moves.
    """
    x = self.pad(x).reshape(self.sentences, self.chunks, *x.shape[1:]).swapaxes(0, 1)
    return self.constrain(x, (None, "batch", *[None] * (x.ndim - 2)))

  def join(self, x: jax.Array) -> jax.Array:
    """Returns [N, C, ...] reshaped to [B, ...], the inverse of `cut`."""
    x = x.swapaxes(0, 1).reshape(self.sentences * self.chunks, *x.shape[2:])[: self.batch]
    return self.constrain(x, ("batch", *[None] * (x.ndim - 1)))

  def matmul(self, a: jax.Array, b: jax.Array) -> jax.Array:
    """Returns `a @ b` with operands in the plan's dtype."""
    return fused_gradients.matmul(a, b, self.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _weighted_nll(
  plan: _Plan, inputs: _Inputs, targets_BT: jax.Array
) -> tuple[jax.Array, TokenAux]:
  """Computes `weighted_nll` without gradients."""
  kernel_DV = _kernel(plan, inputs.hidden_kernel_DV)
  sentence_CNV = _sentence_logits(plan, inputs)

  def step(chunk: tuple[Any, ...]) -> TokenAux:
    i, hidden_CTD, targets_CT = chunk
    return _score(_logits(plan, hidden_CTD, kernel_DV, sentence_CNV, i), targets_CT).aux

  chunks = map(plan.cut, (inputs.hidden_BTD, targets_BT))
  aux = jax.tree.map(plan.join, jax.lax.map(step, (jnp.arange(plan.chunks), *chunks)))
  return jnp.sum(inputs.weights_BT * aux.nll_BT), aux


def _forward(
  plan: _Plan, inputs: _Inputs, targets_BT: jax.Array
) -> tuple[tuple[jax.Array, TokenAux], _Inputs]:
  """Computes `weighted_nll` and the gradients of its sum."""
  kernel_DV = _kernel(plan, inputs.hidden_kernel_DV)

  def step(carry: tuple[Any, Any], chunk: tuple[Any, ...]) -> tuple[Any, Any]:
    kernel_gradient_RDV, sentence_CNV = carry
    i, hidden_CTD, targets_CT, weights_CT = chunk
    scored = _score(_logits(plan, hidden_CTD, kernel_DV, sentence_CNV, i), targets_CT)
    gradient_CTV = scored.gradient_CTV
    scale_CT1 = (weights_CT / scored.total_CT)[..., None]

    if sentence_CNV is not None:
      # Store the gradients in place of the logits of these sentences, which are no longer needed.
      gradient_CV = jnp.sum(scale_CT1 * gradient_CTV, axis=1)
      sentence_CNV = jax.lax.dynamic_update_index_in_dim(sentence_CNV, gradient_CV, i, 1)
    gradient_MV = gradient_CTV.reshape(-1, gradient_CTV.shape[-1])
    hidden_gradient_CTD = plan.matmul(gradient_MV, kernel_DV.T).reshape(hidden_CTD.shape)
    hidden_gradient_CTD = (scale_CT1 * hidden_gradient_CTD).astype(hidden_CTD.dtype)
    scaled_MD = (scale_CT1 * hidden_CTD).reshape(-1, hidden_CTD.shape[-1])
    kernel_gradient_RDV += _by_shard(plan, scaled_MD, gradient_MV)
    return (kernel_gradient_RDV, sentence_CNV), (scored.aux, hidden_gradient_CTD)

  # One sum per shard, so that devices add theirs up once instead of once per chunk.
  sum_dtype = fused_gradients.accumulation_dtype(plan.dtype)
  start_RDV = jnp.zeros((plan.shards, *kernel_DV.shape), sum_dtype)
  start_RDV = plan.constrain(start_RDV, ("batch", None, "vocab"))
  chunks = map(plan.cut, (inputs.hidden_BTD, targets_BT, inputs.weights_BT))
  (kernel_gradient_RDV, sentence_CNV), parts = jax.lax.scan(
    step, (start_RDV, _sentence_logits(plan, inputs)), (jnp.arange(plan.chunks), *chunks)
  )
  aux, hidden_gradient_BTD = jax.tree.map(plan.join, parts)
  sentence_gradient_BS, sentence_kernel_gradient_SV = _sentence_gradients(
    plan, inputs, sentence_CNV
  )
  gradients = _Inputs(
    hidden_gradient_BTD,
    sentence_gradient_BS,
    jnp.sum(kernel_gradient_RDV, axis=0),
    sentence_kernel_gradient_SV,
    aux.nll_BT,
  )
  gradients = jax.tree.map(lambda x, gradient: gradient.astype(x.dtype), inputs, gradients)
  return (jnp.sum(inputs.weights_BT * aux.nll_BT), aux), gradients


_weighted_nll.defvjp(_forward, fused_gradients.scale_gradients)


def _kernel(plan: _Plan, kernel_DV: jax.Array) -> jax.Array:
  """Returns the kernel, cast and with gathered rows, once before the loop over chunks."""
  return plan.constrain(kernel_DV.astype(plan.dtype), (None, "vocab"))


def _sentence_logits(plan: _Plan, inputs: _Inputs) -> jax.Array | None:
  """Returns the part of the logits shared by all tokens of a sentence, [C, N, V]."""
  if inputs.sentence_BS is None:
    return None
  logits_BV = plan.matmul(plan.pad(inputs.sentence_BS), _kernel(plan, inputs.sentence_kernel_SV))
  # Unlike `cut`, this keeps the order of the rows, so that nothing this large moves.
  logits_CNV = logits_BV.reshape(plan.sentences, plan.chunks, -1)
  return plan.constrain(logits_CNV, ("batch", None, "vocab"))


def _sentence_gradients(
  plan: _Plan, inputs: _Inputs, gradient_CNV: jax.Array | None
) -> tuple[jax.Array | None, jax.Array | None]:
  """Returns the gradients of the sentence vectors and their kernel from those of their logits."""
  if gradient_CNV is None:
    return None, None
  gradient_BV = gradient_CNV.reshape(-1, gradient_CNV.shape[-1])
  gradient_BS = plan.matmul(gradient_BV, _kernel(plan, inputs.sentence_kernel_SV).T)
  return gradient_BS[: plan.batch], plan.matmul(plan.pad(inputs.sentence_BS).T, gradient_BV)


def _logits(
  plan: _Plan,
  hidden_CTD: jax.Array,
  kernel_DV: jax.Array,
  sentence_CNV: jax.Array | None,
  i: jax.Array,
) -> jax.Array:
  """Returns the logits of chunk i, [C, T, V]."""
  # 2-D matmuls: XLA's CPU backend is slow on 3-D ones.
  logits = plan.matmul(hidden_CTD.reshape(-1, hidden_CTD.shape[-1]), kernel_DV)
  logits_CTV = logits.reshape(*hidden_CTD.shape[:2], -1)
  if sentence_CNV is not None:
    logits_CTV += jax.lax.dynamic_slice_in_dim(sentence_CNV, i, 1, axis=1)
  return plan.constrain(logits_CTV, ("batch", None, "vocab"))


def _by_shard(plan: _Plan, a_MD: jax.Array, b_MV: jax.Array) -> jax.Array:
  """Returns `a.T @ b` of the rows of each shard, [R, D, V]."""
  if plan.shards == 1:
    return plan.matmul(a_MD.T, b_MV)[None]
  a_RMD, b_RMV = (x.reshape(plan.shards, -1, x.shape[-1]) for x in (a_MD, b_MV))
  product_RDV = plan.matmul(a_RMD.swapaxes(1, 2), b_RMV)
  return plan.constrain(product_RDV, ("batch", None, "vocab"))


class _Scored(NamedTuple):
  """Scores of the tokens of a chunk.

  Attributes:
    aux: The values returned to the caller.
    gradient_CTV: Gradient of each token's loss by its logits, times `total_CT`.
    total_CT: Sum of exp(logit - highest logit).
  """

  aux: TokenAux
  gradient_CTV: jax.Array
  total_CT: jax.Array


def _score(logits_CTV: jax.Array, targets_CT: jax.Array) -> _Scored:
  """Scores tokens; the vocabulary may be sharded over devices."""
  is_target_CTV = jnp.arange(logits_CTV.shape[-1]) == targets_CT[..., None]
  target_CT = jnp.take_along_axis(logits_CTV, targets_CT[..., None], axis=-1)[..., 0]
  rival_CT = jnp.max(jnp.where(is_target_CTV, -jnp.inf, logits_CTV), axis=-1)
  highest_CT = jnp.maximum(rival_CT, target_CT)
  exp_CTV = jnp.exp(logits_CTV - highest_CT[..., None])
  total_CT = jnp.sum(exp_CTV, axis=-1)
  real_CT = targets_CT != padding.PAD_ID
  nll_CT = jnp.where(real_CT, jnp.log(total_CT) + highest_CT - target_CT, 0.0)
  # (softmax - one-hot) * total: callers divide by the total where rows are shorter.
  at_target_CT = jnp.exp(target_CT - highest_CT) - total_CT
  gradient_CTV = jnp.where(is_target_CTV, at_target_CT[..., None], exp_CTV)
  return _Scored(TokenAux(nll_CT, real_CT & (target_CT > rival_CT)), gradient_CTV, total_CT)
