"""What computes the vectors of an encoder: JAX, or ONNX Runtime, which is faster on CPUs.

Batches are sorted by length.
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
"""Names of the backends, as in sentence-transformers; all but the first compute in float32."""
_PACKAGES = ("onnx", "onnxruntime")

# Tokens of a batch on a CPU: enough for fast matmuls, few enough for a core's cache.
_BATCH_TOKENS = 1024
# Longest sentences for which a batch has full size.
_FULL_WIDTH = 64
# Minimum padding saved to justify a separate batch: each has a shape to compile.
_WORTHWHILE = 2048


Batch = tuple[np.ndarray, np.ndarray]
"""Indices of sentences [B], and their tokens, int32 [R, T], R >= B; rows after B are padding."""


def fastest(network: sentence_encoder.SentenceEncoder) -> str:
  """Returns the fastest backend that computes a network on this machine with the same precision.

  That is JAX on accelerators and for bfloat16; on CPUs, one of those that are installed.
  """
  has_graph = isinstance(network.config, onnx.CONFIGS)
  if jax.default_backend() != "cpu" or network.config.dtype != "float32" or not has_graph:
    return JAX
  if all(map(importlib.util.find_spec, _PACKAGES)):
    return ONNX
  _warn("vectors are computed by JAX; pip install 'vmsst[onnx]' for more speed on CPUs")
  return JAX


_warn = functools.cache(logging.getLogger(__name__).warning)  # once per process


def new(
  name: str,
  network: sentence_encoder.SentenceEncoder,
  params: Any,
  devices: Sequence[jax.Device] | None,
) -> "JaxBackend | CpuBackend":
  """Returns a backend.

  Args:
    name: One of `BACKENDS`.
    network: Maps token ids to vectors.
    params: Its parameters.
    devices: Devices of JAX that share each batch; None: see `vmsst.Encoder`.

  Raises:
    InputError: the backend's package is not installed.
  """
  if name == ONNX:
    return CpuBackend(network, params)
  if devices is None:
    has_default = getattr(jax.config, "jax_default_device", None) is not None
    devices = list(jnp.zeros(()).devices()) if has_default else jax.local_devices()
  return JaxBackend(network, params, devices)


class JaxBackend:
  """Computes vectors by JAX, each batch on all devices.

  Attributes:
    params: The parameters of the network, a tree.
    in_flight: Batches to start before the first result is needed.
    batches: Divides token ids into batches.
    process: Id of the process that computes.
  """

  in_flight = 2

  def __init__(
    self, network: sentence_encoder.SentenceEncoder, params: Any, devices: Sequence[jax.Device]
  ):
    self._network, self.process = network, os.getpid()
    # Few shapes, as each is compiled.
    self.batches = functools.partial(padded_batches, multiple=len(devices))
    self._sharding = whole = None
    if len(devices) > 1:
      mesh = Mesh(np.array(devices), "batch")
      self._sharding = NamedSharding(mesh, PartitionSpec("batch"))
      whole = NamedSharding(mesh, PartitionSpec())
    self.params = jax.device_put(params, whole, may_alias=True)
    self._embed = jax.jit(functools.partial(sentence_encoder.embed, network))

  def __reduce__(self) -> Any:
    return new, (JAX, self._network, jax.tree.map(np.asarray, self.params), None)

  def start(self, tokens_RT: np.ndarray, *, alone: bool = False) -> Callable[[], np.ndarray]:
    """Starts a batch; returns a function that waits for its vectors, float32 [R, S]."""
    del alone
    tokens = jax.device_put(tokens_RT, self._sharding)
    return functools.partial(np.asarray, self._embed(self.params, tokens))


class CpuBackend:
  """Computes vectors in float32 by ONNX Runtime, from the graph of `vmsst.formats.onnx`.

  Nothing is written to disk: the graph is built in memory, and the runtime gets the arrays of the
  parameters. Each core computes a batch of its own. Small batches stay in its cache, and cores do
  not wait for each other, as they do if they share a batch; they share one that is alone.

  Attributes:
    params: The parameters of the network, a tree.
    in_flight: Batches to start before the first result is needed.
    process: Id of the process that computes.
  """

  def __init__(self, network: sentence_encoder.SentenceEncoder, params: Any):
    """Takes a network, whose graph is built for the first batch.

    Args:
      network: The network.
      params: Its parameters, on the host.

    Raises:
      InputError: a package is not installed.
    """
    with errors.requires("onnx", "the backend 'onnx'"):
      os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # has an effect before the import alone
      import onnx
      import onnxruntime
    del onnx, onnxruntime
    self._network, self.params, self.process = network, params, os.getpid()
    # This process's own cores, or fewer for one of many workers.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    limit = os.environ.get("OMP_NUM_THREADS", "")
    self._threads = max(1, min(cores or 1, int(limit) if limit.isdigit() else sys.maxsize))
    self.in_flight = 2 * self._threads
    self._pool = concurrent.futures.ThreadPoolExecutor(self._threads, thread_name_prefix="vmsst")

  @functools.cached_property
  def _compile(self) -> Callable[[bool], Callable[[Mapping[str, np.ndarray]], np.ndarray]]:
    """Compiles the network, for batches alone or one per thread."""
    import onnxruntime

    arrays = traverse_util.flatten_dict(jax.tree.map(np.asarray, self.params), sep="/")
    graph = onnx.build(tensors.separate(arrays), self._network)
    model, weights = graph.without_weights(onnx.OUTPUT)
    # ONNX Runtime copies weights for every session, but not inputs.
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
      # The runtime uses the arrays of the weights, so that these must live as long.
      options.add_external_initializers(list(weights), values)
      session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
      return lambda feeds: session.run([onnx.OUTPUT], {**feeds, **inputs})[0]

    return compiled

  def batches(
    self, ids: Sequence[Sequence[int]], batch_size: int, max_length: int
  ) -> Iterator[Batch]:
    """Yields batches of few tokens, as wide as their longest sentences; see `padded_batches`."""
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
      alone: Whether no other batch is computed at the same time.
    """
    mask_BT = (tokens_BT != arrays.PAD_ID).astype(np.int64)
    feeds = {onnx.TOKENS: tokens_BT.astype(np.int64), onnx.MASK: mask_BT}
    return self._pool.submit(self._compile(alone), feeds).result


def padded_batches(
  ids: Sequence[Sequence[int]], batch_size: int, max_length: int, multiple: int = 1
) -> Iterator[Batch]:
  """Yields batches of similar lengths, with few shapes.

  T and, in the last batch, R are rounded up to 1 or 1.5 times a power of two. A batch ends before
  sentences of at most half its width if that saves much padding.

  Args:
    ids: Token ids of every sentence.
    batch_size: Most sentences of a batch. Batches of long sentences are smaller, to save memory.
    max_length: Most tokens of a sentence.
    multiple: Number that divides R.
  """

  def shape(length_N: np.ndarray) -> tuple[int, int, int]:
    width = min(_round_up(int(length_N[0])), max_length)
    most = max(1, min(batch_size, batch_size * _FULL_WIDTH // width))
    count = min(most, len(length_N))
    longer = int(np.searchsorted(-length_N[:count], -(width // 2)))  # than half the width
    if longer and (count - longer) * width // 2 >= _WORTHWHILE:
      count = longer
    rows = min(_round_up(count), most)
    return count, rows + -rows % multiple, width

  return length_batches(ids, shape)


def length_batches(
  ids: Sequence[Sequence[int]], shape: Callable[[np.ndarray], tuple[int, int, int]]
) -> Iterator[Batch]:
  """Yields batches from the longest to the shortest sentences.

  A batch too large for memory fails at once.

  Args:
    ids: Token ids of every sentence.
    shape: Maps the lengths of the remaining sentences, descending, to B, R and T.
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
