"""Compiling for devices that are not there."""

import importlib.util
import json

import commands
import pytest


@pytest.mark.slow
@pytest.mark.parametrize(
  ("topology", "packages", "kind"),
  [
    ("h100:8", ("jax_cuda12_plugin", "jax_cuda13_plugin"), "NVIDIA H100"),
    ("v5e:2x4", ("libtpu",), "TPU v5 lite"),
  ],
)
def test_a_step_is_compiled_for_devices_that_are_not_there(tmp_path, topology, packages, kind):
  if not any(map(importlib.util.find_spec, packages)):
    pytest.skip(f"needs an accelerator's compiler: {' or '.join(packages)}")
  # MAX_LENGTH is 20, which XLA's Triton matmuls cannot tile without a GPU.
  options = ("--gin_file=quickstart.gin", "--dry_run=memory", f"--topology={topology}")
  done = commands.run([commands.T5X, "train", *options], cwd=tmp_path, variables=commands.OPTIMIZED)
  assert f"mesh: data=8 model=1 (8 {kind} devices)" in done.stdout
  report = json.loads(done.stdout.splitlines()[-1])
  assert report["bytes_per_device"] / 2 < report["peak_bytes_per_device"] < 1e9
