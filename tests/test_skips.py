"""The skips that CI allows."""

import skips

pytest_plugins = ["pytester"]

MODULE = """
import pytest

@pytest.mark.parametrize("reason", REASONS)
def test_one(reason):
  pytest.skip(reason)

def test_two():
  pass
"""


def test_only_listed_reasons_may_skip(pytester):
  assert skips.ALLOWED == (
    "upstream T5X is not installed",
    "needs root",
    "needs an accelerator",
    "needs a server of an object store",
  )
  pytester.makepyfile(MODULE.replace("REASONS", repr([*skips.ALLOWED, "needs torch"])))
  pytester.makepyfile(test_module="import pytest\npytest.skip('no torch', allow_module_level=True)")
  plugins = ["-p", "skips", "-p", "no:cacheprovider", "-p", "no:xdist"]
  found = pytester.runpytest(*plugins, "--skipped-to", "skipped.txt")
  found.assert_outcomes(passed=1, skipped=6)
  listed = (pytester.path / "skipped.txt").read_text().splitlines()
  assert len(listed) == 6
  assert "test_module.py" in listed
  strict = pytester.runpytest(
    *plugins, "--only-allowed-skips", "--continue-on-collection-errors", "@skipped.txt"
  )
  strict.assert_outcomes(skipped=4, failed=1, errors=1)
  strict.stdout.fnmatch_lines(["*needs torch: CI must not skip this test*"])
