"""Every subcommand that writes, in drawn situations: hostile inputs, outputs, disks and signals."""

import hashlib
import json
import random

import commands
import download_readers
import fake_encoders
import model_readers
import pytest
import situations
import tiny_encoders
from situations import SENTENCES, Subcommand

import vmsst
from vmsst.downloads import evaluation_sets, fetch
from vmsst.inference import loading
from vmsst.networks import sentence_encoder
from vmsst.networks import vmsst as networks
from vmsst.vectors import file_embedding, vector_store

LINES = "".join(f"{line}\n" for line in SENTENCES).encode()
PAIRS = "".join(f"{line[::-1]}\t{line}\n" for line in SENTENCES).encode()
OTHER = "".join(f"{line[::-1]}\n" for line in SENTENCES).encode()


def vectors_of(folder):
  return vector_store.open_vectors(folder)[:].tolist()


def files_of(folder):
  """Returns the content of all files that do not name the folder."""
  return {
    path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
    for path in sorted(folder.rglob("*"))
    if path.is_file()
  }


def arrays_of(folder):
  """Returns the content of vectors and of compressed text."""
  paths = sorted({*folder.rglob("*.npy"), *folder.rglob("*.gz")})
  return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def params_of(folder):
  arrays = tiny_encoders.read_arrays(folder.resolve() / "checkpoint_0")
  return {name: array.tobytes() for name, array in arrays.items()}


def scores_of(folder):
  found = json.loads((folder / "results.json").read_text())["benchmarks"]
  return {name: each["results"] for name, each in found.items()}


def embedded(folder, content):
  """Writes the vectors of a text."""
  (folder / "text").write_bytes(content)
  file_embedding.embed_file(fake(), str(folder / "text"), folder / "vectors", name="encoder")
  return folder / "vectors"


ENCODER = {"encoder": b"seed 1"}


def fake(content=ENCODER["encoder"]):
  """Returns an encoder whose vectors depend on the content of its file."""
  seed = content.decode()
  encoder = fake_encoders.FakeEncoder(lambda text: fake_encoders.random_vector(f"{seed} {text}"))
  encoder.digest = hashlib.sha256(content).hexdigest()
  return encoder


def open_fake(path, dtype=None, max_length=None, backend="jax"):
  with open(path, "rb") as stream:
    return path, fake(stream.read())


@pytest.fixture(scope="module")
def subcommands(tmp_path_factory):
  """Returns the subcommands by name. Those on texts use a fake encoder."""
  folder = tmp_path_factory.mktemp("situations")
  network = networks.VmsstNetwork(tiny_encoders.t5_config(), latent_dim=6)
  run = tiny_encoders.save_run(
    folder / "run",
    tiny_encoders.model_of(
      sentence_encoder.SentenceEncoder(network.config, network.latent_dim), network=network
    ),
  )
  vectors = embedded(folder, LINES)
  two = {"a.txt": LINES, "b.txt": OTHER}
  translations = {"t/x.de-en.tsv": PAIRS}
  run_alone = {"run": run}
  benchmark = {"data/tatoeba/tatoeba.deu-eng.deu": OTHER, "data/tatoeba/tatoeba.deu-eng.eng": LINES}
  for path, content in benchmark.items():
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(content)
  results = folder / "results"
  vmsst.evaluate(fake(), vmsst.get_benchmarks(["tatoeba"]), folder / "data", results, name="x")
  return {
    "embed": Subcommand(
      ("embed", "encoder", "a.txt", "OUT"), {"a.txt": LINES, **ENCODER}, ("a.txt",),
      folder=True, resumes=("",), result=vectors_of,
    ),
    "score": Subcommand(
      ("score", "encoder", "a.txt", "b.txt", "--output", "OUT"), {**two, **ENCODER},
      ("a.txt", "b.txt"), resumes=(situations.WORK,), empty=False,
    ),
    "score by likelihood": Subcommand(
      ("score", "run", "a.txt", "b.txt", "--output", "OUT", "--by", "likelihood", "--languages",
       "en", "de"), {**two, **run_alone}, ("a.txt", "b.txt"),
      resumes=(situations.WORK,), empty=False,
    ),
    "mine": Subcommand(
      ("mine", "a.txt", "b.txt", "OUT", "--encoder", "encoder"), {**two, **ENCODER},
      ("a.txt", "b.txt"), stream=False, empty=False, blank=False,
      resumes=(situations.WORK, ".source.vectors",
               ".target.vectors"),
    ),
    "search": Subcommand(
      ("search", "q.txt", "a.txt", "v", "--output", "OUT", "--encoder", "encoder"),
      {"q.txt": OTHER, "a.txt": LINES, "v": vectors, **ENCODER}, ("q.txt",),
    ),
    "index": Subcommand(
      ("index", "v", "OUT", "--factory", "IVF2,SQ8"), {"v": vectors}, (), folder=True,
      resumes=("",), result=files_of,
    ),
    "translate": Subcommand(
      ("translate", "run", "--to", "de", "--input", "a.txt", "--output", "OUT"),
      {"a.txt": LINES, **run_alone}, ("a.txt",),
    ),
    "vocab train": Subcommand(
      ("vocab", "train", "--input", "a.txt", "--output", "OUT", "--size", "21"),
      {"a.txt": LINES}, ("a.txt",), stream=False, empty=False, blank=False,
    ),
    **{
      f"export {kind}": Subcommand(
        ("export", kind, "run", "OUT"), run_alone, (), folder=True, result=files_of,
      )
      for kind in ("safetensors", "sentence-transformers", "onnx")
    },
    **{
      f"data {kind}": Subcommand(
        ("data", kind, "run", "OUT", "t/x.de-en.tsv"), {**translations, **run_alone},
        ("t/x.de-en.tsv",), folder=True, resumes=("",), result=arrays_of, empty=False, blank=False,
      )
      for kind in ("embed", "mine-negatives")
    },
    **{
      f"import {kind}": Subcommand(
        ("import", kind, *words, "OUT", *options), files, (), folder=True, result=params_of,
      )
      for kind, words, options, files in (
        ("mt5", ["m"], [], model_readers.mt5_files()),
        ("bert", ["m"], [], model_readers.bert_files()),
        ("ems", ["x.safetensors"], ["--vocabulary", "x.model"], model_readers.ems_files()),
        ("vmsst", ["m"], [], model_readers.vmsst_files()),
      )
    },
    "data download": Subcommand(
      ("data", "download", "evaluation", "x", "--output", "OUT"), {"a.txt": LINES}, (),
      folder=True, resumes=("",), result=files_of,
    ),
    "eval": Subcommand(
      ("eval", "--encoder", "encoder", "--data", "data", "--out", "OUT", "--suite", "tatoeba"),
      {**benchmark, **ENCODER}, tuple(benchmark), folder=True, resumes=("",), empty=False,
      blank=False, result=scores_of,
    ),
    "report": Subcommand(
      ("report", "results", "--out", "OUT"), {"results": results}, (), folder=True,
      resumes=("",), result=files_of,
    ),
  }  # fmt: skip


@pytest.fixture(autouse=True)
def outside(monkeypatch):
  """Fakes encoders and the network, and keeps the translator between commands."""
  kept = {}
  load = loading.load_translator

  def load_translator(path):
    if "translator" not in kept:
      kept["translator"] = load(path)
    return kept["translator"]

  monkeypatch.setattr(loading, "open_encoder", open_fake)
  monkeypatch.setattr(loading, "load_translator", load_translator)
  pages = {"/a": LINES, "/b": OTHER}
  sets = [
    download_readers.set_of(page[1:], f"https://example.org{page}", f"x{page}", None)
    for page in pages
  ]
  monkeypatch.setattr(evaluation_sets, "choose", lambda names: sets)
  monkeypatch.setattr(fetch, "Fetcher", lambda **options: download_readers.fetcher_of(pages))


NAMES = (
  "embed", "score", "index", "mine", "search", "translate", "vocab train", "export safetensors",
)  # fmt: skip
SLOW = {name: 170 for name in NAMES} | {
  "score by likelihood": 60,
  "index": 40, "export safetensors": 40, "export sentence-transformers": 20,
  "export onnx": 20,
  "data embed": 40, "data mine-negatives": 40, "eval": 60, "report": 20, "data download": 40,
  "import mt5": 20, "import bert": 20, "import ems": 20, "import vmsst": 20,
}  # fmt: skip


@pytest.mark.parametrize("name", SLOW)
def test_an_output_has_one_writer(name, subcommands, tmp_path):
  situations.check_owned(subcommands[name], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_command_in_a_few_situations(name, subcommands, tmp_path):
  count = 4 if name.startswith("export") else 16
  print(situations.check(subcommands[name], situations.draw(subcommands[name], count), tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_a_command_in_many_situations(name, subcommands, tmp_path):
  if name == "export onnx":
    pytest.importorskip("onnx", reason="needs onnx to write models")
  drawn = situations.draw(subcommands[name], SLOW[name], seed=1)
  print(situations.check(subcommands[name], drawn, tmp_path))


# --------------------------------------------------------------------------------------------
# t5x

_INTEGERS = ("2.5", "'x'", "-1", "True", "[2]", "1e400", "{}", "@nothing")
SETTINGS = {
  **{
    name: (*_INTEGERS, "None") for name in ("TRAIN_STEPS", "EVAL_PERIOD", "BATCH_SIZE", "EMBED_DIM")
  },
  "CHECKPOINT_PERIOD": _INTEGERS,
  "RANDOM_SEED": ("2.5", "'x'", "99999999999999999999", "True"),
  "NUM_MICROBATCHES": ("2.5", "'x'", "-1", "3"),
  "MIXTURE_OR_TASK_NAME": ("'nowhere'", "None", "3", "''"),
  "TASK_FEATURE_LENGTHS": ("None", "3", "{'inputs': 'x'}", "{}"),
  "VOCABULARY": ("None", "3", "'x'"),
  "OPTIMIZER": ("None", "3"),
  "MODEL": ("None", "3"),
  "NOTHING": ("3",),
  "INITIAL_CHECKPOINT_PATH": ("'nowhere'", "3", "'/nowhere'", "'/etc/passwd'"),
  "trainer.Trainer.num_microbatches": ("'x'", "2.5"),
  "utils.create_learning_rate_scheduler.base_learning_rate": ("'x'", "None", "-1"),
  "train/utils.DatasetConfig.split": ("'nowhere'", "None", "3"),
  "nothing.nothing": ("3",),
}
_READ_SETTINGS = {
  "CHECKPOINT_PATH": ("'nowhere'", "'/nowhere'", "3", "None", "'/etc/passwd'", "'/etc'"),
  **{name: SETTINGS[name] for name in ("TASK_FEATURE_LENGTHS", "VOCABULARY", "MODEL", "NOTHING")},
}
COMMANDS = {
  "train": SETTINGS,
  "eval": {
    **_READ_SETTINGS,
    "CHECKPOINT_MODE": ("'nowhere'", "3", "None"),
    "EVAL_OUTPUT_DIR": ("3", "None", "'full/file'", "'/dev/null/x'"),
    "infer_eval/utils.DatasetConfig.split": ("'nowhere'", "None", "3"),
  },
  "infer": {
    **_READ_SETTINGS,
    "INFER_BATCH_SIZE": _INTEGERS,
    "INFER_TASK": ("'nowhere'", "None", "3"),
    "INFER_SPLIT": ("'nowhere'", "None", "3"),
    "INFER_OUTPUT_DIR": ("3", "None", "'full/file'", "'/dev/null/x'"),
    "infer_script.infer.mode": ("'nowhere'", "3"),
    "infer_script.infer.checkpoint_period": _INTEGERS,
  },
}
MODEL_DIRS = {
  "new": "run",
  "in new folders": "new/deep/run",
  "an old folder": "old",
  "a folder with files": "full",
  "a file": "full/file",
  "below a file": "full/file/run",
  "a dangling link": "link",
  "in an unknown store": "az://bucket/run",
}
_UNUSABLE = {"a file", "below a file", "in an unknown store"}

_DRIVER = """
import contextlib, io, json, os, sys, traceback
import gin
from vmsst.launch.main import main

def content(path):
  return os.readlink(path) if os.path.islink(path) else str(open(path, "rb").read())

def snapshot():
  return sorted(
    (where, sorted(folders), [(name, content(f"{where}/{name}")) for name in sorted(names)])
    for where, folders, names in os.walk("."))

outcomes = []
for arguments in json.load(sys.stdin):
  gin.clear_config(clear_constants=True)
  before = snapshot()
  try:
    with contextlib.redirect_stderr(io.StringIO()) as shown:
      main(arguments)
    outcome = "no error"
  except SystemExit:
    outcome = shown.getvalue().strip()
  except BaseException:
    outcome = traceback.format_exc()
  outcomes.append((outcome, snapshot() == before))
with open(sys.argv[1], "w") as stream:
  json.dump(outcomes, stream)
"""


def draw_runs(command, count):
  """Returns arguments of a command by situation; each has a faulty setting or MODEL_DIR.

  `t5x eval` and `t5x infer` find no checkpoint in any of the folders.
  """
  rng = random.Random(0)
  found = {}
  while len(found) < count:
    setting = rng.choice(list(COMMANDS[command]))
    value, place = rng.choice(COMMANDS[command][setting]), rng.choice(list(MODEL_DIRS))
    if (place in _UNUSABLE or command != "train") and rng.random() < 0.5:
      setting, value = "TRAIN_STEPS", "2"
    found[f"{setting} = {value}, MODEL_DIR is {place}"] = (f"--gin.{setting}={value}", place)
  return found


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_t5x_in_many_situations(command, tmp_path):
  place = tmp_path / "place"
  (place / "old").mkdir(parents=True)
  (place / "full").mkdir()
  (place / "full" / "file").write_text("of the user")
  (place / "link").symlink_to("missing")
  drawn = draw_runs(command, 150 if command == "train" else 60)
  files = [*commands.TINY, *([] if command == "train" else [f"--gin_file=runs/{command}.gin"])]
  arguments = []
  for setting, name in drawn.values():
    path = MODEL_DIRS[name] if "://" in MODEL_DIRS[name] else place / MODEL_DIRS[name]
    arguments.append([command, *files, f"--gin.MODEL_DIR='{path}'", setting])
  ends = tmp_path / "ends.json"
  text = json.dumps(arguments)
  commands.script(_DRIVER, ends, cwd=place, text=text, timeout=1500)
  faults = []
  for situation, (outcome, unchanged) in zip(drawn, json.loads(ends.read_text()), strict=True):
    one_line = outcome.startswith("t5x: error: ") and "\n" not in outcome
    if not one_line or not unchanged:
      faults.append(f"{situation}: {'' if unchanged else 'files have changed; '}{outcome[-400:]}")
  assert not faults, f"{len(faults)} of {len(drawn)}\n" + "\n".join(faults)
  print(f"t5x {command}: {len(drawn)} situations, all refused")
