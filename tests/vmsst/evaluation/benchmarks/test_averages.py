import collections

import pytest

from vmsst.evaluation import papers
from vmsst.evaluation.benchmarks import averages


def printed_rows():
  """Returns results and Scores from rows of the VMSST paper's Tables 1, 4 and 7."""
  keys = [key for part in averages.SCORE_PARTS.values() for key in part]
  rows = collections.defaultdict(lambda: ({"absent": {}, "benchmarks": {}}, []))
  for number in papers.load():
    if number.paper == "vmsst" and number.table in ("1", "4", "7"):
      results, score = rows[number.table, number.system]
      if number.benchmark == "score":
        score.append(number.value)
      elif (number.benchmark, number.name) in keys:
        scored = results["benchmarks"].setdefault(number.benchmark, {"summary": {}, "missing": []})
        scored["summary"][number.name] = number.value
  return rows


def test_printed_parts_give_the_printed_score():
  rows = printed_rows()
  assert len(rows) == 12 + 9 + 12
  for results, (score,) in rows.values():
    assert averages.overall_score(results)["Score"] == pytest.approx(score, abs=0.06)
  # A part lacks sets.
  summary = results["benchmarks"]["tatoeba"]["summary"]
  summary["average (incomplete)"] = summary.pop("average")
  assert averages.overall_score(results) == {}
