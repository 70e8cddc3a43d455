import jax
import jax.numpy as jnp
import numpy as np

from vmsst.networks import pooling


def test_mean_is_over_real_tokens_only():
  rng = np.random.default_rng(0)
  hidden_BTD = rng.normal(size=(3, 5, 4)).astype(np.float32)
  mask_BT = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 0, 1, 0, 0]], bool)
  expected_BD = np.stack([hidden_BTD[i, mask_BT[i]].mean(axis=0) for i in range(3)])
  np.testing.assert_allclose(pooling.masked_mean(hidden_BTD, mask_BT), expected_BD, rtol=1e-6)


def test_padding_never_reaches_value_or_gradient():
  hidden_BTD = jnp.arange(12.0).reshape(1, 4, 3)
  noisy_BTD = hidden_BTD.at[0, 2:].set(jnp.nan)
  mask_BT = jnp.array([[True, True, False, False]])
  np.testing.assert_array_equal(
    pooling.masked_mean(noisy_BTD, mask_BT), pooling.masked_mean(hidden_BTD, mask_BT)
  )
  grad_BTD = jax.grad(lambda x: pooling.masked_mean(x, mask_BT).sum())(noisy_BTD)
  np.testing.assert_array_equal(grad_BTD[0, :, 0], [0.5, 0.5, 0, 0])


def test_empty_row_gives_zeros_with_finite_gradient():
  hidden_BTD = jnp.ones((1, 3, 2))
  mask_BT = jnp.zeros((1, 3), bool)
  value_BD, pullback = jax.vjp(lambda x: pooling.masked_mean(x, mask_BT), hidden_BTD)
  np.testing.assert_array_equal(value_BD, 0)
  np.testing.assert_array_equal(pullback(jnp.ones((1, 2)))[0], 0)


def test_bfloat16_is_summed_in_float32():
  hidden_BTD = jnp.ones((1, 1000, 1), jnp.bfloat16)  # a bfloat16 sum would stop at 256
  mean_BD = pooling.masked_mean(hidden_BTD, jnp.ones((1, 1000), bool))
  assert mean_BD.dtype == jnp.float32
  assert mean_BD[0, 0] == 1


def test_the_maximum_and_its_gradient_ignore_padding():
  hidden_BTD = np.random.default_rng(0).integers(-4, 5, size=(3, 6, 40)).astype(np.float32)
  mask_BT = np.arange(6) < np.array([[6], [2], [0]])
  for padding in (100.0, np.nan):
    noisy_BTD = np.where(mask_BT[..., None], hidden_BTD, padding)
    found_BD, vjp = jax.vjp(lambda x: pooling.masked_max(x, mask_BT), noisy_BTD)
    (grad_BTD,) = vjp(np.full((3, 40), 2.0, np.float32))
    for b, count in enumerate((6, 2)):
      np.testing.assert_array_equal(found_BD[b], hidden_BTD[b, :count].max(axis=0))
      first_D = hidden_BTD[b, :count].argmax(axis=0)  # of equal values
      np.testing.assert_array_equal(grad_BTD[b], 2.0 * (np.arange(6)[:, None] == first_D))
    assert not found_BD[2].any()
    assert not grad_BTD[2].any()
