import pytest

from vmsst import errors
from vmsst.io import text_fields


def test_a_text_without_a_visible_character_is_blank():
  for text in (
    "", " \t\n\u00a0\u2028\u3000", "\u200b\u2060\ufeff\u200d\u00ad\u200f", "\x00\x1b\x7f\x85",
    "\ufe0f\u034f\u3164\u2800\U000e0041",
  ):  # fmt: skip
    assert text_fields.is_blank(text), ascii(text)
  for text in (".", "\u200ba\u200b", "\u0301", "\u263a\ufe0f", "\ufffd"):
    assert not text_fields.is_blank(text), ascii(text)


def test_columns_are_numbers_and_csv_is_refused():
  for name, field, message in (
    ("x.csv", "1", r"x.csv: .csv files are not read"),
    ("x.json", None, r"x.json: .json files are not read"),
    ("x.tsv.gz", "german", r"x.tsv.gz: 'german' is not the number of a column"),
  ):
    with pytest.raises(errors.InputError, match=message):
      next(text_fields.texts(["a"], name, field))
  assert list(text_fields.texts(['{"text": "a"}'], "x.json", "text")) == ["a"]
