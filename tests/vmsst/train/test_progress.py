"""The live progress line, and tables of evaluations."""

import io
import re
import sys

import clu.metrics
import jax.numpy as jnp
import pytest

from vmsst.train import progress


class Terminal(io.StringIO):
  """A stream that is a terminal."""

  def isatty(self):
    return True


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_the_line_shows_loss_and_rates_in_place_or_as_further_lines(monkeypatch, stream):
  monkeypatch.setattr(sys, "stderr", stream())
  bar = progress.Progress(100, 1000, 64)
  now = [bar.start_t]
  bar._time = lambda: now[0]
  average = clu.metrics.Average.from_model_output
  for step, loss in ((110, 1.0), (130, 2.5), (1000, 3.5)):
    now[0] += 20
    bar.show(step, {name: average(jnp.asarray([loss])) for name in ("loss", "tokens_per_example")})
  bar.end_line("evaluating")
  text = sys.stderr.getvalue()
  lines = re.split(r"[\r\n]+", text.strip())
  assert lines[-1] == "evaluating"
  assert text.count("\r") == (3 if stream is Terminal else 0)
  assert re.match(
    r"step 130/1000 \[00:40<.*, loss 2.5000, \S+ examples/s, \S+ tokens/s\]", lines[1]
  )
  assert "step 1000/1000" in lines[-2]


@pytest.mark.parametrize(
  ("best", "columns", "numbers"),
  [
    (None, ["step 0", "step 30"], ["1.00", "60.00"]),
    (20, ["step 0", "step 20 (best)", "step 30"], ["1.00", "91.25", "60.00"]),
    (30, ["step 0", "step 30 (best)"], ["1.00", "60.00"]),
    (-5, ["step -5 (best)", "step 30"], ["95.00", "60.00"]),  # evaluated by an earlier process
  ],
)
def test_tables_show_the_first_the_best_and_the_newest_evaluation(capsys, best, columns, numbers):
  log = progress.EvaluationLog()
  for step, value in ((0, 1.0), (10, 50.0), (20, 91.25), (30, 60.0)):
    log.add(step, {"retrieval": {"accuracy/de": value, "loss": 2.0, "note": "text"}})
  record = {"checkpoint": f"checkpoint_{best}", "metric": "retrieval/accuracy/de", "value": 95.0}
  log.print_tables(None if best is None else record)
  empty, header, line, accuracy, loss = capsys.readouterr().out.splitlines()
  assert re.split("  +", header) == ["retrieval", *columns]
  assert re.split("  +", accuracy) == ["accuracy/de", *numbers]
  assert loss.endswith("2.00")
  assert (empty, set(line)) == ("", {"-"})
