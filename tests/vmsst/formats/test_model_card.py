"""Model cards of runs: what they say, and what they must not say."""

import tiny_encoders
import yaml

from vmsst.encoder import loading
from vmsst.formats import model_card
from vmsst.networks import sentence_encoder

CONFIG = """\
from __gin__ import dynamic_registration

BATCH_SIZE = 16
MIXTURE_OR_TASK_NAME = @bitext.files()
MODEL = @contrastive.ContrastiveModel()
MODEL_DIR = 's3://key:geheim@bucket/private/run'
PATTERNS = \\
    ['/data/private/a.de-en.tsv',
     'https://me:geheim@example.com/private/b.de-en.tsv',
     'https://example.com/c.tsv?token=hf_geheim']
TEACHER = 'hf_geheim'
bitext.files.patterns = %PATTERNS
train/utils.DatasetConfig.mixture_or_task_name = %MIXTURE_OR_TASK_NAME
"""


def test_a_card_has_facts_about_the_run_and_no_secrets(tmp_path):
  network = sentence_encoder.SentenceEncoder(tiny_encoders.t5_config(), latent_dim=6)
  model = tiny_encoders.model_of(network)
  run = tiny_encoders.save_run(tmp_path / "run", model, languages=["deu", "eng"])
  (run / "config.gin").write_text(CONFIG)
  saved = loading.read(run)
  card = model_card.text(saved, "me/tiny", license_id="mit", results="- Tatoeba, average: 90.50")
  _, front, body = card.split("---\n", 2)
  described = yaml.safe_load(front)
  assert described["language"] == ["de", "en"]
  assert (described["license"], described["library_name"]) == ("mit", "sentence-transformers")
  for part in (
    'vmsst.load("me/tiny")',
    'SentenceTransformer("me/tiny")',
    "English, German.",
    "- T5 encoder: 1 layer, hidden size 8, 259 tokens in the vocabulary",
    "- Steps: 0\n- BATCH_SIZE: `16`\n- MIXTURE_OR_TASK_NAME: `bitext.files`\n",
    "- MODEL: `contrastive.ContrastiveModel`\n",
    "- Tatoeba, average: 90.50\n",
  ):
    assert part in body
  for secret in ("geheim", "private", "/data", "example.com", "bucket", ".gin"):
    assert secret not in body, secret
  card = model_card.text(saved, "me/tiny@v2")
  assert 'SentenceTransformer("me/tiny", revision="v2")' in card
  assert "license" not in card
  assert "Not evaluated" in card
