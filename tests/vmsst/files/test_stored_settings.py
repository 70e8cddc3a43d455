"""Tests the comparison of settings that identify stored results."""

import pytest

from vmsst.files import stored_settings

A = {"name": "/a", "digest": "1" * 64}


@pytest.mark.parametrize(
  ("stored", "given"),
  [
    ({}, {}),
    ({"x": 1, "y": [1, {"z": None}]}, {"y": [1, {"z": None}], "x": 1}),
    ({"encoder": A}, {"encoder": {**A, "name": "/moved"}}),
    ({"sides": [A, A]}, {"sides": [A, {**A, "name": "/moved"}]}),
    ({"encoder": {"name": "/a"}}, {"encoder": {"name": "/a"}}),
  ],
)
def test_names_do_not_matter_if_there_are_digests(stored, given):
  assert not stored_settings.differences(stored, given)


@pytest.mark.parametrize(
  ("stored", "given", "message"),
  [
    ({"x": 1}, {"x": 2}, "x is 1, not 2"),
    ({"x": "a"}, {}, 'x is "a", not unset'),
    ({}, {"x": [1]}, "x is unset, not [1]"),
    (
      {"encoder": A},
      {"encoder": {**A, "digest": "2" * 64}},
      "encoder is /a (111111111111), not /a (2",
    ),
    ({"encoder": A}, {"encoder": {"name": "/b"}}, "encoder is /a (111111111111), not /b"),
    ({"encoder": {"name": "/a"}}, {"encoder": {"name": "/b"}}, "encoder is /a, not /b"),
    ({"sides": [A]}, {"sides": [A, A]}, "sides is "),
    ({"x": 1, "y": 2}, {"x": 3, "y": 4}, "x is 1, not 3; y is 2, not 4"),
  ],
)
def test_other_content_is_named(stored, given, message):
  assert stored_settings.differences(stored, given).startswith(message)
