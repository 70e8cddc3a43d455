"""The losses of a vocabulary projection, of tokens and of sentences (XTR), against dense forms."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import assert_trees_close

from ems_jax.losses import xtr
from vmsst.losses import vocabulary

B, T, D, S, V = 5, 4, 6, 7, 50


def make_tokens(batch, length, size):
  """Tokens of sentences, some of which repeat; one has none, others end with padding."""
  tokens_BT = np.random.default_rng(1).integers(1, size, size=(batch, length)).astype(np.int32)
  tokens_BT[0, 1:3] = tokens_BT[0, 0]
  tokens_BT[1, 2:] = tokens_BT[2] = 0
  return tokens_BT


def make_inputs(name, batch=B, length=T, width=D, size=V):
  """Hidden states and kernels, then weights; then constants: tokens or targets."""
  rng = np.random.default_rng(0)
  shapes = {
    "tokens": ((batch, length, width), (batch, S), (width, size), (S, size)),
    "hidden states alone": ((batch, length, width), (width, size)),
    "xtr": ((batch, width), (width, size)),
  }[name]
  arrays = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
  tokens_BT = make_tokens(batch, length, size)
  if name == "xtr":
    targets = xtr.xtr_targets(tokens_BT)
    return (*arrays, rng.uniform(0.5, 2.0, size=batch).astype(np.float32)), targets
  return (*arrays, rng.uniform(0.5, 2.0, size=(batch, length)).astype(np.float32)), tokens_BT


def dense_nll(arrays, targets_BT):
  """Loss of each token from one matmul over [sentence; hidden state], padding included."""
  hidden_BTD, sentence_BS, hidden_kernel_DV, sentence_kernel_SV, *_ = arrays
  sentence_BTS = jnp.broadcast_to(sentence_BS[:, None], (*targets_BT.shape, sentence_BS.shape[1]))
  both_BTP = jnp.concatenate([sentence_BTS, hidden_BTD], axis=-1)
  logits_BTV = both_BTP @ jnp.concatenate([sentence_kernel_SV, hidden_kernel_DV])
  log_p_BTV = jax.nn.log_softmax(logits_BTV)
  nll_BT = -jnp.take_along_axis(log_p_BTV, targets_BT[..., None], axis=-1)[..., 0]
  return jnp.where(targets_BT == 0, 0.0, nll_BT), jnp.argmax(logits_BTV, axis=-1) == targets_BT


def dense_kl(arrays, targets):
  hidden_BE, kernel_EV, *_ = arrays
  target_BV = np.zeros((len(hidden_BE), kernel_EV.shape[1]), np.float32)
  rows_B1 = np.arange(len(target_BV))[:, None]
  np.add.at(target_BV, (rows_B1, np.asarray(targets.tokens_BT)), np.asarray(targets.share_BT))
  log_p_BV = jnp.log(jnp.where(target_BV > 0, target_BV, 1.0))
  return jnp.sum(target_BV * (log_p_BV - jax.nn.log_softmax(hidden_BE @ kernel_EV)), axis=1)


either = pytest.mark.parametrize("name", ["tokens", "xtr"])


def dense_values(name, arrays, targets):
  if name == "xtr":
    return dense_kl(arrays, targets)
  if name == "hidden states alone":
    hidden_BTD, kernel_DV, _ = arrays
    arrays = (hidden_BTD, np.zeros((B, 1)), kernel_DV, np.zeros((1, kernel_DV.shape[1])))
  return dense_nll(arrays, targets)[0]


def dense_sum(name, arrays, targets):
  return jnp.sum(arrays[-1] * dense_values(name, arrays, targets))


@functools.partial(jax.jit, static_argnames=("name", "chunk", "dtype"))
def ours(name, arrays, targets, **options):
  *arrays, weights = arrays
  if name == "xtr":
    return xtr.weighted_kl(*arrays, targets, weights, **options)
  if name == "hidden states alone":
    arrays = (arrays[0], None, arrays[1], None)
  return vocabulary.weighted_nll(*arrays, targets, weights, **options)


def values(aux):
  return aux.nll_BT if isinstance(aux, tuple) else aux


@functools.partial(jax.jit, static_argnames=("name", "chunk", "dtype"))
def ours_with_gradients(name, arrays, targets, **options):
  """((sum, values), gradients for the arrays)."""
  return jax.value_and_grad(lambda x: ours(name, x, targets, **options), has_aux=True)(arrays)


# Chunk sizes. XTR: one or two sentences (then the last chunk has one). Tokens: one token, two
# sentences and a token, three sentences. None is the default, a single chunk.
@pytest.mark.parametrize(
  ("name", "chunk"),
  [
    *(("xtr", n) for n in (1, 2, None)),
    *(("tokens", n) for n in (1, 2 * T + 1, 3 * T, None)),
    ("hidden states alone", 2 * T),
  ],
)
def test_value_and_gradients_equal_the_dense_form(name, chunk):
  arrays, targets = make_inputs(name)
  # The square tests that gradients are multiplied by the gradient of the sum.
  result = jax.value_and_grad(lambda x: ours(name, x, targets, chunk=chunk)[0] ** 2)(arrays)
  expected = jax.value_and_grad(lambda x: dense_sum(name, x, targets) ** 2)(arrays)
  assert_trees_close(result, expected, rtol=1e-4, atol=2e-3)


@either
def test_values_equal_the_dense_form_with_and_without_differentiation(name):
  arrays, targets = make_inputs(name)
  if name == "tokens":  # some of them easy, so that some are correct
    best_BT = jnp.argmax(jnp.einsum("btd,dv->btv", arrays[0], arrays[2])
                         + (arrays[1] @ arrays[3])[:, None], axis=-1)  # fmt: skip
    targets = np.where((np.arange(T) % 2 == 0) & (targets != 0), best_BT, targets)
  chunk = 2 * T if name == "tokens" else 2
  result = ours(name, arrays, targets, chunk=chunk)
  assert_trees_close(
    ours_with_gradients(name, arrays, targets, chunk=chunk)[0], result, rtol=1e-6, atol=1e-6
  )
  expected = dense_values(name, arrays, targets)
  np.testing.assert_allclose(values(result[1]), expected, rtol=1e-5, atol=1e-5)
  if name == "tokens":
    correct_BT = dense_nll(arrays, targets)[1] & (targets != 0)
    assert 0 < correct_BT.sum() < correct_BT.size
    np.testing.assert_array_equal(result[1].correct_BT, correct_BT)
  gradients = jax.grad(lambda x: values(ours(name, x, targets)[1]).sum())(arrays)
  assert not any(np.any(x) for x in gradients)  # they have none


def test_a_tie_and_padding_are_wrong():
  kernel_DV = jnp.array([[0.0, 5, 5], [0, 1, 2], [9, 0, 0]])
  targets_BT = jnp.array([[1, 2, 0]])
  _, aux = vocabulary.weighted_nll(
    jnp.eye(3)[None], None, kernel_DV, None, targets_BT, jnp.ones((1, 3))
  )
  assert aux.correct_BT.tolist() == [[False, True, False]]


@either
def test_huge_logits_give_the_dense_result(name):
  (hidden, *constants), targets = make_inputs(name)
  arrays = (1e4 * hidden, *constants)
  (value, _), gradients = ours_with_gradients(name, arrays, targets)
  expected, dense = jax.value_and_grad(lambda x: dense_sum(name, x, targets))(arrays)
  assert float(value) == pytest.approx(float(expected), rel=1e-5)
  for gradient, exact in zip(gradients, dense, strict=True):
    np.testing.assert_allclose(gradient, exact, rtol=1e-3, atol=1e-4 * np.abs(exact).max())


@either
def test_bfloat16_matmuls_are_close_to_float32(name):
  (hidden, *constants), targets = make_inputs(name, batch=8, width=32, size=200)
  arrays = (jnp.bfloat16(0.3 * hidden), *constants)
  (value, aux), gradients = ours_with_gradients(name, arrays, targets, dtype="bfloat16")
  (expected, _), expected_gradients = ours_with_gradients(name, arrays, targets)
  assert values(aux).dtype == value.dtype == jnp.float32
  assert [x.dtype for x in gradients] == [x.dtype for x in arrays]
  np.testing.assert_allclose(value, expected, rtol=5e-3)
  assert value != expected
  for gradient, exact in zip(gradients, expected_gradients, strict=True):
    gradient, exact = np.float32(gradient), np.float32(exact)
    assert np.linalg.norm(gradient - exact) < 0.01 * np.linalg.norm(exact)


def test_gradients_of_many_chunks_are_summed_in_float32():
  one_M1, token_M1 = jnp.ones((600, 1)), jnp.ones((600, 1), int)  # a bfloat16 sum would stop early
  options = {"chunk": 1, "dtype": "bfloat16"}

  def of_tokens(table):
    hidden_M11 = one_M1[:, None]
    return vocabulary.weighted_nll(hidden_M11, None, table, None, token_M1, one_M1, **options)[0]

  def of_xtr(table):
    targets = xtr.TokenTargets(token_M1, one_M1)
    return xtr.weighted_kl(one_M1, table, targets, one_M1[:, 0], **options)[0]

  for loss in (of_tokens, of_xtr):
    assert jax.jit(jax.grad(loss))(jnp.zeros((1, 2))).tolist() == [[300, -300]]


@either
def test_logits_of_the_whole_batch_never_exist(name):
  sizes = {"tokens": {"batch": 16, "length": 16}, "xtr": {"batch": 256}}[name]
  arrays, targets = make_inputs(name, **sizes, size=1000)

  def bytes_beyond_arguments(function):
    compiled = jax.jit(jax.value_and_grad(function)).lower(arrays).compile()
    return compiled.memory_analysis().temp_size_in_bytes

  logits = 4 * 256 * 1000
  assert bytes_beyond_arguments(lambda x: dense_sum(name, x, targets)) >= logits
  # Logits of a chunk, a few times, and the part that all tokens of a sentence share.
  assert bytes_beyond_arguments(lambda x: ours(name, x, targets, chunk=16)[0]) < 0.4 * logits


def test_a_token_outside_the_vocabulary_gives_nan():
  tokens_BT = make_tokens(B, T, V)
  tokens_BT[3, 0] = V
  _, kl_B = ours("xtr", make_inputs("xtr")[0], xtr.xtr_targets(tokens_BT))
  assert np.isnan(kl_B).tolist() == [False, False, False, True, False]
