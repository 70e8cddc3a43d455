"""Whole jobs in object stores, with real servers: Google's (fake-gcs-server), Amazon's (moto)."""

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import time

import benchmark_trees
import commands
import embed_lines
import jax
import killed_runs
import line_files
import numpy as np
import ports
import pytest
import tiny_mt5
import toy_runs
import unit_commands

from vmsst import errors
from vmsst.evaluation import benchmarks, data_digests, evaluation_texts
from vmsst.files import input_files, storage
from vmsst.launch.runtime import data
from vmsst.tasks import lanes
from vmsst.vectors import vector_store


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
url, shards, port, count, index, steps = *sys.argv[1:3], *map(int, sys.argv[3:])
place = distributed.find(coordinator_address=f"localhost:{port}", count=count, index=index)
with distributed.joined(place):
  toy_runs.run(url, total_steps=steps, **toy_runs.input_of(shards))
"""


@pytest.mark.slow
@pytest.mark.parametrize("input_kind", ["whole", "shares"])
def test_several_processes_train_in_a_store_and_one_resumes(
  bucket, tmp_path, tmp_path_factory, input_kind
):
  url = f"{bucket}/several_{input_kind}"
  shards = tmp_path_factory.mktemp("tfds") if input_kind == "shares" else ""
  own = toy_runs.input_of(shards)  # writes the shards
  for count, steps in ((2, 5), (1, 10)):
    with ports.reserved() as port:
      processes = [
        subprocess.Popen(
          [sys.executable, "-c", PROCESS, *map(str, (url, shards, port, count, index, steps))],
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
  toy_runs.run(tmp_path / "alone", total_steps=10, **own)
  several, alone = (
    toy_runs.read_checkpoint(tmp_path / name / "checkpoint_10") for name in ("several", "alone")
  )
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-7), several, alone)


DAMAGE = """
import sys
import numpy as np, toy_runs
from vmsst.evaluation import benchmarks, data_digests, evaluation_texts
from vmsst.files import input_files, storage
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

TAKER = """
import sys
from vmsst.launch.runtime import model_dir
with model_dir.opened("MODEL_DIR", sys.argv[1], lock=True) as folder:
  folder.check_owned()
"""


@pytest.mark.slow
def test_two_runs_cannot_share_a_folder_of_a_store(bucket, tmp_path):
  url = f"{bucket}/locked"
  holder = subprocess.Popen(
    [sys.executable, "-c", HOLDER, url],
    env=commands.environment(),
    stdout=subprocess.PIPE,
    text=True,
  )

  def take():
    return subprocess.run(
      [sys.executable, "-c", TAKER, url],
      env=commands.environment(),
      capture_output=True,
      text=True,
      check=False,
    )

  with contextlib.ExitStack() as cleanup:
    cleanup.callback(holder.stdout.close)
    cleanup.callback(holder.wait)
    cleanup.callback(holder.kill)
    assert holder.stdout.readline() == "holds\n"
    second = take()
    assert f"is in use by another run (process {holder.pid} on " in second.stderr
    assert storage.names(url) == {".lock-000001"}
  third = take()  # the first was killed
  assert third.returncode == 0, third.stderr
  assert storage.names(url) == set()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
def test_a_killed_embedding_of_a_store_resumes_to_the_same_bytes(bucket, tmp_path):
  embed_lines.make_encoder(tmp_path / "encoder")
  text = tmp_path / "text.txt"
  text.write_text("".join(f"{line}\n" for line in embed_lines.make_lines(80_000)))
  url = f"{bucket}/texts/text.txt"
  storage.filesystem(url).put_file(str(text), url)
  out = f"{bucket}/vectors"
  embed = [
    sys.executable,
    "-m",
    "vmsst.cli",
    "embed",
    str(tmp_path / "encoder"),
    "--dtype",
    "float16",
  ]
  for shards in (1, 3):
    with subprocess.Popen(
      [*embed, url, out], env=commands.environment(), stderr=subprocess.DEVNULL
    ) as process:
      while sum(name.endswith(".npy.json") for name in storage.names(out)) <= shards:
        assert process.poll() is None
        time.sleep(0.02)
      process.kill()
  for target in (out, str(tmp_path / "vectors")):
    subprocess.run([*embed, url, target], env=commands.environment(), check=True, timeout=600)
  names = {path.name for path in (tmp_path / "vectors").iterdir()}
  assert storage.names(out) == names
  for name in names:
    found = storage.filesystem(out).cat_file(f"{out}/{name}")
    assert found == (tmp_path / "vectors" / name).read_bytes(), name
  rows = np.random.default_rng(0).integers(80_000, size=100)
  opened = [vector_store.open_vectors(folder) for folder in (out, tmp_path / "vectors")]
  np.testing.assert_array_equal(*(vectors.take(rows) for vectors in opened))


EXPORT = """
import os, signal, sys
from vmsst import cli
from vmsst.files import storage
system = storage.filesystem(sys.argv[-1])
put, written = system.put_file, []
def put_one(*args, **options):
  if written:
    os.kill(os.getpid(), signal.SIGKILL)
  written.append(put(*args, **options))
system.put_file = put_one
cli.main(sys.argv[1:])
"""

IMPORTED = """
import sys
import numpy as np, tiny_encoders
from vmsst.checkpoints import t5x
found, expected = (tiny_encoders.read_arrays(t5x.find_checkpoint(path)) for path in sys.argv[1:])
assert found.keys() == expected.keys()
for name, array in found.items():
  np.testing.assert_array_equal(array, expected[name])
"""

INDEX = """
import sys
from vmsst import cli
from vmsst.vectors import index_folder
index_folder._SHARD_ROWS = 250
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_exports_imports_indexes_and_searches_with_all_inputs_in_a_store(bucket, tmp_path):
  local = tmp_path / "local"
  local.mkdir()
  temporary = tmp_path / "temporary"
  temporary.mkdir()

  def start(*arguments):
    environment = {**commands.environment(), "TMPDIR": str(temporary)}
    return subprocess.Popen([sys.executable, *arguments], env=environment, cwd=local)

  def vmsst(*arguments, code="import sys; from vmsst import cli; sys.exit(cli.main(sys.argv[1:]))"):
    with start("-c", code, *map(str, arguments)) as process:
      assert process.wait(timeout=600) == 0, arguments

  url = f"{bucket}/all"
  embed_lines.make_encoder(local / "encoder")
  with start("-c", EXPORT, "export", "safetensors", local / "encoder", f"{url}/encoder") as killed:
    assert killed.wait(timeout=600) == -signal.SIGKILL
  assert storage.UNFINISHED in storage.names(f"{url}/encoder")
  with pytest.raises(errors.InputError, match=f"{url}/encoder is not finished"):
    storage.check_finished(f"{url}/encoder")
  shutil.rmtree(temporary)  # of the killed process
  temporary.mkdir()
  for root in (local, url):
    vmsst("export", "safetensors", local / "encoder", f"{root}/{'encoder' if root == url else 'e'}")
  for name in storage.names(f"{url}/encoder"):
    content = storage.filesystem(url).cat_file(f"{url}/encoder/{name}")
    assert content == (local / "e" / name).read_bytes(), name

  tiny_mt5.save_mt5(local / "mt5")
  storage.filesystem(url).put(str(local / "mt5"), f"{url}/mt5", recursive=True)
  vmsst("import", "mt5", f"{url}/mt5", f"{url}/imported")
  vmsst("import", "mt5", local / "mt5", local / "imported")
  commands.script(IMPORTED, f"{url}/imported", local / "imported", cwd=tmp_path)

  lines = list(embed_lines.make_lines(1500))
  for name, some in (("x.txt", lines[:1000]), ("y.txt", lines[500:]), ("q.txt", lines[:50])):
    (local / name).write_text("".join(f"{line}\n" for line in some))
    storage.filesystem(url).put_file(str(local / name), f"{url}/{name}")
  for name in "xy":
    vmsst("embed", f"{url}/encoder", f"{url}/{name}.txt", f"{url}/{name}.vectors")
    index = ["index", f"{url}/{name}.vectors", f"{url}/{name}.index", "--factory", "IVF16,SQ8"]
    with start("-c", INDEX, *index) as process:
      while "shard-00001.faiss.json" not in storage.names(f"{url}/{name}.index/.vmsst"):
        assert process.poll() is None
        time.sleep(0.02)
      process.kill()
    vmsst(*index, code=INDEX)
    vmsst("index", f"{url}/{name}.vectors", local / f"{name}.index", *index[3:], code=INDEX)
    assert storage.names(f"{url}/{name}.index") == {"index.faiss", "index.json"}
    for inside in ("index.faiss", "index.json"):
      found = storage.filesystem(url).cat_file(f"{url}/{name}.index/{inside}")
      assert found == (local / f"{name}.index" / inside).read_bytes(), inside
    storage.download(f"{url}/{name}.vectors", local / f"{name}.vectors")
  shutil.rmtree(temporary)
  temporary.mkdir()
  for root in (url, local):
    x, y, queries = (f"{root}/{name}.txt" for name in "xyq")
    vectors, indexes = ([f"{root}/{name}.{kind}" for name in "xy"] for kind in ("vectors", "index"))
    for options in ([], ["--index", *indexes]):
      out = local / f"{'store' if root == url else 'local'}{len(options)}"
      vmsst("mine", x, y, f"{out}.mined", "--vectors", *vectors, *options)
      search = ["search", queries, y, vectors[1], "--encoder", f"{url}/encoder"]
      vmsst(*search, "--output", f"{out}.found", *options[:1], *options[2:])
  for end in ("0.mined", "0.found", "3.mined", "3.found"):
    content = (local / f"store{end}").read_bytes()
    assert content
    assert content == (local / f"local{end}").read_bytes(), end
  assert not list(temporary.glob("vmsst-*"))


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
@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
def test_a_killed_evaluation_in_a_store_resumes_to_the_results_of_a_local_one(bucket, tmp_path):
  work = tmp_path / "work"  # the working directory of all commands
  work.mkdir()
  embed_lines.make_encoder(tmp_path / "encoder")
  lines = list(embed_lines.make_lines(20_000))
  pairs = [(n % 6, *lines[2 * n : 2 * n + 2]) for n in range(250)]
  line_files.write_tsv(tmp_path / "data" / "xlsts" / "STS17.track1.ar-ar.tsv.gz", pairs)
  codes = ("deu", "fra", "rus", "jpn", "kor", "spa", "ita", "nld", "por", "swe")
  for n, code in enumerate(codes):
    for side, start in ((code, 0), ("eng", 1000)):
      texts = lines[2000 * n + start : 2000 * n + start + 1000]
      line_files.write_lines(tmp_path / "data" / "tatoeba" / f"tatoeba.{code}-eng.{side}", texts)
  for name in ("encoder", "data"):
    benchmark_trees.upload(tmp_path / name, f"{bucket}/evaluation/{name}")

  def vmsst(*arguments):
    return subprocess.Popen(
      [sys.executable, "-m", "vmsst.cli", *map(str, arguments)],
      env=commands.environment(),
      cwd=work,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )

  def evaluate(root):
    chosen = ("--suite", "xlsts", "tatoeba")
    places = ("--encoder", f"{root}/encoder", "--data", f"{root}/data", "--out", f"{root}/out")
    # A name: the IDs in figures depend on it.
    return vmsst("eval", *chosen, *places, "--name", "encoder")

  def finish(process):
    output, problems = process.communicate(timeout=600)
    assert process.returncode == 0, problems[-3000:]
    return output, problems

  remote = f"{bucket}/evaluation"
  with evaluate(remote) as process:
    while storage.names(f"{remote}/out/benchmarks") != {"xlsts.json"}:
      assert process.poll() is None, process.stderr.read()[-3000:]
      time.sleep(0.02)
    process.kill()
  assert storage.names(f"{remote}/out/benchmarks") == {"xlsts.json"}
  output, problems = finish(evaluate(remote))
  assert "xlsts: finished before" in problems
  assert f"{remote}/out/results.json" in output
  finish(evaluate(tmp_path))
  assert results_without_places(f"{remote}/out") == results_without_places(f"{tmp_path}/out")
  assert storage.names(f"{remote}/out") == {"results.json", "settings.json", "benchmarks"}
  for root in (remote, tmp_path):
    finish(vmsst("report", f"{root}/out", "--out", f"{root}/report"))
  assert storage.names(f"{remote}/report") == {"report.html"}
  texts = [
    input_files.read_bytes(f"{root}/report/report.html").decode() for root in (remote, tmp_path)
  ]
  assert texts[0].replace(remote, "ROOT") == texts[1].replace(str(tmp_path), "ROOT")
  assert not list(work.iterdir())  # no folder named "gs:"


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


def results_without_places(folder):
  """Returns an evaluation's results without times, and without names of encoder and data."""
  found = json.loads(input_files.read_bytes(f"{folder}/results.json"))
  del found["encoder"]["name"]
  assert found["encoder"]["digest"]
  for own in found["benchmarks"].values():
    del own["seconds"], own["data"]["name"]
  return found


@pytest.mark.slow
def test_states_of_lanes_are_joined_in_a_store(bucket):
  whole = lanes.Lanes(order="a", seed=3, batch_size=4, first=0, passed=(5, 6, 7, 8))
  folder = storage.path(f"{bucket}/checkpoint_7/dataset")
  for process in range(2):
    part = whole.take(2 * process, 2).to_json()
    data.DataState(7, None, False, part).copy_to(folder, process, 2)
  data.DataState.join_lanes(folder)
  assert data.DataState.read_from(folder, 2, 4).lanes == whole.to_json()
