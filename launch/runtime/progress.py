"""What a person sees while a run goes on: one live line, and tables of results."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

import jax
import numpy as np

_LIVE_SECONDS = 0.5
_PLAIN_SECONDS = 15.0


def duration(seconds: float) -> str:
  """Seconds as 45s, 3m20s or 5h07m."""
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
  """One line that says how training goes: step, loss, examples/s, tokens/s, time left.

  Rewritten in place on a terminal; elsewhere a plain line every `plain_seconds`. Rates are those
  since the line before.

  Args:
    total_steps: step that the run ends at.
    batch_size: examples in a global batch.
    stream: where to write; only the first process writes.
    plain_seconds: seconds between lines where `stream` is no terminal.
    clock: seconds that go on.
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
    self._start: tuple[int, float] | None = None  # the first step compiles: rates begin after it
    self._last = (0, clock())
    self._paused = 0.0
    self._width = 0
    self._silent = jax.process_index() != 0

  def update(self, step: int, metrics: Mapping[str, Any]) -> None:
    """Shows `step` (finished) with its metrics (clu metrics, on the devices), if it is time to."""
    now = self._clock()
    if self._start is None:
      self._start = self._last = (step, now)
      self._paused = 0.0
    if self._silent or (now - self._last[1] < self._period and step < self.total_steps):
      return
    values = {
      name: float(np.asarray(jax.device_get(metrics[name]).compute()))
      for name in ("loss", "tokens_per_example")
      if name in metrics
    }
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
    """Ends the live line (for an evaluation, say) and returns what resumes it."""
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
    """Moves on from the live line, which stays visible."""
    if self._live and self._width and not self._silent:
      self._stream.write("\n")
      self._width = 0


def table(title: str, columns: Sequence[str], rows: Mapping[str, Sequence[float | None]]) -> str:
  """Numbers as aligned text, one line a row."""
  label_width = max([len(title), *(len(name) for name in rows)])
  cells = {name: ["" if v is None else _number(v) for v in values] for name, values in rows.items()}
  widths = [
    max([len(column), *(len(values[i]) for values in cells.values())])
    for i, column in enumerate(columns)
  ]
  header = "  ".join(
    [title.ljust(label_width), *(c.rjust(w) for c, w in zip(columns, widths, strict=True))]
  )
  lines = [header, "-" * len(header)]
  for name, values in cells.items():
    lines.append(
      "  ".join(
        [name.ljust(label_width), *(v.rjust(w) for v, w in zip(values, widths, strict=True))]
      )
    )
  return "\n".join(lines)


def _number(value: float) -> str:
  if isinstance(value, int):
    return f"{value:,}"
  return f"{value:.4g}" if abs(value) < 1 else f"{value:.2f}"


class EvaluationLog:
  """Remembers the first and the newest metrics of every evaluation task, for a table of both."""

  def __init__(self):
    self._seen: dict[str, list[tuple[int, dict[str, float]]]] = {}

  def add(self, step: int, metrics_by_task: Mapping[str, Mapping[str, Any]]) -> None:
    """Notes the metrics of an evaluation at `step`."""
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
