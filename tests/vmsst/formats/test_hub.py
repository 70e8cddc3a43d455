"""Encoders by name, from a server that speaks the protocol of the Hugging Face Hub."""

import functools
import importlib.util
import json
import os
import pathlib
import re
import shutil

import commands
import conversions
import entry_points
import fake_hub
import numpy as np
import pytest
import released_folders
import tiny_encoders
import tiny_hugging_face
import tiny_tokenizers
import trials

import vmsst
from vmsst import cli, errors
from vmsst.encoder import loading
from vmsst.formats import hub as hub_lib
from vmsst.formats import sentence_transformers
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


def name_of(case):
  return re.sub(r"[^\w.]+", "-", f"{case[0]} {case[1]}")[:90]


def ids_of(folder, texts, prompt=None):
  """Returns the tokenizer's own ids of texts with the default prompt, or with another."""
  assets = sentence_transformers.read(folder).assets
  vocabulary, pad = assets.vocabulary, assets.vocabulary.padding_id
  if prompt is not None:
    vocabulary = vocabulary.with_prefix(vocabulary.prompts.get(prompt, ""))
  ids = vocabulary.encode(texts, assets.max_length)
  return [tiny_tokenizers.swap_padding(np.array(x), pad).tolist() for x in ids]


def test_a_default_token_outside_the_table_is_left_out(tmp_path):
  # transformers adds <mask> with the id 6, which no text may spell.
  pieces = [[x, -float(i)] for i, x in enumerate(("<s>", "<pad>", "</s>", "<unk>", "▁", "a"))]
  folder = released_folders.write(
    tmp_path / "m",
    "xlmr",
    {"config.json": {"vocab_size": 6}, "tokenizer.json": {"model": {"vocab": pieces}}},
  )
  record = json.loads((folder / "tokenizer.json").read_text())
  (folder / "tokenizer.json").write_text(json.dumps({**record, "added_tokens": []}))
  assert loading.convert(folder).assets is not None
  assert ids_of(folder, ["a a"]) == [[0, 4, 5, 4, 5, 2]]


_OWN = {"query": "q: ", "passage": "p: "}
_SAVED_AGAIN = {"query": "q: ", "document": "", "passage": "p: "}


@pytest.mark.parametrize(
  ("name", "file", "expected"),
  [
    ("m", None, ("", {})),
    ("m", {"prompts": _OWN}, ("", {**_OWN, "document": "p: "})),
    ("m", {"prompts": _SAVED_AGAIN}, ("", {**_OWN, "document": "p: "})),
    ("m", {"prompts": {"corpus": "c: "}}, ("", {"query": "", "document": "c: ", "corpus": "c: "})),
    (
      "m",
      {"prompts": {"x": "x: "}, "default_prompt_name": "x"},
      ("x: ", {"query": "", "document": "", "x": "x: "}),
    ),
    ("my-e5", None, ("query: ", {"query": "query: ", "passage": "passage: "})),
    ("my-e5", {"similarity_fn_name": "dot"}, ("query: ", {"query": "query: "})),
    ("models--a--my-e5-base/snapshots/0a1b", None, ("query: ", {"passage": "passage: "})),
    ("multilingual-e5-large-instruct", None, ("", {})),
    ("e5000/labse", None, ("", {})),
    ("my-e5", {"prompts": {}}, ("", {})),
    ("my-e5", {"prompts": _OWN, "default_prompt_name": None}, ("", {**_OWN, "document": "p: "})),
    ("my-e5", {"default_prompt_name": None}, ("", {})),
  ],
)
def test_prompts_are_those_of_the_files(tmp_path, name, file, expected):
  released_folders.write(tmp_path / name, "bert", {"config_sentence_transformers.json": None})
  if file is not None:
    (tmp_path / name / "config_sentence_transformers.json").write_text(json.dumps(file))
  released = sentence_transformers.read(tmp_path / name).assets.vocabulary
  assert (released.prefix, released.prompts | expected[1]) == (expected[0], released.prompts)
  assert bool(released.prompts) == bool(expected[1])


@pytest.mark.parametrize("case", released_folders.HONORED, ids=name_of)
@pytest.mark.filterwarnings("ignore")  # those of other libraries
def test_ids_equal_those_of_sentence_transformers(tmp_path, case):
  st = pytest.importorskip(
    "sentence_transformers", reason="needs sentence-transformers to compare with"
  )
  folder = released_folders.write(tmp_path / "m", *case)
  theirs = st.SentenceTransformer(str(folder), device="cpu")
  assert theirs[0].modalities == ["text"]
  default = theirs.prompts.get(theirs.default_prompt_name or "", "")
  for name, prompt in ((None, default), *theirs.prompts.items()):
    found = theirs.preprocess(released_folders.TEXTS, prompt=prompt)
    expected = [
      ids[mask == 1].tolist()
      for ids, mask in zip(found["input_ids"], found["attention_mask"], strict=True)
    ]
    assert ids_of(folder, released_folders.TEXTS, name) == expected, name


@pytest.mark.parametrize("case", released_folders.POOLED, ids=name_of)
@pytest.mark.filterwarnings("ignore")  # those of other libraries
def test_vectors_equal_those_of_sentence_transformers(tmp_path, case, capsys):
  st = pytest.importorskip(
    "sentence_transformers", reason="needs sentence-transformers to compare with"
  )
  folder = released_folders.write(tmp_path / "m", *case)
  theirs = st.SentenceTransformer(str(folder), device="cpu")
  assert cli.main(["import", "encoder", str(folder), str(tmp_path / "out")]) == 0
  assert f"vmsst.load('{tmp_path / 'out'}')" in capsys.readouterr().out
  ours = vmsst.load(tmp_path / "out", backend="jax")
  for name in ("encode", "encode_query", "encode_document"):
    expected = getattr(theirs, name)(released_folders.TEXTS, show_progress_bar=False)
    found = getattr(ours, name)(released_folders.TEXTS, progress=False, on_cut=None)
    np.testing.assert_allclose(found, expected, atol=2e-5, rtol=0, err_msg=name)


@pytest.mark.parametrize("chain", released_folders.CHAINS, ids=lambda x: " ".join([*x][2::2]))
@pytest.mark.filterwarnings("ignore")  # those of other libraries
def test_vectors_of_every_chain_survive_loading_and_exports(tmp_path, chain):
  st = pytest.importorskip(
    "sentence_transformers", reason="needs sentence-transformers to compare with"
  )
  folder, texts = released_folders.write(tmp_path / "m", "bert", chain), released_folders.LINES
  expected = st.SentenceTransformer(str(folder), device="cpu").encode(texts)
  ours = vmsst.load(folder, backend="jax")
  found = ours.encode(texts, on_cut=None)
  np.testing.assert_allclose(found, expected, atol=2e-5, rtol=0)
  conversions.export_sentence_transformers(folder, tmp_path / "st")
  (tmp_path / "copy").mkdir()
  shutil.copytree(tmp_path / "st", tmp_path / "copy" / "m")
  (tmp_path / "copy" / "m" / "encoder.json").unlink()  # read as of another library
  conversions.export_safetensors(folder, tmp_path / "safetensors")
  for path in ("st", "copy/m", "safetensors"):
    again = vmsst.load(tmp_path / path, backend="jax").encode(texts, on_cut=None)
    np.testing.assert_array_equal(again, found, err_msg=path)
  again = st.SentenceTransformer(str(tmp_path / "st"), device="cpu").encode(texts)
  np.testing.assert_allclose(again, expected, atol=2e-5, rtol=0)
  if importlib.util.find_spec("onnxruntime"):
    again = vmsst.load(folder, backend="onnx").encode(texts, on_cut=None)
    np.testing.assert_allclose(again, expected, atol=2e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", released_folders.ARCHITECTURES)
@pytest.mark.filterwarnings("ignore")  # those of other libraries
def test_vectors_of_every_architecture_survive_loading_and_export(tmp_path, name):
  st = pytest.importorskip(
    "sentence_transformers", reason="needs sentence-transformers to compare with"
  )
  folder = released_folders.write_architecture(tmp_path, name)
  theirs = st.SentenceTransformer(str(folder), device="cpu")
  conversions.export_sentence_transformers(folder, tmp_path / "out")
  again = st.SentenceTransformer(str(tmp_path / "out"), device="cpu")
  ours, texts = vmsst.load(folder, backend="jax"), released_folders.LINES
  for prompt in (None, "query"):
    expected = theirs.encode(texts, prompt_name=prompt, show_progress_bar=False)
    found = ours.encode(texts, prompt_name=prompt, show_progress_bar=False)
    np.testing.assert_allclose(found, expected, atol=5e-6, rtol=0)
    exported = vmsst.load(tmp_path / "out", backend="jax").encode(texts, prompt_name=prompt)
    np.testing.assert_array_equal(exported, found)
    found = again.encode(texts, prompt_name=prompt, show_progress_bar=False)
    np.testing.assert_allclose(found, expected, atol=5e-6, rtol=0)


@pytest.fixture(scope="module")
def architectures(tmp_path_factory):
  """Writes each model once."""
  root = tmp_path_factory.mktemp("architectures")
  return functools.cache(lambda name: released_folders.write_architecture(root / name, name))


@pytest.mark.parametrize("case", released_folders.VARIATIONS, ids=name_of)
@pytest.mark.filterwarnings("ignore")  # those of other libraries
def test_vectors_of_other_files_equal_those_of_sentence_transformers(tmp_path, case, architectures):
  st = pytest.importorskip(
    "sentence_transformers", reason="needs sentence-transformers to compare with"
  )
  name, changes = case
  folder = shutil.copytree(architectures(name), tmp_path / "m")
  released_folders.change(folder, changes)
  theirs = st.SentenceTransformer(str(folder), device="cpu")
  expected = theirs.encode(released_folders.LINES, show_progress_bar=False)
  found = vmsst.load(folder, backend="jax").encode(released_folders.LINES, on_cut=None)
  np.testing.assert_allclose(found, expected, atol=2e-5, rtol=0)


@pytest.mark.filterwarnings("ignore")  # those of other libraries
def test_options_that_transformers_reads_otherwise_are_refused(tmp_path, architectures):
  pytest.importorskip("sentence_transformers", reason="needs sentence-transformers for its files")
  folder = shutil.copytree(architectures("qwen3"), tmp_path / "m")
  model = json.loads((folder / "tokenizer.json").read_text())["model"]
  for name, content, message in (
    ("tokenizer.json", {"model": model | {"ignore_merges": True}}, "ignore_merges"),
    ("tokenizer.json", {"model": model}, None),
    ("config.json", {"rope_parameters": {"type": "linear", "factor": 4.0}}, "rope_parameters.type"),
  ):
    released_folders.change(folder, {name: content})
    if message:
      with pytest.raises(errors.InputError, match=message):
        vmsst.load(folder, backend="jax")


@pytest.mark.parametrize("case", released_folders.REFUSED, ids=name_of)
def test_what_cannot_be_expressed_is_refused(tmp_path, case):
  kind, changes, (file, key) = case
  folder = released_folders.write(tmp_path / "m", kind, changes)
  with pytest.raises(errors.InputError, match=rf"{re.escape(str(folder))}.*{key}") as caught:
    conversions.import_encoder(folder, tmp_path / "out")
  assert file in str(caught.value)
  assert not (tmp_path / "out").exists()
