import numpy as np
import pytest

from vmsst import errors
from vmsst.mining import pair_scoring


def by_length(sources, targets, languages, on_cut):
  """Scores a pair by its lengths; the length 3 is not finite."""
  on_cut(1, len(sources), 7)
  rows = [[len(x), len(y)] for x, y in zip(sources, targets, strict=True)]
  return np.where(np.array(rows, float) == 3, np.nan, rows)


SCORER = pair_scoring.Scorer({}, by_length)


def write(path, lengths):
  path.write_text("".join(f"{'x' * length}\n" for length in lengths))
  return pair_scoring.TextColumn(str(path))


def test_windows_of_pairs_are_scored_in_order_and_cut_texts_are_counted(
  tmp_path, monkeypatch, caplog
):
  monkeypatch.setattr(pair_scoring, "_WINDOW", 4)
  sides = write(tmp_path / "a", [0, 1, 2, 4, 5, 6]), write(tmp_path / "b", [9, 8, 7, 6, 5, 4])
  blocks = list(pair_scoring.pair_scores(SCORER, *sides))
  assert list(map(len, blocks)) == [4, 2]
  expected = [[0, 9], [1, 8], [2, 7], [4, 6], [5, 5], [6, 4]]
  assert np.concatenate(blocks).tolist() == expected
  assert "2 of 12 texts have more than the 7 tokens" in caplog.text


def test_broken_input_is_an_error(tmp_path):
  short, long = write(tmp_path / "a", [1, 2]), write(tmp_path / "b", [1, 2, 3])
  with pytest.raises(errors.InputError, match=r"a has 2 lines and .*b 3: give files of equal"):
    list(pair_scoring.pair_scores(SCORER, short, long))
  with pytest.raises(errors.InputError, match=r"b:3: the score of this pair contains a value that"):
    list(pair_scoring.pair_scores(SCORER, long, long))
