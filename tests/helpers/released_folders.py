"""Tiny released encoders, variations of their files, and their import and export from Python."""

import json
import pathlib
import re
import types

import numpy as np
import tiny_tokenizers
import tokenizers
from safetensors.numpy import save, save_file
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

from vmsst.encoder import loading
from vmsst.formats import ems, sentence_transformers, transformers
from vmsst.jobs import outputs
from vmsst.networks.transformer import TransformerConfig

WORDS = [
  "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "The", "museum", "Museum", "is", "open",
  "OPEN", "cafe", "Café", "café", "red", "apple", "ent", "ENT", "##s", "世", "界", "世界", "i",
  "\u0307", "query", ":", "passage", "document",
]  # fmt: skip
TEXTS = [
  "The Museum is OPEN",
  "Café café cafe ENT ent xENTx ENTs",
  "世界 İ [SEP] </s> <mask> [MASK] <s>",
  "  red \t apple  ",
  "the museum is open red apple cafe ent " * 4,
  "",
]
# Empty, blank, longer than the maximum of all encoders in the tests of exports, and misleading.
ODD = [
  "", "  ", "word " * 300, "</s> a <pad>", "▁a\tb\u3000c", "ΟΔΟΣ ΣΑΣ’Α Σ", "İ x\u00ad", "<w> 😀",
]  # fmt: skip
SIZES = {
  "vocab_size": 120, "emb_dim": 16, "num_heads": 2, "mlp_dim": 24, "num_layers": 2,
  "max_positions": 42, "num_token_types": 2,
}  # fmt: skip
_MARKS = ("[CLS]", 2), ("[SEP]", 3)
_KIND = "sentence_transformers.models."


def special(content, **changes):
  """Returns an entry of `added_tokens_decoder`."""
  entry = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
  return entry | {"content": content, "special": False} | changes


def token(index, content, **changes):
  """Returns an entry of `added_tokens` in `tokenizer.json`."""
  return special(content, **changes) | {"id": index}


def bert_tokenizer():
  """Returns the `tokenizer.json` of a BERT."""
  made = tokenizers.Tokenizer(
    tokenizers.models.WordPiece({x: i for i, x in enumerate(WORDS)}, unk_token="[UNK]")
  )
  made.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
  made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
  made.decoder = tokenizers.decoders.WordPiece()
  made.add_special_tokens(WORDS[:5])
  made.post_processor = tokenizers.processors.TemplateProcessing(
    single="[CLS] $A [SEP]", special_tokens=_MARKS
  )
  return json.loads(made.to_str())


def sentencepiece_model():
  """Returns a SentencePiece model like that of XLM-R."""
  marks = {"pad_id": -1, "unk_id": 0, "bos_id": 1, "eos_id": 2}
  return tiny_tokenizers.sentencepiece_model(TEXTS[:4], vocab_size=60, **marks)


def _xlmr_tokenizer(model):
  from sentencepiece import sentencepiece_model_pb2

  proto = sentencepiece_model_pb2.ModelProto()
  proto.ParseFromString(model)
  marks = ["<s>", "<pad>", "</s>", "<unk>"]
  pieces = [(mark, 0.0) for mark in marks]
  pieces += [(x.piece, x.score) for x in proto.pieces[3:]] + [("<mask>", 0.0)]
  made = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, 3, False))
  made.normalizer = tokenizers.normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap)
  made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
  made.decoder = tokenizers.decoders.Metaspace()
  made.add_special_tokens([*marks, tokenizers.AddedToken("<mask>", lstrip=True)])
  made.post_processor = tokenizers.processors.TemplateProcessing(
    single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
  )
  return json.loads(made.to_str())


def bert_config(sizes):
  """Returns attributes of a TransformerConfig by their names in `config.json`."""
  names = {
    "vocab_size": "vocab_size", "emb_dim": "hidden_size", "num_heads": "num_attention_heads",
    "num_layers": "num_hidden_layers", "mlp_dim": "intermediate_size",
    "max_positions": "max_position_embeddings", "num_token_types": "type_vocab_size",
    "activation": "hidden_act", "layer_norm_eps": "layer_norm_eps",
  }  # fmt: skip
  return {names[key]: value for key, value in sizes.items() if key in names}


def _files(kind):
  is_xlmr = kind == "xlmr"
  model = sentencepiece_model() if is_xlmr else b""
  classes = {"bert": "BertTokenizer", "xlmr": "XLMRobertaTokenizerFast"}
  return {
    "config.json": bert_config(SIZES) | {
      "model_type": "xlm-roberta" if is_xlmr else "bert", "pad_token_id": int(is_xlmr),
    },
    "modules.json": [
      {"idx": 0, "name": "0", "path": "", "type": f"{_KIND}Transformer"},
      {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{_KIND}Pooling"},
    ],
    "1_Pooling/config.json": {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True},
    "tokenizer.json": _xlmr_tokenizer(model) if is_xlmr else bert_tokenizer(),
    "tokenizer_config.json": {
      "tokenizer_class": classes.get(kind, "TokenizersBackend"),
      **({"model_max_length": 40} if is_xlmr else {"pad_token": "[PAD]"}),
    },
    "config_sentence_transformers.json": {"prompts": {}, "default_prompt_name": None},
    **({"sentencepiece.bpe.model": model} if is_xlmr else {"vocab.txt": "\n".join(WORDS)}),
  }  # fmt: skip


def weights(rows, deviation=1.0, norm=0.0):
  """Returns random tensors for the rows of a table; `norm` is the mean of scales of norms."""
  rng = np.random.default_rng(0)
  return {
    row.source: rng.normal(
      norm if row.source.endswith("LayerNorm.weight") else 0.0, deviation, row.shape
    ).astype(np.float32)
    for row in rows
  }


def write(folder, kind, changes, *, sizes=SIZES, deviation=0.4):
  """Writes an encoder; returns its folder.

  Args:
    folder: Folder to make.
    kind: "bert" or "xlmr", by the class of the tokenizer, or "plain" for that of `tokenizer.json`.
    changes: By file: keys to replace (with the value None in Python, to remove), a whole content
      that is not an object, or None to leave the file out.
    sizes: Attributes of a TransformerConfig, but for the size of the vocabulary.
    deviation: Of the weights.
  """
  files = _files(kind)
  for name, change in changes.items():
    if isinstance(change, dict):
      change = {key: x for key, x in (files.get(name, {}) | change).items() if x is not REMOVED}
    files[name] = change
  for name, content in files.items():
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
      path.write_bytes(content)
    elif content is not None:
      path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
  sizes = {**sizes, "vocab_size": files["config.json"]["vocab_size"]}
  rows = transformers.BERT.table.rows(TransformerConfig(**sizes))
  save_file(weights(rows, deviation, norm=1.0), folder / "model.safetensors")
  return folder


REMOVED = type("Removed", (), {"__repr__": lambda _: "removed"})()
_ENT = special("ENT")
_TC, _SM, _AT, _TJ = (
  "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.json",
)  # fmt: skip
_SB, _PR, _PO, _MO = (
  "sentence_bert_config.json", "config_sentence_transformers.json", "1_Pooling/config.json",
  "modules.json",
)  # fmt: skip

# Each: the kind of tokenizer and the changed files. The vectors are those of sentence-transformers.
HONORED = [
  *((kind, {}) for kind in ("bert", "xlmr", "plain")),
  ("bert", {_TC: None}),
  *(("bert", {_TC: {key: value}}) for key, value in (
    ("do_lower_case", False), ("strip_accents", True), ("tokenize_chinese_chars", False),
    ("unk_token", "red"), ("cls_token", "apple"), ("sep_token", "new"), ("max_len", 9),
    ("model_max_length", 1e30), ("additional_special_tokens", ["ENT"]),
    ("extra_special_tokens", {"image_token": "ENT"}), ("never_split", ["ENT"]),
    ("mask_token", {"__type": "AddedToken", **special("[MASK]", lstrip=True, special=True)}),
  )),
  *(("bert", {_TC: {"do_lower_case": False, "added_tokens_decoder": tokens}}) for tokens in (
    {"40": _ENT}, {"18": _ENT}, {"29": _ENT | {"single_word": True, "rstrip": True}},
    {"4": special("[MASK]", special=True), "29": special("museum is", normalized=True)},
  )),
  ("bert", {_TJ: {"added_tokens": [token(29, "ENT")]}, _TC: {"added_tokens_decoder": {}}}),
  ("bert", {_AT: {"ENTs": 30, "xENT": 29}, _TC: {"do_lower_case": False}}),
  ("bert", {_AT: {"ENT": 29}, _SM: {"additional_special_tokens": ["ENT"]}}),
  ("bert", {_SM: {"cls_token": "apple", "sep_token": {**special("red")}}}),
  ("bert", {_TJ: {"normalizer": None, "pre_tokenizer": {"type": "Whitespace"}}}),
  ("plain", {_TJ: {"normalizer": None, "pre_tokenizer": {"type": "WhitespaceSplit"}}}),
  ("plain", {_TJ: {"added_tokens": [token(0, "[PAD]"), token(29, "ENT")]}}),
  ("plain", {_TC: {"added_tokens_decoder": {"4": special("[MASK]", lstrip=True, special=True)}}}),
  ("plain", {_TC: {"extra_special_tokens": ["ENT"], "eos_token": "</s>", "bos_token": "<s>"}}),
  *(("xlmr", {_TC: {key: value}}) for key, value in (
    ("add_prefix_space", False), ("bos_token", "</s>"),
    ("added_tokens_decoder", {"100": special("museum")}),
  )),
  ("bert", {_SB: {"max_seq_length": None}, _TC: {"model_max_length": 8}}),
  ("bert", {_SB: {}, "sentence_roberta_config.json": {"max_seq_length": 8}}),
  ("bert", {_SB: {"do_lower_case": True}, _TC: {"do_lower_case": False, "added_tokens_decoder": {
    "29": _ENT | {"normalized": True}}}}),
  *((kind, {_SB: {"do_lower_case": True}}) for kind in ("xlmr", "plain")),
  ("bert", {_SB: {"unpad_inputs": False, "module_output_name": "token_embeddings"}}),
  ("bert", {_MO: None, _SB: {"max_seq_length": 8}, _PR: {"prompts": {"query": "query: "}}}),
  *(("bert", {_PR: change}) for change in (
    None, {"prompts": {"query": None}}, {"prompts": {"a": "red "}, "default_prompt_name": "a"},
    {"prompts": {"query": "query: ", "document": "document: "}, "default_prompt_name": "document"},
  )),
]  # fmt: skip


def name_of(case):
  """Returns a name for a case of a test."""
  return re.sub(r"[^\w.]+", "-", f"{case[0]} {case[1]}")[:90]


def modules(*kinds):
  """Returns a `modules.json` of an encoder with further modules, in files of different years."""
  listed = [*_files("bert")["modules.json"]]
  listed += [{"idx": 2 + i, "name": str(2 + i), "path": kind.rpartition(".")[2], "type": kind}
             for i, kind in enumerate(kinds)]  # fmt: skip
  return listed


_DENSE = {
  "in_features": 16, "out_features": 16, "bias": True,
  "activation_function": "torch.nn.modules.activation.Tanh",
}  # fmt: skip
_WEIGHTS = {
  f"linear.{name}": np.random.default_rng(1).normal(size=shape).astype(np.float32)
  for name, shape in (("weight", (16, 16)), ("bias", 16))
}
NORMALIZE = "sentence_transformers.base.modules.normalize.Normalize"
_CLS = {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}
# As before, but not only the ids could be others.
POOLED = [
  # As LaBSE, and as a small E5.
  ("bert", {
    _MO: modules(f"{_KIND}Dense", NORMALIZE), "Normalize/config.json": {},
    _PO: _CLS,
    "Dense/config.json": _DENSE, "Dense/model.safetensors": save(_WEIGHTS),
    _SB: {"max_seq_length": 10, "do_lower_case": False},
  }),
  ("xlmr", {
    _MO: modules(NORMALIZE), "Normalize/config.json": {}, "config.json": {"layer_norm_eps": 1e-5},
    _PR: {"prompts": {"query": "query: ", "document": "passage: "}},
  }),
  *(("bert", {_PO: change}) for change in (
    {"pooling_mode_mean_tokens": False}, {"pooling_mode": "cls", "pooling_mode_mean_tokens": True},
    *({"pooling_mode": mode} for mode in (
      "lasttoken", "max", ["weightedmean", "cls"], ["mean_sqrt_len_tokens", "mean", "mean"],
    )),
    {"pooling_mode_lasttoken": True, "pooling_mode_weightedmean_tokens": True,
     "pooling_mode_mean_sqrt_len_tokens": True, "pooling_mode_cls_token": True},
  )),
  ("bert", {_TC: {"chat_template": "x"}, "chat_template.jinja": "x"}),
]  # fmt: skip


def chain(pooling, *layers):
  """Returns files of an encoder with the `config.json` of a pooling, and layers after it.

  Args:
    pooling: The config.
    *layers: Of each, the class and the content of the `config.json`, which has no sizes.
  """
  flags = [key for key, on in pooling.items() if key.startswith("pooling_mode_") and on]
  modes = pooling.get("pooling_mode", flags or "mean")
  width, rng = 16 * (1 if isinstance(modes, str) else len(modes)), np.random.default_rng(2)
  listed = [*_files("bert")["modules.json"]]
  files = {_PO: {"pooling_mode_mean_tokens": REMOVED, **pooling}}
  for i, (kind, config) in enumerate(layers, start=2):
    path, weights = f"{i}_{kind}", {}
    listed.append({"idx": i, "name": str(i), "path": path, "type": _KIND + kind})
    if kind == "Dense":
      config = {"in_features": width, "out_features": 20 - i, "bias": True, **config}
      weights = {"linear.weight": rng.normal(size=(20 - i, width)) / np.sqrt(width)}
      if config["bias"]:
        weights["linear.bias"] = rng.normal(size=20 - i)
      width = 20 - i
    elif kind == "LayerNorm":
      config = {"dimension": width}
      weights = {f"norm.{name}": rng.normal(size=width) for name in ("weight", "bias")}
    files[f"{path}/config.json"] = config
    if weights:
      weights = {name: array.astype(np.float32) for name, array in weights.items()}
      files[f"{path}/model.safetensors"] = save(weights)
  return {_MO: listed, **files}


def dense(activation, **config):
  """Returns a dense layer of `chain`."""
  return "Dense", {"activation_function": f"torch.nn.{activation}", **config}


_NORM, _UNIT, _DROP = ("LayerNorm", {}), ("Normalize", {}), ("Dropout", {"dropout": 0.3})
_PLAIN_DENSE = dense("modules.linear.Identity", bias=False)
CHAINS = [
  chain({}, _UNIT, dense("modules.activation.GELU"), _NORM, _DROP),
  chain({"pooling_mode": ["cls", "weightedmean"]}, _NORM, _PLAIN_DENSE, _UNIT, dense("ReLU")),
  chain({}, dense("Tanh"), dense("Tanh"), _DROP, dense("Sigmoid", bias=False)),
  chain({}, _DROP, _UNIT, _UNIT),
]
# Each: the kind of tokenizer, the changed files, and the file and the key that the message names.
REFUSED = [
  *(("bert", {_TC: {key: value}}, (_TC, key)) for key, value in (
    ("truncation_side", "left"), ("vocab", {"a": 0}), ("strip_accents", "yes"),
  )),
  ("bert", {"config.json": {"tokenizer_class": "ByT5Tokenizer"}, _TC: None},
   ("config.json", "tokenizer_class")),
  ("plain", {_TJ: {"truncation": {"direction": "Left", "max_length": 9, "stride": 0,
                                  "strategy": "LongestFirst"}}}, (_TC, "truncation_side")),
  ("plain", {_TJ: {"post_processor": {
    "type": "TemplateProcessing", "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
    "single": [{"Sequence": {"id": "A", "type_id": 1}}], "special_tokens": {}}}},
   (_TJ, "post_processor")),
  *(("bert", {file: {key: value}}, (file, key)) for file, key, value in (
    (_SB, "max_seq_length", 0), (_SB, "other", 1), (_PR, "truncate_dim", 3),
    ("adapter_config.json", "is not supported", 1), (_PO, "pooling_mode", 3),
  )),
  ("bert", {_PO: {"include_prompt": False}, _PR: {"prompts": {"query": "query: "}}},
   ("", "include_prompt")),
  *(("bert", {_MO: modules(f"{_KIND}Dense"), "Dense/config.json": _DENSE | {key: value}},
     ("Dense", key)) for key, value in (
    ("use_residual", True), ("activation_function", "torch.nn.PReLU"),
  )),
  ("bert", {_MO: modules(f"{_KIND}Dense"), "Dense/config.json": _DENSE,
            "Dense/model.safetensors": save({"linear.bias": np.ones(15, np.float32)})},
   ("Dense", "has shape")),
  ("bert", {_MO: [*modules(), {"type": NORMALIZE, "path": "../Dense"}]}, (_MO, "path")),
  ("bert", {_MO: modules(f"{_KIND}CNN")}, (_MO, "CNN")),
  ("bert", {_MO: None, "chat_template.jinja": "x"}, ("", "chat template")),
  ("xlmr", {"config.json": {"pad_token_id": 0}}, ("config.json", "pads with 1")),
]  # fmt: skip


LINES = ["The Museum is OPEN!", "Café 世界 don't 1999", "", "red apple " * 30, "</s> hi", "! !!"]
_PIECES = [*["the", "museum", "is", "open", "cafe", "red", "apple", "!", "don", "t"]]
_SMALL = {
  "hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 3, "intermediate_size": 20,
  "max_position_embeddings": 60,
}  # fmt: skip
_QWEN_PIECES = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
  r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DECODER = {"num_key_value_heads": 2, "head_dim": 8}
_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
_T5 = {
  "d_model": 24, "d_kv": 5, "d_ff": 20, "num_layers": 3, "num_heads": 4, "pad_token_id": 0,
  "feed_forward_proj": "relu",
}  # fmt: skip
# Class, options of its config, class of the tokenizer, special tokens (unknown, start, end,
# padding), and the tokenizer's normalizer and pre-tokenizer; without them, it is BERT's.
ARCHITECTURES = {
  "roberta": (
    "Roberta", _SMALL | {"pad_token_id": 1, "type_vocab_size": 1}, "RobertaTokenizer",
    ("<unk>", "<s>", "</s>", "<pad>"), None, _BYTES,
  ),
  "mpnet": (
    "MPNet", _SMALL | {"pad_token_id": 1}, "MPNetTokenizer", ("[UNK]", "<s>", "</s>", "<pad>"),
  ),
  "distilbert": (
    "DistilBert",
    {"dim": 24, "n_heads": 4, "n_layers": 3, "hidden_dim": 20, "max_position_embeddings": 60},
    "DistilBertTokenizer", ("[UNK]", "[CLS]", "[SEP]", "[PAD]"),
  ),
  "modernbert": (
    "ModernBert", _SMALL | {"pad_token_id": 1, "local_attention": 6}, "PreTrainedTokenizerFast",
    ("[UNK]", "[CLS]", "[SEP]", "[PAD]"), normalizers.NFC(), _BYTES,
  ),
  "qwen3": (
    "Qwen3", _SMALL | _DECODER | {"rope_theta": 1e6}, "Qwen2Tokenizer",
    (None, None, "<|endoftext|>", "<|endoftext|>"), normalizers.NFC(),
    pre_tokenizers.Sequence([
      pre_tokenizers.Split(tokenizers.Regex(_QWEN_PIECES), "isolated"),
      pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
    ]),
  ),
  "gemma": (
    "Gemma3Text",
    _SMALL | _DECODER | {
      "sliding_window": 6, "sliding_window_pattern": 3, "query_pre_attn_scalar": 7,
      "use_bidirectional_attention": True,
    },
    "GemmaTokenizer", ("<unk>", "<bos>", "<eos>", "<pad>"),
    normalizers.Replace(" ", "▁"), pre_tokenizers.Split(" ", "merged_with_previous"),
  ),
  "t5": ("T5", _T5, "T5Tokenizer", ("<unk>", None, "</s>", "<pad>")),
  "t5 gated": (
    "MT5", _T5 | {"feed_forward_proj": "gated-gelu"}, "T5Tokenizer",
    ("<unk>", None, "</s>", "<pad>"),
  ),
}  # fmt: skip
# Changes to the files of such a model, as in `write`; the vectors are those of
# sentence-transformers.
_TEMPLATE = "{% for m in messages %}<user>{{ m.content }}{% endfor %}"
_PLAIN = {_MO: None, _PR: None, _SB: None}
VARIATIONS = [
  ("qwen3", {"config.json": {"is_causal": False}}),
  ("qwen3", {**_PLAIN, "config.json": {"architectures": ["Qwen3ForCausalLM"]}}),
  ("gemma", {"config.json": {"rope_parameters": {"rope_type": "default", "rope_theta": 77.0}}}),
  *((name, {_TC: {"padding_side": "left"}, "chat_template.jinja": _TEMPLATE})
    for name in ("qwen3", "modernbert")),
  ("modernbert", {_TC: {"tokenizer_class": "BertTokenizer"}}),
  ("roberta", {_TC: {"cls_token": "</s>", "sep_token": "<s>"}}),
  ("roberta", {_TJ: {"post_processor": None, "pre_tokenizer": {"type": "Whitespace"}}}),
  ("qwen3", {_TC: {"add_prefix_space": True}}),
]  # fmt: skip


def _architecture_tokenizer(special, normalizer=None, pre_tokenizer=None):
  unknown, start, end, padding = special
  marks = dict.fromkeys(mark for mark in (start, padding, end, unknown) if mark)
  if pre_tokenizer is None:
    vocabulary = {word: i for i, word in enumerate([*marks, *_PIECES])}
    made = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=unknown))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  else:
    fallback = start == "<bos>"
    made = tokenizers.Tokenizer(
      models.BPE(unk_token=unknown, fuse_unk=fallback, byte_fallback=fallback)
    )
    made.normalizer = normalizer
    made.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(
      vocab_size=330,
      special_tokens=[] if unknown is None else [*marks],  # those of Qwen are the last
      initial_alphabet=[] if fallback else _BYTES.alphabet(),
      show_progress=False,
    )
    made.train_from_iterator(LINES * 3, trainer)
  made.add_special_tokens([*marks])
  around = [mark for mark in (start, end) if mark]
  made.post_processor = processors.TemplateProcessing(
    single=[*around[:-1], "$A", end], special_tokens=[(x, made.token_to_id(x)) for x in around]
  )
  return made


def _t5_tokenizer():
  record = _xlmr_tokenizer(sentencepiece_model())
  marks = [[mark, 0.0] for mark in ("<pad>", "</s>", "<unk>")]
  record["model"] |= {"vocab": marks + record["model"]["vocab"][4:-1], "unk_id": 2}
  record["added_tokens"], record["post_processor"] = [], None
  made = tokenizers.Tokenizer.from_str(json.dumps(record))
  made.add_special_tokens(["<pad>", "</s>", "<unk>"])
  return made


def write_architecture(folder, name):
  """Writes a model of `ARCHITECTURES` with random weights, as sentence-transformers saves it."""
  import sentence_transformers as st
  import torch
  import transformers
  from sentence_transformers import models as parts

  family, options, kind, special, *steps = ARCHITECTURES[name]
  is_t5 = kind == "T5Tokenizer"
  made = _t5_tokenizer() if is_t5 else _architecture_tokenizer(special, *steps)
  # sentence-transformers adds a token for masks to all but Qwen's and T5's, which has others.
  more = 100 if is_t5 else name != "qwen3"
  options = {**options, "vocab_size": made.get_vocab_size() + more}
  config = getattr(transformers, f"{family}Config")(**options)
  model, generator = getattr(transformers, f"{family}Model")(config), torch.Generator()
  with torch.no_grad():
    for weight in model.parameters():
      weight += 0.3 * torch.randn(weight.shape, generator=generator.manual_seed(0))
  model.save_pretrained(folder / "encoder")
  made.save(str(folder / "encoder" / "tokenizer.json"))
  keys = ("unk_token", "bos_token", "eos_token", "pad_token")
  settings = {"tokenizer_class": kind, **dict(zip(keys, special, strict=True))}
  if special[1] is not None:
    settings |= {"cls_token": special[1], "sep_token": special[2]}
  (folder / "encoder" / "tokenizer_config.json").write_text(json.dumps(settings))
  modules = [
    parts.Transformer(str(folder / "encoder"), max_seq_length=50),
    parts.Pooling(24, pooling_mode="lasttoken" if name == "qwen3" else "mean"),
  ]
  if name == "gemma":
    plain = {"bias": False, "activation_function": torch.nn.Identity()}
    modules += [parts.Dense(24, 40, **plain), parts.Dense(40, 16, **plain)]
  if is_t5:  # as sentence-t5 and gtr
    plain = {"bias": False, "activation_function": torch.nn.Identity()}
    modules.append(parts.Dense(24, 16, **plain))
  prompts = {"query": "Instruct: find\nQuery:"}
  model = st.SentenceTransformer(modules=[*modules, parts.Normalize()], prompts=prompts)
  model.save_pretrained(str(folder / "model"))
  return folder / "model"


def change(folder, changes):
  """Changes files of a model: objects get keys, others a new text, and None removes them."""
  for name, content in changes.items():
    path = folder / name
    if content is None:
      path.unlink()
    elif isinstance(content, dict):
      path.write_text(json.dumps(json.loads(path.read_text()) | content))
    else:
      path.write_text(content)


def save_me5(folder, tokenizer_file):
  """Writes a folder with the files of multilingual E5; returns its sizes as of a TransformerConfig.

  Args:
    folder: Folder to make; its name must say that it is an E5.
    tokenizer_file: A tokenizer like XLM-R's.
  """
  tokenizer = json.loads(tokenizer_file.read_text(encoding="utf-8"))
  sizes = {
    **SIZES, "vocab_size": len(tokenizer["model"]["vocab"]), "num_layers": 1, "position_offset": 2,
    "num_token_types": 1, "activation": "gelu", "layer_norm_eps": 1e-5,
  }  # fmt: skip
  changes = {
    "tokenizer.json": tokenizer,
    "config.json": {"model_type": "xlm-roberta", "pad_token_id": 1, **bert_config(sizes)},
    "modules.json": modules(NORMALIZE),
    "Normalize/config.json": {},
    **dict.fromkeys(("tokenizer_config.json", "sentencepiece.bpe.model")),
    "config_sentence_transformers.json": None,
  }
  write(folder, "xlmr", changes, sizes=sizes, deviation=0.7)
  return sizes


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


def save_weights(folder, config, arrays):
  """Writes `config.json` and weights of a model of transformers; returns the folder."""
  folder.mkdir(parents=True, exist_ok=True)
  (folder / "config.json").write_text(json.dumps(config))
  save_file({name: np.asarray(x) for name, x in arrays.items()}, folder / "model.safetensors")
  return folder


# Imports and exports from Python, as the commands write them.


def import_encoder(folder, output):
  """Writes an encoder of another library; returns the checkpoint and what was converted."""
  return _save(loading.convert(pathlib.Path(folder)), output)


def import_ems(path, output, vocabulary):
  """Writes EMS; returns the checkpoint and what was converted."""
  return _save(ems.convert(path, vocabulary=str(vocabulary)), output)


def _save(converted, output):
  with outputs.atomic_folder(pathlib.Path(output)) as folder:
    loading.write(converted.params(), converted.assets, folder)
  checkpoint = pathlib.Path(output, loading.CHECKPOINT)
  return types.SimpleNamespace(checkpoint=checkpoint, converted=converted)


def export(path, output, form=sentence_transformers):
  """Writes an encoder for sentence-transformers, or in another format; returns the folder."""
  saved = loading.read(path)
  with outputs.atomic_folder(pathlib.Path(output)) as folder:
    form.write(saved, folder)
  return output
