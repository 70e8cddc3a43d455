import dataclasses
import json
import pathlib

import pytest
import tiny_encoders
import tiny_tokenizers

from vmsst import errors
from vmsst.data import vocabularies
from vmsst.encoder import starting_encoders
from vmsst.formats import encoder_json, tokenizers
from vmsst.networks import sentence_encoder, t5
from vmsst.networks import vmsst as networks

CONFIG = tiny_encoders.t5_config(vocab_size=300, dropout_rate=0.1, dtype="bfloat16")
ENCODER = sentence_encoder.SentenceEncoder(CONFIG, latent_dim=6)


def edit(folder, **changes):
  path = folder / encoder_json.ENCODER_FILE
  path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.fixture
def saved(tmp_path) -> pathlib.Path:
  encoder_json.save_encoder_assets(
    tiny_encoders.model_of(ENCODER, vocabularies.ByteVocabulary(lowercase=True), 17), tmp_path
  )
  return tmp_path


def test_round_trip_of_an_encoder_of_bytes(saved):
  loaded = encoder_json.load_encoder_assets(saved)
  bytes_ = vocabularies.ByteVocabulary(lowercase=True)
  assert loaded == encoder_json.EncoderAssets(ENCODER, bytes_, 17)
  assert [path.name for path in saved.iterdir()] == ["encoder.json"]  # no partial file stays


def test_round_trip_with_sentencepiece_needs_only_the_folder(tmp_path):
  spm_path = tmp_path / "tiny.model"
  sentences = ["one two three four", "five six seven eight"]
  spm_path.write_bytes(tiny_tokenizers.sentencepiece_model(sentences))
  vocabulary = vocabularies.SentencePieceVocabulary(str(spm_path), True, pretokenize=True)
  model = tiny_encoders.model_of(ENCODER, vocabulary)
  for _ in range(2):  # A restarted run writes the files a second time.
    encoder_json.save_encoder_assets(model, tmp_path / "first", ["eng", "deu"])
  moved = (tmp_path / "first").rename(tmp_path / "moved")
  loaded = encoder_json.load_encoder_assets(moved)
  assert loaded.languages == ("deu", "eng")
  assert loaded.vocabulary == dataclasses.replace(vocabulary, path=str(moved / "vocabulary.model"))
  assert loaded.vocabulary.encode(["one"], 9, "en") == vocabulary.encode(["one"], 9, "en")
  # A changed vocabulary is an error.
  with open(moved / "vocabulary.model", "ab") as stream:
    stream.write(b"\0")
  with pytest.raises(errors.InputError, match=r"vocabulary\.model is not the vocabulary"):
    encoder_json.load_encoder_assets(moved)


GENERATOR = networks.VmsstNetwork(
  CONFIG, latent_dim=6, num_languages=4, factorized=True, decoder_groups=(-1, 0, 1, 1)
)


@pytest.mark.parametrize(
  "network", [GENERATOR, networks.BitranslationNetwork(CONFIG, latent_dim=6, num_decoder_layers=2)]
)
def test_the_network_of_a_run_with_a_decoder_travels_with_all_of_its_attributes(network, tmp_path):
  model = tiny_encoders.model_of(ENCODER, network=network)
  encoder_json.save_encoder_assets(model, tmp_path)
  loaded = encoder_json.load_encoder_assets(tmp_path)
  assert loaded.generator == network
  assert loaded.network == model.sentence_encoder


def test_a_vocabulary_larger_than_the_table_is_refused_before_training(tmp_path):
  small = sentence_encoder.SentenceEncoder(t5.T5Config(vocab_size=200), latent_dim=6)
  with pytest.raises(errors.InputError, match=r"259 pieces, .* only 200 rows"):
    encoder_json.save_encoder_assets(tiny_encoders.model_of(small), tmp_path / "run")
  assert not (tmp_path / "run").exists()


NETWORK = {
  "class": "SentenceEncoder",
  "config_class": "T5Config",
  "config": {"vocab_size": 300},
  "latent_dim": 6,
}


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"network": {**NETWORK, "class": "os.system"}}, "'os.system' is not one of SentenceEncoder"),
    ({"network": {**NETWORK, "config": {"vocab_size": 300, "emb_dim": "8"}}}, "emb_dim"),
    ({"network": {**NETWORK, "config": {"vocab_size": 300, "dtype": "int8"}}}, "int8"),
    ({"vocabulary": {"kind": "pickle", "lowercase": False}}, "pickle"),
  ],
)
def test_each_bad_value_is_named(saved, changes, message):
  edit(saved, **changes)
  with pytest.raises(errors.InputError, match=message) as caught:
    encoder_json.load_encoder_assets(saved)
  assert "encoder.json" in str(caught.value)


def test_a_run_inherits_the_properties_of_its_encoder(tmp_path, tokenizer_files):
  vocabulary = tokenizers.HuggingFaceVocabulary(
    str(tokenizer_files["bert"]), "query: ", {"query": "query: ", "passage": "passage: "}
  )
  network = sentence_encoder.SentenceEncoder(
    tiny_encoders.BERT, 16, head=False, pooling="cls", pooler_dim=16, normalize=True
  )
  model = tiny_encoders.model_of(network, vocabulary, max_length=7)
  run = tiny_encoders.save_run(tmp_path / "run", model)
  for path in (run, run / "checkpoint_0"):
    assert starting_encoders.pooling(path) == "cls"
    assert starting_encoders.pooler_dim(path) == 16
    assert starting_encoders.normalize(path) is True
  own = dataclasses.replace(vocabulary, path=str(run / "tokenizer.json"))
  inherited = starting_encoders.vocabulary(run)
  assert (inherited, inherited.prompts) == (own, vocabulary.prompts)
  changed = starting_encoders.vocabulary(run, prefix="", prompts={"a": "b"})
  assert (changed.prefix, changed.prompts) == ("", {"a": "b"})
  assert starting_encoders.max_length(run) == 7
  edit(run, max_length=19)  # as if another run were there now
  assert starting_encoders.max_length(run) == 19
  with pytest.raises(errors.InputError, match="has no SentencePiece model; set"):
    starting_encoders.sentencepiece_model(run)
  assert (starting_encoders.max_length(None), starting_encoders.pooling(None)) == (512, "mean")
  with pytest.raises(errors.InputError, match=r"no folder .*checkpoint_1"):
    starting_encoders.normalize(run / "checkpoint_1")
