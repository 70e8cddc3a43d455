"""Training that is killed and restarted ends bitwise as if it had not been interrupted."""

import pathlib
import shutil
import subprocess
import sys

import commands
import killed_runs
import pytest
import toy_runs

from vmsst.files import checksums
from vmsst.launch.runtime import eval as eval_lib


@pytest.mark.slow
def test_what_a_killed_run_leaves_on_disk_is_enough(tmp_path, monkeypatch):
  images = []

  def keep_an_image(owner, name, count):
    """Copies the run's folder at the `count`-th call of a function."""
    inner = getattr(owner, name)
    calls = []

    def wrapped(*args, **kwargs):
      calls.append(1)
      if len(calls) == count:
        images.append(tmp_path / f"{name}_{count}")
        shutil.copytree(tmp_path / "whole", images[-1], dirs_exist_ok=True)
      return inner(*args, **kwargs)

    monkeypatch.setattr(owner, name, wrapped)

  keep_an_image(checksums, "write", 3)  # while the checkpoint of step 10 is written
  killed_runs.train(tmp_path / "whole", 12)
  monkeypatch.undo()
  (image,) = images
  assert list(image.glob("checkpoint_10.*tmp*")), "the checkpoint was not partial"
  killed_runs.train(image, 12)
  assert not list(image.glob("*tmp*"))
  killed_runs.assert_same_runs(tmp_path / "whole", image, 12)


@pytest.mark.slow
def test_an_evaluation_that_was_cut_short_is_done_again(tmp_path, monkeypatch):
  evaluated = []
  evaluate = eval_lib.InferenceEvaluator.evaluate

  def seen(self, train_state, axes):
    evaluated.append(int(train_state.step))
    if len(evaluated) == 2:
      raise KeyboardInterrupt  # the checkpoint of step 4 is almost complete
    return evaluate(self, train_state, axes)

  monkeypatch.setattr(eval_lib.InferenceEvaluator, "evaluate", seen)

  def go():
    toy_runs.run(
      tmp_path,
      total_steps=6,
      period=2,
      eval_period=2,
      infer_eval_dataset_cfg=toy_runs.config("validation", batch_size=24, shuffle=False),
    )

  with pytest.raises(KeyboardInterrupt):
    go()
  go()
  assert evaluated == [2, 4, 4, 6]
  go()  # the last one is always shown
  assert evaluated == [2, 4, 4, 6, 6]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0])
def test_training_is_killed_20_times(tmp_path, seed):
  code = pathlib.Path(killed_runs.__file__)
  done = subprocess.run(
    [sys.executable, str(code), str(tmp_path), str(seed), "20"],
    env=commands.environment(),
    capture_output=True,
    text=True,
    timeout=3000,
    check=False,
  )
  assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
  print(done.stdout)
  assert "20 kills" in done.stdout
  killed_runs.assert_same_runs(tmp_path / "whole", tmp_path / "killed", 200)
