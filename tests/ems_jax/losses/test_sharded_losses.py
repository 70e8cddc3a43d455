"""Eight devices compute the same losses as one."""

import functools
import json

import eight_devices
import jax
import numpy as np
import pytest
import sharded_models
from flax.linen import partitioning
from jax.sharding import NamedSharding, PartitionSpec

from ems_jax.losses import contrastive, margin, token_targets, xtr
from vmsst.losses import contrastive as foundation

MESHES = ((4, 2), (8, 1), (1, 8))
RULES = (("batch", "data"), ("vocab", "model"), ("embed", None))
# All sizes, also divided by the meshes, are different.
B, T, E, V, S = 48, 7, 9, 1000, 11
CHUNK = 5  # several per device; with all sentences on each, the last one has fewer


def make_inputs(batch=B, size=V):
  """((hidden states, kernel, weights), tokens, (sources, targets))."""
  rng = np.random.default_rng(0)
  shapes = (batch, E), (E, size), (batch,), (batch, S), (batch, S)
  hidden_BE, kernel_EV, weights_B, *pair = (
    rng.normal(size=shape).astype(np.float32) for shape in shapes
  )
  tokens_BT = rng.integers(0, size, size=(batch, T)).astype(np.int32)
  return (hidden_BE, kernel_EV, weights_B), tokens_BT, tuple(pair)


@jax.value_and_grad
def xtr_loss(arrays, tokens_BT):
  hidden_BE, kernel_EV, weights_B = arrays
  targets = token_targets.xtr_targets(tokens_BT)
  total, kl_B = xtr.weighted_kl(hidden_BE, kernel_EV, targets, weights_B, chunk=CHUNK)
  return total + kl_B.sum()  # the second has no gradient


@functools.partial(jax.value_and_grad, argnums=(0, 1))
def pair_loss(source_BS, target_BS):
  cosine_BB = foundation.similarity(source_BS, target_BS, cosine=True)
  loss_B = contrastive.in_batch_loss(10.0 * cosine_BB)
  return (loss_B + margin.additive_margin_softmax(cosine_BB, margin=0.3, scale=10.0)).mean()


def run_on_eight_devices(folder):
  """Saves the results of each mesh; prints a JSON line of its XTR program's shapes."""
  assert jax.device_count() == 8
  arrays, tokens_BT, pair = make_inputs()
  for shape in MESHES:
    mesh = jax.make_mesh(shape, ("data", "model"), (jax.sharding.AxisType.Auto,) * 2)
    rows, columns = (
      NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), (None, "model"))
    )
    layouts = (rows, columns, rows)
    with jax.set_mesh(mesh), partitioning.axis_rules(RULES):
      program = jax.jit(
        xtr_loss, in_shardings=(layouts, rows), out_shardings=(None, layouts)
      ).lower(arrays, tokens_BT)
      compiled = program.compile()
      results = [compiled(*jax.device_put((arrays, tokens_BT), (layouts, rows)))]
      pair_rows = jax.device_put(pair, rows)
      results.append(jax.jit(pair_loss, in_shardings=(rows, rows))(*pair_rows))
      # Sizes that the mesh does not divide stay whole.
      results.append(jax.jit(xtr_loss)(*make_inputs(batch=5, size=35)[:2]))
    sharded_models.save(folder / f"{shape[0]}.npz", jax.tree.leaves(results))
    text = compiled.as_text()
    found = {"shapes": eight_devices.dimensions(text), "exchanged": eight_devices.exchanged(text)}
    print("program:", json.dumps(found))


@pytest.fixture(scope="module")
def on_eight(tmp_path_factory):
  """Returns the folder of the results on eight devices, and the XTR program of each mesh."""
  folder = tmp_path_factory.mktemp("eight")
  lines = eight_devices.run(__file__, folder).splitlines()
  programs = [json.loads(x.removeprefix("program: ")) for x in lines if x.startswith("program: ")]
  return folder, dict(zip(MESHES, programs, strict=True))


@pytest.fixture(scope="module")
def one_device():
  """The same results without a mesh."""
  arrays, tokens_BT, pair = make_inputs()
  uneven = make_inputs(batch=5, size=35)[:2]
  run = jax.jit(xtr_loss)
  return jax.tree.leaves([run(arrays, tokens_BT), jax.jit(pair_loss)(*pair), run(*uneven)])


@pytest.mark.parametrize("mesh", MESHES)
def test_eight_devices_have_the_results_of_one(on_eight, one_device, mesh):
  folder, _ = on_eight
  path = folder / f"{mesh[0]}.npz"
  sharded_models.assert_saved_equal(path, one_device, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mesh", MESHES)
def test_devices_exchange_no_columns_of_the_kernel_and_no_logits(on_eight, mesh):
  program = on_eight[1][mesh]
  data, model = mesh
  columns = V // model
  if model > 1:  # no device has all columns of anything, not even of one row
    assert all(V not in shape for shape in program["shapes"])
  assert any(columns in shape for shape in program["shapes"])
  # Devices exchange their sums of the kernel's gradient.
  wide = [(name, tuple(shape)) for name, shape in program["exchanged"] if columns in shape]
  assert wide == ([("all-reduce", (E, columns))] if data > 1 else [])
