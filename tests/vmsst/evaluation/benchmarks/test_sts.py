import benchmark_trees
import fake_encoders
import line_files
import numpy as np
import pytest
from scipy import stats

from vmsst import languages
from vmsst.evaluation.benchmarks import sts

OFFICIAL = {  # Names as in the archives.
  "STS12-en-test": "MSRpar MSRvid SMTeuroparl surprise.OnWN surprise.SMTnews",
  "2013": "FNWN headlines OnWN SMT",
  "sts-2014": "deft-forum deft-news headlines images OnWN tweet-news",
  "STS2015-en-test": "answers-forums answers-students belief headlines images",
  "2016/sts2016-english-with-gs-v1.0": (
    "answer-answer headlines plagiarism postediting question-question"
  ),
}


ENCODER = fake_encoders.FakeEncoder(fake_encoders.random_vector)


def cosines(pairs):
  first, second = (ENCODER.encode(side) for side in zip(*pairs, strict=True))
  norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
  return (first * second).sum(axis=1) / norms


def write_pairs(folder, name, pairs, scores, prefix="STS"):
  line_files.write_tsv(folder / f"{prefix}.input.{name}.txt", pairs)
  line_files.write_lines(folder / f"{prefix}.gs.{name}.txt", scores)


@pytest.fixture
def official(tmp_path):
  """Writes all sets in the layout of the archives; returns pairs and scores by year and set."""
  rng = np.random.default_rng(0)
  sets = {}
  for folder, names in OFFICIAL.items():
    year = next(year for year in sts.SETS if year[2:] in folder)
    for name in names.split():
      pairs = [(f"{year} {name} {i}", f"and {i} {name}") for i in range(6)]
      scores = np.round(rng.uniform(0, 5, 6), 1).tolist()
      written = ["", *scores[1:]] if year in ("2015", "2016") else scores
      prefix = "STS2016" if year == "2016" else "STS"
      write_pairs(tmp_path / "sts" / folder, name, pairs, written, prefix)
      first = 1 if written[0] == "" else 0
      sets[year, name.removeprefix("surprise.")] = pairs[first:], scores[first:]
  return tmp_path, sets


def test_archives_give_the_averages_of_plain_loops(official):
  root, sets = official
  assert {year: tuple(n for y, n in sets if y == year) for year in sts.SETS} == sts.SETS
  write_pairs(root / "sts/STS2012-en-train/train", "MSRpar", [("left", "out")], [1])
  found = benchmark_trees.run_benchmark(sts.STS, ENCODER, root)
  assert found["missing"] == []
  by_name = {each["name"]: each["metrics"] for each in found["results"]}
  pearson, spearman = {}, {}
  for year in sts.SETS:
    of_year = {name: both for (y, name), both in sets.items() if y == year}
    values = []
    for name, (pairs, scores) in of_year.items():
      r = 100 * stats.pearsonr(cosines(pairs), scores).statistic
      rho = 100 * stats.spearmanr(cosines(pairs), scores).statistic
      expected = {"pearson": r, "spearman": rho}
      assert by_name[f"STS{year[2:]}.{name}"] == pytest.approx(expected, abs=1e-3)
      values.append(r)
    pearson[year] = np.mean(values)
    together = [both for name, both in of_year.items() if name != "SMT"]
    x = np.concatenate([cosines(pairs) for pairs, _ in together])
    y = np.concatenate([scores for _, scores in together])
    spearman[year] = 100 * stats.spearmanr(x, y).statistic
  expected = {"pearson": np.mean(list(pearson.values()))}
  expected["spearman"] = np.mean(list(spearman.values()))
  expected |= {f"pearson {year}": value for year, value in pearson.items()}
  expected |= {f"spearman {year}": value for year, value in spearman.items()}
  assert found["summary"] == pytest.approx(expected, abs=1e-3)
  for kind in ("input", "gs"):
    (root / f"sts/2013/STS.{kind}.SMT.txt").unlink()
  found = benchmark_trees.run_benchmark(sts.STS, ENCODER, root)
  assert found["missing"] == ["STS13.SMT"]
  lacking = {"pearson", "pearson 2013"}
  assert found["summary"].keys() == {f"{x} (incomplete)" if x in lacking else x for x in expected}


def test_tables_are_read_too_and_one_set_suffices(tmp_path):
  folder = tmp_path / "sts"
  folder.mkdir()
  lines = "1\ta\tb\n3.5\tc\td\n2\te\tf\n"
  (folder / "STS12.SMTnews.tsv").write_text(lines, encoding="utf-8")
  (folder / "STS12.SMTeuroparl.train.tsv").write_text("broken\n", encoding="utf-8")
  (folder / "JSTS.ja.valid.tsv").write_text("broken\n", encoding="utf-8")
  found = benchmark_trees.run_benchmark(sts.STS, ENCODER, tmp_path)
  assert [each["name"] for each in found["results"]] == ["STS12.SMTnews", "STS12"]
  assert found["results"][1]["metrics"].keys() == {"spearman (incomplete)"}
  expected = stats.pearsonr(cosines([("a", "b"), ("c", "d"), ("e", "f")]), [1, 3.5, 2]).statistic
  assert found["summary"]["pearson (incomplete)"] == pytest.approx(100 * expected, abs=1e-3)
  assert len(found["missing"]) == sum(map(len, sts.SETS.values())) - 1


def test_correlations_equal_scipy_with_ties_and_rounding_errors():
  rng = np.random.default_rng(0)
  first, second = rng.normal(size=[40, 6]), rng.normal(size=[40, 6])
  second[::2] += 2 * first[::2]
  second[3], first[3] = second[5], first[5]  # two equal cosines
  scores = rng.integers(0, 6, 40)  # many equal scores
  expected = [x @ y / np.sqrt((x @ x) * (y @ y)) for x, y in zip(first, second, strict=True)]
  expected[3] = expected[5]
  cosine_N = sts.cosines(7 * first, 0.1 * second)
  np.testing.assert_allclose(cosine_N, expected, atol=1e-6)
  found = sts.correlations(cosine_N + rng.uniform(0, 1e-7, 40), scores)
  pearson, spearman = (x(expected, scores).statistic for x in (stats.pearsonr, stats.spearmanr))
  assert found["pearson"] == pytest.approx(100 * pearson, abs=1e-4)
  assert found["spearman"] == pytest.approx(100 * spearman, abs=1e-10)
  rising = np.array([1.0, 2.0, 4.0])
  assert sts.correlations(rising, 1e-200 * rising)["pearson"] == pytest.approx(100)
  np.testing.assert_allclose(
    sts.cosines(np.array([[0, 0], [1, 1]]), np.array([[1, 0], [1, 0]])), [0, np.sqrt(0.5)]
  )


def test_equal_values_have_no_correlation():
  rising, same = np.arange(3.0), np.array([0.5, 0.5 + 1e-8, 0.5 - 1e-8])
  for cosine_N, score_N in ((same, rising), (rising, np.ones(3)), (np.ones(1), np.ones(1))):
    with pytest.raises(ValueError, match=r"all \d cosines or scores are equal"):
      sts.correlations(cosine_N, score_N)


ROW = "{split}\tfile\t2012\t{i}\t{gold}\t{code} {x}\tand {code} {y}\n"


def rows(code, split, count, rng):
  numbers = np.round(rng.uniform(0, 1, [count, 3]), 3)
  lines = [
    ROW.format(split=split, i=i, code=code, gold=gold, x=x, y=y)
    for i, (gold, x, y) in enumerate(numbers)
  ]
  gold, x, y = numbers.T
  return "".join(lines), {
    "pearson": 100 * stats.pearsonr(np.cos(x - y), gold).statistic,
    "spearman": 100 * stats.spearmanr(np.cos(x - y), gold).statistic,
  }


def test_splits_and_languages_are_averaged_apart(tmp_path):
  rng = np.random.default_rng(0)
  folder = tmp_path / "stsb"
  text, english = rows("main-news", "main-news", 1379, rng)  # The genre is in the first column.
  line_files.write_text(folder / "sts-test.csv", text)
  train, _ = rows("de", "train", 3, rng)
  test, german = rows("de", "test", 1379, rng)
  dev, german_dev = rows("de", "dev", 5, rng)
  line_files.write_text(folder / "stsb.de.mt.tsv.gz", train + test + dev)
  text, korean = rows("ko", "dev", 4, rng)
  line_files.write_text(folder / "stsb.ko.tsv", text)
  rated = [(1, "a 1", "b 2"), (2, "c 1", "d 1")]
  line_files.write_tsv(tmp_path / "sts" / "JSTS.ja.valid.tsv", rated)
  encoder = fake_encoders.FakeEncoder(fake_encoders.angle_vector)
  found = benchmark_trees.run_benchmark(
    sts.STSB, encoder, tmp_path, seen=[languages.language("de")]
  )
  by_name = {each["name"]: each["metrics"] for each in found["results"]}
  names = ["eng.test", "de.test", "de.dev (5 of 1500 pairs)", "ko.dev (4 of 1500 pairs)"]
  assert sorted(by_name) == sorted([*names, "JSTS.ja.valid"])
  for name, expected in zip(names, (english, german, german_dev, korean), strict=True):
    assert by_name[name] == pytest.approx(expected, abs=1e-2)
  summary = found["summary"]
  assert summary["spearman test English"] == pytest.approx(english["spearman"], abs=1e-2)
  for name, expected in {
    "pearson test (incomplete)": (english["pearson"] + german["pearson"]) / 2,
    "pearson test other languages (incomplete)": german["pearson"],
    "pearson test seen (incomplete)": german["pearson"],
    "pearson test unseen (incomplete)": english["pearson"],
    "spearman dev (incomplete)": (german_dev["spearman"] + korean["spearman"]) / 2,
  }.items():
    assert summary[name] == pytest.approx(expected, abs=1e-2)
  assert not {"pearson test", "spearman dev", "spearman dev English"} & summary.keys()
  assert {"eng.dev", "de.dev", "ko.test"} <= set(found["missing"])
  assert not {"eng.test", "de.test", "JSTS.ja.valid"} & set(found["missing"])


TRACKS = ("1.ar-ar", "2.ar-en", "3.es-es", "4a.es-en", "4b.es-en", "5.en-en", "6.tr-en")


@pytest.fixture
def archives(tmp_path):
  """Writes both archives, unpacked next to each other; returns angles and scores by track."""
  rng = np.random.default_rng(0)
  texts, golds = (tmp_path / "xlsts" / name for name in ("STS2017.eval.v1.1", "STS2017.gs"))
  sets = {}
  for track in TRACKS:
    angles, scores = np.round(rng.uniform(0, 1, [5, 2]), 2), np.round(rng.uniform(0, 5, 5), 1)
    lines = [f"{track} first {x}\t{track} second {y}\tnote\tnote\n" for x, y in angles]
    if track == "6.tr-en":
      lines += ["not\tscored\n"] * 5
    line_files.write_text(texts / f"STS.input.track{track}.txt", "".join(lines))
    line_files.write_lines(golds / f"STS.gs.track{track}.txt", scores)
    sets[track] = np.cos(angles[:, 0] - angles[:, 1]), scores
  return tmp_path, sets


def test_averages_are_those_of_the_paper_and_encoders_get_languages(archives):
  root, sets = archives
  encoder = fake_encoders.PolyglotEncoder(fake_encoders.angle_vector)
  found = benchmark_trees.run_benchmark(sts.XLSTS, encoder, root)
  assert [each["name"] for each in found["results"]] == [f"track{track}" for track in TRACKS]
  for metric, function in (("pearson", stats.pearsonr), ("spearman", stats.spearmanr)):
    value = {
      track[-5:]: 100 * function(*sets[track]).statistic for track in TRACKS if "b" not in track
    }
    same, different = [value["ar-ar"], value["es-es"]], ["ar-en", "es-en", "tr-en"]
    different = [value[pair] for pair in different]
    summary = found["summary"]
    assert summary[metric] == pytest.approx(np.mean(same + different), abs=1e-3)
    assert summary[f"{metric} same language"] == pytest.approx(np.mean(same), abs=1e-3)
    assert summary[f"{metric} different languages"] == pytest.approx(np.mean(different), abs=1e-3)
  assert len(found["summary"]) == 6
  told = {tuple(text.split()[:2]): code for text, code in encoder.languages.items()}
  # English comes first in these three files, and second in track 4a.
  assert [told[f"{track}-en", "first"] for track in ("2.ar", "4b.es", "6.tr")] == ["en"] * 3
  assert [told[f"{track}-en", "second"] for track in ("2.ar", "4b.es", "6.tr")] == [
    "ar",
    "es",
    "tr",
  ]
  assert (told["4a.es-en", "first"], told["4a.es-en", "second"]) == ("es", "en")
