"""Cross-lingual token-level reconstruction (XTR): sentence vectors predict a translation's tokens.

The target distribution p of a sentence covers only a few tokens. To compute its KL divergence from
a softmax over the vocabulary, only the log-normalizer and the logits of these tokens are needed:

  KL(p || softmax(x)) = sum_w p(w) log p(w) + logsumexp(x) sum_w p(w) - sum_w p(w) x_w

For each sentence, this formula needs only one row of logits, instead of one row per token, and no
target array as large as the vocabulary. At any time, logits exist for only a few sentences, and
their gradients are computed in the forward pass (see `vmsst.losses.vocabulary`). The results are
exact.

A target distribution is stored as a list of tokens with their shares of the probability. If a token
occurs twice, its shares add up. The paper divides token counts by the sentence length, but does not
define this length. Here, the length is the number of tokens, including unknown tokens, without
padding. EMS's vocabulary has neither BOS nor EOS. If a vocabulary has such tokens (<s> and </s>,
[CLS] and [SEP]), `special_ids` excludes them from the targets and from the length, because they
carry no information about the sentence.

Axes: `E` width of the vocabulary projection's input, `C` sentences per chunk, `N` chunks.

References: the EMS paper, section III-B; Mao et al. 2021 (arXiv 2105.13856) for UGT.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from vmsst import arrays
from vmsst.arrays import devices, layouts
from vmsst.losses import vocabulary


class TokenTargets(NamedTuple):
  """A distribution over the vocabulary for each sentence.

  Attributes:
    tokens_BT: Tokens in any order.
    share_BT: Probability that each position adds to its token; 0 at padding.
  """

  tokens_BT: Int[Array, "B T"]
  share_BT: Float[Array, "B T"]


def is_word(tokens: Int[Array, "... T"], special_ids: Sequence[int]) -> Bool[Array, "... T"]:
  """Returns True at tokens that are neither padding nor in `special_ids`."""
  return ~jnp.isin(tokens, jnp.array((arrays.PAD_ID, *special_ids)))


def xtr_targets(
  tokens_BT: Int[Array, "B T"], *, special_ids: Sequence[int] = (), count_repeats: bool = True
) -> TokenTargets:
  """Returns the token distribution of each sentence: p(w) = N_w / |S| (EMS paper, equation 7).

  If a sentence has no tokens, all its shares are 0.

  Args:
    tokens_BT: Tokens of the sentence to predict, which is the other side of the pair; 0 is padding.
    special_ids: Ids that, like padding, do not count as tokens, such as BOS and EOS.
    count_repeats: If False, a token has the share 1 / |S| however often it occurs, as in the
      released code; shares may then sum to less than 1.
  """
  is_token_BT = is_word(tokens_BT, special_ids)
  length_B1 = jnp.sum(is_token_BT, axis=1, keepdims=True, dtype=jnp.float32)
  if not count_repeats:
    same_BTT = tokens_BT[:, :, None] == tokens_BT[:, None, :]
    occurred_before_BT = jnp.any(jnp.tril(same_BTT, k=-1), axis=2)
    is_token_BT &= ~occurred_before_BT
  return TokenTargets(tokens_BT, is_token_BT / jnp.maximum(length_B1, 1.0))


def ugt_targets(targets: TokenTargets, masked_B: Int[Array, "B"]) -> TokenTargets:
  """Returns targets for the unified generative task (UGT): the XTR targets and the masked token.

  p(w) = 1/2 p_xtr(w) + 1/2 [w = masked token]

  The weights of 1/2 are the same as in the code released with Mao et al. 2021. For each pair, that
  code masks one random token in one of the two sentences. The other sentence keeps its XTR targets.

  Args:
    targets: The XTR targets, [B, T].
    masked_B: The masked token in the encoded sentence, which predicts `targets`; 0 if the sentence
      has no mask.

  Returns:
    The targets, [B, T + 1].
  """
  masked_B1 = masked_B[:, None]
  half_B1 = 0.5 * (masked_B1 != arrays.PAD_ID)
  return TokenTargets(
    jnp.concatenate([targets.tokens_BT, masked_B1], axis=1),
    jnp.concatenate([(1.0 - half_B1) * targets.share_BT, half_B1], axis=1),
  )


def negative_entropy(targets: TokenTargets) -> Float[Array, "B"]:
  """Returns sum_w p(w) log p(w) for each distribution, in nats."""
  # The shares of a token w sum to p(w), so sum share * log p(w) over the positions in the list.
  same_BTT = targets.tokens_BT[:, :, None] == targets.tokens_BT[:, None, :]
  probability_BT = jnp.sum(jnp.where(same_BTT, targets.share_BT[:, None, :], 0.0), axis=2)
  log_BT = jnp.log(jnp.where(targets.share_BT > 0, probability_BT, 1.0))
  return jnp.sum(targets.share_BT * log_BT, axis=1)


def weighted_kl(
  hidden_BE: Float[Array, "B E"],
  kernel_EV: Float[Array, "E V"],
  targets: TokenTargets,
  weights_B: Float[Array, "B"],
  *,
  chunk: int | None = None,
  dtype: str = "float32",
) -> tuple[Float[Array, ""], Float[Array, "B"]]:
  """Returns sum_b weights_b * KL(p_b || softmax(h_b W)), and each sentence's KL, in nats.

  This is one direction of equation 6 in the EMS paper. h is the activated vector in equations 4 and
  5, W is the transpose of W_emb, and p is the token distribution of the other sentence.

  The sum is differentiable in reverse mode with respect to hidden states, kernel and weights, but
  not targets. The second result, the KL of each sentence, has no gradient, so `weights_B` must
  include all masks, averaging factors and loss weights.

  On a mesh (`jax.set_mesh` and logical axis rules), sentences stay on the devices assigned to
  "batch", and kernel columns stay on the devices assigned to "vocab", if the number of these
  devices divides V. Devices exchange only vectors and scalars for each sentence and, once, the
  kernel gradient. They never exchange kernel columns or logits.

  Args:
    hidden_BE: One vector per sentence.
    kernel_EV: Kernel that computes the logits; for an embedding table, pass its transpose.
    targets: Distribution that each vector must predict (see `xtr_targets`). Shares need not sum
      to 1. A token outside the vocabulary makes the sum NaN.
    weights_B: Weight of each sentence in the sum.
    chunk: Number of sentences per chunk on each device (default: `vocabulary.default_chunk` of the
      device, 512 on a CPU).
    dtype: Dtype of matmul operands, "float32" or "bfloat16". Accumulation and softmax are float32.
  """
  plan = _Plan.make(hidden_BE.shape[0], kernel_EV.shape[1], chunk=chunk, dtype=dtype)
  targets = jax.lax.stop_gradient(targets)
  with jax.named_scope("projection"):
    total, cross_entropy_B = _cross_entropy(plan, _Inputs(hidden_BE, kernel_EV, weights_B), targets)
  negative_entropy_B = negative_entropy(targets)
  return total + jnp.sum(weights_B * negative_entropy_B), cross_entropy_B + negative_entropy_B


class _Inputs(NamedTuple):
  """The differentiable inputs of `_cross_entropy`, or their gradients."""

  hidden_BE: Any
  kernel_EV: Any
  weights_B: Any


class _Plan(NamedTuple):
  """How the sentences and the vocabulary are divided over devices and chunks.

  Attributes:
    batch_axes: Mesh axes over which sentences are sharded.
    vocab_axes: Mesh axes over which the vocabulary is sharded.
    vocab_size: Number of tokens in the whole vocabulary.
    chunk: Maximum number of sentences that a device processes at a time.
    dtype: Dtype of matmul operands.
  """

  batch_axes: tuple[str, ...]
  vocab_axes: tuple[str, ...]
  vocab_size: int
  chunk: int
  dtype: str

  @classmethod
  def make(cls, batch: int, vocab_size: int, *, chunk: int | None, dtype: str) -> "_Plan":
    """Returns the plan for the current mesh and axis rules."""
    batch_axes, vocab_axes = layouts.mesh_axes(batch=batch, vocab=vocab_size)
    columns = layouts.local_size(vocab=vocab_size)
    chunk = chunk or vocabulary.default_chunk(columns, devices.current())
    return cls(batch_axes, vocab_axes, vocab_size, chunk, dtype)

  def matmul(self, a: jax.Array, b: jax.Array) -> jax.Array:
    """Returns `a @ b` with operands in the plan's dtype."""
    return vocabulary.matmul(a, b, self.dtype)

  def cut(self, x: jax.Array) -> jax.Array:
    """Reshapes [B, ...] to [N, C, ...], the fewest equal chunks; pads with zeros at the end."""
    chunks = max(1, math.ceil(x.shape[0] / self.chunk))
    size = math.ceil(x.shape[0] / chunks)
    x = jnp.pad(x, ((0, chunks * size - x.shape[0]), *[(0, 0)] * (x.ndim - 1)))
    return x.reshape(chunks, size, *x.shape[1:])

  def over_vocab(self, reduce: Callable[..., jax.Array], x: jax.Array) -> jax.Array:
    """Reduces `x` over devices if the vocabulary is sharded; otherwise, returns `x`."""
    return reduce(x, self.vocab_axes) if self.vocab_axes else x

  def on_mesh(self, function: Callable[..., Any], outputs: Any) -> Callable[..., Any]:
    """Wraps `function` so that each device runs it on its shards of (inputs, targets).

    Args:
      function: Function that takes and returns one device's shards and reduces over devices itself.
      outputs: Structure of the function's results, with a `PartitionSpec` for each array.
    """
    if not self.batch_axes and not self.vocab_axes:
      return function
    inputs = _Inputs(self.rows, self.columns, self.rows)
    # Replicated results are sums over devices, so no replication check is needed.
    return jax.shard_map(function, in_specs=(inputs, self.rows), out_specs=outputs, check_vma=False)

  @property
  def rows(self) -> PartitionSpec:
    """Layout of an array with one row per sentence."""
    return PartitionSpec(self.batch_axes)

  @property
  def columns(self) -> PartitionSpec:
    """Layout of an array with one column per vocabulary token."""
    return PartitionSpec(None, self.vocab_axes)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _cross_entropy(
  plan: _Plan, inputs: _Inputs, targets: TokenTargets
) -> tuple[jax.Array, jax.Array]:
  """Returns sum_b weights_b * -sum_w p_b(w) log softmax(h_b W)_w, and each sentence's value."""
  return _forward(plan, inputs, targets)[0]  # XLA removes the unused gradients.


def _forward(
  plan: _Plan, inputs: _Inputs, targets: TokenTargets
) -> tuple[tuple[jax.Array, jax.Array], _Inputs]:
  """Computes `_cross_entropy` and the gradients of its sum."""
  outputs = (plan.rows, plan.rows, plan.columns)
  run = plan.on_mesh(functools.partial(_values_and_gradients, plan), outputs)
  cross_entropy_B, hidden_gradient_BE, kernel_gradient_EV = run(inputs, targets)
  gradients = _Inputs(hidden_gradient_BE, kernel_gradient_EV, cross_entropy_B)
  gradients = jax.tree.map(lambda x, gradient: gradient.astype(x.dtype), inputs, gradients)
  return (jnp.sum(inputs.weights_B * cross_entropy_B), cross_entropy_B), gradients


_cross_entropy.defvjp(_forward, vocabulary.scale_gradients)


def _values_and_gradients(
  plan: _Plan, inputs: _Inputs, targets: TokenTargets
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns cross-entropies, and gradients for one device's hidden states and kernel columns."""
  kernel_EV = inputs.kernel_EV.astype(plan.dtype)

  def gradients(chunk: tuple[Any, ...]) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    hidden_CE, weights_C, targets = chunk
    scored = _score(plan, hidden_CE, kernel_EV, targets)
    # `gradient_CV` is (mass * softmax - target) * total / mass. `scale_C1` contains the remaining
    # factors, which are applied later, to smaller arrays.
    mass_C = jnp.sum(targets.share_BT, axis=1)
    unit_C1 = (scored.total_C / jnp.where(mass_C > 0, mass_C, 1.0))[:, None]
    rows_C1 = jnp.arange(len(mass_C))[:, None]
    gradient_CV = scored.exp_CV.at[rows_C1, scored.columns_CT].add(
      -unit_C1 * targets.share_BT, mode="drop"
    )
    scale_C1 = (weights_C * mass_C / scored.total_C)[:, None]
    hidden_gradient_CE = scale_C1 * plan.matmul(gradient_CV, kernel_EV.T)
    kernel_gradient_EV = vocabulary.product_of_rows(scale_C1 * hidden_CE, gradient_CV, plan.dtype)
    return kernel_gradient_EV, (scored.cross_entropy_C, hidden_gradient_CE)

  def step(sum_EV: jax.Array, chunk: tuple[Any, ...]) -> tuple[jax.Array, Any]:
    kernel_gradient_EV, outputs = gradients(chunk)
    return sum_EV + kernel_gradient_EV, outputs

  chunks = jax.tree.map(plan.cut, (inputs.hidden_BE, inputs.weights_B, targets))
  if len(chunks[0]) == 1:
    # If there is only one chunk, skip the loop. A loop accumulates gradients, which takes time.
    kernel_gradient_EV, outputs = gradients(jax.tree.map(lambda x: x[0], chunks))
  else:
    start_EV = jnp.zeros(kernel_EV.shape, vocabulary.accumulation_dtype(plan.dtype))
    kernel_gradient_EV, outputs = jax.lax.scan(step, start_EV, chunks)
  cross_entropy_NC, hidden_gradient_NCE = outputs
  batch, width = inputs.hidden_BE.shape
  hidden_gradient_BE = hidden_gradient_NCE.reshape(-1, width)[:batch]
  return (
    cross_entropy_NC.reshape(-1)[:batch],
    plan.over_vocab(jax.lax.psum, hidden_gradient_BE),
    jax.lax.psum(kernel_gradient_EV, plan.batch_axes) if plan.batch_axes else kernel_gradient_EV,
  )


class _Scored(NamedTuple):
  """Scores for the sentences in a chunk with one device's vocabulary columns.

  Attributes:
    cross_entropy_C: -sum_w p(w) log softmax(logits)_w over the whole vocabulary.
    exp_CV: exp(logit - highest logit).
    total_C: Sum of `exp_CV` over the whole vocabulary.
    columns_CT: Column of each target token; out of range if the token is on a different device.
  """

  cross_entropy_C: jax.Array
  exp_CV: jax.Array
  total_C: jax.Array
  columns_CT: jax.Array


def _score(
  plan: _Plan, hidden_CE: jax.Array, kernel_EV: jax.Array, targets: TokenTargets
) -> _Scored:
  """Scores sentences; the vocabulary may be sharded over devices."""
  logits_CV = plan.matmul(hidden_CE, kernel_EV)
  size = logits_CV.shape[1]
  first = jax.lax.axis_index(plan.vocab_axes) * size if plan.vocab_axes else 0
  columns_CT = targets.tokens_BT - first
  columns_CT = jnp.where((columns_CT >= 0) & (columns_CT < size), columns_CT, size)

  highest_C = plan.over_vocab(jax.lax.pmax, jnp.max(logits_CV, axis=1))
  exp_CV = jnp.exp(logits_CV - highest_C[:, None])
  total_C = plan.over_vocab(jax.lax.psum, jnp.sum(exp_CV, axis=1))
  target_CT = jnp.take_along_axis(logits_CV, columns_CT, axis=1, mode="fill", fill_value=0.0)
  target_CT = plan.over_vocab(jax.lax.psum, target_CT)
  # Each vocabulary token has a column on some device. Ids outside the vocabulary have no column and
  # give NaN, so that mistakes are visible.
  is_valid_CT = (targets.tokens_BT >= 0) & (targets.tokens_BT < plan.vocab_size)
  nll_CT = jnp.log(total_C)[:, None] + highest_C[:, None] - target_CT
  nll_CT = jnp.where(is_valid_CT, nll_CT, jnp.nan)
  cross_entropy_C = jnp.sum(targets.share_BT * nll_CT, axis=1)
  return _Scored(cross_entropy_C, exp_CV, total_C, columns_CT)
