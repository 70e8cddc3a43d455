"""Several processes on one machine."""

import os
import pathlib

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
    (toy_jobs.kill_at_2, r"a worker process was killed at .*\d\.txt"),
    (toy_jobs.fail_at_2, r"squares of 2\.txt: .*No space left"),
    (toy_jobs.slow_at_2, "No space left"),  # Others may take hours.
  ],
)
def test_a_worker_that_fails_or_is_killed_is_one_error_and_finished_parts_stay(
  tmp_path, function, problem
):
  with pytest.raises(errors.InputError, match=f"{problem}.*to resume"):
    run(tmp_path / "out", engines.Local(2), function=function)
  assert "2.txt" not in squares(tmp_path / "out")
  run(tmp_path / "out", engines.Local(2))
  assert squares(tmp_path / "out") == {f"{n}.txt": str(n**2) for n in range(5)}
