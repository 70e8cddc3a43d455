import gzip

import numpy as np
import pytest
from scipy import stats

from vmsst import errors, languages
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import stsb

ROW = "{split}\tfile\t2012\t{i}\t{gold}\t{code} {x}\tand {code} {y}\n"


class Encoder:
  def encode(self, texts):
    angle = np.array([float(text.split()[-1]) for text in texts])
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


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


def run(root, seen=None):
  results = suite.evaluate(Encoder(), [stsb.BENCHMARK], root, root / "out", name="x", seen=seen)
  return results["benchmarks"]["stsb"]


def test_splits_and_languages_are_averaged_apart(tmp_path):
  rng = np.random.default_rng(0)
  folder = tmp_path / "stsb"
  folder.mkdir()
  (tmp_path / "sts").mkdir()
  text, english = rows("main-news", "main-news", 1379, rng)  # The genre is in the first column.
  (folder / "sts-test.csv").write_text(text, encoding="utf-8")
  train, _ = rows("de", "train", 3, rng)
  test, german = rows("de", "test", 1379, rng)
  dev, german_dev = rows("de", "dev", 5, rng)
  (folder / "stsb.de.mt.tsv.gz").write_bytes(gzip.compress((train + test + dev).encode()))
  text, korean = rows("ko", "dev", 4, rng)
  (folder / "stsb.ko.tsv").write_text(text, encoding="utf-8")
  (tmp_path / "sts" / "JSTS.ja.valid.tsv").write_text("1\ta 1\tb 2\n2\tc 1\td 1\n", "utf-8")
  found = run(tmp_path, [languages.language("de")])
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
  assert {"eng.dev", "de.dev (5 of 1500 pairs)", "ko.test"} <= set(found["missing"])
  assert not {"eng.test", "de.test", "JSTS.ja.valid"} & set(found["missing"])


@pytest.mark.parametrize(
  ("name", "content", "message"),
  [
    ("stsb.de.tsv", "valid\tf\t1\t1\t2\ta\tb\n", r"stsb.de.tsv:1: 'valid' is not train, dev or"),
    ("stsb.de.tsv", "dev\tf\t1\t1\t\ta\tb\n", r"stsb.de.tsv:1: '' is no score"),
    ("stsb.de.tsv", "train\tf\t1\t1\t1\ta\tb\n", r"stsb.de.tsv: no pair of dev or test"),
    ("stsb.qq.tsv", "dev\tf\t1\t1\t1\ta\tb\n", r"unknown language code 'qq'"),
    ("sts-dev.csv", "genre\tf\t1\t1\t1\ta\n", r"sts-dev.csv:1: 6 fields"),
    ("other.tsv", "", r"holds no stsb.\*.tsv or sts-dev.csv or sts-test.csv; English is"),
  ],
)
def test_broken_files_are_told(tmp_path, name, content, message):
  folder = tmp_path / "stsb"
  folder.mkdir()
  (folder / name).write_text(content, encoding="utf-8")
  with pytest.raises(errors.InputError, match=message):
    stsb.read(tmp_path)
