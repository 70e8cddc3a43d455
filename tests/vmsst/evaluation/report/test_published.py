import collections
import statistics

import pytest

from vmsst import languages
from vmsst.evaluation import benchmarks
from vmsst.evaluation.benchmarks import parallel, tatoeba
from vmsst.evaluation.metrics import scores
from vmsst.evaluation.report import published


def values(paper, table, benchmark=None, name=None):
  """Returns the numbers of one table, by system."""
  found = collections.defaultdict(list)
  for number in published.load():
    wanted = benchmark in (None, number.benchmark) and name in (None, number.name)
    if (number.paper, number.table) == (paper, table) and wanted:
      found[number.system].append(number.value)
  return found


def systems(numbers):
  return {number.system: number.value for number in numbers}


def test_tables_hold_shares_of_known_languages():
  numbers = published.load()
  assert len(numbers) > 3000
  assert all(0 <= number.value <= 100 for number in numbers)
  for number in numbers:
    if number.of and number.paper != "agnostic":
      for code in number.of.rpartition(" ")[2].replace("->", "-").split("-"):
        languages.language(code)
  keys = [(x.paper, x.table, x.system, x.benchmark, x.name, x.of) for x in numbers]
  assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
  ("paper", "table"),
  [
    *(("ems", table) for table in ("IV", "VI", "IX", "X", "XI", "XII", "XIII")),
    *(("ems-short", table) for table in "12"),
    ("vmsst", "5"),
    ("soft", "7"),
  ],
)
def test_averages_are_those_of_the_same_rows(paper, table):
  rows = collections.defaultdict(list)
  printed = {}
  for number in published.load():
    if (number.paper, number.table) == (paper, table):
      if number.of is None:
        assert number.system not in printed
        printed[number.system] = number.value
      else:
        rows[number.system].append(number.value)
  assert len(printed) == len(rows) > 3
  for system, row in rows.items():
    assert statistics.fmean(row) == pytest.approx(printed[system], abs=0.056)


def test_vmsst_tables_of_parts_give_its_table_1():
  for table, benchmark, name, whole in (
    ("9", "sts", None, "pearson"),
    ("10", "xlsts", "pearson", "pearson"),
    ("11", "questions", None, "nq"),
    ("13", "bucc", "cosine_f1", "cosine_f1"),
    ("13", "bucc", "margin_f1", "margin_f1"),
    ("14", "tatoeba", None, "average"),
  ):
    average = values("vmsst", "1", benchmark, whole)
    parts = values("vmsst", table, benchmark, name)
    assert len(parts) == 4
    for system, row in parts.items():
      row = row[:5] if table == "9" else row  # Pearson's; then Spearman's
      assert statistics.fmean(row) == pytest.approx(average[system][0], abs=0.09)
  # As the table's note says, two rows are exchanged.
  average = values("vmsst", "1", "questions", "mkqa")
  mkqa = {system: statistics.fmean(row) for system, row in values("vmsst", "12").items()}
  expected = sorted(average[system][0] for system in mkqa)
  assert sorted(mkqa.values()) == pytest.approx(expected, abs=0.12)
  assert mkqa["BiTranslation 24L mT5"] < mkqa["VMSST Contrastive 24L mT5"]
  (first, *_) = published.for_result("questions", "mkqa de", ["de"], "accuracy")
  assert "exchanged" in first.note


def test_seen_and_unseen_languages_give_the_average():
  seen, unseen = (values("vmsst", "8", name=part) for part in ("seen (93)", "unseen (19)"))
  whole = values("vmsst", "1", "tatoeba")
  assert len(seen) == 6
  for system in seen:
    mean = (93 * seen[system][0] + 19 * unseen[system][0]) / 112
    assert mean == pytest.approx(whole[system][0], abs=0.06)


def test_error_matrices_have_the_averages_at_their_edges():
  for table in ("1", "3", "4", "6"):
    cells, edges = {}, {}
    for number in published.load():
      if (number.paper, number.table) == ("agnostic", table):
        pair = tuple((number.of or "*->*").rpartition(" ")[2].split("->"))
        (edges if "*" in pair else cells)[pair] = number.value
    labels = {source for source, _ in cells}
    assert len(cells) == len(labels) * (len(labels) - 1)
    for (source, target), value in edges.items():
      mean = statistics.fmean(
        error for (x, y), error in cells.items() if source in ("*", x) and target in ("*", y)
      )
      if (table, source, target) == ("1", "*", "*"):  # As the table's note says.
        mean = sum(cells.values()) / 16
      assert mean == pytest.approx(value, abs=0.006)


def test_averages_of_table_5_are_means_over_the_texts_of_a_language():
  novels = collections.defaultdict(list)
  means = {}
  for number in published.load():
    if (number.paper, number.table) == ("agnostic", "5"):
      text, _, code = number.of.rpartition(" ")
      if text == "Russian National Corpus":
        means[code] = number.value
      else:
        novels[code].append(number.value)
  assert len(means) == 11
  for code, mean in means.items():
    assert statistics.fmean(novels[code]) == pytest.approx(mean, abs=0.0051), code


def test_errors_are_percent_of_the_sentences():
  for number in published.load():
    if number.benchmark == "wmt2012" and number.of and "*" not in number.of:
      count = 3003
    elif number.name.startswith("xsim en fr ja ko ru:"):
      count = 4 * 1012  # Searches in one of five languages.
    else:
      continue
    share = round(number.value / 100 * count) / count
    assert number.value == pytest.approx(100 * share, abs=0.0051)


def test_numbers_are_found_by_the_names_of_averages_and_results():
  average, result = published.for_average, published.for_result
  assert systems(average("tatoeba", "average"))["VMSST 24L mT5"] == 81.1
  assert systems(average("tatoeba", "mUSE (15)"))["EMS"] == 96.6
  assert systems(average("sts", "spearman 2012"))["VMSST 24L mT5"] == 72.7
  assert systems(average("xlsts", "pearson same language"))["VMSST 24L"] == 77.7
  assert systems(average("questions", "mkqa"))["VMSST 24L mT5"] == 29.9
  korean = systems(average("flores", "xsim en fr ja ko ru: ko"))
  assert (len(korean), korean["mE5-base"], korean["LaBSE"]) == (13, 0.4, 0.0)
  for key in ("average seen", "average (incomplete)", "to English"):
    assert average("tatoeba", key) == []
  # Languages match in any code and, without an arrow, in either order.
  first, *_ = result("tatoeba", "deu", ("de", "en"), "average")
  assert first == result("tatoeba", "deu", ("eng", "deu"), "average")[0]
  assert (first.system, first.value, first.source) == ("LASER", 99.0, "ems, Table IV")
  for name, codes, value in (
    ("en->de", ("eng", "deu"), 86.3),
    ("de->en", ("deu", "eng"), 76.7),
  ):
    assert result("mldoc", name, codes, "accuracy")[0].value == value
  assert systems(result("questions", "mkqa de", ("de",), "accuracy"))["VMSST 24L mT5"] == 32.5
  assert systems(result("cls", "dvd en->fr", ("en", "fr"), "accuracy"))["EMS"] == 78.0
  assert systems(result("wmt2012", "es->cs", ("es", "cs"), "error")) == {"LASER": 0.53}
  assert systems(result("wmt2012", "*->fr", ("*", "fra"), "error")) == {"LASER": 0.86}
  assert systems(result("xlsts", "track4a.es-en", ("es", "en"), "pearson"))
  for benchmark, name, codes, metric in (
    ("xlsts", "track4b.es-en", ("es", "en"), "pearson"),
    ("questions", "nq", ("en",), "accuracy"),
    ("tatoeba", "deu", ("deu", "eng"), "to English"),
    ("tatoeba", "deu", ("deu", "fra"), "average"),
  ):
    assert result(benchmark, name, codes, metric) == []


def test_benchmarks_here_have_the_names_that_numbers_are_found_by():
  keys = [
    *published.content()["main"],
    *(key for part in scores.PARTS.values() for key in part),
    *(("sts", f"{x} {year}") for x in ("pearson", "spearman") for year in range(2012, 2017)),
    *(("xlsts", f"{x} different languages") for x in ("pearson", "spearman")),
    *(("tatoeba", name) for name in tatoeba.GROUPS),
    *(("flores", f"{x} {name}") for x, each in parallel.GROUPS.items() for name in each),
    *(("mldoc", f"accuracy {way} English") for way in ("from", "into")),
  ]
  for benchmark, name in keys:
    assert benchmark in benchmarks.BENCHMARKS
    assert published.for_average(benchmark, name), (benchmark, name)
    better = published.best(benchmark, name).value
    others = [x.value for x in published.for_average(benchmark, name)]
    assert better == (min if name.startswith(("error", "xsim")) else max)(others)
