"""Backends that compute an encoder's vectors: JAX, and ONNX Runtime, which is faster on CPUs.

Both backends sort sentences by length before they form batches.
"""

import concurrent.futures
import functools
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from vmsst import arrays, errors
from vmsst.formats import onnx, tensors
from vmsst.networks import sentence_encoder

AUTO, JAX, ONNX = "auto", "jax", "onnx"
BACKENDS = (JAX, ONNX)
"""Names of the backends, as in sentence-transformers. ONNX Runtime always computes in float32."""
_PACKAGES = ("onnx", "onnxruntime")

# Tokens per batch on a CPU: enough for fast matmuls, but few enough to fit in a core's cache.
_BATCH_TOKENS = 1024
# If sentences have more tokens than this, a batch contains fewer sentences, to save memory.
_FULL_WIDTH = 64
# A batch can end before it is full, so that shorter sentences get less padding. JAX compiles each
# new shape, however, so a batch ends early only if it saves at least this many padding tokens.
_WORTHWHILE = 2048


Batch = tuple[np.ndarray, np.ndarray]
"""Sentence indices [B] and token ids, int32 [R, T], where R >= B; rows from B on are padding."""


def fastest(network: sentence_encoder.SentenceEncoder) -> str:
  """Returns the name of the backend that runs a network fastest on this machine.

  ONNX Runtime is fastest on CPUs in float32, if it is installed and supports the network. In all
  other cases, the result is JAX.
  """
  has_graph = isinstance(network.config, onnx.CONFIGS)
  if jax.default_backend() != "cpu" or network.config.dtype != "float32" or not has_graph:
    return JAX
  if all(map(importlib.util.find_spec, _PACKAGES)):
    return ONNX
  _warn("vectors are computed by JAX; pip install 'vmsst[onnx]' for more speed on CPUs")
  return JAX


# Each warning is logged once per process.
_warn = functools.cache(logging.getLogger(__name__).warning)


def new(
  name: str,
  network: sentence_encoder.SentenceEncoder,
  params: Any,
  devices: Sequence[jax.Device] | None,
) -> "JaxBackend | CpuBackend":
  """Creates a backend.

  Args:
    name: One of `BACKENDS`.
    network: Maps token ids to vectors.
    params: The network's parameters.
    devices: JAX devices that share each batch (default: as in `vmsst.Encoder`).

  Raises:
    InputError: If the backend's package is not installed.
  """
  if name == ONNX:
    return CpuBackend(network, params)
  if devices is None:
    has_default = getattr(jax.config, "jax_default_device", None) is not None
    devices = list(jnp.zeros(()).devices()) if has_default else jax.local_devices()
  return JaxBackend(network, params, devices)


class JaxBackend:
  """Computes vectors with JAX, and splits each batch across all devices.

  Attributes:
    params: The network's parameters, as a tree.
    in_flight: Number of batches to start before waiting for the first result.
    batches: Function that divides token ids into batches.
    process: Id of the process that created the backend.
  """

  in_flight = 2

  def __init__(
    self, network: sentence_encoder.SentenceEncoder, params: Any, devices: Sequence[jax.Device]
  ):
    self._network, self.process = network, os.getpid()
    # JAX compiles a program for each shape, so batches use few shapes.
    self.batches = functools.partial(padded_batches, multiple=len(devices))
    self._sharding = replicated = None
    if len(devices) > 1:
      mesh = Mesh(np.array(devices), "batch")
      self._sharding = NamedSharding(mesh, PartitionSpec("batch"))
      replicated = NamedSharding(mesh, PartitionSpec())
    self.params = jax.device_put(params, replicated, may_alias=True)
    self._embed = jax.jit(functools.partial(sentence_encoder.embed, network))

  def __reduce__(self) -> Any:
    return new, (JAX, self._network, jax.tree.map(np.asarray, self.params), None)

  def start(self, tokens_RT: np.ndarray, *, alone: bool = False) -> Callable[[], np.ndarray]:
    """Starts a batch; returns a function that waits for its vectors, float32 [R, S]."""
    del alone
    tokens = jax.device_put(tokens_RT, self._sharding)
    return functools.partial(np.asarray, self._embed(self.params, tokens))


class CpuBackend:
  """Computes vectors in float32 with ONNX Runtime, from a graph that `vmsst.formats.onnx` builds.

  The graph is built in memory, not on disk, and the runtime uses the parameter arrays without
  copying them. Each core computes a separate batch, so that small batches stay in the core's cache
  and cores do not wait for each other. If there is only one batch, all cores share it.

  Attributes:
    params: The network's parameters, as a tree.
    in_flight: Number of batches to start before waiting for the first result.
    process: Id of the process that created the backend.
  """

  def __init__(self, network: sentence_encoder.SentenceEncoder, params: Any):
    """Creates the thread pool. The first batch builds the graph.

    Args:
      network: Maps token ids to vectors.
      params: The network's parameters, on the host.

    Raises:
      InputError: If a package is not installed.
    """
    with errors.requires("onnx", "the backend 'onnx'"):
      os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # must be set before the import
      import onnx
      import onnxruntime
    del onnx, onnxruntime
    self._network, self.params, self.process = network, params, os.getpid()
    # Use the cores available to this process, but at most OMP_NUM_THREADS. Launchers set this
    # variable when they start several workers on a machine.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    limit = os.environ.get("OMP_NUM_THREADS", "")
    self._threads = max(1, min(cores or 1, int(limit) if limit.isdigit() else sys.maxsize))
    self.in_flight = 2 * self._threads
    self._pool = concurrent.futures.ThreadPoolExecutor(self._threads, thread_name_prefix="vmsst")

  @functools.cached_property
  def _compile(self) -> Callable[[bool], Callable[[Mapping[str, np.ndarray]], np.ndarray]]:
    """Builds the graph; returns a function of `alone` (see `start`) that compiles the graph."""
    import onnxruntime

    arrays = traverse_util.flatten_dict(jax.tree.map(np.asarray, self.params), sep="/")
    graph = onnx.build(tensors.separate(arrays), self._network)
    model, weights = graph.without_weights(onnx.OUTPUT)
    # ONNX Runtime copies weights into every session, but does not copy inputs. The token table is
    # the largest weight, so it is passed as an input.
    inputs = {x: weights.pop(x) for x in (tensors.TOKEN_TABLE,) if x in weights}
    helper = graph.library.helper
    for name, array in inputs.items():
      kind = helper.np_dtype_to_tensor_dtype(array.dtype)
      model.graph.input.append(helper.make_tensor_value_info(name, kind, array.shape))
    for name, array in weights.items():
      graph.add_weights(model, name, array, location="given")
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in weights.values()]
    content = model.SerializeToString()

    @functools.cache
    def compiled(alone: bool) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
      options = onnxruntime.SessionOptions()
      options.intra_op_num_threads = self._threads if alone else 1
      options.inter_op_num_threads = 1
      # The runtime does not copy these arrays, so they must live as long as the session.
      options.add_external_initializers(list(weights), values)
      session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
      return lambda feeds: session.run([onnx.OUTPUT], {**feeds, **inputs})[0]

    return compiled

  def batches(
    self, ids: Sequence[Sequence[int]], batch_size: int, max_length: int
  ) -> Iterator[Batch]:
    """Yields batches that fit in a core's cache. Each batch is padded to its longest sentence."""
    del max_length

    def shape(length_N: np.ndarray) -> tuple[int, int, int]:
      width = max(1, int(length_N[0]))
      count = min(len(length_N), max(1, min(batch_size, _BATCH_TOKENS // width)))
      return count, count, width

    return length_batches(ids, shape)

  def __reduce__(self) -> Any:
    return new, (ONNX, self._network, jax.tree.map(np.asarray, self.params), None)

  def start(self, tokens_BT: np.ndarray, *, alone: bool = False) -> Callable[[], np.ndarray]:
    """Starts a batch; returns a function that waits for its vectors, float32 [B, S].

    Args:
      tokens_BT: Token ids.
      alone: Whether no other batch runs at the same time.
    """
    mask_BT = (tokens_BT != arrays.PAD_ID).astype(np.int64)
    feeds = {onnx.TOKENS: tokens_BT.astype(np.int64), onnx.MASK: mask_BT}
    return self._pool.submit(self._compile(alone), feeds).result


def padded_batches(
  ids: Sequence[Sequence[int]], batch_size: int, max_length: int, multiple: int = 1
) -> Iterator[Batch]:
  """Yields batches of sentences with similar lengths, padded to a few shapes.

  Sentences are ordered from longest to shortest. The width of a batch is the number of tokens in
  its longest sentence, rounded up to 1 or 1.5 times a power of two. If a batch is not full, its
  number of rows (R) is also rounded up, but at most to the size of a full batch. A batch ends
  early, before the first sentence that fills at most half the width, if this saves enough padding.

  Args:
    ids: Token ids for each sentence.
    batch_size: Maximum sentences per batch. Batches of long sentences are smaller to save memory.
    max_length: Maximum tokens per sentence.
    multiple: R is a multiple of this number, such as the number of devices.
  """

  def shape(length_N: np.ndarray) -> tuple[int, int, int]:
    width = min(_round_up(int(length_N[0])), max_length)
    limit = max(1, min(batch_size, batch_size * _FULL_WIDTH // width))
    count = min(limit, len(length_N))
    # Number of sentences longer than half the width.
    longer = int(np.searchsorted(-length_N[:count], -(width // 2)))
    if longer and (count - longer) * width // 2 >= _WORTHWHILE:
      count = longer
    rows = min(_round_up(count), limit)
    return count, rows + -rows % multiple, width

  return length_batches(ids, shape)


def length_batches(
  ids: Sequence[Sequence[int]], shape: Callable[[np.ndarray], tuple[int, int, int]]
) -> Iterator[Batch]:
  """Yields batches of sentences, ordered from longest to shortest.

  The largest batch comes first, so that a process that lacks memory fails immediately.

  Args:
    ids: Token ids for each sentence.
    shape: Function that takes the lengths of the sentences not yet batched, in descending order. It
      returns the next batch's number of sentences, number of rows (sentences and padding), and
      number of tokens per row.
  """
  length_N = np.fromiter(map(len, ids), np.int64, len(ids))
  order_N = np.argsort(-length_N, kind="stable")
  length_N, start = length_N[order_N], 0
  while start < len(ids):
    count, rows, width = shape(length_N[start:])
    index_B = order_N[start : start + count]
    tokens_RT = np.zeros((rows, width), np.int32)
    for row_T, index in zip(tokens_RT, index_B, strict=False):
      row_T[: len(ids[index])] = ids[index]
    yield index_B, tokens_RT
    start += count


def _round_up(size: int) -> int:
  """Returns the smallest of 4, 6, 8, 12, 16, 24, 32, 48, ... that is at least `size`."""
  power = 4
  while power < size:
    if size <= power + power // 2:
      return power + power // 2
    power *= 2
  return power
