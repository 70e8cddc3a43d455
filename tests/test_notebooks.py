"""Runs the notebooks from the first cell to the last, as Jupyter does.

The notebooks read their folders from `VMSST_RUN` and `VMSST_WORK`, and training flags from
`VMSST_FLAGS`. Running them takes seconds to minutes, so these are slow tests.
"""

import json
import pathlib
import re
import subprocess
import sys
import sysconfig

import commands
import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
import tiny_encoders

from vmsst.checkpoints import encoder_json
from vmsst.models import contrastive
from vmsst.networks import sentence_encoder
from vmsst.tasks import sample
from vmsst.text import vocabularies

ROOT = pathlib.Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
pytestmark = pytest.mark.skipif(not NOTEBOOKS, reason="an installation without its repository")

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
  output = folder / name
  outside = {**commands.environment(), **environment}
  outside["PATH"] = f"{sysconfig.get_path('scripts')}:{outside['PATH']}"
  done = subprocess.run(
    [sys.executable, "-c", _EXECUTE, str(ROOT / "notebooks" / name), str(output)],
    cwd=folder,
    env=outside,
    stdin=subprocess.DEVNULL,
    capture_output=True,
    text=True,
    timeout=1800,
  )
  assert done.returncode == 0, done.stderr[-3000:]
  text, figures = "", []
  for cell in nbformat.read(output, 4).cells:
    for part in cell.get("outputs", []):
      text += part.get("text", "")
      text += part.get("data", {}).get("text/plain", "")
      figures += [kind for kind in part.get("data", {}) if kind.startswith("image/")]
  return text, figures


@pytest.fixture
def untrained(tmp_path):
  """Returns a run with initial parameters."""
  model = contrastive.ContrastiveModel(
    network=sentence_encoder.SentenceEncoder(
      tiny_encoders.t5_config(vocab_size=3600, emb_dim=16, head_dim=8, mlp_dim=16),
      16,
    ),
    input_vocabulary=vocabularies.SentencePieceVocabulary(sample.vocabulary_path()),
  )
  variables = model.get_initial_variables(jax.random.key(0), {"inputs": (1, 8)})
  tree = {"target": jax.tree.map(np.asarray, variables["params"])}
  with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
    state = tmp_path / "run" / "checkpoint_0" / "state"
    checkpointer.save(state, args=ocp.args.PyTreeSave(tree))
  encoder_json.save_encoder_assets(model, tmp_path / "run")
  return tmp_path / "run"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(path):
  notebook = json.loads(path.read_text(encoding="utf-8"))
  code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
  assert code
  assert all(not cell["outputs"] and cell["execution_count"] is None for cell in code)
  assert {*notebook["metadata"]} == {"kernelspec", "language_info"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.parametrize(
  ("package", "expected"),
  [
    ("..", "..[train,report]"),
    ("/tmp/vmsst-0.1.0-py3-none-any.whl", "/tmp/vmsst-0.1.0-py3-none-any.whl[train,report]"),
    ("git+https://host/me/vmsst", "vmsst[train,report] @ git+https://host/me/vmsst"),
  ],
)
def test_a_notebook_installs_a_checkout_a_wheel_or_a_repository(path, package, expected):
  cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
  install = "".join(cells[1]["source"])
  assert 'PACKAGE = ".."' in install  # the checkout of the notebook
  assert (path.parent / ".." / "pyproject.toml").is_file()
  for old, new in {
    'PACKAGE = ".."': f"PACKAGE = {package!r}",
    "try:\n  import vmsst": "try:\n  raise ModuleNotFoundError",
    '%pip install -q "{requirement}"': "asked.append(requirement)",
  }.items():
    assert old in install
    install = install.replace(old, new)
  asked = []
  exec(install, {"asked": asked})
  assert asked == [expected]


@pytest.mark.slow
def test_the_quickstart_runs(untrained, tmp_path):
  text, figures = run_notebook("quickstart_colab.ipynb", tmp_path, VMSST_RUN=str(untrained))
  assert "16 dimensions" in text
  assert figures == ["image/png"]
  assert re.search(r"\d+ of \d+ pairs are translations", text)


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_quickstart_learns(tmp_path):
  place = {"VMSST_RUN": str(tmp_path / "run")}
  text, _ = run_notebook("quickstart_colab.ipynb", tmp_path, **place, **commands.OPTIMIZED)
  right, found = map(int, re.search(r"(\d+) of (\d+) pairs are translations", text).groups())
  assert right >= 180  # of 200
  assert right / found >= 0.85


@pytest.mark.slow
def test_training_on_your_own_data_learns(tmp_path):
  place = {"VMSST_WORK": str(tmp_path / "own")}
  text, _ = run_notebook("train_your_own.ipynb", tmp_path, **place, **commands.OPTIMIZED)
  assert float(re.search(r"'average': '([\d.]+) %'", text)[1]) > 95
