"""The sessions of benchmarks that need a GPU, at sizes for a CPU."""

import gzip
import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest

BENCHMARKS = pathlib.Path(__file__).resolve().parents[1] / "benchmarks"


def run(session, folder, *options):
  command = [sys.executable, BENCHMARKS / "gpu.py", session, f"--output={folder}", "--size=tiny"]
  return subprocess.run([*command, *options], capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("session", "benchmarks"),
  [
    ("step", {"paper_step"}),
    ("projection", {"vocab_projection"}),
    ("search", {"mining"}),
    ("memory", {None}),
  ],
)
def test_a_session_writes_the_lines_of_its_commands(session, benchmarks, tmp_path):
  if session == "search" and not importlib.util.find_spec("faiss"):
    pytest.skip("faiss is not installed")
  done = run(session, tmp_path)
  assert done.returncode == 0, done.stderr
  assert {json.loads(line)["exit_code"] for line in done.stdout.splitlines()} == {0}
  first, *lines = map(json.loads, (tmp_path / f"{session}.jsonl").read_text().splitlines())
  assert first["versions"]["jax"]
  assert {line.get("benchmark") for line in lines} == benchmarks
  assert all(line["mfu"] for line in lines if "mfu" in line)


@pytest.mark.slow
def test_encoders_are_compared(tmp_path):
  pytest.importorskip("sentence_transformers")
  (tmp_path / "tatoeba").mkdir()
  for code in ("deu", "fra", "rus", "cmn", "ara"):
    for side in (code, "eng"):
      with gzip.open(tmp_path / "tatoeba" / f"tatoeba.{code}-eng.{side}.gz", "wt") as file:
        file.writelines(f"{side} {i} {i * i}\n" for i in range(50))
  done = run("encode", tmp_path, f"--data={tmp_path}")
  assert done.returncode == 0, done.stderr
  lines = (tmp_path / "encode.jsonl").read_text().splitlines()[1:]
  assert {json.loads(line)["benchmark"] for line in lines} == {"encode_paper", "encode"}


def test_a_session_ends_in_time(tmp_path):
  done = run("memory", tmp_path, "--minutes=0.001")
  assert done.returncode == 0
  assert json.loads(done.stdout)["exit_code"] is None
