"""Encoders on CPUs by ONNX Runtime: the vectors of JAX, and which options apply."""

import importlib.util
import os
import pathlib
import pickle
import sys

import commands
import numpy as np
import pytest
import released_folders
import tiny_encoders

import vmsst
from vmsst import errors
from vmsst.encoder import backends
from vmsst.formats import transformers
from vmsst.networks import lstm, sentence_encoder, transformer

pytest.importorskip("onnx", reason="needs onnx to build graphs")
pytestmark = pytest.mark.skipif(
  importlib.util.find_spec("onnxruntime") is None,
  reason="needs ONNX Runtime",
)

# Empty, blank, longer than the maximum of all encoders here, and of many lengths.
TEXTS = ["Wie geht es dir?", "", " ", "word " * 300, "今日は。", *("x" * n for n in range(20))]
KINDS = {"gemma": "gemma3_text", "t5 gated": "mt5"}


def released(name, **changes):
  """Returns a network with the options that imports read from a file."""
  _, options, *_ = released_folders.ARCHITECTURES[name]
  architecture = transformers.ARCHITECTURES[KINDS.get(name, name)]
  sizes = architecture.sizes(pathlib.Path("config.json"), options | {"vocab_size": 259})
  config = transformer.TransformerConfig(**{**sizes, **changes})
  return tiny_encoders.encoder(config, pooling="last" if config.causal else "mean", normalize=True)


NETWORKS = {
  **{name: tiny_encoders.NETWORKS[name] for name in ("t5", "t5 scanned", "labse", "last")},
  **{name: released(name) for name in released_folders.ARCHITECTURES},
  "gemma causal scanned": released("gemma", causal=True, scan_layers=True),
}


def saved(name, folder):
  return tiny_encoders.save_run(folder, tiny_encoders.model_of(NETWORKS[name], max_length=28))


@pytest.mark.parametrize("name", NETWORKS)
def test_the_vectors_are_those_of_jax(name, tmp_path):
  run = saved(name, tmp_path)
  encoder = vmsst.load(run, backend="onnx")
  reference = vmsst.load(run, dtype="float32", backend="jax")
  expected_ND = reference.encode(TEXTS, on_cut=None)
  assert np.ptp(expected_ND, axis=0).min() > 1e-3
  # Batches of one sentence, of several, and of all.
  for batch_size in (1, 4, 128):
    found_ND = encoder.encode(TEXTS, batch_size=batch_size, on_cut=None)
    assert found_ND.dtype == np.float32
    np.testing.assert_allclose(found_ND, expected_ND, atol=1e-5, rtol=0)
  # Stored vectors are resumed on any backend.
  assert encoder.digest == reference.digest


def test_every_pooling_and_activation_is_that_of_jax():
  tokens_BT = np.array([[5, 6, 7, 1], [8, 1, 0, 0], [0, 0, 0, 0]], np.int32)
  poolings = [x for x in sentence_encoder.POOLINGS if x != "cls"]
  width = 16 * len(poolings)
  network = tiny_encoders.encoder(tiny_encoders.BERT, width, pooling="+".join(poolings), head=())
  params = tiny_encoders.random_params(network)
  pooled_BS = np.asarray(network.apply({"params": params}, tokens_BT))

  def vectors(network, params):
    return backends.CpuBackend(network, params).start(tokens_BT)()

  found_BS = vectors(network, params)
  np.testing.assert_allclose(found_BS[:2], pooled_BS[:2], atol=1e-5)
  is_last = np.arange(width) // 16 == poolings.index("last")
  assert not found_BS[2, ~is_last].any()
  assert not pooled_BS[2, ~is_last].any()
  layer = {"kernel": np.eye(width, 9, dtype=np.float32), "bias": np.arange(9, dtype=np.float32) - 4}
  inputs_BS = pooled_BS[:2] @ layer["kernel"] + layer["bias"]
  for name, activation in sentence_encoder.ACTIVATIONS.items():
    dense = (sentence_encoder.Dense(9, name),)
    network = tiny_encoders.encoder(tiny_encoders.BERT, 9, pooling=network.pooling, head=dense)
    found_BS = vectors(network, {**params, "head_0": layer})[:2]
    np.testing.assert_allclose(found_BS, activation(inputs_BS), atol=1e-5, err_msg=name)


@pytest.mark.parametrize("backend", ["onnx", "jax"])
def test_an_encoder_can_be_pickled_for_another_process(backend, tmp_path, monkeypatch):
  encoder = vmsst.load(saved("labse", tmp_path), backend=backend)
  encoder.max_length = 3
  monkeypatch.setattr(os, "getpid", lambda: -1)
  again = pickle.loads(pickle.dumps(encoder))
  found_ND = again.encode(TEXTS, on_cut=None)
  monkeypatch.undo()
  np.testing.assert_array_equal(found_ND, encoder.encode(TEXTS, on_cut=None))
  assert (again.digest, repr(again)) == (encoder.digest, repr(encoder))


_QUIET = """
import os, pathlib, sys, vmsst
vmsst.load(sys.argv[1], backend="onnx").encode(["eins"])
print([str(path) for path in pathlib.Path.home().rglob("*") if "onnxruntime" in str(path)])
"""


def test_onnx_runtime_collects_no_data(tmp_path, monkeypatch):
  """By default, ONNX Runtime 1.32 writes the id of the device and events to the home folder."""
  monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
  run, home = saved("labse", tmp_path / "run"), tmp_path / "home"
  home.mkdir()
  command = [sys.executable, "-c", _QUIET, run]
  done = commands.run(command, cwd=tmp_path, variables={"HOME": str(home)})
  assert done.stdout == "[]\n"


def test_options_that_exclude_each_other_are_errors(tmp_path, monkeypatch):
  laser = lstm.LstmConfig(vocab_size=259, emb_dim=8, hidden_dim=8, num_layers=1)
  model = tiny_encoders.model_of(tiny_encoders.encoder(laser, head=False))
  with pytest.raises(errors.InputError, match="ONNX does not support a LstmConfig encoder"):
    vmsst.load(tiny_encoders.save_run(tmp_path / "laser", model), backend="onnx").encode(["a"])
  run = saved("t5", tmp_path)
  with pytest.raises(errors.InputError, match="'onnx' computes in float32; omit dtype 'bfloat16'"):
    vmsst.load(run, backend="onnx", dtype="bfloat16")
  monkeypatch.setitem(sys.modules, "onnxruntime", None)
  with pytest.raises(errors.InputError, match=r"pip install 'vmsst\[onnx\]'"):
    vmsst.load(run, backend="onnx")


def test_auto_is_the_fastest_that_is_installed_and_keeps_the_precision(tmp_path, monkeypatch):
  run = saved("t5", tmp_path)
  assert vmsst.load(run).backend == "onnx"
  assert vmsst.load(run, dtype="bfloat16").backend == "jax"
  find, absent = importlib.util.find_spec, {"onnxruntime"}
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: name not in absent and find(name))
  assert vmsst.load(run).backend == "jax"


def test_few_shapes_and_little_padding():
  rng = np.random.default_rng(0)
  ids = [[1] * int(n) for n in rng.integers(0, 65, size=1003)]
  shapes, rows, cells = set(), [], 0
  for index_B, tokens_RT in backends.padded_batches(ids, 32, 64):
    shapes.add(tokens_RT.shape)
    rows, cells = [*rows, *index_B], cells + tokens_RT.size
    for index, row_T in zip(index_B, tokens_RT, strict=False):
      assert row_T.sum() == len(ids[index])
    assert not tokens_RT[len(index_B) :].any()
  assert sorted(rows) == list(range(1003))
  assert len(shapes) <= 10
  assert cells < 1.35 * sum(len(x) for x in ids)
