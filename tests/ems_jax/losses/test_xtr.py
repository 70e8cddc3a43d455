import collections
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import test_util  # noqa: F401 (makes jax.test_util an attribute)

from ems_jax.losses import token_targets, xtr

B, T, E, V = 5, 4, 6, 30


def make_inputs(batch=B, length=T, width=E, size=V, seed=0):
  """Hidden states, kernel, weights, and tokens; some repeat, one sentence has none."""
  rng = np.random.default_rng(seed)
  hidden_BE = rng.normal(size=(batch, width)).astype(np.float32)
  kernel_EV = rng.normal(size=(width, size)).astype(np.float32)
  weights_B = rng.uniform(0.5, 2.0, size=batch).astype(np.float32)
  tokens_BT = rng.integers(1, size, size=(batch, length)).astype(np.int32)
  tokens_BT[0, 1:3] = tokens_BT[0, 0]
  tokens_BT[1, 2:] = tokens_BT[2] = 0
  return (hidden_BE, kernel_EV, weights_B), tokens_BT


def dense_targets(targets, size=V):
  target_BV = np.zeros((len(targets.tokens_BT), size), np.float32)
  rows_B1 = np.arange(len(target_BV))[:, None]
  np.add.at(target_BV, (rows_B1, np.asarray(targets.tokens_BT)), np.asarray(targets.share_BT))
  return target_BV


def dense_kl(hidden_BE, kernel_EV, target_BV):
  log_q_BV = jax.nn.log_softmax(hidden_BE @ kernel_EV)
  log_p_BV = jnp.log(jnp.where(target_BV > 0, target_BV, 1.0))
  return jnp.sum(target_BV * (log_p_BV - log_q_BV), axis=1)


def dense_sum(arrays, target_BV):
  hidden_BE, kernel_EV, weights_B = arrays
  return jnp.sum(weights_B * dense_kl(hidden_BE, kernel_EV, target_BV))


@functools.partial(jax.jit, static_argnames=("chunk", "dtype"))
def ours(arrays, targets, **options):
  hidden_BE, kernel_EV, weights_B = arrays
  return xtr.weighted_kl(hidden_BE, kernel_EV, targets, weights_B, **options)


@functools.partial(jax.jit, static_argnames=("chunk", "dtype"))
def ours_with_gradients(arrays, targets, **options):
  """((sum, sentences), gradients for the arrays)."""
  return jax.value_and_grad(ours, has_aux=True)(arrays, targets, **options)


def assert_trees_close(found, expected, **tolerances):
  assert jax.tree.structure(found) == jax.tree.structure(expected)
  for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
    np.testing.assert_allclose(np.float64(x), np.float64(y), **tolerances)


def test_value_is_that_of_the_equations():
  (hidden_BE, kernel_EV, weights_B), tokens_BT = make_inputs()
  losses = []
  for hidden_E, tokens_T in zip(hidden_BE.tolist(), tokens_BT.tolist(), strict=True):
    sentence = [token for token in tokens_T if token]
    logits = [sum(h * w for h, w in zip(hidden_E, row, strict=True)) for row in kernel_EV.T]
    total = sum(math.exp(x) for x in logits)
    q = [math.exp(x) / total for x in logits]  # equations 4 and 5
    p = {w: n / len(sentence) for w, n in collections.Counter(sentence).items()}  # equation 7
    losses.append(sum(p[w] * math.log(p[w] / q[w]) for w in p))  # equation 6
  assert losses[2] == 0  # it has no tokens
  targets = token_targets.xtr_targets(tokens_BT)
  value, kl_B = ours((hidden_BE, kernel_EV, weights_B), targets)
  np.testing.assert_allclose(kl_B, losses, rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(value, np.dot(weights_B, losses), rtol=1e-5)


@pytest.mark.parametrize("task", ["xtr", "counted once", "ugt"])
# One sentence, two (the last chunk has one), all; None is the default.
@pytest.mark.parametrize("chunk", [1, 2, 1000, None])
def test_value_and_gradients_equal_the_dense_form(chunk, task):
  arrays, tokens_BT = make_inputs()
  targets = token_targets.xtr_targets(tokens_BT, count_repeats=task != "counted once")
  if task == "ugt":
    masked_B = np.array([tokens_BT[0, 0], 0, 7, 8, 0], np.int32)
    targets = token_targets.ugt_targets(targets, masked_B)
  target_BV = dense_targets(targets)
  # A function of the sum, whose gradient must be scaled.
  found = jax.value_and_grad(lambda x: ours(x, targets, chunk=chunk)[0] ** 2)(arrays)
  expected = jax.value_and_grad(lambda x: dense_sum(x, target_BV) ** 2)(arrays)
  assert_trees_close(found, expected, rtol=1e-4, atol=1e-3)


def test_sentences_are_the_same_with_and_without_differentiation():
  arrays, tokens_BT = make_inputs()
  targets = token_targets.xtr_targets(tokens_BT)
  (value, kl_B), _ = ours_with_gradients(arrays, targets, chunk=2)
  assert_trees_close((value, kl_B), ours(arrays, targets, chunk=2), rtol=1e-6, atol=1e-6)
  gradients = jax.grad(lambda x: ours(x, targets)[1].sum())(arrays)
  assert not any(np.any(x) for x in gradients)


def test_gradients_against_finite_differences_in_float64():
  with jax.enable_x64(True):
    arrays, tokens_BT = make_inputs(batch=3, length=3, width=2, size=5)
    targets = token_targets.xtr_targets(tokens_BT)
    jax.test_util.check_grads(
      lambda *x: ours(x, targets, chunk=2, dtype="float64")[0],
      tuple(x.astype(np.float64) for x in arrays),
      order=1,
      modes=["rev"],
      atol=1e-7,
      rtol=1e-7,
    )


def test_a_perfect_prediction_has_no_loss_and_no_gradient():
  _, tokens_BT = make_inputs()
  targets = token_targets.xtr_targets(tokens_BT)
  kernel_EV = np.log(dense_targets(targets) + 1e-30)  # a row of it for each sentence
  arrays = (np.eye(B, dtype=np.float32), kernel_EV, np.ones(B, np.float32))
  (_, kl_B), gradients = ours_with_gradients(arrays, targets)
  np.testing.assert_allclose(kl_B, 0, atol=1e-6)
  np.testing.assert_allclose(gradients[1], 0, atol=1e-6)


def test_padding_and_order_do_not_matter():
  arrays, tokens_BT = make_inputs()
  expected = ours_with_gradients(arrays, token_targets.xtr_targets(tokens_BT))
  padded_BT = np.pad(tokens_BT[:, ::-1], ((0, 0), (3, 2)))
  found = ours_with_gradients(arrays, token_targets.xtr_targets(padded_BT))
  assert_trees_close(found, expected, rtol=1e-5, atol=1e-5)
  np.testing.assert_array_equal(expected[1][0][2], 0)  # the sentence without tokens


def test_huge_logits_give_the_dense_result():
  (hidden_BE, *others), tokens_BT = make_inputs()
  targets = token_targets.xtr_targets(tokens_BT)
  arrays = (1e4 * hidden_BE, *others)
  (value, _), gradients = ours_with_gradients(arrays, targets)
  expected, dense = jax.value_and_grad(dense_sum)(arrays, dense_targets(targets))
  assert float(value) == pytest.approx(float(expected), rel=1e-5)
  for found, exact in zip(gradients, dense, strict=True):
    np.testing.assert_allclose(found, exact, rtol=1e-3, atol=1e-4 * np.abs(exact).max())


def test_bfloat16_matmuls_are_close_to_float32():
  (hidden_BE, *others), tokens_BT = make_inputs(batch=8, width=32, size=200)
  arrays = (jnp.bfloat16(0.3 * hidden_BE), *others)
  targets = token_targets.xtr_targets(tokens_BT)
  (value, kl_B), gradients = ours_with_gradients(arrays, targets, dtype="bfloat16")
  (expected, _), expected_gradients = ours_with_gradients(arrays, targets)
  assert kl_B.dtype == value.dtype == jnp.float32
  assert [x.dtype for x in gradients] == [x.dtype for x in arrays]
  np.testing.assert_allclose(value, expected, rtol=5e-3)
  assert value != expected
  for found, exact in zip(gradients, expected_gradients, strict=True):
    found, exact = np.float32(found), np.float32(exact)
    assert np.linalg.norm(found - exact) < 0.01 * np.linalg.norm(exact)


@pytest.mark.parametrize("differentiate", [False, True])
def test_neither_logits_nor_targets_of_all_sentences_exist(differentiate):
  batch, size = 256, 1000
  arrays, tokens_BT = make_inputs(batch=batch, size=size)
  targets = token_targets.xtr_targets(tokens_BT)
  target_BV = dense_targets(targets, size)

  def bytes_beyond_arguments(function, targets):
    run = jax.value_and_grad(function) if differentiate else function
    memory = jax.jit(run).lower(arrays, targets).compile().memory_analysis()
    return memory.temp_size_in_bytes

  logits = 4 * batch * size
  assert bytes_beyond_arguments(dense_sum, target_BV) >= logits
  assert bytes_beyond_arguments(lambda *x: ours(*x, chunk=16)[0], targets) < 0.4 * logits


def test_a_token_outside_the_vocabulary_gives_nan():
  arrays, tokens_BT = make_inputs()
  tokens_BT[3, 0] = V
  _, kl_B = ours(arrays, token_targets.xtr_targets(tokens_BT))
  assert np.isnan(kl_B).tolist() == [False, False, False, True, False]


def test_an_empty_chunk_is_an_error():
  arrays, tokens_BT = make_inputs()
  with pytest.raises(ValueError, match="at least 1"):
    ours(arrays, token_targets.xtr_targets(tokens_BT), chunk=0)
