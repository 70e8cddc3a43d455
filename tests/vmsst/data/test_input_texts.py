import io
import pathlib

import numpy as np
import pytest

from vmsst.data import input_texts


def test_texts_come_from_lists_iterators_and_files(tmp_path):
  path = tmp_path / "x.txt"
  path.write_text("a\n\nb\n", encoding="utf-8")
  for texts in (["a", "", "b"], iter(["a", "", "b"]), pathlib.Path(path), io.StringIO("a\n\nb\n")):
    assert input_texts.as_list(texts) == ["a", "", "b"]
  assert input_texts.as_list(["x\ud800"]) == ["x\ufffd"]


@pytest.mark.parametrize(
  ("texts", "message"),
  [
    ("one", "of type str"),
    (b"x", "of type bytes"),
    ({"a"}, "of type set"),
    ({"a": 1}, "of type dict"),
    (np.array([["a"]]), "of type ndarray"),
    (3, "of type int"),
    (["a", None], "sentence 1 is of type NoneType"),
  ],
)
def test_objects_without_an_order_of_texts_are_refused(texts, message):
  with pytest.raises(TypeError, match=message):
    input_texts.as_list(texts)


def test_languages_are_one_code_or_one_for_each_text():
  assert input_texts.languages("de", 2) == ["de", "de"]
  assert input_texts.languages(("de", "en"), 2) == ["de", "en"]
  assert input_texts.languages_by_side(["de", "en"]) == ("de", "en")
  for value, error in ((["de"], ValueError), ({"de", "en"}, TypeError), (["de", None], TypeError)):
    with pytest.raises(error):
      input_texts.languages(value, 2)
  with pytest.raises(ValueError, match="two values"):
    input_texts.languages_by_side("de")
