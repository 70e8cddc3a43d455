"""Safetensors files that are read where they are, without a copy."""

import jax
import numpy as np
import pytest
import safetensors
import safetensors.numpy

from vmsst import errors
from vmsst.checkpoints import hugging_face, safetensors_files

# In an order and of sizes that would misalign some: 12, 4 and 4,000,000 bytes.
ARRAYS = {
  "a": np.arange(3, dtype=np.float32),
  "b": np.array(2.5, np.float32),
  "empty": np.zeros((0, 4), np.float32),
  "table": np.random.default_rng(0).normal(size=(5000, 200)).astype(np.float32),
  "transposed": np.arange(64.0, dtype=np.float32).reshape(4, 16).T,
}


def test_the_library_reads_the_file(tmp_path):
  path = tmp_path / "model.safetensors"
  safetensors_files.write(path, ARRAYS, {"format": "pt"})
  found = safetensors.numpy.load_file(path)
  assert found.keys() == ARRAYS.keys()
  for name, array in ARRAYS.items():
    np.testing.assert_array_equal(found[name], array)
  with safetensors.safe_open(path, "np") as file:
    assert file.metadata() == {"format": "pt"}


def test_jax_uses_large_tensors_where_they_are(tmp_path):
  path = tmp_path / "model.safetensors"
  safetensors_files.write(path, ARRAYS)
  tensors = hugging_face.open_file(path)
  for name, array in ARRAYS.items():
    np.testing.assert_array_equal(tensors[name].view(), array)
  table_VD = tensors["table"].view()
  assert not table_VD.flags.writeable
  on_device = jax.device_put(table_VD, may_alias=True)
  assert on_device.unsafe_buffer_pointer() == table_VD.ctypes.data
  # The original stays readable if its name is given to another file.
  path.unlink()
  np.testing.assert_array_equal(on_device, ARRAYS["table"])


def test_files_of_others_are_read_and_checked(tmp_path):
  path = tmp_path / "model.safetensors"
  # A header of a size that aligns nothing.
  table = {"table": ARRAYS["table"]}
  for padding in range(8):
    safetensors.numpy.save_file(table, path, {"x": "y" * (1 + 8 * padding)})
    np.testing.assert_array_equal(hugging_face.open_file(path)["table"].view(), table["table"])
  table["table"] = table["table"].copy()
  table["table"][-1, -1] = np.nan
  safetensors_files.write(path, table)
  with pytest.raises(errors.InputError, match=r"table in .* contains infinite or NaN values"):
    hugging_face.open_file(path)["table"].view()
