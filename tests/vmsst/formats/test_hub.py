"""Encoders by name, from a server that speaks the protocol of the Hugging Face Hub."""

import json
import os
import pathlib

import commands
import conversions
import entry_points
import fake_hub
import numpy as np
import pytest
import tiny_encoders
import tiny_hugging_face
import trials

import vmsst
from vmsst import errors
from vmsst.formats import hub as hub_lib
from vmsst.networks import sentence_encoder

TEXTS = ["one two", "three"]


NAME = "some/multilingual-e5-tiny"


# Loads each name and prints the vectors, or the error.
_LOAD = """
import json, sys
import vmsst
from vmsst import errors
for name in sys.argv[1:]:
  try:
    encoder = vmsst.load(name)
    print(json.dumps([encoder.path, encoder.encode(["one two", "three"]).tolist()]))
  except errors.InputError as error:
    print(json.dumps(str(error)))
"""


@pytest.fixture(scope="module")
def hub():
  with fake_hub.running() as running, pytest.MonkeyPatch.context() as patch:
    for name in [name for name in os.environ if name.startswith("HF_")]:
      patch.delenv(name)
    yield running


@pytest.fixture(scope="module")
def e5(tmp_path_factory, tokenizer_files):
  """A folder like multilingual E5's, and vectors of its import."""
  folder = tmp_path_factory.mktemp("source") / "multilingual-e5-tiny"
  tiny_hugging_face.save_me5(folder, tokenizer_files["xlmr"])
  imported = conversions.import_encoder(folder, folder.parent / "imported").checkpoint.parent
  return folder, vmsst.load(imported, backend="jax").encode(TEXTS)


def load(hub, home, *names, **changes):
  """Returns path and vectors, or the error, of each name, loaded in one new process."""
  variables = fake_hub.environment(hub, home / "hf", **changes)
  done = commands.script(_LOAD, *names, cwd=home, variables=variables)
  return [json.loads(line) for line in done.stdout.splitlines() if line.startswith(("[", '"'))]


def test_a_name_is_downloaded_once_and_then_needs_no_network(hub, e5, tmp_path):
  folder, vectors = e5
  (folder / "onnx").mkdir(exist_ok=True)
  (folder / "onnx" / "model.safetensors").write_bytes(b"of another engine")
  dense = "2_Dense/pytorch_model.bin"  # not all weights need be safetensors
  (folder / "2_Dense").mkdir(exist_ok=True)
  (folder / dense).write_bytes(b"of a module that this encoder lacks")
  commit = hub.put(NAME, folder)
  ((path, found),) = load(hub, tmp_path, NAME)
  assert path == f"{NAME}@{commit}"
  np.testing.assert_allclose(found, vectors, rtol=0, atol=1e-6)
  assert not [path for _, path in hub.requests if "onnx/" in path]
  assert [path for _, path in hub.requests if dense in path]
  assert not (tmp_path / "hf" / "vmsst").exists()  # nothing is imported
  asked = len(hub.requests)
  offline = load(hub, tmp_path, NAME, f"{NAME}@{commit}", path, HF_HUB_OFFLINE="1")
  for path, found in offline:
    assert path == f"{NAME}@{commit}"
    np.testing.assert_allclose(found, vectors, rtol=0, atol=1e-6)
  assert len(hub.requests) == asked


def test_a_folder_of_sentence_transformers_is_opened_as_it_is(e5):
  folder, vectors = e5
  encoder = vmsst.load(folder, backend="jax")
  np.testing.assert_array_equal(encoder.encode(TEXTS), vectors)
  assert encoder.digest == vmsst.load(folder.parent / "imported").digest
  assert repr(encoder).startswith(f"Encoder({str(folder)!r}, Transformer, layers=")


def test_errors_say_what_is_missing_and_what_to_do(hub, e5, tmp_path):
  folder, vectors = e5
  hub.put("some/gated", folder, gated=True)
  other = tmp_path / "other"
  other.mkdir()
  (other / "model.safetensors").write_bytes(b"")
  (other / "config.json").write_text('{"model_type": "electra"}')
  hub.put("some/other", other)
  hub.put(NAME, folder)
  names = ["nobody/nothing", "some/gated", "some/other", f"{NAME}@v9"]
  found = load(hub, tmp_path, *names)
  for message, parts in zip(
    found,
    [
      ("no folder nobody/nothing here", f"downloaded from {hub.url}", "HF_TOKEN"),
      ("some/gated cannot be", "gated repo", "hf auth login"),
      ("config.json: 'model_type' is 'electra'", "bert, roberta", "t5, mt5"),
      (f"{NAME}@v9 cannot be downloaded from {hub.url}: ", "Revision Not Found"),
    ],
    strict=True,
  ):
    assert all(part in message for part in parts), message
    assert "\n" not in message
  ((_, granted),) = load(hub, tmp_path, "some/gated", HF_TOKEN="hf_granted")
  assert np.shape(granted) == vectors.shape
  (offline,) = load(hub, tmp_path / "other", NAME, HF_HUB_OFFLINE="1")
  assert "cached snapshot" in offline


@pytest.mark.slow
def test_mt5_the_release_of_vmsst_and_exports_by_name(hub, tmp_path):
  small, release = tmp_path / "mt5" / "m", tmp_path / "release" / "m"
  trials.lay_out(entry_points.mt5_files(), small.parent)
  trials.lay_out(entry_points.vmsst_files(), release.parent)
  own = tiny_encoders.save_run(
    tmp_path / "run",
    tiny_encoders.model_of(sentence_encoder.SentenceEncoder(tiny_encoders.t5_config(), 6)),
  )
  hub.put("some/without-vocabulary", small)
  (small / "spiece.model").write_bytes(entry_points.sentencepiece_model())
  conversions.export_sentence_transformers(own, tmp_path / "st")
  for name, folder in (("mt5", small), ("vmsst", release), ("st", tmp_path / "st")):
    hub.put(f"some/{name}", folder)
  names = ("some/mt5", "some/vmsst", "some/st", "some/without-vocabulary")
  *loaded, error = load(hub, tmp_path, *names)
  conversions.import_encoder(small, tmp_path / "imported-mt5")
  conversions.import_encoder(release, tmp_path / "imported-vmsst")
  folders = (tmp_path / "imported-mt5", tmp_path / "imported-vmsst", own)
  for name, folder, (path, found) in zip(names, folders, loaded, strict=False):
    assert path.startswith(f"{name}@")
    np.testing.assert_allclose(
      found, vmsst.load(folder, backend="jax").encode(TEXTS), rtol=0, atol=1e-6
    )
  assert "or spiece.model of T5, to encode texts with" in error


def test_only_what_is_no_path_is_a_name(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  pathlib.Path("here/run").mkdir(parents=True)
  for name in ("intfloat/multilingual-e5-small", "sentence-transformers/LaBSE@refs/pr/1"):
    assert hub_lib.is_name(name), name
  for path in (
    *("./owner/name", "/owner/name", "~/name", "name", "a/b/c", "run/checkpoint_10", "here/run"),
    *("gs://bucket/run", "a/b@x/../../../escaped", "a../b@.."),
  ):
    assert not hub_lib.is_name(path), path
  with pytest.raises(errors.InputError, match="is not the name of a model"):
    hub_lib.find("a/b@x/../../../escaped")  # would be a path in the cache
