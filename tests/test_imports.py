"""Who may import whom, and what an import costs."""

import ast
import importlib.metadata
import importlib.util
import pathlib
import pkgutil
import subprocess
import sys

import pytest

import vmsst

# Rooms, and what nothing in them imports, not even inside a function.
FORBIDDEN = {
  "vmsst": ["ems_jax"],
  "vmsst.tasks": ["ems_jax"],
  "vmsst.launch": ["ems_jax"],
  "vmsst.networks": ["vmsst.losses", "vmsst.models", "vmsst.tasks", "vmsst.launch", "t5x"],
  "vmsst.losses": ["vmsst.networks", "vmsst.models", "vmsst.tasks", "vmsst.launch", "t5x"],
  "vmsst.evaluation": ["vmsst.networks", "vmsst.models", "vmsst.tasks", "vmsst.launch", "jax"],
  "vmsst.checkpoints": ["vmsst.networks", "vmsst.models", "vmsst.tasks", "vmsst.launch", "t5x"],
  "vmsst.exports": ["vmsst.models", "vmsst.tasks", "vmsst.launch", "t5x"],
  "ems_jax.networks": ["ems_jax.models", "vmsst.models", "vmsst.tasks", "vmsst.launch", "t5x"],
  "ems_jax.models": ["vmsst.launch", "t5x"],
  "ems_jax.losses": ["vmsst.networks", "vmsst.models", "vmsst.tasks", "vmsst.launch", "t5x"],
  "vmsst.models": ["vmsst.launch", "t5x"],
}
# Metrics are NumPy only; a classifier is trained.
ALLOWED = {"evaluation/classification.py": {"jax"}}
# Loading these takes TensorFlow or seqio.
TRAINING = ("vmsst.tasks", "vmsst.launch")


def folder(room):
  """Where a room lies: `vmsst.tasks` may be a folder beside the package."""
  spec = importlib.util.find_spec(room)
  return pathlib.Path(next(iter(spec.submodule_search_locations)))


def imported(source):
  """Every module that Python source imports, with its parents; relative ones are not used here."""
  names = set()
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Import):
      names.update(alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, "imports are absolute"
      names.update(f"{node.module}.{alias.name}" for alias in node.names)
  return {name.rsplit(".", n)[0] for name in names for n in range(name.count(".") + 1)}


def test_imports_are_seen_wherever_they_stand():
  source = "import a.b\ndef f():\n  from c.d import e\n"
  assert imported(source) == {"a", "a.b", "c", "c.d", "c.d.e"}


@pytest.mark.parametrize("room", FORBIDDEN)
def test_a_room_imports_nothing_that_is_built_on_it(room):
  files = sorted(folder(room).rglob("*.py"))
  assert files
  for path in files:
    allowed = ALLOWED.get(f"{path.parent.name}/{path.name}", set())
    wrong = imported(path.read_text(encoding="utf-8")) & set(FORBIDDEN[room]) - allowed
    assert not wrong, f"{path} imports {wrong}"


def test_no_module_outside_training_loads_tensorflow_or_seqio():
  modules = [
    module.name
    for module in pkgutil.walk_packages(vmsst.__path__, "vmsst.", onerror=lambda name: None)
    if not module.name.startswith(TRAINING)
  ]
  for name in ("vmsst.inference", "vmsst.networks.t5", "vmsst.losses.contrastive"):
    assert name in modules
  code = """
import importlib, sys
import vmsst
print("numpy" in sys.modules)
from vmsst import cli
try:
  cli.main(["--help"])
except SystemExit as stop:
  assert stop.code == 0
print("jax" in sys.modules)
for name in sys.argv[1:]:
  importlib.import_module(name)
heavy = {"tensorflow", "seqio", "t5x", "vmsst.tasks", "vmsst.launch"} & set(sys.modules)
sys.exit(f"imported {heavy}" if heavy else 0)
"""
  done = subprocess.run([sys.executable, "-c", code, *modules], capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  lines = done.stdout.splitlines()
  assert lines[0] == lines[-1] == "False"


@pytest.mark.parametrize("command", ["t5x", "vmsst"])
def test_the_commands_that_the_installation_makes_can_be_called(command):
  (script,) = (
    script
    for script in importlib.metadata.distribution("vmsst").entry_points
    if script.group == "console_scripts" and script.name == command
  )
  assert callable(script.load())


def test_gin_dir_holds_the_quickstart():
  assert (vmsst.gin_dir() / "quickstart.gin").is_file()
