"""The engine `Ray`, with a fake of Ray."""

import concurrent.futures
import pathlib
import signal
import sys
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


def test_ray_does_not_replace_signal_handlers(tmp_path, monkeypatch):
  ray, former = FakeRay(), signal.getsignal(signal.SIGTERM)

  def init(address, **_):
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))

  ray.is_initialized, ray.init = lambda: False, init
  run(monkeypatch, ray, tmp_path / "out")
  assert signal.getsignal(signal.SIGTERM) == former
