import functools
import threading

import pytest
import toy_units

from vmsst import errors
from vmsst.units import base, engines, local


class Elsewhere(engines.Engine):
  """An engine whose workers see other files, or whose files are seen late."""

  in_process = this_machine = False

  def __init__(self, seen_after=None):
    self.seen_after = seen_after

  def work(self, title, units):
    if self.seen_after is not None:
      make = functools.partial(list, base.do(title, units))
      threading.Timer(self.seen_after, make).start()
    return iter(units)


def test_only_missing_results_are_made(tmp_path):
  units = toy_units.squares(tmp_path, 4)
  engines.run("squares", units[:2], local.Local())
  stamps = [base.result(unit) for unit in units[:2]]
  made = []

  class Noting(local.Local):
    def work(self, title, units):
      made.extend(units)
      return super().work(title, units)

  engines.run("squares", units, Noting())
  assert made == units[2:]
  assert [base.result(unit) for unit in units[:2]] == stamps
  engines.run("squares", units, Elsewhere())  # Nothing is to be done.


def test_a_result_that_is_not_here_is_an_error_that_names_the_unit(tmp_path, monkeypatch):
  monkeypatch.setattr(engines, "_VISIBLE_SECONDS", 0.2)
  with pytest.raises(
    errors.InputError, match=r"squares of .*0\.txt: its result is missing .*share"
  ):
    engines.run("squares", toy_units.squares(tmp_path, 2), Elsewhere())


def test_results_that_a_network_file_system_shows_late_are_awaited(tmp_path):
  units = toy_units.squares(tmp_path, 2)
  engines.run("squares", units, Elsewhere(seen_after=0.3))
  assert len(toy_units.contents(tmp_path)) == 2


def test_staged_units_come_in_portions_that_keep_all_workers_busy(tmp_path):
  staged = toy_units.squares(tmp_path, 200, toy_units.Staged)
  for units, workers, size in [(staged, 4, 8), (staged, 20, 2), (staged[:9], 4, 1)]:
    portions = engines.tasks(units, workers)
    assert [unit for portion in portions for unit in portion] == units
    assert {len(portion) for portion in portions[:-1]} == {size}
  assert set(map(len, engines.tasks(toy_units.squares(tmp_path, 200), 4))) == {1}
