import dataclasses
import pathlib

import pytest
import toy_units

from vmsst import errors
from vmsst.units import base


def do(units):
  return list(base.do("squares", units))


def test_a_unit_writes_its_file_and_what_it_returns(tmp_path):
  (unit,) = toy_units.squares(tmp_path, 4)[3:]
  assert base.result(unit) is None
  assert do([unit]) == [unit]
  assert toy_units.contents(tmp_path) == {"3.txt": "9"}
  assert base.result(unit)["square"] == 9
  assert str(unit) == unit.path


def test_a_unit_is_done_again_only_if_its_key_file_or_result_differ(tmp_path):
  (unit,) = toy_units.squares(tmp_path, 3)[2:]
  do([unit])
  path, result = pathlib.Path(unit.path), pathlib.Path(base.result_path(unit.path))
  time = result.stat().st_mtime_ns
  do([unit])
  assert result.stat().st_mtime_ns == time
  other = dataclasses.replace(unit, number=5)
  assert other.key != unit.key
  assert base.result(other) is None
  for broken in (b"", b"[]", b"{}", b'{"key": "x"}', result.read_bytes()[:-1]):
    result.write_bytes(broken)
    assert base.result(unit) is None
    do([unit])
    assert base.result(unit)["square"] == 4
  path.write_text("44")
  assert base.result(unit) is None
  path.unlink()
  assert base.result(unit) is None
  do([unit])
  assert path.read_text() == "4"


def test_a_file_of_another_unit_does_not_keep_an_old_result(tmp_path):
  first, second = (toy_units.Square(n, str(tmp_path / "x")) for n in (2, 3))
  do([first])
  with pytest.raises(errors.InputError):
    do([toy_units.Failing(3, str(tmp_path / "x"))])
  assert base.result(first) is None
  assert base.result(second) is None


def test_stages_overlap_in_order_with_those_of_the_neighbors(tmp_path):
  log = tmp_path / "log"
  units = toy_units.squares(tmp_path, 6, toy_units.Staged, log=str(log))
  for n in range(6):
    neighbors = [f"write {n - 1}"] * (n > 0) + [f"read {n + 1}"] * (n < 5)
    units[n] = dataclasses.replace(units[n], neighbors=tuple(neighbors))
  assert do(units) == units
  assert toy_units.contents(tmp_path) == {f"{n}.txt": str(n**2) for n in range(6)}
  lines = log.read_text().splitlines()
  for stage in ("read", "compute", "write"):
    assert [line for line in lines if stage in line] == [f"{stage} {n}" for n in range(6)]
  # At most three are in memory: one is read only when the one before the last is being written.
  for n in range(6 - 3):
    assert lines.index(f"compute {n + 1}") > lines.index(f"compute {n}")
    assert lines.index(f"read {n + 3}") > lines.index(f"compute {n + 1}")


@pytest.mark.parametrize("stage", ["read", "compute", "write"])
def test_what_is_done_before_a_failure_is_kept_and_the_failed_unit_is_named(tmp_path, stage):
  units = toy_units.squares(tmp_path, 5, toy_units.Staged)
  broken = [dataclasses.replace(u, fails_in=stage) if u.number == 2 else u for u in units]
  with pytest.raises(errors.InputError, match=rf"squares of .*2\.txt: {stage} .*to resume"):
    do(broken)
  assert {"0.txt", "1.txt"} <= set(toy_units.contents(tmp_path)) <= {"0.txt", "1.txt", "3.txt"}
  assert all(base.result(unit) is not None for unit in units[:2])
  do(units)
  assert len(toy_units.contents(tmp_path)) == 5


def test_errors_of_the_program_keep_their_type(tmp_path):
  unit = toy_units.Square("no number", str(tmp_path / "x"))
  with pytest.raises(TypeError):
    do([unit])
