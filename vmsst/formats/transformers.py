"""Reads and writes encoders in transformers' format: `config.json` and weights.

An `Architecture` converts a `config.json` to a `TransformerConfig` and back, and maps weights to
parameters. Tests compare each architecture with the model in transformers.

Exports write a T5 encoder as a `T5EncoderModel`. EMS, XLM-R and other BERT-like encoders are
written as a `BertModel`. All other encoders keep their architecture. XLM-R numbers positions from
2, but BERT numbers them from 0, so the export drops the unused first rows of the position table.
Sentence vectors do not change.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np

from vmsst import arrays, errors
from vmsst.formats import tensors
from vmsst.formats.tensors import Row
from vmsst.networks import sentence_encoder, t5, transformer

CONFIG_FILE = "config.json"
WEIGHTS_FILE, TORCH_FILE = "model.safetensors", "pytorch_model.bin"
_POSITION_TABLE = "encoder/position_embedding"
_TYPE_TABLE = "encoder/token_type_embedding"
# Prefixes of weight names in models with a pre-training head.
_PREFIXES = ("", "bert.", "roberta.", "distilbert.", "mpnet.", "model.")
# Reasons for not importing some tensors, by the start of the tensor name.
_LEFT_OUT = {
  **dict.fromkeys(
    ("pooler.", "cls.", "lm_head.", "vocab_", "head.", "decoder."), "not part of the encoder"
  ),
  "embeddings.position_ids": "not a parameter: 0, 1, 2 and so on",
  "encoder.embed_tokens.": "copy of the token table",
}
# Required values of keys in `config.json`. Keys may be missing.
_REQUIRED = {
  **dict.fromkeys(("rope_scaling", "final_logit_softcapping", "attn_logit_softcapping")),
  **dict.fromkeys(("is_decoder", "use_sliding_window"), False),
  **dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias"), False),
  "position_embedding_type": "absolute",
  "relative_attention_max_distance": transformer.RELPOS_MAX_DISTANCE,
}
# Checkpoints converted from TensorFlow use different names for norm weights.
_OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
T5_MAX_POSITIONS = 1 << 20
"""Maximum number of tokens per sentence. T5 itself has no limit."""

_Options = TypeVar("_Options")

# --------------------------------------------------------------------------------------------
# Files


def read_object(path: pathlib.Path, *, if_missing: dict[str, Any] | None = None) -> dict[str, Any]:
  """Returns the JSON object in a model file.

  Args:
    path: The file.
    if_missing: Result if the file does not exist. If omitted, a missing file is an error.

  Raises:
    InputError: If the file is missing or is not a JSON object.
  """
  if if_missing is not None and not path.is_file():
    return dict(if_missing)
  try:
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
  except (OSError, msgspec.MsgspecError) as error:
    raise errors.InputError(f"{path}: cannot be read as a JSON object: {error}") from None


def check_config(
  path: pathlib.Path,
  record: Mapping[str, Any],
  options: type[_Options],
  fixed: Mapping[str, Any] | None = None,
) -> _Options:
  """Parses and checks the content of a JSON file. Keys without a field in `options` are ignored.

  Args:
    path: The file, for messages.
    record: Content of the file.
    options: Type of the options.
    fixed: Required values of keys. Keys may be missing.

  Raises:
    InputError: If a value is invalid or not supported.
  """
  try:
    for key, value in (fixed or {}).items():
      if record.get(key, value) != value:
        raise ValueError(f"{key!r} is {record[key]!r:.80}, not {value!r}")
    return msgspec.convert(record, options)
  except (msgspec.ValidationError, ValueError) as error:
    raise errors.InputError(f"{path}: {error}; this model is not supported") from None


class _Index(msgspec.Struct):
  """The index of a sharded model. All shards are in the same folder as the index."""

  weight_map: dict[str, str]


def open_tensors(folder: pathlib.Path) -> dict[str, tensors.StoredTensor]:
  """Opens the weights of a model folder, and returns the tensors by name.

  The weights are read from `model.safetensors` or, if this file does not exist, from
  `pytorch_model.bin`, which requires torch. If the model is sharded, its folder contains a list of
  shards instead, such as `model.safetensors.index.json`.

  Raises:
    InputError: If a file is missing or damaged.
  """
  for path in (folder / WEIGHTS_FILE, folder / TORCH_FILE):
    if path.is_file():
      return tensors.open_file(path)
    index = path.with_name(f"{path.name}.index.json")
    if index.is_file():
      names = check_config(index, read_object(index), _Index).weight_map.values()
      shards = {pathlib.PurePath(name).name for name in names}
      weights: dict[str, tensors.StoredTensor] = {}
      for name in sorted(shards):
        weights |= tensors.open_file(folder / name)
      return weights
  raise errors.InputError(
    f"{folder} has no weights: neither {WEIGHTS_FILE} nor {TORCH_FILE} nor a list of shards"
  )


# --------------------------------------------------------------------------------------------
# Architectures

ACTIVATIONS = {
  "gelu": "gelu",
  "relu": "relu",
  "silu": "swish",
  "swish": "swish",
  "gelu_pytorch_tanh": "gelu_tanh",
  "gelu_new": "gelu_tanh",
}
"""Names of activations in this library, by their names in transformers."""
Activation = Literal["gelu", "relu", "silu", "swish", "gelu_pytorch_tanh", "gelu_new"]
Size = Annotated[int, msgspec.Meta(gt=0, lt=1 << 31)]
Layers = Annotated[int, msgspec.Meta(gt=0, le=errors.MOST_LAYERS)]
Number = Annotated[float, msgspec.Meta(gt=0)]
Epsilon = Annotated[float, msgspec.Meta(gt=0, lt=1)]
Id = Annotated[int, msgspec.Meta(ge=0)]
_LayerType = Literal["full_attention", "sliding_attention"]
_FULL, _LOCAL = "full_attention", "sliding_attention"
# Keys in `config.json`, by TransformerConfig attribute, for most architectures.
_NAMES = {
  "emb_dim": "hidden_size",
  "num_heads": "num_attention_heads",
  "num_kv_heads": "num_key_value_heads",
  "mlp_dim": "intermediate_size",
  "num_layers": "num_hidden_layers",
  "max_positions": "max_position_embeddings",
  "num_token_types": "type_vocab_size",
  "relpos_buckets": "relative_attention_num_buckets",
  "activation": "hidden_act",
  "causal": "is_causal",
  "query_scalar": "query_pre_attn_scalar",
}
_ROTARY_NAMES = _NAMES | {"activation": "hidden_activation"}
_RMS = {"layer_norm_eps": "rms_norm_eps"}


class _Sizes(msgspec.Struct, kw_only=True, rename=_NAMES):
  """Sizes that most architectures have, renamed to match the TransformerConfig attributes."""

  vocab_size: Size
  emb_dim: Size
  num_heads: Size
  mlp_dim: Size
  num_layers: Layers
  max_positions: Size
  pad_token_id: Id | None = None


class _MpnetOptions(_Sizes, rename=_NAMES):
  relpos_buckets: Size = 32
  activation: Activation = "gelu"
  layer_norm_eps: Epsilon = 1e-12


class _BertOptions(_Sizes, rename=_NAMES):
  num_token_types: Size
  activation: Activation = "gelu"
  layer_norm_eps: Epsilon = 1e-12


class _DistilbertOptions(msgspec.Struct, kw_only=True, rename=_NAMES | {
  "emb_dim": "dim", "num_heads": "n_heads", "mlp_dim": "hidden_dim", "num_layers": "n_layers",
  "activation": "activation",
}):  # fmt: skip
  vocab_size: Size
  emb_dim: Size
  num_heads: Size
  mlp_dim: Size
  num_layers: Layers
  max_positions: Size
  activation: Activation = "gelu"


class _Rope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
  """Rotary position settings for a layer type. transformers accepts both `rope_type` and `type`."""

  rope_theta: Number | None = None
  rope_type: Literal["default"] = "default"
  type: Literal["default"] = "default"


class _Ropes(msgspec.Struct, frozen=True):
  """Rotary position settings for global and local layers. transformers ignores all other keys."""

  full_attention: _Rope = _Rope()
  sliding_attention: _Rope = _Rope()


class _ModernbertOptions(_Sizes, rename=_ROTARY_NAMES | {"layer_norm_eps": "norm_eps"}):
  activation: Activation = "gelu"
  layer_norm_eps: Epsilon = 1e-5
  theta: Number = msgspec.field(default=160_000.0, name="global_rope_theta")
  local_theta: Number = msgspec.field(default=10_000.0, name="local_rope_theta")
  rope_parameters: _Ropes = _Ropes()
  layer_types: list[_LayerType] | None = None
  global_attn_every_n_layers: Size = 3
  local_attention: Size = 128


class _Qwen3Options(_Sizes, rename=_NAMES | _RMS):
  head_dim: Size
  num_kv_heads: Size | None = None
  activation: Activation = "silu"
  layer_norm_eps: Epsilon = 1e-6
  causal: bool = True
  theta: Number = msgspec.field(default=10_000.0, name="rope_theta")
  rope_parameters: _Rope = _Rope()


class _Gemma3Options(_Sizes, rename=_ROTARY_NAMES | _RMS):
  head_dim: Size
  num_kv_heads: Size | None = None
  activation: Activation = "gelu_pytorch_tanh"
  layer_norm_eps: Epsilon = 1e-6
  query_scalar: Size = 256
  theta: Number = msgspec.field(default=1_000_000.0, name="rope_theta")
  local_theta: Number = msgspec.field(default=10_000.0, name="rope_local_base_freq")
  rope_parameters: _Ropes = _Ropes()
  layer_types: list[_LayerType] | None = None
  sliding_window_pattern: Size = 6
  sliding_window: Size = 4096
  use_bidirectional_attention: bool = False


T5_NAMES = {
  "emb_dim": "d_model",
  "head_dim": "d_kv",
  "mlp_dim": "d_ff",
  "relpos_buckets": "relative_attention_num_buckets",
  "layer_norm_eps": "layer_norm_epsilon",
}
"""Keys in T5's `config.json`, by TransformerConfig attribute."""


class _T5Options(msgspec.Struct, kw_only=True, rename=T5_NAMES):
  vocab_size: Size
  emb_dim: Size
  num_heads: Size
  head_dim: Size
  mlp_dim: Size
  num_layers: Layers
  relpos_buckets: Size = 32
  layer_norm_eps: Epsilon = 1e-6
  feed_forward_proj: Literal["relu", "gated-gelu", "gated-silu"] = "relu"


Names = Mapping[str, str | tuple[str, ...]]
"""Names of parameters, by module name in another library.

If a module maps to several parameters, its weight is split equally among them.
"""


class Table(msgspec.Struct, frozen=True):
  """Maps the weights of a transformer to parameters.

  Attributes:
    names: Parameters of the modules outside the layers. The first module is the token table.
    layers: Name of the module that contains all layers.
    layer_names: Parameters of the modules in a layer.
    stack: Prefix for the names of layer parameters.
    plus: Constant that the network adds to norm scales.
  """

  names: Names
  layers: str
  layer_names: Names
  stack: str = "encoder"
  plus: float = 0.0

  def rows(self, config: transformer.TransformerConfig) -> list[Row]:
    """Returns one row for each tensor in a model with this config."""
    joined, joined_kv = (n * config.head_width for n in (config.num_heads, config.kv_heads))
    width, wide = config.emb_dim, config.mlp_dim
    # Shapes, by the last component of a parameter's name. All other parameters belong to norms.
    tables = {
      "embedding": (config.vocab_size, width),
      "position_embedding": (config.max_positions, width),
      "token_type_embedding": (config.num_token_types, width),
      "rel_embedding": (config.relpos_buckets, config.num_heads),
    }
    kernels = {
      "query": (joined, width), "key": (joined_kv, width), "value": (joined_kv, width),
      "out": (width, joined), "wi": (wide, width), "wi_0": (wide, width), "wi_1": (wide, width),
      "wo": (width, wide),
    }  # fmt: skip
    has_norm_bias = config.norm == "layer" and config.norm_bias
    modules = [(source, "", target) for source, target in self.names.items()]
    for i in range(config.num_layers):
      start = f"{self.stack}/layers_{i}/"
      modules += [
        (f"{self.layers}.{i}.{x}", start, target) for x, target in self.layer_names.items()
      ]
    rows = []
    for source, start, target in modules:
      targets = [start + x for x in ((target,) if isinstance(target, str) else target)]
      kinds = [x.rpartition("/")[2] for x in targets]
      if kinds[0] in tables:
        is_transposed = kinds[0] == "rel_embedding"
        rows.append(Row(f"{source}.weight", tables[kinds[0]], (*targets,), is_transposed))
      elif kinds[0] in kernels:
        if not kinds[0].startswith("wi") or config.gated == (kinds[0] != "wi"):
          shape = sum(kernels[kind][0] for kind in kinds), kernels[kinds[0]][1]
          rows += tensors.dense(source, shape, *targets, bias=config.use_bias)
      elif targets == [f"{self.stack}/layers_0/pre_attention_layer_norm"] and not config.first_norm:
        rows.append(Row("", (width,), (f"{targets[0]}/scale",)))
      else:
        size = config.head_width if kinds[0] in ("query_norm", "key_norm") else width
        rows += tensors.norm(source, size, targets[0], bias=has_norm_bias, plus=self.plus)
    return rows


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
  """An encoder architecture in transformers.

  Attributes:
    name: Class in transformers.
    model_type: `model_type` to write in exports.
    options: Type of the options in `config.json`. If TransformerConfig has an equivalent attribute,
      the option has the same name.
    required: Required values of keys in `config.json`, besides `_REQUIRED`.
    fixed: TransformerConfig attributes that are the same for all encoders with this architecture.
    attributes: Computes the remaining TransformerConfig attributes from the options.
    described: Computes the remaining `config.json` keys from a TransformerConfig.
    table: Maps weights to parameters.
  """

  name: str
  model_type: str
  options: type[Any]
  required: Mapping[str, Any] = {}
  fixed: Mapping[str, Any] = {}
  attributes: Callable[[Any], dict[str, Any]] = lambda _: {}
  described: Callable[[transformer.TransformerConfig], dict[str, Any]] = lambda _: {}
  table: Table

  def sizes(self, path: pathlib.Path, record: Mapping[str, Any]) -> dict[str, Any]:
    """Converts the content of a `config.json` to TransformerConfig attributes.

    Args:
      path: The file, for messages.
      record: Content of the file.

    Raises:
      InputError: If a value is invalid or not supported.
    """
    # A null in the file stands for the default.
    record = {key: value for key, value in record.items() if value is not None}
    options = check_config(path, record, self.options, {**_REQUIRED, **self.required})
    sizes = {
      name: value
      for name, value in msgspec.structs.asdict(options).items()
      if name in transformer.TransformerConfig.__dataclass_fields__
    }
    if "activation" in sizes:
      sizes["activation"] = ACTIVATIONS[sizes["activation"]]
    return {**sizes, **self.attributes(options), **self.fixed}

  def describe(self, config: transformer.TransformerConfig) -> dict[str, Any]:
    """Converts a TransformerConfig to the content of a `config.json`. Inverse of `sizes`."""
    names = {field.name: field.encode_name for field in msgspec.structs.fields(self.options)}
    record = {key: getattr(config, name) for name, key in names.items() if hasattr(config, name)}
    if "activation" in names:
      record[names["activation"]] = next(
        key for key, name in ACTIVATIONS.items() if name == config.activation
      )
    return {**record, "model_type": self.model_type, **self.described(config)}

  def name_tensors(
    self, source_path: pathlib.Path, weights: Mapping[str, tensors.StoredTensor]
  ) -> tuple[dict[str, tensors.StoredTensor], dict[str, str]]:
    """Selects the encoder's tensors, and renames them as in a model without a pre-training head.

    Args:
      source_path: The source, for messages.
      weights: All tensors by name.

    Returns:
      The encoder's tensors, and the reasons for skipping all other tensors, by name.
    """
    words = f"{next(iter(self.table.names))}.weight"
    prefix = next((prefix for prefix in _PREFIXES if prefix + words in weights), None)
    if prefix is None:
      raise errors.InputError(f"{source_path} lacks {words}, so it is not a {self.name}")
    encoder_weights: dict[str, tensors.StoredTensor] = {}
    left_out = {}
    for source, tensor in weights.items():
      name = source.removeprefix(prefix)
      for old, new in _OLD_NAMES.items():
        name = name.replace(old, new)
      if start := next(filter(name.startswith, _LEFT_OUT), None):
        left_out[source] = _LEFT_OUT[start]
      else:
        encoder_weights[name] = tensor
    return encoder_weights, left_out


# --------------------------------------------------------------------------------------------
# BERT and similar encoders, which differ in their tensor names and positions.

BERT_LAYER = {
  "attention.self.query": "attention/query",
  "attention.self.key": "attention/key",
  "attention.self.value": "attention/value",
  "attention.output.dense": "attention/out",
  "attention.output.LayerNorm": "post_attention_layer_norm",
  "intermediate.dense": "mlp/wi",
  "output.dense": "mlp/wo",
  "output.LayerNorm": "post_mlp_layer_norm",
}
_EMBEDDINGS = {
  "embeddings.word_embeddings": tensors.TOKEN_TABLE,
  "embeddings.position_embeddings": _POSITION_TABLE,
  "embeddings.LayerNorm": "encoder/embedding_layer_norm",
}
BERT = Architecture(
  name="BertModel",
  model_type="bert",
  options=_BertOptions,
  table=Table(
    names={**_EMBEDDINGS, "embeddings.token_type_embeddings": _TYPE_TABLE},
    layers="encoder.layer",
    layer_names=BERT_LAYER,
  ),
)
_ROBERTA = msgspec.structs.replace(
  BERT,
  name="XLMRobertaModel",
  # RoBERTa numbers positions from the row after the padding row.
  attributes=lambda x: {"position_offset": (1 if x.pad_token_id is None else x.pad_token_id) + 1},
)
_DISTILBERT = Architecture(
  name="DistilBertModel",
  model_type="distilbert",
  options=_DistilbertOptions,
  table=Table(
    names=_EMBEDDINGS,
    layers="transformer.layer",
    layer_names={
      "attention.q_lin": "attention/query",
      "attention.k_lin": "attention/key",
      "attention.v_lin": "attention/value",
      "attention.out_lin": "attention/out",
      "sa_layer_norm": "post_attention_layer_norm",
      "ffn.lin1": "mlp/wi",
      "ffn.lin2": "mlp/wo",
      "output_layer_norm": "post_mlp_layer_norm",
    },
  ),
)
_MPNET = Architecture(
  name="MPNetModel",
  model_type="mpnet",
  options=_MpnetOptions,
  fixed={"position_offset": 2},
  table=Table(
    names={**_EMBEDDINGS, "encoder.relative_attention_bias": "encoder/relpos_bias/rel_embedding"},
    layers="encoder.layer",
    layer_names={
      "attention.attn.q": "attention/query",
      "attention.attn.k": "attention/key",
      "attention.attn.v": "attention/value",
      "attention.attn.o": "attention/out",
      "attention.LayerNorm": "post_attention_layer_norm",
      "intermediate.dense": "mlp/wi",
      "output.dense": "mlp/wo",
      "output.LayerNorm": "post_mlp_layer_norm",
    },
  ),
)


# --------------------------------------------------------------------------------------------
# Rotary positions


def _local_attributes(options: Any, full_every: int, offset: int) -> dict[str, Any]:
  """Returns the rotary bases and the indices of the local layers.

  Older `config.json` files do not list the layer types. In this case, every `full_every`-th layer
  has full attention.

  Args:
    options: The options.
    full_every: Distance between layers with full attention.
    offset: Index of the first layer with full attention.
  """
  kinds = options.layer_types
  if kinds is None:
    kinds = [_LOCAL if (i - offset) % full_every else _FULL for i in range(options.num_layers)]
  if len(kinds) != options.num_layers:
    raise ValueError(f"'layer_types' lists {len(kinds)} layers, not {options.num_layers}")
  ropes = options.rope_parameters
  return {
    "rope_theta": ropes.full_attention.rope_theta or options.theta,
    "local_rope_theta": ropes.sliding_attention.rope_theta or options.local_theta,
    "local_layers": tuple(i for i, kind in enumerate(kinds) if kind == _LOCAL),
  }


def _described_rotary(config: transformer.TransformerConfig) -> dict[str, Any]:
  """Returns the layer types and rotary bases for a `config.json`."""
  local = {*config.local_layers}
  thetas = {_FULL: config.rope_theta, _LOCAL: config.local_rope_theta}
  return {
    "layer_types": [_LOCAL if i in local else _FULL for i in range(config.num_layers)],
    "rope_parameters": {
      kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in thetas.items()
    },
  }


def _described_decoder(config: transformer.TransformerConfig) -> dict[str, Any]:
  return {
    **_described_rotary(config),
    "num_key_value_heads": config.kv_heads,
    "head_dim": config.head_width,
  }


_MODERNBERT = Architecture(
  name="ModernBertModel",
  model_type="modernbert",
  options=_ModernbertOptions,
  attributes=lambda x: {
    **_local_attributes(x, x.global_attn_every_n_layers, 0),
    "window": x.local_attention // 2 + 1,
  },
  described=lambda x: {**_described_rotary(x), "local_attention": 2 * (x.window - 1)},
  table=Table(
    names={
      "embeddings.tok_embeddings": tensors.TOKEN_TABLE,
      "embeddings.norm": "encoder/embedding_layer_norm",
      "final_norm": "encoder/encoder_norm",
    },
    layers="layers",
    layer_names={
      "attn_norm": "pre_attention_layer_norm",
      "attn.Wqkv": ("attention/query", "attention/key", "attention/value"),
      "attn.Wo": "attention/out",
      "mlp_norm": "pre_mlp_layer_norm",
      "mlp.Wi": ("mlp/wi_0", "mlp/wi_1"),
      "mlp.Wo": "mlp/wo",
    },
  ),
  fixed={
    "positions": "rotary",
    "norm_place": "before",
    "first_norm": False,
    "use_bias": False,
    "norm_bias": False,
    "gated": True,
  },
)


_DECODER_NAMES = {"embed_tokens": tensors.TOKEN_TABLE, "norm": "encoder/encoder_norm"}
_DECODER_LAYER = {
  "input_layernorm": "pre_attention_layer_norm",
  "self_attn.q_proj": "attention/query",
  "self_attn.k_proj": "attention/key",
  "self_attn.v_proj": "attention/value",
  "self_attn.o_proj": "attention/out",
  "self_attn.q_norm": "attention/query_norm",
  "self_attn.k_norm": "attention/key_norm",
  "mlp.gate_proj": "mlp/wi_0",
  "mlp.up_proj": "mlp/wi_1",
  "mlp.down_proj": "mlp/wo",
}
_DECODER = {
  "positions": "rotary", "qk_norm": True, "norm": "rms", "embedding_norm": False,
  "use_bias": False, "gated": True,
}  # fmt: skip
_QWEN3 = Architecture(
  name="Qwen3Model",
  model_type="qwen3",
  options=_Qwen3Options,
  attributes=lambda x: {"rope_theta": x.rope_parameters.rope_theta or x.theta},
  described=lambda x: {
    **_described_decoder(x),
    "rope_parameters": {"rope_type": "default", "rope_theta": x.rope_theta},
  },
  table=Table(
    names=_DECODER_NAMES,
    layers="layers",
    layer_names={**_DECODER_LAYER, "post_attention_layernorm": "pre_mlp_layer_norm"},
  ),
  fixed={**_DECODER, "norm_place": "before"},
)
_GEMMA3 = Architecture(
  name="Gemma3TextModel",
  model_type="gemma3_text",
  options=_Gemma3Options,
  # A bidirectional model must set `use_bidirectional_attention` instead of `is_causal: false`.
  required={"is_causal": True},
  attributes=lambda x: {
    **_local_attributes(x, x.sliding_window_pattern, x.sliding_window_pattern - 1),
    "window": x.sliding_window // 2 + 1 if x.use_bidirectional_attention else x.sliding_window,
    "causal": not x.use_bidirectional_attention,
  },
  described=lambda x: {
    **_described_decoder(x),
    "sliding_window": x.window if x.causal else 2 * (x.window - 1),
    "use_bidirectional_attention": not x.causal,
  },
  table=Table(
    names=_DECODER_NAMES,
    layers="layers",
    layer_names={
      **_DECODER_LAYER,
      "post_attention_layernorm": "post_attention_layer_norm",
      "pre_feedforward_layernorm": "pre_mlp_layer_norm",
      "post_feedforward_layernorm": "post_mlp_layer_norm",
    },
    plus=1.0,
  ),
  fixed={**_DECODER, "norm_place": "around", "scale_embeddings": True},
)


# --------------------------------------------------------------------------------------------
# T5

# T5's names for feed-forward layers, by the activation and whether the layer has a gate.
_T5_MLPS = {("relu", False): "relu", ("gelu_tanh", True): "gated-gelu",
            ("swish", True): "gated-silu"}  # fmt: skip
T5_ATTENTION = {"q": "query", "k": "key", "v": "value", "o": "out"}
"""Names of the attention projections in this library, by their names in T5."""

T5 = Architecture(
  name="T5EncoderModel",
  model_type="t5",
  options=_T5Options,
  attributes=lambda x: next(
    {"activation": activation, "gated": gated}
    for (activation, gated), name in _T5_MLPS.items()
    if name == x.feed_forward_proj
  ),
  described=lambda x: {
    "feed_forward_proj": _T5_MLPS.get((x.activation, x.gated)),
    "relative_attention_max_distance": transformer.RELPOS_MAX_DISTANCE,
    "is_encoder_decoder": False,
  },
  table=Table(
    names={
      "shared": tensors.TOKEN_TABLE,
      "encoder.block.0.layer.0.SelfAttention.relative_attention_bias": (
        "encoder/relpos_bias/rel_embedding"
      ),
      "encoder.final_layer_norm": "encoder/encoder_norm",
    },
    layers="encoder.block",
    layer_names={
      "layer.0.layer_norm": "pre_attention_layer_norm",
      **{f"layer.0.SelfAttention.{x}": f"attention/{name}" for x, name in T5_ATTENTION.items()},
      "layer.1.layer_norm": "pre_mlp_layer_norm",
      **{f"layer.1.DenseReluDense.{x}": f"mlp/{x}" for x in ("wi", "wi_0", "wi_1", "wo")},
    },
  ),
  fixed={
    "max_positions": T5_MAX_POSITIONS,
    "positions": "relative",
    "query_scalar": 1,
    "norm": "rms",
    "norm_place": "before",
    "embedding_norm": False,
    "use_bias": False,
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
  "t5": T5,
  "mt5": T5,
}
"""Supported architectures, by `model_type` in transformers."""

# TransformerConfig attributes that a `config.json` does not determine.
_NUMERICS = ("vocab_size", "initializer_std", "dropout_rate", "dtype", "remat", "scan_layers")


def architecture_of(config: transformer.TransformerConfig) -> tuple[Architecture, dict[str, Any]]:
  """Returns the architecture of a network, and the content of its `config.json`.

  An architecture fits if its `config.json` converts back to the same TransformerConfig.

  Raises:
    InputError: If no architecture in transformers computes the same function as the network.
  """
  numerics = {name: getattr(config, name) for name in _NUMERICS}
  for architecture in (BERT, _MPNET, _MODERNBERT, _QWEN3, _GEMMA3, T5):
    record = architecture.describe(config)
    try:
      sizes = architecture.sizes(pathlib.Path(CONFIG_FILE), record)
      read = transformer.TransformerConfig(**{**sizes, **numerics})
    except errors.InputError:
      continue
    # `num_kv_heads` and `head_dim` may be set or derived, so compare the resolved values.
    resolved = dataclasses.replace(config, num_kv_heads=read.num_kv_heads, head_dim=read.head_dim)
    same_heads = (read.kv_heads, read.head_width) == (config.kv_heads, config.head_width)
    if same_heads and read == resolved:
      return architecture, record
  raise errors.InputError("transformers has no model that matches this TransformerConfig")


def exported_config(config: Any) -> transformer.TransformerConfig:
  """Returns the config of an equivalent network that transformers supports.

  A T5Config is converted to a TransformerConfig. XLM-R and EMS are converted to BERT.
  """
  if isinstance(config, t5.T5Config):
    return transformer.TransformerConfig(
      **{x: getattr(config, x) for x in ("vocab_size", "emb_dim", "num_heads", "head_dim",
                                         "mlp_dim", "relpos_buckets", "dropout_rate")},
      num_layers=config.num_encoder_layers,
      layer_norm_eps=1e-6,
      gated=True,
      activation="gelu_tanh",
      **T5.fixed,
    )  # fmt: skip
  if not isinstance(config, transformer.TransformerConfig):
    raise errors.InputError(
      f"transformers has no encoder for a {type(config).__name__}; use `vmsst export safetensors`"
    )
  if config.positions != "learned" or config.relpos_buckets:
    return config
  return dataclasses.replace(
    config,
    max_positions=config.max_tokens,
    position_offset=0,
    num_token_types=max(config.num_token_types, 1),
  )


def describe(config: Any, padding_id: int) -> dict[str, Any]:
  """Returns the content of `config.json` for a network.

  Args:
    config: A T5Config or a TransformerConfig.
    padding_id: The tokenizer's padding id.

  Raises:
    InputError: If transformers has no such encoder.
  """
  architecture, record = architecture_of(exported_config(config))
  if isinstance(config, t5.T5Config):
    record["relative_attention_max_distance"] = config.relpos_max_distance
  return {
    "architectures": [architecture.name],
    **record,
    "pad_token_id": padding_id,
    "torch_dtype": "float32",
    "transformers_version": "4.40.0",
  }


# --------------------------------------------------------------------------------------------
# Weights of exports


def to_tensors(
  config: Any, params: Mapping[str, np.ndarray], padding_id: int
) -> dict[str, np.ndarray]:
  """Converts parameters to the tensors of a transformer, without the layers after the pooling.

  Args:
    config: A T5Config or a TransformerConfig.
    params: Parameters of the encoder by name. Layers may be scanned.
    padding_id: The tokenizer's padding id. The row with this id is swapped with row 0 of the token
      table.
  """
  exported = exported_config(config)
  architecture, _ = architecture_of(exported)
  arrays = tensors.separate(params)
  arrays[tensors.TOKEN_TABLE] = swap_padding(arrays[tensors.TOKEN_TABLE], padding_id)
  if _POSITION_TABLE in arrays:
    arrays[_POSITION_TABLE] = arrays[_POSITION_TABLE][-exported.max_positions :]
  width, unused = config.emb_dim, {}
  if exported.num_token_types:
    arrays.setdefault(_TYPE_TABLE, np.zeros((1, width), np.float32))
  if architecture in (BERT, _MPNET):
    # Write unused weights too. Otherwise, transformers would initialize them at random and warn.
    shapes = {"weight": (width, width), "bias": (width,)}
    unused = {f"pooler.dense.{name}": np.zeros(x, np.float32) for name, x in shapes.items()}
  return {**tensors.to_tensors(architecture.table.rows(exported), arrays), **unused}


def read_params(folder: pathlib.Path, config: Any) -> dict[str, np.ndarray]:
  """Reads the parameters of an export, exactly as before the export. Inverse of `to_tensors`.

  Args:
    folder: The export's folder.
    config: The network config in the export's `encoder.json`.

  Raises:
    InputError: If a file is missing or damaged.
  """
  exported = exported_config(config)
  weights = open_tensors(folder)
  padding_id = read_object(folder / CONFIG_FILE)["pad_token_id"]
  params = tensors.to_parameters(architecture_of(exported)[0].table.rows(exported), weights)
  params[tensors.TOKEN_TABLE] = swap_padding(params[tensors.TOKEN_TABLE], padding_id)
  if _POSITION_TABLE in params:
    # The export dropped the rows before the first position. No token reads them, so use zeros.
    missing = config.max_positions - exported.max_positions
    params[_POSITION_TABLE] = np.pad(params[_POSITION_TABLE], ((missing, 0), (0, 0)))
  return params


def layer_rows(network: sentence_encoder.SentenceEncoder) -> list[list[Row]]:
  """Returns one table for each layer after the pooling, empty if the layer has no weights."""
  rows = []
  for (name, layer), width in zip(network.layers.items(), network.widths, strict=False):
    if isinstance(layer, sentence_encoder.Dense):
      rows.append(tensors.dense("linear", (layer.features, width), name, bias=layer.bias))
    else:
      has_norm = isinstance(layer, sentence_encoder.LayerNorm)
      rows.append(tensors.norm("norm", width, name) if has_norm else [])
  return rows


def swap_padding(table_VD: np.ndarray, padding_id: int) -> np.ndarray:
  """Returns a copy of a token table with row 0 and the row of `padding_id` swapped."""
  table_VD = table_VD.copy()
  table_VD[[arrays.PAD_ID, padding_id]] = table_VD[[padding_id, arrays.PAD_ID]]
  return table_VD
