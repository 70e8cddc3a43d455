"""Writes metrics to TensorBoard event files and to `metrics.jsonl`."""

import json
import os
from collections.abc import Mapping
from typing import Any, TextIO

import clu.metrics
import jax
import numpy as np

from vmsst.io import log_folders, storage

_UPLOAD_SECONDS = 60.0  # between uploads to an object store, in addition to those of `flush`


def numbers(
  metrics: Mapping[str, clu.metrics.Metric], steps: int, seconds: float
) -> dict[str, float]:
  """Returns metrics on the devices as numbers on the host.

  Args:
    metrics: By name. Those per step or per time have `replace_steps` or `replace_duration`, as in
      upstream T5X.
    steps: Number of steps that they are merged from.
    seconds: Duration of these steps.
  """
  values = {}
  for name, metric in jax.device_get(metrics).items():
    if hasattr(metric, "replace_steps"):
      metric = metric.replace_steps(steps)
    if hasattr(metric, "replace_duration"):
      metric = metric.replace_duration(seconds)
    values[name] = float(np.asarray(metric.compute()))
  return values


class SummaryWriter:
  """Writes metrics of one kind (`train`, `training_eval/<task>`) to a folder.

  The first metrics or texts create the folder. Processes but the first write nothing.

  Args:
    folder: Folder of the run; None writes nothing.
    kind: Folder below it.
  """

  def __init__(self, folder: str | None, kind: str):
    self._folder: storage.Path | None = None
    if folder is not None and jax.process_index() == 0:
      self._folder = storage.path(folder) / kind
    self._logs: log_folders.LogFolder | None = None
    self._events: Any = None
    self._lines: TextIO | None = None

  def _open(self) -> None:
    if self._folder is not None and self._events is None:
      from clu.metric_writers import summary_writer  # imports TensorFlow

      self._logs = log_folders.LogFolder(self._folder)
      self._events = summary_writer.SummaryWriter(os.fspath(self._logs.local))
      self._lines = (self._logs.local / "metrics.jsonl").open("a", encoding="utf-8")

  def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
    """Writes the metrics of one step as a line of JSON and as TensorBoard scalars."""
    self._open()
    if self._events is None or self._lines is None or self._logs is None:
      return
    values = {name: float(np.asarray(value)) for name, value in scalars.items()}
    self._events.write_scalars(step, values)
    finite = {name: value if np.isfinite(value) else str(value) for name, value in values.items()}
    self._lines.write(json.dumps({"step": step, **finite}) + "\n")
    self._lines.flush()
    self._logs.upload(after_seconds=_UPLOAD_SECONDS)

  def write_texts(self, step: int, texts: Mapping[str, str]) -> None:
    """Writes texts (Markdown) to TensorBoard."""
    self._open()
    if self._events is not None:
      self._events.write_texts(step, texts)

  def flush(self) -> None:
    """Flushes TensorBoard events to disk; uploads them and the lines if the folder is a URL."""
    if self._events is not None and self._logs is not None:
      self._events.flush()
      self._logs.upload()

  def close(self) -> None:
    """Flushes and closes the files."""
    if self._events is not None and self._lines is not None and self._logs is not None:
      self._events.close()
      self._lines.close()
      self._logs.upload()
      self._folder = self._logs = self._events = self._lines = None
