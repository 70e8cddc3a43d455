"""Files of tensors: safetensors read where they are, state dicts of torch without running code."""

import dataclasses
import json
import pathlib
import sys

import jax
import numpy as np
import pytest
import safetensors.numpy
import tiny_encoders
from etils import epath

from vmsst import errors
from vmsst.checkpoints import saved_encoders, t5x
from vmsst.formats import hugging_face, layer_stacks, tensors
from vmsst.networks import sentence_encoder, transformer
from vmsst.networks import vmsst as vmsst_networks

# In an order and of sizes that would misalign some: 12, 4 and 4,000,000 bytes.
ARRAYS = {
  "a": np.arange(3, dtype=np.float32),
  "b": np.array(2.5, np.float32),
  "empty": np.zeros((0, 4), np.float32),
  "table": np.random.default_rng(0).normal(size=(5000, 200)).astype(np.float32),
  "transposed": np.arange(64.0, dtype=np.float32).reshape(4, 16).T,
}


def assert_read(found, expected):
  assert found.keys() == expected.keys()
  for name, array in expected.items():
    assert found[name].shape == array.shape
    assert found[name].read().dtype == np.float32
    np.testing.assert_array_equal(found[name].read(), array)


def test_the_library_reads_the_file_and_jax_uses_large_tensors_where_they_are(tmp_path):
  path = tmp_path / "model.safetensors"
  tensors.write_file(path, ARRAYS, {"format": "pt"})
  for name, array in safetensors.numpy.load_file(path).items():
    np.testing.assert_array_equal(array, ARRAYS[name])
  with safetensors.safe_open(path, "np") as file:
    assert file.metadata() == {"format": "pt"}
  found = tensors.open_file(path)
  assert_read(found, ARRAYS)
  table_VD = found["table"].read()
  assert not table_VD.flags.writeable
  on_device = jax.device_put(table_VD, may_alias=True)
  assert on_device.unsafe_buffer_pointer() == table_VD.ctypes.data
  # The original stays readable if its name is given to another file.
  path.unlink()
  np.testing.assert_array_equal(on_device, ARRAYS["table"])


@pytest.mark.parametrize("name", ["table", "half"])
def test_changes_of_a_tensor_stay_in_memory(tmp_path, name):
  path = tmp_path / "model.safetensors"
  stored = {"table": ARRAYS["table"], "half": np.arange(5, dtype=np.float16)}
  safetensors.numpy.save_file(stored, path)
  found = tensors.open_file(path)
  changed = found[name].changeable()
  changed[[0, 1]] = changed[[1, 0]]
  assert_read(found, stored)  # it also returns the file's memory
  expected = stored[name].astype(np.float32)
  expected[[0, 1]] = expected[[1, 0]]
  np.testing.assert_array_equal(changed, expected)
  assert_read(tensors.open_file(path), stored)


@pytest.mark.parametrize("padding", range(8))
def test_files_of_others_are_read_wherever_their_tensors_start(tmp_path, padding):
  path = tmp_path / "model.safetensors"
  arrays = {"table": ARRAYS["table"], "half": np.arange(5, dtype=np.float16)}
  safetensors.numpy.save_file(arrays, path, {"x": "y" * (1 + 8 * padding)})
  found = tensors.open_file(path)
  assert_read(found, arrays)
  np.testing.assert_array_equal(jax.device_put(found["table"].read()), arrays["table"])


@pytest.mark.parametrize(
  ("array", "message"),
  [
    (np.append(np.zeros(1 << 22, np.float32), np.nan), "x in .* contains infinite or NaN values"),
    (np.append(np.float32(np.inf), np.zeros(1 << 22, np.float32)), "infinite or NaN values"),
    (np.ones((40, 12), np.int8), "x in .* is of type I8, not float32"),
  ],
)
def test_values_that_are_no_finite_numbers_are_named(tmp_path, array, message):
  path = tmp_path / "x.safetensors"
  array = array if array.dtype == np.int8 else array.astype(np.float32)
  safetensors.numpy.save_file({"x": array}, path)
  with pytest.raises(errors.InputError, match=message):
    tensors.open_file(path)["x"].read()


@pytest.mark.parametrize("keep", [0, 5, 30, -1])
def test_a_truncated_file_is_named(tmp_path, keep):
  path = tmp_path / "x.safetensors"
  tensors.write_file(path, {"a": ARRAYS["a"]})
  path.write_bytes(path.read_bytes()[:keep])
  with pytest.raises(errors.InputError, match=rf"{path} is not a valid safetensors file"):
    tensors.open_file(path)


def test_a_state_dict_is_read_alone_or_with_the_rest_of_training(tmp_path):
  torch = pytest.importorskip("torch", reason="needs torch to write its files")
  state = {name: torch.tensor(array) for name, array in ARRAYS.items()}
  state["transposed"] = state["transposed"].T.contiguous().T
  state["half"] = torch.tensor([0.5, -2.0]).bfloat16()
  expected = {**ARRAYS, "half": np.array([0.5, -2.0], np.float32)}
  for name, record in {"a": state, "b": {"state_dict": state, "step": 3, "loss": 1.5}}.items():
    torch.save(record, tmp_path / name)
    assert_read(tensors.open_file(tmp_path / name), expected)
  torch.save(state, tmp_path / "old", _use_new_zipfile_serialization=False)
  assert_read(tensors.open_file(tmp_path / "old"), expected)


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda torch: torch.nn.Linear(2, 2), "holds more than tensors and plain values"),
    (lambda torch: {1: torch.ones(2)}, "holds no state_dict"),
    (lambda torch: {"a": 3}, "'a' is not a tensor"),
    (lambda torch: None, "is not a file of torch"),
  ],
)
def test_other_files_are_named_without_advice_of_torch(tmp_path, make, message):
  torch = pytest.importorskip("torch", reason="needs torch to write its files")
  path, value = tmp_path / "x.pt", make(torch)
  path.write_text("# Read me\n")
  if value is not None:
    torch.save(value, path)
  with pytest.raises(errors.InputError, match=rf"{path}.*{message}") as caught:
    tensors.open_file(path)
  for advice in ("weights_only", "safe_globals", "Re-running", "\n"):
    assert advice not in str(caught.value)


def test_torch_sees_no_tar_archive_which_it_would_unpack_on_disk(tmp_path, monkeypatch):
  torch = pytest.importorskip("torch", reason="needs torch")
  monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("torch has read it"))
  (tmp_path / "x.pt").write_bytes(b"pickle" + bytes(1018))  # begins with a member's name
  with pytest.raises(errors.InputError, match="is not a file of torch"):
    tensors.open_file(tmp_path / "x.pt")


def test_a_missing_torch_is_named(tmp_path, monkeypatch):
  (tmp_path / "x.pt").touch()
  monkeypatch.setitem(sys.modules, "torch", None)
  with pytest.raises(errors.InputError, match=r"x\.pt.* needs the package torch"):
    tensors.open_file(tmp_path / "x.pt")


def save_shards(folder, **changes):
  """Saves a model in two files; `changes` edits its index by tensor."""
  folder.mkdir()
  names = sorted(ARRAYS)
  shard_by_name = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(names)}
  for shard in set(shard_by_name.values()):
    tensors.write_file(folder / shard, {n: ARRAYS[n] for n in names if shard_by_name[n] == shard})
  index = {"metadata": {}, "weight_map": shard_by_name | changes}
  (folder / "model.safetensors.index.json").write_text(json.dumps(index))
  return folder


def test_a_model_is_read_from_shards_and_from_files_of_torch(tmp_path):
  folder = save_shards(tmp_path / "m")
  assert_read(hugging_face.open_tensors(folder), ARRAYS)
  torch = pytest.importorskip("torch", reason="needs torch to write its files")
  torch.save({"a": torch.ones(2)}, folder / "pytorch_model.bin")
  assert_read(hugging_face.open_tensors(folder), ARRAYS)  # safetensors are preferred
  (folder / "model.safetensors.index.json").unlink()
  assert_read(hugging_face.open_tensors(folder), {"a": np.ones(2, np.float32)})
  (folder / "pytorch_model.bin").rename(folder / "part.bin")
  with pytest.raises(errors.InputError, match=rf"{folder} has no weights"):
    hugging_face.open_tensors(folder)
  (folder / "pytorch_model.bin.index.json").write_text('{"weight_map": {"a": "part.bin"}}')
  assert_read(hugging_face.open_tensors(folder), {"a": np.ones(2, np.float32)})


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"a": "../model-0.safetensors"}, "'../model-0.safetensors', not the name"),
    ({"a": "pytorch_model.bin"}, "'pytorch_model.bin'"),
    ({"a": 3}, "the file of a is 3"),
    ({"a": "model-1.safetensors"}, "puts a into model-1.safetensors, not model-0.safetensors"),
    ({"ghost": "model-0.safetensors"}, "puts ghost into model-0.safetensors, which lacks it"),
  ],
)
def test_an_index_and_its_files_have_to_agree(tmp_path, changes, message):
  tensors.write_file(tmp_path / "model-0.safetensors", ARRAYS)
  folder = save_shards(tmp_path / "m", **changes)
  with pytest.raises(errors.InputError, match=message):
    hugging_face.open_tensors(folder)
  index = pathlib.Path(folder, "model.safetensors.index.json")
  index.write_text('{"weight_map": {}}')
  with pytest.raises(errors.InputError, match=rf"{index} has no object 'weight_map'"):
    hugging_face.open_tensors(folder)


T5 = tiny_encoders.t5_config(num_encoder_layers=3)
BERT = transformer.TransformerConfig(
  vocab_size=259, emb_dim=8, num_heads=2, mlp_dim=8, num_layers=3, max_positions=30
)
NETWORKS = {
  "t5": sentence_encoder.SentenceEncoder(T5, latent_dim=6),
  "bert": sentence_encoder.SentenceEncoder(BERT, latent_dim=6),
  # Stacks in lists, of different depths.
  "vmsst": vmsst_networks.VmsstNetwork(
    T5,
    latent_dim=6,
    num_decoder_layers=2,
    num_languages=2,
    language_encoder_groups=(0, 1),
  ),
}


def scanned(network):
  return network.clone(config=dataclasses.replace(network.config, scan_layers=True))


def stacked(params):
  found = {}
  for name, array in params.items():
    parts = name.split("/")
    places = [i for i, part in enumerate(parts) if part.startswith("layers_")]
    if places:
      parts[places[0]] = "layers"
    found.setdefault("/".join(parts), []).append((name, array))
  return {
    name: np.stack([array for _, array in sorted(rows)]) if "/layers/" in name else rows[0][1]
    for name, rows in found.items()
  }


def save(folder, params, kind):
  folder.mkdir()
  if kind == "export":
    tensors.write_file(folder / "model.safetensors", params)
    return epath.Path(folder / "model.safetensors")
  t5x.write_params(epath.Path(folder / "checkpoint_0"), params)
  return epath.Path(folder / "checkpoint_0")


@pytest.mark.parametrize(
  ("name", "kind"),
  [
    ("t5", "export"),
    pytest.param("bert", "export", marks=pytest.mark.slow),
    ("vmsst", "checkpoint"),
  ],
)
def test_either_layout_is_restored_into_either_network(tmp_path, name, kind):
  network = NETWORKS[name]
  separate = tiny_encoders.flat(tiny_encoders.random_params(network))
  layouts = {network: separate, scanned(network): stacked(separate)}
  assert layouts[network].keys() != layouts[scanned(network)].keys()
  for i, params in enumerate(layouts.values()):
    saved = save(tmp_path / str(i), params, kind)
    for wanted, expected in layouts.items():
      found = tiny_encoders.flat(saved_encoders.restore_params(saved, wanted))
      assert found.keys() == expected.keys()
      for key, array in expected.items():
        np.testing.assert_array_equal(found[key], array, err_msg=key)


def test_missing_and_unequal_layers_are_errors(tmp_path):
  network = NETWORKS["t5"]
  params = tiny_encoders.flat(tiny_encoders.random_params(network))
  last = "encoder/layers_2/mlp/wo/kernel"
  fewer = {name: array for name, array in params.items() if name != last}
  saved = save(tmp_path / "fewer", fewer, "export")
  with pytest.raises(errors.InputError, match="no parameter encoder/layers/mlp/wo/kernel"):
    saved_encoders.restore_params(saved, scanned(network))
  short = {
    name: array[:2] if "/layers/" in name else array for name, array in stacked(params).items()
  }
  saved = save(tmp_path / "short", short, "export")
  with pytest.raises(errors.InputError, match="no parameter encoder/layers_2/"):
    saved_encoders.restore_params(saved, network)
  saved = save(tmp_path / "narrow", stacked(params | {last: params[last]}), "export")
  narrow = network.clone(config=dataclasses.replace(network.config, mlp_dim=7))
  with pytest.raises(errors.InputError, match=r"has shape \(8, 8\), but .* requires \(8, 7\)"):
    saved_encoders.restore_params(saved, narrow)


def test_a_claimed_number_of_layers_costs_nothing():
  stored = {"encoder/layers/scale": jax.ShapeDtypeStruct((10**12, 0), np.float32)}
  for name, shape in (
    ("encoder/layers_" + "9" * 5000 + "/scale", (0,)),
    ("decoder/layers/scale", (10**12, 0)),
    ("layers/scale", (1,)),
  ):
    assert layer_stacks.find(name, shape, stored) is None
  with pytest.raises(errors.InputError, match=r"num_encoder_layers is 1000000; .* from 1 to 1000"):
    dataclasses.replace(NETWORKS["t5"].config, num_encoder_layers=10**6)
