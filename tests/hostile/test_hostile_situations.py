"""Every subcommand that writes, in drawn situations: hostile inputs, outputs, disks and signals."""

import hashlib
import itertools
import json
import random

import commands
import fake_encoders
import model_readers
import pytest
import situations
import tiny_encoders
from situations import SENTENCES, WORK, Subcommand
from trials import files_below

import vmsst
from vmsst.inference import loading
from vmsst.networks import sentence_encoder
from vmsst.networks import vmsst as networks
from vmsst.vectors import file_embedding

OTHER = "".join(f"{line[::-1]}\n" for line in SENTENCES).encode()
LINES = "".join(f"{line}\n" for line in SENTENCES).encode()
PAIRS = "".join(f"{line[::-1]}\t{line}\n" for line in SENTENCES).encode()


def files(*ends):
  """Returns what reads the files with these name endings in a folder."""
  return lambda folder: {k: x for k, x in files_below(folder).items() if k.endswith(ends)}


def params(folder):
  arrays = tiny_encoders.read_arrays(folder.resolve() / "checkpoint_0")
  return {name: array.tobytes() for name, array in arrays.items()}


def scores(folder):
  found = json.loads((folder / "results.json").read_text())["benchmarks"]
  return {name: each["results"] for name, each in found.items()}


COMMANDS = {
  "embed": ("embed encoder a.txt OUT",
            {"folder": True, "resumes": ("",), "result": files(".npy")}),
  "score": ("score encoder a.txt b.txt --output OUT", {"resumes": (WORK,)}),
  "score by likelihood": (
    "score run a.txt b.txt --output OUT --by likelihood --languages en de", {"resumes": (WORK,)}),
  "mine": ("mine a.txt b.txt OUT --encoder encoder",
           {"stream": False, "blank": False,
            "resumes": (WORK, ".source.vectors", ".target.vectors")}),
  "search": ("search b.txt corpus vectors --output OUT --encoder encoder", {}),
  "index": ("index vectors OUT --factory IVF2,SQ8",
            {"folder": True, "resumes": ("",), "result": files("")}),
  "translate": ("translate run --to de --input a.txt --output OUT", {}),
  "vocab train": ("vocab train --input a.txt --output OUT --size 21",
                  {"stream": False, "blank": False}),
  **{f"export {kind}": (f"export {kind} run OUT", {"folder": True, "result": files("")})
     for kind in ("safetensors", "sentence-transformers", "onnx")},
  **{f"data {kind}": (f"data {kind} run OUT t/x.de-en.tsv",
                      {"folder": True, "resumes": ("",), "blank": False,
                       "result": files(".npy", ".gz")})
     for kind in ("embed", "mine-negatives")},
  **{f"import {kind}": (f"import {kind} m OUT", {"folder": True, "result": params})
     for kind in ("mt5", "bert", "vmsst")},
  "import ems": ("import ems x.safetensors OUT --vocabulary x.model",
                 {"folder": True, "result": params}),
  "eval": ("eval --encoder encoder --data data --out OUT --suite tatoeba",
           {"folder": True, "resumes": ("",), "result": scores}),
  "report": ("report results --out OUT",
             {"folder": True, "resumes": ("",), "result": files("")}),
}  # fmt: skip


def fake(content):
  """Returns an encoder whose vectors depend on the content of its file."""
  seed = content.decode()
  encoder = fake_encoders.FakeEncoder(lambda text: fake_encoders.random_vector(f"{seed} {text}"))
  encoder.digest = hashlib.sha256(content).hexdigest()
  return encoder


def open_fake(path, *args, **options):
  with open(path, "rb") as stream:
    return path, fake(stream.read())


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
  """Returns files and folders by their first word, which commands name."""
  folder = tmp_path_factory.mktemp("situations")
  network = networks.VmsstNetwork(tiny_encoders.t5_config(), latent_dim=6)
  encoder = sentence_encoder.SentenceEncoder(network.config, network.latent_dim)
  run = tiny_encoders.save_run(folder / "run", tiny_encoders.model_of(encoder, network=network))
  (folder / "corpus").write_bytes(LINES)
  file_embedding.embed_file(
    fake(b"seed 1"), str(folder / "corpus"), folder / "vectors", name="encoder"
  )
  (folder / "data" / "tatoeba").mkdir(parents=True)
  for code, content in (("deu", OTHER), ("eng", LINES)):
    (folder / "data" / "tatoeba" / f"tatoeba.deu-eng.{code}").write_bytes(content)
  chosen = vmsst.get_benchmarks(["tatoeba"])
  vmsst.evaluate(fake(b"seed 1"), chosen, folder / "data", folder / "results", name="x")
  return {
    **{name: folder / name for name in ("vectors", "data", "results")},
    "encoder": b"seed 1", "a.txt": LINES, "b.txt": OTHER, "corpus": LINES, "t/x.de-en.tsv": PAIRS,
    "run": run, **model_readers.ems_files(),
  }  # fmt: skip


@pytest.fixture
def subcommand(name, inputs, monkeypatch):
  """Returns a subcommand; encoders are fake, and the translator is loaded once."""
  if name == "export onnx":
    pytest.importorskip("onnx", reason="needs onnx to write models")
  monkeypatch.setattr(loading, "open_encoder", open_fake)
  translator = []

  def load_translator(path, load=loading.load_translator):
    translator[:] = translator or [load(path)]
    return translator[0]

  monkeypatch.setattr(loading, "load_translator", load_translator)
  argv, options = COMMANDS[name]
  kind = {"import mt5": model_readers.mt5_files, "import bert": model_readers.bert_files,
          "import vmsst": model_readers.vmsst_files}.get(name, dict)  # fmt: skip
  used = {word: inputs[word] for word in argv.split() if word in inputs}
  texts = tuple(word for word in used if word.endswith((".txt", ".tsv")))
  return Subcommand(argv, {**used, **kind()}, texts, **options)


@pytest.mark.parametrize("name", COMMANDS)
def test_an_output_has_one_writer(name, subcommand, tmp_path):
  situations.check_owned(subcommand, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_in_many_situations(name, subcommand, tmp_path):
  slow = name.startswith(("import", "export", "report", "score by"))
  situations.check(subcommand, 20 if slow else 100, tmp_path)


_SIZES = ("2.5", "'x'", "-1", "True", "[2]", "1e400", "{}", "@nothing")
_READ = {
  "TASK_FEATURE_LENGTHS": ("None", "3", "{'inputs': 'x'}", "{}"),
  "VOCABULARY": ("None", "3", "'x'"),
  "MODEL": ("None", "3"),
  "NOTHING": ("3",),
}
_OUTPUTS = ("3", "None", "'full/file'", "'/dev/null/x'")
SETTINGS = {
  "train": {
    **dict.fromkeys(("TRAIN_STEPS", "EVAL_PERIOD", "BATCH_SIZE", "EMBED_DIM"), (*_SIZES, "None")),
    "CHECKPOINT_PERIOD": _SIZES,
    "RANDOM_SEED": ("2.5", "'x'", "99999999999999999999", "True"),
    "NUM_MICROBATCHES": ("2.5", "'x'", "-1", "3"),
    "MIXTURE_OR_TASK_NAME": ("'nowhere'", "None", "3", "''"),
    "OPTIMIZER": ("None", "3"),
    "INITIAL_CHECKPOINT_PATH": ("'nowhere'", "3", "'/nowhere'", "'/etc/passwd'"),
    "utils.create_learning_rate_scheduler.base_learning_rate": ("'x'", "None", "-1"),
    "train/utils.DatasetConfig.split": ("'nowhere'", "None", "3"),
    "nothing.nothing": ("3",),
    **_READ,
  },
  "eval": {
    "CHECKPOINT_PATH": ("'nowhere'", "'/nowhere'", "3", "None", "'/etc/passwd'", "'/etc'"),
    "CHECKPOINT_MODE": ("'nowhere'", "3", "None"),
    "EVAL_OUTPUT_DIR": _OUTPUTS,
    **_READ,
  },
  "infer": {
    "INFER_BATCH_SIZE": _SIZES,
    "INFER_TASK": ("'nowhere'", "None", "3"),
    "INFER_SPLIT": ("'nowhere'", "None", "3"),
    "INFER_OUTPUT_DIR": _OUTPUTS,
    "infer_script.infer.mode": ("'nowhere'", "3"),
    **_READ,
  },
}
MODEL_DIRS = (
  "run",
  "new/deep/run",
  "old",
  "full",
  "full/file",
  "full/file/run",
  "link",
  "az://b/x",
)
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


@pytest.mark.slow
@pytest.mark.parametrize("command", SETTINGS)
def test_t5x_refuses_a_faulty_setting_or_model_dir_and_leaves_nothing(command, tmp_path):
  place = tmp_path / "place"
  (place / "old").mkdir(parents=True)
  (place / "full").mkdir()
  (place / "full" / "file").write_text("of the user")
  (place / "link").symlink_to("missing")
  settings = [(name, value) for name, values in SETTINGS[command].items() for value in values]
  # `t5x eval` and `t5x infer` find no checkpoint in any of the folders.
  unusable = MODEL_DIRS[4:6] if command == "train" else MODEL_DIRS[:6]
  drawn = [*itertools.product(settings, MODEL_DIRS), *itertools.product([("A", "2")], unusable)]
  random.Random(0).shuffle(drawn)
  drawn = drawn[: 120 if command == "train" else 50]
  given = [*commands.TINY, *([] if command == "train" else [f"--gin_file=runs/{command}.gin"])]
  arguments = [
    [command, *given, f"--gin.MODEL_DIR='{'' if '://' in path else f'{place}/'}{path}'",
     f"--gin.{name}={value}"]
    for (name, value), path in drawn
  ]  # fmt: skip
  ends = tmp_path / "ends.json"
  commands.script(_DRIVER, ends, cwd=place, text=json.dumps(arguments), timeout=1500)
  faults = []
  for situation, (outcome, unchanged) in zip(drawn, json.loads(ends.read_text()), strict=True):
    if not (unchanged and outcome.startswith("t5x: error: ") and "\n" not in outcome):
      faults.append(f"{situation}: {'' if unchanged else 'files have changed; '}{outcome[-400:]}")
  assert not faults, f"{len(faults)} of {len(drawn)}\n" + "\n".join(faults)
