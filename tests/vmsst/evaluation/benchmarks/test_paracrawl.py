import benchmark_runs
import fake_encoders
import line_files
import numpy as np
import pytest

from vmsst import errors, languages
from vmsst.evaluation.benchmarks import paracrawl


def write_pair(root, name, queries, candidates):
  for kind, texts in (("queries", queries), ("candidates", candidates)):
    if texts is not None:
      line_files.write_lines(root / "paracrawl" / f"{name}.{kind}", texts)


def naive_hits(queries, candidates):
  """Returns, by plain loops, how many queries find their translation by cosine and by margin."""
  unit = [[x / np.linalg.norm(x) for x in side] for side in (queries, candidates)]
  cosine = np.array([[x @ y for y in unit[1]] for x in unit[0]])
  mean_x = np.sort(cosine, axis=1)[:, -4:].mean(axis=1)
  mean_y = np.sort(cosine, axis=0)[-4:].mean(axis=0)
  by_cosine = by_margin = 0
  for i, row in enumerate(cosine):
    near = sorted(range(len(row)), key=lambda j, row=row: -row[j])[:4]
    by_cosine += near[0] == i
    by_margin += max(near, key=lambda j, i=i, row=row: row[j] / (mean_x[i] + mean_y[j])) == i
  return by_cosine, by_margin


def test_queries_are_looked_up_by_margin(tmp_path):
  rng = np.random.default_rng(1)
  queries, candidates = [f"x{i}" for i in range(20)], [f"y{i}" for i in range(60)]
  vectors = {text: rng.normal(size=5) + 0.5 for text in (*queries, *candidates)}
  for x, y in zip(queries, candidates, strict=False):
    vectors[y] = vectors[x] + 0.8 * rng.normal(size=5)
  write_pair(tmp_path, "v5.bg-en", queries, candidates)
  write_pair(tmp_path, "v5.yo-en", queries[:2], ["y1", "y0"])
  by_cosine, by_margin = naive_hits(
    *([vectors[text] for text in side] for side in (queries, candidates))
  )
  assert by_cosine != by_margin
  seen = [languages.language(code) for code in ("bg", "en")]
  found = benchmark_runs.run_benchmark(
    paracrawl.BENCHMARK, fake_encoders.table_encoder(vectors), tmp_path, seen=seen
  )
  scores = {each["name"]: each["metrics"]["accuracy"] for each in found["results"]}
  assert scores == pytest.approx({"v5.bg-en": 5 * by_margin, "v5.yo-en": 0})
  assert found["summary"] == pytest.approx(
    {
      "accuracy (incomplete)": scores["v5.bg-en"] / 2,
      "accuracy seen (incomplete)": scores["v5.bg-en"],
      "accuracy unseen (incomplete)": 0,
    }
  )
  assert len(found["missing"]) == 20


@pytest.mark.parametrize(
  ("name", "queries", "candidates", "message"),
  [
    ("a.bg-en", [1, 2], [1], r"queries has 2 lines and .*candidates has 1"),
    ("a.bg-en", [], [1], r"queries has 0 lines"),
    (
      "a.bg-en",
      [1],
      None,
      r"neither .*a.bg-en.candidates nor .*; create the files from ParaCrawl 5",
    ),
    ("a.bg", [1], [1], r"'bg' is not a language pair"),
    ("a.qq-en", [1], [1], r"unknown language code 'qq'"),
  ],
)
def test_broken_files_are_reported(tmp_path, name, queries, candidates, message):
  write_pair(tmp_path, name, queries, candidates)
  with pytest.raises(errors.InputError, match=message):
    paracrawl.read(tmp_path)
