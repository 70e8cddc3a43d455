"""Compares the vectors of ONNX Runtime with the vectors of `encode`."""

import dataclasses
import json

import commands
import numpy as np
import pytest
import released_folders
import tiny_encoders
import tokenizers
from tiny_encoders import NETWORKS

import vmsst
from vmsst.data import sample, vocabularies

onnxruntime = pytest.importorskip("onnxruntime", reason="needs ONNX Runtime")
onnx = pytest.importorskip("onnx", reason="needs onnx to write models")

# Empty, blank and misleading texts, and a text longer than the maximum length of all encoders.
TEXTS = ["Wie geht es dir?", "", " ", "word " * 300, "▁a\tb\u3000c", "今日は。", "a <pad> </s>"]
SAMPLE = vocabularies.SentencePieceVocabulary(sample.vocabulary_path())


def saved(name, folder, tokenizer_files):
  if name == "e5":
    released_folders.save_me5(folder / "multilingual-e5", tokenizer_files["xlmr"])
    return folder / "multilingual-e5"
  model = tiny_encoders.model_of(NETWORKS[name], SAMPLE, max_length=28)
  return tiny_encoders.save_run(folder / "run", model)


def run_export(folder, texts):
  """Returns the vectors of an export, computed as docs/how-to/mining_and_search.md shows."""
  tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
  session = onnxruntime.InferenceSession(folder / "model.onnx")
  batch = tokenizer.encode_batch(texts)
  ids, masks = [x.ids for x in batch], [x.attention_mask for x in batch]
  (vectors,) = session.run(None, {"input_ids": ids, "attention_mask": masks})
  return vectors


@pytest.mark.parametrize("name", ["t5", "e5"])
def test_onnx_runtime_gives_the_vectors_of_encode(name, tokenizer_files, tmp_path, capsys):
  run = saved(name, tmp_path, tokenizer_files)
  assert commands.vmsst("export", "onnx", run, tmp_path / "out") == 0
  prefix = "query: " if name == "e5" else ""
  assert ("Put 'query: ' before each text, as encode does" in capsys.readouterr().out) == bool(
    prefix
  )
  for model in ("model.onnx", "last_hidden_state.onnx"):
    onnx.checker.check_model(str(tmp_path / "out" / model), full_check=True)
  # sentence-transformers opens the model that returns hidden states.
  options = json.loads((tmp_path / "out" / "sentence_bert_config.json").read_text())
  assert options["model_args"] == {"file_name": "last_hidden_state.onnx"}
  # An imported tokenizer treats "<pad>" as padding.
  texts = TEXTS[:-1] if name == "e5" else TEXTS
  expected_ND = vmsst.load(run, dtype="float32", backend="jax").encode(texts, on_cut=None)
  assert np.ptp(expected_ND, axis=0).min() > 1e-3
  for count in (1, 3, len(texts)):
    found_BD = run_export(tmp_path / "out", [prefix + text for text in texts[:count]])
    assert found_BD.dtype == np.float32
    np.testing.assert_allclose(found_BD, expected_ND[:count], atol=1e-5, rtol=0)


def test_the_models_are_named_as_in_optimum_and_read_the_mask(tmp_path):
  run = tiny_encoders.save_run(tmp_path / "run", tiny_encoders.model_of(NETWORKS["t5"]))
  assert commands.vmsst("export", "onnx", run, tmp_path / "out") == 0
  assert (tmp_path / "out/model.onnx_data").stat().st_size >= 3700 * 16 * 4
  axes = ["batch_size", "sequence_length"]
  sessions = [
    onnxruntime.InferenceSession(tmp_path / "out" / name)
    for name in ("model.onnx", "last_hidden_state.onnx")
  ]
  made = ("sentence_embedding", [axes[0], 12]), ("last_hidden_state", [*axes, 16])
  for session, output in zip(sessions, made, strict=True):
    inputs, outputs = session.get_inputs(), session.get_outputs()
    assert {x.name: (x.type, x.shape) for x in [*inputs, *outputs]} == {
      "input_ids": ("tensor(int64)", axes),
      "attention_mask": ("tensor(int64)", axes),
      output[0]: ("tensor(float)", output[1]),
    }
  ids = np.random.default_rng(0).integers(1, 3700, (3, 90))
  mask = (np.arange(90) < np.array([[90], [41], [0]])).astype(np.int64)
  (expected_BD,) = sessions[0].run(None, {"input_ids": ids, "attention_mask": mask})
  (found_BD,) = sessions[0].run(None, {"input_ids": ids * mask, "attention_mask": mask})
  np.testing.assert_allclose(found_BD, expected_BD, rtol=0, atol=1e-6)
  assert not expected_BD[2].any()


def test_an_encoder_that_transformers_lacks_is_exported(tmp_path):
  network = NETWORKS["ems"]
  config = dataclasses.replace(network.config, norm_place="before", vocab_size=3700)
  model = tiny_encoders.model_of(network.clone(config=config), SAMPLE)
  run = tiny_encoders.save_run(tmp_path / "run", model)
  assert commands.vmsst("export", "sentence-transformers", run, tmp_path / "st") == 1
  assert commands.vmsst("export", "onnx", run, tmp_path / "out") == 0
  assert not (tmp_path / "out" / "modules.json").exists()


def test_a_vocabulary_that_splits_words_has_a_tokenizer_for_split_texts(tmp_path, capsys):
  vocabulary = dataclasses.replace(SAMPLE, pretokenize=True)
  model = tiny_encoders.model_of(NETWORKS["t5"], vocabulary)
  run = tiny_encoders.save_run(tmp_path / "run", model)
  assert commands.vmsst("export", "onnx", run, tmp_path / "out") == 1
  assert "vmsst.data.word_splitting.split_words" in capsys.readouterr().err
  assert commands.vmsst("export", "onnx", run, tmp_path / "words", "--pretokenized") == 0
  assert "split into words first" in capsys.readouterr().out
  texts = ["Ein Satz .", "noch einer"]
  unsplit = tiny_encoders.save_run(
    tmp_path / "unsplit", tiny_encoders.model_of(NETWORKS["t5"], SAMPLE)
  )
  expected_BD = vmsst.load(unsplit, backend="jax").encode(texts)
  np.testing.assert_allclose(run_export(tmp_path / "words", texts), expected_BD, rtol=0, atol=1e-5)
