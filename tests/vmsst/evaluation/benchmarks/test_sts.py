import benchmark_runs
import fake_encoders
import line_files
import numpy as np
import pytest
from scipy import stats

from vmsst import errors
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
  found = benchmark_runs.run_benchmark(sts.BENCHMARK, ENCODER, root)
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


def test_an_average_without_a_set_has_another_name(official):
  root, _ = official
  for name in ("STS.input.SMT.txt", "STS.gs.SMT.txt"):
    (root / "sts/2013" / name).unlink()
  found = benchmark_runs.run_benchmark(sts.BENCHMARK, ENCODER, root)
  assert found["missing"] == ["STS13.SMT"]
  assert {"pearson (incomplete)", "pearson 2013 (incomplete)"} <= found["summary"].keys()
  assert {"spearman", "spearman 2013", "pearson 2012"} <= found["summary"].keys()
  assert not {"pearson", "pearson 2013"} & found["summary"].keys()


def test_tables_are_read_too_and_one_set_suffices(tmp_path):
  folder = tmp_path / "sts"
  folder.mkdir()
  lines = "1\ta\tb\n3.5\tc\td\n2\te\tf\n"
  (folder / "STS12.SMTnews.tsv").write_text(lines, encoding="utf-8")
  (folder / "STS12.SMTeuroparl.train.tsv").write_text("broken\n", encoding="utf-8")
  (folder / "JSTS.ja.valid.tsv").write_text("broken\n", encoding="utf-8")
  found = benchmark_runs.run_benchmark(sts.BENCHMARK, ENCODER, tmp_path)
  assert [each["name"] for each in found["results"]] == ["STS12.SMTnews", "STS12"]
  assert found["results"][1]["metrics"].keys() == {"spearman (incomplete)"}
  expected = stats.pearsonr(cosines([("a", "b"), ("c", "d"), ("e", "f")]), [1, 3.5, 2]).statistic
  assert found["summary"]["pearson (incomplete)"] == pytest.approx(100 * expected, abs=1e-3)
  assert len(found["missing"]) == sum(map(len, sts.SETS.values())) - 1
  write_pairs(folder / "2012", "surprise.SMTnews", [("a", "b")], [1])
  with pytest.raises(errors.InputError, match=r"SMTnews.tsv and .* are both STS12.SMTnews"):
    sts.read(tmp_path)


def test_vectors_that_are_all_equal_correlate_with_nothing(official):
  constant = fake_encoders.FakeEncoder(lambda text: [1, 1, 1])
  with pytest.raises(ValueError, match=r"STS12.MSRpar: all 6 values are"):
    benchmark_runs.run_benchmark(sts.BENCHMARK, constant, official[0])
  (official[0] / "empty" / "sts").mkdir(parents=True)
  with pytest.raises(errors.InputError, match=r"has no YEAR/STS\.input"):
    sts.read(official[0] / "empty")
