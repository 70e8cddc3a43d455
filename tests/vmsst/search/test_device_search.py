import functools

import commands
import naive_search
import pytest

from vmsst.search import device_search

SEARCH = functools.partial(device_search.search_on_devices, sources=16, targets=24)


@pytest.mark.parametrize(("n", "m", "k", "width"), [(23, 57, 5, 4), (3, 50, 4, 16)])
def test_the_nearest_are_those_of_a_stable_sort(n, m, k, width):
  naive_search.check_searches(SEARCH, n, m, k, width)


def run_on_eight_devices(folder):
  """Asserts that devices agree with a stable sort; a device has fewer than 5 rows of a block."""
  import jax

  assert jax.device_count() == 8
  naive_search.check_searches(SEARCH, 60, 90, 5, 16)
  print("the same")


def test_devices_find_the_same_together(tmp_path):
  printed = commands.on_eight_devices(__file__, tmp_path)
  assert printed.splitlines()[-1] == "the same"
