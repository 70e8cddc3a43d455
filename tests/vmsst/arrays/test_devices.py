"""Rates of devices; a second command compiles nothing again."""

import json
import os
import subprocess
import sys

import commands
import jax
import pytest
import tiny_encoders

from vmsst.arrays import devices
from vmsst.networks import sentence_encoder

COUNTED = """
import collections, json, sys
from vmsst import cli
from vmsst.arrays import devices
from vmsst.launch import main
devices.enable_compilation_cache()  # before JAX is imported
import jax
counts = collections.Counter()
jax.monitoring.register_event_listener(lambda event, **kwargs: counts.update([event]))
run = {"vmsst": cli.main, "t5x": main.main}[sys.argv[1]]
assert not run(sys.argv[2:])
print(json.dumps({name.rsplit("/", 1)[-1]: count for name, count in counts.items()}))
"""
_VARIABLES = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")


def _embed(folder, number):
  network = sentence_encoder.SentenceEncoder(tiny_encoders.t5_config(), 12)
  run = tiny_encoders.save_run(folder / f"run{number}", tiny_encoders.model_of(network))
  text = folder / "text"
  text.write_text("eins\nzwei und drei\n", encoding="utf-8")
  return ["vmsst", "embed", run, text, folder / f"vectors{number}"]


def _train(folder, number):
  return ["t5x", "train", *commands.TINY, f"--gin.MODEL_DIR='{folder}/run{number}'"]


@pytest.mark.slow
@pytest.mark.parametrize("command", [_embed, _train])
def test_a_second_process_compiles_nothing(tmp_path, command):
  environment = {k: v for k, v in os.environ.items() if k not in _VARIABLES}
  environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")
  first, second = (
    json.loads(
      subprocess.run(
        [sys.executable, "-c", COUNTED, *command(tmp_path, number)],
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
      ).stdout.splitlines()[-1]
    )
    for number in range(2)
  )
  requests, twice = first["compile_requests_use_cache"], first.get("cache_hits", 0)
  assert first["cache_misses"] == requests - twice > 0
  assert not twice or command is _train  # one program of a run is compiled in two places
  assert "cache_misses" not in second
  assert second["cache_hits"] == requests


def test_the_folder_is_the_users_own(tmp_path, monkeypatch):
  monkeypatch.delitem(sys.modules, "jax")  # whose options stay
  monkeypatch.setattr(os, "environ", {"XDG_CACHE_HOME": str(tmp_path)})
  devices.enable_compilation_cache()
  folder = os.environ["JAX_COMPILATION_CACHE_DIR"]
  assert os.path.isdir(folder)
  assert os.path.dirname(folder) == str(tmp_path / "vmsst" / "jax")
  # A folder that is chosen, or none, stays.
  for chosen in ("", "/elsewhere"):
    monkeypatch.setattr(os, "environ", {"JAX_COMPILATION_CACHE_DIR": chosen})
    devices.enable_compilation_cache()
    assert os.environ == {"JAX_COMPILATION_CACHE_DIR": chosen}


def test_the_cache_is_for_processes_that_have_compiled_a_program_too(tmp_path):
  code = """
import jax
from vmsst.arrays import devices
jax.jit(lambda x: x + 1)(1)
devices.enable_compilation_cache()
jax.jit(lambda x: x + 2)(1)
"""
  environment = {k: v for k, v in os.environ.items() if k not in _VARIABLES}
  environment["XDG_CACHE_HOME"] = str(tmp_path)
  subprocess.run([sys.executable, "-c", code], env=environment, check=True)
  assert [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_program_is_for_the_devices_of_its_mesh():
  assert devices.current() == devices.of_kind(jax.devices()[0].device_kind)
  tpu = jax.sharding.AbstractDevice(device_kind="TPU v5 lite", num_cores=1, platform="tpu")
  mesh = jax.sharding.AbstractMesh((8,), ("data",), abstract_device=tpu)
  with jax.sharding.use_abstract_mesh(mesh):
    assert devices.current() == devices.BY_NAME["TPU v5e"]
