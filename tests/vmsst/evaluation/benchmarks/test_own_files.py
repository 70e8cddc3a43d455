import json

import line_files
import numpy as np
import pytest

from vmsst import errors
from vmsst.evaluation.benchmarks import own_files

LABELED = (("a", "a", 0), ("a", "b", 1), ("a", "c", -1), ("b", "b", 2), ("c", "c", 0))


@pytest.mark.parametrize(
  ("name", "line"),
  [
    ("after.tsv", lambda query, text, label: f"{query}\t{text}\t{label}"),
    ("before.tsv", lambda query, text, label: f"{label}\t{query}\t{text}"),
    ("x.jsonl", lambda *row: json.dumps(dict(zip(("query", "text", "rank"), row, strict=True)))),
    ("texts.jsonl", lambda a, b, x: json.dumps({"query": a, "text": b, "label": str(x)})),
  ],
)
def test_texts_with_a_label_of_0_are_searched_but_not_relevant(tmp_path, name, line):
  line_files.write_lines(tmp_path / name, [line(*row) for row in LABELED])
  (benchmark,) = own_files.benchmarks(retrieval=[str(tmp_path / name)])
  (task,) = benchmark.read(None)
  vectors = {"a": (1.0, 0.0), "b": (0.0, 1.0), "c": (-1.0, 0.0)}
  queries_and_texts = (np.array([vectors[y] for y in x.texts]) for x in task.text_sets)
  (result,) = task.score(*queries_and_texts)
  assert result.metrics["accuracy"] == 50  # The query a finds the text a, but it is not relevant.
  assert result.metrics["MRR@10"] == 75


@pytest.mark.parametrize(
  ("lines", "message"),
  [
    (["a\ta\t0", "b\tb\t0"], "no text has a label above 0"),
    (["a\ta\tgood"], ":1: 'good' is not a score; use a number"),
  ],
)
def test_labels_that_cannot_be_used_are_named(tmp_path, lines, message):
  line_files.write_lines(tmp_path / "x.tsv", lines)
  (benchmark,) = own_files.benchmarks(retrieval=[str(tmp_path / "x.tsv")])
  with pytest.raises(errors.InputError, match=message):
    benchmark.read(None)
