"""`t5x infer`: every row once, also after an interruption."""

import json

import killed_commands
import numpy as np
import pytest
import toy_runs

from vmsst.errors import InputError
from vmsst.train import eval as eval_lib
from vmsst.train import infer, inference, partitioning


def test_infer_writes_every_row_once_and_resumes_after_an_interruption(tmp_path, monkeypatch):
  toy_runs.run(tmp_path, total_steps=1)

  def run(split="validation"):
    infer.infer(
      mode="score",
      model=toy_runs.ToyModel(),
      dataset_cfg=toy_runs.config(split, batch_size=4, shuffle=False),
      restore_checkpoint_cfg=toy_runs.restoring(tmp_path / "checkpoint_1"),
      partitioner=partitioning.PjitPartitioner(num_partitions=1),
      output_dir=str(tmp_path / "infer"),
      checkpoint_period=3,
    )

  real, computed = inference.get_infer_fn, []

  def failing(**arguments):
    infer_fn = real(**arguments)

    def infer_some(*args, rng, **options):
      if len(computed) == 2:
        computed.append("a failure")
        raise OSError("disk full")
      computed.append(int(rng[1]))
      return infer_fn(*args, rng=rng, **options)

    return infer_some

  monkeypatch.setattr(inference, "get_infer_fn", failing)
  rows = toy_runs.rows
  # Lines of another split, or of other examples, are not used.
  for split, shift in (("train", 0), ("validation", 1), ("validation", 0)):
    monkeypatch.setattr(toy_runs, "rows", lambda seed, shift=shift: rows(seed=seed + shift))
    computed.clear()
    with pytest.raises(OSError, match="disk full"):
      run(split)
  run()
  assert computed == [0, 1, "a failure", 2, 3, 4, 5]
  (output,) = (tmp_path / "infer").glob("toy-score.jsonl-00000-of-00001")
  lines = [json.loads(line) for line in output.read_text().splitlines()]
  table = toy_runs.read_checkpoint(tmp_path / "checkpoint_1")["target"]["table"]
  expected = [r[r != 0] for r in toy_runs.rows(seed=len("validation"))]
  assert [line["inputs"]["inputs"] for line in lines] == [row.tolist() for row in expected]
  scores = np.asarray([line["score"] for line in lines])
  np.testing.assert_allclose(scores, [table[row].mean(axis=0) for row in expected], rtol=1e-5)


def test_a_failed_evaluation_or_inference_leaves_no_results(tmp_path):
  toy_runs.run(tmp_path / "run", total_steps=1)
  before = killed_commands.contents(tmp_path)
  arguments = {
    "dataset_cfg": toy_runs.config("validation", batch_size=4, shuffle=False),
    "restore_checkpoint_cfg": toy_runs.restoring(tmp_path / "run" / "checkpoint_1"),
    "partitioner": partitioning.PjitPartitioner(num_partitions=1),
    "output_dir": str(tmp_path / "new" / "out"),
  }
  wider = toy_runs.ToyModel(width=5)
  with pytest.raises(InputError, match="use a checkpoint of the same model and size"):
    eval_lib.evaluate(model=wider, **arguments)
  with pytest.raises(InputError, match="use a checkpoint of the same model and size"):
    infer.infer(mode="score", model=wider, checkpoint_period=3, **arguments)
  assert killed_commands.contents(tmp_path) == before
