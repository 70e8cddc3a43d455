"""Likelihood of tokens under a projection of [sentence; hidden state] to the vocabulary.

A decoder that scores tokens by `[z; h] W` repeats z at every position (VMSST paper, section 5: z is
[z_lang; z_sem], W is [3D, V]). Here W is two kernels and the part of z is computed once a sentence:

  [z; h] W = h W_h + z W_s

Besides, the logits of a few sentences at a time are all that exists, and their gradient is taken
while they do: what is differentiated is a weighted sum whose weights are known beforehand, so the
backward pass has nothing left but to multiply by a number. The results are exact.

Axes: `C` sentences of one chunk, `N` chunks, `R` shards of the batch, `M` tokens of a chunk.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax.linen import partitioning
from jaxtyping import Array, Bool, Float, Int

from vmsst import padding, sharding

# Tokens whose logits a device holds at a time. With fewer, the passes over the kernel and its
# gradient cost more than the products; more only cost memory (benchmarks/vocab_projection.py).
DEFAULT_CHUNK = 512


class TokenAux(NamedTuple):
  """What is known of each token besides the loss; without gradient.

  Attributes:
    nll_BT: Negative log-likelihood in nats, unweighted; 0 at padding.
    correct_BT: Whether the token scored higher than all others; a tie is wrong, and so is padding.
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
  """Returns sum_bt weights_bt * -log softmax(h_bt W_h + z_b W_s)[target_bt], and each token's part.

  The sum has gradients for hidden states, sentence vectors, both kernels and weights, in reverse
  mode. They are computed together with the sum, so it has to be what the loss is made of: masks,
  averages and the weights of loss terms belong into `weights_BT`.

  On a mesh (`jax.set_mesh` and logical axis rules) rows stay on the devices of "batch" and columns
  of the kernels on those of "vocab". Devices exchange vectors and numbers of a token and, once, the
  gradients of the kernels: never a kernel's columns or logits.

  Args:
    hidden_BTD: One vector a token.
    sentence_BS: One vector a sentence (all latents side by side), or None where the logits have no
      such part. The factorized form adds `z F_s` to `h F_h` and gives the sum as hidden states.
    hidden_kernel_DV: Kernel of the hidden states.
    sentence_kernel_SV: Kernel of the sentence vectors; None if they are.
    targets_BT: Token ids. Padding (0) counts for nothing, whatever its weight.
    weights_BT: Weight of each token in the sum.
    chunk: Tokens whose logits a device holds at a time, in whole sentences; None: 512. They are
      those of all devices together under a mesh entered by `with mesh:`, which hides its size.
    dtype: Of the factors of matrix products ("float32", "bfloat16"). Products, softmax and sums are
      float32.

  Raises:
    ValueError: one of `sentence_BS` and `sentence_kernel_SV` without the other, or a chunk below 1.
  """
  if (sentence_BS is None) != (sentence_kernel_SV is None):
    raise ValueError("sentence_BS and sentence_kernel_SV go together: give both or neither")
  if chunk is not None and chunk < 1:
    raise ValueError(f"chunk is {chunk}; it has to be at least 1")
  plan = _Plan.make(*targets_BT.shape, chunk=chunk or DEFAULT_CHUNK, dtype=dtype)
  weights_BT = jnp.where(targets_BT == padding.PAD_ID, 0.0, weights_BT)
  inputs = _Inputs(hidden_BTD, sentence_BS, hidden_kernel_DV, sentence_kernel_SV, weights_BT)
  return _weighted_nll(plan, inputs, targets_BT)


class _Inputs(NamedTuple):
  """Whatever has a gradient; also the gradients."""

  hidden_BTD: Any
  sentence_BS: Any
  hidden_kernel_DV: Any
  sentence_kernel_SV: Any
  weights_BT: Any


class _Plan(NamedTuple):
  """How the work is cut: `chunks` times `sentences`, the last of which may be padding.

  Each chunk takes as many sentences from each of the `shards` that the batch lies in.
  """

  batch: int
  sentences: int
  chunks: int
  shards: int
  dtype: str

  @classmethod
  def make(cls, batch: int, length: int, *, chunk: int, dtype: str) -> "_Plan":
    """The fewest chunks that a device can hold, of equal size."""
    shards = _batch_shards()
    if batch % shards:
      shards = 1
    most = max(1, chunk // length)
    chunks = math.ceil(batch / (shards * most))
    sentences = shards * math.ceil(batch / (shards * chunks))
    return cls(batch, sentences, chunks, shards, dtype)

  @property
  def sum_dtype(self) -> Any:
    """Dtype of products, sums and the softmax."""
    return jnp.promote_types(self.dtype, jnp.float32)

  def constrain(self, x: jax.Array, axes: tuple[str | None, ...]) -> jax.Array:
    """`x` laid out by logical axes, where a batch is known to be divided."""
    return x if self.shards == 1 else sharding.constrain(x, axes)

  def pad(self, x: jax.Array) -> jax.Array:
    """`x` with zeros for the sentences that fill the last chunk up."""
    padding = self.chunks * self.sentences - self.batch
    return jnp.pad(x, ((0, padding), *[(0, 0)] * (x.ndim - 1)))

  def cut(self, x: jax.Array) -> jax.Array:
    """[B, ...] as [N, C, ...].

    Chunk i has the sentences i, i + N, i + 2 N and so on: devices, which hold consecutive rows,
    have equal shares of every chunk, and no row moves.
    """
    x = self.pad(x).reshape(self.sentences, self.chunks, *x.shape[1:]).swapaxes(0, 1)
    return self.constrain(x, (None, "batch", *[None] * (x.ndim - 2)))

  def join(self, x: jax.Array) -> jax.Array:
    """The inverse of `cut`."""
    x = x.swapaxes(0, 1).reshape(self.sentences * self.chunks, *x.shape[2:])[: self.batch]
    return self.constrain(x, ("batch", *[None] * (x.ndim - 1)))

  def matmul(self, a: jax.Array, b: jax.Array) -> jax.Array:
    """`a @ b`, the factors in `dtype`, the product in `sum_dtype`."""
    a, b = a.astype(self.dtype), b.astype(self.dtype)
    return jnp.matmul(a, b, preferred_element_type=self.sum_dtype)


def _batch_shards() -> int:
  """Into how many shards the mesh and the axis rules in force divide a batch; 1 if not known."""
  sizes = jax.sharding.get_abstract_mesh().shape
  if not partitioning.get_axis_rules():
    return 1
  axes = next(iter(partitioning.logical_to_mesh_axes(("batch",)) or (None,)))
  names = axes if isinstance(axes, tuple) else (axes,)
  return math.prod(sizes.get(name, 1) for name in names)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _weighted_nll(
  plan: _Plan, inputs: _Inputs, targets_BT: jax.Array
) -> tuple[jax.Array, TokenAux]:
  """`weighted_nll` where nothing is differentiated."""
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
  """`weighted_nll`, and the gradients of its sum."""
  kernel_DV = _kernel(plan, inputs.hidden_kernel_DV)

  def step(carry: tuple[Any, Any], chunk: tuple[Any, ...]) -> tuple[Any, Any]:
    kernel_gradient_RDV, sentence_CNV = carry
    i, hidden_CTD, targets_CT, weights_CT = chunk
    scored = _score(_logits(plan, hidden_CTD, kernel_DV, sentence_CNV, i), targets_CT)
    gradient_CTV = scored.gradient_CTV
    scale_CT1 = (weights_CT / scored.total_CT)[..., None]

    if sentence_CNV is not None:
      # The logits of these sentences are used up: their gradients take their place.
      gradient_CV = jnp.sum(scale_CT1 * gradient_CTV, axis=1)
      sentence_CNV = jax.lax.dynamic_update_index_in_dim(sentence_CNV, gradient_CV, i, 1)
    gradient_MV = gradient_CTV.reshape(-1, gradient_CTV.shape[-1])
    hidden_gradient_CTD = plan.matmul(gradient_MV, kernel_DV.T).reshape(hidden_CTD.shape)
    hidden_gradient_CTD = (scale_CT1 * hidden_gradient_CTD).astype(hidden_CTD.dtype)
    scaled_MD = (scale_CT1 * hidden_CTD).reshape(-1, hidden_CTD.shape[-1])
    kernel_gradient_RDV += _by_shard(plan, scaled_MD, gradient_MV)
    return (kernel_gradient_RDV, sentence_CNV), (scored.aux, hidden_gradient_CTD)

  # A sum of each shard's own, so that devices add theirs up once and not once a chunk.
  start_RDV = jnp.zeros((plan.shards, *kernel_DV.shape), plan.sum_dtype)
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


def _backward(
  plan: _Plan, gradients: _Inputs, cotangents: tuple[jax.Array, TokenAux]
) -> tuple[_Inputs, None]:
  """Scales the gradients; what is differentiated through `TokenAux` stays zero."""
  del plan
  return jax.tree.map(lambda x: (cotangents[0] * x).astype(x.dtype), gradients), None


_weighted_nll.defvjp(_forward, _backward)


def _kernel(plan: _Plan, kernel_DV: jax.Array) -> jax.Array:
  """The kernel as it enters products: cast, and its rows gathered, before the loop over chunks."""
  return plan.constrain(kernel_DV.astype(plan.dtype), (None, "vocab"))


def _sentence_logits(plan: _Plan, inputs: _Inputs) -> jax.Array | None:
  """The part of the logits that is the same for all tokens of a sentence, [C, N, V]."""
  if inputs.sentence_BS is None:
    return None
  logits_BV = plan.matmul(plan.pad(inputs.sentence_BS), _kernel(plan, inputs.sentence_kernel_SV))
  # Not as `cut` has it: this order is that of the rows themselves, so nothing this large moves.
  logits_CNV = logits_BV.reshape(plan.sentences, plan.chunks, -1)
  return plan.constrain(logits_CNV, ("batch", None, "vocab"))


def _sentence_gradients(
  plan: _Plan, inputs: _Inputs, gradient_CNV: jax.Array | None
) -> tuple[jax.Array | None, jax.Array | None]:
  """Gradients of the sentence vectors and of their kernel, from those of their logits."""
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
  """Logits of chunk i, [C, T, V]."""
  # One matrix per product: XLA's CPU backend is slow on the gradients of a 3-D product.
  logits = plan.matmul(hidden_CTD.reshape(-1, hidden_CTD.shape[-1]), kernel_DV)
  logits_CTV = logits.reshape(*hidden_CTD.shape[:2], -1)
  if sentence_CNV is not None:
    logits_CTV += jax.lax.dynamic_slice_in_dim(sentence_CNV, i, 1, axis=1)
  return plan.constrain(logits_CTV, ("batch", None, "vocab"))


def _by_shard(plan: _Plan, a_MD: jax.Array, b_MV: jax.Array) -> jax.Array:
  """`a.T @ b` of the rows of each shard, [R, D, V]."""
  if plan.shards == 1:
    return plan.matmul(a_MD.T, b_MV)[None]
  a_RMD, b_RMV = (x.reshape(plan.shards, -1, x.shape[-1]) for x in (a_MD, b_MV))
  product_RDV = plan.matmul(a_RMD.swapaxes(1, 2), b_RMV)
  return plan.constrain(product_RDV, ("batch", None, "vocab"))


class _Scored(NamedTuple):
  """Tokens of a chunk against the vocabulary.

  Attributes:
    aux: What a caller learns of them.
    gradient_CTV: Gradient of each one's loss by its logits, times `total_CT`.
    total_CT: Sum of exp(logit - the highest logit).
  """

  aux: TokenAux
  gradient_CTV: jax.Array
  total_CT: jax.Array


def _score(logits_CTV: jax.Array, targets_CT: jax.Array) -> _Scored:
  """Scores tokens. Sums over the vocabulary, its parts on different devices or on one."""
  is_target_CTV = jnp.arange(logits_CTV.shape[-1]) == targets_CT[..., None]
  target_CT = jnp.take_along_axis(logits_CTV, targets_CT[..., None], axis=-1)[..., 0]
  rival_CT = jnp.max(jnp.where(is_target_CTV, -jnp.inf, logits_CTV), axis=-1)
  highest_CT = jnp.maximum(rival_CT, target_CT)
  exp_CTV = jnp.exp(logits_CTV - highest_CT[..., None])
  total_CT = jnp.sum(exp_CTV, axis=-1)
  real_CT = targets_CT != padding.PAD_ID
  nll_CT = jnp.where(real_CT, jnp.log(total_CT) + highest_CT - target_CT, 0.0)
  # softmax - one-hot, times the total: rows are divided by it where they are short.
  at_target_CT = jnp.exp(target_CT - highest_CT) - total_CT
  gradient_CTV = jnp.where(is_target_CTV, at_target_CT[..., None], exp_CTV)
  return _Scored(TokenAux(nll_CT, real_CT & (target_CT > rival_CT)), gradient_CTV, total_CT)
