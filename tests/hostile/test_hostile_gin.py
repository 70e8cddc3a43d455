"""Malformed gin files and bindings: one clear error each, although gin files are code."""

import contextlib

import gin
import pytest
import trials
from hypothesis import given, settings
from hypothesis import strategies as st

from vmsst import errors
from vmsst.launch.runtime import gin_utils

_CONFIG = b"""\
from __gin__ import dynamic_registration
from vmsst.networks import t5

include 'other.gin'

STEPS = %gin.REQUIRED
SIZES = {'a': [1, 2.5, None], "b": (True, 'text')}
t5.T5Config:
  vocab_size = 100
  emb_dim = %WIDTH
run/t5.T5Config.num_heads = 3
"""
_OTHER = b"# More.\nWIDTH = 8\nLONG = 1 \\\n  + 1\n".replace(b" \\\n  + 1", b"")


def _parse(folder, *bindings):
  gin.clear_config()
  try:
    gin_utils.parse_gin_flags([str(folder)], ["x.gin"], ["STEPS = 7", *bindings])
  finally:
    gin.clear_config()


_READER = trials.Reader("gin files", {"x.gin": _CONFIG, "other.gin": _OTHER}, _parse)


def test_malformed_gin_files_are_read_or_refused(tmp_path):
  print(trials.run(_READER, trials.cases(_READER, 40), tmp_path))


@pytest.mark.slow
def test_many_more_malformed_gin_files_are_read_or_refused(tmp_path):
  print(trials.run(_READER, trials.cases(_READER, 500, seed=1), tmp_path))


@settings(derandomize=True, database=None, deadline=None, max_examples=25)
@given(st.text(max_size=40) | st.sampled_from(("[" * 300, "9" * 5000, "@", "%", "@x()", "%x", "'")))
def test_any_value_of_a_binding_is_read_or_refused(tmp_path_factory, value):
  folder = tmp_path_factory.getbasetemp() / "bindings"
  folder.mkdir(exist_ok=True)
  for name, content in _READER.files.items():
    (folder / name).write_bytes(content)
  for binding in (f"WIDTH = {value}", f"t5.T5Config.emb_dim = {value}", f"{value} = 1", value):
    with contextlib.suppress(errors.InputError):
      _parse(folder, binding)
