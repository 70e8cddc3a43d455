"""Retrieval sets in BEIR's layout."""

import json

import pytest

from vmsst import errors
from vmsst.data import retrieval_sets


def write(folder, qrels="q1\td2\t1\nq1\td1\t0\n"):
  (folder / "qrels").mkdir()
  documents = [{"_id": "d1", "title": "T", "text": "one"}, {"_id": "d2", "text": "two"}]
  queries = [{"_id": "q1", "text": "what"}, {"_id": "q2", "text": "not judged"}]
  for name, records in (("corpus", documents), ("queries", queries)):
    (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(x)}\n" for x in records))
  (folder / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{qrels}")


def test_judged_queries_all_documents_and_grades(tmp_path):
  write(tmp_path)
  retrieval_set = retrieval_sets.read(tmp_path)
  assert retrieval_set.queries == {"q1": "what"}
  assert retrieval_set.documents == {"d1": "T one", "d2": "two"}
  assert retrieval_set.relevance == {"q1": {"d2": 1, "d1": 0}}
  assert retrieval_set.with_prompts("q: ", "d: ").documents == {"d1": "d: T one", "d2": "d: two"}


@pytest.mark.parametrize("line", ["q3\td1\t1", "q1\td9\t1", "q1\td1", "q1\td1\tx"])
def test_a_judgment_that_does_not_fit_is_named(tmp_path, line):
  write(tmp_path, f"{line}\n")
  with pytest.raises(errors.InputError, match=r"test\.tsv:2: .*write a query id"):
    retrieval_sets.read(tmp_path)
