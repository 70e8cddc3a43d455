"""SeqIO evaluation, while training and by `t5x eval`."""

import numpy as np
import toy_runs

from vmsst.train import checkpoints, partitioning
from vmsst.train import eval as eval_lib


def test_seqio_and_training_evaluation_agree_with_the_saved_parameters(tmp_path, capsys):
  toy_runs.run(
    tmp_path,
    total_steps=4,
    train_eval_dataset_cfg=toy_runs.config("validation", shuffle=False),
    infer_eval_dataset_cfg=toy_runs.config("validation", batch_size=24, shuffle=False),
    run_eval_before_training=True,
  )
  model = toy_runs.ToyModel()
  restore = checkpoints.RestoreCheckpointConfig(path=str(tmp_path), mode="latest")
  results = eval_lib.evaluate(
    model=model,
    dataset_cfg=toy_runs.config("validation", batch_size=24, shuffle=False),
    restore_checkpoint_cfg=restore,
    partitioner=partitioning.PjitPartitioner(num_partitions=1),
    output_dir=str(tmp_path / "eval"),
  )
  state = toy_runs.read_checkpoint(tmp_path / "checkpoint_4")
  table = state["target"]["table"]
  validation = toy_runs.rows(seed=len("validation"))
  means = [np.mean([table[t] for t in row if t], axis=0) for row in validation]
  assert results[4]["toy"]["rows"] == 64
  np.testing.assert_allclose(results[4]["toy"]["mean"], np.mean(means), rtol=1e-5)
  losses = toy_runs.metrics(tmp_path / "training_eval" / "toy")
  goal = [[sum(row != 0)] for row in validation[:16]]
  wanted = np.mean(np.square(np.asarray(means[:16]) - goal))
  np.testing.assert_allclose(losses[4], wanted, rtol=1e-5)
  assert sorted(losses) == [0, 4]
  printed = capsys.readouterr().out
  assert "step 0" in printed
  assert f"{results[4]['toy']['mean']:.4g}"[:4] in printed
