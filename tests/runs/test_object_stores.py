"""Whole jobs in object stores, with real servers: Google's (fake-gcs-server), Amazon's (moto)."""

import contextlib
import shutil
import subprocess
import sys
import time

import benchmark_trees
import commands
import jax
import killed_runs
import line_files
import numpy as np
import ports
import pytest
import toy_runs
import unit_commands

from vmsst.errors import InputError
from vmsst.evaluation import benchmarks, data_digests, evaluation_texts
from vmsst.files import storage
from vmsst.launch.runtime import model_dir

of_training = pytest.mark.parametrize("bucket", ["gs"], indirect=True)  # not s3://


@of_training
@pytest.mark.slow
def test_training_in_a_store_is_killed_and_resumes_exactly(bucket, tmp_path):
  done = subprocess.run(
    [sys.executable, killed_runs.__file__, f"{bucket}/killed_runs", "0", "5"],
    env=commands.environment(),
    cwd=tmp_path,
    capture_output=True,
    text=True,
    timeout=1200,
    check=False,
  )
  assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
  print(done.stdout)
  assert not list(tmp_path.iterdir())  # no folder named "gs:"
  storage.download(f"{bucket}/killed_runs", tmp_path)
  killed_runs.assert_same_runs(tmp_path / "whole", tmp_path / "killed", 50)
  for run in ("whole", "killed"):
    names = storage.names(f"{bucket}/killed_runs/{run}")
    assert {name for name in names if "checkpoint" in name} == {"checkpoint_45", "checkpoint_50"}
    assert not {name for name in names if "lock" in name}


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
  # The stored configuration is a gin file in the store as well.
  evaluate = [f"--gin_file={run}/config.gin", "--gin_file=runs/eval.gin"]
  output = f"{bucket}/results"
  t5x("eval", *evaluate, f"--gin.EVAL_OUTPUT_DIR='{output}'")
  assert "sample_retrieval-metrics.jsonl" in storage.names(f"{output}/inference_eval")
  line_files.write_lines(tmp_path / "tatoeba" / "tatoeba.deu-eng.deu", ["ja", "nein"])
  line_files.write_lines(tmp_path / "tatoeba" / "tatoeba.deu-eng.eng", ["yes", "no"])
  benchmark_trees.upload(tmp_path / "tatoeba", f"{bucket}/benchmarks/tatoeba")
  shutil.rmtree(tmp_path / "tatoeba")
  t5x(
    *("eval", evaluate[0], "--gin_file=eval/suite.gin"),
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


PROCESS = """
import functools, sys
import toy_runs
from vmsst.launch import distributed
url, port, count, index, steps = sys.argv[1], *map(int, sys.argv[2:])
with distributed.joined(f"localhost:{port}", count, index):
  toy_runs.run(url, total_steps=steps, get_dataset_fn=toy_runs.slices)
"""


@of_training
@pytest.mark.slow
def test_several_processes_train_in_a_store_and_one_resumes(bucket, tmp_path):
  url = f"{bucket}/several"
  for count, steps in ((2, 5), (1, 10)):
    with ports.reserved() as port:
      processes = [
        subprocess.Popen(
          [sys.executable, "-c", PROCESS, *map(str, (url, port, count, index, steps))],
          env=commands.environment(),
          cwd=tmp_path,
          stderr=subprocess.PIPE,
          text=True,
        )
        for index in range(count)
      ]
      for process in processes:
        _, problems = process.communicate(timeout=300)
        assert process.returncode == 0, problems[-3000:]
  assert not list(tmp_path.iterdir())
  storage.download(url, tmp_path / "several")
  toy_runs.run(tmp_path / "alone", total_steps=10)
  several, alone = (
    toy_runs.read_checkpoint(tmp_path / name / "checkpoint_10") for name in ("several", "alone")
  )
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-7), several, alone)


DAMAGE = """
import sys
import numpy as np, toy_runs
from vmsst.files import storage
url = sys.argv[1]
parameters = [np.asarray(toy_runs.run(url, total_steps=10)[1].params["table"])]
for name in storage.names(f"{url}/checkpoint_10/state/d"):
  place = f"{url}/checkpoint_10/state/d/{name}"
  content = storage.filesystem(place).cat_file(place)
  changed = bytes([content[0] ^ 1]) + content[1:]
  storage.filesystem(place).pipe_file(place, changed)
parameters.append(np.asarray(toy_runs.run(url, total_steps=10)[1].params["table"]))
np.testing.assert_array_equal(*parameters)
"""


@of_training
@pytest.mark.slow
def test_a_damaged_checkpoint_in_a_store_is_set_aside(bucket, tmp_path):
  url = f"{bucket}/damaged"
  done = commands.script(DAMAGE, url, cwd=tmp_path)
  assert "checkpoint_10 is damaged: state/d/" in done.stderr
  checkpoints = {"checkpoint_0", "checkpoint_5", "checkpoint_10", "damaged_checkpoint_10"}
  assert {name for name in storage.names(url) if "checkpoint" in name} == checkpoints
  inside = {f"{url}/{name}/state" for name in ("checkpoint_10", "damaged_checkpoint_10")}
  assert len({frozenset(storage.names(folder)) for folder in inside}) == 1


HOLDER = """
import sys, time
from vmsst.launch.runtime import model_dir
with model_dir.opened("MODEL_DIR", sys.argv[1], lock=True):
  print("holds", flush=True)
  time.sleep(600)
"""


@pytest.mark.parametrize(
  "bucket", ["local", pytest.param("gs", marks=pytest.mark.slow)], indirect=True
)
def test_two_runs_cannot_share_a_folder(bucket):
  url = f"{bucket}/locked"
  holder = subprocess.Popen(
    [sys.executable, "-c", HOLDER, url],
    env=commands.environment(),
    stdout=subprocess.PIPE,
    text=True,
  )
  with contextlib.ExitStack() as cleanup:
    cleanup.callback(holder.stdout.close)
    cleanup.callback(holder.wait)
    cleanup.callback(holder.kill)
    assert holder.stdout.readline() == "holds\n"
    wanted = rf"is in use by another run \(process {holder.pid} on "
    with pytest.raises(InputError, match=wanted), model_dir.opened("MODEL_DIR", url, lock=True):
      pass
    assert len(storage.names(url)) == 1  # the lock
  with model_dir.opened("MODEL_DIR", url, lock=True) as lock:  # the first was killed
    lock.check()
  assert storage.names(url) == set()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
def test_a_killed_build_in_a_store_writes_the_bytes_of_a_local_one(bucket, tmp_path):
  argv = unit_commands.build(tmp_path)
  url = f"{bucket}/build"
  for name in ("opus", "evaluation"):
    benchmark_trees.upload(tmp_path / name, f"{url}/{name}")
  inputs = [f"--input={url}/opus", f"--held-out={url}/evaluation"]
  remote = [*argv[:3], *inputs, f"--output={url}/out", "--work=work", "--workers=2"]

  def start(arguments):
    command = [sys.executable, "-m", "vmsst.cli", *arguments]
    return subprocess.Popen(
      command, env=commands.environment(), cwd=tmp_path, stdout=subprocess.DEVNULL
    )

  with start([*argv, "--workers=2"]) as process:
    assert process.wait(timeout=600) == 0
  with start(remote) as process:
    while len(list((tmp_path / "work").glob(".vmsst/clean/*.json"))) < 2:
      assert process.poll() is None
      time.sleep(0.02)
    process.kill()
  assert storage.names(f"{url}/out") == {".vmsst"}  # the lock
  with start(remote) as process:
    assert process.wait(timeout=600) == 0
  dataset = "opus_bitext/mine/1.0.0"
  (tmp_path / "copy").mkdir()
  for name in storage.names(f"{url}/out/{dataset}"):
    storage.download(f"{url}/out/{dataset}/{name}", tmp_path / "copy" / name)
  expected = {path.name: path for path in (tmp_path / "out" / dataset).iterdir()}
  assert {path.name for path in (tmp_path / "copy").iterdir()} == {*expected}
  for name, path in expected.items():
    if name.startswith("opus_bitext-"):
      assert (tmp_path / "copy" / name).read_bytes() == path.read_bytes(), name


@pytest.mark.slow
def test_all_benchmarks_are_read_from_a_store(bucket, tmp_path):
  remote = benchmark_trees.upload(benchmark_trees.write(tmp_path), f"{bucket}/all benchmarks/[1]")
  texts, digests = [], []
  for root in (tmp_path, remote):
    texts.append(list(evaluation_texts.iter_texts(benchmarks.BENCHMARKS.values(), root)))
    identify = data_digests.DataDigests(root, leave_out=root / "sts" / "STS13-en").identity
    digests.append(
      {
        name: identify(each.folders, each.more_files)["digest"]
        for name, each in benchmarks.BENCHMARKS.items()
      }
    )
  assert texts[0] == texts[1]
  assert digests[0] == digests[1]
