"""Writes metrics to TensorBoard event files and to `metrics.jsonl`."""

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any, TextIO

import jax
import numpy as np


class SummaryWriter:
  """Writes metrics of one kind (`train`, `training_eval/<task>`) to a folder.

  The first metrics or texts create the folder.

  Args:
    folder: The folder; None writes nothing (in all processes but the first).
  """

  def __init__(self, folder: pathlib.Path | None):
    self._folder = folder
    self._events: Any = None
    self._lines: TextIO | None = None

  def _open(self) -> None:
    if self._folder is not None and self._events is None:
      from clu.metric_writers import summary_writer  # imports TensorFlow

      self._folder.mkdir(parents=True, exist_ok=True)
      self._events = summary_writer.SummaryWriter(os.fspath(self._folder))
      self._lines = (self._folder / "metrics.jsonl").open("a", encoding="utf-8")

  def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
    """Writes the metrics of one step as a line of JSON and as TensorBoard scalars."""
    self._open()
    if self._events is None or self._lines is None:
      return
    values = {name: float(np.asarray(value)) for name, value in scalars.items()}
    self._events.write_scalars(step, values)
    finite = {name: value if np.isfinite(value) else str(value) for name, value in values.items()}
    self._lines.write(json.dumps({"step": step, **finite}) + "\n")
    self._lines.flush()

  def write_texts(self, step: int, texts: Mapping[str, str]) -> None:
    """Writes texts (Markdown) to TensorBoard."""
    self._open()
    if self._events is not None:
      self._events.write_texts(step, texts)

  def flush(self) -> None:
    """Flushes TensorBoard events to disk."""
    if self._events is not None:
      self._events.flush()

  def close(self) -> None:
    """Flushes and closes the files."""
    if self._events is not None and self._lines is not None:
      self._events.close()
      self._lines.close()
      self._folder = self._events = self._lines = None


def writer(summary_dir: str | None, kind: str) -> Any:
  """Returns a writer to `summary_dir`/`kind`, which writes nothing except in the first process."""
  if summary_dir is None or jax.process_index() != 0:
    return SummaryWriter(None)
  return SummaryWriter(pathlib.Path(summary_dir) / kind)
