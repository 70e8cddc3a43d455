"""Folders of Hugging Face encoders, small enough to import in a test."""

import json
import shutil

import numpy as np
from safetensors.numpy import save_file

from vmsst.checkpoints.importers import bert

SIZES = {
  "emb_dim": 16,
  "num_heads": 2,
  "mlp_dim": 24,
  "num_layers": 1,
  "max_positions": 42,
  "position_offset": 2,
  "num_token_types": 1,
  "activation": "gelu",
  "layer_norm_eps": 1e-5,
}


def save_me5(folder, tokenizer_file):
  """Writes a folder with the files of multilingual E5; returns its sizes as of a BertConfig.

  Args:
    folder: Folder to make; its name must say that it is an E5.
    tokenizer_file: A tokenizer like XLM-R's.
  """
  folder.mkdir(parents=True)
  shutil.copyfile(tokenizer_file, folder / "tokenizer.json")
  vocab = json.loads(tokenizer_file.read_text(encoding="utf-8"))["model"]["vocab"]
  sizes = {**SIZES, "vocab_size": len(vocab)}
  config = {
    "model_type": "xlm-roberta",
    "vocab_size": sizes["vocab_size"],
    "hidden_size": sizes["emb_dim"],
    "num_attention_heads": sizes["num_heads"],
    "num_hidden_layers": sizes["num_layers"],
    "intermediate_size": sizes["mlp_dim"],
    "hidden_act": sizes["activation"],
    "max_position_embeddings": sizes["max_positions"],
    "type_vocab_size": sizes["num_token_types"],
    "layer_norm_eps": sizes["layer_norm_eps"],
    "pad_token_id": 1,
  }
  types = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
  modules = [
    {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
    for i, (path, kind) in enumerate(types.items())
  ]
  (folder / "1_Pooling").mkdir()
  for name, content in {
    "config.json": config,
    "modules.json": modules,
    "1_Pooling/config.json": {"pooling_mode_mean_tokens": True},
  }.items():
    (folder / name).write_text(json.dumps(content))
  rng = np.random.default_rng(0)
  weights = {}
  for row in bert.rows(sizes, pooler=False):
    center = 1.0 if row.source.endswith("LayerNorm.weight") else 0.0
    weights[row.source] = rng.normal(center, 0.7, row.shape).astype(np.float32)
  save_file(weights, folder / "model.safetensors")
  return sizes
