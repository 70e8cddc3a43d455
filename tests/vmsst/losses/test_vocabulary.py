import functools
import json

import eight_devices
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sharded_models
from flax.linen import partitioning
from jax import test_util  # noqa: F401 (makes jax.test_util an attribute)
from jax.sharding import NamedSharding, PartitionSpec

from vmsst.losses import vocabulary

B, T, D, S, V = 5, 4, 6, 7, 50
MESHES = ((4, 2), (2, 4), (8, 1), (1, 8))
RULES = (("batch", "data"), ("vocab", "model"), ("embed", None))


def make_inputs(batch=B, length=T, width=D, latent=S, size=V, seed=0):
  """Inputs of `weighted_nll`; one sentence is only padding, others end with padding."""
  rng = np.random.default_rng(seed)
  shapes = (batch, length, width), (batch, latent), (width, size), (latent, size)
  arrays = tuple(rng.normal(size=shape).astype(np.float32) for shape in shapes)
  targets_BT = rng.integers(1, size, size=(batch, length)).astype(np.int32)
  targets_BT[1, 2:] = targets_BT[2] = 0
  weights_BT = rng.uniform(0.5, 2.0, size=(batch, length)).astype(np.float32)
  return arrays, targets_BT, weights_BT


def dense_nll(arrays, targets_BT):
  """Loss of each token from one matmul over [sentence; hidden state], padding included."""
  hidden_BTD, sentence_BS, hidden_kernel_DV, sentence_kernel_SV = arrays
  sentence_BTS = jnp.broadcast_to(sentence_BS[:, None], (*targets_BT.shape, sentence_BS.shape[1]))
  both_BTP = jnp.concatenate([sentence_BTS, hidden_BTD], axis=-1)
  logits_BTV = both_BTP @ jnp.concatenate([sentence_kernel_SV, hidden_kernel_DV])
  log_p_BTV = jax.nn.log_softmax(logits_BTV)
  nll_BT = -jnp.take_along_axis(log_p_BTV, targets_BT[..., None], axis=-1)[..., 0]
  return nll_BT, jnp.argmax(logits_BTV, axis=-1) == targets_BT


def dense_sum(arrays, targets_BT, weights_BT):
  nll_BT, _ = dense_nll(arrays, targets_BT)
  return jnp.sum(jnp.where(targets_BT == 0, 0.0, weights_BT * nll_BT))


@functools.partial(jax.jit, static_argnames=("chunk", "dtype"))
def ours(arrays, targets_BT, weights_BT, **options):
  return vocabulary.weighted_nll(*arrays, targets_BT, weights_BT, **options)


def ours_sum(arrays, targets_BT, weights_BT, **options):
  return ours(arrays, targets_BT, weights_BT, **options)[0]


@functools.partial(jax.jit, static_argnames=("chunk", "dtype"))
def ours_with_gradients(*inputs, **options):
  """((sum, tokens), gradients for the arrays)."""
  return jax.value_and_grad(ours, has_aux=True)(*inputs, **options)


def assert_trees_close(found, expected, **tolerances):
  assert jax.tree.structure(found) == jax.tree.structure(expected)
  for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
    np.testing.assert_allclose(np.float64(x), np.float64(y), **tolerances)


# One sentence, two (the last chunk has one), three, all; None is the default.
@pytest.mark.parametrize("chunk", [1, T, 2 * T + 1, 3 * T, 1000, None])
def test_value_and_gradients_equal_the_dense_form(chunk):
  arrays, targets_BT, weights_BT = make_inputs()
  # A function of the sum, whose gradient must be scaled.
  found, found_gradients = jax.jit(
    jax.value_and_grad(
      lambda arrays, weights_BT: ours_sum(arrays, targets_BT, weights_BT, chunk=chunk) ** 2, (0, 1)
    )
  )(arrays, weights_BT)
  expected, expected_gradients = jax.value_and_grad(
    lambda arrays, weights_BT: dense_sum(arrays, targets_BT, weights_BT) ** 2, (0, 1)
  )(arrays, weights_BT)
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  assert_trees_close(found_gradients, expected_gradients, rtol=1e-4, atol=2e-3)


def test_tokens_equal_the_dense_form_with_and_without_differentiation():
  arrays, targets_BT, weights_BT = make_inputs()
  # Easy targets, so that some are correct.
  best_BT = jnp.argmax(jnp.einsum("btd,dv->btv", arrays[0], arrays[2])
                       + (arrays[1] @ arrays[3])[:, None], axis=-1)  # fmt: skip
  targets_BT = np.where((np.arange(T) % 2 == 0) & (targets_BT != 0), best_BT, targets_BT)
  nll_BT, correct_BT = dense_nll(arrays, targets_BT)
  assert 0 < correct_BT.sum() < correct_BT.size
  plain, aux = ours(arrays, targets_BT, weights_BT, chunk=2 * T)
  (value, same), _ = ours_with_gradients(arrays, targets_BT, weights_BT, chunk=2 * T)
  np.testing.assert_allclose(aux.nll_BT, np.where(targets_BT == 0, 0.0, nll_BT), atol=1e-5)
  np.testing.assert_array_equal(aux.correct_BT, correct_BT & (targets_BT != 0))
  assert_trees_close((value, same), (plain, aux), rtol=1e-6)


def test_gradients_against_finite_differences_in_float64():
  with jax.enable_x64(True):
    arrays, targets_BT, weights_BT = make_inputs(batch=3, length=3, width=2, latent=3, size=5)
    arrays = tuple(x.astype(np.float64) for x in arrays)
    jax.test_util.check_grads(
      lambda *x: ours_sum(x[:4], targets_BT, x[4], chunk=5, dtype="float64"),
      (*arrays, weights_BT.astype(np.float64)),
      order=1,
      modes=["rev"],
      atol=1e-7,
      rtol=1e-7,
    )


def test_padding_never_counts():
  arrays, targets_BT, weights_BT = make_inputs()
  padding_BT = targets_BT == 0
  hidden_BTD, *others = arrays
  noisy_BTD = np.where(padding_BT[..., None], 1e3, hidden_BTD)
  expected = ours_with_gradients(arrays, targets_BT, weights_BT)
  found = ours_with_gradients((noisy_BTD, *others), targets_BT, 7 * padding_BT + weights_BT)
  assert_trees_close(found, expected, rtol=1e-5, atol=1e-5)
  gradients = expected[1]
  np.testing.assert_array_equal(gradients[0][padding_BT], 0)
  np.testing.assert_array_equal(gradients[1][2], 0)


def test_token_values_have_no_gradient():
  arrays, targets_BT, weights_BT = make_inputs()
  gradients = jax.grad(lambda x: ours(x, targets_BT, weights_BT)[1].nll_BT.sum())(arrays)
  assert not any(np.any(x) for x in gradients)


def test_a_tie_and_padding_are_wrong():
  hidden_BTD = jnp.eye(3)[None]
  kernel_DV = jnp.array([[0.0, 5, 5], [0, 1, 2], [9, 0, 0]])
  targets_BT = jnp.array([[1, 2, 0]])
  _, aux = vocabulary.weighted_nll(hidden_BTD, None, kernel_DV, None, targets_BT, jnp.ones((1, 3)))
  assert aux.correct_BT.tolist() == [[False, True, False]]


def test_huge_logits_give_the_dense_result():
  arrays, targets_BT, weights_BT = make_inputs()
  arrays = (1e4 * arrays[0], *arrays[1:])
  (value, _), gradients = ours_with_gradients(arrays, targets_BT, weights_BT)
  expected, dense = jax.value_and_grad(dense_sum)(arrays, targets_BT, weights_BT)
  assert float(value) == pytest.approx(float(expected), rel=1e-5)
  for found, exact in zip(gradients, dense, strict=True):
    np.testing.assert_allclose(found, exact, rtol=1e-3, atol=1e-4 * np.abs(exact).max())


def test_bfloat16_matmuls_are_close_to_float32():
  arrays, targets_BT, weights_BT = make_inputs(batch=8, width=32, latent=32, size=200)
  arrays = tuple(0.3 * x for x in arrays)

  run = functools.partial(ours_with_gradients, arrays, targets_BT, weights_BT)
  (value, aux), gradients = run(dtype="bfloat16")
  (expected, _), expected_gradients = run(dtype="float32")
  assert aux.nll_BT.dtype == value.dtype == jnp.float32
  np.testing.assert_allclose(value, expected, rtol=5e-3)
  assert value != expected
  for found, exact in zip(gradients, expected_gradients, strict=True):
    assert found.dtype == jnp.float32
    assert np.linalg.norm(found - exact) < 0.01 * np.linalg.norm(exact)


def test_gradients_have_the_dtypes_of_the_inputs():
  arrays, targets_BT, weights_BT = make_inputs()
  arrays = (jnp.bfloat16(arrays[0]), jnp.bfloat16(arrays[1]), *arrays[2:])
  _, gradients = ours_with_gradients(arrays, targets_BT, weights_BT, dtype="bfloat16")
  assert [x.dtype for x in gradients] == [x.dtype for x in arrays]


def test_the_factorized_form_is_a_projection_of_hidden_states_alone():
  # Footnote 13: [z; h] F, then W; z F_s once per sentence.
  (hidden_BTD, sentence_BS, _, _), targets_BT, weights_BT = make_inputs()
  rng = np.random.default_rng(1)
  kernels = [rng.normal(size=n).astype(np.float32) for n in ((D, D), (S, D), (D, V))]

  def factorized(hidden_factor_DD, sentence_factor_SD, kernel_DV):
    both_BTD = hidden_BTD @ hidden_factor_DD + (sentence_BS @ sentence_factor_SD)[:, None]
    return ours_sum((both_BTD, None, kernel_DV, None), targets_BT, weights_BT, chunk=2 * T)

  def dense(hidden_factor_DD, sentence_factor_SD, kernel_DV):
    arrays = (hidden_BTD, sentence_BS, hidden_factor_DD @ kernel_DV, sentence_factor_SD @ kernel_DV)
    return dense_sum(arrays, targets_BT, weights_BT)

  found = jax.value_and_grad(factorized, (0, 1, 2))(*kernels)
  assert_trees_close(found, jax.value_and_grad(dense, (0, 1, 2))(*kernels), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("differentiate", [False, True])
def test_logits_of_all_tokens_never_exist(differentiate):
  batch, length, size = 16, 16, 1000
  arrays, targets_BT, weights_BT = make_inputs(batch=batch, length=length, size=size)

  def bytes_beyond_arguments(function):
    run = jax.value_and_grad(function) if differentiate else function
    memory = jax.jit(run).lower(arrays, targets_BT, weights_BT).compile().memory_analysis()
    return memory.temp_size_in_bytes

  logits = 4 * batch * length * size
  assert bytes_beyond_arguments(dense_sum) >= logits
  # Logits of one sentence, a few times, and the part that all tokens of a sentence share.
  assert bytes_beyond_arguments(lambda *x: ours_sum(*x, chunk=length)) < 0.4 * logits


def test_half_of_a_projection_is_an_error():
  (hidden_BTD, sentence_BS, kernel_DV, _), targets_BT, weights_BT = make_inputs()
  with pytest.raises(ValueError, match="both or neither"):
    ours((hidden_BTD, sentence_BS, kernel_DV, None), targets_BT, weights_BT)
  with pytest.raises(ValueError, match="at least 1"):
    ours((hidden_BTD, None, kernel_DV, None), targets_BT, weights_BT, chunk=0)


# --------------------------------------------------------------------------------------------
# Eight devices

# All sizes, also divided by the meshes, are different.
SIZES = {"batch": 16, "length": 3, "width": 9, "latent": 11, "size": 1000}
CHUNK = 6  # two sentences per device


def run_on_eight_devices(folder):
  """Saves the results of each mesh; prints a JSON line of its program's shapes and exchanges."""
  assert jax.device_count() == 8
  inputs = make_inputs(**SIZES)
  for shape in MESHES:
    mesh = jax.make_mesh(shape, ("data", "model"), (jax.sharding.AxisType.Auto,) * 2)
    rows, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), ()))
    columns = NamedSharding(mesh, PartitionSpec(None, "model"))
    arrays = (rows, rows, columns, columns)
    with jax.set_mesh(mesh), partitioning.axis_rules(RULES):
      compiled = (
        jax.jit(
          functools.partial(ours_with_gradients, chunk=CHUNK),
          in_shardings=(arrays, rows, rows),
          out_shardings=((whole, vocabulary.TokenAux(rows, rows)), arrays),
        )
        .lower(*inputs)
        .compile()
      )
      results = compiled(*jax.device_put(inputs, (arrays, rows, rows)))
    sharded_models.save(folder / f"{shape[0]}.npz", jax.tree.leaves(results))
    # Loop bodies come before the entry computation.
    body, entry = compiled.as_text().split("\nENTRY ")
    exchanged = {"body": eight_devices.exchanged(body), "entry": eight_devices.exchanged(entry)}
    print("program:", json.dumps({"shapes": eight_devices.dimensions(body + entry), **exchanged}))


@pytest.fixture(scope="module")
def on_eight(tmp_path_factory):
  """Returns the folder of the results on eight devices, and the program of each mesh."""
  folder = tmp_path_factory.mktemp("eight")
  lines = eight_devices.run(__file__, folder).splitlines()
  programs = [json.loads(x.removeprefix("program: ")) for x in lines if x.startswith("program: ")]
  return folder, dict(zip(MESHES, programs, strict=True))


@pytest.mark.parametrize("mesh", MESHES)
def test_eight_devices_have_the_results_of_one(on_eight, mesh):
  folder, _ = on_eight
  expected = jax.tree.leaves(ours_with_gradients(*make_inputs(**SIZES), chunk=CHUNK))
  path = folder / f"{mesh[0]}.npz"
  sharded_models.assert_saved_equal(path, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mesh", MESHES)
def test_devices_exchange_no_columns_of_kernels_and_no_logits(on_eight, mesh):
  program = on_eight[1][mesh]
  data, model = mesh
  columns = SIZES["size"] // model
  if model > 1:  # no device has all columns of anything, not even of one row
    assert all(SIZES["size"] not in shape for shape in program["shapes"])
  assert any(columns in shape for shape in program["shapes"])
  assert all(columns not in shape for _, shape in program["body"])
  # After the loop, devices exchange their sums of the kernels' gradients.
  wide = sorted((name, tuple(shape)) for name, shape in program["entry"] if columns in shape)
  kernels = [("all-reduce", (SIZES[name], columns)) for name in ("latent", "width")]
  assert wide == (sorted(kernels) if data > 1 else [])
