"""Eight devices compute the same losses as one device, and exchange neither logits nor kernels."""

import json

import commands
import jax
import numpy as np
import pytest
import tiny_models
from flax.linen import partitioning
from jax.sharding import NamedSharding, PartitionSpec

from ems_jax.losses import xtr
from vmsst.losses import vocabulary

MESHES = ((4, 2), (8, 1), (1, 8))
RULES = (("batch", "data"), ("vocab", "model"), ("embed", None))
# All sizes are different, also after division by the meshes.
B, T, E, V, S = 48, 7, 9, 1000, 11


def make_inputs():
  """Returns the inputs of each loss. XTR has hidden states, kernel, weights and tokens."""
  rng = np.random.default_rng(0)

  def normal(*shape):
    return rng.normal(size=shape).astype(np.float32)

  tokens_BT = rng.integers(1, V, size=(B, T)).astype(np.int32)
  tokens_BT[1, 2:] = tokens_BT[2] = 0
  of_sentences = (normal(B, E), normal(E, V), normal(B))
  of_tokens = (normal(B, T, E), normal(B, S), normal(E, V), normal(S, V))
  return {
    "xtr": (of_sentences, tokens_BT),
    "vocabulary": (of_tokens, tokens_BT, normal(B, T)),
  }


def xtr_loss(arrays, tokens_BT):
  hidden_BE, kernel_EV, weights_B = arrays
  targets = xtr.xtr_targets(tokens_BT)
  total, kl_B = xtr.weighted_kl(hidden_BE, kernel_EV, targets, weights_B, chunk=5)
  return total + kl_B.sum(), kl_B  # the second has no gradient


def vocabulary_loss(arrays, tokens_BT, weights_BT):
  return vocabulary.weighted_nll(*arrays, tokens_BT, weights_BT, chunk=2 * T)


LOSSES = {"xtr": xtr_loss, "vocabulary": vocabulary_loss}
# Layouts of the inputs: rows are sharded by batch, columns of kernels by vocabulary.
COLUMNS = {"xtr": (1,), "vocabulary": (2, 3)}


def value_and_gradients(name):
  return jax.value_and_grad(LOSSES[name], has_aux=True)


def run_on_eight_devices(folder):
  """Saves the results of each mesh; prints the shapes and exchanges of each program as JSON."""
  assert jax.device_count() == 8
  for shape in MESHES:
    mesh = jax.make_mesh(shape, ("data", "model"), (jax.sharding.AxisType.Auto,) * 2)
    rows, columns = (
      NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), (None, "model"))
    )
    results, programs = [], {}
    with jax.set_mesh(mesh), partitioning.axis_rules(RULES):
      for name, (arrays, *others) in make_inputs().items():
        layouts = tuple(columns if i in COLUMNS[name] else rows for i in range(len(arrays)))
        layouts = (layouts, *[rows] * len(others))
        run = jax.jit(
          value_and_gradients(name), in_shardings=layouts, out_shardings=(None, layouts[0])
        )
        compiled = run.lower(arrays, *others).compile()
        results.append(compiled(*jax.device_put((arrays, *others), layouts)))
        # Loop bodies come before the entry computation.
        body, entry = compiled.as_text().split("\nENTRY ")
        programs[name] = {"shapes": commands.dimensions(body + entry)}
        programs[name] |= {"body": commands.exchanged(body)}
        programs[name] |= {"all": commands.exchanged(body + entry)}
    tiny_models.save(folder / f"{shape[0]}.npz", jax.tree.leaves(results))
    print("programs:", json.dumps(programs))


@pytest.fixture(scope="module")
def on_eight(tmp_path_factory):
  """Returns the folder of the results on eight devices, and the programs by mesh."""
  folder = tmp_path_factory.mktemp("eight")
  lines = commands.on_eight_devices(__file__, folder).splitlines()
  found = [json.loads(x.removeprefix("programs: ")) for x in lines if x.startswith("programs: ")]
  return folder, dict(zip(MESHES, found, strict=True))


@pytest.fixture(scope="module")
def one_device():
  """Returns the same results without a mesh."""
  results = [jax.jit(value_and_gradients(name))(*x) for name, x in make_inputs().items()]
  return jax.tree.leaves(results)


@pytest.mark.parametrize("mesh", MESHES)
def test_eight_devices_have_the_results_of_one(on_eight, one_device, mesh):
  path = on_eight[0] / f"{mesh[0]}.npz"
  tiny_models.assert_saved_equal(path, one_device, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize(("name", "widths"), [("xtr", (E,)), ("vocabulary", (S, E))])
def test_devices_exchange_no_columns_of_kernels_and_no_logits(on_eight, mesh, name, widths):
  program, (data, model) = on_eight[1][mesh][name], mesh
  columns = V // model
  if model > 1:  # no device has all columns of an array, not even for one row
    assert all(V not in shape for shape in program["shapes"])
  assert any(columns in shape for shape in program["shapes"])
  assert all(columns not in shape for _, shape in program["body"])
  # After the loop, devices exchange their sums of the kernels' gradients.
  wide = sorted((kind, tuple(shape)) for kind, shape in program["all"] if columns in shape)
  kernels = sorted(("all-reduce", (width, columns)) for width in widths)
  assert wide == (kernels if data > 1 else [])
