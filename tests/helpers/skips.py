"""Pytest option `--only-allowed-skips`: tests that skip for other reasons than ALLOWED fail."""

import pytest

# What CI does not have. Parts of the reasons that the tests give.
ALLOWED = (
  "upstream T5X is not installed",
  "needs root",
  "needs an accelerator",
  "needs a server of an object store",
  "no real data at none:",  # only with VMSST_TEST_DATA=none
)


def pytest_addoption(parser):
  parser.addoption(
    "--only-allowed-skips", action="store_true", help="fail tests that skip for other reasons"
  )


def pytest_configure(config):
  if config.getoption("--only-allowed-skips"):
    config.pluginmanager.register(_Strict())


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
