"""Malformed model and vector files: each reader reads them or raises one clear error."""

import model_readers
import pytest
import trials

pytest.importorskip("torch", reason="needs torch to make its files")
pytest.importorskip("tokenizers", reason="needs tokenizers to make its files")

_SMALL = [reader.name for reader in model_readers.small()]
_LARGE = [reader.name for reader in model_readers.large()]
_BY_NAME = {each.name: each for each in (*model_readers.small(), *model_readers.large())}


@pytest.mark.parametrize(
  ("name", "count"), [*((x, 20) for x in _SMALL), *((x, 12) for x in _LARGE)]
)
def test_malformed_files_are_read_or_refused(name, count, tmp_path):
  reader = _BY_NAME[name]
  print(trials.run(reader, trials.cases(reader, count), tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "count"), [*((x, 1000) for x in _SMALL), *((x, 200) for x in _LARGE)]
)
def test_many_more_malformed_files_are_read_or_refused(name, count, tmp_path):
  reader = _BY_NAME[name]
  print(trials.run(reader, trials.cases(reader, count, seed=1), tmp_path))
