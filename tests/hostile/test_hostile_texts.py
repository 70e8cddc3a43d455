"""Malformed text files: each reader reads them or raises one clear error."""

import json

import pytest
import text_readers
import trials
from hypothesis import given, settings
from hypothesis import strategies as st

_QUICK = 22
_KEYS = (
  "translation", "de", "en", "question", "answer", "queries", "answers", "text", "aliases", "name",
  "language", "stars", "review_body", "encoder", "absent", "benchmarks", "results", "step", "src",
  "errtype", "languages", "corpora", "cap", "caps", "validation", "share", "cleaning", "seed",
)  # fmt: skip
_JSON = st.recursive(
  st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
  lambda inner: (
    st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=5)
  ),
  max_leaves=8,
)


@pytest.mark.parametrize("reader", text_readers.READERS, ids=lambda reader: reader.name)
def test_malformed_files_are_read_or_refused(reader, tmp_path):
  print(trials.run(reader, trials.cases(reader, _QUICK), tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("reader", text_readers.READERS, ids=lambda reader: reader.name)
def test_many_more_malformed_files_are_read_or_refused(reader, tmp_path):
  print(trials.run(reader, trials.cases(reader, 20 * _QUICK, seed=1), tmp_path))


@settings(derandomize=True, database=None, deadline=None, max_examples=30)
@given(_JSON)
def test_any_json_is_read_or_refused(tmp_path_factory, value):
  place = tmp_path_factory.getbasetemp() / "json"
  for reader in text_readers.READERS:
    for hostile in reader.json:
      for name, content in reader.files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(json.dumps(value).encode() if name == hostile else content)
      outcome, _ = trials.attempt(reader, place)
      assert outcome in ("read", "refused"), (reader.name, outcome)
