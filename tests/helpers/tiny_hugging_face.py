"""Folders of Hugging Face encoders, small enough to import in a test."""

import json

import numpy as np
import released_folders
from safetensors.numpy import save_file

from vmsst.data import sample
from vmsst.formats import mt5

SIZES = {
  **released_folders.SIZES, "num_layers": 1, "position_offset": 2, "num_token_types": 1,
  "activation": "gelu", "layer_norm_eps": 1e-5,
}  # fmt: skip


def save_me5(folder, tokenizer_file):
  """Writes a folder with the files of multilingual E5; returns its sizes as of a TransformerConfig.

  Args:
    folder: Folder to make; its name must say that it is an E5.
    tokenizer_file: A tokenizer like XLM-R's.
  """
  tokenizer = json.loads(tokenizer_file.read_text(encoding="utf-8"))
  sizes = {**SIZES, "vocab_size": len(tokenizer["model"]["vocab"])}
  config = released_folders.bert_config(sizes)
  changes = {
    "tokenizer.json": tokenizer,
    "config.json": {"model_type": "xlm-roberta", "pad_token_id": 1, **config},
    "modules.json": released_folders.modules(released_folders.NORMALIZE),
    "Normalize/config.json": {},
    **dict.fromkeys(("tokenizer_config.json", "sentencepiece.bpe.model")),
    "config_sentence_transformers.json": None,
  }
  released_folders.write(folder, "xlmr", changes, sizes=sizes, deviation=0.7)
  return sizes


MT5_SIZES = {
  "vocab_size": 3600, "emb_dim": 16, "num_heads": 2, "head_dim": 8, "mlp_dim": 16,
  "num_encoder_layers": 2, "num_decoder_layers": 2, "relpos_buckets": 32,
}  # fmt: skip
TINY = """
EMBED_DIM = 16
MAX_LENGTH = 8
VOCAB_SIZE = 3600
BATCH_SIZE = 8
STATS_PERIOD = 1
t5.T5Config.num_encoder_layers = 2
t5.T5Config.num_heads = 2
t5.T5Config.head_dim = 8
t5.T5Config.mlp_dim = 16
utils.create_learning_rate_scheduler.factors = 'constant'
utils.create_learning_rate_scheduler.base_learning_rate = 0.05
train.train_eval_dataset_cfg = None
"""


def mt5_config(sizes):
  """Returns attributes of a T5Config by their names in `config.json`."""
  names = {
    "vocab_size": "vocab_size", "emb_dim": "d_model", "num_heads": "num_heads", "head_dim": "d_kv",
    "mlp_dim": "d_ff", "num_encoder_layers": "num_layers",
    "relpos_buckets": "relative_attention_num_buckets",
    "relpos_max_distance": "relative_attention_max_distance",
  }  # fmt: skip
  found = {names[key]: value for key, value in sizes.items() if key in names}
  return {"model_type": "mt5", "feed_forward_proj": "gated-gelu", **found}


def save_mt5(folder):
  """Writes a small mT5 with random weights, as transformers saves it."""
  rng = np.random.default_rng(0)
  folder.mkdir()
  tensors = {
    row.source: 0.2 * rng.normal(size=row.shape).astype(np.float32) for row in mt5.rows(MT5_SIZES)
  }
  save_file(tensors, folder / "model.safetensors")
  (folder / "config.json").write_text(json.dumps(mt5_config(MT5_SIZES)))
  return folder


def save_pairs(folder):
  """Writes pairs of the sample corpus to `folder`/spa-eng.tsv; returns its path."""
  path = folder / "spa-eng.tsv"
  rows = [f"{sample.sentence(i, 'es')}\t{sample.sentence(i, 'en')}\n" for i in range(40)]
  path.write_text("".join(rows), encoding="utf-8")
  return path
