"""Work that must not grow with the number of steps."""

import jax
import pytest
import toy_runs

from vmsst.launch.runtime import checkpoints


class CountingModel(toy_runs.ToyModel):
  """A model that counts how often its loss is traced."""

  traces = 0

  def loss_fn(self, params, batch, dropout_rng):
    self.traces += 1
    return super().loss_fn(params, batch, dropout_rng)


@pytest.mark.slow
def test_a_step_is_traced_once_in_a_run_of_any_length(tmp_path):
  counts = []
  for steps in (8, 16):
    model = CountingModel(noise=0.5)
    toy_runs.run(
      tmp_path / str(steps),
      model=model,
      total_steps=steps,
      stats_period=1,
      checkpoint_cfg=checkpoints.CheckpointConfig(),
    )
    counts.append(model.traces)
    jax.clear_caches()
  assert counts == [1, 1]
