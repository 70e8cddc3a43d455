"""The time limit of the slow tests in CI."""

import commands
import pytest

pytest_plugins = ["pytester"]

MODULE = """
import time
import pytest

@pytest.mark.parametrize("number", range(4))
def test_one(number):
  time.sleep(0.5)
"""


@pytest.mark.parametrize(
  "xdist", [pytest.param(["-n", "1"], marks=pytest.mark.slow), ["-p", "no:xdist"]]
)
def test_no_test_starts_after_the_limit(pytester, xdist, monkeypatch):
  monkeypatch.setenv("PYTHONPATH", commands.HELPERS)
  pytester.makepyfile(MODULE)
  plugins = ["-p", "budget", "-p", "no:cacheprovider", *xdist]
  found = pytester.runpytest_subprocess(*plugins, "--minutes", "0.006")
  found.stdout.fnmatch_lines(["3 tests were not started: the time was over"])
  found.assert_outcomes(passed=1)
  assert found.ret == 0
