"""The skips that CI allows."""

import skips

pytest_plugins = ["pytester"]

MODULE = """
import pytest

@pytest.mark.parametrize("reason", REASONS)
def test_one(reason):
  pytest.skip(reason)
"""


def test_only_listed_reasons_may_skip(pytester):
  pytester.makepyfile(MODULE.replace("REASONS", repr([*skips.ALLOWED, "needs torch"])))
  pytester.makepyfile(test_module="import pytest\npytest.skip('no torch', allow_module_level=True)")
  plugins = ["-p", "skips", "-p", "no:cacheprovider", "-p", "no:xdist"]
  strict = pytester.runpytest(*plugins, "--only-allowed-skips", "--continue-on-collection-errors")
  strict.assert_outcomes(skipped=len(skips.ALLOWED), failed=1, errors=1)
  strict.stdout.fnmatch_lines(["*needs torch: CI must not skip this test*"])
