import collections
import gzip

import numpy as np
import pytest

from vmsst import errors, languages
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import tatoeba
from vmsst.evaluation.report import published


class Encoder:
  """Vectors of texts that are angles in degrees."""

  def encode(self, texts):
    angle = np.radians([float(text.split()[-1]) for text in texts])
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def write(root, code, foreign, english):
  folder = root / "tatoeba"
  folder.mkdir(exist_ok=True)
  path = folder / f"tatoeba.{code}-eng.{code}"
  path.write_text("".join(f"{code} {x}\n" for x in foreign), encoding="utf-8")
  english = "".join(f"{x}\n" for x in english).encode()
  (folder / f"tatoeba.{code}-eng.eng.gz").write_bytes(gzip.compress(english))


def test_both_directions_and_means_by_hand(tmp_path):
  # The second German one finds the first in English; back, the second finds the third.
  write(tmp_path, "deu", [0, 20, 90], [5, 60, 95])
  write(tmp_path, "yid", [10], [300])  # One sentence is always found.
  # A duplicate: both find the first, both ways.
  write(tmp_path, "cor", [10, 10], [10, 10])
  results = suite.evaluate(
    Encoder(), [tatoeba.BENCHMARK], tmp_path, tmp_path / "out", name="x",
    seen=[languages.language("de"), languages.language("en")],
  )  # fmt: skip
  found = results["benchmarks"]["tatoeba"]
  by_name = {each["name"]: each["metrics"] for each in found["results"]}
  german = {"to English": 200 / 3, "from English": 200 / 3, "average": 200 / 3}
  assert by_name["deu"] == pytest.approx(german)
  assert set(by_name["yid"].values()) == {100}
  assert set(by_name["cor"].values()) == {50}
  summary = found["summary"]
  assert summary["average (incomplete)"] == pytest.approx((200 / 3 + 150) / 3)
  assert summary["average seen (incomplete)"] == pytest.approx(200 / 3)
  assert summary["average unseen (incomplete)"] == pytest.approx(75)
  assert summary["mUSE (15) (incomplete)"] == pytest.approx(200 / 3)
  assert summary["EMS unseen (54) (incomplete)"] == pytest.approx(75)
  assert "XTREME (38)" not in summary
  assert len(found["missing"]) == 109


def test_groups_of_the_ems_paper_are_those_whose_means_it_prints():
  rows = collections.defaultdict(dict)
  means = []
  for number in published.load():
    if number.paper == "ems" and number.benchmark == "tatoeba":
      if number.language is not None:
        code = languages.language(number.language.removesuffix("-eng")).tatoeba
        rows[number.system][code] = number.value
      else:
        means.append(number)
  checked = collections.Counter()
  for number in means:
    if number.part in tatoeba.GROUPS and number.system in rows:
      codes = tatoeba.GROUPS[number.part]
      mean = np.mean([rows[number.system][code] for code in codes])
      # Both the languages' numbers and the mean are rounded.
      assert mean == pytest.approx(number.value, abs=0.101), (number.system, number.part)
      checked[number.part] += 1
  assert all(count >= 3 for count in checked.values())
  assert len(checked) == 10


@pytest.mark.parametrize(
  ("code", "sides", "message"),
  [
    ("deu", ([0, 1], [0]), r"eng.deu has 2 lines and .*eng.eng.gz has 1"),
    ("qqq", ([0], [0]), r"eng.eng.gz: unknown language code 'qqq'"),
    ("deu", ([], []), r"eng.deu is empty"),
  ],
)
def test_broken_files_are_told(tmp_path, code, sides, message):
  write(tmp_path, code, *sides)
  with pytest.raises(errors.InputError, match=message):
    tatoeba.read(tmp_path)


def test_missing_files_are_told_with_their_source(tmp_path):
  write(tmp_path, "deu", [1], [1])
  (tmp_path / "tatoeba" / "tatoeba.deu-eng.deu").unlink()
  with pytest.raises(errors.InputError, match=r"neither .*eng.deu nor .* it is data/tatoeba/v1"):
    tatoeba.read(tmp_path)


def test_real_files_are_all_there(data_root):
  tasks = tatoeba.read(data_root)
  assert [task.name for task in tasks] == list(tatoeba.LANGUAGES)
  assert sum(len(task.sides[0].texts) for task in tasks) == 88877
