import json

import pytest

from vmsst.tasks import lanes

WHOLE = lanes.Lanes(order="a", seed=3, batch_size=6, first=0, passed=(5, 6, 7, 8, 9, 10))


def test_parts_make_the_whole_in_any_order_and_number():
  for size in (1, 2, 3, 6):
    parts = [WHOLE.take(first, size).to_json() for first in range(0, 6, size)]
    assert lanes.Lanes.from_json(lanes.joined(reversed(parts * 2))) == WHOLE
  written = json.loads(json.dumps(WHOLE.to_json()))
  assert lanes.Lanes.from_json(written) == WHOLE
  assert WHOLE.take(2, 3).passed == (7, 8, 9)


def test_parts_that_are_not_one_whole_are_refused():
  first, second = (WHOLE.take(at, 3).to_json() for at in (0, 3))
  for parts, message in (
    ([], "no states"),
    ([first], "lanes 0 to 5 are missing"),
    ([second], "lanes 0 to 5 are missing"),
    ([first, {**second, "seed": 4}], "several orders"),
    ([first, {**second, "first": 2}], "lane 3 is missing, or is there twice"),
    ([first, {**second, "passed": "abc"}], "numbers are wrong"),
    ([first, {**second, "passed": [1, 2, -1]}], "numbers are wrong"),
    ([{"lanes": 3}], "not a state of lanes"),
  ):
    with pytest.raises(ValueError, match=message):
      lanes.joined(parts)
