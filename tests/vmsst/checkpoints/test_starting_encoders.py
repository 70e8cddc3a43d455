import pytest
import tiny_encoders

from vmsst import errors
from vmsst.checkpoints import encoder_json, starting_encoders
from vmsst.networks import bert, sentence_encoder
from vmsst.text import hugging_face_vocabulary

CONFIG = bert.BertConfig(
  vocab_size=400, emb_dim=8, num_heads=2, mlp_dim=8, num_layers=1, max_positions=9
)


def test_a_run_inherits_the_properties_of_its_encoder(tmp_path, tokenizer_files):
  vocabulary = hugging_face_vocabulary.HuggingFaceVocabulary(
    str(tokenizer_files["bert"]), "query: ", {"query": "query: ", "passage": "passage: "}
  )
  network = sentence_encoder.SentenceEncoder(
    CONFIG, 8, head=False, pooling="pooler", normalize=True
  )
  model = tiny_encoders.model_of(network, vocabulary, max_length=7)
  run = tiny_encoders.save_run(tmp_path / "run", model)
  for path in (run, run / "checkpoint_0"):
    assert starting_encoders.pooling(path) == "pooler"
    assert starting_encoders.normalize(path) is True
  assert starting_encoders.prefix(run) == "query: "
  assert starting_encoders.prompts(run) == vocabulary.prompts
  assert starting_encoders.max_length(run) == 7
  assert starting_encoders.tokenizer(run) == str(run / "tokenizer.json")
  with pytest.raises(errors.InputError, match=r"no vocabulary.model next to .*checkpoint_0"):
    starting_encoders.sentencepiece_model(run)
  (run / encoder_json.ENCODER_FILE).unlink()
  with pytest.raises(errors.InputError, match=r"encoder.json does not exist.* Set sentence_enc"):
    starting_encoders.pooling(run / "checkpoint_0")
  with pytest.raises(errors.InputError, match=r"no folder .*checkpoint_1"):
    starting_encoders.normalize(run / "checkpoint_1")


def test_a_dry_run_has_no_encoder():
  assert (starting_encoders.prefix(None), starting_encoders.prompts(None)) == ("", {})
  assert starting_encoders.max_length(None) == 512
  assert starting_encoders.pooling(None) == "mean"
  assert starting_encoders.normalize(None) is False
