"""Eight devices compute the same losses as one."""

import functools
import json
import pathlib
import re

import jax
import numpy as np
import pytest
from flax.linen import partitioning
from jax.sharding import NamedSharding, PartitionSpec

from ems_jax.losses import contrastive, margin, token_targets, xtr
from vmsst.losses import contrastive as foundation

MESHES = ((4, 2), (8, 1), (1, 8))
RULES = (("batch", "data"), ("vocab", "model"), ("embed", None))
# All sizes, also divided by the meshes, are different.
B, T, E, V, S = 48, 7, 9, 1000, 11
CHUNK = 5  # several per device; with all sentences on each, the last one has fewer
COLLECTIVE = re.compile(
  r" = (.*?) (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
)


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


def dimensions(text):
  """Shapes in the text of a compiled program."""
  return [tuple(map(int, shape.split(","))) for shape in re.findall(r"\[([\d,]+)\]", text)]


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
    np.savez(folder / f"{shape[0]}.npz", *map(np.asarray, jax.tree.leaves(results)))
    text = compiled.as_text()
    exchanged = [
      (name, size) for what, name in COLLECTIVE.findall(text) for size in dimensions(what)
    ]
    print("program:", json.dumps({"shapes": dimensions(text), "exchanged": exchanged}))


@pytest.fixture(scope="module")
def eight_devices(tmp_path_factory):
  """Results of each mesh, and its XTR program's shapes and exchanges."""
  import commands  # not on the path of the script itself

  folder = tmp_path_factory.mktemp("eight")
  done = commands.script(
    "import pathlib, sys, test_sharded_losses;"
    "test_sharded_losses.run_on_eight_devices(pathlib.Path(sys.argv[1]))",
    folder,
    cwd=pathlib.Path(__file__).parent,
    devices=8,
  )
  lines = [line for line in done.stdout.splitlines() if line.startswith("program: ")]
  programs = [json.loads(line.removeprefix("program: ")) for line in lines]
  results = []
  for shape in MESHES:
    with np.load(folder / f"{shape[0]}.npz") as file:
      results.append([file[name] for name in file.files])
  return dict(zip(MESHES, zip(results, programs, strict=True), strict=True))


@pytest.fixture(scope="module")
def one_device():
  """The same results without a mesh."""
  arrays, tokens_BT, pair = make_inputs()
  uneven = make_inputs(batch=5, size=35)[:2]
  run = jax.jit(xtr_loss)
  return jax.tree.leaves([run(arrays, tokens_BT), jax.jit(pair_loss)(*pair), run(*uneven)])


@pytest.mark.parametrize("mesh", MESHES)
def test_eight_devices_have_the_results_of_one(eight_devices, one_device, mesh):
  results, _ = eight_devices[mesh]
  for found, whole in zip(results, one_device, strict=True):
    np.testing.assert_allclose(found, whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mesh", MESHES)
def test_devices_exchange_no_columns_of_the_kernel_and_no_logits(eight_devices, mesh):
  _, program = eight_devices[mesh]
  data, model = mesh
  columns = V // model
  if model > 1:  # no device has all columns of anything, not even of one row
    assert all(V not in shape for shape in program["shapes"])
  assert any(columns in shape for shape in program["shapes"])
  # Devices exchange their sums of the kernel's gradient.
  wide = [(name, tuple(shape)) for name, shape in program["exchanged"] if columns in shape]
  assert wide == ([("all-reduce", (E, columns))] if data > 1 else [])
