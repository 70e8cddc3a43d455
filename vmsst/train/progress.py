"""User output of a run: a live progress line, and tables of results."""

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from vmsst.io import progress_bar
from vmsst.train import summaries

_LIVE_SECONDS = 0.5


def print_once(text: str) -> None:
  """Prints a line, from the first process alone."""
  if jax.process_index() == 0:
    print(text, flush=True)


class Progress(progress_bar.Bar):
  """The progress of training: step, time, steps/s, loss, examples/s, tokens/s.

  Updates one line in place on a terminal; writes a line every 15 seconds elsewhere.
  """

  def __init__(self, first_step: int, total_steps: int, batch_size: int):
    """Shows nothing before the first update, and nothing except in the first process."""
    self._batch_size = batch_size
    self._metrics: Mapping[str, Any] = {}
    super().__init__(
      initial=first_step,
      total=total_steps,
      bar_format="step {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]",
      unit=" steps",
      mininterval=_LIVE_SECONDS if sys.stderr.isatty() else progress_bar.LINE_SECONDS,
      miniters=1,
      delay=1e-9,
      position=0,
      disable=jax.process_index() != 0,
      lines=True,
    )

  @property
  def format_dict(self) -> dict[str, Any]:
    """The parts of the line; reads the metrics, which waits for the devices."""
    fields = super().format_dict
    shown = {n: self._metrics[n] for n in ("loss", "tokens_per_example") if n in self._metrics}
    values = summaries.numbers(shown, 1, 1.0)
    done = self.n - self.initial
    rate = fields["rate"] or (done / fields["elapsed"] if fields["elapsed"] else 0.0)
    parts = [f"loss {values['loss']:.4f}"] if "loss" in values else []
    parts.append(f"{self.format_sizeof(rate * self._batch_size)} examples/s")
    if "tokens_per_example" in values:
      tokens = values["tokens_per_example"] * rate * self._batch_size
      parts.append(f"{self.format_sizeof(tokens)} tokens/s")
    return {**fields, "postfix": ", ".join(parts)}

  def show(self, step: int, metrics: Mapping[str, Any]) -> None:
    """Shows the finished `step` with its clu metrics, from time to time and at the last step."""
    self._metrics = metrics
    if not self.update(step - self.n) and step == self.total:
      self.refresh()

  def close(self) -> None:
    """Shows nothing more."""
    self.delay = math.inf
    super().close()

  def end_line(self, message: str = "") -> None:
    """Ends the live line, for example for an evaluation; `unpause` continues with another."""
    if not self.disable:
      if sys.stderr.isatty() and self._metrics:
        self.fp.write("\n")
      if message:
        print(message, file=self.fp, flush=True)


def table(title: str, columns: Sequence[str], rows: Mapping[str, Sequence[float | None]]) -> str:
  """Returns numbers as aligned text, one line per row."""
  cells = [[title, *columns]]
  cells += [
    [name, *("" if v is None else _number(v) for v in values)] for name, values in rows.items()
  ]
  widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
  header, *lines = (
    "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in cells
  )
  return "\n".join([header, "-" * len(header), *lines])


def _number(value: float) -> str:
  if isinstance(value, int):
    return f"{value:,}"
  return f"{value:.4g}" if abs(value) < 1 else f"{value:.2f}"


class EvaluationLog:
  """Keeps the metrics of every evaluation task, for a table."""

  def __init__(self):
    self._seen: dict[str, dict[int, dict[str, float]]] = {}

  def add(self, step: int, metrics_by_task: Mapping[str, Mapping[str, Any]]) -> None:
    """Records the metrics of an evaluation at `step`."""
    for task, metrics in metrics_by_task.items():
      numbers = {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float | np.number | np.ndarray) and np.ndim(value) == 0
      }
      if numbers:
        self._seen.setdefault(task, {})[step] = numbers

  def print_tables(self, best: Mapping[str, Any] | None = None) -> None:
    """Prints a table for every task: metrics in rows; first, best and newest step in columns.

    Args:
      best: The best checkpoint, as `t5x.read_best` returns it; an earlier process may have
        evaluated it.
    """
    best_step = None
    if best is not None:
      task, _, metric = best["metric"].partition("/")
      best_step = int(best["checkpoint"].rpartition("_")[2])
      self._seen.setdefault(task, {}).setdefault(best_step, {metric: best["value"]})
    for task, seen in self._seen.items():
      steps = [step for step in sorted(seen) if step in (min(seen), best_step, max(seen))]
      columns = [f"step {step}{' (best)' if step == best_step else ''}" for step in steps]
      rows = {name: [seen[step].get(name) for step in steps] for name in seen[steps[-1]]}
      print_once(f"\n{table(task, columns, rows)}")
