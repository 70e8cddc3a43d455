import concurrent.futures
import sys
import types

import pytest
import toy_units

from vmsst import errors
from vmsst.units import engines, ray_cluster


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


def run(monkeypatch, ray, units, **options):
  monkeypatch.setitem(sys.modules, "ray", ray)
  engines.run("squares", units, ray_cluster.Ray(**options))


def test_ray_must_be_installed(tmp_path, monkeypatch):
  with pytest.raises(errors.InputError, match=r"pip install 'vmsst\[ray\]'"):
    run(monkeypatch, None, toy_units.squares(tmp_path, 1))


def test_lost_units_are_done_again_but_not_forever(tmp_path, monkeypatch):
  units = toy_units.squares(tmp_path, 3)
  ray = FakeRay(losses=ray_cluster.ATTEMPTS - 1)
  run(monkeypatch, ray, units)
  assert len(ray.started) == 3 * ray_cluster.ATTEMPTS
  assert ray.options == {"max_retries": 0, "max_calls": 0, "num_cpus": 1, "num_gpus": 0}
  assert toy_units.contents(tmp_path) == {"0.txt": "0", "1.txt": "1", "2.txt": "4"}
  (unit,) = toy_units.squares(tmp_path / "other", 1)
  lost = r"squares of .*0\.txt: its worker was lost 4 times, .*: The node died\. .*to resume$"
  with pytest.raises(errors.InputError, match=lost):
    run(monkeypatch, FakeRay(losses=ray_cluster.ATTEMPTS), [unit])


def test_a_failed_unit_is_not_done_again(tmp_path, monkeypatch):
  ray = FakeRay()
  with pytest.raises(errors.InputError, match=r"^squares of .*[01]\.txt: .*No space left"):
    run(monkeypatch, ray, toy_units.squares(tmp_path, 3, toy_units.Failing))
  assert len(ray.started) <= 2  # As many as have room.


def test_a_cluster_without_gpus_is_an_error(tmp_path, monkeypatch):
  units = toy_units.squares(tmp_path, 3)
  with pytest.raises(errors.InputError, match=r"--gpus-per-worker is 2, but .* has 1 GPUs"):
    run(monkeypatch, FakeRay(resources={"CPU": 9.0, "GPU": 1.0}), units, gpus_per_worker=2)
  ray = FakeRay(resources={"CPU": 9.0, "GPU": 4.0})
  run(monkeypatch, ray, units, gpus_per_worker=2)
  assert ray.options["num_gpus"] == 2


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "no such host:1"])
def test_a_cluster_that_does_not_answer_is_an_error(tmp_path, monkeypatch, address):
  ray = FakeRay()
  ray.is_initialized = lambda: False
  with pytest.raises(errors.InputError, match=f"no Ray cluster at {address}: .*; start it"):
    run(monkeypatch, ray, toy_units.squares(tmp_path, 1), address=address)
