import json

import pytest

from vmsst import languages
from vmsst.evaluation import report, suite
from vmsst.evaluation.benchmarks import tatoeba
from vmsst.evaluation.report import published
from vmsst.tasks.opus import recipes

_PAPER = "VMSST 24L mT5"


@pytest.fixture(scope="module")
def trained():
  """The languages of the VMSST paper's Table 15, as the recipe has them."""
  return {languages.language(code) for code in recipes.load("vmsst").languages}


def table_14():
  found = [x for x in published.load() if (x.paper, x.table, x.system) == ("vmsst", "14", _PAPER)]
  return {x.language.removesuffix("-eng"): x.value for x in found}


def reproduction(folder, name, seen, codes=None):
  """Writes the results of an encoder that reproduces the paper's Table 14 exactly."""
  numbers = table_14()
  results = [
    suite.Result(code, (code, "eng"), dict.fromkeys(("to English", "from English", "average"), x))
    for code, x in numbers.items()
    if codes is None or code in codes
  ]
  found = {
    "title": "Tatoeba",
    "summary": tatoeba.summarize(results, suite.seen_test(seen)),
    "missing": tatoeba.missing(results),
    "results": [
      {"name": x.name, "languages": list(x.languages), "metrics": x.metrics} for x in results
    ],
    "seconds": {},
  }
  folder.mkdir()
  content = {"encoder": name, "seen": sorted(x.name for x in seen), "absent": {}}
  (folder / "results.json").write_text(json.dumps(content | {"benchmarks": {"tatoeba": found}}))
  return folder


def compared(folders, out):
  """Returns the table next to published numbers: values by system and average; and the notes."""
  _, path, _ = report.write_report(folders, out)
  (section,) = json.loads(path.read_text())["sections"]
  (table,) = (x for x in section["tables"] if x["title"] == "Next to published numbers")
  columns = [column["name"] for column in table["columns"]]
  rows = {
    row["name"]: dict(zip(columns, (cell["value"] for cell in cells), strict=True))
    for row, cells in zip(table["rows"], table["cells"], strict=True)
  }
  return rows, section["notes"]


def test_a_perfect_reproduction_has_the_published_seen_and_unseen_averages(trained, tmp_path):
  rows, notes = compared([reproduction(tmp_path / "a", "mine", trained)], tmp_path / "out")
  own, theirs = rows["mine"], rows[_PAPER]
  for key in ("average", "average seen", "average unseen"):
    assert own[key] == pytest.approx(theirs[key], abs=0.06)
  numbers = table_14()
  split = {True: [], False: []}
  for code, value in numbers.items():
    split[languages.language(code) in trained].append(value)
  assert {seen: len(values) for seen, values in split.items()} == {True: 82, False: 30}
  for key, values in zip(("average seen", "average unseen"), split.values(), strict=True):
    assert theirs[key] == pytest.approx(sum(values) / len(values))
  # LASER has all languages too, in two tables of the EMS paper.
  assert rows["LASER"]["average unseen"] < rows["LASER"]["average seen"]
  # Table 8's numbers have columns of their own, because its split is another one.
  assert (own["seen (93)"], theirs["seen (93)"], theirs["unseen (19)"]) == (None, 84.9, 62.2)
  assert any("over the 82 and 30 languages" in note for note in notes)


def test_each_split_has_its_own_published_averages(trained, tmp_path):
  two = {languages.language(code) for code in ("deu", "fra", "eng")}
  folders = [
    reproduction(tmp_path / "a", "first", trained),
    reproduction(tmp_path / "b", "second", two, codes=("deu", "fra", "xho")),
  ]
  rows, notes = compared(folders, tmp_path / "out")
  numbers = table_14()
  theirs = rows[f"{_PAPER} (languages of second)"]
  assert theirs["average seen"] == pytest.approx((numbers["deu"] + numbers["fra"]) / 2)
  assert theirs["average unseen"] == pytest.approx(numbers["xho"])
  first = rows[f"{_PAPER} (languages of first)"]
  assert first["average seen"] == pytest.approx(rows["first"]["average seen"])
  assert sum("computed from" in note for note in notes) == 2
