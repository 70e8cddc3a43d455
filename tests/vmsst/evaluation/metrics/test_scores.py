import collections

import pytest

from vmsst.evaluation.metrics import scores
from vmsst.evaluation.report import published


def printed_rows():
  """Returns results and Scores from rows of the VMSST paper's Tables 1, 4 and 7."""
  keys = [key for part in scores.PARTS.values() for key in part]
  rows = collections.defaultdict(lambda: ({"absent": {}, "benchmarks": {}}, []))
  for number in published.load():
    if number.paper == "vmsst" and number.table in ("1", "4", "7"):
      results, score = rows[number.table, number.system]
      if number.benchmark == "score":
        score.append(number.value)
      elif (number.benchmark, number.name) in keys:
        found = results["benchmarks"].setdefault(number.benchmark, {"summary": {}, "missing": []})
        found["summary"][number.name] = number.value
  return rows


def test_printed_parts_give_the_printed_score():
  rows = printed_rows()
  assert len(rows) == 12 + 9 + 12
  for results, (score,) in rows.values():
    found = scores.overall(results)
    assert not found.missing
    assert found.value == pytest.approx(score, abs=0.06)


def test_no_score_where_a_part_is_missing():
  results, _ = printed_rows()["1", "VMSST 6L"]
  del results["benchmarks"]["sts"]
  results["absent"]["sts"] = "no folder"
  for benchmark, key in (("bucc", "margin_f1"), ("tatoeba", "average"), ("questions", "mkqa")):
    summary = results["benchmarks"][benchmark]["summary"]
    summary[f"{key} (incomplete)"] = summary.pop(key)
  found = scores.overall(results)
  assert found.value is None
  assert found.parts == {"XL STS": 67.4, "NQ": 37.3}
  assert list(found.missing) == ["English STS", "Tatoeba", "BUCC", "MKQA"]
  assert found.missing["English STS"] == "sts is absent"
  assert found.missing["Tatoeba"] == "tatoeba has no complete average"
  assert found.missing["BUCC"] == "bucc has no complete margin_f1"
