import pytest

from vmsst.io import manifest

A = {"name": "/a", "digest": "1" * 64}


@pytest.mark.parametrize(
  ("stored", "current", "message"),
  [
    ({"sides": [A, A]}, {"sides": [A, {**A, "name": "/moved"}]}, ""),
    ({"x": "a"}, {}, 'x is "a", not unset'),
    ({}, {"x": [1]}, "x is unset, not [1]"),
    ({"encoder": A}, {"encoder": {**A, "digest": "22"}}, "encoder is /a (111111111111), not /a (2"),
    ({"encoder": {"name": "/a"}}, {"encoder": {"name": "/b"}}, "encoder is /a, not /b"),
    ({"x": 1, "y": 2}, {"x": 3, "y": 4}, "x is 1, not 3; y is 2, not 4"),
  ],
)
def test_settings_differ_by_content_not_by_name(stored, current, message):
  differences = manifest.differences(stored, current)
  assert differences.startswith(message)
  assert bool(differences) == bool(message)
