"""Connects the processes of a multi-process run through JAX, and makes them exit together.

This module imports JAX only when a multi-process run starts.
"""

import atexit
import contextlib
import itertools
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from vmsst.errors import InputError

# If a process sends no heartbeat for this long, JAX ends all processes.
HEARTBEAT_SECONDS = 30
INITIALIZATION_SECONDS = 300  # JAX's default timeout
# One process may take hours, for example to compute metrics, while the others wait at a barrier.
_BARRIER_SECONDS = 24 * 3600
# Messages from gloo, NCCL and JAX's coordinator when a collective fails because a process has died.
_CONNECTION_LOST = re.compile(
  r"gloo|nccl|socket closed|connection (reset|closed|refused)|heartbeat|coordination service",
  re.IGNORECASE,
)


@contextlib.contextmanager
def join(
  coordinator_address: str | None = None,
  count: int | None = None,
  index: int | None = None,
  *,
  multi_process: bool = False,
  initialization_timeout: int = INITIALIZATION_SECONDS,
) -> Iterator[None]:
  """Connects the processes of a multi-process run while the context is active.

  A process that fails inside the context exits without waiting for the other processes. The other
  processes end when their next collective fails, or when JAX ends them after `HEARTBEAT_SECONDS`.

  Args:
    coordinator_address: HOST:PORT of process 0. If omitted, JAX detects it.
    count: Number of processes. If omitted, JAX detects it. If 1, the context does nothing.
    index: Index of this process, from 0. If omitted, JAX detects it.
    multi_process: Whether to connect in any case. If false, this process connects only if an
      argument above is given, or if it runs under SLURM, under Open MPI or on a TPU pod.
    initialization_timeout: Seconds to wait for the other processes.

  Raises:
    InputError: If the processes could not connect, or a collective failed because another process
      died.
  """
  requested = multi_process or any(x is not None for x in (coordinator_address, count, index))
  # Kubernetes is deliberately not detected, because JAX would query the cluster's API server from
  # every pod. Kubernetes users set `coordinator_address` instead.
  on_cluster = (
    ("SLURM_STEP_NODELIST" in os.environ and os.environ.get("SLURM_NTASKS") != "1")
    or "OMPI_MCA_orte_hnp_uri" in os.environ  # Open MPI
    # On a TPU host, importing JAX sets TPU_ML_PLATFORM, but not TPU_SKIP_MDS_QUERY.
    or ("TPU_ML_PLATFORM" in os.environ and "TPU_SKIP_MDS_QUERY" not in os.environ)
  )
  if count == 1 or not (requested or on_cluster):
    yield
    return
  import jax

  if requested:  # Print first, because JAX aborts a process that cannot connect.
    address = coordinator_address or "the address that JAX detects"
    print(f"t5x: connecting to the other processes at {address}", file=sys.stderr, flush=True)
  try:
    jax.distributed.initialize(
      coordinator_address=coordinator_address,
      num_processes=count,
      process_id=index,
      initialization_timeout=initialization_timeout,
      heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
    )
  except (ValueError, RuntimeError) as error:
    if requested or "should be defined" not in str(error):
      raise InputError(
        f"multi-process run: {str(error).splitlines()[0][:300]}; set --coordinator_address, "
        "--process_count and --process_index, and check that all processes can reach process 0"
      ) from error
    yield  # This is a single TPU host outside a pod.
    return
  state = _jax_state()
  try:
    yield
    barrier()  # JAX's shutdown waits only five minutes for other processes.
  except BaseException as error:
    _exit_without_waiting()
    if isinstance(error, InputError) or not _CONNECTION_LOST.search(str(error)):
      raise
    raise InputError(
      "the connection to another process in this run is lost, because the process, its machine or "
      f"the network failed ({str(error).splitlines()[0][:300]}). Rerun the same command to "
      "resume from the last checkpoint"
    ) from None
  # JAX's shutdown would stop the coordination service as soon as process 0 has disconnected, and
  # processes that are still disconnecting would then abort. Keep the service running for two more
  # seconds, so that these processes can disconnect.
  state.client.shutdown()
  state.client = None
  if state.service is not None:
    time.sleep(2)
    state.service.shutdown()
    state.service = None


def _exit_without_waiting() -> None:
  """Makes this process exit with status 1 after it prints its error, without JAX's shutdown."""

  def end() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)

  atexit.register(end)  # Registered after JAX's exit handler, so it runs first.
  # Threads that wait for other processes can block the exit, so end after ten seconds in any case.
  timer = threading.Timer(10.0, end)
  timer.daemon = True
  timer.start()


def _jax_state() -> Any:
  """Returns JAX's coordination client and service.

  `barrier` needs the client because JAX's public barriers cannot wait for hours.
  """
  from jax._src import distributed

  return distributed.global_state


_barriers = itertools.count()


def barrier() -> None:
  """Waits until all processes have called this function, for up to 24 hours.

  All processes must call this function the same number of times. In a single-process run, the
  function returns immediately.
  """
  client = _jax_state().client
  if client is not None:
    client.wait_at_barrier(f"vmsst/barrier/{next(_barriers)}", _BARRIER_SECONDS * 1000)
