import os

import pytest
import toy_units

from vmsst import errors
from vmsst.units import base, engines, local


def test_several_processes_make_the_same_files_as_this_one(tmp_path, monkeypatch):
  monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6")
  whole = toy_units.squares(tmp_path / "one", 5)
  engines.run("squares", whole, local.Local())
  assert {base.result(unit)["process"] for unit in whole} == {os.getpid()}
  units = toy_units.squares(tmp_path / "two", 5)
  engines.run("squares", units, local.Local(2, gpus_per_worker=1))
  assert toy_units.contents(tmp_path / "two") == toy_units.contents(tmp_path / "one")
  made = [base.result(unit) for unit in units]
  assert os.getpid() not in {each["process"] for each in made}
  gpu_of = {each["process"]: each["gpus"] for each in made}
  assert len(set(gpu_of.values())) == len(gpu_of)
  assert set(gpu_of.values()) <= {"5", "6"}


def test_gpus_that_do_not_exist_are_an_error(tmp_path, monkeypatch):
  monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6")
  with pytest.raises(errors.InputError, match=r"3 workers .* CUDA_VISIBLE_DEVICES=5,6"):
    engines.run("squares", toy_units.squares(tmp_path, 5), local.Local(3, gpus_per_worker=1))


def test_a_killed_or_failing_worker_is_one_error_that_names_the_unit(tmp_path):
  units = toy_units.squares(tmp_path, 3)
  for kind, problem in (
    (toy_units.Fatal, "a worker process was killed at .*2.txt"),
    (toy_units.Failing, "squares of .*2.txt: .*No space left"),
  ):
    broken = [*units[:2], kind(2, units[2].path)]
    with pytest.raises(errors.InputError, match=f"{problem}.*to resume"):
      engines.run("squares", broken[2:], local.Local(2))
  engines.run("squares", units, local.Local(2))
  assert len(toy_units.contents(tmp_path)) == 3
