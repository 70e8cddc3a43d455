"""Uploads to a server that speaks the protocol of the Hugging Face Hub, and loading by name."""

import json
import os
import tempfile

import commands
import fake_hub
import huggingface_hub
import numpy as np
import pytest
import tiny_encoders
from huggingface_hub import constants

import vmsst
from vmsst.networks import sentence_encoder

# Of huggingface_hub's calls of httpx.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

NAME = "me/tiny"
TEXTS = ["one two", "", "Wie geht es dir?"]
# Loads each name and prints its commit, languages and vectors.
_LOAD = """
import json, sys
import vmsst
texts, *names = json.load(sys.stdin)
for name in names:
  encoder = vmsst.load(name)
  print(json.dumps([encoder.path, encoder.languages, encoder.encode(texts).tolist()]))
"""


@pytest.fixture(scope="module")
def hub():
  with fake_hub.running() as running:
    yield running


@pytest.fixture
def account(hub, tmp_path, monkeypatch):
  """Lets this process upload to the server; returns what sets another token, address or mode."""
  for name in [name for name in os.environ if name.startswith("HF_")]:
    monkeypatch.delenv(name)
  for name, value in fake_hub.environment(hub, tmp_path / "hf").items():
    monkeypatch.setenv(name, value)
  monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "hf" / "token"))
  monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
  (tmp_path / "tmp").mkdir()
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))

  def use(token=fake_hub.WRITER, endpoint=hub.url, offline=False):
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    monkeypatch.setenv("HF_TOKEN", token)

  use()
  huggingface_hub.close_session()
  yield use
  huggingface_hub.close_session()
  assert not [*(tmp_path / "tmp").glob("vmsst-*")]


@pytest.fixture
def run(tmp_path):
  """Saves a run with a projection."""
  network = sentence_encoder.SentenceEncoder(tiny_encoders.t5_config(), latent_dim=6)
  model = tiny_encoders.model_of(network)
  return tiny_encoders.save_run(tmp_path / "run", model, languages=["deu", "eng"])


def load(hub, place, *names):
  """Returns commit, languages and vectors of each name, loaded in one new process."""
  variables = fake_hub.environment(hub, place / "hf")
  text = json.dumps([TEXTS, *names])
  done = commands.script(_LOAD, cwd=place, text=text, variables=variables)
  return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_a_run_is_uploaded_in_one_commit_and_loaded_by_its_name(
  hub, account, run, tmp_path, capsys
):
  assert commands.vmsst("push", run, NAME, "--public") == 0
  assert commands.vmsst("push", run, "me/private", "--revision", "v2") == 0
  out = capsys.readouterr().out
  assert out.startswith(f"{hub.url}/{NAME}/commit/")
  assert "vmsst.load('me/private@v2')" in out
  assert hub.messages == ["Upload by vmsst"] * 2
  assert hub.private == {"me/private"}
  assert [*hub.files("me/private")] == [".gitattributes"]
  assert b"me/private" in hub.files("me/private", "v2")["README.md"]
  for path, codes, vectors in load(hub, tmp_path, NAME, "me/private@v2"):
    assert path.startswith((f"{NAME}@", "me/private@"))
    assert codes == ["deu", "eng"]
    np.testing.assert_allclose(vectors, vmsst.load(run).encode(TEXTS), rtol=0, atol=1e-6)


def test_files_of_a_former_encoder_are_deleted_and_others_stay(hub, account, run, tmp_path):
  old = tmp_path / "old"
  gone = "3_Normalize/x", "vocabulary.model", "special_tokens_map.json", "added_tokens.json"
  for name in ("2_Dense/model.safetensors", "mine.txt", *gone):
    (old / name).parent.mkdir(parents=True, exist_ok=True)
    (old / name).write_text("old")
  hub.put("me/old", old)
  assert commands.vmsst("push", run, "me/old", "--public") == 0
  files = hub.files("me/old")
  assert files["mine.txt"] == b"old"
  assert files["2_Dense/model.safetensors"] != b"old"
  assert not {*gone} & {*files}


def test_errors_are_one_line_and_leave_nothing(hub, account, run, tmp_path, capsys):
  hub.put("me/public", run)
  before = hub.branches()

  def check(part, path=run, name="me/new", *options):
    assert commands.vmsst("push", path, name, *options) == 1
    printed, message = capsys.readouterr()
    assert part in message
    assert (printed, message.count("\n")) == ("", 1)
    assert hub.branches() == before

  check("'new' is not the name of a repository: give owner/name", run, "new")
  check("give owner/name", run, "me/new@v2")
  check("results.json: cannot be read", run, "me/new", "--results", run)
  other = {
    "encoder": {"name": "other", "digest": "1"},
    "seen": None,
    "absent": {},
    "failed": {},
    "benchmarks": {},
  }
  (tmp_path / "results.json").write_text(json.dumps(other))
  check(f"has results of other, which is not {run}", run, "me/new", "--results", tmp_path)
  check("is public; pass --public", run, "me/public")
  hub.private.add("me/public")
  check("is private; omit --public", run, "me/public", "--public")
  account(token="")
  check("without a token; log in (`hf auth login`) or set HF_TOKEN")
  account(token="hf_unknown")
  check("Invalid credentials")
  account(token=fake_hub.READER)
  check("You have no rights")
  account(offline=True)
  check("HF_HUB_OFFLINE")
  account(endpoint="http://127.0.0.1:9")
  check("me/new cannot be uploaded to http://127.0.0.1:9")
