import benchmark_runs
import fake_encoders
import line_files
import numpy as np
import pytest
from scipy import stats

from vmsst import languages
from vmsst.evaluation.benchmarks import stsb

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
  found = benchmark_runs.run_benchmark(
    stsb.BENCHMARK, encoder, tmp_path, seen=[languages.language("de")]
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
