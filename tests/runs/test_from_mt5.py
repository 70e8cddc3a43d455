"""Runs that start from an imported mT5, as with `t5x train`; they take a minute.

test_bert_import.py tests in every test run that runs can start from an import.
"""

import json

import commands
import numpy as np
import pytest
import tiny_mt5
import toy_runs
from flax import traverse_util

import vmsst
from vmsst.checkpoints.importers import mt5
from vmsst.exports import safetensors_folder
from vmsst.tasks import sample

pytestmark = pytest.mark.slow

ROOT = vmsst.gin_dir()
FILES = sorted(path.name for path in ROOT.glob("*_mt5.gin"))
STEPS = 20
ALL_PARAMETERS = "INITIAL_ASSIGNMENT_MAP = [('state/.*', None)]"

# Does all runs in one process: importing takes longer than training.
_TRAIN = """
import json, sys
import gin, jax
from vmsst.launch import aliases
aliases.install()
from vmsst.errors import InputError
from vmsst.launch.runtime import gin_utils
from vmsst.launch.runtime.train import train

plan = json.load(sys.stdin)
jax.config.update("jax_compilation_cache_dir", plan["cache"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
gin.register(train, "__main__")
for files, bindings in plan["runs"]:
  gin.clear_config()
  gin_utils.parse_gin_flags([plan["root"]], files, [*plan["bindings"], *bindings])
  try:
    gin.get_configurable(train)()
  except InputError as error:
    print(f"refused: {error}")
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
  """Does all runs; returns their folder and the output of the process."""
  folder = tmp_path_factory.mktemp("from_mt5")
  checkpoint = mt5.import_mt5(tiny_mt5.save_mt5(folder / "hf"), folder / "import").checkpoint
  pairs = tiny_mt5.save_pairs(folder)

  def run(name, file, steps, *bindings, mesh=()):
    return [file, "data/files.gin", *mesh], [
      f"MODEL_DIR = {str(folder / name)!r}",
      f"TRAIN_STEPS = {steps}",
      f"CHECKPOINT_PERIOD = {STEPS}",
      *bindings,
    ]

  def start(path):
    return f"INITIAL_CHECKPOINT_PATH = {str(path)!r}"

  def again(name, steps, origin, **options):
    """Starts from all parameters of another run, so that the layouts have the same."""
    path = start(folder / origin / "checkpoint_0")
    return run(name, "vmsst_24l_mt5.gin", steps, path, ALL_PARAMETERS, *tiny_mt5.AS_TINY, **options)

  initial = start(checkpoint)
  plan = {
    "root": str(ROOT),
    "cache": str(folder / "cache"),
    "bindings": [
      *tiny_mt5.TINY.strip().splitlines(),
      f"VOCABULARY_PATH = {sample.vocabulary_path()!r}",
      f"PATTERNS = [{str(pairs)!r}]",
    ],
    "runs": [
      *(run(file, file, STEPS, initial) for file in FILES),
      run("scratch", "vmsst_24l.gin", 0),
      again("separate_again", STEPS, "vmsst_24l_mt5.gin"),
      again("scanned_again", STEPS, "vmsst_24l_mt5.gin", mesh=[tiny_mt5.MESH]),
      again("back", 0, "scanned_again"),
      run("scanned_again", "vmsst_24l_mt5.gin", 2 * STEPS, *tiny_mt5.AS_TINY, initial),
      run("deeper", "contrastive_24l_mt5.gin", 1, initial, "t5.T5Config.num_encoder_layers = 3"),
    ],
  }
  done = commands.script(_TRAIN, cwd=folder, text=json.dumps(plan))
  return folder, done.stdout.splitlines()


def arrays(checkpoint):
  """Returns all arrays of a checkpoint by name."""
  return traverse_util.flatten_dict(toy_runs.read_checkpoint(checkpoint), sep="/")


def parameters(checkpoint):
  return {name: x for name, x in arrays(checkpoint).items() if name.startswith("target/")}


def losses(run):
  """Returns the loss of each step."""
  lines = (run / "train" / "metrics.jsonl").read_text().splitlines()
  return [row["loss"] for row in map(json.loads, lines) if "loss" in row]


def separated(arrays):
  """Returns arrays by name with scanned layers under the names of separate ones."""
  found = {}
  for name, array in arrays.items():
    if "/layers/" not in name:
      found[name] = array
      continue
    for i, layer in enumerate(array):
      found[name.replace("/layers/", f"/layers_{i}/")] = layer
  return found


@pytest.mark.parametrize("file", FILES)
def test_every_model_starts_from_the_same_import_and_learns(runs, file):
  folder, _ = runs
  imported = parameters(folder / "import" / "checkpoint_0")
  start = parameters(folder / file / "checkpoint_0")
  shared = set(imported) & set(start)
  expected = {"target/token_embedder/embedding"}
  expected |= {name for name in imported if name.startswith("target/encoder/")}
  if not file.startswith("contrastive"):
    expected |= {name for name in imported if name.startswith(("target/decoder/", "target/logits"))}
  if file.startswith("vmsst"):
    expected = set(imported)
  assert shared == expected
  for name in shared:
    np.testing.assert_array_equal(start[name], imported[name], err_msg=name)
  found = losses(folder / file)
  assert len(found) == STEPS
  assert np.mean(found[-4:]) < 0.95 * np.mean(found[:4])


def test_what_mt5_has_nothing_for_starts_as_without_it(runs):
  folder, _ = runs
  imported = parameters(folder / "import" / "checkpoint_0")
  start, scratch = (
    arrays(folder / name / "checkpoint_0") for name in ("vmsst_24l_mt5.gin", "scratch")
  )
  fresh = set(start) - set(imported)
  assert set(start) == set(scratch)
  assert "target/logits_latent/kernel" in fresh
  assert "state/param_states/token_embedder/embedding/v_row" in fresh
  for name in fresh:
    np.testing.assert_array_equal(start[name], scratch[name], err_msg=name)


def test_both_layouts_have_the_same_losses_vectors_and_exports(runs):
  folder, _ = runs
  scanned, separate = folder / "scanned_again", folder / "separate_again"
  first = parameters(folder / "vmsst_24l_mt5.gin" / "checkpoint_0")
  back = parameters(folder / "back" / "checkpoint_0")
  start = separated(parameters(scanned / "checkpoint_0"))
  for name, array in first.items():
    np.testing.assert_array_equal(start[name], array, err_msg=name)
    np.testing.assert_array_equal(back[name], array, err_msg=name)
  np.testing.assert_allclose(losses(scanned), losses(separate), rtol=1e-4)
  assert losses(scanned)[-1] < 0.9 * losses(scanned)[0]
  texts = [sample.sentence(i, "es") for i in range(5)]
  expected = vmsst.load(separate).encode(texts)
  np.testing.assert_allclose(vmsst.load(scanned).encode(texts), expected, rtol=1e-3, atol=1e-4)
  exported = safetensors_folder.export_safetensors(scanned, folder / "exported")
  np.testing.assert_allclose(vmsst.load(exported).encode(texts), expected, rtol=1e-3, atol=1e-4)


def test_a_model_that_does_not_fit_is_refused(runs):
  folder, printed = runs
  other_layout, deeper = (line for line in printed if line.startswith("refused: "))
  assert "lacks state/param_states/decoder/layers_0/" in other_layout
  assert "keep the run's scan_layers" in other_layout
  assert not (folder / "scanned_again" / f"checkpoint_{2 * STEPS}").exists()
  assert "lacks target/encoder/layers_2/attention/key/kernel" in deeper
  assert not (folder / "deeper" / "checkpoint_0").exists()
