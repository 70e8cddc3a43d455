import opus_tree
import pytest
import seqio

from vmsst import errors
from vmsst.languages import language
from vmsst.opus import datasets

PAIRS = {
  ("de", "en"): [("a", "b", "Europarl"), ("c", "d", "Tatoeba"), ("e", "f", "Europarl")],
  ("zh_TW", "es"): [("g", "h", "Tatoeba"), ("i", "j", "Tatoeba")],
}
GERMAN, TAIWAN = (language("de"), language("en")), (language("zh_TW"), language("es"))


def test_a_dataset_is_found_with_its_language_pairs(tmp_path, monkeypatch):
  folder = opus_tree.write_dataset(tmp_path, "mine", PAIRS)
  name, path = datasets.find("mine", str(tmp_path))
  assert (name, str(path)) == ("opus_mine", str(folder))
  # What `t5x --tfds_data_dir` does.
  monkeypatch.setattr(seqio.utils, "_TFDS_DATA_DIR_OVERRIDE", str(tmp_path))
  assert datasets.find("mine", None) == (name, path)
  splits = datasets.language_pairs(path, None, None)
  assert {pair: {x: [*y.counts] for x, y in z.items()} for pair, z in splits.items()} == {
    GERMAN: {"train": [2], "validation": [1]},
    TAIWAN: {"train": [1], "validation": [1]},
  }
  assert [*datasets.language_pairs(path, ["de", "en", "fr"], None)] == [GERMAN]
  assert [*datasets.language_pairs(path, None, ["es"])] == [TAIWAN]
  with pytest.raises(errors.InputError, match="no language pair of these languages; choose among"):
    datasets.language_pairs(path, None, ["tr"])
  pairs = datasets.validation_pairs(path, splits, "Europarl")
  assert pairs == {GERMAN: [("a", "b")]}
  with pytest.raises(errors.InputError, match="corpus 'X'; choose among Europarl, Tatoeba"):
    datasets.validation_pairs(path, splits, "X")


def test_a_missing_dataset_is_named(tmp_path):
  with pytest.raises(errors.InputError, match=r"no dataset opus_bitext/mine in .*--recipe mine"):
    datasets.find("mine", str(tmp_path))
