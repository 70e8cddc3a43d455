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
from vmsst.checkpoints.importers import weight_tables
from vmsst.networks import sentence_encoder, t5, transformer

MODEL_FILE = "model.onnx"
WEIGHTS_FILE = "model.onnx_data"
"""File of the weights of a model that is too large for one file."""
# LayerNormalization came with 17.
_OPERATOR_SET = 17
_OPTIONS_OF_BERT = (
  "vocab_size", "emb_dim", "num_heads", "mlp_dim", "num_layers", "max_positions",
  "position_offset", "num_token_types", "activation", "layer_norm_eps", "initializer_std",
  "dropout_rate", "dtype", "remat", "scan_layers",
)  # fmt: skip
# A file of protocol buffers ends at 2 GiB; this leaves room for the nodes.
_MOST_BYTES_IN_ONE_FILE = 2_000_000_000
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

  def finish(self, name: str, value: str, shape: tuple[str | int, ...]) -> None:
    """Gives the graph its float32 output, of a name, a value, and sizes or names of axes."""
    self._nodes.append(("Identity", [value], name, {}))
    self._output, self._shape = name, shape

  def write(self, folder: pathlib.Path) -> None:
    """Writes `model.onnx`, and for more than 2 GB of weights `model.onnx_data` next to it.

    Raises:
      OSError: a file cannot be written.
    """
    model, large = self.without_weights()
    onnx, initializers = library(), model.graph.initializer
    if sum(array.nbytes for array in large.values()) <= _MOST_BYTES_IN_ONE_FILE:
      initializers.extend(onnx.numpy_helper.from_array(x, name) for name, x in large.items())
    else:
      with open(folder / WEIGHTS_FILE, "wb") as stream:
        for name, array in large.items():
          # onnx's own writer copies the model as one message, which cannot exceed 2 GiB.
          tensor = initializers.add(
            name=name,
            data_type=onnx.helper.np_dtype_to_tensor_dtype(array.dtype),
            dims=array.shape,
            data_location=onnx.TensorProto.EXTERNAL,
          )
          stream.write(bytes(-stream.tell() % _PAGE))
          location = {"location": WEIGHTS_FILE, "offset": stream.tell(), "length": array.nbytes}
          for key, value in location.items():
            tensor.external_data.add(key=key, value=str(value))
          stream.write(array.data)
    (folder / MODEL_FILE).write_bytes(model.SerializeToString())

  def without_weights(self) -> tuple[Any, dict[str, np.ndarray]]:
    """Returns the model without arrays of a page or more, and these by name, contiguous.

    The caller passes them to a runtime, which need not copy them.
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
      [helper.make_tensor_value_info(self._output, kinds.FLOAT, self._shape)],
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


TOKENS, MASK = "input_ids", "attention_mask"
"""Inputs of the graph, int64 [B, T]. The mask is 1 at tokens and 0 at padding after them."""
OUTPUT = "sentence_embedding"
"""Output of the graph, float32 [B, S]."""
_AXES = ("batch_size", "sequence_length")


def has_graph(network: sentence_encoder.SentenceEncoder) -> bool:
  """Returns whether `build` draws a network."""
  return type(network.config) in _ENCODERS and _is_drawn(network.config)


def build(params: Mapping[str, np.ndarray], network: sentence_encoder.SentenceEncoder) -> Graph:
  """Returns the graph from token ids to sentence vectors.

  Args:
    params: Parameters of the network by name, with separate layers.
    network: The network.

  Raises:
    InputError: there is no graph of the encoder, or the package onnx is not installed.
  """
  config: Any = network.config
  if not has_graph(network):
    raise errors.InputError(
      f"there is no ONNX graph of a {type(config).__name__} encoder with these options; use the "
      "backend 'jax'"
    )
  graph = Graph(params, {TOKENS: _AXES, MASK: _AXES})
  x_BTD = graph.node("Gather", graph.parameter(weight_tables.TOKEN_TABLE), TOKENS)
  mask_BT = graph.node("Greater", MASK, np.int64(0))
  hidden_BTD = _ENCODERS[type(config)](graph, config, x_BTD, mask_BT)
  vector_BS = _pooled(graph, network.pooling, hidden_BTD, mask_BT)
  if network.head:
    vector_BS = _dense(graph, vector_BS, "mean")
  if network.normalize:
    square_BS = graph.node("Mul", vector_BS, vector_BS)
    square_B1 = graph.node("ReduceSum", square_BS, np.array([-1]), keepdims=1)
    length_B1 = graph.node("Sqrt", graph.node("Max", square_B1, np.float32(1e-24)))
    vector_BS = graph.node("Div", vector_BS, length_B1)
  graph.finish(OUTPUT, vector_BS, (_AXES[0], network.latent_dim))
  return graph


# --------------------------------------------------------------------------------------------
# T5


def _t5(graph: Graph, config: t5.T5Config, x_BTD: str, mask_BT: str) -> str:
  bias_BHTT = graph.node("Add", _t5_positions(graph, config), _padding_bias(graph, mask_BT))
  for i in range(config.num_encoder_layers):
    layer = f"encoder/layers_{i}"
    y_BTD = _rms_norm(graph, x_BTD, f"{layer}/pre_attention_layer_norm")
    heads = (config.num_heads, config.head_dim)
    y_BTD = _attention(graph, y_BTD, f"{layer}/attention", bias_BHTT, heads)
    x_BTD = graph.node("Add", x_BTD, y_BTD)
    y_BTD = _rms_norm(graph, x_BTD, f"{layer}/pre_mlp_layer_norm")
    gate_BTM = _gelu_of_tanh(graph, _dense(graph, y_BTD, f"{layer}/mlp/wi_0"))
    y_BTM = graph.node("Mul", gate_BTM, _dense(graph, y_BTD, f"{layer}/mlp/wi_1"))
    x_BTD = graph.node("Add", x_BTD, _dense(graph, y_BTM, f"{layer}/mlp/wo"))
  return _rms_norm(graph, x_BTD, "encoder/encoder_norm")


def _t5_positions(graph: Graph, config: t5.T5Config) -> str:
  """Returns the biases of all offsets, [H, T, T], looked up by offset for any T."""
  reach = config.relpos_max_distance
  bucket_O = t5.buckets_by_offset(buckets=config.relpos_buckets, max_distance=reach)
  table_HR = graph.array("encoder/relpos_bias/rel_embedding")
  position_T = _positions(graph)
  key_1T = graph.node("Unsqueeze", position_T, np.array([0]))
  query_T1 = graph.node("Unsqueeze", position_T, np.array([1]))
  offset_TT = graph.node(
    "Clip", graph.node("Sub", key_1T, query_T1), np.int64(-reach), np.int64(reach)
  )
  return graph.node(
    "Gather", table_HR[:, bucket_O], graph.node("Add", offset_TT, np.int64(reach)), axis=1
  )


def _rms_norm(graph: Graph, x: str, name: str) -> str:
  square = graph.node("Pow", x, np.float32(2))
  mean = graph.node("ReduceMean", square, axes=[-1], keepdims=1)
  root = graph.node("Sqrt", graph.node("Add", mean, np.float32(1e-6)))
  return graph.node("Mul", graph.node("Div", x, root), graph.parameter(f"{name}/scale"))


def _gelu_of_tanh(graph: Graph, x: str) -> str:
  """Returns `gelu(x)` in the approximation with tanh."""
  cube = graph.node("Mul", graph.node("Pow", x, np.float32(3)), np.float32(0.044715))
  inner = graph.node("Mul", graph.node("Add", x, cube), np.float32(math.sqrt(2 / math.pi)))
  gate = graph.node("Add", graph.node("Tanh", inner), np.float32(1))
  return graph.node("Mul", graph.node("Mul", x, gate), np.float32(0.5))


# --------------------------------------------------------------------------------------------
# BERT


def _is_drawn(config: Any) -> bool:
  """Returns whether `_bert` draws all options of a config: those of BERT, not of its successors."""
  if not isinstance(config, transformer.TransformerConfig):
    return True
  bert = {name: getattr(config, name) for name in _OPTIONS_OF_BERT}
  return config == transformer.TransformerConfig(**bert)


def _bert(graph: Graph, config: transformer.TransformerConfig, x_BTD: str, mask_BT: str) -> str:
  table_RD = graph.array("encoder/position_embedding")[config.position_offset :]
  if config.num_token_types:
    table_RD = table_RD + graph.array("encoder/token_type_embedding")[0]
  x_BTD = graph.node("Add", x_BTD, graph.node("Gather", table_RD, _positions(graph)))
  x_BTD = _layer_norm(graph, config, x_BTD, "encoder/embedding_layer_norm")
  bias_B11T = _padding_bias(graph, mask_BT)
  heads = (config.num_heads, config.emb_dim // config.num_heads)
  for i in range(config.num_layers):
    layer = f"encoder/layers_{i}"
    y_BTD = _attention(
      graph, x_BTD, f"{layer}/attention", bias_B11T, heads, bias=True, scale=heads[1] ** -0.5
    )
    x_BTD = graph.node("Add", x_BTD, y_BTD)
    x_BTD = _layer_norm(graph, config, x_BTD, f"{layer}/post_attention_layer_norm")
    y_BTM = _dense(graph, x_BTD, f"{layer}/mlp/wi", bias=True)
    y_BTM = _activation(graph, config.activation, y_BTM)
    x_BTD = graph.node("Add", x_BTD, _dense(graph, y_BTM, f"{layer}/mlp/wo", bias=True))
    x_BTD = _layer_norm(graph, config, x_BTD, f"{layer}/post_mlp_layer_norm")
  return x_BTD


def _layer_norm(graph: Graph, config: transformer.TransformerConfig, x: str, name: str) -> str:
  scale, bias = graph.parameter(f"{name}/scale"), graph.parameter(f"{name}/bias")
  return graph.node("LayerNormalization", x, scale, bias, epsilon=config.layer_norm_eps)


def _activation(graph: Graph, name: str, x: str) -> str:
  if name == "relu":
    return graph.node("Relu", x)
  if name == "gelu_tanh":
    return _gelu_of_tanh(graph, x)
  if name == "swish":
    return graph.node("Mul", x, graph.node("Sigmoid", x))
  error = graph.node("Erf", graph.node("Div", x, np.float32(math.sqrt(2))))
  gate = graph.node("Add", error, np.float32(1))
  return graph.node("Mul", graph.node("Mul", x, gate), np.float32(0.5))


# --------------------------------------------------------------------------------------------
# Parts of all


def _dense(graph: Graph, x: str, name: str, *, bias: bool = False) -> str:
  y = graph.node("MatMul", x, graph.parameter(f"{name}/kernel"))
  return graph.node("Add", y, graph.parameter(f"{name}/bias")) if bias else y


def _attention(
  graph: Graph,
  x_BTD: str,
  name: str,
  bias_BHTT: str,
  heads: tuple[int, int],
  *,
  bias: bool = False,
  scale: float = 1.0,
) -> str:
  """Adds multi-head self-attention.

  Args:
    graph: The graph.
    x_BTD: Hidden states.
    name: Name of the layer's parameters.
    bias_BHTT: Added to the logits.
    heads: Number and width of the heads.
    bias: Whether the linear layers have biases.
    scale: Factor of the queries.
  """

  def projected(part: str, order: list[int]) -> str:
    x_BTM = _dense(graph, x_BTD, f"{name}/{part}", bias=bias)
    if part == "query" and scale != 1:
      x_BTM = graph.node("Mul", x_BTM, np.float32(scale))
    x_BTHK = graph.node("Reshape", x_BTM, np.array([0, 0, *heads]))
    return graph.node("Transpose", x_BTHK, perm=order)

  logits_BHTT = graph.node(
    "MatMul", projected("query", [0, 2, 1, 3]), projected("key", [0, 2, 3, 1])
  )
  weights_BHTT = graph.node("Softmax", graph.node("Add", logits_BHTT, bias_BHTT), axis=-1)
  out_BHTK = graph.node("MatMul", weights_BHTT, projected("value", [0, 2, 1, 3]))
  out_BTHK = graph.node("Transpose", out_BHTK, perm=[0, 2, 1, 3])
  out_BTM = graph.node("Reshape", out_BTHK, np.array([0, 0, math.prod(heads)]))
  return _dense(graph, out_BTM, f"{name}/out", bias=bias)


def _positions(graph: Graph) -> str:
  """Returns the positions of tokens, int64 [T]."""
  length = graph.node("Gather", graph.node("Shape", TOKENS), np.int64(1))
  return graph.node("Range", np.int64(0), length, np.int64(1))


def _padding_bias(graph: Graph, mask_BT: str) -> str:
  """Returns the bias of attention logits that hides padding, [B, 1, 1, T]."""
  bias_BT = graph.node("Where", mask_BT, np.float32(0), np.float32(t5.MASKED))
  return graph.node("Unsqueeze", bias_BT, np.array([1, 2]))


def _pooled(graph: Graph, pooling: str, hidden_BTD: str, mask_BT: str) -> str:
  if pooling in ("cls", "pooler"):
    first_BD = graph.node("Gather", hidden_BTD, np.int64(0), axis=1)
    if pooling == "cls":
      return first_BD
    return graph.node("Tanh", _dense(graph, first_BD, "pooler/dense", bias=True))
  if pooling == "last":
    last_B = graph.node("ReduceSum", MASK, np.array([1]), keepdims=0)
    last_B = graph.node("Max", graph.node("Sub", last_B, np.int64(1)), np.int64(0))
    index_B1 = graph.node("Unsqueeze", last_B, np.array([1]))
    return graph.node("GatherND", hidden_BTD, index_B1, batch_dims=1)
  mask_BT1 = graph.node("Unsqueeze", mask_BT, np.array([2]))
  count_BT1 = graph.node("Where", mask_BT1, np.float32(1), np.float32(0))
  count_B1 = graph.node("ReduceSum", count_BT1, np.array([1]), keepdims=0)
  if pooling == "mean":
    real_BTD = graph.node("Where", mask_BT1, hidden_BTD, np.float32(0))
    sum_BD = graph.node("ReduceSum", real_BTD, np.array([1]), keepdims=0)
    return graph.node("Div", sum_BD, graph.node("Max", count_B1, np.float32(1)))
  lowest = np.finfo(np.float32).min
  real_BTD = graph.node("Where", mask_BT1, hidden_BTD, lowest)
  largest_BD = graph.node("ReduceMax", real_BTD, axes=[1], keepdims=0)
  # A sentence without tokens has zeros.
  return graph.node(
    "Where", graph.node("Greater", count_B1, np.float32(0)), largest_BD, np.float32(0)
  )


_ENCODERS: dict[type, Callable[..., str]] = {transformer.TransformerConfig: _bert, t5.T5Config: _t5}
