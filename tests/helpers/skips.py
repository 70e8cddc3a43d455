"""Pytest options that keep CI honest about skipped tests.

A run with `--skipped-to FILE` writes the ids of the tests that it skipped to FILE. A second run, in
an environment with more packages, takes them back as `pytest @FILE --only-allowed-skips`: there a
test that skips for a reason other than those in ALLOWED fails.
"""

import pathlib

import pytest

# What CI does not have. Parts of the reasons that the tests give.
ALLOWED = (
  "upstream T5X is not installed",
  "needs root",
  "needs an accelerator",
  "needs a server of an object store",
)


def pytest_addoption(parser):
  group = parser.getgroup("skips")
  group.addoption("--skipped-to", metavar="FILE", help="write the ids of skipped tests to FILE")
  group.addoption(
    "--only-allowed-skips", action="store_true", help="fail tests that skip for other reasons"
  )


def pytest_configure(config):
  if path := config.getoption("--skipped-to"):
    config.pluginmanager.register(_Recorder(pathlib.Path(path)))
  if config.getoption("--only-allowed-skips"):
    config.pluginmanager.register(_Strict())


class _Recorder:
  """Collects skipped tests, and modules that skip as a whole, in the process that reports."""

  def __init__(self, path):
    self._path = path
    self._skipped = {}

  def pytest_runtest_logreport(self, report):
    if report.skipped and not hasattr(report, "wasxfail"):
      self._skipped[report.nodeid] = None

  def pytest_collectreport(self, report):
    if report.skipped:
      self._skipped[report.nodeid] = None

  def pytest_sessionfinish(self, session):
    if not hasattr(session.config, "workerinput"):  # with xdist, workers report to this process
      self._path.write_text("".join(f"{nodeid}\n" for nodeid in self._skipped), encoding="utf-8")


class _Strict:
  """Turns skips for other reasons than the allowed ones into failures."""

  @pytest.hookimpl(wrapper=True)
  def pytest_runtest_makereport(self):
    return _checked((yield))

  @pytest.hookimpl(wrapper=True)
  def pytest_make_collect_report(self):
    return _checked((yield))


def _checked(report):
  if report.skipped and not hasattr(report, "wasxfail"):
    *_, reason = report.longrepr
    if not any(part in reason for part in ALLOWED):
      report.outcome = "failed"
      report.longrepr = f"{report.nodeid}: {reason}: CI must not skip this test"
  return report
