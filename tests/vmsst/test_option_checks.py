import pytest

from vmsst import errors, option_checks


@pytest.mark.parametrize(
  ("check", "good", "bad"),
  [
    (option_checks.integer, [1, 7], [0, -1, 1.0, "9", True, None]),
    (lambda name, x: option_checks.integer(name, x, minimum=0), [0], [-1]),
    (lambda name, x: option_checks.choice(name, x, ("a", "b")), ["a"], ["c", None]),
    (option_checks.positive, [0.1, 3], [0, -1.0, float("inf"), float("nan")]),
    (option_checks.not_negative, [0, 0.1], [-1, float("nan")]),
    (option_checks.rate, [0, 0.99], [-0.1, 1, float("nan")]),
  ],
)
def test_bad_values_are_reported_with_the_name_of_the_option(check, good, bad):
  for value in good:
    check("Config.size", value)
  for value in bad:
    with pytest.raises(errors.InputError, match=rf"Config.size is {value!r}; "):
      check("Config.size", value)
