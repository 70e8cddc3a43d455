import pytest

from vmsst import errors


@pytest.mark.parametrize(
  ("check", "good", "bad"),
  [
    (errors.check_integer, [1, 7], [0, -1, 1.0, "9", True, None]),
    (lambda name, x: errors.check_integer(name, x, minimum=0), [0], [-1]),
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
    with pytest.raises(errors.InputError, match=rf"Config.size is {value!r}; "):
      check("Config.size", value)
