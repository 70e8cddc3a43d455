import collections

import benchmark_trees
import fake_encoders
import line_files
import numpy as np
import pytest

from vmsst import languages
from vmsst.evaluation import papers
from vmsst.evaluation.benchmarks import tatoeba


def degrees_vector(text):
  """Returns the point of the unit circle at the angle, in degrees, that ends `text`."""
  return fake_encoders.angle_vector(str(np.radians(float(text.split()[-1]))))


def write_pairs(root, code, foreign, english):
  sides = {code: [f"{code} {x}" for x in foreign], "eng.gz": english}
  for side, lines in sides.items():
    line_files.write_lines(root / "tatoeba" / f"tatoeba.{code}-eng.{side}", lines)


def test_both_directions_and_means_by_hand(tmp_path, monkeypatch):
  monkeypatch.setattr(tatoeba, "GROUPS", {"whole": ("cor", "yid"), "partial": ("deu", "fra")})
  # The second German one finds the first in English; back, the second finds the third.
  write_pairs(tmp_path, "deu", [0, 20, 90], [5, 60, 95])
  write_pairs(tmp_path, "yid", [10], [300])  # One sentence is always found.
  # A duplicate: both find the first, both ways.
  write_pairs(tmp_path, "cor", [10, 10], [10, 10])
  seen = [languages.language("de"), languages.language("en")]
  found = benchmark_trees.run_benchmark(
    tatoeba.BENCHMARK, fake_encoders.FakeEncoder(degrees_vector), tmp_path, seen=seen
  )
  by_name = {each["name"]: each["metrics"] for each in found["results"]}
  german = {"to English": 200 / 3, "from English": 200 / 3, "average": 200 / 3}
  assert by_name["deu"] == pytest.approx(german)
  assert set(by_name["yid"].values()) == {100}
  assert set(by_name["cor"].values()) == {50}
  summary = found["summary"]
  assert summary["average (incomplete)"] == pytest.approx((200 / 3 + 150) / 3)
  assert summary["average seen (incomplete)"] == pytest.approx(200 / 3)
  assert summary["average unseen (incomplete)"] == pytest.approx(75)
  assert summary["whole"] == pytest.approx(75)
  assert not any(name.startswith("partial") for name in summary)
  assert len(found["missing"]) == 109


def test_groups_of_the_ems_paper_are_those_whose_means_it_prints():
  rows = collections.defaultdict(dict)
  means = []
  for number in papers.load():
    if number.paper == "ems" and number.benchmark == "tatoeba":
      if number.of is not None:
        code = languages.language(number.of.removesuffix("-eng")).tatoeba
        rows[number.system][code] = number.value
      else:
        means.append(number)
  checked = collections.Counter()
  for number in means:
    if number.name in tatoeba.GROUPS and number.system in rows:
      codes = tatoeba.GROUPS[number.name]
      mean = np.mean([rows[number.system][code] for code in codes])
      # Both the languages' numbers and the mean are rounded.
      assert mean == pytest.approx(number.value, abs=0.101), (number.system, number.name)
      checked[number.name] += 1
  assert all(count >= 3 for count in checked.values())
  assert len(checked) == 10
