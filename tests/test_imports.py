"""Who may import whom, and what an import costs."""

import ast
import collections
import functools
import json
import os
import pathlib
import subprocess
import sys

import pytest

import ems_jax
import vmsst

# Packages and modules of vmsst, lowest first: each imports only those before it.
LAYERS = [
  "vmsst.errors",
  "vmsst.paths",
  "vmsst.languages",
  "vmsst.process",
  "vmsst.arrays",
  "vmsst.files",
  "vmsst.units",
  "vmsst.bitext",
  "vmsst.text",
  "vmsst.networks",
  "vmsst.losses",
  "vmsst.models",
  "vmsst.checkpoints",
  "vmsst.search",
  "vmsst.inference",
  "vmsst.vectors",
  "vmsst.mining",
  "vmsst.evaluation",
  "vmsst.exports",
  "vmsst.downloads",
  "vmsst.tasks",
  "vmsst.launch",
  "vmsst.cli",
]
# The one import upwards: T5X asks a model for the seqio side of its data.
HOOKS = {("vmsst.models.base", "vmsst.tasks")}
# Further rules: what nothing in a package imports.
FORBIDDEN = {
  "vmsst": {"ems_jax"},
  "vmsst.losses": {"vmsst.networks"},
  "vmsst.checkpoints": {"vmsst.models", "t5x"},
  "vmsst.search": {"vmsst.networks", "vmsst.models", "vmsst.checkpoints"},
  "vmsst.models": {"t5x"},
  "ems_jax": {"vmsst.launch", "vmsst.cli", "vmsst.evaluation", "t5x"},
  "ems_jax.networks": {"ems_jax.models", "vmsst.models", "vmsst.tasks"},
  "ems_jax.losses": {"ems_jax.networks", "ems_jax.models", "vmsst.networks", "vmsst.models"},
}
# NumPy suffices for metrics; a classifier is trained.
WITHOUT_JAX = "vmsst.evaluation"
TRAINED = "vmsst.evaluation.metrics.classification"
# These need the packages of vmsst[train].
TRAINING = ("vmsst.tasks", "vmsst.launch", "vmsst.models")


def modules():
  """Every module of a checkout or an installation: its name and its file."""
  found = {}
  for package in (vmsst, ems_jax):
    (root,) = package.__path__
    for folder, folders, files in os.walk(root, followlinks=True):
      folders[:] = [name for name in folders if name != "__pycache__"]
      for path in (pathlib.Path(folder, name) for name in files if name.endswith(".py")):
        parts = path.relative_to(pathlib.Path(root).parent).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = path
  return found


MODULES = modules()


def imported(source):
  """The names that Python source imports, also in functions, but not for type checkers."""
  names = set()
  nodes = collections.deque(ast.parse(source).body)
  while nodes:
    node = nodes.popleft()
    if isinstance(node, ast.Import):
      names.update(alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, "imports are absolute"
      names.update(f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
      nodes.extend(node.orelse)
    else:
      nodes.extend(ast.iter_child_nodes(node))
  return names


@functools.cache
def edges(module):
  """The modules that a module imports; of other packages, their top names."""
  found = set()
  for name in imported(MODULES[module].read_text(encoding="utf-8")):
    parent = name.rpartition(".")[0]
    own = name if name in MODULES else parent if parent in MODULES else name.partition(".")[0]
    found.add(own)
  return frozenset(found - {module})


def reached(module):
  """Everything that a module imports, and what those import."""
  seen, waiting = set(), [module]
  while waiting:
    for name in edges(waiting.pop()):
      if name not in seen:
        seen.add(name)
        if name in MODULES:
          waiting.append(name)
  return seen


def below(package):
  """The modules of a package."""
  return [name for name in MODULES if name == package or name.startswith(f"{package}.")]


def layer(module):
  """The package of LAYERS that has a module; None for `vmsst` itself and other packages."""
  return next((name for name in LAYERS if module == name or module.startswith(f"{name}.")), None)


def test_every_package_is_a_layer():
  assert {layer(name) for name in MODULES if name.startswith("vmsst.")} == set(LAYERS)


def test_a_package_imports_only_lower_ones():
  height = {name: place for place, name in enumerate(LAYERS)}
  for package in LAYERS:
    for module in below(package):
      for name in edges(module):
        other = layer(name)
        if other is not None and (module, other) not in HOOKS:
          assert height[other] <= height[package], f"{module} imports {name}"


def test_what_a_package_never_reaches():
  for package, forbidden in FORBIDDEN.items():
    for module in {*below(package)} - {hook for hook, _ in HOOKS}:
      for name in reached(module):
        wrong = {x for x in forbidden if name == x or name.startswith(f"{x}.")}
        assert not wrong, f"{module} reaches {name}"


def test_the_public_api_is_one_list():
  (checked,) = (
    node
    for node in ast.walk(ast.parse(MODULES["vmsst"].read_text(encoding="utf-8")))
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
  )
  typed = {alias.name: node.module for node in checked.body for alias in node.names}
  assert typed == vmsst._PUBLIC
  for name in vmsst.__all__:
    assert getattr(vmsst, name).__module__.startswith("vmsst.")
  with pytest.raises(AttributeError, match="'vmsst' has no attribute 'nothing'"):
    _ = vmsst.nothing


def test_modules_load_only_the_packages_that_they_need():
  """Imports ever more in one process; each step may load more packages than the one before."""
  outside = [
    name for name in MODULES if name.startswith("vmsst.") and not name.startswith(TRAINING)
  ]
  evaluation = [name for name in below(WITHOUT_JAX) if name != TRAINED]
  training = {"tensorflow", "tensorflow_datasets", "seqio", "clu", "gin", "tensorboard", "t5x"}
  steps = [
    ("import vmsst, vmsst.languages", "anything"),
    ("from vmsst import cli; cli.build_parser().format_help()", "anything"),
    ("import vmsst.tasks.opus.cleaning, vmsst.tasks.opus.releases", {*training, "jax", "numpy"}),
    (
      "from vmsst.text import vocabularies; vocabularies.ByteVocabulary().encode(['a'], 4)",
      {*training, "jax"},
    ),
    (f"import vmsst.tasks.opus.decontamination, {', '.join(evaluation)}", {*training, "jax"}),
    ("import vmsst.tasks.sample", {*training, "jax"}),
    (f"import {', '.join(outside)}", training),
  ]
  code = """
import json, sys
before = {name.partition(".")[0] for name in sys.modules}
for line in sys.stdin:
  exec(line)
  loaded = {name.partition(".")[0] for name in sys.modules} - before - sys.stdlib_module_names
  print(json.dumps(sorted(loaded)))
"""
  done = subprocess.run(
    [sys.executable, "-c", code],
    input="".join(f"{step}\n" for step, _ in steps),
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  for (step, heavy), line in zip(steps, done.stdout.splitlines(), strict=True):
    loaded = set(json.loads(line))
    wrong = loaded - {"vmsst"} if heavy == "anything" else loaded & heavy
    assert not wrong, step
