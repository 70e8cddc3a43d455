"""User output of a run: a live progress line, and tables of results."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

import jax
import numpy as np

from vmsst.launch.runtime import summaries

_LIVE_SECONDS = 0.5
_PLAIN_SECONDS = 15.0


def duration(seconds: float) -> str:
  """Returns seconds as text, such as 45s, 3m20s or 5h07m."""
  whole = round(max(seconds, 0.0))
  if whole < 60:
    return f"{whole}s"
  if whole < 3600:
    return f"{whole // 60}m{whole % 60:02d}s"
  return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def _count(number: float) -> str:
  for unit in ("", "k", "M"):
    if abs(number) < 999.5:
      return f"{number:.3g}{unit}"
    number /= 1000
  return f"{number:.3g}G"


def print_once(text: str) -> None:
  """Prints a line, from the first process alone."""
  if jax.process_index() == 0:
    print(text, flush=True)


class Progress:
  """Shows the progress of training: step, loss, examples/s, tokens/s, time left.

  Updates one line in place on a terminal; writes a line every `plain_seconds` elsewhere. Rates are
  those since the previous line.

  Args:
    total_steps: Last step of the run.
    batch_size: Examples in a global batch.
    stream: Stream to write to, in the first process only.
    plain_seconds: Seconds between lines if `stream` is not a terminal.
    clock: Returns the time in seconds.
  """

  def __init__(
    self,
    total_steps: int,
    batch_size: int,
    *,
    stream: TextIO | None = None,
    plain_seconds: float = _PLAIN_SECONDS,
    clock: Callable[[], float] = time.monotonic,
  ):
    self.total_steps = total_steps
    self._batch = batch_size
    self._stream = stream if stream is not None else sys.stderr
    self._live = self._stream.isatty()
    self._period = _LIVE_SECONDS if self._live else plain_seconds
    self._clock = clock
    self._start: tuple[int, float] | None = None  # after the first step, which compiles
    self._last = (0, clock())
    self._paused = 0.0
    self._width = 0
    self._silent = jax.process_index() != 0

  def update(self, step: int, metrics: Mapping[str, Any]) -> None:
    """Shows the finished `step` with its clu metrics (on the devices), at most once per period."""
    now = self._clock()
    if self._start is None:
      self._start = self._last = (step, now)
      self._paused = 0.0
    if self._silent or (now - self._last[1] < self._period and step < self.total_steps):
      return
    shown = {name: metrics[name] for name in ("loss", "tokens_per_example") if name in metrics}
    values = summaries.numbers(shown, 1, now - self._last[1])
    parts = [f"step {step}/{self.total_steps}"]
    if "loss" in values:
      parts.append(f"loss {values['loss']:.4f}")
    if step > self._last[0]:
      examples = (step - self._last[0]) * self._batch / max(now - self._last[1], 1e-9)
      parts.append(f"{_count(examples)} examples/s")
      if "tokens_per_example" in values:
        parts.append(f"{_count(values['tokens_per_example'] * examples)} tokens/s")
    if step > self._start[0]:
      seconds_a_step = (now - self._start[1] - self._paused) / (step - self._start[0])
      parts.append(f"ETA {duration((self.total_steps - step) * seconds_a_step)}")
    self._show("  ".join(parts))
    self._last = (step, now)

  def _show(self, line: str) -> None:
    if self._live:
      self._stream.write("\r" + line.ljust(self._width))
      self._width = len(line)
    else:
      self._stream.write(line + "\n")
    self._stream.flush()

  def pause(self, message: str = "") -> Callable[[], None]:
    """Ends the live line, for example for an evaluation; returns a function that resumes it."""
    self.finish_line()
    if message and not self._silent:
      self._stream.write(message + "\n")
      self._stream.flush()
    began = self._clock()

    def resume() -> None:
      away = self._clock() - began
      self._paused += away
      self._last = (self._last[0], self._last[1] + away)

    return resume

  def finish_line(self) -> None:
    """Ends the live line, which stays visible."""
    if self._live and self._width and not self._silent:
      self._stream.write("\n")
      self._width = 0


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
  """Keeps the first and the newest metrics of every evaluation task, for a table."""

  def __init__(self):
    self._seen: dict[str, list[tuple[int, dict[str, float]]]] = {}

  def add(self, step: int, metrics_by_task: Mapping[str, Mapping[str, Any]]) -> None:
    """Records the metrics of an evaluation at `step`."""
    for task, metrics in metrics_by_task.items():
      numbers = {name: float(value) for name, value in metrics.items() if _is_number(value)}
      if numbers:
        seen = self._seen.setdefault(task, [])
        seen[1:] = [(step, numbers)]  # keeps the first, replaces the newest

  def print_tables(self) -> None:
    """Prints a table for every task: metrics in rows, first and newest step in columns."""
    for task, seen in self._seen.items():
      columns = [f"step {step}" for step, _ in seen]
      rows = {name: [numbers.get(name) for _, numbers in seen] for name in seen[-1][1]}
      print_once(f"\n{table(task, columns, rows)}")


def _is_number(value: Any) -> bool:
  return isinstance(value, int | float | np.number) or (
    isinstance(value, np.ndarray) and value.ndim == 0
  )
