"""Fixtures shared by all tests."""

import os
import pathlib

import pytest

_DEFAULT_DATA = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def data_root() -> pathlib.Path:
  """Folder of the real test data ($VMSST_TEST_DATA); skips the test where it is absent."""
  root = pathlib.Path(os.environ.get("VMSST_TEST_DATA", _DEFAULT_DATA))
  if not (root / "tatoeba").is_dir():
    pytest.skip(
      f"no real data at {root}: set VMSST_TEST_DATA to a folder laid out as its README says"
    )
  return root
