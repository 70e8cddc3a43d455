"""The encoders of transformers that become a `TransformerEncoder`: their options and weights.

An `Architecture` reads the attributes of a `TransformerConfig` from a `config.json`, writes it for
exports, and has a table of the weights. Each is checked against the model in transformers.
"""

import dataclasses
import functools
import itertools
import math
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from vmsst import errors
from vmsst.formats import hugging_face, weight_tables
from vmsst.formats.weight_tables import Row, Rule, Table, dense, norm
from vmsst.io import input_files
from vmsst.networks import transformer

ACTIVATIONS = {
  "gelu": "gelu",
  "relu": "relu",
  "silu": "swish",
  "swish": "swish",
  "gelu_pytorch_tanh": "gelu_tanh",
  "gelu_new": "gelu_tanh",
}
# Sizes and their names in most files.
_SIZES = {
  "vocab_size": "vocab_size",
  "emb_dim": "hidden_size",
  "num_heads": "num_attention_heads",
  "mlp_dim": "intermediate_size",
  "num_layers": "num_hidden_layers",
  "max_positions": "max_position_embeddings",
}
_PRETRAINING = "pre-training head"
# The start of the names of BERT's pooler. sentence-transformers does not use it.
POOLER = "pooler."
_NO_PARAMETER = "not a parameter: 0, 1, 2 and so on"
_DEFAULT_THETA = 10_000.0


@dataclasses.dataclass(frozen=True)
class ConfigFile:
  """A `config.json`, whose values are checked as they are read.

  Attributes:
    path: The file, for messages.
    record: Its content.
  """

  path: pathlib.Path
  record: Mapping[str, Any]

  def integer(self, key: str, default: int | None = None) -> int:
    """Returns a positive integer; `default` if the file has none."""
    value = self.record.get(key)
    value = default if value is None else value
    most = errors.MOST_LAYERS if key.endswith("layers") else (1 << 31) - 1
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= most:
      raise errors.InputError(
        f"{self.path}: {key!r} is {input_files.shown(value)}, not an integer from 1 to {most}"
      )
    return value

  def integers(self, keys: Mapping[str, str]) -> dict[str, int]:
    """Returns positive integers by their names in this library, given those in the file."""
    return {ours: self.integer(theirs) for ours, theirs in keys.items()}

  def number(self, key: str, default: float, below: float = math.inf) -> float:
    """Returns a number between 0 and `below`."""
    value = self.record.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < below:
      raise errors.InputError(
        f"{self.path}: {key!r} is {input_files.shown(value)}, not between 0 and {below:g}"
      )
    return float(value)

  def require(self, key: str, value: Any) -> None:
    """Raises InputError if a key is there and has another value."""
    hugging_face.check_choice(self.path, self.record, key, value, (value,))

  def activation(self, key: str, default: str) -> str:
    """Returns an activation by its name in this library."""
    hugging_face.check_choice(self.path, self.record, key, default, tuple(ACTIVATIONS))
    return ACTIVATIONS[self.record.get(key, default)]

  def padding_id(self, default: int) -> int:
    """Returns the id of padding, which need not be that of the tokenizer."""
    value = self.record.get("pad_token_id", default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
      raise errors.InputError(f"{self.path}: 'pad_token_id' is {value!r}, not an id")
    return value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
  """An encoder of transformers.

  Attributes:
    name: Its class.
    table: Rules of its weights.
    ungated: Rules of models without a gate in the feed-forward layer, if both kinds exist.
    options: Returns the attributes of a TransformerConfig that are in a `config.json`.
    describe: Returns the content of a `config.json` for a TransformerConfig.
    fixed: Attributes of a TransformerConfig that all encoders of this architecture have.
    prefixes: What may precede the names of weights, for models with a pre-training head.
    left_out: By the start of a tensor's name, the reason that it is not imported.
  """

  name: str
  table: Table
  ungated: Table = ()
  options: Callable[[ConfigFile], dict[str, Any]]
  describe: Callable[[transformer.TransformerConfig], dict[str, Any]]
  fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  prefixes: tuple[str, ...]
  left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)

  @property
  def token_table(self) -> str:
    """Name of the tensor with the token vectors."""
    return self.table[0].source

  def sizes(self, file: ConfigFile) -> dict[str, Any]:
    """Returns the attributes of the TransformerConfig of a `config.json`.

    Raises:
      InputError: a value is damaged, or this library cannot express it; the message names it.
    """
    sizes = {**self.options(file), **self.fixed}
    try:
      transformer.TransformerConfig(**sizes)
    except errors.InputError as error:
      raise errors.InputError(f"{file.path}: {error}") from None
    return sizes

  def rows(self, config: transformer.TransformerConfig) -> list[Row]:
    """Returns the tensors of a model and the parameters that they become."""
    joined, joined_kv = (n * config.head_width for n in (config.num_heads, config.kv_heads))
    widths = {"joined": joined, "joined_kv": joined_kv, "head_width": config.head_width,
              "qkv": joined + 2 * joined_kv, "mlp_twice": 2 * config.mlp_dim,
              "num_encoder_layers": config.num_layers}  # fmt: skip
    table = self.table if config.gated or not self.ungated else self.ungated
    return weight_tables.expand(table, {**dataclasses.asdict(config), **widths})


def _token_table(source: str) -> Rule:
  return Rule(source, weight_tables.TOKEN_TABLE, ("vocab_size", "emb_dim"))


def _layers(source: str, *table: Rule) -> tuple[Rule, ...]:
  return weight_tables.each_layer("num_layers", f"{source}.{{i}}.", "encoder/layers_{i}/", table)


# --------------------------------------------------------------------------------------------
# BERT and those that differ in names and positions


def bert_layers(
  source: str,
  attention: tuple[str, str, str, str],
  others: tuple[str, str, str, str] = (
    "attention.output.LayerNorm",
    "intermediate.dense",
    "output.dense",
    "output.LayerNorm",
  ),
  place: str = "post",
) -> tuple[Rule, ...]:
  """Returns the rules of all layers of a BERT.

  Args:
    source: Start of the layers' names.
    attention: Names of the linear layers of queries, keys, values and outputs.
    others: Names of the norm of attention, of the feed-forward layers, and of their norm.
    place: "post", norms after the residual sums, or "pre", before the layers.
  """
  query, key, value, out = attention
  attention_norm, wide, narrow, mlp_norm = others
  return _layers(
    source,
    *dense(query, "attention/query"),
    *dense(key, "attention/key"),
    *dense(value, "attention/value"),
    *dense(out, "attention/out"),
    *norm(attention_norm, f"{place}_attention_layer_norm"),
    *dense(wide, "mlp/wi", "mlp_dim"),
    *dense(narrow, "mlp/wo", "emb_dim", "mlp_dim"),
    *norm(mlp_norm, f"{place}_mlp_layer_norm"),
  )


def self_attention(name: str) -> tuple[str, str, str, str]:
  """Returns the names of the linear layers of BERT's attention, given that of its inner module."""
  inner = (f"attention.{name}.{part}" for part in ("query", "key", "value"))
  return *inner, "attention.output.dense"  # type: ignore[return-value]


_POSITIONS = Rule(
  "embeddings.position_embeddings.weight",
  "encoder/position_embedding",
  ("max_positions", "emb_dim"),
)
_EMBEDDING_NORM = norm("embeddings.LayerNorm", "encoder/embedding_layer_norm")
_WORDS = (_token_table("embeddings.word_embeddings.weight"), _POSITIONS)
_TYPES = Rule(
  "embeddings.token_type_embeddings.weight",
  "encoder/token_type_embedding",
  ("num_token_types", "emb_dim"),
)


def _bert_options(
  file: ConfigFile, *, first_after_padding: bool = False, types: bool = True
) -> dict[str, Any]:
  """Returns the options of BERT; RoBERTa counts positions from the row after that of padding."""
  file.require("position_embedding_type", "absolute")
  file.require("is_decoder", False)
  return {
    **file.integers(_SIZES),
    "position_offset": file.padding_id(1) + 1 if first_after_padding else 0,
    "num_token_types": file.integer("type_vocab_size") if types else 0,
    "activation": file.activation("hidden_act", "gelu"),
    "layer_norm_eps": file.number("layer_norm_eps", 1e-12, below=1),
  }


def _described_sizes(config: transformer.TransformerConfig) -> dict[str, int]:
  return {theirs: getattr(config, ours) for ours, theirs in _SIZES.items()}


def _describe_bert(config: transformer.TransformerConfig) -> dict[str, Any]:
  return {
    **_described_sizes(config),
    "model_type": "bert",
    "hidden_act": _theirs(config),
    "type_vocab_size": config.num_token_types,
    "layer_norm_eps": config.layer_norm_eps,
    "initializer_range": config.initializer_std,
    "hidden_dropout_prob": config.dropout_rate,
    "attention_probs_dropout_prob": config.dropout_rate,
    "position_embedding_type": "absolute",
  }


def _theirs(config: transformer.TransformerConfig) -> str:
  """Returns the name of the activation in transformers."""
  return next(theirs for theirs, ours in ACTIVATIONS.items() if ours == config.activation)


BERT = Architecture(
  name="BertModel",
  table=(
    *_WORDS,
    _TYPES,
    *_EMBEDDING_NORM,
    *bert_layers("encoder.layer", self_attention("self")),
  ),
  options=_bert_options,
  describe=_describe_bert,
  prefixes=("", "bert.", "roberta."),
  left_out={
    POOLER: _PRETRAINING,
    "cls.": _PRETRAINING,
    "lm_head.": _PRETRAINING,
    "embeddings.position_ids": _NO_PARAMETER,
  },
)
_ROBERTA = dataclasses.replace(
  BERT,
  name="XLMRobertaModel",
  options=functools.partial(_bert_options, first_after_padding=True),
)


def _distilbert_options(file: ConfigFile) -> dict[str, Any]:
  names = {"emb_dim": "dim", "num_heads": "n_heads", "mlp_dim": "hidden_dim",
           "num_layers": "n_layers"}  # fmt: skip
  return {**file.integers(_SIZES | names), "activation": file.activation("activation", "gelu")}


_DISTILBERT = Architecture(
  name="DistilBertModel",
  table=(
    *_WORDS,
    *_EMBEDDING_NORM,
    *bert_layers(
      "transformer.layer",
      ("attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin"),
      ("sa_layer_norm", "ffn.lin1", "ffn.lin2", "output_layer_norm"),
    ),
  ),
  options=_distilbert_options,
  describe=_describe_bert,
  prefixes=("", "distilbert."),
  left_out={"vocab_": _PRETRAINING, "embeddings.position_ids": _NO_PARAMETER},
)


def _mpnet_options(file: ConfigFile) -> dict[str, Any]:
  buckets = file.integer("relative_attention_num_buckets", 32)
  options = _bert_options(file, types=False)
  return {**options, "position_offset": 2, "relpos_buckets": buckets}


def _describe_mpnet(config: transformer.TransformerConfig) -> dict[str, Any]:
  return {
    **_describe_bert(config),
    "model_type": "mpnet",
    "relative_attention_num_buckets": config.relpos_buckets,
  }


_MPNET = Architecture(
  name="MPNetModel",
  table=(
    *_WORDS,
    *_EMBEDDING_NORM,
    Rule(
      "encoder.relative_attention_bias.weight",
      "encoder/relpos_bias/rel_embedding",
      ("relpos_buckets", "num_heads"),
      transposed=True,
    ),
    *bert_layers(
      "encoder.layer",
      ("attention.attn.q", "attention.attn.k", "attention.attn.v", "attention.attn.o"),
      ("attention.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm"),
    ),
  ),
  options=_mpnet_options,
  describe=_describe_mpnet,
  prefixes=("", "mpnet."),
  left_out={
    POOLER: _PRETRAINING,
    "lm_head.": _PRETRAINING,
    "embeddings.position_ids": _NO_PARAMETER,
  },
)


# --------------------------------------------------------------------------------------------
# Rotary positions


def _rope_thetas(file: ConfigFile, full: str, local: str, defaults: tuple[float, float]) -> Any:
  """Returns the bases of full and local layers, which newer files have in 'rope_parameters'.

  Args:
    file: The file.
    full: Key of the base of full layers in older files.
    local: Key of that of local ones.
    defaults: Values of bases that the file lacks.
  """
  file.require("rope_scaling", None)
  record = file.record.get("rope_parameters") or {}
  thetas = []
  for kind, key, default in zip(_LAYER_TYPES, (full, local), defaults, strict=True):
    # transformers ignores what is beside the entries of a model with two kinds of layers.
    plain = record if full == local else {}
    entry = (record.get(kind, plain) or {}) if isinstance(record, dict) else record
    if not isinstance(entry, dict):
      raise errors.InputError(
        f"{file.path}: 'rope_parameters' is {input_files.shown(record)}, not an object, or one for "
        "each kind of layer"
      )
    inner = ConfigFile(file.path, {"rope_theta": file.record.get(key, default), **entry})
    for name in ("rope_type", "type"):  # transformers reads either
      inner.require(name, "default")
    thetas.append(inner.number("rope_theta", default))
  return thetas


_LAYER_TYPES = ("full_attention", "sliding_attention")


def _local_layers(file: ConfigFile, layers: int, full_every: int, offset: int) -> tuple[int, ...]:
  """Returns the local layers; in older files, the others are each `full_every`th from `offset`."""
  kinds = file.record.get("layer_types")
  if kinds is None:
    kinds = [_LAYER_TYPES[(i - offset) % full_every != 0] for i in range(min(layers, 1000))]
  if (
    not isinstance(kinds, list) or len(kinds) != layers or not {*map(str, kinds)} <= {*_LAYER_TYPES}
  ):
    raise errors.InputError(
      f"{file.path}: 'layer_types' must be {' or '.join(_LAYER_TYPES)} for each of {layers} layers"
    )
  return tuple(i for i, kind in enumerate(kinds) if kind == _LAYER_TYPES[1])


def _modernbert_options(file: ConfigFile) -> dict[str, Any]:
  for key in ("attention_bias", "mlp_bias", "norm_bias"):
    file.require(key, False)
  defaults = (160_000.0, _DEFAULT_THETA)
  full, local = _rope_thetas(file, "global_rope_theta", "local_rope_theta", defaults)
  sizes, every = file.integers(_SIZES), file.integer("global_attn_every_n_layers", 3)
  return {
    **sizes,
    "activation": file.activation("hidden_activation", "gelu"),
    "layer_norm_eps": file.number("norm_eps", 1e-5, below=1),
    "rope_theta": full,
    "local_rope_theta": local,
    "local_layers": _local_layers(file, sizes["num_layers"], every, 0),
    "window": file.integer("local_attention", 128) // 2 + 1,
  }


def _describe_rotary(config: transformer.TransformerConfig, model_type: str) -> dict[str, Any]:
  """Returns what the files of models with rotary positions share."""
  local = {*config.local_layers}
  thetas = (config.rope_theta, config.local_rope_theta)
  full, sliding = ({"rope_type": "default", "rope_theta": theta} for theta in thetas)
  return {
    **_described_sizes(config),
    "model_type": model_type,
    "layer_types": [_LAYER_TYPES[i in local] for i in range(config.num_layers)],
    "rope_parameters": dict(zip(_LAYER_TYPES, (full, sliding), strict=True)),
    "initializer_range": config.initializer_std,
    "attention_dropout": config.dropout_rate,
  }


def _describe_modernbert(config: transformer.TransformerConfig) -> dict[str, Any]:
  return {
    **_describe_rotary(config, "modernbert"),
    "hidden_activation": _theirs(config),
    "norm_eps": config.layer_norm_eps,
    "local_attention": 2 * (config.window - 1),
  }


_MODERNBERT = Architecture(
  name="ModernBertModel",
  table=(
    _token_table("embeddings.tok_embeddings.weight"),
    *norm("embeddings.norm", "encoder/embedding_layer_norm", bias=False),
    *_layers(
      "layers",
      Rule("attn_norm.weight", "pre_attention_layer_norm/scale", ("emb_dim",), first_layer=1),
      Rule(
        "attn.Wqkv.weight",
        tuple(f"attention/{part}/kernel" for part in ("query", "key", "value")),
        ("qkv", "emb_dim"),
        transposed=True,
      ),
      *dense("attn.Wo", "attention/out", "emb_dim", "joined", bias=False),
      *norm("mlp_norm", "pre_mlp_layer_norm", bias=False),
      Rule(
        "mlp.Wi.weight",
        ("mlp/wi_0/kernel", "mlp/wi_1/kernel"),
        ("mlp_twice", "emb_dim"),
        transposed=True,
      ),
      *dense("mlp.Wo", "mlp/wo", "emb_dim", "mlp_dim", bias=False),
    ),
    *norm("final_norm", "encoder/encoder_norm", bias=False),
  ),
  options=_modernbert_options,
  describe=_describe_modernbert,
  fixed={
    "positions": "rotary",
    "norm_place": "before",
    "first_norm": False,
    "use_bias": False,
    "norm_bias": False,
    "gated": True,
  },
  prefixes=("", "model."),
  left_out={"head.": _PRETRAINING, "decoder.": _PRETRAINING},
)


def _decoder_options(file: ConfigFile, activation: tuple[str, str]) -> dict[str, Any]:
  """Returns the options that Qwen and Gemma share, given key and default of the activation."""
  file.require("attention_bias", False)
  sizes = file.integers(_SIZES)
  return {
    **sizes,
    "num_kv_heads": file.integer("num_key_value_heads", sizes["num_heads"]),
    "head_dim": file.integer("head_dim"),
    "activation": file.activation(*activation),
    "layer_norm_eps": file.number("rms_norm_eps", 1e-6, below=1),
  }


def _qwen3_options(file: ConfigFile) -> dict[str, Any]:
  file.require("use_sliding_window", False)
  hugging_face.check_choice(file.path, file.record, "is_causal", True, (True, False))
  theta, _ = _rope_thetas(file, "rope_theta", "rope_theta", (_DEFAULT_THETA, _DEFAULT_THETA))
  return {
    **_decoder_options(file, ("hidden_act", "silu")),
    "rope_theta": theta,
    "causal": file.record.get("is_causal", True),
  }


def _describe_decoder(config: transformer.TransformerConfig, model_type: str) -> dict[str, Any]:
  return {
    **_describe_rotary(config, model_type),
    "num_key_value_heads": config.kv_heads,
    "head_dim": config.head_width,
    "rms_norm_eps": config.layer_norm_eps,
  }


def _describe_qwen3(config: transformer.TransformerConfig) -> dict[str, Any]:
  described = _describe_decoder(config, "qwen3")
  rope = described.pop("rope_parameters")["full_attention"]
  return {
    **described,
    "hidden_act": _theirs(config),
    "rope_parameters": rope,
    "is_causal": config.causal,
  }


def _describe_gemma3(config: transformer.TransformerConfig) -> dict[str, Any]:
  both_sides = not config.causal
  return {
    **_describe_decoder(config, "gemma3_text"),
    "hidden_activation": _theirs(config),
    "query_pre_attn_scalar": config.query_scalar,
    "sliding_window": 2 * (config.window - 1) if both_sides else config.window,
    "use_bidirectional_attention": both_sides,
  }


def _gemma3_options(file: ConfigFile) -> dict[str, Any]:
  for key in ("final_logit_softcapping", "attn_logit_softcapping"):
    file.require(key, None)
  file.require("is_causal", True)  # False differs from use_bidirectional_attention
  options = _decoder_options(file, ("hidden_activation", "gelu_pytorch_tanh"))
  defaults = (1_000_000.0, _DEFAULT_THETA)
  full, local = _rope_thetas(file, "rope_theta", "rope_local_base_freq", defaults)
  pattern = file.integer("sliding_window_pattern", 6)
  both_sides = bool(file.record.get("use_bidirectional_attention"))
  window = file.integer("sliding_window", 4096)
  return {
    **options,
    "query_scalar": file.integer("query_pre_attn_scalar", 256),
    "rope_theta": full,
    "local_rope_theta": local,
    "local_layers": _local_layers(file, options["num_layers"], pattern, pattern - 1),
    "window": window // 2 + 1 if both_sides else window,
    "causal": not both_sides,
  }


def _decoder_table(mlp_norms: tuple[str, str | None], plus: float) -> tuple[Rule, ...]:
  """Returns the weights of Qwen and Gemma.

  Args:
    mlp_norms: Names of the norms before and after the feed-forward layer. With the latter, there is
      a norm after attention too.
    plus: What the network adds to the scales of norms.
  """
  scale = functools.partial(norm, bias=False, plus=plus)
  before, after = mlp_norms
  return (
    _token_table("embed_tokens.weight"),
    *_layers(
      "layers",
      *scale("input_layernorm", "pre_attention_layer_norm"),
      *dense("self_attn.q_proj", "attention/query", "joined", bias=False),
      *dense("self_attn.k_proj", "attention/key", "joined_kv", bias=False),
      *dense("self_attn.v_proj", "attention/value", "joined_kv", bias=False),
      *dense("self_attn.o_proj", "attention/out", "emb_dim", "joined", bias=False),
      *scale("self_attn.q_norm", "attention/query_norm", "head_width"),
      *scale("self_attn.k_norm", "attention/key_norm", "head_width"),
      *(scale("post_attention_layernorm", "post_attention_layer_norm") if after else ()),
      *scale(before, "pre_mlp_layer_norm"),
      *dense("mlp.gate_proj", "mlp/wi_0", "mlp_dim", bias=False),
      *dense("mlp.up_proj", "mlp/wi_1", "mlp_dim", bias=False),
      *dense("mlp.down_proj", "mlp/wo", "emb_dim", "mlp_dim", bias=False),
      *(scale(after, "post_mlp_layer_norm") if after else ()),
    ),
    *scale("norm", "encoder/encoder_norm"),
  )


_DECODER = {
  "positions": "rotary", "qk_norm": True, "norm": "rms", "embedding_norm": False,
  "use_bias": False, "gated": True,
}  # fmt: skip
_QWEN3 = Architecture(
  name="Qwen3Model",
  table=_decoder_table(("post_attention_layernorm", None), 0.0),
  options=_qwen3_options,
  describe=_describe_qwen3,
  fixed={**_DECODER, "norm_place": "before"},
  prefixes=("", "model."),
  left_out={"lm_head.": _PRETRAINING},
)
_GEMMA3 = Architecture(
  name="Gemma3TextModel",
  table=_decoder_table(("pre_feedforward_layernorm", "post_feedforward_layernorm"), 1.0),
  options=_gemma3_options,
  describe=_describe_gemma3,
  fixed={**_DECODER, "norm_place": "around", "scale_embeddings": True},
  prefixes=("", "model."),
  left_out={"lm_head.": _PRETRAINING},
)


# --------------------------------------------------------------------------------------------
# T5

T5_SIZES = {"vocab_size": "vocab_size", "emb_dim": "d_model", "num_heads": "num_heads",
            "head_dim": "d_kv", "mlp_dim": "d_ff"}  # fmt: skip
"""Sizes by their names in the `config.json` of T5."""
T5_MAX_POSITIONS = 1 << 20
"""Most tokens of a sentence, which T5 does not limit."""
# Whether it has a gate, and the activation.
_T5_MLPS = {
  "relu": (False, "relu"),
  "gated-gelu": (True, "gelu_tanh"),
  "gated-silu": (True, "swish"),
}


def t5_attention(source: str, target: str) -> tuple[Rule, ...]:
  """Returns the rules of an attention layer of T5."""
  return (
    *dense(f"{source}.q", f"{target}/query", "joined", bias=False),
    *dense(f"{source}.k", f"{target}/key", "joined", bias=False),
    *dense(f"{source}.v", f"{target}/value", "joined", bias=False),
    *dense(f"{source}.o", f"{target}/out", "emb_dim", "joined", bias=False),
  )


def t5_mlp(source: str, inner: tuple[str, ...] = ("wi_0", "wi_1")) -> tuple[Rule, ...]:
  """Returns the rules of a feed-forward layer of T5, given the names of its first layers."""
  wide = (dense(f"{source}.{x}", f"mlp/{x}", "mlp_dim", bias=False) for x in inner)
  narrow = dense(f"{source}.wo", "mlp/wo", "emb_dim", "mlp_dim", bias=False)
  return (*itertools.chain(*wide), *narrow)


def t5_stack(name: str, *layer: Rule) -> tuple[Rule, ...]:
  """Returns the rules of an encoder or decoder of T5, from those of a layer."""
  return (
    Rule(
      f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
      f"{name}/relpos_bias/rel_embedding",
      ("relpos_buckets", "num_heads"),
      transposed=True,
    ),
    *weight_tables.each_layer(
      f"num_{name}_layers", f"{name}.block.{{i}}.layer.", f"{name}/layers_{{i}}/", layer
    ),
    *norm(f"{name}.final_layer_norm", f"{name}/{name}_norm", bias=False),
  )


def t5_encoder(*inner: str) -> tuple[Rule, ...]:
  """Returns the rules of T5's encoder, given the names of first feed-forward layers."""
  return (
    _token_table("shared.weight"),
    *t5_stack(
      "encoder",
      *norm("0.layer_norm", "pre_attention_layer_norm", bias=False),
      *t5_attention("0.SelfAttention", "attention"),
      *norm("1.layer_norm", "pre_mlp_layer_norm", bias=False),
      *t5_mlp("1.DenseReluDense", inner),
    ),
  )


def describe_t5(
  config: Any, layers: int, max_distance: int, mlp: str = "gated-gelu", epsilon: float = 1e-6
) -> dict[str, Any]:
  """Returns the `config.json` of an encoder, given its config and what has other names there."""
  return {
    "model_type": "t5",
    **{theirs: getattr(config, ours) for ours, theirs in T5_SIZES.items()},
    "num_layers": layers,
    "relative_attention_num_buckets": config.relpos_buckets,
    "relative_attention_max_distance": max_distance,
    "feed_forward_proj": mlp,
    "layer_norm_epsilon": epsilon,
    "dropout_rate": config.dropout_rate,
    "is_encoder_decoder": False,
    "use_cache": False,
  }


def _t5_options(file: ConfigFile) -> dict[str, Any]:
  file.require("relative_attention_max_distance", transformer.RELPOS_MAX_DISTANCE)
  key = "feed_forward_proj"
  hugging_face.check_choice(file.path, file.record, key, "relu", tuple(_T5_MLPS))
  gated, activation = _T5_MLPS[file.record.get(key, "relu")]
  return {
    **file.integers(T5_SIZES),
    "num_layers": file.integer("num_layers"),
    "relpos_buckets": file.integer("relative_attention_num_buckets", 32),
    "layer_norm_eps": file.number("layer_norm_epsilon", 1e-6, below=1),
    "gated": gated,
    "activation": activation,
  }


def _describe_t5(config: transformer.TransformerConfig) -> dict[str, Any]:
  kind = (config.gated, config.activation)
  mlp = next((name for name, known in _T5_MLPS.items() if known == kind), "none")
  distance = transformer.RELPOS_MAX_DISTANCE
  return describe_t5(config, config.num_layers, distance, mlp, config.layer_norm_eps)


_T5 = Architecture(
  name="T5EncoderModel",
  table=t5_encoder("wi_0", "wi_1"),
  ungated=t5_encoder("wi"),
  options=_t5_options,
  describe=_describe_t5,
  fixed={
    "max_positions": T5_MAX_POSITIONS,
    "positions": "relative",
    "query_scalar": 1,
    "norm": "rms",
    "norm_place": "before",
    "embedding_norm": False,
    "use_bias": False,
  },
  prefixes=("",),
  left_out={
    "decoder.": "the encoder does not use it",
    "lm_head.": _PRETRAINING,
    "encoder.embed_tokens.": "copy of the token table",
  },
)

ARCHITECTURES: dict[str, Architecture] = {
  "bert": BERT,
  "roberta": _ROBERTA,
  "xlm-roberta": _ROBERTA,
  "distilbert": _DISTILBERT,
  "mpnet": _MPNET,
  "modernbert": _MODERNBERT,
  "qwen3": _QWEN3,
  "gemma3_text": _GEMMA3,
  "t5": _T5,
  "mt5": _T5,
}
"""By the `model_type` of transformers."""

# Options that are not those of an architecture.
_NUMERICS = ("vocab_size", "initializer_std", "dropout_rate", "dtype", "remat", "scan_layers")


def of(config: transformer.TransformerConfig) -> tuple[Architecture, dict[str, Any]]:
  """Returns the architecture that computes what a network does, and its `config.json`.

  Raises:
    InputError: no architecture of transformers does.
  """
  numerics = {name: getattr(config, name) for name in _NUMERICS}
  for architecture in (BERT, _MPNET, _MODERNBERT, _QWEN3, _GEMMA3, _T5):
    record = architecture.describe(config)
    try:
      sizes = architecture.sizes(ConfigFile(pathlib.Path(hugging_face.CONFIG_FILE), record))
    except errors.InputError:
      continue
    made = transformer.TransformerConfig(**{**sizes, **numerics})
    # The heads of keys may be given or follow from the others.
    resolved = dataclasses.replace(config, num_kv_heads=made.num_kv_heads, head_dim=made.head_dim)
    same_heads = (made.kv_heads, made.head_width) == (config.kv_heads, config.head_width)
    if same_heads and made == resolved:
      return architecture, record
  raise errors.InputError("no model of transformers has the options of this TransformerConfig")
