"""The engine `Ray`, with a fake of Ray."""

import concurrent.futures
import contextlib
import pathlib
import signal
import socket
import sys
import threading
import types

import pytest
import toy_jobs

from vmsst import errors
from vmsst.jobs import job, ray_cluster


class RayError(Exception):
  pass


class TaskError(RayError):
  def __init__(self, cause):
    self.cause = cause


class FakeRay:
  """Does tasks in this process; the first `losses` of each are lost."""

  exceptions = types.SimpleNamespace(RayError=RayError, RayTaskError=TaskError)

  def __init__(self, losses=0, resources=None):
    self.losses, self.resources = losses, resources or {"CPU": 2.0}
    self.started, self.options = [], None

  def is_initialized(self):
    return True

  def cluster_resources(self):
    return self.resources

  def remote(self, **options):
    self.options = options
    return lambda function: types.SimpleNamespace(
      remote=lambda *arguments: types.SimpleNamespace(
        future=lambda: self._future(function, arguments)
      )
    )

  def _future(self, function, arguments):
    self.started.append(arguments)
    future = concurrent.futures.Future()
    try:
      if self.started.count(arguments) <= self.losses:
        raise RayError("The node died.\nIts log: ...")
      try:
        future.set_result(function(*arguments))
      except Exception as error:
        raise TaskError(error) from None
    except RayError as error:
      future.set_exception(error)
    return future


def run(monkeypatch, ray, folder, count=3, function=toy_jobs.square, **options):
  """Runs a job on a cluster; returns the content of its parts."""
  monkeypatch.setitem(sys.modules, "ray", ray)
  with job.Job(folder, inputs={}) as work:
    toy_jobs.run(work, count, function, ray_cluster.Ray(**options))
    return [pathlib.Path(folder, f"{n}.txt").read_text() for n in range(count)]


def test_ray_must_be_installed(tmp_path, monkeypatch):
  with pytest.raises(errors.InputError, match=r"pip install 'vmsst\[ray\]'"):
    run(monkeypatch, None, tmp_path / "out")


def test_lost_units_are_done_again_but_not_forever(tmp_path, monkeypatch):
  ray = FakeRay(losses=ray_cluster.ATTEMPTS - 1)
  assert run(monkeypatch, ray, tmp_path / "out") == ["0", "1", "4"]
  assert len(ray.started) == 3 * ray_cluster.ATTEMPTS
  assert ray.options == {"max_retries": 0, "max_calls": 0, "num_cpus": 1, "num_gpus": 0}
  lost = r"squares of 0\.txt: its worker was lost 4 times, .*: The node died\. .*to resume$"
  with pytest.raises(errors.InputError, match=lost):
    run(monkeypatch, FakeRay(losses=ray_cluster.ATTEMPTS), tmp_path / "other", 1)


def test_a_failed_unit_is_not_done_again(tmp_path, monkeypatch):
  ray = FakeRay()
  with pytest.raises(errors.InputError, match=r"^squares of [01]\.txt: .*No space left"):
    run(monkeypatch, ray, tmp_path / "out", function=toy_jobs.fail)
  assert len(ray.started) <= 2  # As many as have room.


def test_a_cluster_without_gpus_is_an_error(tmp_path, monkeypatch):
  with pytest.raises(errors.InputError, match=r"--gpus-per-worker is 2, but .* has 1 GPUs"):
    run(
      monkeypatch, FakeRay(resources={"CPU": 9.0, "GPU": 1.0}), tmp_path / "out", gpus_per_worker=2
    )
  ray = FakeRay(resources={"CPU": 9.0, "GPU": 4.0})
  run(monkeypatch, ray, tmp_path / "out", gpus_per_worker=2)
  assert ray.options["num_gpus"] == 2


def test_another_program_at_the_address_of_a_cluster_is_an_error(tmp_path, monkeypatch):
  ray, addresses = FakeRay(), []
  ray.is_initialized, ray.init = lambda: False, lambda address, **_: addresses.append(address)
  settings = b"\0\0\6\4\0\0\0\0\0\0\4\0\0\1\0"  # a frame in HTTP/2
  with socket.create_server(("127.0.0.1", 0)) as server:
    address = f"127.0.0.1:{server.getsockname()[1]}"

    def serve():
      for answer in (b"HTTP/1.1 400 Bad Request\r\n\r\n", settings):
        client, _ = server.accept()
        with client:
          assert client.recv(4) == b"PRI "
          client.sendall(answer)
          client.makefile("rb").read()  # until it is closed

    thread = threading.Thread(target=serve)
    thread.start()
    with pytest.raises(errors.InputError, match=f"no Ray cluster at {address}: another program"):
      run(monkeypatch, ray, tmp_path / "out", address=address)
    assert not addresses
    run(monkeypatch, ray, tmp_path / "out", address=address)
    thread.join()
  with pytest.raises(errors.InputError, match=f"no Ray cluster at {address}: .*; start it"):
    run(monkeypatch, ray, tmp_path / "other", address=address)  # nobody listens
  assert addresses == [address]


@pytest.mark.parametrize("during", [True, False])
def test_ray_does_not_replace_signal_handlers(tmp_path, monkeypatch, during):
  ray, numbers = FakeRay(), []

  def stop(number, frame):
    numbers.append(number)
    raise KeyboardInterrupt

  def init(address, **_):
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
    if during:
      signal.raise_signal(signal.SIGTERM)

  ray.is_initialized, ray.init = lambda: False, init
  former = signal.signal(signal.SIGTERM, stop)
  try:
    with pytest.raises(KeyboardInterrupt) if during else contextlib.nullcontext():
      run(monkeypatch, ray, tmp_path / "out")
    assert signal.getsignal(signal.SIGTERM) == stop
  finally:
    signal.signal(signal.SIGTERM, former)
  assert numbers == [signal.SIGTERM] * during
