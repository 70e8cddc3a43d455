"""Folders of Hugging Face encoders, small enough to import in a test."""

import json

import released_folders

SIZES = {
  **released_folders.SIZES,
  "num_layers": 1,
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
