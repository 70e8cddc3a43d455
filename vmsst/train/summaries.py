"""Reports a run's metrics in files, on Weights & Biases and on the terminal.

Metrics are written to TensorBoard's event files and to `metrics.jsonl`. A resumed run appends to
these files. However, files in an object store cannot be appended to, and TensorFlow does not
support all stores. If the run's folder is in a store, the metrics are therefore written to a
temporary local folder, and each changed file is uploaded as a whole.
"""

import json
import math
import os
import pathlib
import secrets
import shutil
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, TextIO

import clu.metrics
import jax
import numpy as np

from vmsst import errors, storage
from vmsst.io import progress_bar
from vmsst.jobs import outputs

_REFRESH_SECONDS = 0.5  # minimum time between updates of the progress line on a terminal
_UPLOAD_SECONDS = 60.0  # minimum time between uploads to an object store, except by `flush`
WANDB_ID_FILE = "wandb_run_id.txt"
"""File in MODEL_DIR with the ID of the Weights & Biases run that a resumed run continues."""


class LogFolder:
  """A local or remote folder with files to append to.

  Attributes:
    local: Local folder to write to. For an object store, this folder is temporary; `upload` copies
      its files to the store, and the folder is deleted together with this object.
  """

  def __init__(self, folder: str | os.PathLike[str]):
    """Creates the folder and downloads existing `.jsonl` files to append to."""
    self._url = os.fspath(folder).rstrip("/") if storage.is_url(folder) else None
    self._uploaded: dict[str, object] = {}
    self._upload_time = time.monotonic()
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
    """If the folder is in a store, uploads files that have changed since the last upload.

    Args:
      after_seconds: Do nothing if the last upload was less than this many seconds ago.

    Raises:
      InputError: If the object store rejects a file.
    """
    if self._url is None or time.monotonic() - self._upload_time < after_seconds:
      return
    self._upload_time = time.monotonic()
    for path in sorted(self.local.rglob("*")):
      name = path.relative_to(self.local).as_posix()
      if path.is_file() and self._uploaded.get(name) != (version := storage.version(path)):
        storage.upload(path, f"{self._url}/{name}")
        self._uploaded[name] = version


def numbers(metrics: Mapping[str, clu.metrics.Metric]) -> dict[str, float]:
  """Copies metrics from the devices to the host, and computes their values."""
  return {name: float(np.asarray(x.compute())) for name, x in jax.device_get(metrics).items()}


class SummaryWriter:
  """Writes one kind of metrics (`train` or `training_eval/<task>`) to a folder.

  The first write creates the folder. In a run with several processes, only the first process
  writes. TensorBoard's event files are written with TensorFlow, which takes ten seconds to import.
  A run that reads its data without TensorFlow therefore writes only `metrics.jsonl`.

  Args:
    folder: The run's folder, or None to write nothing.
    kind: Path of the metrics below `folder`.
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
        os.truncate(path, content.rfind(b"\n") + 1)  # A full disk truncated the last line.
      self._lines = path.open("a", encoding="utf-8")

  def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
    """Writes the metrics for one step as a JSON line and as TensorBoard scalars."""
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
    """Writes Markdown texts to TensorBoard."""
    self._open()
    if self._events is not None:
      self._events.write_texts(step, texts)

  def flush(self) -> None:
    """Flushes TensorBoard events to disk, and uploads all files if the folder is in a store."""
    if self._events is not None:
      self._events.flush()
    if self._logs is not None:
      self._logs.upload()

  def close(self) -> None:
    """Closes the files, and uploads them if the folder is in a store."""
    if self._events is not None:
      self._events.close()
    if self._lines is not None and self._logs is not None:
      self._lines.close()
      self._logs.upload()
      self._folder = self._logs = self._events = self._lines = None


def send_to_wandb(
  model_dir: str,
  summary_writer: Any,
  step: int,
  summarize_config_fn: Callable[..., None],
  project: str = "vmsst",
  name: str | None = None,
) -> None:
  """Starts or continues a Weights & Biases run, then calls `summarize_config_fn`.

  On Weights & Biases, the name of a metric starts with the metric's TensorBoard folder, as in
  `train/loss`. The configuration of the Weights & Biases run has one entry, `gin`, which contains
  the gin configuration. Credentials in URLs are removed from the gin configuration.

  Args:
    model_dir: The run's folder, on a local disk.
    summary_writer: The runtime's TensorBoard writer. It must not have written anything yet.
    step: Current step.
    summarize_config_fn: Function that takes (model_dir, summary_writer, step) and writes the
      configuration.
    project: Name of the Weights & Biases project, which is created if needed.
    name: Display name of the run (default: the name of the folder).

  Raises:
    InputError: If wandb is not installed, or `model_dir` is a URL.
  """
  if jax.process_index() == 0:
    with errors.requires("wandb", "logging to Weights & Biases"):
      import gin
      import wandb
      from wandb.integration import tensorboard
    folder = model_dir.rstrip("/")
    if storage.is_url(folder):
      raise errors.InputError(
        f"Weights & Biases cannot read metrics in {folder}; set a local MODEL_DIR, or remove "
        "runs/wandb.gin"
      )
    path = storage.path(folder) / WANDB_ID_FILE
    if not path.is_file():
      outputs.write_text(path, secrets.token_hex(4))
    tensorboard.patch(root_logdir=folder)
    wandb.init(
      project=project,
      name=name or os.path.basename(folder),
      id=path.read_text().strip(),
      resume="allow",
      dir=folder,
      config={"gin": errors.without_credentials(gin.config_str())},
    )
  summarize_config_fn(model_dir, summary_writer, step)


# --------------------------------------------------------------------------------------------
# On the terminal


def print_once(text: str) -> None:
  """Prints a line in the first process only."""
  if jax.process_index() == 0:
    print(text, flush=True)


class Progress(progress_bar.Bar):
  """Shows the training progress: step, time, steps/s, loss, examples/s and tokens/s.

  On a terminal, one line is updated in place. Elsewhere, a new line is printed every 15 seconds.
  Only the first process shows the progress, starting with the first update.
  """

  def __init__(self, first_step: int, total_steps: int, batch_size: int):
    self._batch_size = batch_size
    self._metrics: Mapping[str, Any] = {}
    super().__init__(
      initial=first_step,
      total=total_steps,
      bar_format="step {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]",
      unit=" steps",
      mininterval=_REFRESH_SECONDS if sys.stderr.isatty() else progress_bar.LINE_SECONDS,
      miniters=1,
      delay=1e-9,
      position=0,
      disable=jax.process_index() != 0,
      lines=True,
    )

  @property
  def format_dict(self) -> dict[str, Any]:
    """Fields for tqdm's format string. Computing the metrics waits for the devices."""
    fields = super().format_dict
    names = [name for name in ("loss", "tokens_per_example") if name in self._metrics]
    values = numbers({name: self._metrics[name] for name in names})
    steps = self.n - self.initial
    rate = fields["rate"] or (steps / fields["elapsed"] if fields["elapsed"] else 0.0)
    texts = [f"loss {values['loss']:.4f}"] if "loss" in values else []
    texts.append(f"{self.format_sizeof(rate * self._batch_size)} examples/s")
    if "tokens_per_example" in values:
      tokens = values["tokens_per_example"] * rate * self._batch_size
      texts.append(f"{self.format_sizeof(tokens)} tokens/s")
    return {**fields, "postfix": ", ".join(texts)}

  def show(self, step: int, metrics: Mapping[str, Any]) -> None:
    """Updates the step and its clu metrics. Redraws the line at intervals and at the last step."""
    self._metrics = metrics
    if not self.update(step - self.n) and step == self.total:
      self.refresh()

  def close(self) -> None:
    """Closes the bar without drawing it again."""
    self.delay = math.inf  # tqdm draws nothing before this delay is over.
    super().close()

  def end_line(self, message: str = "") -> None:
    """Ends the current line, for example before an evaluation. `unpause` starts a new line."""
    if not self.disable:
      if sys.stderr.isatty() and self._metrics:
        self.fp.write("\n")
      if message:
        print(message, file=self.fp, flush=True)


class EvaluationLog:
  """Collects the metrics from all evaluations and prints them as tables."""

  def __init__(self):
    self._metrics: dict[str, dict[int, dict[str, float]]] = {}  # by task and step

  def add(self, step: int, metrics_by_task: Mapping[str, Mapping[str, Any]]) -> None:
    """Records the metrics from an evaluation at `step`."""
    for task, metrics in metrics_by_task.items():
      scalars = {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float | np.number | np.ndarray) and np.ndim(value) == 0
      }
      if scalars:
        self._metrics.setdefault(task, {})[step] = scalars

  def print_tables(self, best: Mapping[str, Any] | None = None) -> None:
    """Prints a table per task, with one row per metric. Columns: first, best and newest step.

    Args:
      best: The best checkpoint (from `t5x.read_best`), which may have been evaluated before the run
        was resumed.
    """
    best_step = None
    if best is not None:
      task, _, metric = best["metric"].partition("/")
      best_step = int(best["checkpoint"].rpartition("_")[2])
      self._metrics.setdefault(task, {}).setdefault(best_step, {metric: best["value"]})
    for task, metrics in self._metrics.items():
      steps = [x for x in sorted(metrics) if x in (min(metrics), best_step, max(metrics))]
      rows = [[task, *(f"step {x}{' (best)' if x == best_step else ''}" for x in steps)]]
      for name in metrics[steps[-1]]:
        values = [metrics[step].get(name) for step in steps]
        cells = ("" if x is None else f"{x:.4g}" if abs(x) < 1 else f"{x:.2f}" for x in values)
        rows.append([name, *cells])
      widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
      lines = ["  ".join([x[0].ljust(widths[0]), *map(str.rjust, x[1:], widths[1:])]) for x in rows]
      print_once("\n".join(["", lines[0], "-" * len(lines[0]), *lines[1:]]))
