"""Tests that files of scores resume and appear as a whole."""

import memory_store
import numpy as np
import pytest

from vmsst.files import input_files, storage, work_folders
from vmsst.mining import pair_scoring


class Scorer:
  """Scores a pair by its lengths; Ctrl-C interrupts it after some windows."""

  def __init__(self, name, windows):
    self.settings, self.windows, self.texts = {"scorer": name}, windows, []

  def __call__(self, sources, targets, languages, on_cut):
    self.windows -= 1
    if self.windows < 0:
      raise KeyboardInterrupt
    self.texts += sources
    return np.array([[len(x), len(y)] for x, y in zip(sources, targets, strict=True)], float)


@pytest.mark.parametrize("kind", ["local", "store"])
def test_scores_resume_with_the_same_settings(kind, tmp_path, monkeypatch):
  memory_store.installed(monkeypatch)
  monkeypatch.setattr(pair_scoring, "_WINDOW", 4)
  place = str(tmp_path / "new") if kind == "local" else "gs://bucket/new"
  lines = ["x" * n for n in range(10)]
  (tmp_path / "text").write_text("".join(f"{line}\n" for line in lines))
  text = pair_scoring.TextColumn(str(tmp_path / "text"))

  def score(scorer):
    return pair_scoring.score_file(scorer, text, text, f"{place}/out", progress=False)

  with pytest.raises(KeyboardInterrupt):
    score(Scorer("a", 2))
  assert storage.names(place) == {".out.vmsst"}
  for name, windows in (("a", 1), ("b", 3)):  # the rest, or all if it has other settings
    scorer = Scorer(name, windows)
    assert score(scorer) == 10
    assert scorer.texts == (lines[8:] if name == "a" else lines)
    found = input_files.read_bytes(f"{place}/out").decode()
    assert found == "".join(f"{n}.000000\t{n}.000000\n" for n in range(10))
    assert storage.names(place) == {"out"}
  with pytest.raises(KeyboardInterrupt):
    score(Scorer("a", 0))
  assert storage.names(place) == {"out"}
  assert not storage.names(work_folders.path_of(f"{place}/out"))


def test_scores_of_a_stream_are_written_directly(tmp_path):
  (tmp_path / "text").write_text("a\n")
  text = pair_scoring.TextColumn(str(tmp_path / "text"))
  assert pair_scoring.score_file(Scorer("a", 1), text, text, "/dev/null", progress=False) == 1
