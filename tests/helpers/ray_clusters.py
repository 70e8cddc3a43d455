"""Starts a Ray cluster of three nodes on this machine, and kills parts of it.

The cluster runs in a process of its own, `python ray_clusters.py`, which prints the addresses of
the cluster and a process id for each node. It adds a node for each line that it reads.
"""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid

import store_servers

_HELPERS = pathlib.Path(__file__).parent
_ROOT = _HELPERS.parents[1]
_NODES = 3
_MEMORY = 80 << 20  # Ray's minimum for the object store is 75 MB.


class Nodes:
  """A running cluster with process ids of its nodes; the first has the control store."""

  def __init__(self, keeper, environment):
    self.address, self.client_address = _answer(keeper), _answer(keeper)
    self.raylets = [_answer(keeper) for _ in range(_NODES)]
    self._keeper = keeper
    self._environment = environment
    self._drivers = []

  def driver(self, argv, **options):
    """Starts a process that uses the cluster, after replacing killed nodes."""
    while len(self.raylets) < _NODES:
      print(file=self._keeper.stdin, flush=True)
      self.raylets.append(_answer(self._keeper))
    self._drivers.append(subprocess.Popen(argv, env=self._environment, text=True, **options))
    return self._drivers[-1]

  def kill_drivers(self):
    """Kills the drivers that a failed test left."""
    for driver in self._drivers:
      driver.kill()
      driver.wait()

  def kill_worker(self):
    """Kills a process that is doing a task, of any of the nodes."""
    os.kill(_until(lambda: self._busy(self.raylets))[0], signal.SIGKILL)

  def kill_node(self):
    """Kills a node that is doing a task, but not the first: all its processes."""
    node = _until(lambda: [node for node in self.raylets[1:] if self._busy([node])])[0]
    self.raylets.remove(node)
    for process in (*_children(node), node)[::-1]:
      os.kill(process, signal.SIGKILL)

  def _busy(self, raylets):
    return [
      worker
      for raylet in raylets
      for worker in _children(raylet)
      if _command(worker).startswith("ray::do_task")
    ]


@contextlib.contextmanager
def cluster():
  """Yields a cluster of three nodes with one CPU each."""
  folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # Paths of sockets must be short.
  environment = _environment() | {"RAY_TMPDIR": folder}
  pathlib.Path(folder, "ray").mkdir()  # A cluster's address is written into it.
  log = pathlib.Path(folder, "log")
  with log.open("w") as errors:
    keeper = subprocess.Popen(
      [sys.executable, __file__, folder],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=errors,
      text=True,
      env=environment,
    )
  try:
    try:
      nodes = Nodes(keeper, environment)
    except json.JSONDecodeError as error:
      raise RuntimeError(log.read_text()[-3000:]) from error
    yield nodes
    nodes.kill_drivers()
  finally:
    keeper.stdin.close()
    keeper.wait(timeout=60)
    keeper.stdout.close()
    shutil.rmtree(folder, ignore_errors=True)


def _answer(keeper):
  return json.loads(keeper.stdout.readline())


def _environment():
  return {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(_ROOT), str(_HELPERS)]),
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": uuid.uuid4().hex,
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # Other processes fill the memory of test machines.
    "RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": "300",  # And take their processors.
  }


def _children(parent):
  found = []
  for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
    with contextlib.suppress(OSError):
      fields = path.read_text().rpartition(")")[2].split()
      if int(fields[1]) == parent:
        found.append(int(path.parent.name))
  return found


def _command(process):
  with contextlib.suppress(OSError):
    return pathlib.Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace")
  return ""


def _until(check, seconds=600):
  end = time.monotonic() + seconds
  while time.monotonic() < end:
    if found := check():
      return found
    time.sleep(0.01)
  raise TimeoutError(f"nothing happened in {seconds} s")


def wait_for_files(process, folder, pattern, count):
  """Waits until a process has written `count` files of a pattern into a folder."""

  def written():
    assert process.poll() is None, "the process ended before"
    return len(list(pathlib.Path(folder).rglob(pattern))) >= count

  _until(written)


def _main(folder):
  from ray.cluster_utils import Cluster

  options = {"num_cpus": 1, "num_gpus": 0, "object_store_memory": _MEMORY}
  with store_servers.reserved() as port:
    made = Cluster(
      initialize_head=True,
      head_node_args={
        **options,
        "include_dashboard": False,
        "temp_dir": folder,
        "ray_client_server_port": port,
      },
    )

  def tell(node):
    print(node.all_processes["raylet"][0].process.pid, flush=True)

  print(json.dumps(made.address), flush=True)
  print(json.dumps(f"ray://{made.address.rpartition(':')[0]}:{port}"), flush=True)
  tell(made.head_node)
  for _ in range(_NODES - 1):
    tell(made.add_node(**options))
  for _ in sys.stdin:
    tell(made.add_node(**options))
  made.shutdown()


if __name__ == "__main__":
  _main(*sys.argv[1:])
