"""Writes metrics to TensorBoard event files and to `metrics.jsonl`, files that grow.

Objects of a store cannot grow, and TensorFlow, which writes events, does not support all stores. So
the files are local, and uploaded as a whole when they have changed.
"""

import json
import os
import pathlib
import shutil
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping
from typing import Any, TextIO

import clu.metrics
import jax
import numpy as np

from vmsst import storage


class LogFolder:
  """A folder to append to, as one on this machine.

  Attributes:
    local: The folder itself, or a local one whose files `upload` copies to the object store; it
      lasts as long as this object.
  """

  def __init__(self, folder: str | os.PathLike[str]):
    """Makes the folder; downloads the JSON lines of a store, which may be appended to."""
    self._url = os.fspath(folder).rstrip("/") if storage.is_url(folder) else None
    self._uploaded: dict[str, object] = {}
    self._when = time.monotonic()
    if self._url is None:
      self.local = pathlib.Path(folder)
      self.local.mkdir(parents=True, exist_ok=True)
      return
    self.local = pathlib.Path(tempfile.mkdtemp(prefix="vmsst-logs-"))
    weakref.finalize(self, shutil.rmtree, self.local, ignore_errors=True)
    for name in sorted(storage.names(self._url)):
      if name.endswith(".jsonl"):
        storage.download(f"{self._url}/{name}", self.local / name)
        self._uploaded[name] = storage.version(self.local / name)

  def upload(self, *, after_seconds: float = 0) -> None:
    """Uploads the files that have changed since the last time, if the folder is in a store.

    Args:
      after_seconds: Does nothing if the last time was less long ago.

    Raises:
      InputError: the object store refuses them.
    """
    if self._url is None or time.monotonic() - self._when < after_seconds:
      return
    self._when = time.monotonic()
    for path in sorted(self.local.rglob("*")):
      name = path.relative_to(self.local).as_posix()
      if path.is_file() and self._uploaded.get(name) != (version := storage.version(path)):
        storage.upload(path, f"{self._url}/{name}")
        self._uploaded[name] = version


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

  The first metrics or texts create the folder. Processes but the first write nothing. TensorFlow
  writes the events, and takes ten seconds to import: runs that read their data without it have
  only `metrics.jsonl`.

  Args:
    folder: Folder of the run; None writes nothing.
    kind: Folder below it.
  """

  def __init__(self, folder: str | None, kind: str):
    self._folder: storage.Path | None = None
    if folder is not None and jax.process_index() == 0:
      self._folder = storage.path(folder) / kind
    self._logs: LogFolder | None = None
    self._events: Any = None
    self._lines: TextIO | None = None

  def _open(self) -> None:
    if self._folder is not None and self._logs is None:
      self._logs = LogFolder(self._folder)
      if sys.modules.get("tensorflow"):
        from clu.metric_writers import summary_writer

        self._events = summary_writer.SummaryWriter(os.fspath(self._logs.local))
      path = self._logs.local / "metrics.jsonl"
      if path.exists() and not (content := path.read_bytes()).endswith(b"\n"):
        os.truncate(path, content.rfind(b"\n") + 1)  # The disk was full.
      self._lines = path.open("a", encoding="utf-8")

  def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
    """Writes the metrics of one step as a line of JSON and as TensorBoard scalars."""
    self._open()
    if self._lines is None or self._logs is None:
      return
    values = {name: float(np.asarray(value)) for name, value in scalars.items()}
    if self._events is not None:
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
    if self._events is not None:
      self._events.flush()
    if self._logs is not None:
      self._logs.upload()

  def close(self) -> None:
    """Flushes and closes the files."""
    if self._events is not None:
      self._events.close()
    if self._lines is not None and self._logs is not None:
      self._lines.close()
      self._logs.upload()
      self._folder = self._logs = self._events = self._lines = None
