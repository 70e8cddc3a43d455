"""Checkpoints in T5X's layout: reading, mapping, and messages about mismatches."""

import dataclasses

import commands
import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
import toy_runs

from vmsst.errors import InputError
from vmsst.formats import t5x
from vmsst.train import checkpoints, input_pipeline, optimizers, partitioning, utils


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
  """A finished run of the toy model, with checkpoints 0, 3 and 4."""
  folder = tmp_path_factory.mktemp("run")
  toy_runs.run(folder, total_steps=4, period=3)
  return folder


def initializer(model=None, with_optimizer=True):
  model = model or toy_runs.ToyModel()
  return utils.TrainStateInitializer(
    optimizer_def=model.optimizer_def if with_optimizer else None,
    init_fn=model.get_initial_variables,
    input_shapes={"inputs": (8, 8)},
    partitioner=partitioning.PjitPartitioner(num_partitions=1),
  )


def reading(**settings):
  return checkpoints.RestoreCheckpointConfig(path=[], **settings)


def test_checkpoints_have_the_layout_of_t5x(run_folder):
  assert [p.name for p in t5x.all_checkpoints(run_folder)] == [
    "checkpoint_0",
    "checkpoint_3",
    "checkpoint_4",
  ]
  state = toy_runs.read_checkpoint(run_folder / "checkpoint_4")
  assert state["state"]["step"] == 4
  assert set(state["state"]["param_states"]["table"]) == {"m", "v", "v_row", "v_col"}
  assert state["target"]["table"].shape == (16, 4)


def test_inference_reads_only_parameters_and_casts_them(run_folder):
  path = t5x.all_checkpoints(run_folder)[-1]
  restored = initializer(with_optimizer=False).from_checkpoint(path, reading(dtype="bfloat16"))
  assert restored.params["table"].dtype == "bfloat16"
  assert int(restored.step) == 4


def test_arrays_that_an_assignment_map_skips_are_initialized(run_folder):
  model = toy_runs.ToyModel(optimizer_def=optimizers.OptaxWrapper(optax.adam(0.1)))
  path = t5x.all_checkpoints(run_folder)[-1]
  rng = jax.random.PRNGKey(5)
  restored = initializer(model).from_checkpoint(
    path,
    reading(assignment_map=[(r"state/param_states.*", None)], fallback_to_scratch=True),
    fallback_rng=rng,
  )
  state = toy_runs.read_checkpoint(run_folder / "checkpoint_4")
  np.testing.assert_array_equal(restored.params["table"], state["target"]["table"])
  assert int(restored.step) == 4
  scratch = initializer(model).from_scratch(rng)
  jax.tree.map(np.testing.assert_array_equal, restored.param_states, scratch.param_states)


ADAM = {"optimizer_def": optimizers.OptaxWrapper(optax.adam(0.1))}


@pytest.mark.parametrize(
  ("model", "rules", "message"),
  [
    (ADAM, None, r"lacks state/param_states/.*fallback_to_scratch=True"),
    ({}, [("target/tabel", None)], "'target/tabel' matches no array in the model"),
    ({}, [("target/table", "target/tabel")], "lacks target/tabel; the checkpoint has"),
  ],
)
def test_errors_name_arrays_that_do_not_match(run_folder, model, rules, message):
  path = t5x.all_checkpoints(run_folder)[-1]
  with pytest.raises(InputError, match=message):
    initializer(toy_runs.ToyModel(**model)).from_checkpoint(path, reading(assignment_map=rules))


def test_paths_without_a_single_checkpoint_are_refused(tmp_path, run_folder):
  config = checkpoints.RestoreCheckpointConfig
  for location, mode, message in (
    (str(tmp_path), "specific", "no checkpoint_<step> folder in"),
    (str(tmp_path), "latest", "no checkpoint_<step> in"),
    ([], "latest", "no checkpoint_<step> in"),
    (str(run_folder), "all", "has 3 checkpoints"),
  ):
    with pytest.raises(InputError, match=message):
      checkpoints.find_checkpoint(config(path=location, mode=mode))
  all_checkpoints = checkpoints.find_checkpoints(config(path=str(run_folder), mode="all"))
  assert [t5x.step_of(path) for path in all_checkpoints] == [0, 3, 4]
  for mode in ("latest", "specific"):
    newest = checkpoints.find_checkpoint(config(path=str(run_folder), mode=mode))
    assert t5x.step_of(newest) == 4


def test_parameters_can_be_saved_in_bfloat16(tmp_path):
  toy_runs.run(tmp_path, total_steps=2, checkpoint_cfg=toy_runs.saving(2, dtype="bfloat16"))
  state = toy_runs.read_checkpoint(tmp_path / "checkpoint_2")
  assert state["target"]["table"].dtype == "bfloat16"
  assert state["state"]["param_states"]["table"]["v"].dtype == np.float32


@dataclasses.dataclass
class State:
  """A train state with one large array."""

  array: jax.Array
  step: int = 0

  def state_dict(self):
    return {"target": {"table": self.array}, "state": {"step": np.int32(self.step)}}


def test_a_step_after_a_checkpoint_overwrites_the_state(tmp_path):
  manager = checkpoints.CheckpointManager(str(tmp_path), checkpoints.SaveCheckpointConfig())
  state = State(jax.random.normal(jax.random.key(0), (1000, 1000)))
  step = jax.jit(lambda x: x + 1, donate_argnums=0).lower(state.array).compile()
  expected, address = np.array(state.array), state.array.unsafe_buffer_pointer()
  manager.save(state, input_pipeline.DataState(0, None))
  manager.release()
  after = step(state.array)
  assert after.unsafe_buffer_pointer() == address
  manager.close()
  saved = toy_runs.read_checkpoint(tmp_path / "checkpoint_0")
  np.testing.assert_array_equal(saved["target"]["table"], expected)


# --------------------------------------------------------------------------------------------
# Scanned and separate layers


def shapes_and_shardings(arrays, mesh, is_scanned):
  """Returns shapes and shardings of a state with two layers of `arrays`, [4, 8] each."""
  spec, shape = jax.sharding.PartitionSpec("data", "model"), (4, 8)
  if is_scanned:
    spec, shape = jax.sharding.PartitionSpec(None, *spec), (2, *shape)
  leaf = jax.ShapeDtypeStruct(shape, np.float32)
  names = ["layers"] if is_scanned else ["layers_0", "layers_1"]
  shapes, shardings = (
    {"target": {key: {name: {"w": value} for name in names} for key in arrays}}
    for value in (leaf, jax.sharding.NamedSharding(mesh, spec))
  )
  return shapes, shardings


def check_layouts(folder, mesh):
  """Restores checkpoints of both layouts into states of both layouts on a mesh."""
  rng = np.random.default_rng(0)
  arrays = {"encoder": rng.normal(size=(2, 4, 8)).astype(np.float32)}
  saved = {
    True: {name: {"layers": {"w": array}} for name, array in arrays.items()},
    False: {
      name: {f"layers_{i}": {"w": layer} for i, layer in enumerate(array)}
      for name, array in arrays.items()
    },
  }
  rules = [(r"target/(?:copy|encoder)/(.*)", r"target/encoder/\1")]
  for was_scanned, target in saved.items():
    path = folder / f"checkpoint_{int(was_scanned)}"
    with ocp.PyTreeCheckpointer() as checkpointer:
      checkpointer.save(path / "state", {"target": target, "state": {"step": 9}})
    for is_scanned in (True, False):
      shapes, shardings = shapes_and_shardings(("encoder", "copy"), mesh, is_scanned)
      restored = checkpoints.restore(path, shapes, shardings, assignment_map=rules)
      for name in ("encoder", "copy"):
        layers = restored["target"][name]
        values = [x["w"] for x in layers.values()]
        expected_shardings = jax.tree.leaves(shardings["target"][name])
        assert all(x.sharding == y for x, y in zip(values, expected_shardings, strict=True))
        stacked = values[0] if is_scanned else np.stack(values)
        np.testing.assert_array_equal(stacked, arrays["encoder"])


def test_layers_are_restored_from_either_layout(tmp_path):
  mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "model"))
  check_layouts(tmp_path, mesh)


def run_on_eight_devices(folder):
  mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
  check_layouts(folder, mesh)
  print("restored on", mesh.size)


@pytest.mark.slow
def test_layers_are_restored_from_either_layout_on_eight_devices(tmp_path):
  assert "restored on 8" in commands.on_eight_devices(__file__, tmp_path)


def test_optimizer_state_of_the_other_layout_is_not_converted(tmp_path):
  tree = {"encoder": {"layers": {"w": {"v_row": np.zeros((2, 4), np.float32)}}}}
  saved = {"target": {"w": np.zeros(3, np.float32)}, "state": {"param_states": tree}}
  with ocp.PyTreeCheckpointer() as checkpointer:
    checkpointer.save(tmp_path / "checkpoint_1" / "state", saved)
  param_states = {"encoder": {"layers_0": {"w": {"v_row": jax.ShapeDtypeStruct((4,), np.float32)}}}}
  with pytest.raises(InputError, match=r"lacks state/.*/layers_0/w/v_row.*set scan_lay"):
    checkpoints.restore(
      t5x.all_checkpoints(tmp_path)[0], {"state": {"param_states": param_states}}, {}
    )
