import benchmark_trees
import fake_encoders
import line_files
import numpy as np
import pytest

from vmsst import languages
from vmsst.evaluation.benchmarks import paracrawl
from vmsst.evaluation.metrics import retrieval


def test_queries_are_looked_up_by_margin(tmp_path):
  rng = np.random.default_rng(1)
  queries, candidates = [f"x{i}" for i in range(20)], [f"y{i}" for i in range(60)]
  vectors = {text: rng.normal(size=5) + 0.5 for text in (*queries, *candidates)}
  for x, y in zip(queries, candidates, strict=False):
    vectors[y] = vectors[x] + 0.8 * rng.normal(size=5)
  for name, sides in {"bg": (queries, candidates), "yo": (queries[:2], ["y1", "y0"])}.items():
    for kind, texts in zip(("queries", "candidates"), sides, strict=True):
      line_files.write_lines(tmp_path / "paracrawl" / f"v5.{name}-en.{kind}", texts)
  sides = (np.array([vectors[text] for text in side]) for side in (queries, candidates))
  forward, _ = retrieval.nearest(*sides)  # `test_retrieval.py` compares it with loops.
  by_cosine, by_margin = (sum(x == np.arange(20)) for x in (forward.cosine_N, forward.margin_N))
  assert by_cosine != by_margin
  seen = [languages.language(code) for code in ("bg", "en")]
  found = benchmark_trees.run_benchmark(
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
