import benchmark_trees
import fake_encoders
import line_files
import numpy as np
import pytest
from scipy import stats

from vmsst import languages
from vmsst.evaluation.benchmarks import sts

OFFICIAL = {  # Names in the archives.
  "2012": "MSRpar MSRvid SMTeuroparl surprise.OnWN surprise.SMTnews",
  "2013": "FNWN headlines OnWN SMT",
  "2014": "deft-forum deft-news headlines images OnWN tweet-news",
  "2015": "answers-forums answers-students belief headlines images",
  "2016": "answer-answer headlines plagiarism postediting question-question",
}
ENCODER = fake_encoders.FakeEncoder(fake_encoders.angle_vector)


def pairs(name, count, rng):
  """Returns pairs of sentences with an angle as their last word, cosines, and scores."""
  angle_N = np.round(rng.uniform(0.3, 2.8, count), 6)
  rows = [(f"{name} first 0", f"{name} second {angle}") for angle in angle_N]
  return rows, np.cos(angle_N), np.round(rng.uniform(0, 5, count), 2)


def both(cosine_N, score_N):
  return {
    name: pytest.approx(100 * function(cosine_N, score_N).statistic, abs=1e-2)
    for name, function in (("pearson", stats.pearsonr), ("spearman", stats.spearmanr))
  }


def test_averages_of_the_archives_equal_plain_loops(tmp_path):
  rng = np.random.default_rng(0)
  sets = {}
  for year, names in OFFICIAL.items():
    prefix = "STS2016" if year == "2016" else "STS"
    for name in names.split():
      rows, cosine_N, score_N = pairs(name, 6, rng)
      unscored = year in ("2015", "2016")
      lines = ["", *score_N[1:]] if unscored else score_N
      line_files.write_tsv(tmp_path / "sts" / year / f"{prefix}.input.{name}.txt", rows)
      line_files.write_lines(tmp_path / "sts" / year / f"{prefix}.gs.{name}.txt", lines)
      sets[year, name.removeprefix("surprise.")] = cosine_N[unscored:], score_N[unscored:]
  assert {year: tuple(n for y, n in sets if y == year) for year in sts.SETS} == sts.SETS
  scored = benchmark_trees.run_benchmark(sts.STS, ENCODER, tmp_path)
  assert scored["missing"] == []
  by_name = {x["name"]: x["metrics"] for x in scored["results"]}
  for (year, name), arrays in sets.items():
    assert by_name[f"STS{year[2:]}.{name}"] == both(*arrays)
  expected = {}
  for year in sts.SETS:
    r = [stats.pearsonr(*arrays).statistic for (y, _), arrays in sets.items() if y == year]
    expected[f"pearson {year}"] = 100 * np.mean(r)
    selected = [arrays for (y, name), arrays in sets.items() if y == year and name != "SMT"]
    year_arrays = map(np.concatenate, zip(*selected, strict=True))
    expected[f"spearman {year}"] = 100 * stats.spearmanr(*year_arrays).statistic
  for metric in sts.METRICS:
    expected[metric] = np.mean([expected[f"{metric} {year}"] for year in sts.SETS])
  assert scored["summary"] == pytest.approx(expected, abs=1e-2)
  (tmp_path / "sts/2013/STS.input.SMT.txt").unlink()
  scored = benchmark_trees.run_benchmark(sts.STS, ENCODER, tmp_path)
  assert scored["missing"] == ["STS13.SMT"]
  incomplete = {"pearson", "pearson 2013"}
  names = {f"{x} (incomplete)" if x in incomplete else x for x in expected}
  assert scored["summary"].keys() == names


def test_correlations_equal_scipy_with_ties_and_rounding_errors():
  rng = np.random.default_rng(0)
  first, second = rng.normal(size=[40, 6]), rng.normal(size=[40, 6])
  second[::2] += 2 * first[::2]
  second[3], first[3] = second[5], first[5]  # Two pairs have equal cosines.
  first[7] = 0
  scores = rng.integers(0, 6, 40)  # Many scores are equal.
  norms = [np.sqrt((x @ x) * (y @ y)) or 1 for x, y in zip(first, second, strict=True)]
  expected = [x @ y / norm for x, y, norm in zip(first, second, norms, strict=True)]
  expected[3] = expected[5]
  cosine_N = sts.cosines(7 * first, 0.1 * second)
  np.testing.assert_allclose(cosine_N, expected, atol=1e-6)
  metrics = sts.correlations(cosine_N + rng.uniform(0, 1e-7, 40), scores)
  assert metrics == both(expected, scores)
  spearman = stats.spearmanr(expected, scores).statistic
  assert metrics["spearman"] == pytest.approx(100 * spearman, abs=1e-10)


def test_equal_values_have_no_correlation():
  rising, same = np.arange(3.0), np.array([0.5, 0.5 + 1e-8, 0.5 - 1e-8])
  for cosine_N, score_N in ((same, rising), (rising, np.ones(3)), (np.ones(1), np.ones(1))):
    with pytest.raises(ValueError, match=r"all \d cosines or scores are equal"):
      sts.correlations(cosine_N, score_N)


def test_splits_and_languages_are_averaged_apart(tmp_path):
  rng = np.random.default_rng(0)
  names = ("eng.test", "de.train", "de.test", "de.dev", "ko.dev")
  paths = {"eng": "sts-test.csv", "de": "stsb.de.mt.tsv.gz", "ko": "stsb.ko.tsv"}
  lines, expected = {}, {}
  for name, count in zip(names, (1379, 3, 1379, 5, 4), strict=True):
    code, split = name.split(".")
    # Published English files have the genre in the column of the split.
    first_column = "main-news" if code == "eng" else split
    rows, cosine_N, score_N = pairs(code, count, rng)
    lines.setdefault(code, []).extend(
      (first_column, "file", 2012, 1, score, *row) for score, row in zip(score_N, rows, strict=True)
    )
    expected[name] = both(cosine_N, score_N)
  for code, path in paths.items():
    line_files.write_tsv(tmp_path / "stsb" / path, lines[code])
  scored = benchmark_trees.run_benchmark(
    sts.STSB, ENCODER, tmp_path, seen=[languages.language("de")]
  )
  by_name = {x["name"].split(" ")[0]: x["metrics"] for x in scored["results"]}
  del expected["de.train"]
  assert by_name == expected
  assert "de.dev (5 of 1500 pairs)" in {x["name"] for x in scored["results"]}
  english, german = by_name["eng.test"], by_name["de.test"]
  dev = [by_name[name]["spearman"] for name in ("de.dev", "ko.dev")]
  summary = {
    "pearson test (incomplete)": (english["pearson"] + german["pearson"]) / 2,
    "pearson test seen (incomplete)": german["pearson"],
    "pearson test unseen (incomplete)": english["pearson"],
    "spearman dev (incomplete)": np.mean(dev),
  }
  assert {name: scored["summary"][name] for name in summary} == pytest.approx(summary)
  assert not {"pearson test", "spearman dev"} & scored["summary"].keys()
  assert {"eng.dev", "de.dev", "ko.test"} <= set(scored["missing"])
  assert not {"eng.test", "de.test"} & set(scored["missing"])


TRACKS = ("1.ar-ar", "2.ar-en", "3.es-es", "4a.es-en", "4b.es-en", "5.en-en", "6.tr-en")


def test_averages_of_tracks_follow_the_paper_and_encoders_get_languages(tmp_path):
  rng = np.random.default_rng(0)
  folder = tmp_path / "xlsts"
  expected = {}
  for track in TRACKS:
    rows, cosine_N, score_N = pairs(track, 5, rng)
    rows += [("not", "scored")] * (5 if track == "6.tr-en" else 0)
    line_files.write_tsv(folder / f"STS.input.track{track}.txt", [(*row, "note") for row in rows])
    line_files.write_lines(folder / f"STS.gs.track{track}.txt", score_N)
    expected[f"track{track}"] = both(cosine_N, score_N)
  encoder = fake_encoders.PolyglotEncoder(fake_encoders.angle_vector)
  scored = benchmark_trees.run_benchmark(sts.XLSTS, encoder, tmp_path)
  by_name = {x["name"]: x["metrics"] for x in scored["results"]}
  assert by_name == expected
  groups = {" same language": ("1.ar-ar", "3.es-es")}
  groups[" different languages"] = ("2.ar-en", "4a.es-en", "6.tr-en")
  groups[""] = (*groups[" same language"], *groups[" different languages"])
  assert scored["summary"] == pytest.approx(
    {
      metric + group: np.mean([by_name[f"track{track}"][metric] for track in tracks])
      for metric in sts.METRICS
      for group, tracks in groups.items()
    }
  )
  code = {tuple(text.split()[:2]): code for text, code in encoder.languages.items()}
  # The files have English first, except in track 4a.
  for track, languages_of_track in (
    ("2.ar-en", ("en", "ar")),
    ("4b.es-en", ("en", "es")),
    ("6.tr-en", ("en", "tr")),
    ("4a.es-en", ("es", "en")),
  ):
    assert (code[track, "first"], code[track, "second"]) == languages_of_track
