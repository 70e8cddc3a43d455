import re

import numpy as np
import pytest

from vmsst import errors


@pytest.mark.parametrize(
  ("check", "good", "bad"),
  [
    (errors.check_number, [-1.5], [float("nan"), float("inf"), -float("inf"), "1", True, None]),
    (lambda name, x: errors.as_integer(name, x, minimum=0), [0, np.int64(3)], [-1, 1.0, np.True_]),
    (errors.as_integer, [1, np.int64(7)], [0, np.int64(-1), 2.5, float("nan"), "9", True, None]),
    (lambda name, x: errors.as_integer(name, x, minimum=0, maximum=3), [0, 3], [-1, 4, 10**30]),
    (lambda name, x: errors.check_choice(name, x, ("a", "b")), ["a"], ["c", None]),
    (lambda name, x: errors.check_number(name, x, "(0, inf)"), [0.1, 3], [0, float("inf"), True]),
    (lambda name, x: errors.check_number(name, x, "[0, 1)"), [0, 0.99], [-0.1, 1, "0.1", False]),
  ],
)
def test_bad_values_are_reported_with_the_name_of_the_option(check, good, bad):
  for value in good:
    check("Config.size", value)
  for value in bad:
    with pytest.raises(errors.InputError, match=re.escape(f"Config.size is {value!r}; ")):
      check("Config.size", value)


@pytest.mark.parametrize(
  ("text", "shown"),
  [
    ("https://me:pa@ss@host/x: no", "https://***@host/x: no"),
    ("'http://token@host:80/x'", "'http://***@host:80/x'"),
    ("s3://key:sec/r+et@bucket/x: no", "s3://***@bucket/x: no"),
    ("https://host/x;token=4f;b=2 and /x?sig=4f", "https://host/x;token=***;b=2 and /x?sig=***"),
    (f"the token hf_{'aB3' * 11} is unknown", "the token *** is unknown"),
    ("gs://box/a@b:c, http://host:9000/x@v2", "gs://box/a@b:c, http://host:9000/x@v2"),
    ("HF_HUB_OFFLINE, https://host/x?rows=3", "HF_HUB_OFFLINE, https://host/x?rows=3"),
  ],
)
def test_messages_do_not_repeat_credentials(text, shown):
  assert str(errors.InputError(text)) == shown
