"""Pytest option `--minutes N`: no test starts later than N minutes after the start of the run."""

import time

import pytest


def pytest_addoption(parser):
  parser.addoption("--minutes", type=float, help="start no test after this many minutes")


def pytest_configure(config):
  if (minutes := config.getoption("--minutes")) is not None:
    config.pluginmanager.register(_Budget(60 * minutes))


class _Budget:
  """Passes over the tests that come too late, and says how many they were."""

  def __init__(self, seconds):
    self._end = time.monotonic() + seconds
    self._finished = set()

  @pytest.hookimpl(tryfirst=True)
  def pytest_runtest_protocol(self):
    return True if time.monotonic() > self._end else None

  def pytest_runtest_logreport(self, report):
    self._finished.add(report.nodeid)

  def pytest_terminal_summary(self, terminalreporter):
    late = terminalreporter._session.testscollected - len(self._finished)
    terminalreporter.write_line(f"{late} tests were not started: the time was over")
