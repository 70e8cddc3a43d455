import json
import statistics

import pytest

from vmsst.evaluation import report
from vmsst.evaluation.report import published


def paper_table(number):
  """Returns the errors of a table of the paper by source and target; its averages have "*"."""
  return {
    tuple(each.language.split("->")): each.value
    for each in published.load()
    if (each.paper, each.table) == ("agnostic", number) and each.language
  }


def results_of(text, errors):
  """Returns the results of `vmsst eval` with these errors."""
  return [
    {
      "name": f"{text} {source}->{target}".strip(),
      "languages": [source.split("_")[0], target.split("_")[0]],
      "metrics": {"error": error},
    }
    for (source, target), error in errors.items()
    if "*" not in (source, target)
  ]


@pytest.fixture
def write(tmp_path):
  """Writes the report on results by encoder; returns its paths."""

  def write_report(name, **results):
    folders = []
    for encoder, own in results.items():
      folders.append(tmp_path / encoder)
      folders[-1].mkdir()
      found = {"title": "Texts", "summary": {"error": 1.0}, "missing": [], "results": own}
      found["seconds"] = {"embedding": 1.0, "scoring": 0.5}
      content = {"encoder": encoder, "seen": None, "absent": {}, "benchmarks": {name: found}}
      (folders[-1] / "results.json").write_text(json.dumps(content))
    return report.write_report(folders, tmp_path / "out")

  return write_report


def rows_of(path, title):
  """Returns a table of report.json: cells by row and column, with the column's detail."""
  (section,) = json.loads(path.read_text())["sections"]
  (table,) = (each for each in section["tables"] if each["title"] == title)
  columns = [(each["name"], each["detail"]) for each in table["columns"]]
  return {
    row["name"]: dict(zip(columns, cells, strict=True))
    for row, cells in zip(table["rows"], table["cells"], strict=True)
  }


@pytest.mark.parametrize("number", ["1", "3", "4", "6"])
def test_averages_are_those_at_the_edges_of_the_papers_tables(write, number):
  errors = paper_table(number)
  if number == "6":  # (en-)de and (de-)zh are written as paths here.
    label = {"en": "en", "(en-)de": "en+de", "(en-)zh": "en+zh", "(de-)zh": "en+de+zh"}
    errors = {tuple(label.get(x, x) for x in pair): error for pair, error in errors.items()}
  results = results_of("text", errors)
  for each in results:
    each["languages"] = [code.split("+")[-1] for code in each["languages"]]
  _, path, _ = write("translations", x=results)
  rows = rows_of(path, "text: Averages by language")
  assert len(rows) == {"1": 5, "3": 10, "4": 7, "6": 4}[number]
  for label, row in rows.items():
    assert row["error of its queries", ""]["value"] == pytest.approx(errors[label, "*"], abs=0.0051)
    assert row["error of searches in it", ""]["value"] == pytest.approx(
      errors["*", label], abs=0.0051
    )


def test_errors_on_wmt_2012_are_next_to_the_papers_table_1(write):
  half = {pair: error / 2 for pair, error in paper_table("1").items()}
  markdown, path, _ = write("wmt2012", x=results_of("", half))
  pairs = rows_of(path, "Results")
  assert len(pairs) == 20
  for row in pairs.values():
    published_error = row["error: LASER", "agnostic, Table 1"]["value"]
    assert published_error == 2 * row["error", ""]["value"]
  averages = rows_of(path, "Averages by language")
  for label, row in averages.items():
    for title, edge in (
      ("error of its queries", (label, "*")),
      ("error of searches in it", ("*", label)),
    ):
      assert row[f"{title}: LASER", "agnostic, Table 1"]["value"] == paper_table("1")[edge]
      assert row[title, ""]["value"] == pytest.approx(paper_table("1")[edge] / 2, abs=0.0026)
  assert rows_of(path, "Next to published numbers")["LASER"]["error", ""]["value"] == 1.06
  assert "the sum of its 20 errors divided by 16; their mean is 0.85" in markdown.read_text()


def test_the_nearest_languages_are_those_that_the_paper_names(write):
  markdown, path, page = write("translations", x=results_of("prince", paper_table("3")))
  rows = rows_of(path, "prince: Averages by language")
  near = {label: row["nearest language of its queries", ""] for label, row in rows.items()}
  # Section 3.2.1: Czech queries find most sentences in Slovak, Russian ones in Ukrainian.
  assert (near["cs"]["note"], near["cs"]["value"]) == ("sk", 9.69)
  assert {label: each["note"] for label, each in near.items()} == {
    "bg": "fr",
    "cs": "sk",
    "fr": "mk",
    "hr": "sr",
    "mk": "fr",
    "ru": "uk",
    "sk": "cs",
    "sl": "fr",
    "sr": "hr",
    "uk": "bg",
  }
  assert "| cs | 12.75 | 12.47 | 9.69 sk |" in markdown.read_text()
  assert "<td>9.69 sk</td>" in page.read_text()


def test_equally_near_languages_are_all_nearest(write):
  codes = ["de", "en", "es", "fr", "it"]
  errors = {
    (x, y): float("it" in (x, y) and "de" in (x, y)) for x in codes for y in codes if x != y
  }
  _, path, _ = write("agnosticism", x=results_of("", errors))
  near = {
    label: row["nearest language of its queries", ""]["note"]
    for label, row in rows_of(path, "Averages by language").items()
  }
  assert near["de"] == "en, es, fr"
  assert near["en"] == "de, es, fr and 1 more"


def test_the_spread_over_versions_is_that_of_the_papers_section_on_alice(write):
  _, path, _ = write("translations", x=results_of("alice", paper_table("4")))
  rows = rows_of(path, "alice: Spread over versions")
  assert set(rows) == {"pl->*", "*->pl", "ru->*", "*->ru"}

  def found(row, column):
    cell = rows[row][column, ""]
    return pytest.approx(cell["value"]), cell["note"]

  # Section 3.2.2: from 5.06 to 23.88 if Polish versions are the queries for the English original.
  assert found("pl->*", "largest spread") == (23.88 - 5.06, "en")
  assert found("pl->*", "lowest error there") == (5.06, "pl_2")
  assert found("pl->*", "highest error there") == (23.88, "pl_1")
  assert found("*->ru", "largest spread") == (31.18 - 10.96, "en")
  spreads = [23.88 - 5.06, 33.99 - 22.19, 28.37 - 14.33, 38.20 - 32.87, 32.02 - 23.31]
  assert (statistics.fmean(spreads), "") == found("pl->*", "mean spread")


def test_errors_of_languages_are_averaged_over_texts(write):
  alice = results_of("alice", paper_table("4"))
  prince = results_of("prince", paper_table("3"))
  markdown, path, _ = write("translations", first=alice + prince, second=alice)
  rows = rows_of(path, "Errors by language and text: first")
  assert set(rows) == {"en", "pl", "ru", "uk", "bg", "cs", "fr", "hr", "mk", "sk", "sl", "sr"}
  # The means of the printed averages of rows and columns, of two versions in Polish.
  polish = (29.12 + 29.68 + 19.66 + 17.46) / 4
  ukrainian = (22.94 + 24.91) / 2, (14.58 + 13.94) / 2
  assert rows["pl"]["alice", ""]["value"] == pytest.approx(polish, abs=0.0051)
  assert rows["pl"]["prince", ""]["value"] is None
  assert rows["pl"]["mean of texts", ""]["value"] == pytest.approx(polish, abs=0.0051)
  for column, value in zip(("alice", "prince"), ukrainian, strict=True):
    assert rows["uk"][column, ""]["value"] == pytest.approx(value, abs=0.0051)
  mean = rows["uk"]["mean of texts", ""]["value"]
  assert mean == pytest.approx(sum(ukrainian) / 2, abs=0.0051)
  assert "Errors by language and text: second" in markdown.read_text()


def test_averages_of_table_5_are_means_over_the_texts_of_a_language():
  novels, means = {}, {}
  for each in published.load():
    if (each.paper, each.table) == ("agnostic", "5"):
      if each.part == "Russian National Corpus":
        means[each.language] = each.value
      else:
        novels.setdefault(each.language, []).append(each.value)
  assert len(means) == 11
  for code, mean in means.items():
    assert statistics.fmean(novels[code]) == pytest.approx(mean, abs=0.0051), code


def test_encoders_are_compared_by_language(write):
  errors = paper_table("1")
  half = {pair: error / 2 for pair, error in errors.items()}
  _, path, _ = write("agnosticism", one=results_of("", errors), two=results_of("", half))
  cell = rows_of(path, "Averages by language")["cs"]["error of its queries", "two"]
  assert cell["value"] == pytest.approx(0.38, abs=0.0051)
  assert cell["difference"] == pytest.approx(-0.38, abs=0.0051)
