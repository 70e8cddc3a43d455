"""Several processes of one run: which of them this is, and that they end together.

Nothing here imports JAX before a run of several processes begins.
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

from vmsst.errors import InputError

# A process that gives no sign of life for so long is dead, and JAX ends all others.
HEARTBEAT_SECONDS = 30
# The longest that one process works while the others wait for it, in computing metrics, say.
_MEET_SECONDS = 24 * 3600
_LOOK_SECONDS = 1.0
_FAILURE = "vmsst/failure"
_SLURM = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
# What collectives say where a process at the other end is gone (gloo, NCCL, the coordinator).
_CONNECTION_LOST = re.compile(
  r"gloo|nccl|socket closed|connection (reset|closed|refused)|heartbeat|coordination service",
  re.IGNORECASE,
)


class LostProcess(InputError):
  """Another process of the run is gone."""


@dataclasses.dataclass(frozen=True)
class Place:
  """Which process of a run this is; JAX finds out what is None.

  Attributes:
    coordinator_address: host:port of process 0.
    count: number of processes.
    index: number of this process, from 0.
    found_by: where the run was found to have several processes, for messages.
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
  several: bool = False,
  environment: Mapping[str, str] = os.environ,
) -> Place | None:
  """The place of this process in its run, or None where it is alone.

  What is not given is read from JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID (or
  JOB_COMPLETION_INDEX, which an indexed Kubernetes job sets). A SLURM step of several tasks and a
  TPU pod are found by JAX itself. `count=1` is a process alone wherever it runs.

  Args:
    coordinator_address: host:port of process 0.
    count: number of processes.
    index: number of this process.
    several: whether there are several in any case, which JAX has to find.
    environment: the variables; on a TPU, as importing JAX leaves them.

  Raises:
    InputError: something is missing or cannot be.
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
  elif several:
    found_by = "the cluster's environment"
  elif given:
    raise InputError(
      "--process_count and --process_index need --coordinator_address=HOST:PORT, an address of "
      "process 0 that all processes reach (or JAX_COORDINATOR_ADDRESS)"
    )
  else:
    return None
  if address and not re.fullmatch(r".+:\d{1,5}", address):
    raise InputError(f"the coordinator address is {address!r}; it must be HOST:PORT")
  if count is not None and count < 1:
    raise InputError(f"the number of processes is {count}; it must be at least 1")
  if index is not None and not 0 <= index < (count or sys.maxsize):
    raise InputError(
      f"the number of this process is {index}; with {count} processes it must be from 0 to "
      f"{(count or 1) - 1}"
    )
  if count == 1:
    return None
  return Place(address, count, index, found_by)


def _slurm(environment: Mapping[str, str]) -> str | None:
  """What SLURM says of a step of several tasks; None outside of one."""
  if any(name not in environment for name in _SLURM) or environment["SLURM_NTASKS"] == "1":
    return None
  return f"SLURM_NTASKS={environment['SLURM_NTASKS']}"


def _on_tpu_pod(environment: Mapping[str, str]) -> bool:
  """Whether there are TPUs, which may be part of a pod: importing JAX sets these variables."""
  return "TPU_ML_PLATFORM" in environment and "TPU_SKIP_MDS_QUERY" not in environment


def _number(given: int | None, environment: Mapping[str, str], *names: str) -> int | None:
  if given is not None:
    return given
  for name in names:
    if text := environment.get(name):
      if not text.isdecimal():
        raise InputError(f"{name} is {text!r}; it must be a whole number")
      return int(text)
  return None


def _check_complete(count: int | None, index: int | None) -> None:
  if count is None:
    raise InputError("give --process_count (or JAX_NUM_PROCESSES) with the coordinator's address")
  if index is None and count != 1:
    raise InputError(
      "give --process_index (or JAX_PROCESS_ID, or JOB_COMPLETION_INDEX) with the coordinator's "
      "address"
    )


@contextlib.contextmanager
def joined(place: Place | None, initialization_timeout: int | None = None) -> Iterator[None]:
  """Joins the processes of the run; inside, one that fails ends all of them, and says why.

  A process that fails tells the others, and then ends without waiting for them. One that learns of
  it writes the reason to stderr and exits with 1, whatever it is doing. One that dies without a
  word is missed by JAX, which aborts the others after `HEARTBEAT_SECONDS`; most collectives notice
  at once.

  Args:
    place: see `find`; None does nothing.
    initialization_timeout: seconds to wait for the other processes; None is JAX's choice.

  Raises:
    InputError: the processes do not come together.
    LostProcess: a collective failed because another process is gone.
  """
  if place is None or not _connect(place, initialization_timeout):
    yield
    return
  from jax._src import distributed  # what Orbax and multihost_utils use: there is no public name

  state = distributed.global_state
  watch = _Watch(state.client, state.process_id, state.num_processes)
  try:
    yield
    meet()  # JAX's own way out gives up after five minutes
  except BaseException as error:
    if isinstance(error, InputError) or not _CONNECTION_LOST.search(str(error)):
      watch.fail(error)
      raise
    lost = LostProcess(
      watch.told()
      or "another process of this run is gone, it was killed or its machine or network failed: the "
      "same command goes on from the last checkpoint. This was noticed: "
      f"{str(error).splitlines()[0][:300]}"
    )
    watch.fail(lost)
    raise lost from None
  watch.close()


def _connect(place: Place, initialization_timeout: int | None) -> bool:
  """Starts jax.distributed; False where it finds that there is one process."""
  import jax

  given: dict[str, Any] = {
    "coordinator_address": place.coordinator_address,
    "num_processes": place.count,
    "process_id": place.index,
    "initialization_timeout": initialization_timeout,
  }
  whole = None not in (place.coordinator_address, place.count, place.index)
  if whole and _slurm(os.environ) is None:
    given["cluster_detection_method"] = "deactivate"  # all is known, and JAX would warn
  # Where the others do not come, JAX aborts the process; so this is said before.
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
      return False  # a TPU of its own, not of a pod
    raise InputError(f"several processes, by {place.found_by}: {error}") from error
  except RuntimeError as error:
    raise InputError(
      f"several processes, by {place.found_by}: they did not come together "
      f"({str(error).splitlines()[0][:300]}); is process 0 running, and its address "
      f"{place.coordinator_address or ''} free there and reachable from here?"
    ) from error
  finally:
    waiting.cancel()
  from jax._src import distributed

  return distributed.global_state.num_processes > 1


def _say_waiting(place: Place) -> None:
  print(
    f"t5x: several processes, by {place.found_by}: waiting for "
    f"{'the others' if place.index == 0 else 'process 0'}"
    + (f" at {place.coordinator_address}" if place.coordinator_address else ""),
    file=sys.stderr,
    flush=True,
  )


class _Watch:
  """Looks every second whether another process has failed, and tells the others of this one.

  Args:
    client: of the coordination service.
    index: number of this process.
    count: number of processes.
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
        reason = "process 0, which all others meet at, is gone"
      if reason is not None and not self._done.is_set():
        print(f"t5x: error: {self._name} stops: {reason}", file=sys.stderr, flush=True)
        if self._first:  # with it ends where the others hear of it
          time.sleep(4 * _LOOK_SECONDS)
        os._exit(1)

  def reason(self) -> str | None:
    """What another process said when it failed; raises where process 0 does not answer."""
    try:
      return self._client.key_value_try_get(_FAILURE)
    except Exception as error:
      if "NOT_FOUND" in str(error):
        return None
      raise

  def told(self) -> str | None:
    """As `reason`, but None where process 0 does not answer."""
    with contextlib.suppress(Exception):
      return self.reason()
    return None

  def fail(self, error: BaseException) -> None:
    """Tells the others, and makes sure that this process soon ends without them."""
    self.close()
    text = " ".join(str(error).split())[:1000] or "no message"
    if not isinstance(error, InputError):
      text = f"{type(error).__name__}: {text}"
    with contextlib.suppress(Exception):  # the first who tells is heard
      self._client.key_value_set(_FAILURE, f"{self._name} failed: {text}")
      # The others hear of it before they miss this process.
      time.sleep((4 if self._first else 2) * _LOOK_SECONDS)
    _end_without_the_others()

  def close(self) -> None:
    """Stops looking."""
    self._done.set()


def _end_without_the_others() -> None:
  """Has this process end with 1 as soon as it has written why; its way out meets the others."""

  def end() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)

  atexit.register(end)  # before JAX's, which was registered earlier
  timer = threading.Timer(10.0, end)  # threads that wait for the others hold up the exit
  timer.daemon = True
  timer.start()


_meetings = itertools.count()


def meet() -> None:
  """Waits until all processes are here, however long the devices or one process may take.

  All call it equally often. Does nothing for a process alone.
  """
  from jax._src import distributed

  client = distributed.global_state.client
  if client is not None:
    client.wait_at_barrier(f"vmsst/meeting/{next(_meetings)}", _MEET_SECONDS * 1000)
