"""The progress line and the tables."""

import io

import clu.metrics
import jax.numpy as jnp

from vmsst.launch.runtime import progress


class Terminal(io.StringIO):
  """A stream that is a terminal."""

  def isatty(self):
    return True


def metrics(loss, tokens):
  return {
    "loss": clu.metrics.Average.from_model_output(jnp.asarray([loss])),
    "tokens_per_example": clu.metrics.Average.from_model_output(jnp.asarray([tokens])),
  }


def test_the_line_gives_rates_since_the_first_step_and_the_time_left():
  now = [100.0]
  stream = io.StringIO()
  bar = progress.Progress(1000, 64, stream=stream, plain_seconds=10, clock=lambda: now[0])
  now[0] = 200.0
  bar.update(100, metrics(1.0, 10.0))  # the first step, after compilation
  now[0] = 205.0
  bar.update(150, metrics(1.0, 10.0))
  assert stream.getvalue() == ""  # not a terminal: only a line every ten seconds
  now[0] = 220.0
  bar.update(300, metrics(1.5, 10.0))
  line = stream.getvalue()
  assert line == "step 300/1000  loss 1.5000  640 examples/s  6.4k tokens/s  ETA 1m10s\n"


def test_a_terminal_line_is_rewritten_in_place_and_covers_what_was_there():
  now = [0.0]
  stream = Terminal()
  bar = progress.Progress(20000, 1, stream=stream, clock=lambda: now[0])
  for step, loss in ((0, 1.0), (10, 123456.0), (20, 1.0)):
    bar.update(step, metrics(loss, 1.0))
    now[0] += 1.0
  first, second = stream.getvalue().split("\r")[1:]
  assert len(second) == len(first)
  assert second.startswith("step 20/20000  loss 1.0000  10 examples/s")


def test_time_away_does_not_count():
  now = [0.0]
  stream = io.StringIO()
  bar = progress.Progress(100, 1, stream=stream, plain_seconds=1, clock=lambda: now[0])
  bar.update(0, {})
  now[0] = 10.0
  resume = bar.pause("evaluating")
  now[0] = 1000.0
  resume()
  now[0] = 1010.0
  bar.update(40, {})
  assert stream.getvalue().splitlines() == ["evaluating", "step 40/100  2 examples/s  ETA 30s"]


def test_tables_show_the_first_and_the_newest_evaluation(capsys):
  log = progress.EvaluationLog()
  for step, value in ((0, 1.0), (10, 50.0), (20, 91.25)):
    log.add(step, {"retrieval": {"accuracy/de": value, "note": "text"}})
  log.print_tables()
  assert capsys.readouterr().out.splitlines() == [
    "",
    "retrieval    step 0  step 20",
    "----------------------------",
    "accuracy/de    1.00    91.25",
  ]


def test_durations():
  assert [progress.duration(s) for s in (0, 59, 61, 3599, 3661)] == [
    "0s",
    "59s",
    "1m01s",
    "59m59s",
    "1h01m",
  ]
