"""The `t5x` command, as users run it."""

import json
import os
import pathlib
import pty
import re
import select
import signal
import subprocess
import sys
import time

import commands
import numpy as np
import pytest

import vmsst
from vmsst import languages
from vmsst.tasks import sample

# Parameters of a layer: query, key, value, out; wi_0, wi_1, wo; two norms. A stack adds a norm and
# positions, the decoder's layer a norm and the kernel that takes [h; z_lang; z_sem].
LAYER = 4 * 16 * (4 * 32) + 3 * 16 * 256 + 2 * 16
STACK = LAYER + 16 + 4 * 32
DECODER = STACK + 16 + 3 * 16 * 16
# Tokens; two encoders and a decoder; two tables of languages; four heads; vocabulary projection.
PARAMETERS = 3600 * 16 + 2 * STACK + DECODER + 2 * languages.NUM_LANGUAGES * 16
PARAMETERS += 4 * 16 * 16 + 3 * 16 * 3600
CODES = [code for code in sample.LANGUAGES if code != "en"]


def model_dir(path):
  """Returns the argument that sets MODEL_DIR."""
  return f"--gin.MODEL_DIR='{path}'"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  """Trains; returns the folder of the finished run and the completed command."""
  folder = tmp_path_factory.mktemp("finished")
  done = commands.t5x("train", *commands.TINY, model_dir(folder / "run"), cwd=folder)
  assert done.returncode == 0, done.stderr
  return folder / "run", done


def test_help_imports_nothing_heavy(tmp_path):
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
sys.modules["seqio"] = None  # as without the packages for training
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
  for name in ("eval", "infer", "--gin_search_paths", "--gin.TRAIN_STEPS=1000", "--dry_run"):
    assert name in done.stdout


# --------------------------------------------------------------------------------------------
# Errors


def test_an_error_is_one_line_and_exit_code_1(finished, tmp_path):
  run, _ = finished  # the config.gin of a run is a valid gin file
  done = commands.t5x(
    "train", f"--gin_file={run / 'config.gin'}", "--gin.BATCH_SIZE=12", cwd=tmp_path, devices=8
  )
  assert done.returncode == 1
  assert done.stdout == ""
  (line,) = done.stderr.splitlines()
  assert line.startswith(
    "t5x: error: BATCH_SIZE=12 is not divisible by the data axis of the mesh (8"
  )


def _faulty(folder, run):
  """Returns wrong arguments of `t5x train`, to add to those of the tiny run, by name."""
  return {
    "no such gin file": ["--gin_file=nowhere.gin"],
    "macro": ["--gin.TRAIN_STEPZ=3"],
    "parameter": ["--gin.utils.SaveCheckpointConfig.periodd=3"],
    "no inner quotes": [f"--gin.MODEL_DIR={folder}"],
    "value": ["--gin.TRAIN_STEPS=three"],
    "open bracket": ["--gin.TRAIN_STEPS=[1,"],
    "no equals sign": ["--gin.TRAIN_STEPS"],
    "not set": ["--gin.MODEL_DIR=%gin.REQUIRED"],
    "relative folder": ["--gin.MODEL_DIR='relative/run'"],
    "unwritable folder": [model_dir(folder / "a_file" / "run")],
    "task": ["--gin.MIXTURE_OR_TASK_NAME='nowhere'"],
    "vocabulary": ["--gin.vocabularies.SentencePieceVocabulary.path='/nowhere/x.model'"],
    "other shape": [model_dir(run), "--gin.EMBED_DIM=32"],
    "fewer steps": [model_dir(run), "--gin.TRAIN_STEPS=1"],
    "fraction of steps": ["--gin.TRAIN_STEPS=2.5"],
    "text as batch size": ["--gin.BATCH_SIZE='x'"],
    "negative batch size": ["--gin.BATCH_SIZE=-8"],
    "boolean as steps": ["--gin.EVAL_PERIOD=True"],
    "text as learning rate": ["--gin.utils.create_learning_rate_scheduler.base_learning_rate='x'"],
    "no vocabulary": ["--gin.VOCABULARY=None"],
    "no lengths": ["--gin.TASK_FEATURE_LENGTHS=None"],
    "no optimizer": ["--gin.OPTIMIZER=None"],
    "other encoder": [
      "--gin_file=runs/from_encoder.gin",
      f"--gin.INITIAL_CHECKPOINT_PATH='{run}/checkpoint_2'",
      "--gin.EMBED_DIM=32",
    ],
    "no such encoder": [
      "--gin_file=runs/from_encoder.gin",
      f"--gin.INITIAL_CHECKPOINT_PATH='{run}/checkpoint_9'",
    ],
    "negative steps": ["--gin.TRAIN_STEPS=-1"],
    "split": ["--gin.train/utils.DatasetConfig.split='nowhere'"],
    "store": ["--gin.MODEL_DIR='az://bucket/run'"],
  }


_EXPECTED = {
  "no such gin file": r"gin file 'nowhere\.gin' not found; searched: {folder}, {gin}",
  "macro": r"--gin\.TRAIN_STEPZ: no gin file has a macro TRAIN_STEPZ; did you mean TRAIN_STEPS",
  "parameter": r".*SaveCheckpointConfig has no parameter 'periodd'; did you mean period",
  "no inner quotes": r"--gin\.MODEL_DIR = {folder}: .*inner quotes",
  "value": r"--gin\.TRAIN_STEPS = three: (?!.*0x)",
  "open bracket": r"--gin\.TRAIN_STEPS = \[1,: ",
  "no equals sign": r"--gin\.TRAIN_STEPS: write gin bindings as --gin\.NAME=VALUE",
  "not set": r"MODEL_DIR: no value; set --gin\.MODEL_DIR=VALUE",
  "relative folder": r"MODEL_DIR must be an absolute path, got 'relative/run'; try '{folder}/rel",
  "unwritable folder": r"MODEL_DIR {folder}/a_file/run cannot be written to: Not a directory",
  "task": r"no task or mixture 'nowhere' is registered; known: .*check MIXTURE_OR_TASK_NAME",
  "vocabulary": r"vocabulary /nowhere/x\.model: cannot be read: No such file or directory",
  "other shape": (
    r"target/\S+ has shape \(32,\) in the model and \(16,\) in {run}/checkpoint_2 .*"
    "use a checkpoint of the same model and size"
  ),
  "fewer steps": r"TRAIN_STEPS=1 is less than the checkpoint's step, 2; raise it",
  "fraction of steps": r"train\.total_steps \(TRAIN_STEPS\) is 2\.5; set it to a value of type int",
  "text as batch size": r"utils\.DatasetConfig\.batch_size \(BATCH_SIZE\) is 'x'; set it to ",
  "negative batch size": r"utils\.DatasetConfig\.batch_size \(BATCH_SIZE\) is -8; it must be ",
  "boolean as steps": r"train\.eval_period \(EVAL_PERIOD\) is True; set it to a value of type int",
  "text as learning rate": r"utils\.create_learning_rate_scheduler\.base_learning_rate is 'x'; ",
  "no vocabulary": r"\S+\.\w+ \(VOCABULARY\) is None; set it to a value of type Vocabulary",
  "no lengths": r"task_feature_lengths of training data is None; set it to a dict",
  "no optimizer": r".*\(OPTIMIZER\) is None; set it to an optimizer",
  "other encoder": r"target/\S+ has shape \(.*32.*\) in the model and \(.*16.*\) in {run}/",
  "no such encoder": r"(?:{run}/checkpoint_9|no folder {run}/checkpoint_9)",
  "negative steps": r"train\.total_steps \(TRAIN_STEPS\) is -1; it must be an integer of 0 or more",
  "split": r"'sample' has no split 'nowhere'; set one of train, validation",
  "store": r"az://bucket/run: az:// is not supported; give a local path, gs:// or s3://",
  "nothing set": r"no value for train\.model, .*; add a gin file or binding that sets it",
  "no eval": r"no value for evaluate\.model, .*; add --gin_file=runs/eval\.gin",
  "data": r"no file matches '{folder}/a\.de-en\.tsv'",
  "dry run": r"--dry_run works only with `t5x train`; remove it",
  "verbose": r"(?s)Traceback.*InputError: gin file 'nowhere\.gin' not found",
}

# What a dry run refuses as the run does: all but data and MODEL_DIR.
_DRY = (
  *("no such gin file", "macro", "parameter", "value", "open bracket", "fraction of steps"),
  *("text as batch size", "negative batch size", "boolean as steps", "text as learning rate"),
  *("no vocabulary", "no optimizer", "other encoder", "no such encoder", "negative steps"),
)

# Runs the command for every entry of a JSON object; writes to a file how each ended.
_DRIVER = """
import contextlib, functools, io, json, sys, traceback
import gin
from vmsst.launch import dry_run
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
  """Runs the faulty commands; returns how they ended, and the paths in their messages."""
  run, _ = finished
  folder = tmp_path_factory.mktemp("faulty")
  (folder / "a_file").touch()
  start = ["train", *commands.TINY, model_dir(folder / "run")]
  faulty = {name: [*start, *more] for name, more in _faulty(folder, run).items()}
  dry = {f"{name}, dry run": [*faulty[name], "--dry_run"] for name in _DRY}
  faulty["data"] = [
    *("train", "--gin_file=contrastive_6l.gin", "--gin_file=data/files.gin"),
    model_dir(folder / "run"),
    *("--gin.VOCABULARY_PATH='/nowhere/x.model'", f"--gin.PATTERNS='{folder}/a.de-en.tsv'"),
  ]
  (folder / "empty.gin").touch()
  faulty["nothing set"] = ["train", f"--gin_file={folder / 'empty.gin'}"]
  faulty["no eval"] = ["eval", "--gin_file=quickstart.gin"]
  faulty["dry run"] = ["infer", "--gin_file=quickstart.gin", "--dry_run"]
  faulty["verbose"] = ["train", "--gin_file=nowhere.gin", "--verbose"]
  ends = {}
  for given in (faulty, dry):
    commands.script(_DRIVER, folder / "ends.json", cwd=folder, devices=8, text=json.dumps(given))
    ends |= json.loads((folder / "ends.json").read_text())
  assert sorted(path.name for path in folder.iterdir()) == ["a_file", "empty.gin", "ends.json"]
  names = {"folder": folder, "run": run, "gin": vmsst.gin_dir()}
  return ends, names


@pytest.mark.parametrize("name", [*_EXPECTED, *(f"{name}, dry run" for name in _DRY)])
def test_errors_name_what_is_wrong_and_what_to_do(outcomes, name):
  ends, names = outcomes
  pattern = _EXPECTED[name.removesuffix(", dry run")]
  for key, path in names.items():
    pattern = pattern.replace("{" + key + "}", re.escape(str(path)))
  outcome = ends[name]
  if name != "verbose":
    assert "Traceback" not in outcome
    assert "\n" not in outcome
    pattern = f"t5x: error: (?:\\S+\\.gin: )?(?:{pattern})"
  assert re.match(pattern, outcome), outcome


# --------------------------------------------------------------------------------------------
# A whole run


def read_table(text):
  """Returns column names and numbers of the table at the end of a run."""
  lines = text.split("sample_retrieval", 1)[1].splitlines()
  columns = re.findall(r"step \d+", lines[0])
  rows = {line.split()[0]: [float(x) for x in line.split()[1:]] for line in lines[2:] if line}
  return columns, rows


def read_parameter_count(path):
  """Returns the total in the last line of model-info.txt."""
  return int(path.read_text().splitlines()[-1].removeprefix("parameters: ").replace(",", ""))


def read_lines(path):
  """Returns the rows of a JSON lines file."""
  return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_says_what_it_does_and_leaves_its_files(finished):
  run, done = finished
  assert re.search(r"^Ready after \d+\.\d s; training to step 2\.$", done.stdout, re.MULTILINE)
  first, line, last = done.stderr.splitlines()
  assert (first, last) == ("step 0: evaluating", "step 2: evaluating")
  assert re.match(r"step 2/2  loss \d+\.\d{4}", line)
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
  assert {"deu", "eng"} <= set(described["languages"])
  shipped = pathlib.Path(sample.vocabulary_path())
  assert (run / "vocabulary.model").read_bytes() == shipped.read_bytes()
  assert read_parameter_count(run / "model-info.txt") == PARAMETERS
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
  cosines = [
    np.dot(vector_D, other_D) / (np.linalg.norm(vector_D) * np.linalg.norm(other_D))
    for other_D in candidate_ND
  ]
  return int(np.argmax(cosines))


def test_the_trained_encoder_gives_the_accuracies_of_the_table(finished, tmp_path):
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


@pytest.mark.slow
def test_training_a_finished_run_again_says_so_and_only_evaluates(finished):
  run, first = finished
  before = read_lines(run / "train" / "metrics.jsonl")
  again = commands.t5x("train", *commands.TINY, model_dir(run), cwd=run.parent)
  assert again.returncode == 0, again.stderr
  assert "already at the last step, 2" in again.stdout
  columns, rows = read_table(again.stdout)
  assert columns == ["step 2"]
  assert rows == {name: [values[-1]] for name, values in read_table(first.stdout)[1].items()}
  after = read_lines(run / "train" / "metrics.jsonl")
  assert not any("loss" in row for row in after[len(before) :])
  assert sorted(path.name for path in run.glob("checkpoint_*")) == ["checkpoint_0", "checkpoint_2"]


def read_until(terminal, done, text=""):
  """Returns `text` and the terminal's output until `done(text)` or its end, in two minutes."""
  deadline = time.monotonic() + 120
  while not done(text):
    assert time.monotonic() < deadline, text
    if not select.select([terminal], [], [], 1)[0]:
      continue
    try:
      text += os.read(terminal, 1 << 16).decode()
    except OSError:  # on Linux, the other side is closed
      break
  return text


@pytest.mark.slow
def test_on_a_terminal_one_line_is_rewritten_and_sigterm_leaves_a_checkpoint(tmp_path):
  ours, theirs = pty.openpty()
  process = commands.start_t5x(
    *("train", *commands.TINY, model_dir(tmp_path / "run")),
    *("--gin.TRAIN_STEPS=100000", "--gin.CHECKPOINT_PERIOD=100000"),
    "--gin.train.infer_eval_dataset_cfg=None",
    "--gin.train.run_eval_before_training=False",
    cwd=tmp_path,
    stream=os.ttyname(theirs),
  )
  try:
    shown = read_until(ours, lambda text: "Ready" in text and text.count("\rstep ") >= 2)
    os.close(theirs)  # reading ends when the process does
    os.kill(process.pid, signal.SIGTERM)
    shown = read_until(ours, lambda text: False, shown)
    process.join(60)
    assert process.exitcode == 0, shown
  finally:
    process.kill()
    process.join()
    os.close(ours)
  _, live = re.split(r"Ready after .*?\r\n", shown)
  lines = live.split("\r\n")[0].split("\r")[1:]
  assert len(lines) >= 2
  for line in lines:
    assert re.fullmatch(
      r"step \d+/100000  loss \d+\.\d{4}  \S+ examples/s  \S+ tokens/s  ETA \S+ *", line
    )
  stopped = re.search(r"Stopped by SIGTERM at step (\d+); rerun the same command to resume", shown)
  assert stopped, shown
  assert (tmp_path / "run" / f"checkpoint_{stopped[1]}" / "state").is_dir()


@pytest.mark.skipif(sys.platform != "linux", reason="huge pages are requested on Linux")
@pytest.mark.parametrize(
  ("before", "seen"), [(None, [" False", "glibc.malloc.hugetlb=1 True"]), ("x", ["x False"])]
)
def test_the_process_is_re_executed_with_huge_pages(before, seen):
  code = (
    "import os, signal\n"
    "blocked = lambda: signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])\n"
    "print(os.getpid(), os.environ.get('GLIBC_TUNABLES', ''), blocked(), flush=True)\n"
    "from vmsst.launch.main import main\n"
    "assert not blocked()\n"
    "main()"
  )
  environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
  environment |= {} if before is None else {"GLIBC_TUNABLES": before}
  done = subprocess.run(
    [sys.executable, "-c", code, "train", "--gin.A='b c'"],
    env=environment,
    capture_output=True,
    text=True,
    check=False,
  )
  numbers, found = zip(*(line.split(" ", 1) for line in done.stdout.splitlines()), strict=True)
  assert list(found) == seen
  assert len(set(numbers)) == 1
  assert done.returncode == 1
  assert "set --gin_file" in done.stderr
