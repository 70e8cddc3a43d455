"""Tests downloads and uploads with a local server that imitates the Hugging Face Hub."""

import json
import os
import pathlib
import tempfile

import commands
import entry_points
import fake_hub
import huggingface_hub
import numpy as np
import pytest
import released_folders
import tiny_encoders
import trials
import yaml
from huggingface_hub import constants

import vmsst
from vmsst.encoder import loading
from vmsst.formats import hub as hub_lib
from vmsst.networks import sentence_encoder

# huggingface_hub calls httpx in a deprecated way.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

TEXTS = ["one two", "", "Wie geht es dir?"]
NAME = "some/multilingual-e5-tiny"
# Loads each name and prints its commit, languages and vectors, or the error.
_LOAD = """
import json, sys
import vmsst
from vmsst import errors
texts, *names = json.load(sys.stdin)
for name in names:
  try:
    encoder = vmsst.load(name)
    print(json.dumps([encoder.path, encoder.languages, encoder.encode(texts).tolist()]))
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
  """Returns the folder of an encoder like multilingual E5, and its vectors of `TEXTS`."""
  folder = tmp_path_factory.mktemp("source") / "multilingual-e5-tiny"
  released_folders.save_me5(folder, tokenizer_files["xlmr"])
  return folder, vmsst.load(folder, backend="jax").encode(TEXTS)


def load(hub, home, *names, **changes):
  """Loads each name in a new process; returns its commit, languages and vectors, or the error."""
  variables, text = fake_hub.environment(hub, home / "hf", **changes), json.dumps([TEXTS, *names])
  done = commands.script(_LOAD, cwd=home, text=text, variables=variables)
  return [json.loads(line) for line in done.stdout.splitlines() if line.startswith(("[", '"'))]


def test_a_name_is_downloaded_once_and_then_needs_no_network(hub, e5, tmp_path):
  folder, vectors = e5
  (folder / "onnx").mkdir(exist_ok=True)
  (folder / "onnx" / "model.safetensors").write_bytes(b"of another engine")
  dense = "2_Dense/pytorch_model.bin"  # A layer may have weights in another format.
  (folder / "2_Dense").mkdir(exist_ok=True)
  (folder / dense).write_bytes(b"of a module that this encoder lacks")
  commit = hub.put(NAME, folder)
  mt5 = trials.lay_out(entry_points.mt5_files(), tmp_path / "mt5") / "m"
  (mt5 / "spiece.model").write_bytes(entry_points.sentencepiece_model())
  hub.put("some/mt5", mt5)
  (path, _, found), (_, _, mean) = load(hub, tmp_path, NAME, "some/mt5")
  assert path == f"{NAME}@{commit}"
  np.testing.assert_allclose(mean, vmsst.load(mt5, backend="jax").encode(TEXTS), rtol=0, atol=1e-6)
  np.testing.assert_allclose(found, vectors, rtol=0, atol=1e-6)
  assert not [path for _, path in hub.requests if "onnx/" in path]
  assert [path for _, path in hub.requests if dense in path]
  asked = len(hub.requests)
  offline = load(hub, tmp_path, NAME, f"{NAME}@{commit}", path, HF_HUB_OFFLINE="1")
  for path, _, found in offline:
    assert path == f"{NAME}@{commit}"
    np.testing.assert_allclose(found, vectors, rtol=0, atol=1e-6)
  assert len(hub.requests) == asked


def test_errors_say_what_is_missing_and_what_to_do(hub, e5, tmp_path):
  folder, vectors = e5
  hub.put("some/gated", folder, gated=True)
  hub.put(NAME, folder)
  names = ["nobody/nothing", "some/gated", f"{NAME}@v9"]
  found = load(hub, tmp_path, *names)
  for message, parts in zip(
    found,
    [
      ("the folder nobody/nothing does not exist", f"downloaded from {hub.url}", "HF_TOKEN"),
      ("some/gated cannot be", "gated repo", "hf auth login"),
      (f"{NAME}@v9 cannot be downloaded from {hub.url}: ", "Revision Not Found"),
    ],
    strict=True,
  ):
    assert all(part in message for part in parts), message
    assert "\n" not in message
  ((_, _, granted),) = load(hub, tmp_path, "some/gated", HF_TOKEN=fake_hub.WRITER)
  assert np.shape(granted) == vectors.shape
  (tmp_path / "empty").mkdir()
  (offline,) = load(hub, tmp_path / "empty", NAME, HF_HUB_OFFLINE="1")
  assert "cached snapshot" in offline


def test_only_what_is_no_path_is_a_name(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  pathlib.Path("here/run").mkdir(parents=True)
  for name in ("intfloat/multilingual-e5-small", "sentence-transformers/LaBSE@refs/pr/1"):
    assert hub_lib.is_name(name), name
  for path in (
    *("./owner/name", "/owner/name", "~/name", "name", "a/b/c", "run/checkpoint_10", "here/run"),
    *("gs://bucket/run", "a/b@x/../../../escaped"),
  ):
    assert not hub_lib.is_name(path), path


@pytest.fixture
def account(hub, tmp_path, monkeypatch):
  """Lets this process upload to the server; returns a function that sets the token and address."""
  for name, value in fake_hub.environment(hub, tmp_path / "hf").items():
    monkeypatch.setenv(name, value)
  monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "hf" / "token"))
  monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
  (tmp_path / "tmp").mkdir()
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))

  def use(token=fake_hub.WRITER, endpoint=hub.url):
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", token)

  use()
  huggingface_hub.close_session()
  yield use
  huggingface_hub.close_session()
  assert not [*(tmp_path / "tmp").glob("vmsst-*")]


@pytest.fixture
def run(tmp_path):
  """Saves a run of an encoder with a projection, and returns its folder."""
  network = sentence_encoder.SentenceEncoder(tiny_encoders.t5_config(), latent_dim=6)
  model = tiny_encoders.model_of(network)
  return tiny_encoders.save_run(tmp_path / "run", model, languages=["deu", "eng"])


@pytest.mark.slow
def test_a_run_is_uploaded_in_one_commit_and_loaded_by_its_name(
  hub, account, run, tmp_path, capsys
):
  assert commands.vmsst("push", run, "me/tiny", "--public") == 0
  assert commands.vmsst("push", run, "me/private", "--revision", "v2") == 0
  out = capsys.readouterr().out
  assert out.startswith(f"{hub.url}/me/tiny/commit/")
  assert "vmsst.load('me/private@v2')" in out
  assert hub.messages == ["Upload by vmsst"] * 2
  assert hub.private == {"me/private"}
  assert [*hub.files("me/private")] == [".gitattributes"]
  assert b"me/private" in hub.files("me/private", "v2")["README.md"]
  for path, codes, vectors in load(hub, tmp_path, "me/tiny", "me/private@v2"):
    assert path.startswith(("me/tiny@", "me/private@"))
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
  before = {*hub.branches}

  def check(part, path=run, name="me/new", *options):
    assert commands.vmsst("push", path, name, *options) == 1
    printed, message = capsys.readouterr()
    assert part in message
    assert (printed, message.count("\n")) == ("", 1)
    assert {*hub.branches} == before

  check("pass owner/name", run, "me/new@v2")
  check("results.json: cannot be read", run, "me/new", "--results", run)
  other = {"encoder": {"name": "other", "digest": "1"}, "seen": None}
  other |= {"absent": {}, "failed": {}, "benchmarks": {}}
  (tmp_path / "results.json").write_text(json.dumps(other))
  message = f"contains results for other. {run} is a different encoder"
  check(message, run, "me/new", "--results", tmp_path)
  check("is public; pass --public", run, "me/public")
  hub.private.add("me/public")
  check("is private; omit --public", run, "me/public", "--public")
  account(token="")
  check("without a token; log in (`hf auth login`) or set HF_TOKEN")
  account(token=fake_hub.READER)
  check("You have no rights")
  account(endpoint="http://127.0.0.1:9")
  check("me/new cannot be uploaded to http://127.0.0.1:9")


def test_a_card_has_facts_about_the_encoder(tmp_path):
  network = sentence_encoder.SentenceEncoder(tiny_encoders.t5_config(), latent_dim=6)
  model = tiny_encoders.model_of(network)
  run = tiny_encoders.save_run(tmp_path / "run", model, languages=["deu", "eng"])
  saved = loading.read(run)
  card = hub_lib.card(saved, "me/tiny", license_id="mit", results="- Tatoeba, average: 90.50")
  _, front, body = card.split("---\n", 2)
  described = yaml.safe_load(front)
  assert (described["language"], described["license"]) == (["de", "en"], "mit")
  for part in (
    'vmsst.load("me/tiny")',
    "English, German.",
    "- T5 encoder: 1 layer, hidden size 8, 259 tokens in the vocabulary",
    "- Tatoeba, average: 90.50\n",
  ):
    assert part in body
  assert str(tmp_path) not in body
  card = hub_lib.card(saved, "me/tiny@v2")
  assert 'SentenceTransformer("me/tiny", revision="v2")' in card
  assert "license" not in card
  assert "Not evaluated" in card
