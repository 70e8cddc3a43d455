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


@pytest.mark.parametrize("texts", ["one", {"a"}, {"a": 1}, np.array([["a"]]), 3, ["a", None]])
def test_objects_without_an_order_of_texts_are_refused(texts):
  with pytest.raises(TypeError, match=r"^(sentence 1 has|sentences have) type "):
    input_texts.as_list(texts)


def test_languages_are_one_code_or_one_for_each_text():
  assert input_texts.languages("de", 2) == ["de", "de"]
  assert input_texts.languages(("de", "en"), 2) == ["de", "en"]
  for value, error in ((["de"], ValueError), ({"de", "en"}, TypeError), (["de", None], TypeError)):
    with pytest.raises(error):
      input_texts.languages(value, 2)
