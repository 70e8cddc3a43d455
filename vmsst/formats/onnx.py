"""Writes sentence encoders as ONNX models. ONNX Runtime and OpenVINO run them without this library.

This module builds the graphs itself, because jax2onnx, a converter for JAX functions, requires an
older Orbax than this library and cannot convert these networks for variable sequence lengths. All
values are float32, even if the encoder was trained in bfloat16. Functions that add layers take the
names of their inputs in the graph, and return the name of their output.
"""

import contextlib
import json
import math
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from vmsst import errors
from vmsst.formats import sentence_transformers, tensors, tokenizers, transformers
from vmsst.formats.encoder_json import SavedEncoder
from vmsst.networks import sentence_encoder, t5, transformer

MODEL_FILE = "model.onnx"  # the model that computes sentence vectors (`OUTPUT`)
STATES_FILE = "last_hidden_state.onnx"
"""The model that computes hidden states (`STATES`), for sentence-transformers."""
WEIGHTS_FILE = "model.onnx_data"  # the weights of both models
TOKENS, MASK = "input_ids", "attention_mask"
"""Inputs, int64 [B, T]. The mask is 1 at tokens and 0 at padding. Padding follows the tokens."""
OUTPUT, STATES = "sentence_embedding", "last_hidden_state"
"""Outputs: the sentence vectors, float32 [B, S], and the hidden states, float32 [B, T, D]."""
_AXES = ("batch_size", "sequence_length")
# First ONNX operator set with LayerNormalization.
_OPERATOR_SET = 17
# Runtimes map an array into memory only if the array is aligned to pages.
_PAGE = 4096


def write(
  saved: SavedEncoder, folder: pathlib.Path, *, pretokenized: bool = False
) -> tokenizers.ExportedTokenizer:
  """Writes an ONNX model and its tokenizer into a folder.

  `model.onnx` has the inputs `input_ids` and `attention_mask`, int64 [B, T] for any B and T. If the
  encoder has a position table, as in BERT, the size of this table limits T. The output
  `sentence_embedding`, float32 [B, S], equals the vectors of `vmsst.load(path).encode` in float32,
  up to rounding error. The weights are in `model.onnx_data`.

  `SentenceTransformer(folder, backend="onnx")` reads `last_hidden_state.onnx` instead. This second
  model returns the hidden states of the encoder, [B, T, D]. `backend="onnx"` works only if
  transformers supports the encoder's architecture.

  The tokenizer in `tokenizer.json` produces `input_ids` and `attention_mask`. It truncates texts to
  the maximum length and pads them. If a text contains the padding token of an imported tokenizer,
  such as "<pad>", this string is treated as padding. For other differences between the exported
  tokenizer and the vocabulary, see `tokenizers.export`.

  Args:
    saved: The encoder.
    folder: Folder to write to.
    pretokenized: Whether callers will split texts with `vmsst.data.word_splitting.split_words`
      before tokenizing them. Some vocabularies, such as EMS's, require this split.

  Raises:
    InputError: If the encoder or its vocabulary is not supported, or the package onnx is not
      installed.
  """
  tokenizer = tokenizers.export(saved.assets.vocabulary, pretokenized=pretokenized)
  params = tensors.separate(saved.arrays)
  # Reorder the token table, because the ONNX model receives the tokenizer's ids.
  table_VD = params[tensors.TOKEN_TABLE]
  params[tensors.TOKEN_TABLE] = transformers.swap_padding(table_VD, tokenizer.padding_id)
  build(params, saved.network).write(folder)
  with contextlib.suppress(errors.InputError):  # if transformers lacks the encoder
    states = {"file_name": STATES_FILE}
    sentence_transformers.write_modules(saved, tokenizer, folder, model_args=states)
  # The tokenizer option `encode_special_tokens` changes how special tokens in a text are tokenized.
  # To make ids independent of this option, special tokens that can occur in a text become ordinary
  # added tokens, and all other special tokens are removed.
  record = json.loads(tokenizer.content)
  added = [] if tokenizer.splits_special_tokens else record["added_tokens"]
  record["added_tokens"] = [{**token, "special": False} for token in added]
  runtime = Tokenizer.from_str(json.dumps(record))
  runtime.enable_truncation(saved.assets.max_length)
  runtime.enable_padding(pad_id=tokenizer.padding_id, pad_token=tokenizer.padding)
  path = folder / tokenizers.TOKENIZER_FILE
  path.write_text(runtime.to_str(pretty=False), encoding="utf-8")
  return tokenizer


def usage(saved: SavedEncoder) -> list[str]:
  """Returns instructions for using an exported model, one per line."""
  vocabulary = saved.assets.vocabulary
  prefix = getattr(vocabulary, "prefix", "")
  prompts = tokenizers.method_prompts(prefix, getattr(vocabulary, "prompts", {}))
  methods = {"encode": prefix, **{f"encode_{role}": prompt for role, prompt in prompts.items()}}
  return [
    *(f"Put {x!r} before each text, as {name} does" for name, x in methods.items() if x),
    *tokenizers.limits(saved.assets),
  ]


# --------------------------------------------------------------------------------------------
# Graphs


class Graph:
  """Builds an ONNX graph node by node.

  Each ONNX operator is a method: `graph.MatMul(x, y)` adds a node and returns the name of the
  output. An operand is either the name of a value or an array. Arrays become constants.

  Attributes:
    parameters: Arrays by name. `parameter` adds an array to the graph.
    outputs: The value name and the axes (sizes or names) of each output, by output name.
    library: The package onnx.
  """

  def __init__(self, parameters: Mapping[str, np.ndarray]):
    with errors.requires("onnx", "an ONNX export"):
      import onnx
    self.library = onnx
    self.parameters = parameters
    self.outputs: dict[str, tuple[str, tuple[str | int, ...]]] = {}
    self._constants: dict[str, np.ndarray] = {}
    self._nodes: list[tuple[str, list[str], str, dict[str, Any]]] = []

  def __getattr__(self, operator: str) -> Callable[..., str]:
    def add(*operands: str | np.ndarray | np.generic, **attributes: Any) -> str:
      inputs = []
      for operand in operands:
        if not isinstance(operand, str):
          name = f"constant_{len(self._constants)}"
          self._constants[name], operand = np.asarray(operand), name
        inputs.append(operand)
      output = f"{operator}_{len(self._nodes)}"
      self._nodes.append((operator, inputs, output, attributes))
      return output

    return add

  def parameter(self, name: str) -> str:
    """Adds a parameter to the graph and returns the name of its value."""
    self._constants[name] = self.parameters[name]
    return name

  def write(self, folder: pathlib.Path) -> None:
    """Writes MODEL_FILE, STATES_FILE and WEIGHTS_FILE."""
    offsets: dict[str, int] = {}
    for path, output in zip((MODEL_FILE, STATES_FILE), self.outputs, strict=True):
      model, large = self.without_weights(output)
      if not offsets:
        with open(folder / WEIGHTS_FILE, "wb") as stream:
          for name, array in large.items():
            stream.write(bytes(-stream.tell() % _PAGE))
            offsets[name] = stream.tell()
            stream.write(array.data)
      for name, array in large.items():
        position = {"offset": offsets[name], "length": array.nbytes}
        self.add_weights(model, name, array, location=WEIGHTS_FILE, **position)
      (folder / path).write_bytes(model.SerializeToString())

  def without_weights(self, output: str) -> tuple[Any, dict[str, np.ndarray]]:
    """Returns the model for one output without its large arrays, and the large arrays by name.

    The large arrays are contiguous. The caller adds these arrays with `add_weights`.
    """
    large = {
      name: np.ascontiguousarray(array)
      for name, array in self._constants.items()
      if array.nbytes >= _PAGE
    }
    helper, kinds = self.library.helper, self.library.TensorProto
    value, axes = self.outputs[output]
    nodes = [*self._nodes, ("Identity", [value], output, {})]
    graph = helper.make_graph(
      [
        helper.make_node(operator, operands, [value], name=value, **attributes)
        for operator, operands, value, attributes in nodes
      ],
      "sentence_encoder",
      [helper.make_tensor_value_info(name, kinds.INT64, _AXES) for name in (TOKENS, MASK)],
      [helper.make_tensor_value_info(output, kinds.FLOAT, axes)],
      # Small arrays, such as shapes, must be in the model itself.
      [
        self.library.numpy_helper.from_array(array, name)
        for name, array in self._constants.items()
        if name not in large
      ],
    )
    operators = [helper.make_opsetid("", _OPERATOR_SET)]
    model = helper.make_model(
      graph,
      producer_name="vmsst",
      opset_imports=operators,
      # Use the oldest IR version that works, because more runtimes support older versions.
      ir_version=helper.find_min_ir_version_for(operators),
    )
    return model, large

  def add_weights(self, model: Any, name: str, array: np.ndarray, **external_data: Any) -> None:
    """Adds an array as external data, either stored in a file or passed to the runtime by name."""
    kind = self.library.helper.np_dtype_to_tensor_dtype(array.dtype)
    tensor = model.graph.initializer.add(name=name, data_type=kind, dims=array.shape)
    tensor.data_location = self.library.TensorProto.EXTERNAL
    for key, value in external_data.items():
      tensor.external_data.add(key=key, value=str(value))


CONFIGS = transformer.TransformerConfig | t5.T5Config
"""Configurations of the networks that `build` supports."""


def build(params: Mapping[str, np.ndarray], network: sentence_encoder.SentenceEncoder) -> Graph:
  """Builds the graph that maps token ids to sentence vectors and hidden states.

  Args:
    params: Network parameters by name, with separate arrays for each layer.
    network: The network.

  Raises:
    InputError: If the network is not supported, or the package onnx is not installed.
  """
  config: Any = network.config
  if not isinstance(network.config, CONFIGS):
    raise errors.InputError(
      f"ONNX does not support a {type(config).__name__} encoder; use the backend 'jax'"
    )
  graph = Graph(params)
  x_BTD = graph.Gather(graph.parameter(tensors.TOKEN_TABLE), TOKENS)
  mask_BT = graph.Greater(MASK, np.int64(0))
  length = graph.Gather(graph.Shape(TOKENS), np.int64(1))
  position_T = graph.Range(np.int64(0), length, np.int64(1))
  max_distance = transformer.RELPOS_MAX_DISTANCE
  if isinstance(config, t5.T5Config):  # Use an equivalent TransformerConfig.
    max_distance = config.relpos_max_distance
    config = transformers.exported_config(config)
  hidden_BTD = _Stack(graph, config, mask_BT, position_T, max_distance).hidden_states(x_BTD)
  pooled = [
    _add_pooling(graph, x, hidden_BTD, mask_BT, position_T) for x in network.pooling.split("+")
  ]
  vector_BS = graph.Concat(*pooled, axis=-1)
  for name, layer in network.layers.items():
    if isinstance(layer, sentence_encoder.Dense):
      vector_BS = _activation(graph, layer.activation, _dense(graph, vector_BS, name))
    elif isinstance(layer, sentence_encoder.LayerNorm):
      scale, bias = graph.parameter(f"{name}/scale"), graph.parameter(f"{name}/bias")
      epsilon = sentence_encoder.LAYER_NORM_EPSILON
      vector_BS = graph.LayerNormalization(vector_BS, scale, bias, epsilon=epsilon)
    elif isinstance(layer, sentence_encoder.Normalize):
      square_BS = graph.Mul(vector_BS, vector_BS)
      square_B1 = graph.ReduceSum(square_BS, np.array([-1]), keepdims=1)
      length_B1 = graph.Sqrt(graph.Max(square_B1, np.float32(1e-24)))
      vector_BS = graph.Div(vector_BS, length_B1)
  graph.outputs[OUTPUT] = vector_BS, (_AXES[0], network.latent_dim)
  graph.outputs[STATES] = hidden_BTD, (*_AXES, config.width)
  return graph


class _Stack(NamedTuple):
  """Adds the layers of a transformer to a graph.

  Attributes:
    graph: The graph.
    config: Sizes and options. Linear layers and norms use a bias if the parameters contain a bias.
    mask_BT: False at padding.
    position_T: Positions of tokens, int64.
    max_distance: All distances from this value on share one relative position bucket.
  """

  graph: Graph
  config: transformer.TransformerConfig
  mask_BT: str
  position_T: str
  max_distance: int

  def hidden_states(self, x_BTD: str) -> str:
    """Adds all layers, and returns the hidden states."""
    graph, config = self.graph, self.config
    if config.scale_embeddings:
      x_BTD = graph.Mul(x_BTD, np.float32(math.sqrt(config.emb_dim)))
    if config.positions == "learned":
      table_RD = graph.parameters["encoder/position_embedding"][config.position_offset :]
      if config.num_token_types:
        table_RD = table_RD + graph.parameters["encoder/token_type_embedding"][0]
      x_BTD = graph.Add(x_BTD, graph.Gather(table_RD, self.position_T))
    if config.embedding_norm:
      x_BTD = self.norm(x_BTD, "encoder/embedding_layer_norm")
    # All local layers share one attention bias and rotation. All global layers share another.
    biases, rotations = {}, {}
    for is_local in {i in config.local_layers for i in range(config.num_layers)}:
      biases[is_local] = self.attention_bias(is_local)
      if config.positions == "rotary":
        rotations[is_local] = self.rotation(is_local)
    for i in range(config.num_layers):
      is_local = i in config.local_layers
      for sublayer in ("attention", "mlp"):
        layer, y_BTD = f"encoder/layers_{i}", x_BTD
        has_first_norm = config.first_norm or (i, sublayer) != (0, "attention")
        if config.norm_place != "after" and has_first_norm:
          y_BTD = self.norm(y_BTD, f"{layer}/pre_{sublayer}_layer_norm")
        if sublayer == "mlp":
          y_BTD = self.mlp(y_BTD, f"{layer}/mlp")
        else:
          rotation = rotations.get(is_local)
          y_BTD = self.attention(y_BTD, f"{layer}/attention", biases[is_local], rotation)
        if config.norm_place == "around":
          y_BTD = self.norm(y_BTD, f"{layer}/post_{sublayer}_layer_norm")
        x_BTD = graph.Add(x_BTD, y_BTD)
        if config.norm_place == "after":
          x_BTD = self.norm(x_BTD, f"{layer}/post_{sublayer}_layer_norm")
    return x_BTD if config.norm_place == "after" else self.norm(x_BTD, "encoder/encoder_norm")

  def attention_bias(self, is_local: bool) -> str:
    """Returns the position biases and masks to add to attention logits, [B, 1 or H, 1 or T, T]."""
    graph, config = self.graph, self.config
    # Biases for visible tokens and for masked tokens.
    values = np.float32(0), np.float32(t5.MASKED)
    bias_BHTT = graph.Unsqueeze(graph.Where(self.mask_BT, *values), np.array([1, 2]))
    key_1T = graph.Unsqueeze(self.position_T, np.array([0]))
    query_T1 = graph.Unsqueeze(self.position_T, np.array([1]))
    offset_TT = graph.Sub(key_1T, query_T1)
    if config.relpos_buckets:
      distance = self.max_distance
      bucket_O = t5.buckets_by_offset(buckets=config.relpos_buckets, max_distance=distance)
      bias_HO = graph.parameters["encoder/relpos_bias/rel_embedding"][:, bucket_O]
      near_TT = graph.Clip(offset_TT, np.int64(-distance), np.int64(distance))
      index_TT = graph.Add(near_TT, np.int64(distance))
      bias_BHTT = graph.Add(bias_BHTT, graph.Gather(bias_HO, index_TT, axis=1))
    if config.causal:
      is_before_TT = graph.LessOrEqual(offset_TT, np.int64(0))
      bias_BHTT = graph.Add(bias_BHTT, graph.Where(is_before_TT, *values))
    if is_local:
      is_near_TT = graph.Less(graph.Abs(offset_TT), np.int64(config.window))
      bias_BHTT = graph.Add(bias_BHTT, graph.Where(is_near_TT, *values))
    return bias_BHTT

  def rotation(self, is_local: bool) -> tuple[str, str]:
    """Returns the cosines and sines of rotary positions, each [T, 1, K].

    A rotated vector is `vector * cosines + swapped * sines`. Here, `swapped` is the vector with its
    two halves swapped.
    """
    graph, config = self.graph, self.config
    theta, width = config.local_rope_theta if is_local else config.rope_theta, config.head_width
    rate_F = theta ** (-np.arange(0, width, 2) / width)
    # The first half of a rotated vector is `first * cos - second * sin`. Negative rates in this
    # half produce the minus sign, because sin(-x) is -sin(x) and cos(-x) is cos(x).
    rate_K = np.float32(np.concatenate([-rate_F, rate_F]))
    position_T11 = graph.Unsqueeze(self.position_T, np.array([1, 2]))
    position_T11 = graph.Cast(position_T11, to=graph.library.TensorProto.FLOAT)
    angle_T1K = graph.Mul(position_T11, rate_K)
    return graph.Cos(angle_T1K), graph.Sin(angle_T1K)

  def attention(
    self, x_BTD: str, name: str, bias_BHTT: str, rotation: tuple[str, str] | None
  ) -> str:
    """Adds multi-head self-attention. `name` is the prefix of the parameter names."""
    graph, config = self.graph, self.config
    width = config.head_width
    scalar = width if config.query_scalar is None else config.query_scalar

    def heads(role: str, count: int, order: list[int]) -> str:
      x_BTM = _dense(graph, x_BTD, f"{name}/{role}")
      x_BTHK = graph.Reshape(x_BTM, np.array([0, 0, count, width]))
      if config.qk_norm and role != "value":
        x_BTHK = self.norm(x_BTHK, f"{name}/{role}_norm")
      if rotation is not None and role != "value":
        first, second = (
          graph.Slice(x_BTHK, np.array([start]), np.array([start + width // 2]), np.array([-1]))
          for start in (0, width // 2)
        )
        swapped_BTHK = graph.Concat(second, first, axis=-1)
        cos_T1K, sin_T1K = rotation
        x_BTHK = graph.Add(graph.Mul(x_BTHK, cos_T1K), graph.Mul(swapped_BTHK, sin_T1K))
      if count < config.num_heads:
        shared_H = np.arange(config.num_heads) // (config.num_heads // count)
        x_BTHK = graph.Gather(x_BTHK, shared_H, axis=2)
      if role == "query" and scalar != 1:
        x_BTHK = graph.Mul(x_BTHK, np.float32(scalar**-0.5))
      return graph.Transpose(x_BTHK, perm=order)

    query_BHTK = heads("query", config.num_heads, [0, 2, 1, 3])
    logits_BHTT = graph.MatMul(query_BHTK, heads("key", config.kv_heads, [0, 2, 3, 1]))
    weights_BHTT = graph.Softmax(graph.Add(logits_BHTT, bias_BHTT), axis=-1)
    value_BHTK = heads("value", config.kv_heads, [0, 2, 1, 3])
    out_BTHK = graph.Transpose(graph.MatMul(weights_BHTT, value_BHTK), perm=[0, 2, 1, 3])
    out_BTM = graph.Reshape(out_BTHK, np.array([0, 0, config.num_heads * width]))
    return _dense(graph, out_BTM, f"{name}/out")

  def norm(self, x: str, name: str) -> str:
    graph, config = self.graph, self.config
    scale, bias = graph.parameter(f"{name}/scale"), f"{name}/bias"
    if config.norm == "layer":
      biases = [graph.parameter(bias)] if bias in graph.parameters else []
      return graph.LayerNormalization(x, scale, *biases, epsilon=config.layer_norm_eps)
    mean = graph.ReduceMean(graph.Pow(x, np.float32(2)), axes=[-1], keepdims=1)
    root = graph.Sqrt(graph.Add(mean, np.float32(config.layer_norm_eps)))
    return graph.Mul(graph.Div(x, root), scale)

  def mlp(self, x_BTD: str, name: str) -> str:
    graph, config = self.graph, self.config
    wide_BTM = _dense(graph, x_BTD, f"{name}/wi_0" if config.gated else f"{name}/wi")
    hidden_BTM = _activation(graph, config.activation, wide_BTM)
    if config.gated:
      hidden_BTM = graph.Mul(hidden_BTM, _dense(graph, x_BTD, f"{name}/wi_1"))
    return _dense(graph, hidden_BTM, f"{name}/wo")


def _dense(graph: Graph, x: str, name: str) -> str:
  y = graph.MatMul(x, graph.parameter(f"{name}/kernel"))
  bias = f"{name}/bias"
  return graph.Add(y, graph.parameter(bias)) if bias in graph.parameters else y


# Activations that exist as ONNX operators.
_OPERATORS = {
  **{name: name for name in ("Identity", "Sigmoid", "Softplus", "Tanh")},
  "relu": "Relu", "ReLU": "Relu", "LeakyReLU": "LeakyRelu", "ELU": "Elu", "SELU": "Selu",
}  # fmt: skip


def _activation(graph: Graph, name: str, x: str) -> str:
  if name in _OPERATORS:
    return getattr(graph, _OPERATORS[name])(x)
  if name in ("swish", "SiLU"):
    return graph.Mul(x, graph.Sigmoid(x))
  if name == "Mish":
    return graph.Mul(x, graph.Tanh(graph.Softplus(x)))
  if name == "gelu_tanh":
    cube = graph.Mul(graph.Pow(x, np.float32(3)), np.float32(0.044715))
    error = graph.Tanh(graph.Mul(graph.Add(x, cube), np.float32(math.sqrt(2 / math.pi))))
  else:
    error = graph.Erf(graph.Div(x, np.float32(math.sqrt(2))))
  return graph.Mul(graph.Mul(x, graph.Add(error, np.float32(1))), np.float32(0.5))


def _add_pooling(graph: Graph, pooling: str, hidden_BTD: str, mask_BT: str, position_T: str) -> str:
  zero, one = np.float32(0), np.float32(1)
  if pooling == "cls":
    return graph.Gather(hidden_BTD, np.int64(0), axis=1)
  if pooling == "last":
    count_B = graph.ReduceSum(MASK, np.array([1]), keepdims=0)
    last_B = graph.Max(graph.Sub(count_B, np.int64(1)), np.int64(0))
    return graph.GatherND(hidden_BTD, graph.Unsqueeze(last_B, np.array([1])), batch_dims=1)
  mask_BT1 = graph.Unsqueeze(mask_BT, np.array([2]))
  weight_BT1 = graph.Where(mask_BT1, one, zero)
  if pooling == "max":
    lowest = np.finfo(np.float32).min
    largest_BD = graph.ReduceMax(graph.Where(mask_BT1, hidden_BTD, lowest), axes=[1], keepdims=0)
    # A sentence without tokens has a zero vector.
    count_B1 = graph.ReduceSum(weight_BT1, np.array([1]), keepdims=0)
    return graph.Where(graph.Greater(count_B1, zero), largest_BD, zero)
  if pooling == "weightedmean":
    place_T1 = graph.Unsqueeze(graph.Add(position_T, np.int64(1)), np.array([1]))
    place_T1 = graph.Cast(place_T1, to=graph.library.TensorProto.FLOAT)
    weight_BT1 = graph.Mul(weight_BT1, place_T1)
    hidden_BTD = graph.Mul(hidden_BTD, weight_BT1)
  real_BTD = graph.Where(mask_BT1, hidden_BTD, zero)
  sum_BD = graph.ReduceSum(real_BTD, np.array([1]), keepdims=0)
  count_B1 = graph.Max(graph.ReduceSum(weight_BT1, np.array([1]), keepdims=0), one)
  is_sqrt = pooling == "mean_sqrt_len_tokens"
  return graph.Div(sum_BD, graph.Sqrt(count_B1) if is_sqrt else count_B1)
