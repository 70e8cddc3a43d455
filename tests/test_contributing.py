"""Writes the examples of CONTRIBUTING.md to their paths and runs them there."""

import json
import pathlib
import re

import code_blocks
import commands
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "CONTRIBUTING.md"
BLOCKS = code_blocks.blocks(PAGE) if PAGE.is_file() else []
pytestmark = pytest.mark.skipif(not BLOCKS, reason="an installation without its repository")

# Appends the examples' folders to the packages' paths, runs their doctest and benchmark, and trains
# with their run file.
_RUN = """
import doctest, importlib, json, pathlib, sys, tempfile
import gin
place = pathlib.Path(sys.argv[1])
from vmsst.train import aliases, quiet
aliases.install()
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
found = suite.evaluate(Lengths(), [proverbs.BENCHMARK], data, data / "out", name="lengths")
accuracy = found["benchmarks"]["proverbs"]["summary"]["accuracy"]
called = 0
for path in sorted(place.glob("vmsst/**/*.py")):
  name = ".".join(path.relative_to(place).with_suffix("").parts)
  failed, tried = doctest.testmod(importlib.import_module(name))
  assert not failed
  called += tried
from vmsst.train import gin_utils, train as train_lib
quiet.drop_untrue_warnings()
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
  for block in BLOCKS:
    if named := re.match(r"# ([\w/]+\.(?:py|gin))\n", block.text):
      found[named[1]] = block.text[named.end() :]
  return found


@pytest.mark.slow
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
