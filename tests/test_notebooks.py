"""Runs the notebooks from the first cell to the last, as Jupyter does.

The notebooks read their folders from `VMSST_RUN` and `VMSST_WORK`, and training flags from
`VMSST_FLAGS`. Running them takes seconds to minutes, so these are slow tests.
"""

import pathlib
import re
import subprocess
import sys
import sysconfig

import commands
import pytest

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
  text, figures = run_notebook("quickstart_colab.ipynb", tmp_path, **place, **commands.OPTIMIZED)
  assert figures == ["image/png"]
  right, found = map(int, re.search(r"(\d+) of (\d+) pairs are translations", text).groups())
  assert right >= 180  # of 200
  assert right / found >= 0.85
