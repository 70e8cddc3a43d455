"""Who may import whom, and what an import costs."""

import ast
import collections
import functools
import importlib.metadata
import json
import pathlib
import re

import commands
import pytest

import ems_jax
import vmsst
import vmsst.launch
import vmsst.tasks

# The layers of docs/architecture.md, lowest first: a package imports only itself and lower layers.
LAYERS = [
  {"vmsst.errors", "vmsst.paths", "vmsst.arrays"},
  {"vmsst.storage"},
  {"vmsst.languages", "vmsst.io", "vmsst.losses"},
  {"vmsst.data", "vmsst.networks"},
  {"vmsst.search", "vmsst.models", "vmsst.formats"},
  {"vmsst.encoder"},
  {"vmsst.mining", "vmsst.evaluation"},
  # Functions that compute do not persist: the packages before this line import no jobs.
  {"vmsst.jobs"},
  {"vmsst.downloads", "vmsst.train"},
  {"vmsst.launch", "vmsst.opus"},
  {"vmsst.tasks", "ems_jax"},
  {"vmsst.finetuning"},
  {"vmsst.cli"},
]
# What nothing in a package reaches, although the layers allow it.
FORBIDDEN = {
  "vmsst.search": {"vmsst.networks"},
  "vmsst.formats": {"t5x"},
  "vmsst.models": {"t5x"},
  "ems_jax": {"t5x", "vmsst.train"},
  "ems_jax.networks": {"ems_jax.models", "vmsst.models"},
  "ems_jax.losses": {"ems_jax.networks", "ems_jax.models", "vmsst.networks", "vmsst.models"},
}
# NumPy suffices for metrics; a classifier is trained.
WITHOUT_JAX = "vmsst.evaluation"
TRAINED = "vmsst.evaluation.metrics.classification"
# These need the packages of vmsst[train].
TRAINING = (
  "vmsst.tasks", "vmsst.opus", "vmsst.launch", "vmsst.train", "vmsst.models", "vmsst.data.loader",
  "vmsst.data.seqio_tasks", "vmsst.data.training_sets", "vmsst.data.batches",
)  # fmt: skip


def modules():
  """Every module of a checkout or an installation: its name and its file."""
  found = {}
  for package in (vmsst, vmsst.tasks, vmsst.launch, ems_jax):
    (root,) = map(pathlib.Path, package.__path__)
    for path in root.rglob("*.py"):
      parts = path.relative_to(root).with_suffix("").parts
      found[".".join((package.__name__, *parts)).removesuffix(".__init__")] = path
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


def package_of(module):
  """The package of LAYERS that has a module; None for `vmsst` itself and other packages."""
  packages = set().union(*LAYERS)
  return next((x for x in packages if module == x or module.startswith(f"{x}.")), None)


def test_a_package_imports_only_lower_layers():
  height = {package: place for place, layer in enumerate(LAYERS) for package in layer}
  assert set(map(package_of, MODULES)) - {None} == set(height)
  assert [name for name in MODULES if package_of(name) is None] == ["vmsst"]
  for module in MODULES:
    package = package_of(module)
    for name in edges(module) if package else ():
      other = package_of(name)
      assert other in (None, package) or height[other] < height[package], f"{module}: {name}"


def test_what_a_package_never_reaches():
  for package, forbidden in FORBIDDEN.items():
    for module in below(package):
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


def optional_packages():
  """The packages that only extras of pyproject.toml install; PyYAML comes with flax."""
  extras, base = set(), {"pyyaml", "vmsst"}
  for requirement in importlib.metadata.requires("vmsst"):
    name = re.match(r"[\w.-]+", requirement)[0].lower()
    (extras if "extra ==" in requirement else base).add(name)
  provided = importlib.metadata.packages_distributions()
  return {top for top, names in provided.items() if {x.lower() for x in names} & (extras - base)}


def test_modules_load_only_the_packages_that_they_need(tmp_path):
  """Imports ever more in one process; each step may load more packages than the one before."""
  outside = [
    name for name in MODULES if name.startswith("vmsst.") and not name.startswith(TRAINING)
  ]
  evaluation = [name for name in below(WITHOUT_JAX) if name != TRAINED]
  training = optional_packages() | {"t5x"}
  steps = [
    ("import vmsst, vmsst.languages", "anything"),
    ("from vmsst import cli; cli.build_parser().format_help()", "anything"),
    ("import vmsst.opus.releases", {*training, "jax", "numpy"}),
    (
      "from vmsst.data import vocabularies; vocabularies.ByteVocabulary().encode(['a'], 4)",
      {*training, "jax"},
    ),
    (f"import vmsst.opus.cleaning, {', '.join(evaluation)}", {*training, "jax"}),
    ("import vmsst.data.sample", {*training, "jax"}),
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
  text = "".join(f"{step}\n" for step, _ in steps)
  done = commands.fresh_script(code, cwd=tmp_path, text=text)
  for (step, heavy), line in zip(steps, done.stdout.splitlines(), strict=True):
    loaded = set(json.loads(line))
    wrong = loaded - {"vmsst"} if heavy == "anything" else loaded & heavy
    assert not wrong, step


# Modules that the tests of another module cover, because both share a reference or a program.
TESTED_IN = {
  "ems_jax.losses.distillation": "ems_jax/losses/test_ranking.py",
  "ems_jax.models.soft_contrastive": "ems_jax/models/test_distillation.py",
  "ems_jax.networks.ems": "ems_jax/models/test_ems.py",
  "ems_jax.networks.laser": "ems_jax/models/test_laser.py",
  "vmsst.formats.t5x": "vmsst/train/test_checkpoints.py",
  "vmsst.cli.__main__": "vmsst/cli/test_command.py",
  "vmsst.cli.models": "vmsst/formats/test_hub.py",
  "vmsst.encoder.starting_encoders": "vmsst/formats/test_encoder_json.py",
  "vmsst.evaluation.benchmarks.files": "vmsst/evaluation/test_benchmarks.py",
  "vmsst.evaluation.results_files": "vmsst/evaluation/test_suite.py",
  "vmsst.io.input_files": "vmsst/test_storage.py",
  "vmsst.losses.vocabulary": "ems_jax/losses/test_xtr.py",
  "vmsst.models.bitranslation": "vmsst/models/test_vmsst.py",
  "vmsst.models.base": "vmsst/models/test_contrastive.py",
  "vmsst.models.gradient_caching": "vmsst/models/test_contrastive.py",
  "vmsst.models.matryoshka": "vmsst/models/test_contrastive.py",
  "vmsst.models.objectives": "vmsst/test_finetuning.py",
  "vmsst.models.vector_losses": "runs/test_every_model.py",
  "vmsst.networks.static": "vmsst/formats/test_static.py",
  "vmsst.opus.card": "vmsst/opus/test_builder.py",
  "vmsst.paths": "launch/test_main.py",
  "vmsst.train.actions": "vmsst/train/test_trainer.py",
  "vmsst.train.eval": "vmsst/train/test_infer.py",
  "vmsst.train.inference": "vmsst/train/test_infer.py",
  "vmsst.train.model_dir": "vmsst/train/test_train.py",
  "vmsst.train.partitioning": "vmsst/train/test_input_pipeline.py",
  "vmsst.train.step_trainer": "vmsst/train/test_trainer.py",
  "vmsst.train.train_state": "vmsst/train/test_optimizers.py",
  "vmsst.train.utils": "vmsst/train/test_infer.py",
}


def test_tests_mirror_the_modules():
  root = pathlib.Path(__file__).parent
  files = {
    name: name.removeprefix("vmsst.") if name.startswith(("vmsst.tasks", "vmsst.launch")) else name
    for name in MODULES
  }
  expected = {}
  for name, path in files.items():
    folder, _, module = path.rpartition(".")
    expected[str(pathlib.Path(*folder.split("."), f"test_{module}.py"))] = name
  mirrored = [root / top for top in ("vmsst", "ems_jax", "tasks", "launch")]
  found = {str(x.relative_to(root)) for top in mirrored for x in top.rglob("test_*.py")}
  assert found <= set(expected)
  packages = {name for name, path in MODULES.items() if path.name == "__init__.py"}
  untested = {expected[x] for x in set(expected) - found} - packages
  assert untested == set(TESTED_IN)
  assert all((root / path).is_file() for path in TESTED_IN.values())
