"""Sentence encoders as ONNX graphs: the networks of `vmsst.networks` in operators of ONNX.

`Graph` is built node by node, and writes the files that hold it. Values are float32, also those of
encoders that were trained in bfloat16. Functions that add layers take the names of values and
return the name of the new one.
"""

import math
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from vmsst import errors
from vmsst.formats import architectures, hugging_face, weight_tables
from vmsst.networks import sentence_encoder, t5, transformer

MODEL_FILE = "model.onnx"
"""The graph whose output is OUTPUT."""
STATES_FILE = "last_hidden_state.onnx"
"""The graph whose output is STATES, as sentence-transformers requires."""
WEIGHTS_FILE = "model.onnx_data"
"""The weights of both."""
# LayerNormalization came with 17.
_OPERATOR_SET = 17
# Runtimes map arrays into memory that start at a multiple.
_PAGE = 4096

Operand = str | np.ndarray | np.generic


def library() -> Any:
  """Returns the module onnx; raises InputError if it is not installed."""
  with errors.requires("onnx", "an ONNX export"):
    import onnx
  return onnx


class Graph:
  """An ONNX graph. Values are known by name; arrays among the operands become constants.

  Args:
    parameters: Arrays by name; those that `parameter` returns become part of the graph.
    inputs: Names of the axes of each int64 input.
  """

  def __init__(self, parameters: Mapping[str, np.ndarray], inputs: Mapping[str, tuple[str, ...]]):
    self._parameters, self._inputs = parameters, inputs
    self._constants: dict[str, np.ndarray] = {}
    self._nodes: list[tuple[str, list[str], str, dict[str, Any]]] = []
    self._outputs: dict[str, tuple[str | int, ...]] = {}

  def __contains__(self, name: str) -> bool:
    """Returns whether there is a parameter."""
    return name in self._parameters

  def parameter(self, name: str) -> str:
    """Returns the value of a parameter."""
    self._constants[name] = self._parameters[name]
    return name

  def array(self, name: str) -> np.ndarray:
    """Returns the array of a parameter, to make a constant of it."""
    return self._parameters[name]

  def node(self, operator: str, *operands: Operand, **attributes: Any) -> str:
    """Adds an operator of ONNX and returns its first output."""
    inputs = [self._value(operand) for operand in operands]
    output = f"{operator}_{len(self._nodes)}"
    self._nodes.append((operator, inputs, output, attributes))
    return output

  def output(self, name: str, value: str, shape: tuple[str | int, ...]) -> None:
    """Names an output of float32 values, with sizes or names of axes; the first is the model's."""
    self._nodes.append(("Identity", [value], name, {}))
    self._outputs[name] = shape

  def write(self, folder: pathlib.Path) -> None:
    """Writes a model for each output, MODEL_FILE and STATES_FILE, and WEIGHTS_FILE.

    Raises:
      OSError: a file cannot be written.
    """
    offsets: dict[str, int] = {}
    for path, output in zip((MODEL_FILE, STATES_FILE), self._outputs, strict=True):
      model, large = self.without_weights(output)
      if not offsets:
        with open(folder / WEIGHTS_FILE, "wb") as stream:
          for name, array in large.items():
            stream.write(bytes(-stream.tell() % _PAGE))
            offsets[name] = stream.tell()
            stream.write(array.data)
      for name, array in large.items():
        place, size = offsets[name], array.nbytes
        add_weights(model, name, array, location=WEIGHTS_FILE, offset=place, length=size)
      (folder / path).write_bytes(model.SerializeToString())

  def without_weights(self, output: str) -> tuple[Any, dict[str, np.ndarray]]:
    """Returns the model of an output without arrays of a page or more, and these, contiguous.

    The caller adds them by `add_weights`.
    """
    large = {
      name: np.ascontiguousarray(array)
      for name, array in self._constants.items()
      if array.nbytes >= _PAGE
    }
    onnx = library()
    helper, kinds, from_array = onnx.helper, onnx.TensorProto, onnx.numpy_helper.from_array
    graph = helper.make_graph(
      [
        helper.make_node(operator, operands, [made], name=made, **attributes)
        for operator, operands, made, attributes in self._nodes
      ],
      "sentence_encoder",
      [helper.make_tensor_value_info(x, kinds.INT64, axes) for x, axes in self._inputs.items()],
      [helper.make_tensor_value_info(output, kinds.FLOAT, self._outputs[output])],
      # Runtimes read shapes and the like in the model.
      [from_array(x, name) for name, x in self._constants.items() if name not in large],
    )
    operators = [helper.make_opsetid("", _OPERATOR_SET)]
    model = helper.make_model(
      graph,
      producer_name="vmsst",
      opset_imports=operators,
      # The oldest format, which the most runtimes read.
      ir_version=helper.find_min_ir_version_for(operators),
    )
    return model, large

  def _value(self, operand: Operand) -> str:
    if isinstance(operand, str):
      return operand
    name = f"constant_{len(self._constants)}"
    self._constants[name] = np.asarray(operand)
    return name


def add_weights(model: Any, name: str, array: np.ndarray, **where: Any) -> None:
  """Adds an array to a model as data outside of it: in a file, or given to a runtime by name."""
  onnx = library()
  kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
  tensor = model.graph.initializer.add(name=name, data_type=kind, dims=array.shape)
  tensor.data_location = onnx.TensorProto.EXTERNAL
  for key, value in where.items():
    tensor.external_data.add(key=key, value=str(value))


TOKENS, MASK = "input_ids", "attention_mask"
"""Inputs of the graph, int64 [B, T]. The mask is 1 at tokens and 0 at padding after them."""
OUTPUT, STATES = "sentence_embedding", "last_hidden_state"
"""Outputs of the graph, float32 [B, S] and [B, T, D]."""
_AXES = ("batch_size", "sequence_length")


def has_graph(network: sentence_encoder.SentenceEncoder) -> bool:
  """Returns whether `build` draws a network."""
  return type(network.config) in _ENCODERS


def build(params: Mapping[str, np.ndarray], network: sentence_encoder.SentenceEncoder) -> Graph:
  """Returns the graph from token ids to sentence vectors and to hidden states.

  Args:
    params: Parameters of the network by name, with separate layers.
    network: The network.

  Raises:
    InputError: there is no graph of the encoder, or the package onnx is not installed.
  """
  config: Any = network.config
  if not has_graph(network):
    raise errors.InputError(
      f"there is no ONNX graph of a {type(config).__name__} encoder; use the backend 'jax'"
    )
  graph = Graph(params, {TOKENS: _AXES, MASK: _AXES})
  x_BTD = graph.node("Gather", graph.parameter(weight_tables.TOKEN_TABLE), TOKENS)
  mask_BT = graph.node("Greater", MASK, np.int64(0))
  hidden_BTD = _ENCODERS[type(config)](graph, config, x_BTD, mask_BT)
  pooled = [_pooled(graph, x, hidden_BTD, mask_BT) for x in network.pooling.split("+")]
  vector_BS = graph.node("Concat", *pooled, axis=-1)
  for name, layer in network.layers.items():
    if isinstance(layer, sentence_encoder.Dense):
      vector_BS = _activation(graph, layer.activation, _dense(graph, vector_BS, name))
    elif isinstance(layer, sentence_encoder.LayerNorm):
      scale, bias = graph.parameter(f"{name}/scale"), graph.parameter(f"{name}/bias")
      epsilon = sentence_encoder.LAYER_NORM_EPSILON
      vector_BS = graph.node("LayerNormalization", vector_BS, scale, bias, epsilon=epsilon)
    elif isinstance(layer, sentence_encoder.Normalize):
      square_BS = graph.node("Mul", vector_BS, vector_BS)
      square_B1 = graph.node("ReduceSum", square_BS, np.array([-1]), keepdims=1)
      length_B1 = graph.node("Sqrt", graph.node("Max", square_B1, np.float32(1e-24)))
      vector_BS = graph.node("Div", vector_BS, length_B1)
  graph.output(OUTPUT, vector_BS, (_AXES[0], network.latent_dim))
  graph.output(STATES, hidden_BTD, (*_AXES, config.width))
  return graph


# --------------------------------------------------------------------------------------------
# Encoders


def _t5(graph: Graph, config: t5.T5Config, x_BTD: str, mask_BT: str) -> str:
  """Draws a T5: a stack with some of the options of a TransformerConfig."""
  record = architectures.describe_t5(
    config, config.num_encoder_layers, transformer.RELPOS_MAX_DISTANCE
  )
  file = architectures.ConfigFile(pathlib.Path(hugging_face.CONFIG_FILE), record)
  stack = transformer.TransformerConfig(**architectures.ARCHITECTURES["t5"].sizes(file))
  return _stack(graph, stack, x_BTD, mask_BT, _positions(graph), config.relpos_max_distance)


def _transformer(
  graph: Graph, config: transformer.TransformerConfig, x_BTD: str, mask_BT: str
) -> str:
  position_T = _positions(graph)
  if config.scale_embeddings:
    x_BTD = graph.node("Mul", x_BTD, np.float32(math.sqrt(config.emb_dim)))
  if config.positions == "learned":
    table_RD = graph.array("encoder/position_embedding")[config.position_offset :]
    if config.num_token_types:
      table_RD = table_RD + graph.array("encoder/token_type_embedding")[0]
    x_BTD = graph.node("Add", x_BTD, graph.node("Gather", table_RD, position_T))
  if config.embedding_norm:
    x_BTD = _norm(graph, config, x_BTD, "encoder/embedding_layer_norm")
  return _stack(graph, config, x_BTD, mask_BT, position_T, transformer.RELPOS_MAX_DISTANCE)


_ENCODERS: dict[type, Callable[..., str]] = {
  transformer.TransformerConfig: _transformer,
  t5.T5Config: _t5,
}


def _positions(graph: Graph) -> str:
  """Returns the positions of tokens, int64 [T]."""
  length = graph.node("Gather", graph.node("Shape", TOKENS), np.int64(1))
  return graph.node("Range", np.int64(0), length, np.int64(1))


def _stack(
  graph: Graph,
  config: transformer.TransformerConfig,
  x_BTD: str,
  mask_BT: str,
  position_T: str,
  max_distance: int,
) -> str:
  """Adds layers.

  Args:
    graph: The graph.
    config: Sizes and numerics. Linear layers and norms have a bias if it is among the parameters.
    x_BTD: Input of the first layer.
    mask_BT: Whether a token is not padding.
    position_T: Positions of tokens.
    max_distance: Distances from here on share a bucket of relative positions.
  """
  # By whether a layer is local.
  biases, rotations = {}, {}
  for is_local in {i in config.local_layers for i in range(config.num_layers)}:
    biases[is_local] = _attention_bias(
      graph, config, mask_BT, position_T, max_distance, is_local=is_local
    )
    if config.positions == "rotary":
      theta = config.local_rope_theta if is_local else config.rope_theta
      rotations[is_local] = _rotation(graph, position_T, config.head_width, theta)
  for i in range(config.num_layers):
    is_local = i in config.local_layers
    for part in ("attention", "mlp"):
      layer, y_BTD = f"encoder/layers_{i}", x_BTD
      has_first_norm = config.first_norm or (i, part) != (0, "attention")
      if config.norm_place != "after" and has_first_norm:
        y_BTD = _norm(graph, config, y_BTD, f"{layer}/pre_{part}_layer_norm")
      if part == "mlp":
        y_BTD = _mlp(graph, config, y_BTD, f"{layer}/mlp")
      else:
        bias_BHTT, rotation = biases[is_local], rotations.get(is_local)
        y_BTD = _attention(graph, config, y_BTD, f"{layer}/attention", bias_BHTT, rotation)
      if config.norm_place == "around":
        y_BTD = _norm(graph, config, y_BTD, f"{layer}/post_{part}_layer_norm")
      x_BTD = graph.node("Add", x_BTD, y_BTD)
      if config.norm_place == "after":
        x_BTD = _norm(graph, config, x_BTD, f"{layer}/post_{part}_layer_norm")
  if config.norm_place == "after":
    return x_BTD
  return _norm(graph, config, x_BTD, "encoder/encoder_norm")


# --------------------------------------------------------------------------------------------
# Attention


def _attention_bias(
  graph: Graph,
  config: transformer.TransformerConfig,
  mask_BT: str,
  position_T: str,
  max_distance: int,
  *,
  is_local: bool,
) -> str:
  """Returns what is added to the logits: positions and masks, [B, 1 or H, 1 or T, T]."""

  def hidden_unless(is_visible: str) -> str:
    return graph.node("Where", is_visible, np.float32(0), np.float32(t5.MASKED))

  bias_BHTT = graph.node("Unsqueeze", hidden_unless(mask_BT), np.array([1, 2]))
  if not (config.relpos_buckets or config.causal or is_local):
    return bias_BHTT
  key_1T = graph.node("Unsqueeze", position_T, np.array([0]))
  query_T1 = graph.node("Unsqueeze", position_T, np.array([1]))
  offset_TT = graph.node("Sub", key_1T, query_T1)
  if config.relpos_buckets:
    bucket_O = t5.buckets_by_offset(buckets=config.relpos_buckets, max_distance=max_distance)
    bias_HO = graph.array("encoder/relpos_bias/rel_embedding")[:, bucket_O]
    near_TT = graph.node("Clip", offset_TT, np.int64(-max_distance), np.int64(max_distance))
    index_TT = graph.node("Add", near_TT, np.int64(max_distance))
    bias_BHTT = graph.node("Add", bias_BHTT, graph.node("Gather", bias_HO, index_TT, axis=1))
  if config.causal:
    is_before_TT = graph.node("LessOrEqual", offset_TT, np.int64(0))
    bias_BHTT = graph.node("Add", bias_BHTT, hidden_unless(is_before_TT))
  if is_local:
    is_near_TT = graph.node("Less", graph.node("Abs", offset_TT), np.int64(config.window))
    bias_BHTT = graph.node("Add", bias_BHTT, hidden_unless(is_near_TT))
  return bias_BHTT


def _rotation(graph: Graph, position_T: str, width: int, theta: float) -> tuple[str, str]:
  """Returns the factors of a vector, and of its swapped halves, that rotate it; each [T, 1, K]."""
  rate_F = theta ** (-np.arange(0, width, 2) / width)
  # The sine is odd: the first half of a rotated vector is `first * cos - second * sin`.
  rate_K = np.float32(np.concatenate([-rate_F, rate_F]))
  position_T11 = graph.node("Unsqueeze", position_T, np.array([1, 2]))
  position_T11 = graph.node("Cast", position_T11, to=library().TensorProto.FLOAT)
  angle_T1K = graph.node("Mul", position_T11, rate_K)
  return graph.node("Cos", angle_T1K), graph.node("Sin", angle_T1K)


def _rotated(graph: Graph, x_BTHK: str, width: int, rotation: tuple[str, str]) -> str:
  first, second = (
    graph.node("Slice", x_BTHK, np.array([start]), np.array([start + width // 2]), np.array([-1]))
    for start in (0, width // 2)
  )
  swapped_BTHK = graph.node("Concat", second, first, axis=-1)
  cos_T1K, sin_T1K = rotation
  return graph.node(
    "Add", graph.node("Mul", x_BTHK, cos_T1K), graph.node("Mul", swapped_BTHK, sin_T1K)
  )


def _attention(
  graph: Graph,
  config: transformer.TransformerConfig,
  x_BTD: str,
  name: str,
  bias_BHTT: str,
  rotation: tuple[str, str] | None,
) -> str:
  """Adds multi-head self-attention.

  Args:
    graph: The graph.
    config: Sizes and numerics.
    x_BTD: Hidden states.
    name: Name of the layer's parameters.
    bias_BHTT: Added to the logits.
    rotation: Factors of rotary positions, or None.
  """
  width = config.head_width
  scalar = width if config.query_scalar is None else config.query_scalar

  def heads(part: str, count: int, order: list[int]) -> str:
    x_BTM = _dense(graph, x_BTD, f"{name}/{part}")
    x_BTHK = graph.node("Reshape", x_BTM, np.array([0, 0, count, width]))
    if config.qk_norm and part != "value":
      x_BTHK = _norm(graph, config, x_BTHK, f"{name}/{part}_norm")
    if rotation is not None and part != "value":
      x_BTHK = _rotated(graph, x_BTHK, width, rotation)
    if count < config.num_heads:
      shared_H = np.arange(config.num_heads) // (config.num_heads // count)
      x_BTHK = graph.node("Gather", x_BTHK, shared_H, axis=2)
    if part == "query" and scalar != 1:
      x_BTHK = graph.node("Mul", x_BTHK, np.float32(scalar**-0.5))
    return graph.node("Transpose", x_BTHK, perm=order)

  query_BHTK = heads("query", config.num_heads, [0, 2, 1, 3])
  logits_BHTT = graph.node("MatMul", query_BHTK, heads("key", config.kv_heads, [0, 2, 3, 1]))
  weights_BHTT = graph.node("Softmax", graph.node("Add", logits_BHTT, bias_BHTT), axis=-1)
  value_BHTK = heads("value", config.kv_heads, [0, 2, 1, 3])
  out_BHTK = graph.node("MatMul", weights_BHTT, value_BHTK)
  out_BTHK = graph.node("Transpose", out_BHTK, perm=[0, 2, 1, 3])
  out_BTM = graph.node("Reshape", out_BTHK, np.array([0, 0, config.num_heads * width]))
  return _dense(graph, out_BTM, f"{name}/out")


# --------------------------------------------------------------------------------------------
# Other layers


def _dense(graph: Graph, x: str, name: str) -> str:
  y = graph.node("MatMul", x, graph.parameter(f"{name}/kernel"))
  bias = f"{name}/bias"
  return graph.node("Add", y, graph.parameter(bias)) if bias in graph else y


def _norm(graph: Graph, config: transformer.TransformerConfig, x: str, name: str) -> str:
  scale, bias = graph.parameter(f"{name}/scale"), f"{name}/bias"
  if config.norm == "layer":
    biases = [graph.parameter(bias)] if bias in graph else []
    return graph.node("LayerNormalization", x, scale, *biases, epsilon=config.layer_norm_eps)
  square = graph.node("Pow", x, np.float32(2))
  mean = graph.node("ReduceMean", square, axes=[-1], keepdims=1)
  root = graph.node("Sqrt", graph.node("Add", mean, np.float32(config.layer_norm_eps)))
  return graph.node("Mul", graph.node("Div", x, root), scale)


def _mlp(graph: Graph, config: transformer.TransformerConfig, x_BTD: str, name: str) -> str:
  wide_BTM = _dense(graph, x_BTD, f"{name}/wi_0" if config.gated else f"{name}/wi")
  hidden_BTM = _activation(graph, config.activation, wide_BTM)
  if config.gated:
    hidden_BTM = graph.node("Mul", hidden_BTM, _dense(graph, x_BTD, f"{name}/wi_1"))
  return _dense(graph, hidden_BTM, f"{name}/wo")


# Activations that are operators, and their attributes.
_OPERATORS: dict[str, tuple[str, dict[str, Any]]] = {
  **{name: (name, {}) for name in ("Identity", "Sigmoid", "Softplus", "Softsign", "Tanh")},
  "relu": ("Relu", {}), "ReLU": ("Relu", {}), "LeakyReLU": ("LeakyRelu", {}), "ELU": ("Elu", {}),
  "SELU": ("Selu", {}), "CELU": ("Celu", {}), "Hardsigmoid": ("HardSigmoid", {"alpha": 1 / 6}),
  "Hardswish": ("HardSwish", {}), "Hardshrink": ("Shrink", {}),
  "Softshrink": ("Shrink", {"bias": 0.5}), "Softmax": ("Softmax", {"axis": -1}),
  "LogSoftmax": ("LogSoftmax", {"axis": -1}),
}  # fmt: skip
_BOUNDS = {"ReLU6": (0, 6), "Hardtanh": (-1, 1)}


def _activation(graph: Graph, name: str, x: str) -> str:
  if name in _OPERATORS:
    operator, attributes = _OPERATORS[name]
    return graph.node(operator, x, **attributes)
  if name in _BOUNDS:
    return graph.node("Clip", x, *map(np.float32, _BOUNDS[name]))
  if name in ("swish", "SiLU"):
    return graph.node("Mul", x, graph.node("Sigmoid", x))
  if name == "Mish":
    return graph.node("Mul", x, graph.node("Tanh", graph.node("Softplus", x)))
  if name == "Tanhshrink":
    return graph.node("Sub", x, graph.node("Tanh", x))
  if name == "Softmin":
    return graph.node("Softmax", graph.node("Neg", x), axis=-1)
  if name == "LogSigmoid":
    return graph.node("Neg", graph.node("Softplus", graph.node("Neg", x)))
  if name == "gelu_tanh":
    cube = graph.node("Mul", graph.node("Pow", x, np.float32(3)), np.float32(0.044715))
    inner = graph.node("Mul", graph.node("Add", x, cube), np.float32(math.sqrt(2 / math.pi)))
    error = graph.node("Tanh", inner)
  else:
    error = graph.node("Erf", graph.node("Div", x, np.float32(math.sqrt(2))))
  gate = graph.node("Add", error, np.float32(1))
  return graph.node("Mul", graph.node("Mul", x, gate), np.float32(0.5))


def _pooled(graph: Graph, pooling: str, hidden_BTD: str, mask_BT: str) -> str:
  if pooling == "cls":
    return graph.node("Gather", hidden_BTD, np.int64(0), axis=1)
  if pooling == "last":
    last_B = graph.node("ReduceSum", MASK, np.array([1]), keepdims=0)
    last_B = graph.node("Max", graph.node("Sub", last_B, np.int64(1)), np.int64(0))
    index_B1 = graph.node("Unsqueeze", last_B, np.array([1]))
    return graph.node("GatherND", hidden_BTD, index_B1, batch_dims=1)
  mask_BT1 = graph.node("Unsqueeze", mask_BT, np.array([2]))
  count_BT1 = graph.node("Where", mask_BT1, np.float32(1), np.float32(0))
  count_B1 = graph.node("ReduceSum", count_BT1, np.array([1]), keepdims=0)
  if pooling != "max":
    if pooling == "weightedmean":
      to_float = {"to": library().TensorProto.FLOAT}
      place_T1 = graph.node("Unsqueeze", _positions(graph), np.array([1]))
      weight_T1 = graph.node("Cast", graph.node("Add", place_T1, np.int64(1)), **to_float)
      weight_BT1 = graph.node("Mul", count_BT1, weight_T1)
      hidden_BTD = graph.node("Mul", hidden_BTD, weight_BT1)
      count_B1 = graph.node("ReduceSum", weight_BT1, np.array([1]), keepdims=0)
    real_BTD = graph.node("Where", mask_BT1, hidden_BTD, np.float32(0))
    sum_BD = graph.node("ReduceSum", real_BTD, np.array([1]), keepdims=0)
    count_B1 = graph.node("Max", count_B1, np.float32(1))
    is_sqrt = pooling == "mean_sqrt_len_tokens"
    return graph.node("Div", sum_BD, graph.node("Sqrt", count_B1) if is_sqrt else count_B1)
  lowest = np.finfo(np.float32).min
  real_BTD = graph.node("Where", mask_BT1, hidden_BTD, lowest)
  largest_BD = graph.node("ReduceMax", real_BTD, axes=[1], keepdims=0)
  # A sentence without tokens has zeros.
  return graph.node(
    "Where", graph.node("Greater", count_B1, np.float32(0)), largest_BD, np.float32(0)
  )
