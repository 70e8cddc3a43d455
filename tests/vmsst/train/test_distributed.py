"""Multi-process runs on this machine: same numbers as one process; all processes end together."""

import functools
import json
import pathlib
import re

import commands
import jax
import numpy as np
import pytest
import servers
import tiny_encoders
import toy_runs

from vmsst.train import distributed

TOLERANCE = 1e-6  # Sums over the batch have another order.

# Forks `count` processes, so that imports happen once. At step 7, process `victim` fails as `fate`
# says: by an exception, or by a signal.
SCRIPT = """
import functools, itertools, json, os, signal, sys
import toy_runs
from vmsst.data import loader
from vmsst.errors import InputError
from vmsst.train import distributed, input_pipeline

folder, port, count, steps, evaluates, fate, victim, shares = json.loads(sys.argv[1])
advance, numbers = input_pipeline.TrainIterator.__next__, itertools.count()

def train(index):
  def watched(self):
    if next(numbers) == 7 and index == victim:
      if fate == "error":
        raise InputError("shard 3 vanished")
      os.kill(os.getpid(), getattr(signal, fate))
    return advance(self)

  input_pipeline.TrainIterator.__next__ = watched
  rows = loader.get_batches if shares else toy_runs.slices
  with distributed.join(f"localhost:{port}", count, index):
    evaluation = toy_runs.config("validation") if evaluates else None
    toy_runs.run(
      folder, total_steps=steps,
      get_dataset_fn=functools.partial(rows, group_by_length=True, boundaries=(4,)),
      train_eval_dataset_cfg=evaluation, infer_eval_dataset_cfg=evaluation)

children = []
for index in range(count):
  child = os.fork()
  if not child:
    for number in (1, 2):
      os.dup2(os.open(f"{folder}.{index}.{number}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    train(index)
    sys.exit(0)
  children.append(child)
codes = {}
for index in sorted(range(count), key=lambda index: index == victim):
  if index == victim and fate == "SIGSTOP":
    os.kill(children[index], signal.SIGKILL)
  codes[index] = os.waitstatus_to_exitcode(os.waitpid(children[index], 0)[1])
print(json.dumps([codes[index] for index in range(count)]))
"""


DATASET = functools.partial(toy_runs.slices, group_by_length=True, boundaries=(4,))


def run(folder, count, steps=10, *, evaluates=False, fate="", victim=-1, shares=False):
  """Returns the exit codes of the processes and their output on both streams.

  With `shares`, each process reads its share of the rows. Otherwise, batches equal the batches of a
  single process.
  """
  here = pathlib.Path(__file__).parent
  with servers.reserved() as port:
    options = json.dumps([str(folder), port, count, steps, evaluates, fate, victim, shares])
    codes = json.loads(commands.script(SCRIPT, options, cwd=here).stdout.splitlines()[-1])
  texts = [
    [pathlib.Path(f"{folder}.{index}.{stream}").read_text() for stream in (1, 2)]
    for index in range(count)
  ]
  return codes, texts


def run_alone(folder, steps=10, **options):
  toy_runs.run(folder, total_steps=steps, get_dataset_fn=DATASET, **options)


def assert_same(folder, reference, step=10):
  """Asserts equal losses and parameters."""
  assert_same_losses(folder / "train", reference / "train")
  assert_same_parameters(folder, reference, step)


def assert_same_losses(folder, reference):
  losses, expected = toy_runs.metrics(folder), toy_runs.metrics(reference)
  assert losses.keys() == expected.keys()
  np.testing.assert_allclose([*losses.values()], [*expected.values()], rtol=TOLERANCE)


def assert_same_parameters(folder, reference, step):
  close = functools.partial(np.testing.assert_allclose, rtol=TOLERANCE, atol=TOLERANCE)
  checkpoints = (tiny_encoders.read_arrays(x / f"checkpoint_{step}") for x in (folder, reference))
  jax.tree.map(close, *checkpoints)


@pytest.mark.slow
def test_four_processes_train_and_evaluate_as_one(tmp_path, capsys):
  codes, texts = run(tmp_path / "four", 4, evaluates=True)
  assert codes == [0] * 4, texts
  assert "training from step 0 to 10" in texts[0][0]
  assert "step" not in texts[1][0].replace("steps", "")  # only the first process writes
  state = tmp_path / "four" / "checkpoint_10" / "dataset"
  assert len([*state.glob("process_*-of-4/train_ds-*")]) == 4  # one file per process
  validation = toy_runs.config("validation")
  run_alone(tmp_path / "one", train_eval_dataset_cfg=validation, infer_eval_dataset_cfg=validation)
  assert_same(tmp_path / "four", tmp_path / "one")
  four, one = (tmp_path / name / "training_eval" / "toy" for name in ("four", "one"))
  assert_same_losses(four, one)
  assert toy_runs.metrics(one).keys() == {4, 8, 10}
  # Only the first process prints the table of the SeqIO evaluation.
  tables = [text.split("toy ")[1] for text, _ in texts if "toy " in text]
  assert tables == [capsys.readouterr().out.split("toy ")[1]]


@pytest.mark.slow
@pytest.mark.parametrize(
  ("fate", "victim", "count"),
  [("error", 1, 4), ("SIGKILL", 1, 2), ("SIGSTOP", 1, 2)],  # the last: a lost network
)
def test_if_one_process_dies_all_processes_stop_with_an_error(tmp_path, fate, victim, count):
  codes, texts = run(tmp_path / "run", count, fate=fate, victim=victim)
  assert all(codes), codes
  for index, (_, errors) in enumerate(texts):
    if index == victim:
      assert fate != "error" or "shard 3 vanished" in errors
    else:  # whichever notices first: a collective, or JAX; gloo itself may end the process
      assert re.search("another process in this run is lost|task|gloo|coordinat", errors), errors


@pytest.mark.slow
def test_a_run_resumes_with_another_number_of_processes(tmp_path):
  uninterrupted = tmp_path / "whole"
  run_alone(uninterrupted)
  for first, then in ((2, 1), (1, 2)):
    folder = tmp_path / f"{first}_{then}"
    assert run(folder, first, steps=5)[0] == [0] * first
    codes, texts = run(folder, then, steps=10)
    assert codes == [0] * then, texts
    assert f"not from a run with {then} processes" in texts[0][1]
    assert_same(folder, uninterrupted)


@pytest.mark.slow
def test_sigterm_to_one_process_stops_all_at_one_step_and_they_resume(tmp_path):
  steps = 60
  assert run(tmp_path / "whole", 2, steps, shares=True)[0] == [0, 0]
  codes, texts = run(tmp_path / "two", 2, steps, fate="SIGTERM", victim=1, shares=True)
  assert codes == [0, 0], texts
  assert "Stopped by SIGTERM at step" in texts[0][0]
  step = max(int(path.name.split("_")[1]) for path in (tmp_path / "two").glob("checkpoint_*"))
  assert 7 <= step < steps
  codes, texts = run(tmp_path / "two", 2, steps, shares=True)
  assert codes == [0, 0], texts
  assert_same_parameters(tmp_path / "two", tmp_path / "whole", steps)


class Initialized(Exception):
  """Raised instead of connecting."""


SLURM = {"SLURM_STEP_NODELIST": "node[1-2]", "SLURM_NTASKS": "4"}
ADDRESS = {"coordinator_address": "a:1"}
FOUND_BY_JAX = {
  **dict.fromkeys(["coordinator_address", "num_processes", "process_id"]),
  "initialization_timeout": 300,
}


@pytest.mark.parametrize(
  ("options", "environment", "expected"),
  [
    ({}, {}, None),
    ({"count": 1}, SLURM, None),
    ({}, SLURM, FOUND_BY_JAX),
    ({}, {"TPU_ML_PLATFORM": "JAX"}, FOUND_BY_JAX),
    ({"multi_process": True}, {}, FOUND_BY_JAX),
    (
      {**ADDRESS, "count": 2, "index": 1, "initialization_timeout": 9},
      {},
      {**ADDRESS, "num_processes": 2, "process_id": 1, "initialization_timeout": 9},
    ),
  ],
)
def test_jax_connects_processes_in_multi_process_runs_only(
  monkeypatch, options, environment, expected
):
  def initialize(**arguments):
    assert arguments.pop("heartbeat_timeout_seconds") == 30
    raise Initialized(arguments)

  monkeypatch.setattr(jax.distributed, "initialize", initialize)
  for name in ("TPU_ML_PLATFORM", "TPU_SKIP_MDS_QUERY"):
    monkeypatch.delenv(name, raising=False)
  for name, value in environment.items():
    monkeypatch.setenv(name, value)
  call = None
  try:
    with distributed.join(**options):
      pass
  except Initialized as joined:
    (call,) = joined.args
  assert call == expected
