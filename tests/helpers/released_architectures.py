"""Tiny encoders of every architecture, as folders of sentence-transformers."""

import json

import tokenizers
from safetensors.torch import save_file
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXTS = ["The Museum is OPEN!", "Café 世界 don't 1999", "", "red apple " * 30, "</s> hi", "! !!"]
_WORDS = ["the", "museum", "is", "open", "cafe", "red", "apple", "!", "don", "'", "t"]
_SIZES = {
  "hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 3, "intermediate_size": 20,
  "max_position_embeddings": 60,
}  # fmt: skip
_QWEN_WORDS = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
  r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_KIND = "sentence_transformers.models."
_DECODER = {"num_key_value_heads": 2, "head_dim": 8}
_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
# Class, options of its config, class of the tokenizer, special tokens (unknown, start, end,
# padding), and the tokenizer's normalizer and pre-tokenizer; without them, it is BERT's.
MODELS = {
  "roberta": (
    "Roberta", _SIZES | {"pad_token_id": 1, "type_vocab_size": 1}, "RobertaTokenizer",
    ("<unk>", "<s>", "</s>", "<pad>"), None, _BYTES,
  ),
  "mpnet": (
    "MPNet", _SIZES | {"pad_token_id": 1}, "MPNetTokenizer", ("[UNK]", "<s>", "</s>", "<pad>"),
  ),
  "distilbert": (
    "DistilBert",
    {"dim": 24, "n_heads": 4, "n_layers": 3, "hidden_dim": 20, "max_position_embeddings": 60},
    "DistilBertTokenizer", ("[UNK]", "[CLS]", "[SEP]", "[PAD]"),
  ),
  "modernbert": (
    "ModernBert", _SIZES | {"pad_token_id": 1, "local_attention": 6}, "PreTrainedTokenizerFast",
    ("[UNK]", "[CLS]", "[SEP]", "[PAD]"), normalizers.NFC(), _BYTES,
  ),
  "qwen3": (
    "Qwen3", _SIZES | _DECODER | {"rope_theta": 1e6}, "Qwen2Tokenizer",
    (None, None, "<|endoftext|>", "<|endoftext|>"), normalizers.NFC(),
    pre_tokenizers.Sequence([
      pre_tokenizers.Split(tokenizers.Regex(_QWEN_WORDS), "isolated"),
      pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]),
  ),
  "gemma": (
    "Gemma3Text",
    _SIZES | _DECODER | {
      "sliding_window": 6, "sliding_window_pattern": 3, "query_pre_attn_scalar": 7,
      "use_bidirectional_attention": True,
    },
    "GemmaTokenizer", ("<unk>", "<bos>", "<eos>", "<pad>"),
    normalizers.Replace(" ", "▁"), pre_tokenizers.Split(" ", "merged_with_previous"),
  ),
}  # fmt: skip


def _tokenizer(special, normalizer=None, pre_tokenizer=None):
  unknown, start, end, padding = special
  marks = dict.fromkeys(mark for mark in (start, padding, end, unknown) if mark)
  if pre_tokenizer is None:
    vocabulary = {word: i for i, word in enumerate([*marks, *_WORDS])}
    made = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=unknown))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.add_special_tokens([*marks])
  else:
    fallback = start == "<bos>"
    made = tokenizers.Tokenizer(
      models.BPE(unk_token=unknown, fuse_unk=fallback, byte_fallback=fallback)
    )
    if normalizer is not None:
      made.normalizer = normalizer
    made.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(
      vocab_size=330,
      # Those of Qwen are the last.
      special_tokens=[] if unknown is None else [*marks],
      initial_alphabet=[] if fallback else _BYTES.alphabet(),
      show_progress=False,
    )
    made.train_from_iterator(TEXTS * 3, trainer)
    made.add_special_tokens([*marks])
  around = [mark for mark in (start, end) if mark]
  made.post_processor = processors.TemplateProcessing(
    single=[*([start] if start else []), "$A", end],
    special_tokens=[(mark, made.token_to_id(mark)) for mark in around],
  )
  return made


def write(folder, name):
  """Writes a model of `MODELS` with random weights, pooling, and for Gemma dense modules."""
  import torch
  import transformers

  family, options, kind, special, *steps = MODELS[name]
  made, generator = _tokenizer(special, *steps), torch.Generator().manual_seed(0)
  config = getattr(transformers, f"{family}Config")(**options, vocab_size=made.get_vocab_size())
  model = getattr(transformers, f"{family}Model")(config)
  with torch.no_grad():
    for weight in model.parameters():
      weight += 0.3 * torch.randn(weight.shape, generator=generator)
  model.save_pretrained(folder)
  made.save(str(folder / "tokenizer.json"))
  unknown, start, end, padding = special
  if kind == "PreTrainedTokenizerFast" or start != "[CLS]":
    settings = {"unk_token": unknown, "pad_token": padding, "bos_token": start, "eos_token": end}
    if start:
      settings |= {"cls_token": start, "sep_token": end}
  else:
    settings = {}
  width = 24
  pooling = {"word_embedding_dimension": width, "pooling_mode_mean_tokens": name != "qwen3",
             "pooling_mode_lasttoken": name == "qwen3"}  # fmt: skip
  chain = [("Transformer", None), ("Pooling", pooling)]
  for outputs in (40, 16) if name == "gemma" else ():
    dense = {"in_features": width, "out_features": outputs, "bias": False,
             "activation_function": "torch.nn.modules.linear.Identity"}  # fmt: skip
    chain.append(("Dense", dense))
    width = outputs
  chain.append(("Normalize", {}))
  listed = []
  for index, (module, content) in enumerate(chain):
    path = "" if content is None else f"{index}_{module}"
    listed.append(
      {
        "idx": index,
        "name": str(index),
        "path": path,
        "type": f"{_KIND}{module}",
      }
    )
    if content is not None:
      (folder / path).mkdir()
      (folder / path / "config.json").write_text(json.dumps(content))
    if module == "Dense":
      shape = content["out_features"], content["in_features"]
      weight = torch.randn(shape, generator=generator)
      save_file({"linear.weight": weight}, folder / path / "model.safetensors")
  files = {
    "modules.json": listed,
    "tokenizer_config.json": settings | {"tokenizer_class": kind},
    "config_sentence_transformers.json": {"prompts": {"query": "Instruct: find\nQuery:"}},
    "sentence_bert_config.json": {"max_seq_length": 50},
  }
  for file, content in files.items():
    (folder / file).write_text(json.dumps(content))
