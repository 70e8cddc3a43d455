"""Starts a Ray cluster of three nodes on this machine, and kills parts of it.

    with ray_clusters.cluster() as nodes:
      driver = nodes.driver([sys.executable, "-m", "vmsst.cli", ..., nodes.address])
      nodes.kill_worker()
      assert driver.wait() == 0

The cluster runs in a process of its own: `python ray_clusters.py`.
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

_HELPERS = pathlib.Path(__file__).parent
_ROOT = _HELPERS.parents[1]
_NODES = 3
_MEMORY = 80 << 20  # Ray's minimum for the object store is 75 MB.


class Nodes:
  """A running cluster.

  Attributes:
    address: HOST:PORT for drivers.
    raylets: Process ids of the nodes; the first has the cluster's control store.
  """

  def __init__(self, address, raylets, environment):
    self.address = address
    self.raylets = raylets
    self._environment = environment

  def driver(self, argv, **options):
    """Starts a process that uses the cluster."""
    return subprocess.Popen(argv, env=self._environment, text=True, **options)

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
  environment = _environment()
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
    line = keeper.stdout.readline()
    assert line, log.read_text()[-3000:]
    yield Nodes(**json.loads(line), environment=environment)
  finally:
    keeper.stdin.close()
    keeper.wait(timeout=60)
    keeper.stdout.close()
    shutil.rmtree(folder, ignore_errors=True)


def _environment():
  return {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(_ROOT), str(_HELPERS)]),
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": uuid.uuid4().hex,
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # Other processes fill the memory of test machines.
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


def wait_for_files(folder, pattern, count):
  """Waits until a folder has `count` files of a pattern."""
  _until(lambda: len(list(pathlib.Path(folder).rglob(pattern))) >= count)


def _main(folder):
  from ray.cluster_utils import Cluster

  options = {"num_cpus": 1, "num_gpus": 0, "object_store_memory": _MEMORY}
  made = Cluster(
    initialize_head=True,
    head_node_args={**options, "include_dashboard": False, "temp_dir": folder},
  )
  nodes = [made.head_node, *(made.add_node(**options) for _ in range(_NODES - 1))]
  made.wait_for_nodes()
  raylets = [node.all_processes["raylet"][0].process.pid for node in nodes]
  print(json.dumps({"address": made.address, "raylets": raylets}), flush=True)
  sys.stdin.read()
  made.shutdown()


if __name__ == "__main__":
  _main(*sys.argv[1:])
