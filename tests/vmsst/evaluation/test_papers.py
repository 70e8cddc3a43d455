from vmsst.evaluation import benchmarks, papers
from vmsst.evaluation.benchmarks import averages, parallel, tatoeba


def test_numbers_of_results_are_found_by_their_names_and_languages():
  result = papers.for_result
  assert papers.find("tatoeba", "average (incomplete)") == []
  # Languages match in any code and, without an arrow, in either order.
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


def test_benchmarks_here_have_the_names_that_numbers_are_found_by():
  keys = [
    *papers.content()["main"],
    *(key for part in averages.SCORE_PARTS.values() for key in part),
    *(("sts", f"{x} {year}") for x in ("pearson", "spearman") for year in range(2012, 2017)),
    *(("xlsts", f"{x} different languages") for x in ("pearson", "spearman")),
    *(("tatoeba", name) for name in tatoeba.GROUPS),
    *(("flores", f"{x} {name}") for x, each in parallel.GROUPS.items() for name in each),
    *(("mldoc", f"accuracy {way} English") for way in ("from", "into")),
  ]
  for benchmark, name in keys:
    assert benchmark in benchmarks.BENCHMARKS
    assert papers.find(benchmark, name, papers=papers.content()["papers"])
