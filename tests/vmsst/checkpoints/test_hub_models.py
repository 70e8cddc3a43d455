"""Encoders by name, from a server that speaks the protocol of the Hugging Face Hub."""

import json
import os
import pathlib

import commands
import fake_hub
import numpy as np
import pytest
import tiny_hugging_face

import vmsst
from vmsst.checkpoints import hub_models
from vmsst.checkpoints.importers import bert

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
# What a run that starts from a name finds.
_START = """
import json, sys
from ems_jax import teachers
from vmsst.checkpoints import starting_encoders
from vmsst.launch.runtime import checkpoints
(name,) = sys.argv[1:]
restore = checkpoints.RestoreCheckpointConfig(path=name, mode="specific")
found = [
  checkpoints.find_checkpoint(restore),
  starting_encoders.tokenizer(name),
  starting_encoders.pooling(name),
  starting_encoders.normalize(name),
  teachers.from_run(path=name).checkpoint,
]
print(json.dumps([str(value) for value in found]))
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
  imported = bert.import_bert(folder, folder.parent / "imported").checkpoint.parent
  return folder, vmsst.load(imported).encode(TEXTS)


def load(hub, home, *names, code=_LOAD, **changes):
  """Returns path and vectors, or the error, of each name, loaded in one new process."""
  variables = fake_hub.environment(hub, home / "hf", **changes)
  done = commands.script(code, *names, cwd=home, variables=variables)
  return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_name_is_downloaded_and_imported_once_and_then_needs_no_network(hub, e5, tmp_path):
  folder, vectors = e5
  (folder / "onnx").mkdir(exist_ok=True)
  (folder / "onnx" / "model.safetensors").write_bytes(b"of another engine")
  commit = hub.put(NAME, folder)
  hub.cut.add("model.safetensors")  # the first attempt breaks off
  ((path, found),) = load(hub, tmp_path, NAME)
  assert path == f"{NAME}@{commit}"
  np.testing.assert_array_equal(np.float32(found), vectors)
  assert not [path for _, path in hub.requests if "onnx/" in path]
  made = tmp_path / "hf" / "vmsst" / "1" / NAME.replace("/", "--") / commit
  before = {path: path.stat().st_mtime_ns for path in made.rglob("*")}
  asked = len(hub.requests)
  offline = load(hub, tmp_path, NAME, f"{NAME}@{commit}", path, HF_HUB_OFFLINE="1")
  for path, found in offline:
    assert path == f"{NAME}@{commit}"
    np.testing.assert_array_equal(np.float32(found), vectors)
  assert len(hub.requests) == asked
  (start,) = load(hub, tmp_path, NAME, code=_START, HF_HUB_OFFLINE="1")
  checkpoint = str(made / "checkpoint_0")
  assert start == [checkpoint, str(made / "tokenizer.json"), "mean", "True", checkpoint]
  assert {path: path.stat().st_mtime_ns for path in made.rglob("*")} == before


def test_errors_say_what_is_missing_and_what_to_do(hub, e5, tmp_path):
  folder, vectors = e5
  hub.put("some/gated", folder, gated=True)
  pickles = tmp_path / "pickles"
  pickles.mkdir()
  (pickles / "pytorch_model.bin").write_bytes(b"a pickle")
  (pickles / "config.json").write_text('{"model_type": "bert"}')
  hub.put("some/pickles", pickles)
  other = tmp_path / "other"
  other.mkdir()
  (other / "model.safetensors").write_bytes(b"")
  (other / "config.json").write_text('{"model_type": "qwen3"}')
  hub.put("some/other", other)
  hub.put(NAME, folder)
  names = ["nobody/nothing", "some/gated", "some/pickles", "some/other", f"{NAME}@v9"]
  found = load(hub, tmp_path, *names)
  for message, parts in zip(
    found,
    [
      ("no folder nobody/nothing here", f"no model nobody/nothing at {hub.url}", "HF_TOKEN"),
      ("some/gated is gated", f"{hub.url}/some/gated", "hf auth login"),
      ("some/pickles has no safetensors", "pickles"),
      ("some/other is of the type 'qwen3'", "bert, xlm-roberta"),
      (f"{NAME} at {hub.url} has no branch, tag or commit v9",),
    ],
    strict=True,
  ):
    assert all(part in message for part in parts), message
    assert "\n" not in message
  ((_, granted),) = load(hub, tmp_path, "some/gated", HF_TOKEN="hf_granted")
  assert np.shape(granted) == vectors.shape
  (offline,) = load(hub, tmp_path / "pickles", NAME, HF_HUB_OFFLINE="1")
  assert "not complete in the cache" in offline
  assert "HF_HUB_OFFLINE is set" in offline


@pytest.mark.parametrize(
  ("path", "expected"),
  [
    ("intfloat/multilingual-e5-small", True),
    ("sentence-transformers/LaBSE@main", True),
    ("./owner/name", False),
    ("/owner/name", False),
    ("~/name", False),
    ("name", False),
    ("a/b/c", False),
    ("run/checkpoint_10", False),
    ("here/run", False),
    ("gs://bucket/run", False),
  ],
)
def test_only_what_is_no_path_is_a_name(tmp_path, monkeypatch, path, expected):
  monkeypatch.chdir(tmp_path)
  pathlib.Path("here/run").mkdir(parents=True)
  assert hub_models.is_name(path) is expected
