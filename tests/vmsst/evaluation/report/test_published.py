import collections
import statistics

import pytest

from vmsst import languages
from vmsst.evaluation.benchmarks import (
  agnosticism,
  bitext_mining,
  documents,
  paracrawl,
  parallel,
  questions,
  sts,
  tatoeba,
  xlsts,
)
from vmsst.evaluation.metrics import scores
from vmsst.evaluation.report import published

YEARS = ("2012", "2013", "2014", "2015", "2016")


def values(paper, table, **wanted):
  """Returns the numbers of one table, by system."""
  found = collections.defaultdict(list)
  for number in published.load():
    if (number.paper, number.table) == (paper, table) and all(
      getattr(number, key) == value for key, value in wanted.items()
    ):
      found[number.system].append(number.value)
  return found


def test_tables_hold_shares_of_known_languages():
  numbers = published.load()
  assert len(numbers) > 3000
  assert all(0 <= number.value <= 100 for number in numbers)
  for number in numbers:
    if number.language and number.paper != "agnostic":
      for code in number.language.replace("->", "-").split("-"):
        languages.language(code)
  keys = [(x.paper, x.table, x.system, x.benchmark, x.metric, x.language, x.part) for x in numbers]
  assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
  ("paper", "table", "part"),
  [
    ("ems", "IV", "EMS seen (58)"),
    ("ems", "VI", "EMS unseen (54)"),
    ("ems", "IX", None),
    ("ems", "X", None),
    ("ems", "XI", None),
    ("ems", "XII", None),
    ("ems", "XIII", None),
    ("ems-short", "1", None),
    ("ems-short", "2", None),
    ("vmsst", "5", None),
    ("soft", "7", "en-fr en-ja en-ko en-ru"),
  ],
)
def test_averages_are_those_of_the_same_rows(paper, table, part):
  rows = collections.defaultdict(list)
  printed = {}
  for number in published.load():
    if (number.paper, number.table) == (paper, table):
      if number.language is None:
        assert number.part == part
        printed[number.system] = number.value
      else:
        rows[number.system].append(number.value)
  assert len(printed) == len(rows) > 3
  for system, row in rows.items():
    assert statistics.fmean(row) == pytest.approx(printed[system], abs=0.056)


def test_vmsst_tables_of_parts_give_its_table_1():
  whole = {
    key: {system: row[0] for system, row in values("vmsst", "1", **where).items()}
    for key, where in {
      "sts": {"benchmark": "sts"},
      "xlsts": {"benchmark": "xlsts", "part": None},
      "cosine": {"metric": "cosine_f1"},
      "margin": {"metric": "margin_f1"},
      "nq": {"benchmark": "nq"},
      "mkqa": {"benchmark": "mkqa"},
      "tatoeba": {"benchmark": "tatoeba"},
    }.items()
  }
  for key, parts in {
    "sts": values("vmsst", "9", metric="pearson"),
    "xlsts": values("vmsst", "10", metric="pearson"),
    "cosine": values("vmsst", "13", metric="cosine_f1"),
    "margin": values("vmsst", "13", metric="margin_f1"),
    "nq": values("vmsst", "11"),
    "tatoeba": values("vmsst", "14"),
  }.items():
    assert len(parts) == 4
    for system, row in parts.items():
      assert statistics.fmean(row) == pytest.approx(whole[key][system], abs=0.09)
  # As the table's note says, two rows are exchanged.
  mkqa = {system: statistics.fmean(row) for system, row in values("vmsst", "12").items()}
  found = sorted(mkqa.values())
  assert found == pytest.approx(sorted(whole["mkqa"][system] for system in mkqa), abs=0.12)
  assert mkqa["BiTranslation 24L mT5"] < mkqa["VMSST Contrastive 24L mT5"]
  assert "exchanged" in published.find("mkqa", "accuracy", "de")[0].note


def test_seen_and_unseen_languages_give_the_average():
  seen, unseen = (values("vmsst", "8", part=part) for part in ("seen (93)", "unseen (19)"))
  whole = values("vmsst", "1", benchmark="tatoeba")
  assert len(seen) == 6
  for system in seen:
    mean = (93 * seen[system][0] + 19 * unseen[system][0]) / 112
    assert mean == pytest.approx(whole[system][0], abs=0.06)


def test_error_matrices_have_the_averages_at_their_edges():
  for table in ("1", "3", "4", "6"):
    cells, edges = {}, {}
    for number in published.load():
      if (number.paper, number.table) == ("agnostic", table):
        pair = ("*", "*") if number.language is None else tuple(number.language.split("->"))
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


def test_errors_on_wmt_2012_are_percent_of_all_its_sentences():
  for number in published.load():
    if number.benchmark == "wmt2012" and number.language and "*" not in number.language:
      share = round(number.value / 100 * 3003) / 3003
      assert number.value == pytest.approx(100 * share, abs=0.0051)


def test_xsim_errors_are_percent_of_the_flores_sentences():
  for number in published.load():
    if number.benchmark == "xsim" and number.language:  # Over searches among 4 x 1,012 sentences.
      wrong = number.value / 100 * 4 * 1012
      assert number.value == pytest.approx(round(wrong) / 4048 * 100, abs=0.0051)


def test_find_knows_languages_by_any_code_and_directions_apart():
  first, *_ = published.find("tatoeba", "accuracy", "en-de")
  assert first == published.find("tatoeba", "accuracy", "deu-eng")[0]
  assert (first.system, first.value, first.source) == ("LASER", 99.0, "ems, Table IV")
  there, back = (published.find("mldoc", "accuracy", way) for way in ("eng->deu", "deu->eng"))
  assert (there[0].value, back[0].value) == (86.3, 76.7)
  assert published.find("tatoeba", "accuracy", "de-fr") == []
  assert {x.part for x in published.find("sts", "pearson", part="2014")} == {"2014"}


def test_averages_and_results_are_found_by_the_names_of_benchmarks():
  def systems(numbers):
    return {number.system: number.value for number in numbers}

  assert systems(published.for_average("tatoeba", "average"))["VMSST 24L mT5"] == 81.1
  assert systems(published.for_average("tatoeba", "mUSE (15)"))["EMS"] == 96.6
  assert published.for_average("tatoeba", "average seen") == []  # Depends on the languages.
  assert systems(published.for_average("sts", "spearman 2012"))["VMSST 24L mT5"] == 72.7
  assert systems(published.for_average("xlsts", "pearson same language"))["VMSST 24L"] == 77.7
  assert systems(published.for_average("questions", "mkqa"))["VMSST 24L mT5"] == 29.9
  korean = systems(published.for_average("flores", "xsim en fr ja ko ru: ko"))
  assert (len(korean), korean["mE5-base"], korean["LaBSE"]) == (13, 0.4, 0.0)
  assert systems(published.for_average("flores", "xsim en fr ja ko ru"))["mE5-base"] == 0.16
  assert published.for_average("tatoeba", "to English") == []
  assert published.for_average("unknown", "average") == []

  result = published.for_result
  assert systems(result("tatoeba", "deu", ("deu", "eng"), "average"))["EMS"] == 99.3
  assert result("tatoeba", "deu", ("deu", "eng"), "to English") == []
  assert systems(result("questions", "mkqa de", ("de",), "accuracy"))["VMSST 24L mT5"] == 32.5
  assert result("questions", "nq", ("en",), "accuracy") == []
  assert systems(result("cls", "dvd en->fr", ("en", "fr"), "accuracy"))["EMS"] == 78.0
  assert systems(result("wmt2012", "es->cs", ("es", "cs"), "error")) == {"LASER": 0.53}
  assert systems(result("wmt2012", "*->fr", ("*", "fra"), "error")) == {"LASER": 0.86}
  assert systems(result("xlsts", "track4a.es-en", ("es", "en"), "pearson"))
  assert result("xlsts", "track4b.es-en", ("es", "en"), "pearson") == []


def test_benchmarks_here_have_the_names_that_numbers_are_found_by():
  for benchmark, keys in (
    (
      sts.BENCHMARK,
      ["pearson", *(f"{x} {year}" for x in ("pearson", "spearman") for year in YEARS)],
    ),
    (xlsts.BENCHMARK, ["pearson", "spearman", "spearman different languages"]),
    (tatoeba.BENCHMARK, ["average", *tatoeba.GROUPS]),
    (bitext_mining.BUCC, ["cosine_f1", "margin_f1"]),
    (questions.QUESTIONS, ["nq", "mkqa"]),
    (parallel.FLORES, [f"{x} {name}" for x, each in parallel.GROUPS.items() for name in each]),
    (paracrawl.BENCHMARK, ["accuracy"]),
    (agnosticism.WMT2012, ["error"]),
    (documents.MLDOC, ["accuracy", "from English", "into English"]),
    (documents.CLS, ["accuracy"]),
    (documents.AMAZON, ["accuracy"]),
  ):
    assert all(published.for_average(benchmark.name, key) for key in keys)
  names = {each.name for each in (sts.BENCHMARK, xlsts.BENCHMARK, tatoeba.BENCHMARK)}
  names |= {bitext_mining.BUCC.name, questions.QUESTIONS.name}
  assert {name for keys in scores.PARTS.values() for name, _ in keys} == names
