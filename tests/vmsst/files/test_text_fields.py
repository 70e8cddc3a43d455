import pytest

from vmsst.files import text_fields


@pytest.mark.parametrize(
  ("text", "blank"),
  [
    ("", True),
    (" \t\n\u00a0\u2028\u3000", True),
    ("\u200b\u2060\ufeff\u200d\u00ad\u200f", True),
    ("\x00\x1b\x7f\x85", True),
    ("\ufe0f\u034f\u3164\u2800\U000e0041", True),
    (".", False),
    ("\u200ba\u200b", False),
    ("\u0301", False),
    ("\u263a\ufe0f", False),
    ("\ufffd", False),
  ],
)
def test_a_text_without_a_visible_character_is_blank(text, blank):
  assert text_fields.is_blank(text) == blank
