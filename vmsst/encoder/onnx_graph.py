"""Graphs of ONNX operators, built node by node, and the files that hold them."""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from vmsst import errors

MODEL_FILE = "model.onnx"
WEIGHTS_FILE = "model.onnx_data"
"""File of the weights of a model that is too large for one file."""
# LayerNormalization came with 17.
_OPERATOR_SET = 17
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
