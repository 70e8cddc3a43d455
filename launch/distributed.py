"""Multi-process runs: finds this process's place in the run and makes all processes end together.

Imports JAX only when a multi-process run starts.
"""

import atexit
import contextlib
import dataclasses
import itertools
import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from vmsst.errors import InputError, check_integer

# JAX considers a process without a heartbeat for this long dead and ends all others.
HEARTBEAT_SECONDS = 30
# The longest that processes wait for one, such as while it computes metrics.
_BARRIER_SECONDS = 24 * 3600
_LOOK_SECONDS = 1.0
_FAILURE = "vmsst/failure"
_SLURM = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
# In errors of collectives when another process is gone (gloo, NCCL, the coordinator).
_CONNECTION_LOST = re.compile(
  r"gloo|nccl|socket closed|connection (reset|closed|refused)|heartbeat|coordination service",
  re.IGNORECASE,
)


class LostProcess(InputError):
  """Another process of the run died."""


@dataclasses.dataclass(frozen=True)
class Place:
  """The place of a process in its run; JAX finds fields that are None.

  Attributes:
    coordinator_address: host:port of process 0.
    count: Number of processes.
    index: Index of this process, from 0.
    found_by: How the run was recognized as multi-process, for messages.
  """

  coordinator_address: str | None
  count: int | None
  index: int | None
  found_by: str


def find(
  *,
  coordinator_address: str | None = None,
  count: int | None = None,
  index: int | None = None,
  multi_process: bool = False,
  environment: Mapping[str, str] = os.environ,
) -> Place | None:
  """Returns the place of this process in its run, or None if it is the only one.

  Takes missing arguments from JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID (or
  JOB_COMPLETION_INDEX, which an indexed Kubernetes job sets). JAX itself finds the processes of a
  SLURM step or a TPU pod. `count=1` always means a single process.

  Args:
    coordinator_address: HOST:PORT of process 0.
    count: Number of processes.
    index: Index of this process.
    multi_process: Whether the run is multi-process in any case; JAX then finds the processes.
    environment: The environment variables; on a TPU, after JAX is imported.

  Raises:
    InputError: An argument is missing or invalid.
  """
  if count == 1 and index in (None, 0):
    return None
  address = coordinator_address or environment.get("JAX_COORDINATOR_ADDRESS") or None
  given = count is not None or index is not None
  slurm = _slurm(environment)
  if address:
    count = _number(count, environment, "JAX_NUM_PROCESSES")
    index = _number(index, environment, "JAX_PROCESS_ID", "JOB_COMPLETION_INDEX")
    if slurm is None:
      _check_complete(count, index)
    found_by = "--coordinator_address or JAX_COORDINATOR_ADDRESS"
  elif slurm is not None:
    found_by = slurm
  elif _on_tpu_pod(environment):
    found_by = "the TPU's metadata"
  elif multi_process:
    found_by = "the cluster's environment"
  elif given:
    raise InputError(
      "--process_count and --process_index need --coordinator_address (or "
      "JAX_COORDINATOR_ADDRESS); set it to the HOST:PORT of process 0, reachable from all processes"
    )
  else:
    return None
  port = re.fullmatch(r".+:(\d{1,5})", address) if address else None
  if address and (port is None or not 0 < int(port[1]) < 1 << 16):
    raise InputError(f"coordinator address {address!r}: write HOST:PORT, with a port up to 65535")
  if count is not None and count < 1:
    raise InputError(f"process count {count}: it must be at least 1")
  if index is not None and not 0 <= index < (count or sys.maxsize):
    raise InputError(
      f"process index {index}: with {count} processes it must be from 0 to {(count or 1) - 1}"
    )
  if count == 1:
    return None
  return Place(address, count, index, found_by)


def _slurm(environment: Mapping[str, str]) -> str | None:
  """Returns the variable that shows a SLURM step of several tasks; None outside of one."""
  if any(name not in environment for name in _SLURM) or environment["SLURM_NTASKS"] == "1":
    return None
  return f"SLURM_NTASKS={environment['SLURM_NTASKS']}"


def _on_tpu_pod(environment: Mapping[str, str]) -> bool:
  """Returns whether there are TPUs, perhaps of a pod; importing JAX sets these variables."""
  return "TPU_ML_PLATFORM" in environment and "TPU_SKIP_MDS_QUERY" not in environment


def _number(given: int | None, environment: Mapping[str, str], *names: str) -> int | None:
  if given is not None:
    return given
  for name in names:
    if text := environment.get(name):
      if not text.isdecimal():
        raise InputError(f"{name} is {text!r}; set it to an integer")
      return int(text)
  return None


def _check_complete(count: int | None, index: int | None) -> None:
  if count is None:
    raise InputError("no process count; set --process_count (or JAX_NUM_PROCESSES)")
  if index is None and count != 1:
    raise InputError(
      "no process index; set --process_index (or JAX_PROCESS_ID, or JOB_COMPLETION_INDEX)"
    )


@contextlib.contextmanager
def joined(place: Place | None, initialization_timeout: int | None = None) -> Iterator[None]:
  """Joins the processes of the run; a process that fails inside ends all of them.

  A failing process reports its error to the others and ends without waiting for them. The others
  write the error to stderr and exit with 1, whatever they are doing. If a process is killed, JAX
  aborts the others after `HEARTBEAT_SECONDS`; most collectives fail at once.

  Args:
    place: See `find`; None does nothing.
    initialization_timeout: Seconds to wait for the other processes; None for JAX's default.

  Raises:
    InputError: The processes could not connect, or the timeout is not positive.
    LostProcess: A collective failed because another process died.
  """
  if initialization_timeout is not None:
    check_integer("--initialization_timeout", initialization_timeout)
  if place is None or not _connect(place, initialization_timeout):
    yield
    return
  from jax._src import distributed  # as Orbax and multihost_utils do: there is no public API

  state = distributed.global_state
  watch = _Watch(state.client, state.process_id, state.num_processes)
  try:
    yield
    barrier()  # JAX's own shutdown gives up after five minutes
  except BaseException as error:
    if isinstance(error, InputError) or not _CONNECTION_LOST.search(str(error)):
      watch.fail(error)
      raise
    lost = LostProcess(
      watch.reported()
      or "another process of this run is gone: it was killed, or its machine or network failed "
      f"({str(error).splitlines()[0][:300]}). Rerun the same command to resume from the last "
      "checkpoint"
    )
    watch.fail(lost)
    raise lost from None
  watch.close()
  _leave(state)


def _leave(state: Any) -> None:
  """Disconnects from the other processes; the service of process 0 stops after all have left.

  JAX's own shutdown stops the service as soon as process 0 has left, which aborts a process that is
  still leaving.
  """
  state.client.shutdown()
  state.client = None
  if state.service is not None:
    time.sleep(2 * _LOOK_SECONDS)
    state.service.shutdown()
    state.service = None


def _connect(place: Place, initialization_timeout: int | None) -> bool:
  """Starts jax.distributed; returns False if there is only one process."""
  import jax

  given: dict[str, Any] = {
    "coordinator_address": place.coordinator_address,
    "num_processes": place.count,
    "process_id": place.index,
    "initialization_timeout": initialization_timeout,
  }
  whole = None not in (place.coordinator_address, place.count, place.index)
  if whole and _slurm(os.environ) is None:
    given["cluster_detection_method"] = "deactivate"  # nothing to detect, and JAX would warn
  # JAX aborts the process if the others do not connect, so the message comes before.
  waiting = threading.Timer(min(10.0, (initialization_timeout or 300) / 2), _say_waiting, (place,))
  waiting.daemon = True
  waiting.start()
  try:
    jax.distributed.initialize(
      **{name: value for name, value in given.items() if value is not None},
      heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
    )
  except ValueError as error:
    if place.found_by == "the TPU's metadata" and "should be defined" in str(error):
      return False  # a single TPU, not of a pod
    raise InputError(f"multi-process run (by {place.found_by}): {error}") from error
  except RuntimeError as error:
    raise InputError(
      f"multi-process run (by {place.found_by}): the processes could not connect "
      f"({str(error).splitlines()[0][:300]}); check that process 0 is running and that its address "
      f"{place.coordinator_address or ''} is free there and reachable from here"
    ) from error
  finally:
    waiting.cancel()
  from jax._src import distributed

  return distributed.global_state.num_processes > 1


def _say_waiting(place: Place) -> None:
  print(
    f"t5x: multi-process run (by {place.found_by}): waiting for "
    f"{'the others' if place.index == 0 else 'process 0'}"
    + (f" at {place.coordinator_address}" if place.coordinator_address else ""),
    file=sys.stderr,
    flush=True,
  )


class _Watch:
  """Checks every second whether another process failed, and reports a failure of this one.

  Args:
    client: Client of the coordination service.
    index: Index of this process.
    count: Number of processes.
  """

  def __init__(self, client: Any, index: int, count: int):
    self._client = client
    self._name = f"process {index} of {count}"
    self._first = index == 0
    self._done = threading.Event()
    self._thread = threading.Thread(target=self._look, daemon=True, name="processes")
    self._thread.start()

  def _look(self) -> None:
    while not self._done.wait(_LOOK_SECONDS):
      try:
        reason = self.reason()
      except Exception:  # its type is jaxlib's own
        reason = "process 0, the coordinator, is gone"
      if reason is not None and not self._done.is_set():
        print(f"t5x: error: {self._name} stops: {reason}", file=sys.stderr, flush=True)
        if self._first:  # the others read the failure from this process
          time.sleep(4 * _LOOK_SECONDS)
        os._exit(1)

  def reason(self) -> str | None:
    """Returns the failure that a process reported; raises if process 0 does not answer."""
    try:
      return self._client.key_value_try_get(_FAILURE)
    except Exception as error:
      if "NOT_FOUND" in str(error):
        return None
      raise

  def reported(self) -> str | None:
    """Returns `reason()`, or None if process 0 does not answer."""
    with contextlib.suppress(Exception):
      return self.reason()
    return None

  def fail(self, error: BaseException) -> None:
    """Reports an error to the others and ends this process soon, without waiting for them."""
    self.close()
    text = " ".join(str(error).split())[:1000] or "no message"
    if not isinstance(error, InputError):
      text = f"{type(error).__name__}: {text}"
    with contextlib.suppress(Exception):  # only the first report counts
      self._client.key_value_set(_FAILURE, f"{self._name} failed: {text}")
      # Lets the others read the report before they notice that this process is gone.
      time.sleep((4 if self._first else 2) * _LOOK_SECONDS)
    _end_without_the_others()

  def close(self) -> None:
    """Stops checking."""
    self._done.set()


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


_barriers = itertools.count()


def barrier() -> None:
  """Waits until all processes call it, however long the devices or one process take.

  All processes must call it equally often. Does nothing in a single-process run.
  """
  from jax._src import distributed

  client = distributed.global_state.client
  if client is not None:
    client.wait_at_barrier(f"vmsst/barrier/{next(_barriers)}", _BARRIER_SECONDS * 1000)
