"""Compares released encoders and exports with sentence-transformers and `vmsst.load`."""

import functools
import hashlib
import importlib.util
import json
import re
import shutil

import commands
import memory_store
import numpy as np
import pytest
import released_folders
import tiny_encoders
from etils import epath
from safetensors.numpy import load_file
from tiny_encoders import BERT, NETWORKS, T5, encoder

import vmsst
from vmsst import cli, errors
from vmsst.encoder import loading
from vmsst.formats import encoder_json, sentence_transformers, t5x, tokenizers
from vmsst.networks import lstm

pytestmark = pytest.mark.filterwarnings("ignore")  # Other libraries warn.


@pytest.mark.parametrize(
  ("case", "kind"),
  [("t5", "sample"), ("t5 scanned", "unigram"), ("ems", "ems"), ("labse", "bert"), ("e5", "xlmr")],
)
def test_sentence_transformers_gives_the_same_vectors(
  case, kind, vocabulary_of, tokenizer_files, sentences, tmp_path, st
):
  network = NETWORKS[case]
  if kind in tokenizer_files:
    vocabulary = tokenizers.HuggingFaceVocabulary(str(tokenizer_files[kind]), "query: ")
  else:
    vocabulary = vocabulary_of(kind)
  run = tiny_encoders.save_run(
    tmp_path / "run",
    tiny_encoders.model_of(network, vocabulary, max_length=28),
    languages=["deu", "eng"],
  )
  out = tmp_path / "out"
  released_folders.export(run, out)
  texts = sentences + released_folders.ODD
  if kind in tokenizer_files:
    # transformers treats "<pad>" as padding, this library as unknown text.
    texts.remove("</s> a <pad>")
  opened = st.SentenceTransformer(str(out), device="cpu", local_files_only=True)
  expected_ND = vmsst.load(run, dtype="float32", backend="jax").encode(
    texts, batch_size=256, on_cut=None
  )
  found_ND = opened.encode(texts, show_progress_bar=False)
  assert found_ND.shape == expected_ND.shape
  assert np.ptp(expected_ND, axis=0).min() > 0.01
  np.testing.assert_allclose(found_ND, expected_ND, atol=2e-5, rtol=0)
  name, again = loading.open_encoder(str(out), dtype="float32", backend="jax")
  assert (name, again.languages) == (str(out), ("deu", "eng"))
  np.testing.assert_allclose(
    again.encode(texts, batch_size=256, on_cut=None), expected_ND, atol=1e-6, rtol=0
  )


# An encoder's prefix and prompts, and the prompts that `encode`, `encode_query` and
# `encode_document` should use.
PROMPTS = [
  ("query: ", {"passage": "text: "}, ("query: ", "query: ", "text: ")),
  ("", {"query": "query: ", "corpus": "text: "}, ("", "query: ", "text: ")),
  ("query: ", {"query": "a ", "passage": "b ", "default": "c "}, ("query: ", "a ", "b ")),
]


@pytest.mark.parametrize(("prefix", "prompts", "expected"), PROMPTS)
def test_all_prompts_go_there_and_back(prefix, prompts, expected, tokenizer_files, tmp_path, st):
  """Compares an encoder, its export in both libraries, and an import of the export."""
  run, out = tmp_path / "run", tmp_path / "out"
  vocabulary = tokenizers.HuggingFaceVocabulary(str(tokenizer_files["bert"]), prefix, prompts)
  tiny_encoders.save_run(
    run, tiny_encoders.model_of(encoder(BERT, head=False), vocabulary, max_length=28)
  )
  original = vmsst.load(run)
  original.save(out)
  export = vmsst.load(out)
  (out / "encoder.json").unlink()
  released_folders.import_encoder(out, tmp_path / "back")
  opened = [original, export, vmsst.load(tmp_path / "back")]
  opened.append(st.SentenceTransformer(str(out), device="cpu"))
  for method, prompt in zip(("encode", "encode_query", "encode_document"), expected, strict=True):
    expected_ND = original.encode(["Welt", "eine Welt"], prefix=prompt)
    for each in opened:
      np.testing.assert_allclose(
        getattr(each, method)(["Welt", "eine Welt"]), expected_ND, atol=1e-5
      )
  for name, prompt in prompts.items():
    assert opened[-1].prompts[name] == opened[2].prompts[name] == prompt


@pytest.mark.parametrize("kind", ["bert", "xlmr"])
def test_a_trimmed_encoder_has_the_same_vectors_of_its_texts(kind, tmp_path):
  prompts = {"config_sentence_transformers.json": {"prompts": {"query": "query: "}}}
  whole = vmsst.load(released_folders.write(tmp_path / "m", kind, prompts))
  texts, other = ["the red apple", "museum"], ["Café is open", "世界 ents"]
  trimmed = whole.trim(texts)
  assert trimmed.vocabulary.size < whole.vocabulary.size
  trimmed.save(tmp_path / "out")
  for found in (trimmed, vmsst.load(tmp_path / "out")):
    for method in ("encode", "encode_query"):
      expected_ND = getattr(whole, method)(texts)
      np.testing.assert_allclose(getattr(found, method)(texts), expected_ND, atol=1e-6)
    assert np.ptp(found.encode(other), axis=0).min() > 0


@pytest.mark.parametrize("name", ["distilbert", "modernbert", "qwen3", "t5"])
def test_a_truncated_encoder_equals_a_folder_with_fewer_layers(name, tmp_path, st):
  folder = released_folders.write_architecture(tmp_path, name)
  texts = ["the red apple", "Café is open"]
  truncated = vmsst.load(folder).truncate(2)
  truncated.save(tmp_path / "out")
  config = json.loads((folder / "config.json").read_text())
  for key in {"num_hidden_layers", "num_layers", "n_layers"} & config.keys():
    config[key] = 2
  if "layer_types" in config:
    config["layer_types"] = config["layer_types"][:2]
  (folder / "config.json").write_text(json.dumps(config))
  expected_ND = st.SentenceTransformer(str(folder), device="cpu").encode(texts)
  for found in (truncated, st.SentenceTransformer(str(tmp_path / "out"), device="cpu")):
    np.testing.assert_allclose(found.encode(texts), expected_ND, atol=1e-5)
  with pytest.raises(errors.InputError, match="layers is 2; set it to an integer from 1 to 1"):
    truncated.truncate(2)


def test_an_encoder_unknown_to_transformers_is_refused(tmp_path):
  config = lstm.LstmConfig(vocab_size=300, emb_dim=8, hidden_dim=8, num_layers=1)
  run = tiny_encoders.save_run(
    tmp_path / "run", tiny_encoders.model_of(encoder(config, 16), max_length=40)
  )
  with pytest.raises(errors.InputError, match=r"LstmConfig.*vmsst export safetensors"):
    released_folders.export(run, tmp_path / "out")
  assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("form", ["safetensors", "sentence-transformers"])
def test_an_export_in_a_store_is_that_on_this_machine(form, tmp_path, monkeypatch):
  store = memory_store.installed(monkeypatch)
  run = tiny_encoders.save_run(
    tmp_path / "run", tiny_encoders.model_of(encoder(BERT, head=False), max_length=20)
  )
  url = f"gs://bucket/{form}"
  assert commands.vmsst("export", form, run, tmp_path / form) == 0
  expected = {path.name: path.read_bytes() for path in (tmp_path / form).glob("*.*")}
  assert commands.vmsst("export", form, run, f"{url}/") == 0
  assert {name: store.cat_file(f"{url}/{name}") for name in expected} == expected
  assert loading.read(url).arrays.keys() == loading.read(run).arrays.keys()
  store.pipe_file(f"{url}/model.safetensors", b"no")
  with pytest.raises(errors.InputError, match=f"^{url}/model.safetensors is damaged"):
    vmsst.load(url)


def test_a_folder_of_safetensors_is_the_encoder_alone(vocabulary_of, tmp_path):
  run = tiny_encoders.save_run(
    tmp_path / "run",
    tiny_encoders.model_of(encoder(T5, 12), vocabulary_of("sample"), max_length=40),
    languages=["deu", "eng"],
  )
  # The export contains no other parameters of the run.
  stored = tiny_encoders.read_arrays(run / "checkpoint_0")
  others = {"decoder/kernel": np.ones((3, 3), np.float32)}
  t5x.write_params(epath.Path(run / "checkpoint_1"), {**stored, **others})
  assert commands.vmsst("export", "safetensors", run, tmp_path / "out") == 0
  path = tmp_path / "out" / "model.safetensors"
  content = path.read_bytes()
  assert load_file(path).keys() == stored.keys()
  expected, found = vmsst.load(run), vmsst.load(tmp_path / "out")
  assert found.languages == expected.languages == ("deu", "eng")
  np.testing.assert_allclose(
    *(each.encode(released_folders.ODD, on_cut=None) for each in (found, expected)),
    rtol=0,
    atol=1e-6,
  )
  # Changed weights are an error. Other libraries do not write checksums.
  place = int(0.9 * len(content))
  path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
  with pytest.raises(errors.InputError, match=r"model\.safetensors is damaged: .* SHA-256"):
    vmsst.load(tmp_path / "out")
  path.write_bytes(content)
  record = json.loads((tmp_path / "out" / "encoder.json").read_bytes())
  assert record.pop("weights") == {"model.safetensors": hashlib.sha256(content).hexdigest()}
  (tmp_path / "out" / "encoder.json").write_text(json.dumps(record))
  assert vmsst.load(tmp_path / "out").dimension == 12


@pytest.mark.parametrize(
  ("name", "prefix"),
  [
    ("my-e5", "query: "),
    ("models--a--my-e5-base/snapshots/0a1b", "query: "),
    ("multilingual-e5-large-instruct", ""),
  ],
)
def test_the_prompts_of_an_e5_follow_from_its_name(tmp_path, name, prefix):
  released_folders.write(tmp_path / name, "bert", {"config_sentence_transformers.json": None})
  vocabulary = sentence_transformers.read(tmp_path / name).assets.vocabulary
  assert vocabulary.prefix == prefix
  assert vocabulary.prompts.get("document", "") == prefix.replace("query", "passage")


@pytest.mark.parametrize("case", released_folders.POOLED, ids=released_folders.name_of)
def test_vectors_equal_those_of_sentence_transformers(tmp_path, case, capsys, st):
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
def test_vectors_of_every_chain_survive_loading_and_exports(tmp_path, chain, st):
  folder, texts = released_folders.write(tmp_path / "m", "bert", chain), released_folders.LINES
  expected = st.SentenceTransformer(str(folder), device="cpu").encode(texts)
  ours = vmsst.load(folder, backend="jax")
  found = ours.encode(texts, on_cut=None)
  np.testing.assert_allclose(found, expected, atol=2e-5, rtol=0)
  released_folders.export(folder, tmp_path / "st")
  (tmp_path / "copy").mkdir()
  shutil.copytree(tmp_path / "st", tmp_path / "copy" / "m")
  (
    tmp_path / "copy" / "m" / "encoder.json"
  ).unlink()  # Without it, the folder is read like a folder of another library.
  released_folders.export(folder, tmp_path / "safetensors", encoder_json)
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
def test_vectors_of_every_architecture_survive_loading_and_export(tmp_path, name, st):
  folder = released_folders.write_architecture(tmp_path, name)
  theirs = st.SentenceTransformer(str(folder), device="cpu")
  released_folders.export(folder, tmp_path / "out")
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
  """Returns a function that writes each model once."""
  root = tmp_path_factory.mktemp("architectures")
  return functools.cache(lambda name: released_folders.write_architecture(root / name, name))


@pytest.mark.parametrize("case", released_folders.VARIATIONS, ids=released_folders.name_of)
def test_vectors_of_other_files_equal_those_of_sentence_transformers(
  tmp_path, case, architectures, st
):
  name, changes = case
  folder = shutil.copytree(architectures(name), tmp_path / "m")
  released_folders.change(folder, changes)
  theirs = st.SentenceTransformer(str(folder), device="cpu")
  expected = theirs.encode(released_folders.LINES, show_progress_bar=False)
  found = vmsst.load(folder, backend="jax").encode(released_folders.LINES, on_cut=None)
  np.testing.assert_allclose(found, expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("case", released_folders.REFUSED, ids=released_folders.name_of)
def test_what_cannot_be_expressed_is_refused(tmp_path, case):
  kind, changes, (file, key) = case
  folder = released_folders.write(tmp_path / "m", kind, changes)
  with pytest.raises(errors.InputError, match=rf"{re.escape(str(folder))}.*{key}") as caught:
    released_folders.import_encoder(folder, tmp_path / "out")
  assert file in str(caught.value)
  assert not (tmp_path / "out").exists()
