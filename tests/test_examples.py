"""Runs the examples of CONTRIBUTING.md at their paths, notebooks as Jupyter does, and benchmarks.

The notebooks read their folders from `VMSST_RUN`, `VMSST_WORK` and `VMSST_ENCODER`, training flags
from `VMSST_FLAGS`, and what to install from `VMSST_PACKAGE`. All of these take seconds to minutes.
"""

import dataclasses
import json
import pathlib
import re
import sys
import sysconfig

import code_blocks
import commands
import pytest
import tiny_encoders

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "CONTRIBUTING.md"
if not PAGE.is_file():
  pytest.skip("an installation without its repository", allow_module_level=True)
pytestmark = pytest.mark.slow

# Appends the examples' folders to the packages' paths, runs their doctest and benchmark, and trains
# with their run file.
_RUN = """
import doctest, importlib, json, pathlib, sys, tempfile
import gin
place = pathlib.Path(sys.argv[1])
import vmsst
for folder in sorted({path.parent for path in place.glob("vmsst/**/*.py")}):
  name = ".".join(folder.relative_to(place).parts)
  importlib.import_module(name).__path__.append(str(folder))
import numpy as np
from vmsst.evaluation import suite
from vmsst.evaluation.benchmarks import proverbs
class Lengths:
  def encode(self, texts):
    return np.array([[np.cos(len(text)), np.sin(len(text))] for text in texts])
data = pathlib.Path(tempfile.mkdtemp(dir=place))
(data / "proverbs").mkdir()
(data / "proverbs" / "deu-eng.tsv").write_text("aaa\\tbbb\\ncccccc\\tdddddd\\n")
found = suite.evaluate(Lengths(), [proverbs.BENCHMARK], data)
accuracy = found["benchmarks"]["proverbs"]["summary"]["accuracy"]
called = 0
for path in sorted(place.glob("vmsst/**/*.py")):
  name = ".".join(path.relative_to(place).with_suffix("").parts)
  failed, tried = doctest.testmod(importlib.import_module(name))
  assert not failed
  called += tried
from vmsst.train import gin_utils, train as train_lib
train = train_lib.train
gin.register(train, "__main__")
bindings = ["TRAIN_STEPS = 40", "BATCH_SIZE = 16", "EMBED_DIM = 16", "STATS_PERIOD = 5",
  "bitext.sample.num_meanings = 100",
  "utils.create_learning_rate_scheduler.factors = 'constant'",
  "utils.create_learning_rate_scheduler.base_learning_rate = 0.05"]
paths = [str(place / "gin"), str(vmsst.gin_dir())]
losses, shapes = [], []
for name in ("hinge_sample", "bag_of_words_sample"):
  run = place / name
  gin.clear_config()
  gin_utils.parse_gin_flags(paths, [f"{name}.gin"], [f"MODEL_DIR = '{run}'", *bindings])
  gin.get_configurable(train)()
  lines = map(json.loads, (run / "train" / "metrics.jsonl").read_text().splitlines())
  losses.append([line["loss"] for line in lines if "loss" in line])
  shapes.append(vmsst.load(run).encode(["x", "y"], progress=False).shape)
print(json.dumps({"called": called, "accuracy": accuracy, "losses": losses, "shapes": shapes}))
"""


def examples():
  """Returns the text of each complete file on the page, by path."""
  found = {}
  for block in code_blocks.blocks(PAGE):
    if named := re.match(r"# ([\w/]+\.(?:py|gin))\n", block.text):
      found[named[1]] = block.text[named.end() :]
  return found


def test_the_examples_work(tmp_path):
  files = examples()
  assert len(files) == 5
  for name, text in files.items():
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    assert len(lines) <= 25, name
  for name, text in files.items():
    assert not (ROOT / name).exists(), f"{name} exists; rename the example"
    path = tmp_path / "examples" / name  # not in the current folder, which Python imports from
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
  done = commands.script(_RUN, tmp_path / "examples", cwd=tmp_path)
  report = json.loads(done.stdout.splitlines()[-1])
  assert report["called"] == 1
  assert report["accuracy"] == 1.0
  for losses in report["losses"]:
    assert losses[-1] < 0.8 * losses[0]
  assert report["shapes"] == [[2, 16], [2, 16]]


_EXECUTE = """
import sys
import nbclient, nbformat
notebook = nbformat.read(sys.argv[1], 4)
nbclient.NotebookClient(notebook, timeout=1800, kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[2])
"""


def run_notebook(name, folder, **environment):
  """Runs a notebook and returns its text output and the MIME types of its figures."""
  pytest.importorskip("nbclient", reason="needs nbclient and ipykernel")
  nbformat = pytest.importorskip("nbformat")
  path = f"{sysconfig.get_path('scripts')}:{commands.environment()['PATH']}"
  command = [sys.executable, "-c", _EXECUTE, ROOT / "notebooks" / name, folder / name]
  commands.run(command, cwd=folder, variables={"PATH": path, **environment})
  text, figures = "", []
  for cell in nbformat.read(folder / name, 4).cells:
    for part in cell.get("outputs", []):
      text += part.get("text", "") + part.get("data", {}).get("text/plain", "")
      figures += [kind for kind in part.get("data", {}) if kind.startswith("image/")]
  return text, figures


def test_training_on_your_own_data_runs(tmp_path):
  text, figures = run_notebook(
    "train_your_own.ipynb",
    tmp_path,
    VMSST_WORK=str(tmp_path / "own"),
    VMSST_FLAGS="--gin.TRAIN_STEPS=20 --gin.CHECKPOINT_PERIOD=20 --gin.EVAL_PERIOD=20 "
    "--gin.BATCH_SIZE=16 --gin.EMBED_DIM=16 "
    "--gin.GROUP_BY_LENGTH=False",
  )
  assert "500 held out" in text
  assert "1,500 bpe pieces" in text
  assert figures == ["image/png", "image/png"]
  assert (tmp_path / "own" / "run" / "checkpoint_20").is_dir()


def test_the_quickstart_learns(tmp_path):
  place = {"VMSST_RUN": str(tmp_path / "run")}
  text, figures = run_notebook("quickstart_colab.ipynb", tmp_path, **place, **commands.OPTIMIZED)
  assert figures == ["image/png"]
  right, found = map(int, re.search(r"(\d+) of (\d+) pairs are translations", text).groups())
  assert right >= 180  # of 200
  assert right / found >= 0.85


def test_a_checkpoint_is_loaded_and_plotted(tmp_path):
  network = tiny_encoders.NETWORKS["t5"]
  config = dataclasses.replace(network.config, vocab_size=259)  # bytes
  model = tiny_encoders.model_of(dataclasses.replace(network, config=config))
  run = tiny_encoders.save_run(tmp_path / "run", model, step=3)
  folder = tmp_path / "empty"
  folder.mkdir()
  for encoder in (run, run / "checkpoint_3"):
    text, figures = run_notebook("load_checkpoint.ipynb", folder, VMSST_ENCODER=str(encoder))
    assert "float32 (4, 12)" in text
    assert figures == ["image/png", "image/png"]


def first_cell(name):
  """Returns the source of the first code cell of a notebook."""
  cells = json.loads((ROOT / "notebooks" / name).read_text(encoding="utf-8"))["cells"]
  return next("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def test_the_first_cells_differ_in_extras_only():
  names = [path.name for path in (ROOT / "notebooks").glob("*.ipynb")]
  assert len(names) == 3
  assert len({re.sub(r"EXTRAS = .*", "", first_cell(name)) for name in names}) == 1


def test_the_first_cell_installs_the_package(monkeypatch):
  monkeypatch.setitem(sys.modules, "vmsst", None)  # not installed
  monkeypatch.setenv("VMSST_PACKAGE", "/content/vmsst.whl")
  installed = []
  call = "installed.append(requirement)"
  text = first_cell("load_checkpoint.ipynb").replace('%pip install -q "{requirement}"', call)
  exec(text, {"installed": installed})
  assert installed == ["/content/vmsst.whl[report]"]


# Arguments that make each benchmark small.
BENCHMARKS = {
  "alignment": "--data={data} --max_size=3 --repeats=1",
  "compare": "batches --data_root={data} --output_dir=out --rows random --seeds 0 "
  "--gin TRAIN_STEPS=2",
  "ems_step": "--batch=4 --steps=1 --rounds=1 --variants sentence_transformers ours",
  "encode": "--data={data} --sentences=50 --repeats=1 --rounds=1",
  "finetune": "--data={data} --steps=20 --warm_up=10 --batch_size=4",
  "index_search": "--data={data} --sizes 2000",
  "mining": "--sizes 500 --width=16 --rounds=1",
  "paper_step": "--model=ems --size=tiny --peak_tflops=0.1 --steps=3 --microbatches=2",
  "time_to_accuracy": "--data={data} --folder=out --period=2 --thresholds 0.01 --variants ours",
  "vmsst_step": "--batch=4 --length=8 --width=32 --vocabulary=500 --repeats=1 --rounds=1",
  "vocab_projection": "--batch=4 --length=8 --width=32 --vocabulary=512 --repeats=1 --rounds=1",
}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_prints_its_last_line(name, data_root, tmp_path):
  arguments = BENCHMARKS[name].format(data=data_root).split()
  command = [sys.executable, ROOT / "benchmarks" / f"{name}.py", *arguments]
  done = commands.run(command, cwd=tmp_path)
  if name == "compare":
    (scores,) = json.loads((tmp_path / "out" / "table.json").read_text()).values()
    assert 0 < scores["0"]["scores"]["Tatoeba seen"] < 100
    return
  assert json.loads(done.stdout.splitlines()[-1])["benchmark"] == name


_PARSE = """
import gin
import compare, vmsst
from vmsst.train import gin_utils, train as train_lib
train = train_lib.train
gin.register(train, "__main__")
for comparison in compare.COMPARISONS.values():
  for row in comparison.rows.values():
    gin.clear_config()
    own = compare.row_overrides(row).items()
    bindings = [f"{name} = {compare.as_gin(value)}" for name, value in own]
    files = [str(vmsst.gin_dir())], row.gin_files, bindings
    gin_utils.parse_gin_flags(*files, finalize_config=False)
"""


def test_the_gin_files_of_every_row_of_the_comparisons_parse(tmp_path):
  variables = {"PYTHONPATH": str(ROOT / "benchmarks")}
  commands.run([sys.executable, "-c", _PARSE], cwd=tmp_path, variables=variables)
