"""Encoders on CPUs by OpenVINO or ONNX Runtime, which are faster there than JAX.

They run the graph of `onnx_encoder` in float32. Nothing is written to disk: the graph is built in
memory, and the runtimes get the arrays of the parameters. OpenVINO reads the token table where it
is, such as in a mapped file.

Each core computes a batch of its own. Small batches stay in its cache, and cores do not wait for
each other, as they do if they share a batch.
"""

import concurrent.futures
import ctypes
import os
import queue
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from vmsst import errors
from vmsst.arrays import padding
from vmsst.checkpoints import layer_stacks
from vmsst.inference import batching, onnx_encoder, onnx_graph
from vmsst.networks import sentence_encoder

# Tokens of a batch: enough for fast matmuls, few enough for a core's cache.
_BATCH_TOKENS = 1024

# Maps token ids [B, T] to vectors [B, S]; called by several threads at once.
_Compute = Callable[[np.ndarray], np.ndarray]


class CpuBackend:
  """Computes vectors by a runtime for CPUs, a batch per core.

  Attributes:
    params: The parameters of the network, a tree.
    in_flight: Batches to start before the first result is needed.
  """

  def __init__(self, runtime: str, network: sentence_encoder.SentenceEncoder, params: Any):
    """Compiles the network.

    Args:
      runtime: One of `RUNTIMES`.
      network: The network.
      params: Its parameters, on the host.

    Raises:
      InputError: a package is not installed.
    """
    self.params = params
    arrays = traverse_util.flatten_dict(jax.tree.map(np.asarray, params), sep="/")
    graph = onnx_graph.Graph(layer_stacks.separate(arrays))
    vectors_BS = onnx_encoder.add_encoder(graph, network)
    # The runtimes use the arrays of the weights, so that these must live as long.
    model, self._weights = graph.without_weights(
      **onnx_encoder.interface(vectors_BS, network.latent_dim)
    )
    threads = _cores()
    self.in_flight = 2 * threads
    self._compute = RUNTIMES[runtime](model, self._weights, threads)
    self._pool = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix="vmsst")

  def batches(
    self, ids: Sequence[Sequence[int]], batch_size: int, max_length: int
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields batches that are as long as their longest sentence."""
    del max_length  # the ids are cut
    return batching.tight_batches(ids, batch_size, _BATCH_TOKENS)

  def start(self, tokens_BT: np.ndarray) -> Callable[[], np.ndarray]:
    """Starts a batch; returns a function that waits for its vectors, float32 [B, S]."""
    return self._pool.submit(self._compute, tokens_BT).result


def _cores() -> int:
  """Returns the number of cores to use: this process's own, or fewer for one of many workers."""
  available = hasattr(os, "sched_getaffinity")
  cores = len(os.sched_getaffinity(0)) if available else os.cpu_count() or 1
  limit = os.environ.get("OMP_NUM_THREADS", "")
  return max(1, min(cores, int(limit))) if limit.isdigit() else cores


def _feeds(tokens_BT: np.ndarray) -> dict[str, np.ndarray]:
  """Returns the inputs of the graph."""
  tokens_BT = tokens_BT.astype(np.int64)
  mask_BT = (tokens_BT != padding.PAD_ID).astype(np.int64)
  return {onnx_encoder.TOKENS: tokens_BT, onnx_encoder.MASK: mask_BT}


def _onnx_runtime(model: Any, weights: Mapping[str, np.ndarray], threads: int) -> _Compute:
  del threads  # each caller computes in its own
  with errors.requires("onnx", "the backend 'onnx'"):
    import onnxruntime
  onnx = onnx_graph.library()
  for name, array in weights.items():
    tensor = model.graph.initializer.add(
      name=name,
      data_type=onnx.helper.np_dtype_to_tensor_dtype(array.dtype),
      dims=array.shape,
      data_location=onnx.TensorProto.EXTERNAL,
    )
    tensor.external_data.add(key="location", value="given")
  options = onnxruntime.SessionOptions()
  options.intra_op_num_threads = options.inter_op_num_threads = 1
  values = [onnxruntime.OrtValue.ortvalue_from_numpy(x) for x in weights.values()]
  options.add_external_initializers(list(weights), values)
  session = onnxruntime.InferenceSession(
    model.SerializeToString(), options, providers=["CPUExecutionProvider"]
  )

  def compute(tokens_BT: np.ndarray) -> np.ndarray:
    (vectors_BS,) = session.run([onnx_encoder.OUTPUT], _feeds(tokens_BT))
    return vectors_BS

  return compute


def _openvino(model: Any, weights: Mapping[str, np.ndarray], threads: int) -> _Compute:
  openvino = _import_openvino()
  helper = onnx_graph.library().helper
  for name, array in weights.items():
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    model.graph.input.append(helper.make_tensor_value_info(name, kind, array.shape))
  core = openvino.Core()
  graph = core.read_model(model.SerializeToString())
  for parameter in graph.get_parameters():
    name = parameter.get_friendly_name()
    if name in weights:
      constant = openvino.op.Constant(_writable(weights[name]), shared_memory=True)
      parameter.output(0).replace(constant.output(0))
      graph.remove_parameter(parameter)
  settings = {
    "PERFORMANCE_HINT": "THROUGHPUT",
    "NUM_STREAMS": threads,
    "INFERENCE_NUM_THREADS": threads,
    "INFERENCE_PRECISION_HINT": "f32",
  }
  compiled = core.compile_model(graph, "CPU", settings)
  requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
  for _ in range(threads):
    requests.put(compiled.create_infer_request())

  def compute(tokens_BT: np.ndarray) -> np.ndarray:
    request = requests.get()
    try:
      request.infer(_feeds(tokens_BT), share_inputs=True)
      return request.get_output_tensor(0).data.copy()
    finally:
      requests.put(request)

  return compute


def _import_openvino() -> Any:
  """Imports OpenVINO without its telemetry.

  If `openvino_telemetry` is installed, importing OpenVINO sends an event to a server from a fork of
  this process. JAX is multithreaded, so the fork may deadlock.
  """
  telemetry = "openvino_telemetry"
  hidden = telemetry not in sys.modules
  if hidden:
    sys.modules[telemetry] = None  # type: ignore[assignment]
  try:
    with errors.requires("openvino", "the backend 'openvino'"):
      import openvino
  finally:
    if hidden:
      del sys.modules[telemetry]
  return openvino


def _writable(array: np.ndarray) -> np.ndarray:
  """Returns a view that OpenVINO accepts: it wants to be allowed to write, but does not."""
  memory = (ctypes.c_char * array.nbytes).from_address(array.ctypes.data)
  return np.frombuffer(memoryview(memory), array.dtype).reshape(array.shape)


RUNTIMES: Mapping[str, Callable[[Any, Mapping[str, np.ndarray], int], _Compute]] = {
  "onnx": _onnx_runtime,
  "openvino": _openvino,
}
"""Runtimes by the name of their backend: functions of a model, its weights, and threads."""
