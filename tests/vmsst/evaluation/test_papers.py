import collections

import pytest

from vmsst.evaluation import benchmarks, papers
from vmsst.evaluation.benchmarks import bitext_retrieval


def test_published_numbers_are_looked_up_by_name_and_languages():
  result = papers.for_result
  assert papers.for_average("tatoeba", "average (incomplete)") == []
  # Languages match in any code standard and, without an arrow, in either order.
  first, *_ = result("tatoeba", "deu", ("de", "en"), "average")
  assert first == result("tatoeba", "deu", ("eng", "deu"), "average")[0]
  assert result("tatoeba", "deu", ("deu", "fra"), "average") == []
  assert result("mldoc", "en->de", ("eng", "deu"), "accuracy")[0].value == 86.3
  assert result("mldoc", "de->en", ("deu", "eng"), "accuracy")[0].value == 76.7
  assert result("cls", "dvd en->fr", ("en", "fr"), "accuracy")
  assert result("questions", "mkqa de", ("deu",), "accuracy")
  assert [x.value for x in result("wmt2012", "*->fr", ("*", "fra"), "error")] == [0.86]
  assert result("xlsts", "track4a.es-en", ("es", "en"), "pearson")
  assert result("xlsts", "track4b.es-en", ("es", "en"), "pearson") == []


def test_averages_of_benchmarks_have_published_numbers():
  keys = [
    *papers.content()["main"],
    *(key for averages in papers.SCORE_COMPONENTS.values() for key in averages),
    *(("sts", f"{x} {year}") for x in ("pearson", "spearman") for year in range(2012, 2017)),
    *(("xlsts", f"{x} different languages") for x in ("pearson", "spearman")),
    *(("tatoeba", name) for name in bitext_retrieval.TATOEBA_GROUPS),
    *(
      ("flores", f"{metric} {name}")
      for metric, groups in bitext_retrieval.FLORES_GROUPS.items()
      for name in groups
    ),
    *(("mldoc", f"accuracy {direction} English") for direction in ("from", "into")),
  ]
  for benchmark, name in keys:
    assert benchmark in benchmarks.BENCHMARKS
    assert papers.for_average(benchmark, name)


def printed_rows():
  """Returns results and Scores of the rows in Tables 1, 4 and 7 of the VMSST paper."""
  keys = [key for averages in papers.SCORE_COMPONENTS.values() for key in averages]
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


def test_published_components_give_the_published_score():
  rows = printed_rows()
  assert len(rows) == 12 + 9 + 12
  for results, (score,) in rows.values():
    assert papers.overall_score(results)["Score"] == pytest.approx(score, abs=0.06)
  # An incomplete component gives no Score.
  summary = results["benchmarks"]["tatoeba"]["summary"]
  summary["average (incomplete)"] = summary.pop("average")
  assert papers.overall_score(results) == {}
