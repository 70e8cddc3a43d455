"""Traces of training steps."""

import jax
import memory_store
import numpy as np
import pytest
import toy_runs

from vmsst import errors
from vmsst.launch import main
from vmsst.launch.runtime import profiling


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
