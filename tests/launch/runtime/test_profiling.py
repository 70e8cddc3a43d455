"""Traces of training steps."""

import functools
import re

import jax
import jax.numpy as jnp
import memory_store
import numpy as np
import pytest
import toy_runs

from vmsst import errors
from vmsst.launch import main
from vmsst.launch.runtime import profiling, progress


def steps_in(path):
  """Returns start and end of each step in a trace, in nanoseconds, by number."""
  return {
    dict(event.stats)["step_num"]: (event.start_ns, event.start_ns + event.duration_ns)
    for plane in jax.profiler.ProfileData.from_file(str(path)).planes
    for line in plane.lines
    for event in line.events
    if event.name == profiling.STEP
  }


def test_a_trace_has_the_steps_asked_for_and_changes_nothing(tmp_path):
  _, expected = toy_runs.run(tmp_path / "plain")
  profile = profiling.Profile.parse("4:7")
  with profiling.requested(profile):
    _, found = toy_runs.run(tmp_path / "traced")
  assert profile.written
  (path,) = (tmp_path / "traced").rglob("*.xplane.pb")
  assert path.is_relative_to(tmp_path / "traced" / profiling.FOLDER)
  steps = steps_in(path)
  assert sorted(steps) == [4, 5, 6, 7]
  times = np.array([steps[number] for number in sorted(steps)])
  assert (np.diff(times.ravel()) > 0).all()  # one after the other
  toy_runs.assert_same(expected.state_dict(), found.state_dict())


class SlowModel(toy_runs.ToyModel):
  """A toy whose steps take about 20 ms on a core."""

  def loss_fn(self, params, batch, dropout_rng):
    loss, metrics = super().loss_fn(params, batch, dropout_rng)
    start_DD = jnp.full((256, 256), jax.lax.stop_gradient(loss))
    end_DD = jax.lax.fori_loop(0, 200, lambda _, x_DD: jnp.tanh(x_DD @ x_DD), start_DD)
    return loss + 1e-9 * jnp.mean(end_DD), metrics


def test_step_times_of_a_trace_are_those_of_the_progress_line(tmp_path, monkeypatch, capsys):
  first, last, batch = 5, 20, 8
  monkeypatch.setattr(progress, "Progress", functools.partial(progress.Progress, plain_seconds=0))
  with profiling.requested(profiling.Profile(first, last)):
    toy_runs.run(tmp_path, model=SlowModel(), total_steps=25, period=0, eval_period=0)
  (path,) = tmp_path.rglob("*.xplane.pb")
  times = steps_in(path)
  lines = re.findall(r"step (\d+)/25 .* ([\d.]+)(k?) examples/s", capsys.readouterr().err)
  seconds = {int(step): batch / (float(rate) * (1000 if kilo else 1)) for step, rate, kilo in lines}
  # Two steps are in flight: step n + 2 of the trace ends when step n has ended.
  in_trace = np.mean([times[n][1] - times[n][0] for n in range(first + 1, last + 1)]) / 1e9
  in_lines = np.mean([seconds[n - 2] for n in range(first + 1, last + 1)])
  assert in_trace == pytest.approx(in_lines, rel=0.25)


def test_a_trace_starts_with_the_devices_at_work_and_ends_when_they_have_finished(tmp_path):
  profile = profiling.Profile(2, 3)
  events = []
  for number in range(1, 5):
    with profile.step(number, tmp_path, lambda: events.append("wait")):
      events.append(number)
  assert events == [1, 2, 3, "wait", 4]
  assert profile.written


def test_a_trace_in_a_store_is_uploaded(tmp_path, monkeypatch):
  store = memory_store.installed(monkeypatch)
  with profiling.requested(profiling.Profile(1, 1)) as _, profiling.step(1, "gs://b/run", list):
    pass
  (found,) = [path for path in store.find("gs://b/run/profile") if path.endswith(".xplane.pb")]
  store.get_file(found, str(tmp_path / "trace"))
  assert list(steps_in(tmp_path / "trace")) == [1]


def test_a_run_that_resumes_after_the_first_step_has_no_trace(tmp_path):
  profile = profiling.Profile(1, 2)
  with profiling.requested(profile), profiling.step(2, tmp_path, list):
    pass
  assert not profile.written
  assert list(tmp_path.iterdir()) == []


def test_steps_that_are_not_trained_leave_a_warning(tmp_path, capsys, monkeypatch):
  trained = []
  monkeypatch.setattr(main, "_configured", lambda options, ends: lambda: trained.append(options))
  main.main(["train", "--gin_file=quickstart.gin", "--profile_steps=10:20"])
  assert len(trained) == 1
  warning = (
    "t5x: warning: the run did not train steps 10:20, so their trace in MODEL_DIR/profile is"
  )
  assert capsys.readouterr().err.startswith(warning)


@pytest.mark.parametrize("steps", ["7", "7:", "0:3", "5:4", "a:b", "1:2:3", "-1:2"])
def test_other_steps_are_refused(steps):
  with pytest.raises(errors.InputError, match=f"--profile_steps={steps}: give FIRST:LAST, such as"):
    profiling.Profile.parse(steps)
