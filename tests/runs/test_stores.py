"""Training and commands with all paths in object stores, with kills.

The servers are local: fake-gcs-server for Google's store, moto for Amazon's.
"""

import json
import re
import shutil
import signal

import benchmark_trees
import commands
import fake_encoders
import killed_commands
import line_files
import naive_search
import numpy as np
import pytest
import servers
import tiny_encoders
import toy_runs

from vmsst import storage
from vmsst.networks import sentence_encoder
from vmsst.networks import vmsst as networks


@pytest.fixture(scope="module", params=["gs", "s3"])
def bucket(request):
  """Starts a server that all processes can reach; returns the URL of a bucket."""
  with servers.running(request.param) as variables, pytest.MonkeyPatch.context() as patch:
    for name, value in variables.items():
      patch.setenv(name, value)
    yield f"{request.param}://bucket"


of_training = pytest.mark.parametrize("bucket", ["gs"], indirect=True)  # not s3://


@of_training
@pytest.mark.slow
def test_training_in_a_store_is_killed_and_resumes_exactly(bucket, tmp_path):
  toy_runs.kill(f"{bucket}/killed_runs", 5, cwd=tmp_path)
  assert not list(tmp_path.iterdir())  # no folder named "gs:"
  storage.download(f"{bucket}/killed_runs", tmp_path)
  toy_runs.assert_same_runs(tmp_path / "whole", tmp_path / "killed", 50)
  for run in ("whole", "killed"):
    names = storage.names(f"{bucket}/killed_runs/{run}")
    assert {name for name in names if "checkpoint" in name} == {"checkpoint_45", "checkpoint_50"}


ENCODE = """
import sys, vmsst
sentences = ["hello world", "guten tag"]
remote, local = (vmsst.load(path).encode(sentences) for path in sys.argv[1:])
assert (remote == local).all() and remote.shape[0] == 2
"""


@of_training
@pytest.mark.slow
def test_train_evaluate_infer_and_load_with_every_path_in_a_store(bucket, tmp_path):
  def t5x(*arguments):
    done = commands.t5x(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]

  run = f"{bucket}/runs/first"
  (tmp_path / "tiny.gin").write_text(f"include 'quickstart.gin'\nMODEL_DIR = '{run}'\n")
  storage.filesystem(bucket).put_file(str(tmp_path / "tiny.gin"), f"{bucket}/gin/tiny.gin")
  (tmp_path / "tiny.gin").unlink()
  tiny = [f"--gin_file={bucket}/gin/tiny.gin", *commands.TINY[1:]]
  t5x("train", *tiny)
  t5x("train", *tiny, "--gin.TRAIN_STEPS=4")
  assert storage.names(run) >= {
    *("checkpoint_2", "checkpoint_4", "config.gin", "model-info.txt", "encoder.json"),
    *("train", "inference_eval"),
  }
  # The stored configuration is also a gin file in the store.
  evaluate = [f"--gin_file={run}/config.gin", "--gin_file=runs/eval.gin"]
  output = f"{bucket}/results"
  t5x("eval", *evaluate, f"--gin.EVAL_OUTPUT_DIR='{output}'")
  assert "sample_retrieval-metrics.jsonl" in storage.names(f"{output}/inference_eval")
  line_files.write_lines(tmp_path / "tatoeba" / "tatoeba.deu-eng.deu", ["ja", "nein"])
  line_files.write_lines(tmp_path / "tatoeba" / "tatoeba.deu-eng.eng", ["yes", "no"])
  benchmark_trees.upload(tmp_path / "tatoeba", f"{bucket}/benchmarks/tatoeba")
  shutil.rmtree(tmp_path / "tatoeba")
  t5x(
    *("eval", evaluate[0], "--gin_file=eval/benchmarks.gin", evaluate[1]),
    f"--gin.DATA_ROOT='{bucket}/benchmarks'",
    f"--gin.EVAL_OUTPUT_DIR='{output}'",
  )
  assert "vmsst_eval_tatoeba-metrics.jsonl" in storage.names(f"{output}/inference_eval")
  t5x(
    *("infer", f"--gin_file={run}/config.gin", "--gin_file=runs/infer.gin"),
    f"--gin.CHECKPOINT_PATH='{run}/checkpoint_4'",
    f"--gin.INFER_OUTPUT_DIR='{output}'",
  )
  assert any(".jsonl-00000-of-00001" in name for name in storage.names(output))
  t5x(
    *("train", *commands.TINY, f"--gin.MODEL_DIR='{bucket}/runs/second'"),
    f"--gin.INITIAL_CHECKPOINT_PATH='{run}/checkpoint_4'",
    "--gin.TRAIN_STEPS=6",  # from step 4
  )
  assert not list(tmp_path.iterdir())
  storage.download(run, tmp_path / "run")
  commands.script(ENCODE, run, tmp_path / "run", cwd=tmp_path)


# --------------------------------------------------------------------------------------------
# Outputs of commands

# Commands with outputs in `{out}` and inputs in `{data}`, and the moment of the kill: before an
# upload to a URL that matches a pattern, after a number of such uploads.
KILLED = {
  "mine": (
    "mine {data}/a.txt {data}/b.txt {out}/pairs.tsv --encoder {run}",
    [(r"/block-.*\.npz$", 0), (r"/block-.*\.npz$", 3), (r"/pairs\.tsv$", 0)],
  ),
  "embed": ("embed {run} {data}/a.txt {out}/embedded", [(r"/embedded/.*\.npy$", 0)]),
  "index": (
    "index {data}/vectors {out}/index --factory IVF4,SQ8",
    [(r"/shard-.*\.faiss$", 1), (r"/index\.faiss$", 0)],
  ),
}

# Each job is a fork of a process that has imported all modules.
JOBS = """
import json, os, re, signal, sys
import orbax.checkpoint
import vmsst.encoder.encoder, vmsst.encoder.loading
import vmsst.search.device_search, vmsst.cli.vector_jobs
from vmsst import cli
from vmsst import storage
import vmsst.mining.bitext_mining
from vmsst.search import exact_search
from vmsst.search import faiss_index
faiss_index.SHARD_ROWS = 30
exact_search._LEAST_SOURCES = 16
upload = storage.upload

def kill_at(pattern, left):
  def counted_upload(path, url):
    nonlocal left
    if re.search(pattern, url):
      if not left:
        os.kill(os.getpid(), signal.SIGKILL)
      left -= 1
    upload(path, url)

  storage.upload = counted_upload

statuses = []
for kill, argv in json.loads(sys.argv[1]):
  child = os.fork()
  if not child:
    status = 70
    try:
      if kill:
        kill_at(*kill)
      status = cli.main(argv)
    finally:
      os._exit(status)
  statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(json.dumps(statuses))
"""


def write_texts(folder):
  """Writes inputs for the commands in KILLED: texts, and vectors of one text."""
  lines = [line for line in fake_encoders.make_lines(220) if line][:200]
  line_files.write_lines(folder / "a.txt", lines)
  line_files.write_lines(folder / "b.txt", [f"{line} x" for line in lines])
  vectors_ND = np.random.default_rng(0).normal(size=(200, 6))
  naive_search.write_vectors(folder / "vectors", vectors_ND, shard_rows=30)


@pytest.mark.slow
def test_killed_commands_write_to_a_store_what_they_write_locally(bucket, tmp_path):
  write_texts(tmp_path / "data")
  url, work = f"{bucket}/killed_commands", tmp_path / "work"
  work.mkdir()
  benchmark_trees.upload(tmp_path / "data", f"{url}/data")
  network = networks.VmsstNetwork(tiny_encoders.t5_config(), latent_dim=6)
  encoder = sentence_encoder.SentenceEncoder(network.config, network.latent_dim)
  model = tiny_encoders.model_of(encoder, network=network)
  run = tiny_encoders.save_run(tmp_path / "run", model)

  def do(root, jobs):
    """Runs commands, each with the moment of its kill or None; returns the exit codes."""
    places = {"run": run, "data": f"{root}/data", "out": f"{root}/out"}
    given = [(kill, KILLED[name][0].format(**places).split()) for kill, name in jobs]
    done = commands.fresh_script(JOBS, json.dumps(given), cwd=work)
    return json.loads(done.stdout.splitlines()[-1])

  def contents(folder):
    """Returns the bytes of all outputs by name, with paths of inputs and outputs removed."""
    places = re.compile(f"{re.escape(url)}|{re.escape(str(tmp_path))}".encode())
    return {name: places.sub(b"", x) for name, x in killed_commands.contents(folder).items()}

  undisturbed = [(None, name) for name in KILLED]
  assert set(do(tmp_path, undisturbed)) == {0}
  expected = contents(tmp_path / "out")
  assert {"pairs.tsv", "embedded/job.json", "index/index.faiss"} < expected.keys()
  kills = [(kill, name) for name, (_, kills) in KILLED.items() for kill in kills]
  assert do(url, kills) == [-signal.SIGKILL] * len(kills)
  unfinished = storage.names(f"{url}/out")
  assert ".pairs.tsv.vmsst" in unfinished
  assert "pairs.tsv" not in unfinished
  assert set(do(url, undisturbed)) == {0}
  storage.download(f"{url}/out", tmp_path / "copy")
  found = contents(tmp_path / "copy")
  assert sorted(found) == sorted(expected)
  assert [name for name in expected if found[name] != expected[name]] == []
  assert not list(work.iterdir())
