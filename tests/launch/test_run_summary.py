"""The files that describe a run."""

import sys
import types

from vmsst.checkpoints import encoder_json
from vmsst.launch import run_summary
from vmsst.networks import sentence_encoder, t5
from vmsst.text import vocabularies

CONFIG = t5.T5Config(
  vocab_size=259, emb_dim=8, num_heads=2, head_dim=4, mlp_dim=8, num_encoder_layers=1
)


def test_the_running_runtime_writes_its_own_summary_first(tmp_path, monkeypatch):
  calls = []
  runtime = types.ModuleType("t5x")
  runtime.gin_utils = types.ModuleType("t5x.gin_utils")
  runtime.gin_utils.summarize_gin_config = lambda *args: calls.append(args)
  monkeypatch.setitem(sys.modules, "t5x", runtime)
  monkeypatch.setitem(sys.modules, "t5x.gin_utils", runtime.gin_utils)
  network = sentence_encoder.SentenceEncoder(CONFIG, latent_dim=6)
  model = types.SimpleNamespace(
    sentence_encoder=network,
    network=network,
    vocabulary=vocabularies.ByteVocabulary(),
    max_length=17,
  )
  run_summary.summarize_run(str(tmp_path), None, 5, model, ["eng", "deu"])
  assert calls == [(str(tmp_path), None, 5)]
  loaded = encoder_json.load_encoder_assets(tmp_path)
  assert (loaded.max_length, loaded.languages) == (17, ("deu", "eng"))
