"""Files of metrics that grow, local and in a store."""

import json

import clu.metrics
import jax.numpy as jnp
import memory_store

from vmsst import storage
from vmsst.io import input_files
from vmsst.train import summaries


class PerStep(clu.metrics.LastValue):
  """A total per step, which gets the number of steps."""

  def replace_steps(self, steps):
    return self.replace(count=jnp.asarray(steps))


class PerSecond(clu.metrics.LastValue):
  """A total per second, which gets the seconds."""

  def replace_duration(self, duration):
    return self.replace(count=jnp.asarray(duration))


def test_metrics_per_step_and_per_time_get_their_steps_and_seconds():
  kinds = {"rows": clu.metrics.LastValue, "step": PerStep, "second": PerSecond}
  metrics = {
    name: kind(total=jnp.asarray(12.0), count=jnp.asarray(1)) for name, kind in kinds.items()
  }
  assert summaries.numbers(metrics, 3, 0.5) == {"rows": 12.0, "step": 4.0, "second": 24.0}


def test_metrics_continue_after_a_line_that_a_full_disk_has_cut(tmp_path):
  path = tmp_path / "train" / "metrics.jsonl"
  path.parent.mkdir()
  path.write_text('{"step": 1, "loss": 3.0}\n{"step": 2, "lo')
  writer = summaries.SummaryWriter(str(tmp_path), "train")
  writer.write_scalars(2, {"loss": 2.5})
  writer.close()
  records = [json.loads(line) for line in path.read_text().splitlines()]
  assert records == [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.5}]


def test_lines_in_a_store_are_appended_to(monkeypatch):
  store = memory_store.installed(monkeypatch)
  url = "gs://bucket/run/train"
  for text in ("one\n", "two\n"):
    logs = summaries.LogFolder(url)
    with (logs.local / "metrics.jsonl").open("a") as file:
      file.write(text)
    (logs.local / "inner").mkdir()
    (logs.local / "inner" / f"events.{text[:3]}").write_text(text)
    logs.upload(after_seconds=100)
    assert text[:3] not in "".join(storage.names(f"{url}/inner"))
    logs.upload()
  assert input_files.read_bytes(f"{url}/metrics.jsonl") == b"one\ntwo\n"
  assert storage.names(f"{url}/inner") == {"events.one", "events.two"}
  modified = store.modified(f"{url}/metrics.jsonl")
  logs.upload()  # nothing has changed
  assert store.modified(f"{url}/metrics.jsonl") == modified
