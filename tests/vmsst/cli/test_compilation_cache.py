"""A second command compiles nothing again."""

import json
import os
import subprocess
import sys

import pytest
import tiny_encoders

from vmsst.cli import compilation_cache
from vmsst.networks import sentence_encoder

COUNTED = """
import collections, json, sys
from vmsst import cli
from vmsst.cli import compilation_cache
compilation_cache.enable()  # before JAX is imported
import jax
counts = collections.Counter()
jax.monitoring.register_event_listener(lambda event, **kwargs: counts.update([event]))
assert cli.main(sys.argv[1:]) == 0
print(json.dumps({name.rsplit("/", 1)[-1]: count for name, count in counts.items()}))
"""
_VARIABLES = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")


@pytest.mark.slow
def test_a_second_process_compiles_nothing(tmp_path):
  network = sentence_encoder.SentenceEncoder(tiny_encoders.t5_config(), 12)
  run = tiny_encoders.save_run(tmp_path / "run", tiny_encoders.model_of(network))
  text = tmp_path / "text"
  text.write_text("eins\nzwei und drei\n", encoding="utf-8")
  environment = {k: v for k, v in os.environ.items() if k not in _VARIABLES}
  environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")
  found = []
  for name in ("first", "second"):
    done = subprocess.run(
      [sys.executable, "-c", COUNTED, "embed", run, text, tmp_path / name],
      env=environment,
      check=True,
      stdout=subprocess.PIPE,
    )
    found.append(json.loads(done.stdout.splitlines()[-1]))
  first, second = found
  assert first["cache_misses"] == first["compile_requests_use_cache"] > 0
  assert "cache_misses" not in second
  assert second["cache_hits"] == first["cache_misses"]


def test_the_folder_is_the_users_own(tmp_path, monkeypatch):
  monkeypatch.setattr(os, "environ", {"XDG_CACHE_HOME": str(tmp_path)})
  compilation_cache.enable()
  folder = os.environ["JAX_COMPILATION_CACHE_DIR"]
  assert os.path.isdir(folder)
  assert os.path.dirname(folder) == str(tmp_path / "vmsst" / "jax")
  # A folder that is chosen, or none, stays.
  for chosen in ("", "/elsewhere"):
    monkeypatch.setattr(os, "environ", {"JAX_COMPILATION_CACHE_DIR": chosen})
    compilation_cache.enable()
    assert os.environ == {"JAX_COMPILATION_CACHE_DIR": chosen}
  # A home that cannot be written to.
  (tmp_path / "file").touch()
  monkeypatch.setattr(os, "environ", {"XDG_CACHE_HOME": str(tmp_path / "file")})
  compilation_cache.enable()
  assert "JAX_COMPILATION_CACHE_DIR" not in os.environ
