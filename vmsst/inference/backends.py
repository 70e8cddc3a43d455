"""What computes the vectors of an encoder: JAX, or a runtime for CPUs."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from vmsst import errors
from vmsst.inference import batching, cpu_runtimes
from vmsst.networks import sentence_encoder

JAX = "jax"
BACKENDS = (JAX, *cpu_runtimes.RUNTIMES)
"""Names of the backends, as in sentence-transformers; all but the first compute in float32."""


class Backend(Protocol):
  """Computes the vectors of batches.

  Attributes:
    params: The parameters of the network, a tree.
    in_flight: Batches to start before the first result is needed.
  """

  params: Any
  in_flight: int

  def batches(
    self, ids: Sequence[Sequence[int]], batch_size: int, max_length: int
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields batches as (indices into `ids` [B], tokens [R, T]), R >= B, with zeros as padding.

    Args:
      ids: Token ids of every sentence.
      batch_size: Most sentences of a batch.
      max_length: Most tokens of a sentence.
    """

  def start(self, tokens_RT: np.ndarray) -> Callable[[], np.ndarray]:
    """Starts a batch; returns a function that waits for its vectors, float32 [R, S]."""


def new(
  name: str,
  network: sentence_encoder.SentenceEncoder,
  params: Any,
  devices: Sequence[jax.Device] | None,
) -> Backend:
  """Returns a backend.

  Args:
    name: One of `BACKENDS`.
    network: Maps token ids to vectors.
    params: Its parameters.
    devices: Devices of JAX that share each batch; None: see `vmsst.Encoder`.

  Raises:
    InputError: the backend is unknown, its package is not installed, or it was given devices.
  """
  errors.check_choice("backend", name, BACKENDS)
  if name == JAX:
    return JaxBackend(network, params, _default_devices() if devices is None else devices)
  if devices is not None:
    raise errors.InputError(f"backend is {name!r}, which computes on CPUs; omit devices")
  return cpu_runtimes.CpuBackend(name, network, params)


class JaxBackend:
  """Computes vectors by JAX, each batch on all devices."""

  in_flight = 2

  def __init__(
    self, network: sentence_encoder.SentenceEncoder, params: Any, devices: Sequence[jax.Device]
  ):
    self._devices = len(devices)
    self._sharding = None
    if self._devices > 1:
      mesh = Mesh(np.array(devices), "batch")
      params = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
      self._sharding = NamedSharding(mesh, PartitionSpec("batch"))
    self.params = params
    self._embed = jax.jit(functools.partial(sentence_encoder.embed, network))

  def batches(
    self, ids: Sequence[Sequence[int]], batch_size: int, max_length: int
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields batches of few shapes, as each is compiled."""
    return batching.padded_batches(ids, batch_size, max_length, self._devices)

  def start(self, tokens_RT: np.ndarray) -> Callable[[], np.ndarray]:
    """Starts a batch; returns a function that waits for its vectors, float32 [R, S]."""
    on_devices = tokens_RT
    if self._sharding is not None:
      on_devices = jax.device_put(tokens_RT, self._sharding)
    return functools.partial(np.asarray, self._embed(self.params, on_devices))


def _default_devices() -> Sequence[jax.Device]:
  if getattr(jax.config, "jax_default_device", None) is not None:
    return list(jnp.zeros(()).devices())
  return jax.local_devices()
