"""Runs of one benchmark by the function behind `vmsst eval`."""

import json

from vmsst.evaluation import suite


def run_benchmark(benchmark, encoder, root, **options):
  """Evaluates `encoder` on the files under `root`; returns the results of `benchmark`."""
  results = suite.evaluate(encoder, [benchmark], root, root / "out", name="x", **options)
  assert json.loads((root / "out" / suite.RESULTS_FILE).read_text(encoding="utf-8")) == results
  return results["benchmarks"][benchmark.name]
