"""Tests files of tensors, and checkpoints with scanned or separate layers."""

import dataclasses
import re

import jax
import numpy as np
import pytest
import safetensors.numpy
import tiny_encoders
from etils import epath

from vmsst import errors
from vmsst.encoder import loading
from vmsst.formats import t5x, tensors
from vmsst.networks import sentence_encoder
from vmsst.networks import vmsst as vmsst_networks

# 12, 4 and 4,000,000 bytes: written in this order, some arrays would be misaligned.
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
  tensors.open_file(path)["table"].read()[0] = 1  # This must not change the file.
  found = tensors.open_file(path)
  assert_read(found, ARRAYS)
  table_VD = found["table"].read()
  on_device = jax.device_put(table_VD, may_alias=True)
  assert on_device.unsafe_buffer_pointer() == table_VD.ctypes.data
  # The array stays readable after its file is deleted or replaced.
  path.unlink()
  np.testing.assert_array_equal(on_device, ARRAYS["table"])


def test_files_of_others_are_read_wherever_their_tensors_start(tmp_path):
  path = tmp_path / "model.safetensors"
  arrays = {"table": ARRAYS["table"], "half": np.arange(5, dtype=np.float16)}
  safetensors.numpy.save_file(arrays, path, {"x": "y" * 25})
  found = tensors.open_file(path)
  assert_read(found, arrays)
  np.testing.assert_array_equal(jax.device_put(found["table"].read()), arrays["table"])


@pytest.mark.parametrize(
  ("array", "message"),
  [
    (np.full(1 << 22, np.nan, np.float32), "x in .* contains infinite or NaN values"),
    (np.ones((40, 12), np.int8), "x in .* is of type int8, not float32"),
  ],
)
def test_values_that_are_no_finite_numbers_are_named(tmp_path, array, message):
  path = tmp_path / "x.safetensors"
  safetensors.numpy.save_file({"x": array}, path)
  with pytest.raises(errors.InputError, match=message):
    tensors.open_file(path)["x"].read()


def test_a_state_dict_is_read_alone_or_with_the_rest_of_training(tmp_path, torch):
  state = {name: torch.tensor(array) for name, array in ARRAYS.items()}
  state["transposed"] = state["transposed"].T.contiguous().T
  state["half"] = torch.tensor([0.5, -2.0]).bfloat16()
  expected = {**ARRAYS, "half": np.array([0.5, -2.0], np.float32)}
  for name, record in {"a": state, "b": {"state_dict": state, "step": 3, "loss": 1.5}}.items():
    torch.save(record, tmp_path / name)
    assert_read(tensors.open_file(tmp_path / name), expected)


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda torch: torch.nn.Linear(2, 2), "contains objects that could run code"),
    (lambda torch: {"a": 3}, "contains no state dict"),
  ],
)
def test_other_files_are_named_without_advice_of_torch(tmp_path, make, message, torch):
  path = tmp_path / "x.pt"
  torch.save(make(torch), path)
  with pytest.raises(errors.InputError, match=rf"{path}.*{message}") as caught:
    tensors.open_file(path)
  for advice in ("weights_only", "safe_globals", "Re-running", "\n"):
    assert advice not in str(caught.value)


T5 = tiny_encoders.t5_config(num_encoder_layers=3)
NETWORKS = {
  "t5": sentence_encoder.SentenceEncoder(T5, latent_dim=6),
  # A network with several stacks of layers, and with different numbers of layers.
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
    found.setdefault(re.sub(r"/layers_\d+", "/layers", name), []).append((name, array))
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


@pytest.mark.parametrize(("name", "kind"), [("t5", "export"), ("vmsst", "checkpoint")])
def test_either_layout_is_restored_into_either_network(tmp_path, name, kind):
  network = NETWORKS[name]
  separate = tiny_encoders.flat(tiny_encoders.random_params(network))
  layouts = {network: separate, scanned(network): stacked(separate)}
  assert layouts[network].keys() != layouts[scanned(network)].keys()
  for i, params in enumerate(layouts.values()):
    saved = save(tmp_path / str(i), params, kind)
    for wanted, expected in layouts.items():
      found = tiny_encoders.flat(loading.restore_params(saved, wanted))
      assert found.keys() == expected.keys()
      for key, array in expected.items():
        np.testing.assert_array_equal(found[key], array, err_msg=key)


def test_missing_and_unequal_layers_are_errors(tmp_path):
  network = NETWORKS["t5"]
  narrow = network.clone(config=dataclasses.replace(network.config, mlp_dim=7))
  params = tiny_encoders.flat(tiny_encoders.random_params(network))
  fewer = {name: x for name, x in params.items() if name != "encoder/layers_2/mlp/wo/kernel"}
  for number, (stored, wanted, message) in enumerate(
    (
      (fewer, scanned(network), "parameter encoder/layers/mlp/wo/kernel is missing"),
      (stacked(params), narrow, r"has shape \(8, 8\), but .* requires \(8, 7\)"),
    )
  ):
    saved = save(tmp_path / str(number), stored, "export")
    with pytest.raises(errors.InputError, match=message):
      loading.restore_params(saved, wanted)
