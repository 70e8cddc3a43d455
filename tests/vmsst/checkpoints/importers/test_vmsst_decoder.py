"""Imports of the decoder and the language encoder, in files with the structure of the paper."""

import json

import numpy as np
import pytest
import tiny_encoders
from etils import epath

import vmsst
from vmsst import cli, errors, languages
from vmsst.checkpoints import t5x
from vmsst.checkpoints.importers import vmsst_decoder, vmsst_release
from vmsst.inference import translation
from vmsst.networks import sentence_encoder
from vmsst.networks import vmsst as networks
from vmsst.text import vocabularies

VOCABULARY = vmsst.gin_dir().parent / "tasks" / "sample" / "vocabulary.model"
CONFIG = tiny_encoders.t5_config(vocab_size=3700, relpos_buckets=8)
NETWORK = networks.VmsstNetwork(CONFIG, latent_dim=8, num_decoder_layers=2)
# Row 1 of the language tables has no code.
CODES = ["de", None, "en", "sw"]
OTHER_NAMES = {
  "languages": CODES,
  "language_encoder": "encoder_lang",
  "decoder": "dec",
  "log_variance": "heads/sem_logvar",
  "language_mean": "heads/lang_mean",
  "language_log_variance": "heads/lang_logvar",
  "encoder_language_table": "encoder_lang_embedding",
  "decoder_language_table": "dec/start",
  "injection_norm": "dec/layers_{i}/latent_norm/scale",
  "injection": "dec/layers_{i}/latent/kernel",
  "injection_order": ["semantic", "language", "hidden"],
  "logits": "lm_head",
  "logits_order": ["hidden", "language", "semantic"],
}
SENTENCES = ["Hello, world!", "the weather", ""]


@pytest.fixture(scope="module")
def params():
  return tiny_encoders.random_params(NETWORK)


def release(params, names):
  """Returns the parameters of a network in the layout that names describe."""
  flat = tiny_encoders.flat(params)
  found = {"projection/kernel": flat.pop("mean/kernel")}

  def joined(hidden, latents, order):
    language, semantic = np.split(flat.pop(latents), 2)
    parts = {"hidden": flat.pop(hidden), "semantic": semantic, "language": language}
    return np.concatenate([parts[name] for name in order])

  found[names.logits] = joined("logits_hidden/kernel", "logits_latent/kernel", names.logits_order)
  for i in range(2):
    layer = f"decoder/layers_{i}"
    found[names.injection.format(i=i)] = joined(
      f"{layer}/injection/hidden/kernel",
      f"{layer}/injection/sentence/kernel",
      names.injection_order,
    )
    found[names.injection_norm.format(i=i)] = flat.pop(f"{layer}/pre_injection_layer_norm/scale")
  for ours, theirs in (
    ("encoder_language_embedder/embedding", names.encoder_language_table),
    ("decoder/language_embedder/embedding", names.decoder_language_table),
  ):
    table = flat.pop(ours)
    rows = [0 if code is None else languages.language(code).index for code in names.languages]
    found[theirs] = table[rows]
  for head in ("log_variance", "language_mean", "language_log_variance"):
    found[getattr(names, head)] = flat.pop(f"{head}/kernel")
  for name, array in flat.items():
    for ours, theirs in (
      ("language_encoder/", names.language_encoder),
      ("decoder/", names.decoder),
    ):
      if name.startswith(ours):
        name = f"{theirs}/{name.removeprefix(ours)}"
        break
    found[name] = array
  return found


def save(folder, params, record, **changes):
  """Writes a checkpoint and the file of its names; returns both paths."""
  path = folder / "names.json"
  path.write_text(json.dumps(record))
  arrays = release(params, vmsst_decoder.read_names(path)) | changes
  arrays = {name: array for name, array in arrays.items() if array is not None}
  t5x.write_params(epath.Path(folder / "checkpoint_100000"), arrays)
  return folder / "checkpoint_100000", path


@pytest.mark.slow
@pytest.mark.parametrize("record", [{"languages": CODES}, OTHER_NAMES], ids=["default", "other"])
def test_the_translator_computes_what_the_network_computes(tmp_path, capsys, params, record):
  checkpoint, names = save(tmp_path, params, record)
  out = tmp_path / "out"
  options = ["--vocabulary", str(VOCABULARY), "--decoder", str(names), "--max-length", "12"]
  assert cli.main(["import", "vmsst", str(checkpoint), str(out), *options]) == 0
  printed = capsys.readouterr().out
  assert "0 tensors (0 numbers) were left out" in printed
  assert "load_translator" in printed

  found = vmsst.load_translator(out)
  assert found.encoder.languages == ("de", "en", "sw")
  vocabulary = vocabularies.SentencePieceVocabulary(str(VOCABULARY))
  encoder = vmsst.Encoder(
    sentence_encoder.SentenceEncoder(CONFIG, 8), params, vocabulary, max_length=12
  )
  expected = translation.Translator(NETWORK, params, encoder)
  for compute in (
    lambda x: x.pair_log_likelihoods(SENTENCES, SENTENCES[::-1], languages=("de", "en")),
    lambda x: x.language_latents(SENTENCES, "de"),
    lambda x: x.encoder.encode(SENTENCES),
  ):
    np.testing.assert_allclose(compute(found), compute(expected), rtol=1e-6)
  assert found.translate(SENTENCES, "sw") == expected.translate(SENTENCES, "sw")
  with pytest.raises(errors.InputError, match="not trained on the language 'fr'"):
    found.translate(SENTENCES, "fr")


@pytest.mark.parametrize(
  ("record", "message"),
  [
    ([], r"names\.json"),
    ({}, "no key 'languages'"),
    ({"languages": CODES, "lm_head": "x"}, r"unknown keys \['lm_head'\]; known: languages, l"),
    ({"languages": "de"}, "'languages' must be a list"),
    ({"languages": [None]}, "'languages' has no language code"),
    ({"languages": ["de", "klingon"]}, "'languages': unknown language code 'klingon'"),
    ({"languages": ["de", "deu"]}, "'de' and 'deu', which are the same language"),
    ({"languages": CODES, "decoder": 3}, "'decoder' is 3; it must be the name"),
    ({"languages": CODES, "logits_order": ["hidden"]}, "'logits_order' is .*in any order"),
  ],
)
def test_a_names_file_that_cannot_be_used_is_refused(tmp_path, record, message):
  path = tmp_path / "names.json"
  path.write_text(json.dumps(record))
  with pytest.raises(errors.InputError, match=message):
    vmsst_decoder.read_names(path)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"log_variance/kernel": None}, "lacks log_variance/kernel .*correct the names in the file"),
    ({"logits_dense": np.ones((24, 3700))}, None),  # next to the decoder: left out
    ({"decoder/layers_0/gate/kernel": np.ones((8, 8))}, "holds decoder/layers_0/gate/kernel"),
    ({"decoder/logits_dense/kernel": np.ones((16, 3700))}, r"\(16, 3700\), not \(24, 3700\)"),
    ({"decoder/language_embedder/embedding": np.ones((3, 8))}, r"\(3, 8\), not \(4, 8\)"),
  ],
)
def test_a_checkpoint_of_another_structure_is_refused(tmp_path, params, changes, message):
  changes = {x: None if y is None else y.astype(np.float32) for x, y in changes.items()}
  checkpoint, names = save(tmp_path, params, {"languages": CODES}, **changes)
  before = sorted(tmp_path.iterdir())
  options = {"vocabulary": VOCABULARY, "decoder": names}
  if message is None:
    imported = vmsst_release.import_vmsst(checkpoint, tmp_path / "out", **options)
    assert {row.source for row in imported.rows if not row.targets} == {*changes}
    return
  with pytest.raises(errors.InputError, match=message):
    vmsst_release.import_vmsst(checkpoint, tmp_path / "out", **options)
  assert sorted(tmp_path.iterdir()) == before
