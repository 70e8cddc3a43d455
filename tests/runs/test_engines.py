"""Commands write the same files on all engines, even if workers and nodes of a Ray cluster die."""

import itertools
import json
import signal
import subprocess
import sys

import fake_encoders
import killed_commands
import line_files
import naive_search
import numpy as np
import opus_tree
import pytest
import servers

# Ray leaves its logs open.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
_VMSST = [sys.executable, "-m", "vmsst.cli"]


def build(folder):
  """Writes OPUS releases and an evaluation set; returns the arguments of a build."""
  corpora = ("Europarl", "Tanzil", "Books", "QED", "Wikipedia", "EMEA", "ECB", "KDE4")
  parts = [
    opus_tree.Part(
      corpus,
      "v1",
      ("de", "en"),
      [(f"{corpus} Satz Nummer {n} ist hier", f"Sentence {n} is here.") for n in range(15_000)],
    )
    for corpus in corpora
  ]
  opus_tree.write(folder / "opus", parts)
  sets = folder / "evaluation" / "tatoeba"
  sets.mkdir(parents=True)
  for code in ("deu", "eng"):
    (sets / f"tatoeba.deu-eng.{code}").write_text("Sentence 3 is here\n")
  (folder / "mine.yaml").write_text(opus_tree.RECIPE)
  options = ["--recipe=mine.yaml", "--input=opus", "--held-out=evaluation", "--output=out"]
  return ["data", "build", *options]


def embed(folder):
  """Writes an encoder and two texts; returns the arguments that embed them."""
  fake_encoders.make_encoder(folder / "encoder")
  for name in ("a.txt.gz", "b.txt"):
    line_files.write_lines(folder / name, fake_encoders.make_lines(45_000))
  return ["embed", "encoder", "a.txt.gz", "b.txt", "out/vectors"]


def mine(folder):
  """Writes two texts and their vectors; returns the arguments that mine them."""
  for number, side in enumerate("ab", 1):
    vectors_ND = _vectors(0) + _vectors(number)
    line_files.write_lines(folder / f"{side}.txt", [f"{side} {n}" for n in range(len(vectors_ND))])
    naive_search.write_vectors(folder / f"{side}.vectors", vectors_ND)
  return ["mine", "a.txt", "b.txt", "out/pairs.tsv", "--vectors", "a.vectors", "b.vectors"]


def search(folder):
  """Writes an encoder, a text with vectors and queries for six shards; returns the arguments."""
  fake_encoders.make_encoder(folder / "encoder")
  lines = list(fake_encoders.make_lines(1_000))
  line_files.write_lines(folder / "corpus.txt", lines)
  line_files.write_lines(folder / "queries.txt", (lines * 90)[:90_000])
  command = [*_VMSST, "embed", "encoder", "corpus.txt", "vectors"]
  subprocess.run(command, cwd=folder, check=True, capture_output=True)
  return ["search", "queries.txt", "corpus.txt", "vectors", "--count=2", "--output=out/found"]


def evaluate(folder):
  """Writes an encoder, a knowledge base and questions; returns the arguments that evaluate it."""
  fake_encoders.make_encoder(folder / "encoder")
  lines = [*fake_encoders.make_lines(60_000)]
  for number in range(6):
    own = lines[10_000 * number : 10_000 * (number + 1)]
    records = (json.dumps({"question": x, "answer": str(i % 9)}) for i, x in enumerate(own))
    line_files.write_lines(folder / "data" / "paq" / f"{number}.jsonl", records)
  records = (json.dumps({"question": f"{x}?", "answer": [str(i % 9)]}) for i, x in enumerate(lines))
  questions = itertools.islice(records, 300)
  line_files.write_lines(folder / "data" / "nq" / "NQ-open.dev.jsonl", questions)
  return ["eval", "encoder", "--suite=questions", "--data=data", "--out=out"]


def _vectors(seed):
  return np.random.default_rng(seed).normal(size=(30_000, 16)).astype(np.float32)


# By command: pattern of the records of finished files, and their number at the time of the kill.
KILLED = {
  build: ("parts/*clean*.json", 2),
  embed: ("vectors-*.npy.json", 2),
  mine: ("block-*.npz.json", 2),
  search: ("vectors-*.npy.json", 2),
  evaluate: ("*search-*.npz.json", 1),
}


@pytest.fixture(scope="module")
def nodes():
  with servers.cluster() as found:
    yield found


def contents(folder):
  """Returns the files that a command wrote, with the path of its folder removed."""
  found = killed_commands.contents(folder / "out")
  return {path: content.replace(str(folder).encode(), b"") for path, content in found.items()}


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
  """Returns a function that runs a command on this machine and returns its files."""
  kept = {}

  def run(make):
    if make not in kept:
      folder = tmp_path_factory.mktemp("local")
      command = [*_VMSST, *make(folder), "--engine=local", "--workers=1"]
      subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
      kept[make] = contents(folder)
    return kept[make]

  return run


def check_same(found, expected):
  assert sorted(found) == sorted(expected)
  assert [path for path in expected if found[path] != expected[path]] == []


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["worker", "node"])
@pytest.mark.parametrize("make", KILLED, ids=lambda make: make.__name__)
def test_killed_tasks_run_again_on_a_ray_cluster(nodes, expected, tmp_path, make, fault):
  if make == build:
    pytest.importorskip("tensorflow_datasets")
  command = [*_VMSST, *make(tmp_path), "--engine=ray", f"--ray-address={nodes.address}"]
  process = nodes.driver(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
  servers.wait_for_files(process, tmp_path, *KILLED[make])
  if fault == "node":
    nodes.kill_node()
  else:
    nodes.kill_worker()
  assert process.wait(timeout=600) == 0
  check_same(contents(tmp_path), expected(make))


@pytest.mark.slow
def test_sigterm_ends_a_command_on_a_ray_cluster_with_one_line(nodes, tmp_path):
  command = [*_VMSST, *search(tmp_path), "--engine=ray", f"--ray-address={nodes.address}"]
  process = nodes.driver(command, cwd=tmp_path, stderr=subprocess.PIPE)
  servers.wait_for_files(process, tmp_path, *KILLED[search])
  process.terminate()
  _, messages = process.communicate(timeout=120)
  assert process.returncode == 128 + signal.SIGTERM
  assert messages.splitlines()[-1:] == ["vmsst: terminated"]
  assert "***" not in messages


@pytest.mark.slow
def test_a_ray_client_writes_the_same_files(nodes, expected, tmp_path):
  command = [*_VMSST, *mine(tmp_path), "--engine=ray"]
  process = nodes.driver([*command, f"--ray-address={nodes.client_address}"], cwd=tmp_path)
  assert process.wait(timeout=600) == 0
  check_same(contents(tmp_path), expected(mine))


@pytest.mark.slow
@pytest.mark.parametrize("make", KILLED, ids=lambda make: make.__name__)
def test_two_processes_write_the_same_files(expected, tmp_path, make):
  command = [*_VMSST, *make(tmp_path), "--workers=2"]
  subprocess.run(command, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
  check_same(contents(tmp_path), expected(make))
