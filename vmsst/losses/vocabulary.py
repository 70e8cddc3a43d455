"""Log-likelihood of tokens, given a sentence vector and a hidden state at each position.

A decoder computes the logits `[z; h] W` from the hidden state h at each position and a vector z
that is the same at every position (VMSST paper, section 5: z is [z_lang; z_sem], W is [3D, V]).
This module splits W into two kernels, so that the product with z is computed once per sentence:

  [z; h] W = h W_h + z W_s

Logits over a large vocabulary take too much memory to keep for the backward pass. Therefore, the
forward pass computes the gradients as well, for one chunk of sentences at a time, and the backward
pass only scales these gradients. At any time, logits exist for only a few sentences. The gradients
are exact: the loss is a weighted sum over tokens, and the forward pass already knows the weights.

Axes: `C` sentences per chunk, `N` chunks, `X` either the two axes `N C` or one merged axis (see
`_Plan.rows`), `R` shards of the batch, `M` tokens per chunk, `c` sentences per chunk on one shard.
"""

import functools
import math
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from vmsst import arrays
from vmsst.arrays import devices, layouts

Inputs = TypeVar("Inputs")

# Number of logit rows computed at a time on CPUs and unknown devices. On a CPU, smaller chunks take
# more time, because each chunk reads the kernel and updates its gradient; larger chunks take more
# memory but no less time (benchmarks/vocab_projection.py).
_CHUNK = 512
# On accelerators, reading and writing the kernel and its gradient may take at most this fraction of
# the matmuls' time.
_KERNEL_SHARE = 0.1
# Logits may take at most this fraction of the device's memory. If this limit and the time limit
# above conflict, this limit applies.
_MEMORY_SHARE = 1 / 12
_LOGIT_BYTES = 6  # 4 bytes for a float32 logit, 2 bytes for its bfloat16 gradient


class TokenAux(NamedTuple):
  """Values for each token, without gradient.

  Attributes:
    nll_BT: Negative log-likelihood in nats, unweighted; 0 at padding.
    correct_BT: Whether the token scored higher than all other tokens; False for ties and padding.
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

  The sum is differentiable in reverse mode with respect to hidden states, sentence vectors, both
  kernels and weights. Only the sum has a gradient, not the values for each token, so `weights_BT`
  must include all masks, averaging factors and loss weights.

  On a mesh (`jax.set_mesh` and logical axis rules), sentences stay on the devices assigned to
  "batch", and kernel columns stay on the devices assigned to "vocab". Devices exchange only vectors
  and scalars for each token and, once, the kernel gradients. They never exchange kernel columns or
  logits.

  Args:
    hidden_BTD: One vector per token.
    sentence_BS: One vector per sentence (all latents concatenated), or None if the logits depend
      only on the hidden states. For a factorized projection, pass None here and `h F_h + z F_s` as
      hidden states.
    hidden_kernel_DV: Kernel for the hidden states.
    sentence_kernel_SV: Kernel for the sentence vectors; None if `sentence_BS` is None.
    targets_BT: Token ids. Padding (0) is ignored, whatever its weight.
    weights_BT: Weight of each token in the sum.
    chunk: Number of tokens per chunk on each device, rounded to whole sentences (default:
      `default_chunk` of the device, 512 on a CPU). If the mesh was entered by `with mesh:`, its
      size is not available, so `chunk` is the number of tokens on all devices together.
    dtype: Dtype of matmul operands, "float32" or "bfloat16". Accumulation and softmax are float32.

  Raises:
    ValueError: If only one of `sentence_BS` and `sentence_kernel_SV` is None.
  """
  if (sentence_BS is None) != (sentence_kernel_SV is None):
    raise ValueError("only one of sentence_BS and sentence_kernel_SV is None; pass both or neither")
  columns = layouts.local_size(vocab=hidden_kernel_DV.shape[1])
  chunk = chunk or default_chunk(columns, devices.current())
  plan = _Plan.make(*targets_BT.shape, chunk=chunk, dtype=dtype)
  weights_BT = jnp.where(targets_BT == arrays.PAD_ID, 0.0, weights_BT)
  inputs = _Inputs(hidden_BTD, sentence_BS, hidden_kernel_DV, sentence_kernel_SV, weights_BT)
  with jax.named_scope("projection"):
    return _weighted_nll(plan, inputs, targets_BT)


class _Inputs(NamedTuple):
  """The differentiable inputs of `_weighted_nll`, or their gradients."""

  hidden_BTD: Any
  sentence_BS: Any
  hidden_kernel_DV: Any
  sentence_kernel_SV: Any
  weights_BT: Any


class _Plan(NamedTuple):
  """Divides a batch into `chunks` chunks of `sentences` sentences, with padding if needed.

  Each chunk contains the same number of sentences from each of the batch's `shards` shards.
  """

  batch: int
  sentences: int
  chunks: int
  shards: int
  dtype: str

  @classmethod
  def make(cls, batch: int, length: int, *, chunk: int, dtype: str) -> "_Plan":
    """Returns the plan with the fewest equal chunks; for `chunk`, see `weighted_nll`."""
    shards = batch // layouts.local_size(batch=batch)
    limit = max(1, chunk // length)
    chunks = math.ceil(batch / (shards * limit))
    sentences = shards * math.ceil(batch / (shards * chunks))
    return cls(batch, sentences, chunks, shards, dtype)

  def constrain(self, x: jax.Array, axes: tuple[str | None, ...]) -> jax.Array:
    """Constrains `x` to the layout given by logical axes if the batch is sharded."""
    return x if self.shards == 1 else layouts.constrain(x, axes)

  def pad(self, x: jax.Array) -> jax.Array:
    """Returns `x` with rows of zeros at the end, so that all chunks are full."""
    padding = self.chunks * self.sentences - self.batch
    return jnp.pad(x, ((0, padding), *[(0, 0)] * (x.ndim - 1)))

  def cut(self, x: jax.Array) -> jax.Array:
    """Returns [B, ...] reshaped to [N, C, ...].

    Chunk i contains the sentences i, i + N, i + 2 N, ... Each device holds consecutive rows of the
    batch, so every chunk contains the same number of rows from each device, and no row moves
    between devices.
    """
    x = self.pad(x).reshape(self.sentences, self.chunks, *x.shape[1:]).swapaxes(0, 1)
    return self.constrain(x, (None, "batch", *[None] * (x.ndim - 2)))

  def join(self, x: jax.Array) -> jax.Array:
    """Returns [N, C, ...] reshaped to [B, ...], the inverse of `cut`."""
    x = x.swapaxes(0, 1).reshape(self.sentences * self.chunks, *x.shape[2:])[: self.batch]
    return self.constrain(x, ("batch", *[None] * (x.ndim - 1)))

  def rows(self, x: jax.Array) -> jax.Array:
    """Returns [N, C, ...] as [N * C, ...], which XLA's CPU backend multiplies faster.

    A sharded batch keeps its shape, because merging its axes would move rows between devices.
    """
    return x.reshape(-1, *x.shape[2:]) if self.shards == 1 else x

  def sentence_of_token(self, length: int) -> jax.Array:
    """Returns a one-hot row per token: its sentence within its shard of a chunk, [M, C / R]."""
    onehot = jnp.repeat(jnp.eye(self.sentences // self.shards), length, axis=0)
    return jnp.tile(onehot, (self.shards, 1))

  def matmul(self, a: jax.Array, b: jax.Array) -> jax.Array:
    """Returns `a @ b` with operands in the plan's dtype."""
    return matmul(a, b, self.dtype)


def scale_gradients(
  plan: Any, gradients: Inputs, cotangents: tuple[jax.Array, Any]
) -> tuple[Inputs, None]:
  """Backward pass for functions of (plan, inputs, targets); scales the forward pass's gradients.

  The forward pass returns a sum and auxiliary outputs, and has already computed the gradients of
  the sum. The backward pass only multiplies these gradients by the gradient of the final loss with
  respect to the sum. The auxiliary outputs have no gradient.
  """
  del plan
  return jax.tree.map(lambda x: (cotangents[0] * x).astype(x.dtype), gradients), None


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _weighted_nll(
  plan: _Plan, inputs: _Inputs, targets_BT: jax.Array
) -> tuple[jax.Array, TokenAux]:
  """Computes `weighted_nll` without gradients."""
  kernel_DV = _kernel(plan, inputs.hidden_kernel_DV)
  sentence_NCV = _sentence_logits(plan, inputs)

  def step(chunk: tuple[Any, ...]) -> TokenAux:
    i, hidden_CTD, targets_CT = chunk
    logits_MV = _logits(plan, hidden_CTD, kernel_DV, sentence_NCV, i)
    return _score(plan, logits_MV, targets_CT).aux

  chunks = map(plan.cut, (inputs.hidden_BTD, targets_BT))
  aux = jax.tree.map(plan.join, jax.lax.map(step, (jnp.arange(plan.chunks), *chunks)))
  return jnp.sum(inputs.weights_BT * aux.nll_BT), aux


def _forward(
  plan: _Plan, inputs: _Inputs, targets_BT: jax.Array
) -> tuple[tuple[jax.Array, TokenAux], _Inputs]:
  """Computes `weighted_nll` and the gradients of its sum."""
  kernel_DV = _kernel(plan, inputs.hidden_kernel_DV)

  def step(carry: tuple[Any, Any], chunk: tuple[Any, ...]) -> tuple[Any, Any]:
    kernel_gradient_RDV, sentence_NCV = carry
    i, hidden_CTD, targets_CT, weights_CT = chunk
    logits_MV = _logits(plan, hidden_CTD, kernel_DV, sentence_NCV, i)
    scored = _score(plan, logits_MV, targets_CT)
    scale_M1 = weights_CT.reshape(-1, 1) / scored.total_M1

    if sentence_NCV is not None:
      # Use a matmul instead of a sum over T, so that the gradients are read in the compute dtype.
      scaled_Mc = scale_M1 * plan.sentence_of_token(targets_CT.shape[1])
      gradient_CV = _by_shard(plan, scaled_Mc, scored.gradient_MV).reshape(plan.sentences, -1)
      # Store the gradients in place of these sentences' logits, which are no longer needed.
      sentence_NCV = jax.lax.dynamic_update_index_in_dim(sentence_NCV, gradient_CV, i, 0)
    hidden_MD = hidden_CTD.reshape(-1, hidden_CTD.shape[-1])
    hidden_gradient_MD = scale_M1 * plan.matmul(scored.gradient_MV, kernel_DV.T)
    hidden_gradient_CTD = hidden_gradient_MD.astype(hidden_CTD.dtype).reshape(hidden_CTD.shape)
    kernel_gradient_RDV += _by_shard(plan, scale_M1 * hidden_MD, scored.gradient_MV)
    return (kernel_gradient_RDV, sentence_NCV), (scored.aux, hidden_gradient_CTD)

  # Keep one sum per shard, so that devices combine their sums once instead of once per chunk.
  sum_dtype = accumulation_dtype(plan.dtype)
  start_RDV = jnp.zeros((plan.shards, *kernel_DV.shape), sum_dtype)
  start_RDV = plan.constrain(start_RDV, ("batch", None, "vocab"))
  chunks = map(plan.cut, (inputs.hidden_BTD, targets_BT, inputs.weights_BT))
  (kernel_gradient_RDV, sentence_NCV), outputs = jax.lax.scan(
    step, (start_RDV, _sentence_logits(plan, inputs)), (jnp.arange(plan.chunks), *chunks)
  )
  aux, hidden_gradient_BTD = jax.tree.map(plan.join, outputs)
  sentence_gradient_BS, sentence_kernel_gradient_SV = _sentence_gradients(
    plan, inputs, sentence_NCV
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


_weighted_nll.defvjp(_forward, scale_gradients)


def _kernel(plan: _Plan, kernel_DV: jax.Array) -> jax.Array:
  """Casts the kernel and gathers its rows from all devices, once before the loop over chunks."""
  return plan.constrain(kernel_DV.astype(plan.dtype), (None, "vocab"))


def _sentence_logits(plan: _Plan, inputs: _Inputs) -> jax.Array | None:
  """Returns the contribution of each sentence vector to its tokens' logits, [N, C, V]."""
  if inputs.sentence_BS is None:
    return None
  sentence_XS = plan.rows(plan.cut(inputs.sentence_BS))
  logits_XV = plan.matmul(sentence_XS, _kernel(plan, inputs.sentence_kernel_SV))
  logits_NCV = logits_XV.reshape(plan.chunks, plan.sentences, -1)
  return plan.constrain(logits_NCV, (None, "batch", "vocab"))


def _sentence_gradients(
  plan: _Plan, inputs: _Inputs, gradient_NCV: jax.Array | None
) -> tuple[jax.Array | None, jax.Array | None]:
  """Returns the gradients of the sentence vectors and their kernel from the logit gradients."""
  if gradient_NCV is None:
    return None, None
  gradient_XV = plan.rows(gradient_NCV)
  gradient_XS = plan.matmul(gradient_XV, _kernel(plan, inputs.sentence_kernel_SV).T)
  gradient_BS = plan.join(gradient_XS.reshape(plan.chunks, plan.sentences, -1))
  sentence_XS = plan.rows(plan.cut(inputs.sentence_BS))
  row_axes = list(range(sentence_XS.ndim - 1))
  kernel_gradient_SV = jnp.tensordot(
    sentence_XS.astype(plan.dtype),
    gradient_XV.astype(plan.dtype),
    axes=(row_axes, row_axes),
    preferred_element_type=accumulation_dtype(plan.dtype),
  )
  return gradient_BS, kernel_gradient_SV


def _logits(
  plan: _Plan,
  hidden_CTD: jax.Array,
  kernel_DV: jax.Array,
  sentence_NCV: jax.Array | None,
  i: jax.Array,
) -> jax.Array:
  """Returns the logits of chunk i, [M, V]."""
  # Use 2-D arrays, because XLA's CPU backend is slow on 3-D matmuls, and its TPU backend may copy
  # 3-D gradients.
  logits_MV = plan.matmul(hidden_CTD.reshape(-1, hidden_CTD.shape[-1]), kernel_DV)
  if sentence_NCV is not None:
    sentence_CV = jax.lax.dynamic_index_in_dim(sentence_NCV, i, keepdims=False)
    # Add in 3-D, because in 2-D, XLA would store a copy of each sentence's logits for every token.
    logits_CTV = logits_MV.reshape(*hidden_CTD.shape[:2], -1) + sentence_CV[:, None]
    logits_MV = logits_CTV.reshape(logits_MV.shape)
  return plan.constrain(logits_MV, ("batch", "vocab"))


def _by_shard(plan: _Plan, a_MD: jax.Array, b_MV: jax.Array) -> jax.Array:
  """Returns `a.T @ b` for the rows of each shard, [R, D, V]."""
  if plan.shards == 1:
    return product_of_rows(a_MD, b_MV, plan.dtype)[None]
  a_RMD, b_RMV = (x.reshape(plan.shards, -1, x.shape[-1]) for x in (a_MD, b_MV))
  product_RDV = plan.matmul(a_RMD.swapaxes(1, 2), b_RMV)
  return plan.constrain(product_RDV, ("batch", None, "vocab"))


class _Scored(NamedTuple):
  """Scores for the tokens in a chunk.

  Attributes:
    aux: The values that `weighted_nll` returns.
    gradient_MV: Gradient of each token's loss with respect to its logits, times `total_M1`, in the
      plan's dtype.
    total_M1: Sum of exp(logit - highest logit) over the vocabulary.
  """

  aux: TokenAux
  gradient_MV: jax.Array
  total_M1: jax.Array


def _score(plan: _Plan, logits_MV: jax.Array, targets_CT: jax.Array) -> _Scored:
  """Scores tokens; the vocabulary may be sharded over devices."""
  targets_M1 = targets_CT.reshape(-1, 1)
  is_target_MV = jnp.arange(logits_MV.shape[-1]) == targets_M1
  target_M1 = jnp.take_along_axis(logits_MV, targets_M1, axis=-1)
  rival_M1 = jnp.max(jnp.where(is_target_MV, -jnp.inf, logits_MV), axis=-1, keepdims=True)
  highest_M1 = jnp.maximum(rival_M1, target_M1)
  exp_MV = jnp.exp(logits_MV - highest_M1)
  total_M1 = jnp.sum(exp_MV, axis=-1, keepdims=True)
  real_M1 = targets_M1 != arrays.PAD_ID
  nll_M1 = jnp.where(real_M1, jnp.log(total_M1) + highest_M1 - target_M1, 0.0)
  # (softmax - one-hot) * total. Callers divide by the total later, when the arrays are smaller.
  at_target_M1 = jnp.exp(target_M1 - highest_M1) - total_M1
  gradient_MV = jnp.where(is_target_MV, at_target_M1, exp_MV).astype(plan.dtype)
  by_token = (nll_M1, real_M1 & (target_M1 > rival_M1))
  aux = TokenAux(*(x.reshape(targets_CT.shape) for x in by_token))
  return _Scored(aux, gradient_MV, total_M1)


def default_chunk(columns: int, device: devices.Device | None) -> int:
  """Returns the number of logit rows that a device should compute at a time, a power of two.

  For each chunk of M rows, the device reads a bfloat16 kernel of K elements twice, and reads and
  writes the kernel's float32 gradient: 12 K bytes in total. The matmuls take 6 M K FLOPs, so the
  time for reading and writing is negligible if M is large enough. However, M rows of logits must
  fit in memory.

  >>> default_chunk(250112, devices.BY_NAME["H100 SXM"])
  4096

  Args:
    columns: Number of kernel columns on the device.
    device: The accelerator, or None for a CPU.
  """
  if device is None:
    return _CHUNK
  min_rows = 2 * device.flops / device.bandwidth / _KERNEL_SHARE
  max_rows = _MEMORY_SHARE * device.memory / (_LOGIT_BYTES * columns)
  return max(_CHUNK, 2 ** math.floor(math.log2(min(2 ** math.ceil(math.log2(min_rows)), max_rows))))


def accumulation_dtype(dtype: str) -> Any:
  """Returns the dtype of matmul results, sums and softmaxes for a compute dtype."""
  return jnp.promote_types(dtype, jnp.float32)


def matmul(a: jax.Array, b: jax.Array, dtype: str) -> jax.Array:
  """Returns `a @ b` with operands cast to `dtype` and accumulated in `accumulation_dtype`."""
  return jnp.matmul(
    a.astype(dtype), b.astype(dtype), preferred_element_type=accumulation_dtype(dtype)
  )


def product_of_rows(a: jax.Array, b: jax.Array, dtype: str) -> jax.Array:
  """Returns `a.T @ b` with operands cast to `dtype` and accumulated in `accumulation_dtype`."""
  return layouts.product_of_rows(a.astype(dtype), b.astype(dtype), dtype=accumulation_dtype(dtype))
