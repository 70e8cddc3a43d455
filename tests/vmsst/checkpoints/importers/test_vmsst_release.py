"""Imports of VMSST, in files with the release's structure, against transformers."""

import json
import os

import memory_store
import numpy as np
import pytest
from etils import epath
from safetensors.numpy import save_file

import vmsst
from vmsst import cli, errors
from vmsst.checkpoints import t5x
from vmsst.checkpoints.importers import mt5, vmsst_release, weight_tables

CONFIG = {
  "model_type": "mt5",
  "feed_forward_proj": "gated-gelu",
  "tie_word_embeddings": False,
  "vocab_size": 3700,
  "d_model": 12,
  "num_heads": 3,
  "d_kv": 2,
  "d_ff": 10,
  "num_layers": 2,
  "relative_attention_num_buckets": 8,
  "relative_attention_max_distance": 20,
}
SIZES = {
  "vocab_size": 3700,
  "emb_dim": 12,
  "num_heads": 3,
  "head_dim": 2,
  "mlp_dim": 10,
  "num_encoder_layers": 2,
  "relpos_buckets": 8,
  "relpos_max_distance": 20,
}
SENTENCES = ["Hello, world!", "Wie geht es dir heute?", "", "the weather " * 40]
VOCABULARY = vmsst.gin_dir().parent / "tasks" / "sample" / "vocabulary.model"


def t5x_params(seed=0):
  """Returns an encoder and the projection after its mean, by T5X's names."""
  rng = np.random.default_rng(seed)
  shapes = {row.source: row.shape for row in mt5.rows(SIZES, t5x_names=True)}
  shapes["projection/kernel"] = (12, 12)
  return {name: rng.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}


def state_dict(params, encoder="mt5_encoder."):
  """Returns the same parameters as in the release for transformers."""
  found = {"projection.weight": params["projection/kernel"].T}
  for row in mt5.rows(SIZES):
    (name,) = row.targets
    array = params[name] if name.startswith("token") else params[name].T
    found[encoder + row.source] = array
  return {name: np.ascontiguousarray(array) for name, array in found.items()}


def save_hugging_face(folder, state, *, vocabulary=True, **config):
  folder.mkdir()
  (folder / "config.json").write_text(json.dumps(CONFIG | config))
  save_file(state, folder / "model.safetensors")
  if vocabulary:
    (folder / "spiece.model").write_bytes(VOCABULARY.read_bytes())
  return folder


def arrays(folder):
  return {
    name: tensor.read()
    for name, tensor in t5x.open_params(epath.Path(folder / "checkpoint_0")).items()
  }


def test_vectors_equal_those_of_transformers(tmp_path, capsys):
  torch = pytest.importorskip("torch", reason="needs torch to compare with")
  transformers = pytest.importorskip("transformers", reason="needs transformers to compare with")
  state = state_dict(t5x_params())
  folder = save_hugging_face(tmp_path / "hf", state)
  command = ["import", "vmsst", str(folder), str(tmp_path / "out"), "--max-length", "30"]
  assert cli.main(command) == 0
  printed = capsys.readouterr().out
  assert all(f"{name} " in printed for name in state)
  encoder = vmsst.load(tmp_path / "out")
  found_ND = encoder.encode(SENTENCES, on_cut=None)

  model = transformers.MT5EncoderModel(transformers.MT5Config(**CONFIG)).eval()
  prefix = "mt5_encoder."
  theirs = {n.removeprefix(prefix): torch.tensor(x) for n, x in state.items() if prefix in n}
  theirs["encoder.embed_tokens.weight"] = theirs["shared.weight"]
  model.load_state_dict(theirs)
  for sentence, vector in zip(SENTENCES, found_ND, strict=True):
    (ids,) = encoder.vocabulary.encode([sentence], 30)
    with torch.no_grad():
      hidden_1TD = model(torch.tensor([ids])).last_hidden_state
    expected = hidden_1TD[0].mean(0).numpy() @ state["projection.weight"].T
    np.testing.assert_allclose(vector, expected, atol=1e-5, rtol=0)


def test_a_source_in_a_store_is_imported_as_on_this_machine(tmp_path, capsys, monkeypatch):
  store = memory_store.installed(monkeypatch)
  folder = save_hugging_face(tmp_path / "hf", state_dict(t5x_params()))
  vmsst_release.import_vmsst(folder, tmp_path / "expected")
  store.put(str(folder), "gs://bucket/hf", recursive=True)
  url, out = "gs://bucket/hf", tmp_path / "out"
  # The config and the vocabulary are next to the weights.
  assert cli.main(["import", "vmsst", f"{url}/model.safetensors", str(out)]) == 0
  for name in ("encoder.json", "vocabulary.model"):
    assert (out / name).read_bytes() == (tmp_path / "expected" / name).read_bytes()
  found = arrays(out)
  for name, array in arrays(tmp_path / "expected").items():
    np.testing.assert_array_equal(found[name], array)
  capsys.readouterr()
  for options, message in (
    ([f"{url}/nothing"], f"{url}/nothing cannot be read: "),
    ([f"{url}/config.json"], f"{url}/config.json is not a file of torch or safetensors; give "),
    (
      [url, "--vocabulary", f"{url}/config.json"],
      f"{url}/config.json: not a SentencePiece model",
    ),
    ([url, "--projection", "x"], f"projection x of {url} is absent"),
    ([f"{url}/../hf"], "bucket/hf/../hf has a part named .. and cannot be copied"),
  ):
    source, *more = options
    assert cli.main(["import", "vmsst", source, str(tmp_path / "new"), *more]) == 1
    assert capsys.readouterr().err.startswith(f"vmsst: error: {message}")


def test_all_forms_of_the_release_give_the_same(tmp_path):
  torch = pytest.importorskip("torch", reason="needs torch to write its files")
  params = t5x_params()
  state = state_dict(params)
  pickled = {name: torch.tensor(array) for name, array in state.items()}
  sources = {"a": save_hugging_face(tmp_path / "a", state)}
  sources["b"] = save_hugging_face(tmp_path / "b", state)
  (sources["b"] / "model.safetensors").unlink()
  torch.save(pickled, sources["b"] / "pytorch_model.bin")
  bare = {n.replace("mt5_encoder.", "module."): x for n, x in pickled.items()}
  bare["module.encoder.embed_tokens.weight"] = bare["module.shared.weight"].clone()
  sources["c"] = tmp_path / "c.pt"
  torch.save({"state_dict": bare}, sources["c"])
  # With a decoder and another head: the projection is found by its name.
  others = {
    "decoder/layers_0/mlp/wo/kernel": np.ones((10, 12), np.float32),
    "log_variance/kernel": np.ones((12, 12), np.float32),
  }
  sources["d"] = tmp_path / "d"
  t5x.write_params(epath.Path(sources["d"] / "checkpoint_100000"), params | others)
  expected = {n.replace("projection/", "mean/"): x for n, x in params.items()}
  for name, source in sources.items():
    out = tmp_path / f"{name}_out"
    imported = vmsst_release.import_vmsst(source, out, vocabulary=VOCABULARY)
    found = arrays(out)
    assert found.keys() == expected.keys()
    for key, array in found.items():
      np.testing.assert_array_equal(array, expected[key])
    left = {row.source for row in imported.rows if not row.targets}
    assert left == {"c": {"module.encoder.embed_tokens.weight"}, "d": set(others)}.get(name, set())
  assert vmsst.load(tmp_path / "d_out").dimension == 12


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"mt5_encoder.encoder.block.1.layer.1.layer_norm.weight": None}, "lacks .*block.1.layer.1.la"),
    ({"mt5_encoder.encoder.block.0.x": np.ones(3)}, r"holds .*block\.0\.x.*\(21 .*, 22 found\)"),
    ({"mt5_encoder.encoder.final_layer_norm.weight": np.ones(3)}, r"shape \(3,\), not \(12,\)"),
    ({"mt5_encoder.shared.weight": None}, "no token table of an mT5 .*: it holds mt5_encoder"),
    ({"projection.weight": None}, "expected one matrix with 12 inputs, .* found none"),
    ({"projection.weight": np.ones((4, 5))}, "found none"),
    ({"projection.weight": None, "x": np.ones((5, 12)), "y": np.ones((7, 12))}, "found x, y"),
  ],
)
def test_a_state_that_does_not_fit_is_refused(tmp_path, change, message):
  state = {n: x for n, x in (state_dict(t5x_params()) | change).items() if x is not None}
  state = {name: array.astype(np.float32) for name, array in state.items()}
  with pytest.raises(errors.InputError, match=message):
    vmsst_release.import_vmsst(save_hugging_face(tmp_path / "hf", state), tmp_path / "out")
  assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_the_projection_can_be_named(tmp_path):
  state = state_dict(t5x_params())
  state["x"] = state.pop("projection.weight")[:5].copy()
  state["y"] = np.zeros((7, 12), np.float32)
  folder = save_hugging_face(tmp_path / "hf", state)
  imported = vmsst_release.import_vmsst(folder, tmp_path / "out", projection="x")
  assert "have 5 dimensions" in weight_tables.describe(imported)
  assert vmsst.load(tmp_path / "out").dimension == 5
  with pytest.raises(errors.InputError, match=r"projection z .* absent.*x, y"):
    vmsst_release.import_vmsst(folder, tmp_path / "new", projection="z")


class Evil:
  """Runs a command when it is unpickled."""

  def __init__(self, path):
    self.path = path

  def __reduce__(self):
    return os.mkdir, (str(self.path),)


def test_files_that_cannot_be_used_are_refused(tmp_path):
  torch = pytest.importorskip("torch", reason="needs torch to write its files")
  state = state_dict(t5x_params())
  (tmp_path / "empty").mkdir()
  trap = tmp_path / "sprung"
  torch.save({"state_dict": {}, "x": Evil(trap)}, tmp_path / "evil.bin")
  for source, message in (
    (save_hugging_face(tmp_path / "bare", state, vocabulary=False), "no spiece.model next to it"),
    (
      save_hugging_face(tmp_path / "relu", state, feed_forward_proj="relu"),
      "feed_forward_proj.*'relu'",
    ),
    (tmp_path / "empty", "it holds nothing"),
    (tmp_path / "absent", "no file or folder"),
    (tmp_path / "evil.bin", r"evil\.bin holds more than tensors"),
  ):
    with pytest.raises(errors.InputError, match=message):
      vmsst_release.import_vmsst(source, tmp_path / "out")
  assert not trap.exists()
  assert not (tmp_path / "out").exists()
