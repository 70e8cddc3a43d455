"""Weights of Hugging Face folders: safetensors or torch, in one file or in shards."""

import json

import numpy as np
import pytest

from vmsst import errors
from vmsst.formats import hugging_face, tensors

ARRAYS = {name: np.arange(i, 9.0, dtype=np.float32) for i, name in enumerate("abcde")}


def assert_read(found, expected):
  assert found.keys() == expected.keys()
  for name, array in expected.items():
    np.testing.assert_array_equal(found[name].read(), array)


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
  index = folder / "model.safetensors.index.json"
  index.write_text('{"weight_map": {}}')
  with pytest.raises(errors.InputError, match=rf"{index} has no object 'weight_map'"):
    hugging_face.open_tensors(folder)
