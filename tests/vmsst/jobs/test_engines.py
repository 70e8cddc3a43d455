"""Several processes on one machine, and a fake Ray."""

import concurrent.futures
import os
import pathlib
import signal
import sys
import types

import pytest
import toy_jobs

from vmsst import errors
from vmsst.jobs import engines, job


def run(folder, engine, count=5, function=toy_jobs.square):
  with job.Job(folder, inputs={}) as work:
    facts = toy_jobs.run(work, count, function, engine)
    work.finish()
  return facts


def squares(folder):
  return {path.name: path.read_text() for path in pathlib.Path(folder).glob("*.txt")}


def test_several_processes_write_the_same_files_as_this_one(tmp_path, monkeypatch):
  monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6")
  facts = run(tmp_path / "one", engines.Local())
  assert {each["process"] for each in facts} == {os.getpid()}
  facts = run(tmp_path / "two", engines.Local(2, gpus_per_worker=1))
  assert squares(tmp_path / "two") == squares(tmp_path / "one")
  assert os.getpid() not in {each["process"] for each in facts}
  gpu_of = {each["process"]: each["gpus"] for each in facts}
  assert len(set(gpu_of.values())) == len(gpu_of)
  assert set(gpu_of.values()) <= {"5", "6"}


def test_gpus_that_do_not_exist_are_an_error(tmp_path, monkeypatch):
  monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6")
  with pytest.raises(errors.InputError, match=r"3 workers .* CUDA_VISIBLE_DEVICES=5,6"):
    run(tmp_path / "out", engines.Local(3, gpus_per_worker=1))


@pytest.mark.parametrize(
  ("function", "problem"),
  [
    (
      toy_jobs.kill_at_2,
      r"squares of \d\.txt, or a task that ran at the same time: a worker process was killed",
    ),
    (toy_jobs.fail_at_2, r"squares of 2\.txt: .*No space left"),
    (toy_jobs.slow_at_2, "No space left"),  # The job does not wait for the slow task.
  ],
)
def test_a_worker_that_fails_or_is_killed_is_one_error_and_finished_files_stay(
  tmp_path, function, problem
):
  with pytest.raises(errors.InputError, match=f"{problem}.*to resume"):
    run(tmp_path / "out", engines.Local(2), function=function)
  assert "2.txt" not in squares(tmp_path / "out")
  run(tmp_path / "out", engines.Local(2))
  assert squares(tmp_path / "out") == {f"{n}.txt": str(n**2) for n in range(5)}


class RayError(Exception):
  pass


class TaskError(RayError):
  def __init__(self, cause):
    self.cause = cause


class FakeRay:
  """Runs batches in this process. The first `losses` attempts of each batch fail."""

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


def run_on(ray, monkeypatch, folder, count=3, function=toy_jobs.square, **options):
  """Runs a job on a cluster; returns the content of its files."""
  monkeypatch.setitem(sys.modules, "ray", ray)
  run(folder, engines.Ray(**options), count, function)
  return list(squares(folder).values())


def test_ray_must_be_installed(tmp_path, monkeypatch):
  with pytest.raises(errors.InputError, match=r"pip install 'vmsst\[ray\]'"):
    run_on(None, monkeypatch, tmp_path / "out")


def test_lost_batches_run_again_but_not_forever(tmp_path, monkeypatch):
  ray = FakeRay(losses=engines.ATTEMPTS - 1)
  assert sorted(run_on(ray, monkeypatch, tmp_path / "out")) == ["0", "1", "4"]
  assert len(ray.started) == 3 * engines.ATTEMPTS
  assert ray.options == {"max_retries": 0, "max_calls": 0, "num_cpus": 1, "num_gpus": 0}
  lost = r"squares of 0\.txt: its worker was lost 4 times, .*: The node died\. .*to resume$"
  with pytest.raises(errors.InputError, match=lost):
    run_on(FakeRay(losses=engines.ATTEMPTS), monkeypatch, tmp_path / "other", 1)


def test_a_failed_batch_does_not_run_again(tmp_path, monkeypatch):
  ray = FakeRay()
  with pytest.raises(errors.InputError, match=r"^squares of [01]\.txt: .*No space left"):
    run_on(ray, monkeypatch, tmp_path / "out", function=toy_jobs.fail)
  assert len(ray.started) <= 2  # The cluster has two CPUs.


def test_a_cluster_without_gpus_is_an_error(tmp_path, monkeypatch):
  ray = FakeRay(resources={"CPU": 9.0, "GPU": 1.0})
  with pytest.raises(errors.InputError, match=r"--gpus-per-worker is 2, but .* has 1 GPUs"):
    run_on(ray, monkeypatch, tmp_path / "out", gpus_per_worker=2)
  ray = FakeRay(resources={"CPU": 9.0, "GPU": 4.0})
  run_on(ray, monkeypatch, tmp_path / "out", gpus_per_worker=2)
  assert ray.options["num_gpus"] == 2


def test_ray_does_not_replace_signal_handlers(tmp_path, monkeypatch):
  ray, former = FakeRay(), signal.getsignal(signal.SIGTERM)

  def init(address, **_):
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))

  ray.is_initialized, ray.init = lambda: False, init
  run_on(ray, monkeypatch, tmp_path / "out")
  assert signal.getsignal(signal.SIGTERM) == former
