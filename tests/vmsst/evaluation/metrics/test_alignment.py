import pytest

from vmsst.evaluation.metrics import alignment

GOLD = [
  [([0], [0]), ([1], [1, 2]), ([2, 3], [3]), ([], [4]), ([4], [])],
  [([0], [0]), ([], [])],
]
PREDICTED = [
  [
    ([0], [0], 0.9),  # Right.
    ([1], [1]),  # Overlaps with gold.
    ([], [2]),  # A wrong deletion.
    ([2], [4]),  # Wrong.
    ([3], [3]),  # Overlaps with gold.
    ([4], []),  # A right deletion.
  ],
  [([0], []), ([], [0])],  # Wrong deletions.
]


def test_scores_equal_a_count_by_hand():
  scores = alignment.alignment_scores(GOLD, PREDICTED)
  # Of the 8 predictions, 0-0 and the deletion of 4 are gold; 1-1 and 3-3 overlap with gold.
  assert scores["strict_precision"] == pytest.approx(2 / 8)
  assert scores["lax_precision"] == pytest.approx(4 / 8)
  # Of the 4 gold pairs without deletions, 1 is predicted and 2 overlap with predictions.
  assert scores["strict_recall"] == pytest.approx(1 / 4)
  assert scores["lax_recall"] == pytest.approx(3 / 4)
  assert scores["strict_f1"] == pytest.approx(0.25)
  assert scores["lax_f1"] == pytest.approx(2 * 0.5 * 0.75 / 1.25)


def test_gold_alignments_score_1_and_no_alignments_score_0():
  assert set(alignment.alignment_scores(GOLD, GOLD).values()) == {1.0}
  assert set(alignment.alignment_scores(GOLD, [[], []]).values()) == {0.0}
