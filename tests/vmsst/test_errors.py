import re

import numpy as np
import pytest

from vmsst import errors


@pytest.mark.parametrize(
  ("check", "good", "bad"),
  [
    (errors.check_integer, [1, 7], [0, -1, 1.0, "9", True, None]),
    (lambda name, x: errors.check_integer(name, x, minimum=0), [0], [-1]),
    (errors.as_integer, [1, np.int64(7)], [0, np.int64(-1), 2.5, float("nan"), "9", True, None]),
    (lambda name, x: errors.as_integer(name, x, minimum=0, maximum=3), [0, 3], [-1, 4, 10**30]),
    (lambda name, x: errors.check_choice(name, x, ("a", "b")), ["a"], ["c", None]),
    (errors.check_positive, [0.1, 3], [0, -1.0, float("inf"), float("nan")]),
    (errors.check_not_negative, [0, 0.1], [-1, float("nan")]),
    (errors.check_rate, [0, 0.99], [-0.1, 1, float("nan")]),
  ],
)
def test_bad_values_are_reported_with_the_name_of_the_option(check, good, bad):
  for value in good:
    check("Config.size", value)
  for value in bad:
    with pytest.raises(errors.InputError, match=re.escape(f"Config.size is {value!r}; ")):
      check("Config.size", value)
