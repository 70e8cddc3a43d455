"""Multi-process runs: JAX finds and connects the processes; here they end together.

Imports JAX only when a multi-process run starts.
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

# JAX considers a process without a heartbeat for this long dead and ends all others.
HEARTBEAT_SECONDS = 30
INITIALIZATION_SECONDS = 300  # JAX's default
# The longest that processes wait for one, such as while it computes metrics.
_BARRIER_SECONDS = 24 * 3600
# In errors of collectives when another process is gone (gloo, NCCL, the coordinator).
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
  """Joins the processes of the run, if there are several; they end together.

  A process that fails inside ends without waiting for the others. Their next collective fails, or
  JAX ends them after `HEARTBEAT_SECONDS`.

  Args:
    coordinator_address: HOST:PORT of process 0; None: JAX finds it.
    count: Number of processes; None: JAX finds it; 1 always means a single process.
    index: Index of this process, from 0; None: JAX finds it.
    multi_process: Whether the run is multi-process, also if nothing shows it.
    initialization_timeout: Seconds to wait for the other processes.

  Raises:
    InputError: The processes could not connect, or a collective failed because another process
      died.
  """
  shown = multi_process or any(x is not None for x in (coordinator_address, count, index))
  # On Kubernetes, JAX would ask the cluster's server in every pod; the user sets the address there.
  on_cluster = (
    ("SLURM_STEP_NODELIST" in os.environ and os.environ.get("SLURM_NTASKS") != "1")
    or "OMPI_MCA_orte_hnp_uri" in os.environ  # Open MPI
    # A TPU pod; importing JAX sets both.
    or ("TPU_ML_PLATFORM" in os.environ and "TPU_SKIP_MDS_QUERY" not in os.environ)
  )
  if count == 1 or not (shown or on_cluster):
    yield
    return
  import jax

  if shown:  # JAX ends a process that cannot connect, so the message comes before
    address = coordinator_address or "the address that JAX finds"
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
    if shown or "should be defined" not in str(error):
      raise InputError(
        f"multi-process run: {str(error).splitlines()[0][:300]}; set --coordinator_address, "
        "--process_count and --process_index, and check that all processes reach process 0"
      ) from error
    yield  # on a single TPU, which is not of a pod
    return
  state = _jax_state()
  try:
    yield
    barrier()  # JAX's own shutdown gives up after five minutes
  except BaseException as error:
    _end_without_the_others()
    if isinstance(error, InputError) or not _CONNECTION_LOST.search(str(error)):
      raise
    raise InputError(
      "another process of this run is gone: it failed or was killed, or its machine or network "
      f"failed ({str(error).splitlines()[0][:300]}). Rerun the same command to resume from the "
      "last checkpoint"
    ) from None
  # JAX's own shutdown stops the service as soon as process 0 has left, which aborts a process that
  # is still leaving.
  state.client.shutdown()
  state.client = None
  if state.service is not None:
    time.sleep(2)
    state.service.shutdown()
    state.service = None


def _end_without_the_others() -> None:
  """Makes this process exit with 1 after its error output; a normal exit waits for the others."""

  def end() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)

  atexit.register(end)  # before JAX's, which was registered earlier
  timer = threading.Timer(10.0, end)  # threads that wait for the others delay the exit
  timer.daemon = True
  timer.start()


def _jax_state() -> Any:
  """Returns JAX's coordination service: there is no public barrier that waits for hours."""
  from jax._src import distributed

  return distributed.global_state


_barriers = itertools.count()


def barrier() -> None:
  """Waits until all processes call it, however long the devices or one process take.

  All processes must call it equally often. Does nothing in a single-process run.
  """
  client = _jax_state().client
  if client is not None:
    client.wait_at_barrier(f"vmsst/barrier/{next(_barriers)}", _BARRIER_SECONDS * 1000)
